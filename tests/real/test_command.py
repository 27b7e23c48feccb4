"""What a user meets: tables, files, models, errors, interruption."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pandas
import psutil
import pytest
from support.command import ENVIRONMENT, MODELS, command, run

from tputfind.report import table

QUICK = ("--batches", 10, "--latency-batches", 10, "--warmup", 1)
TINY = ("--image-size", 64, "--batch-sizes", 1, *QUICK)


def test_the_main_job_prints_a_table_and_four_answers_and_saves_record_and_csv(tmp_path):
    ran = run(
        tmp_path, "mobilenet_v3_small", "--image-size", 64, "--max-batch", 3, "--slo", "10s", "--percentile", 90, *QUICK
    )

    assert ran.status == 0, ran.err
    for label in ("Largest batch", "Fastest batch", "Knee", "Best under SLO"):
        assert label in ran.out
    assert "timing batch" in ran.err
    assert "timing batch" not in ran.out
    record = ran.record("mobilenet_v3_small-fp32-*")
    (csv,) = (tmp_path / "results").glob("*.csv")
    loaded = pandas.read_csv(csv, dtype=table.COLUMNS)
    assert list(loaded["batch_size"]) == [1, 2, 3]
    assert (loaded["status"] == "ok").all()
    assert (loaded["input_shape"] == "3x64x64").all()
    for row in record.rows:
        assert len(row.device_ms) == len(row.latency_ms) == 10
        assert row.peak_allocated_bytes > 0
    assert record.command.startswith("tputfind mobilenet_v3_small --image-size 64")
    assert record.finished is not None
    assert record.environment.torch
    assert record.parameters == 2542856


def test_throughput_agrees_with_the_latency_of_a_device_that_does_one_thing_at_a_time(tmp_path):
    record = run(tmp_path, f"{MODELS}/plain.py:sleeps", "--batch-sizes", "1,4", *QUICK).record()

    for row in record.rows:
        assert all(span_ms >= 10 * row.batch_size for span_ms in (*row.device_ms, *row.latency_ms))
        assert row.samples_per_s <= 100


def test_options_stand_before_or_after_the_model_and_several_models_make_one_table(tmp_path):
    ran = run(
        tmp_path, "--no-save", "--csv", "all.csv", *TINY, "mobilenet_v3_small", "shufflenet_v2_x0_5", "--md", "all.md"
    )

    assert ran.status == 0, ran.err
    assert list(pandas.read_csv(tmp_path / "all.csv")["model"]) == ["mobilenet_v3_small", "shufflenet_v2_x0_5"]
    assert (tmp_path / "all.md").read_text().count("| shufflenet_v2_x0_5 |") == 1
    assert not (tmp_path / "results").exists()


def test_a_second_run_overwrites_nothing(tmp_path):
    first = run(tmp_path, "shufflenet_v2_x0_5", *TINY)
    before = {path: path.read_bytes() for path in (tmp_path / "results").iterdir()}
    second = run(tmp_path, "shufflenet_v2_x0_5", *TINY, "--json", "copy.json")

    assert (first.status, second.status) == (0, 0)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert len(list((tmp_path / "results").iterdir())) == 4
    assert (tmp_path / "copy.json").read_bytes() in [p.read_bytes() for p in (tmp_path / "results").glob("*.json")]


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "amp-fp16", "amp-bf16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_every_dtype_of_the_cpu_runs_in_both_layouts(tmp_path, dtype, layout):
    ran = run(tmp_path, "shufflenet_v2_x0_5", "--dtype", dtype, "--layout", layout, *TINY)

    assert ran.status == 0, ran.err
    assert [row.status for row in ran.record().rows] == ["ok"]


def test_inputs_may_be_keywords_and_a_module_alone_takes_the_shape_that_is_given(tmp_path):
    keywords = run(tmp_path, f"{MODELS}/plain.py:keyword_inputs", "--batch-sizes", 2, *QUICK)
    alone = run(tmp_path, f"{MODELS}/plain.py:module_alone", "--input-size", 16, "--batch-sizes", 2, *QUICK)

    assert (keywords.status, alone.status) == (0, 0)
    assert keywords.record("plain-keyword_inputs-*").input_shape == "3+3"
    assert alone.record("plain-module_alone-*").input_shape == "16"


def test_channels_last_takes_every_tensor_by_its_own_rank(tmp_path):
    ran = run(
        tmp_path, f"{MODELS}/plain.py:mixed_ranks", "--layout", "nhwc", "--image-size", 8, "--batch-sizes", 2, *QUICK
    )

    assert ran.status == 0, ran.err


def test_a_package_in_the_current_folder_can_be_named_and_what_the_model_prints_stays_out_of_the_table(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text((MODELS / "plain.py").read_text())

    ran = run(tmp_path, "mine:prints", "--input-size", 16, "--batch-sizes", 1, *QUICK)

    assert ran.status == 0, ran.err
    assert "a word of the model" not in ran.out


def test_all_80_classification_models_are_listed_with_their_own_input(tmp_path):
    ran = run(tmp_path, "models")

    lines = dict(line.split()[:2] for line in ran.out.splitlines()[1:])
    assert len(lines) == 80
    assert (lines["resnet50"], lines["vit_h_14"], lines["inception_v3"]) == ("3x224x224", "3x518x518", "3x299x299")
    assert run(tmp_path, "models", "resnet1*").out.split()[3::4] == ["resnet101", "resnet152", "resnet18"]
    assert run(tmp_path, "models", "nothing*").status == 2


def test_the_cpu_is_among_the_devices(tmp_path):
    ran = run(tmp_path, "devices")

    assert ran.status == 0
    assert any(line.startswith("cpu ") for line in ran.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["resnet5O"], 2, "did you mean resnet50"),
        (["fcn_resnet50"], 2, "not a classification model"),
        (["none.py:make"], 2, "there is no file none.py"),
        (["no_such_package:make"], 2, "there is no package or module 'no_such_package'"),
        ([f"{MODELS}/plain.py"], 2, "does not say which factory"),
        ([f"{MODELS}/plain.py:mebibyte"], 2, "did you mean mebibytes"),
        ([f"{MODELS}/plain.py:not_callable"], 2, "cannot be called"),
        ([f"{MODELS}/plain.py:returns_text"], 2, "returned str, which is no module"),
        ([f"{MODELS}/plain.py:module_alone"], 2, "--input-size"),
        ([f"{MODELS}/plain.py:inputs_of_another_size"], 2, "no tensor of its inputs has an axis as long"),
        ([f"{MODELS}/plain.py:inputs_of_one_size", "--batch-sizes", "1,16"], 2, "no tensor of its inputs"),
        (["resnet18", "--batch-sizes", "8,x"], 2, "'x' is not a whole number"),
        (["resnet18", "--batches", "0", "--warmup", "-1"], 2, "--warmup: -1"),
        (["resnet18", "--no-such-option"], 2, "--no-such-option"),
        (["resnet18", "--memory-limit", "900TiB"], 2, "--memory-limit is more than"),
        (["resnet18", "--output", "/dev/null/results"], 2, "cannot write in /dev/null/results"),
        (["resnet18", "--csv", "."], 2, "it is a folder"),
        (["resnet18", "--csv", "same", "--md", "./same"], 2, "name the same file"),
        (["resnet18", "--csv", "new/"], 2, "it is a folder"),
        (["resnet18", "alexnet", "--json", "x.json"], 2, "--json holds one record"),
        (["resnet18", "--device", "cuda:99"], 3, "there is no cuda:99 here"),
        (["resnet18", "--device", "cpu", "--dtype", "tf32"], 3, "cpu cannot do --dtype tf32"),
    ],
)
def test_bad_input_gives_one_clear_line_and_its_exit_code_and_leaves_nothing(tmp_path, arguments, status, expected):
    ran = run(tmp_path, *arguments, "--quiet")

    assert ran.status == status, ran.err
    assert expected in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert not list((tmp_path / "results").glob("*")) if (tmp_path / "results").exists() else True


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("plain.py:fails", "ValueError: this model was made for 0 samples and got 1"),
        ("plain.py:raises", "KeyError: 'weights'"),
        ("plain.py:runs_out_of_something_else", "RuntimeError: the queue ran out of memory slots"),
        ("plain.py:exits", "SystemExit: 0"),
        ("plain.py:fails_later", "ValueError: the sixth step"),
        ("does_not_import.py:make", "RuntimeError: the mistake in this file"),
    ],
)
def test_a_model_that_fails_shows_its_own_traceback_and_exits_with_5(tmp_path, factory, expected):
    ran = run(tmp_path, f"{MODELS}/{factory}", "--quiet", "--max-batch", 2)

    assert ran.status == 5
    assert f'{factory.partition(":")[0]}", line' in ran.err
    assert "tputfind/measure" not in ran.err
    assert ran.err.count(expected) == 2, ran.err  # the end of the traceback, and the line


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("says_nothing", "fails at batch 1: SaysNothing"),
        ("says_what_no_text_holds", "fails at batch 1: ValueError: half a character ?"),
        ("leaves", "fails at batch 1: exited with status 0 before it had answered"),
    ],
)
def test_a_model_that_fails_in_an_odd_way_is_said_to_fail_and_not_to_be_too_large(tmp_path, factory, expected):
    ran = run(tmp_path, f"{MODELS}/plain.py:{factory}", "--quiet")

    assert ran.status == 5, ran.err
    assert expected in ran.err
    assert "memory" not in ran.err


def test_an_import_that_is_missing_in_the_users_package_is_shown_and_not_called_a_missing_package(tmp_path):
    (tmp_path / "mine.py").write_text("import not_installed_anywhere\n")

    ran = run(tmp_path, "mine:make", "--quiet")

    assert ran.status == 5
    assert "No module named 'not_installed_anywhere'" in ran.err


def test_a_model_file_may_be_called_like_a_package_and_lie_in_a_folder_with_brackets(tmp_path):
    folder = tmp_path / "a[/x]b|c"
    folder.mkdir(parents=True)
    (folder / "torch.py").write_text((MODELS / "plain.py").read_text())

    ran = run(tmp_path, f"{folder}/torch.py:mebibytes", f"{folder}/torch.py:sleeps", "--batch-sizes", 1, *QUICK)

    assert ran.status == 0, ran.err
    assert "[/x]" in ran.out


def test_the_shape_of_a_sample_leaves_out_the_batch_axis_wherever_it_is(tmp_path):
    record = run(tmp_path, f"{MODELS}/plain.py:batch_on_the_second_axis", "--batch-sizes", 3, *QUICK).record()

    assert record.input_shape == "7x16"


def test_a_folder_that_goes_away_loses_neither_the_run_nor_its_table(tmp_path):
    process = started(tmp_path, f"{MODELS}/plain.py:sleeps", "--batch-sizes", "1,2,4", *QUICK, "--batches", 50)
    shutil.rmtree(tmp_path / "results")
    out, err = process.communicate(timeout=60)

    assert "Fastest batch" in out
    assert [line.split()[0] for line in out.splitlines() if line.split()[:1] and line.split()[0].isdigit()] == [
        "1",
        "2",
        "4",
    ]
    assert "tputfind: cannot write" in err
    assert process.returncode == 2


def test_a_pipe_is_written_to_and_a_link_is_followed(tmp_path):
    (tmp_path / "link.md").symlink_to(tmp_path / "real.md")

    ran = run(tmp_path, "shufflenet_v2_x0_5", *TINY, "--csv", "/dev/stdout", "--md", "link.md")

    assert ran.status == 0, ran.err
    assert "shufflenet_v2_x0_5,infer,cpu" in ran.out
    assert (tmp_path / "link.md").is_symlink()
    assert "| batch |" in (tmp_path / "real.md").read_text()


def test_a_traceback_that_was_asked_for_leaves_the_exit_code(tmp_path):
    ran = run(tmp_path, "resnet5O", "--traceback")

    assert ran.status == 2
    assert "Traceback" in ran.err


def test_a_latency_window_that_was_cut_short_is_said_to_be(tmp_path):
    asked = ("--batch-sizes", 4, "--batches", 10, "--latency-batches", 50, "--max-seconds", 1, "--warmup", 1)
    record = run(tmp_path, f"{MODELS}/plain.py:sleeps", *asked).record()

    assert [notice.kind for notice in record.notices] == ["cut_short"]


def test_a_model_that_fails_does_not_take_the_others_with_it(tmp_path):
    ran = run(tmp_path, f"{MODELS}/plain.py:fails", f"{MODELS}/plain.py:keyword_inputs", "--batch-sizes", 2, *QUICK)

    assert ran.status == 5
    assert [row.status for row in ran.record("plain-keyword_inputs-*").rows] == ["ok"]


def test_a_torchvision_that_does_not_match_torch_is_named_with_what_to_install(tmp_path):
    package = tmp_path / "torchvision"
    package.mkdir()
    # What torchvision does where its compiled part did not load: register for an operator that is not there.
    (package / "__init__.py").write_text(
        "import torch\ntorch.library.register_fake('torchvision::nms')(lambda: None)\n"
    )
    environment = ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}

    done = subprocess.run(
        [*command(), "resnet18"], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tputfind:")]
    assert "operator torchvision::nms does not exist" in line
    assert "pip install" in line


def test_both_ways_to_start_it_are_the_same():
    outputs = [
        subprocess.run([*start, "--help"], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
        for start in (command(), [sys.executable, "-m", "tputfind"])
    ]

    assert outputs[0] == outputs[1]


def test_from_python_it_is_one_call_and_the_script_needs_no_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, tputfind\n"
        "assert 'torch' not in sys.modules\n"
        "record = tputfind.find('shufflenet_v2_x0_5', image_size=64, batch_sizes=[1, 2], batches=10, output='kept')\n"
        "print([row.batch_size for row in record.rows], 'torch' in sys.modules)\n"
    )

    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )

    assert done.stdout == "[1, 2] False\n", done.stderr
    assert len(list((tmp_path / "kept").glob("*.json"))) == 1


def started(tmp_path, *arguments) -> subprocess.Popen:
    """A run under way, in its first row."""
    # A background job of a shell, such as a check that nobody watches, would hand down an ignored Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [*command(), *map(str, arguments)],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if "timing batch" in line:
            return process
    raise AssertionError("the run ended before its first row")


def test_ctrl_c_keeps_what_was_measured_and_says_where(tmp_path):
    process = started(tmp_path, f"{MODELS}/plain.py:sleeps", "--max-batch", 4, "--batches", 1000)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "interrupted; what was measured until then is saved" in err
    (path,) = (tmp_path / "results").glob("*.json")
    assert f"results/{path.name}" in err
    assert "Traceback" not in err


def test_no_process_outlives_the_parent_even_if_that_is_killed(tmp_path):
    process = started(tmp_path, f"{MODELS}/plain.py:sleeps", "--max-batch", 4, "--batches", 1000)
    deadline = time.monotonic() + 10
    while len(family := psutil.Process(process.pid).children(recursive=True)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate()

    assert len(family) == 2
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive


def test_the_parent_stays_small_and_sleeps_while_a_child_measures(tmp_path):
    process = started(tmp_path, f"{MODELS}/plain.py:sleeps", "--batch-sizes", 8, "--batches", 40, "--max-seconds", 4)
    parent = psutil.Process(process.pid)
    before = parent.cpu_times()
    time.sleep(3)
    after, resident = parent.cpu_times(), parent.memory_info().rss
    process.communicate()

    assert (after.user + after.system) - (before.user + before.system) <= 0.03
    assert resident < 200 * 2**20
