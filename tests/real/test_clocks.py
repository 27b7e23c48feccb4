"""`tputfind clocks` on the CPU, which has only the host clock."""

import signal

import msgspec
import pytest
from support.command import run, start_command
from support.folders import MODELS

from tputfind.record.clocks import Methods, Pipeline, cell_of, figures_of, stage_figures, turn_counts

FEW = ("--device", "cpu", "--batch-size", 2, "--repeats", 6, "--drop", 1, "--warmup", 1)
SMALL = (*FEW, "--image-size", 64)


def test_one_model_gets_its_tables_its_sentences_and_its_files(tmp_path, ask):
    ran = ask(tmp_path, "clocks", "resnet18", *SMALL, "--save", "all.json", "--save", "all.md")

    assert ran.status == 0, ran.err
    found = msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Methods)
    assert {(cell.way, cell.condition) for cell in found.cells if cell.condition != "pageable"} == {
        (way, condition)
        for way in ("host_clock", "host_clock_synchronised", "submission_and_device")
        for condition in ("warm", "cold")
    }
    warm, cold = (figures_of(found.cells, "host_clock", condition) for condition in ("warm", "cold"))
    assert (len(warm.samples_ms), len(cold.samples_ms)) == (5, 6)
    assert (found.batch_size, found.repeats, found.drop, found.spec.warmup) == (2, 6, 1, 1)
    assert found.command.startswith("tputfind clocks resnet18 --device cpu")
    assert "host clock, synchronised" in ran.out
    assert "events, CUDA graphs and pinned copies do not apply" in " ".join(ran.out.split())
    assert "the first call alone takes" in " ".join(ran.out.split()) or "; the first call takes" in ran.out
    assert "host clock alone, no warm-up" not in ran.out
    assert "resnet18: host clock alone" in ran.err
    assert (tmp_path / "all.md").read_text().count("| host clock alone ") == 1
    assert all(sentence in (tmp_path / "all.md").read_text() for sentence in found.sentences)


@pytest.mark.alone
def test_two_models_make_a_pipeline(tmp_path):
    asked = (f"{MODELS}/plain.py:sleeps", f"{MODELS}/plain.py:mebibytes", *FEW, "--host-work", "20ms")
    ran = run(tmp_path, "clocks", *asked, "--save", "all.json", "--quiet")

    assert ran.status == 0, ran.err
    assert ran.err == "saved all.json\n"
    found = msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Pipeline)
    stages = [stage_figures(found.cells, stage, "synchronised") for stage in ("first", "work", "second")]
    assert [len(figures.samples_ms) for figures in stages] == [found.repeats - found.drop] * 3
    assert 20 <= stages[0].median_ms < 200  # a stage sleeps for 20 ms
    assert 5 < min(stages[1].samples_ms) < 60  # other processes may share this machine
    for way in ("synchronised", "untimed"):
        whole = stage_figures(found.cells, "whole", way)
        assert len(whole.samples_ms) == len(turn_counts(found.repeats - found.drop))
        assert whole.mean_ms > 25
    assert stage_figures(found.cells, "whole", "events") is None
    assert "synchronising costs nothing there" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["resnet5O"], 2, "did you mean resnet50"),
        (["resnet18", "--repeats", 1], 2, "--repeats: 1 is not between 2 and 10000"),
        (["resnet18", "--save", "new.json/"], 2, "it is a folder"),
        (["resnet18", "--device", "cuda:99"], 3, "there is no cuda:99 here"),
        ([f"{MODELS}/plain.py:mebibytes", *FEW, "--batch-size", 4_000_000], 4, "batch 4000000 does not fit"),
        ([f"{MODELS}/plain.py:fails", *FEW], 5, "fails at batch 2: ValueError: this model was made for 0 samples"),
        (
            [f"{MODELS}/plain.py:fails_from_its_20th_call_on", *FEW],
            5,
            "fails at batch 2: ValueError: the cache has 20 places",
        ),
        ([f"{MODELS}/plain.py:says_done_above_4", *FEW, "--batch-size", 6], 5, "it closed the pipe for its answers"),
        ([f"{MODELS}/plain.py:hangs", *FEW, "--trial-timeout", "3s"], 5, "no answer within 3 s"),
        (
            [f"{MODELS}/plain.py:mebibytes", f"{MODELS}/plain.py:aborts_above_5", *FEW, "--batch-size", 6],
            5,
            "mebibytes with ",
        ),
    ],
)
def test_untimeable_model_gives_one_line_and_its_exit_code(tmp_path, ask, arguments, status, expected):
    ran = ask(tmp_path, "clocks", *arguments, "--quiet")

    assert ran.status == status, ran.err
    assert expected in ran.err.splitlines()[-1]
    assert ran.out == ""


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        ("hard_to_time.py:one_sample_many_times", "RuntimeError: "),
        ("nested.py:bag", "a Bag among the inputs cannot be copied into"),
        ("other_fields.py:whole_numbers", "a step without tensors as inputs copies nothing"),
    ],
)
def test_inputs_that_cannot_be_copied_cost_their_cells_only(tmp_path, ask, model, cause):
    ran = ask(tmp_path, "clocks", f"{MODELS}/{model}", *FEW)

    assert ran.status == 0, ran.err
    assert "failed" in ran.out
    assert f"from pageable memory fails ({cause}" in " ".join(ran.out.split())


def test_step_of_the_user_is_timed_in_each_way(tmp_path, ask):
    ran = ask(tmp_path, "clocks", f"{MODELS}/steps.py:pair", *FEW)

    assert ran.status == 0, ran.err


def test_inputs_are_restored_before_each_timed_step(tmp_path, ask):
    ran = ask(tmp_path, "clocks", f"{MODELS}/other_fields.py:halves_its_input", *FEW)

    assert ran.status == 0, ran.err
    assert "written to before" not in ran.out


def test_copies_that_kill_the_process_cost_only_their_cells(tmp_path, ask):
    ran = ask(tmp_path, "clocks", f"{MODELS}/plain.py:dies_of_new_inputs", *FEW, "--save", "all.json")

    assert ran.status == 0, ran.err
    found = msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Methods)
    assert len(figures_of(found.cells, "host_clock_synchronised").samples_ms) == 5
    assert len(figures_of(found.cells, "host_clock_synchronised", "cold").samples_ms) == 6
    assert cell_of(found.cells, "host_clock_synchronised", "pageable").failure.kind == "died"
    assert "from pageable memory fails (their process ended: killed by SIGKILL" in " ".join(ran.out.split())


def test_progress_is_shown_in_tenths_with_the_time_that_is_left(tmp_path, ask):
    ran = ask(tmp_path, "clocks", f"{MODELS}/plain.py:mebibytes", "--device", "cpu", "--repeats", 100)

    assert ran.status == 0, ran.err
    shown = [line for line in ran.err.splitlines() if "every way in turn, " in line]
    assert 5 <= len(shown) <= 9
    assert shown[-1].endswith("left")
    assert "90 % done" in shown[-1]


def test_an_interruption_ends_it_with_130(tmp_path):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = start_command(tmp_path, "clocks", f"{MODELS}/plain.py:sleeps", "--device", "cpu", "--repeats", 1000)
    for line in process.stderr:
        if "every way in turn" in line:
            process.send_signal(signal.SIGINT)
            break
    _, err = process.communicate(timeout=30)

    assert (process.returncode, err) == (130, "tputfind: interrupted\n")
