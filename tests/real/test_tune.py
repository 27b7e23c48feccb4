"""The best recipe of a model, by racing: ``tputfind tune``."""

import json
import os
import signal

import psutil
import pytest
from support.command import run, start_command
from support.folders import MODELS

import tputfind
from tputfind.errors import NoSuchDevice
from tputfind.runners import tune
from tputfind.runners.race import Course

FILE = MODELS / "in_turn.py"
TUNE = ("tune", "--quiet", "--device", "cpu:0", "--mode", "eager", "--batch-sizes", 8)
"""Fixed core set and mode, so that only layouts vary."""
SAVED = tuple(word for ending in ("json", "csv", "html") for word in ("--save", f"race.{ending}"))


def test_the_faster_variant_wins_and_its_record_is_one_like_any_other(tmp_path, ask):
    ran = ask(tmp_path, *TUNE, f"{FILE}:by_layout", "--budget", "60s", *SAVED)

    race = tputfind.load(tmp_path / "race.json")
    assert ran.status == 0, ran.err
    assert race.winner.layout == "nhwc"
    assert [one.outcome for one in race.contenders] == ["first", "faster"]
    won = race.contenders[1].judgement
    assert won.low < 1.4 * 10.1 / 10.2 < won.high
    assert "Winner         fp32 nhwc eager cpu:0" in ran.out
    assert " better" in ran.out
    assert len(list((tmp_path / "results").glob("*.csv"))) == 1
    record = ran.record()
    assert (record.spec.layout, record.finished is not None) == ("nhwc", True)
    assert record.rows == race.record.rows
    assert "fp32 nhwc eager cpu:0,8,faster,fp32 nchw eager cpu:0," in (tmp_path / "race.csv").read_text()
    assert race.seconds < 75
    shown = ask(tmp_path, "report", "race.json", "--save", "race.svg")
    assert "Winner         fp32 nhwc eager cpu:0" in shown.out
    drawn = (tmp_path / "race.svg").read_text()
    assert "samples/s against p50 latency, ms" in drawn
    assert "Throughput against latency" in (tmp_path / "race.html").read_text()


def test_layout_whose_outputs_are_wrong_never_wins(tmp_path, ask):
    ran = ask(tmp_path, *TUNE, f"{FILE}:wrong_by_layout", "--budget", "60s", "--no-save")

    assert ran.status == 0, ran.err
    assert "Winner         fp32 nchw eager cpu:0" in ran.out
    why = "wrong output: outputs differ by 0.1 (relative) from those of fp32 nchw eager"
    assert f"fp32 nhwc eager cpu:0: {why}" in " ".join(ran.out.split())
    assert not (tmp_path / "results").exists()


def test_variants_whose_weights_have_no_seed_are_raced(tmp_path, ask):
    ran = ask(tmp_path, *TUNE, f"{FILE}:without_seed", "--budget", "60s", "--no-save")

    assert ran.status == 0, ran.err
    assert "Winner         fp32 nhwc eager cpu:0" in ran.out


def test_front_of_throughput_and_latency_names_variants_and_batch_sizes(tmp_path, ask):
    arguments = ("tune", *TUNE[2:-2], "--max-batch", 4, "--budget", "60s", "--no-save", "--save", "race.json")
    ran = ask(tmp_path, *arguments, f"{FILE}:by_batch")

    assert ran.status == 0, ran.err
    assert ran.err.index("timing batch 1") < ran.err.index("does batch 4 fit?")  # the largest batch comes last
    _, _, front = ran.out.partition("No other variant or batch size is better in both throughput and latency")
    heading, _, *lines = front.strip().splitlines()
    assert heading.split() == ["variant", "batch", "samples/s", "p50", "ms"]
    rows = [line.split() for line in lines[: lines.index("")]]
    assert {tuple(row[:5]) for row in rows} >= {("fp32", "nhwc", "eager", "cpu:0", size) for size in "124"}
    assert [float(row[-1].strip("~")) for row in rows] == pytest.approx([8 + 2 * int(row[4]) for row in rows], rel=0.1)
    race = tputfind.load(tmp_path / "race.json")
    assert [one.batch_size for one in race.timed] == [1, 4]
    assert [one.latency_ms for one in race.timed] == pytest.approx([14, 22.4], rel=0.1)


@pytest.mark.parametrize(
    ("factory", "goal", "granularity", "mode"),
    [
        ("triplets", "throughput", 3, "inference"),
        ("triplets", "latency", 3, "inference"),
        ("needs_grad", "throughput", 1, "enabled"),
    ],
)
def test_race_is_under_the_settings_that_the_model_needs(tmp_path, ask, *, factory, goal, granularity, mode):
    arguments = (*TUNE[:-2], "--max-batch", 9, "--dtype", "fp32,bf16", "--budget", "30s", "--no-save")
    ran = ask(tmp_path, *arguments, f"{MODELS}/other_fields.py:{factory}", "--for", goal, "--save", "race.json")

    assert ran.status == 0, ran.err
    race = tputfind.load(tmp_path / "race.json")
    assert (race.winner.granularity, race.winner.grad_mode, race.batch_size % granularity) == (granularity, mode, 0)
    assert "failed" not in {one.outcome for one in race.contenders}


def test_variant_that_needs_less_memory_wins_for_memory_though_it_is_slower(tmp_path, ask):
    ran = ask(
        tmp_path, *TUNE, f"{FILE}:keeps", "--budget", "60s", "--for", "memory", "--no-save", "--save", "race.json"
    )

    race = tputfind.load(tmp_path / "race.json")
    assert ran.status == 0, ran.err
    assert race.winner.layout == "nhwc"
    (won,) = [one for one in race.contenders if one.spec.layout == "nhwc"]
    assert won.judgement.old_per_s == pytest.approx(8 / 0.25, rel=0.1)  # 128 MiB, and as many before they are freed
    assert won.judgement.new_per_s == pytest.approx(8 / 0.125, rel=0.1)
    assert "samples/GiB" in ran.out
    few, many = won.turns.rounds[0].speeds
    assert few.latency_ms < many.latency_ms


def test_race_is_kept_if_its_winner_fails_at_a_larger_batch(tmp_path, ask):
    words = ("tune", "--quiet", "--device", "cpu:0", "--mode", "eager", "--dtype", "fp32,bf16", "--budget", "40s")
    ran = ask(tmp_path, *words, f"{FILE}:few", "--save", "race.json")

    assert ran.status == 5, ran.err
    assert "holds 40 samples" in ran.err
    assert "Winner  " in ran.out
    assert tputfind.load(tmp_path / "race.json").winner.dtype in ("fp32", "bf16")


def test_race_is_kept_if_its_winner_cannot_be_measured(tmp_path, ask, kept, monkeypatch):
    def refuse(*_):
        raise NoSuchDevice("the device is gone")

    monkeypatch.setattr(tune, "sweep", refuse)
    ran = ask(tmp_path, *TUNE, f"{FILE}:no_layout", "--budget", "20s", "--save", "race.json")

    assert (ran.status, "tputfind: the device is gone" in ran.err) == (3, True), ran.err
    assert tputfind.load(tmp_path / "race.json").winner.layout == "nchw"
    with kept.in_use(), pytest.warns(UserWarning, match="the winner was not measured in full: the device is gone"):
        tputfind.tune(f"{FILE}:no_layout", mode="eager", device="cpu:0", batch_sizes=[1], budget="20s")


def test_core_counts_are_raced_and_untried_variants_are_listed(tmp_path, ask):
    arguments = ("tune", f"{FILE}:old", "--device", "cpu", "--budget", "30s", "--batch-sizes", 4, "--no-save")
    ran = ask(tmp_path, *arguments, "--instances", 1, "--save", "race.json")  # two instances leave no set of one core

    race = tputfind.load(tmp_path / "race.json")
    assert ran.status == 0, ran.err
    compiled = [one.spec.mode for one in race.untried if one.spec.mode != "eager"]
    assert compiled[:2] == ["compile", "compile:freezing"]
    assert "(takes about 40 s)" in ran.out[ran.out.index("Untried") :]
    assert {one.spec.device for one in race.contenders} == {"cpu", "cpu:0"}
    assert race.winner.mode == "eager"


def test_equal_devices_race_in_parallel(tmp_path, ask):
    devices = ("tune", "--device", "cpu:0,cpu:1", "--mode", "eager", "--batch-sizes", 8, "--budget", "90s", "--no-save")
    arguments = (*devices, f"{FILE}:by_layout", "--dtype", "fp32,fp8", "--save", "race.json")
    ran = ask(tmp_path, *arguments)

    race = tputfind.load(tmp_path / "race.json")
    assert ran.status == 0, ran.err
    assert (race.winner.layout, race.winner.device, race.devices) == ("nhwc", "cpu:0", 2)
    began = [line for line in ran.err.splitlines() if " beside " in line or " times " in line]
    assert [" beside " in line for line in began[:2]] == [True, True]  # the second round does not wait for the first
    assert ", on 2 devices" in ran.out


def test_unequal_devices_do_not_race_in_parallel(tmp_path, ask):
    ran = ask(tmp_path, "tune", "--quiet", f"{FILE}:by_layout", "--device", "cpu:0,cpu", "--mode", "eager")

    assert ran.status == 2
    assert "a race in parallel is on equal devices, and these are cores of a CPU (1), cores of a CPU (2)" in ran.err


def test_interrupted_race_on_two_devices_leaves_no_process(tmp_path):
    asked = ("tune", f"{FILE}:by_layout", "--device", "cpu:0,cpu:1", "--mode", "eager", "--dtype", "fp32,bf16")
    asked += ("--batch-sizes", "8", "--budget", "10min", "--no-save", "--save", "race.json")
    process = start_command(tmp_path, *asked)
    beside = 0
    while beside < 2 and (line := process.stderr.readline()):
        beside += " beside " in line
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, after = process.communicate(timeout=60)

    assert process.returncode == 130, after
    assert "interrupted; the race until then is saved (--resume race.json goes on)" in after
    assert len(started) >= 3  # a server for each device, and the one that listed them
    assert not psutil.wait_procs(started, timeout=15)[1]


def test_race_from_python_names_a_failing_variant_with_its_reason(kept):
    with kept.in_use():
        race = tputfind.tune(f"{FILE}:no_layout", mode="eager", device="cpu:0", batch_sizes=[1], budget="30s")

    assert race.winner in [one.spec for one in race.contenders]
    assert race.winner.layout == "nchw"
    assert race.record.rows[0].samples_per_s > 0
    shown = " ".join(repr(race).split())
    assert "the best of 1 variant for throughput (1 more did not run)" in shown
    assert "Failed fp32 nhwc eager cpu:0: " in shown
    assert "channels first, please" in shown


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((f"{FILE}:by_layout", "--for", "energy"), "does not report the energy of its work"),
        ((f"{FILE}:old", "--allocator", "native,expandable"), "--allocator native: only CUDA's memory has segments"),
        ((f"{FILE}:old",), "there is nothing to vary"),  # no images, one mode, one set of cores
        ((f"{FILE}:by_layout", "--budget", "10ms"), "--budget ended before a batch was timed"),
        ((f"{FILE}:by_layout", "--budget", ""), "--budget: '' is"),
        ((f"{FILE}:by_layout", "--batch-sizes", "1,2"), "a race is at one batch size"),
        ((f"{FILE}:by_layout", "--for", "speed"), "--for: 'speed' is not one of throughput, latency, memory, energy"),
    ],
)
def test_impossible_race_is_refused_in_one_line(tmp_path, ask, arguments, line):
    ask(tmp_path, *TUNE, *arguments).check_refused(3 if "energy" in arguments else 2, line)


@pytest.mark.parametrize(("model", "status", "line"), [("fails_always", 5, "no more"), ("fails", 2, "runs at 2 and 4")])
def test_a_model_that_fails_is_named_with_its_cause(tmp_path, ask, model, status, line):
    ran = ask(tmp_path, *TUNE[:2], f"{FILE}:{model}", "--device", "cpu", "--batch-sizes", 16, "--budget", "60s")

    assert ran.status == status
    assert line in ran.err


def interrupt(*_):
    raise KeyboardInterrupt


def test_an_interrupted_race_is_saved_and_goes_on_from_there(tmp_path, ask, monkeypatch):
    asked = (*TUNE, "--layout", "nchw,nhwc", f"{FILE}:by_layout", "--budget", "10min", "--save", "race.json")
    process = start_command(tmp_path, *(one for one in asked if one != "--quiet"))
    before = []
    for line in process.stderr:
        before.append(line)
        if "timing batch" in line:  # the race is over, and its winner is now measured
            os.kill(process.pid, signal.SIGINT)
            break
    _, after = process.communicate(timeout=30)

    assert process.returncode == 130, before
    assert "interrupted; the race until then is saved (--resume race.json goes on)" in after
    race = tputfind.load(tmp_path / "race.json")
    assert (race.interrupted, race.winner.layout) == (True, "nhwc")

    other = ask(tmp_path, *asked[:-4], "--resume", "race.json", "--for", "latency")
    assert other.status == 2
    assert "the race cannot go on here, since this differs: goal (throughput there, latency here)" in other.err
    again = ask(tmp_path, *asked[:-4], "--budget", "40s", "--resume", "race.json")
    assert again.status == 0, again.err
    whole = tputfind.load(tmp_path / "race.json")
    assert (whole.interrupted, whole.record.finished is not None, whole.budget_s) == (False, True, 640.0)
    assert whole.contenders[1].turns.rounds[: len(race.contenders[1].turns.rounds)] == race.contenders[1].turns.rounds

    once_more = ask(tmp_path, *asked[:-4], "--budget", "41s", "--resume", "race.json")
    assert once_more.status == 0, once_more.err
    longer = tputfind.load(tmp_path / "race.json")
    assert (longer.record, longer.budget_s) == (whole.record, 681.0)

    monkeypatch.setattr(Course, "run", interrupt)
    assert ask(tmp_path, *asked[:-4], "--budget", "42s", "--resume", "race.json").status == 130
    kept = tputfind.load(tmp_path / "race.json")
    assert (kept.interrupted, kept.record) == (True, whole.record)


@pytest.mark.slow
def test_compiled_variant_races_last_with_its_outcome(tmp_path):
    arguments = ("--image-size", 32, "--device", "cpu:0", "--mode", "eager,compile")
    arguments += ("--layout", "nchw", "--batch-sizes", 1, "--budget", "4min")
    ran = run(tmp_path, "tune", "resnet18", *arguments, "--save", "race.json", timeout_s=400)

    (saved,) = [json.loads((tmp_path / "race.json").read_text())]
    assert ran.status == 0, ran.err
    assert [one["spec"]["mode"] for one in saved["contenders"]] == ["eager", "compile"]
    assert saved["contenders"][1]["outcome"] in ("faster", "behind", "not_faster", "undecided")


@pytest.mark.slow
def test_a_variant_that_computes_something_else_never_wins(tmp_path):
    arguments = ("--device", "cpu:0", "--mode", "eager,compile", "--batch-sizes", 4, "--budget", "3min", "--no-save")
    ran = run(tmp_path, "tune", f"{MODELS}/compiled.py:otherwise", *arguments, timeout_s=400)

    assert ran.status == 0, ran.err
    assert "Winner         fp32 eager cpu:0" in ran.out
    assert "wrong output" in ran.out
