"""Several devices of one host: core sets, in real processes through the installed command."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

import pandas
import psutil
import pytest
from support.command import QUICK, run, start_command
from support.folders import MODELS
from support.shown import KINDS

import tputfind

SLEEPS = f"{MODELS}/plain.py:sleeps"
SLOWLY = (SLEEPS, "--batch-sizes", "1,2", "--batches", 30, "--warmup", 1, "--processes", 2)
BUSY = [sys.executable, "-c", "import os\nos.sched_setaffinity(0, {1})\nwhile True: pass"]
COMPUTES = ("mobilenet_v3_small", "--image-size", 64, "--batch-sizes", 8)
TWO_CORES = pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs the cores 0 and 1")
pytestmark = TWO_CORES


def records(folder):
    """Return every record of a run, sorted by file name."""
    return [tputfind.load_record(path) for path in sorted((folder / "results").glob("*.json"))]


def test_each_job_runs_on_next_free_device_in_one_table(tmp_path, ask):
    models = ("squeezenet1_1", "mobilenet_v3_small", "shufflenet_v2_x0_5")
    asked = ("--image-size", 64, "--batch-sizes", 1, "--dtype", "fp32,bf16", *QUICK)
    ran = ask(tmp_path, *models, *asked, "--device", "cpu:0,cpu:1", "--save", "all.csv")

    assert ran.status == 0, ran.err
    table = pandas.read_csv(tmp_path / "all.csv", dtype=KINDS)
    assert list(table["model"]) == [model for model in models for _ in range(2)]
    assert list(table["dtype"]) == ["fp32", "bf16"] * 3
    assert (table["status"] == "ok").all()
    assert set(table["device"]) == {"cpu:0", "cpu:1"}
    assert set(table["load"]) == {"queue"}
    assert set(table["busy_devices"]) == {2}
    assert set(table["threads"]) == {1}
    assert list(table["cores"]) == [device.removeprefix("cpu:") for device in table["device"]]
    assert len(records(tmp_path)) == 6


def test_devices_work_at_the_same_time_each_on_one_job(tmp_path, ask):
    asked = (*SLOWLY[:1], "--batch-sizes", 20, "--batches", 12, "--processes", 1, "--dtype", "fp32,bf16,fp16,amp-bf16")
    ran = ask(tmp_path, *asked, "--device", "cpu:0,cpu:1")

    assert ran.status == 0, ran.err
    done = records(tmp_path)
    for name in ("cpu:0", "cpu:1"):
        spans = sorted((one.started, one.finished) for one in done if one.environment.device == name)
        assert len(spans) == 2
        assert spans[0][1] <= spans[1][0]
    first = sorted((one.started, one.finished) for one in done)[:2]
    assert first[1][0] < first[0][1]


def up_to(lines, word):
    """Yield lines up to the first that contains a word."""
    for line in lines:
        yield line
        if word in line:
            return


@pytest.mark.parametrize("broken", [0, 1])
def test_failing_device_is_removed_and_its_job_redone_elsewhere(tmp_path, broken):
    with start_command(tmp_path, *SLOWLY, "--dtype", "fp32,bf16", "--device", "cpu:0,cpu:1") as process:
        main = psutil.Process(process.pid)
        assert main.cpu_affinity() != [broken]
        begun = "".join(up_to(process.stderr, f"cpu:{broken}"))
        while process.poll() is None:
            with suppress(psutil.Error):
                for server in main.children():
                    if server.cpu_affinity() == [broken]:
                        server.kill()
            time.sleep(0.05)
        out, err = process.communicate()

    assert process.returncode == 3, begun + err
    assert f"cpu:{broken} fails and is taken out" in err
    assert f"cpu:{broken} was taken out" in err
    assert "it was given to another" in err
    done = records(tmp_path)
    assert sorted(one.spec.dtype for one in done) == ["bf16", "fp32"]
    assert {one.environment.device for one in done} == {f"cpu:{1 - broken}"}
    assert all(one.finished and not one.rows[0].failure for one in done)
    assert out.count(" on ") >= 2


def test_a_model_that_fails_takes_no_device_out(tmp_path, ask):
    models = (f"{MODELS}/plain.py:fails", SLEEPS)
    ran = ask(tmp_path, *models, "--batch-sizes", 1, *QUICK, "--device", "cpu:0,cpu:1")

    assert ran.status == 5, ran.err
    assert "taken out" not in ran.err
    assert [one.rows[0].status for one in records(tmp_path)] == ["error", "ok"]


FINISHED = """
import glob, json, os, pathlib
from torch import nn

def finished():
    return sum(json.load(open(path))["finished"] is not None for path in glob.glob("results/*.json"))
"""
GOES_AWAY = (
    FINISHED
    + """
def make():
    if finished() == 2:
        pathlib.Path(f"loaded-by-{os.getpid()}").touch()
        if len(glob.glob("loaded-by-*")) == 2:
            pathlib.Path(__file__).unlink(missing_ok=True)
    return nn.Linear(8, 8)
"""
)


def test_an_error_while_all_are_busy_leaves_the_report_of_each_alone(tmp_path, ask):
    """Remove the model file once both processes of the first batch size have read it: the second one fails."""
    (tmp_path / "net.py").write_text(GOES_AWAY)
    asked = ("net.py:make", "--input-size", 8, "--batch-sizes", "1,2", *QUICK, "--device", "cpu:0,cpu:1", "--all-busy")
    ran = ask(tmp_path, *asked, "--save", "all.csv")

    assert ran.status == 2, ran.err
    assert "there is no file" in ran.err
    written = pandas.read_csv(tmp_path / "all.csv")
    assert set(written.status) == {"ok"}
    assert written.load.tolist() == ["solo"] * 4 + ["all busy"] * 2
    assert "samples/s" in ran.out


FAILS_LATER = (
    FINISHED
    + """
def make():
    if finished() >= 2 and os.sched_getaffinity(0) == {0}:
        raise RuntimeError("no more of this")
    return nn.Linear(8, 8)
"""
)


def test_device_failing_while_all_busy_is_reported_and_not_planned_with(tmp_path, ask):
    (tmp_path / "net.py").write_text(FAILS_LATER)
    asked = ("net.py:make", "--input-size", 8, "--batch-sizes", "1,2", *QUICK, "--device", "cpu:0,cpu:1", "--all-busy")
    ran = ask(tmp_path, *asked)

    assert ran.status == 5, ran.err
    assert "no more of this" in ran.err
    assert "(cpu:1)" in ran.out
    paths = sorted((tmp_path / "results").glob("*.json"))
    sized = ask(tmp_path, "size", *paths, "--rate", 5000, "--slo", "50ms")
    assert sized.status == 0, sized.err
    assert "planned with devices alone" in sized.err


def test_interruption_keeps_results_of_every_device_and_all_resume(tmp_path, ask):
    longer = ("--batch-sizes", "4,8", "--batches", 60, "--warmup", 1, "--processes", 2)
    asked = (SLEEPS, *longer, "--dtype", "fp32,bf16,fp16,amp-bf16")
    with start_command(tmp_path, *asked, "--device", "cpu:0,cpu:1") as process:
        told = set()
        for line in process.stderr:
            if "samples/s, process 1" in line:
                told.add(line.split()[0])
            if len(told) == 2:
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "not begun: " in err
    assert err.count("tputfind --resume") == 2
    begun = sorted((tmp_path / "results").glob("*.json"))
    assert len(begun) == 2
    for path in begun:
        assert tputfind.load_record(path).finished is None
        ran = ask(tmp_path, "--resume", path)
        assert ran.status == 0, ran.err
        after = tputfind.load_record(path)
        assert after.finished is not None
        assert [len(one.timings) for one in after.rows] == [2, 2]


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        (("--device", "cuda:9,cpu:0"), 3, "there is no cuda:9 here"),
        (("--device", "cpu:0,cpu:5000"), 3, "core 5000 is not among"),
        (("--device", "cpu:99"), 3, "there is no cpu:99 here"),
        (("--device", "cpu:node77,cpu:0"), 3, "there is no cpu:node77 here"),
        (("--device", "cpu:0,gpu"), 2, "'gpu:0'"),
        (("--device", "cpu:0,auto"), 2, "auto cannot stand in a list"),
        (("--device", "cuda:4-2"), 2, "counts down"),
        (("--each",), 2, "--each needs to know the devices"),
        (("--device", "cpu:0", "--all-busy"), 2, "--all-busy needs two devices"),
        (("--device", "cpu:0,cpu:1", "--resume", "some.json"), 2, "--resume goes on with one record"),
    ],
)
def test_wrong_device_request_is_refused_in_one_line(tmp_path, ask, asked, status, said):
    ran = ask(tmp_path, SLEEPS, *asked)

    assert ran.status == status
    (line,) = [line for line in ran.err.splitlines() if line.startswith("tputfind: ")]
    assert said in line
    assert not list(tmp_path.glob("results/*"))


@pytest.mark.alone
def test_device_with_busy_core_is_found_with_its_cause(tmp_path):
    with ExitStack() as ends:
        for _ in range(4):
            hog = subprocess.Popen(BUSY)
            ends.callback(hog.wait)
            ends.callback(hog.kill)
        ran = run(tmp_path, *COMPUTES, "--device", "cpu:0,cpu:1", "--each")

    assert ran.status == 0, ran.err
    alone = {one.environment.device: one for one in records(tmp_path)}
    assert {one.spec.load for one in alone.values()} == {"solo"}
    assert alone["cpu:1"].rows[0].samples_per_s < 0.8 * alone["cpu:0"].rows[0].samples_per_s
    shown = run(tmp_path, "report", *sorted((tmp_path / "results").glob("*.json")), "--save", "all.md")
    for text in (ran.out, shown.out, (tmp_path / "all.md").read_text()):
        said = " ".join(text.split())
        assert "each device against the median of the others" in said
        assert "slower by" in said
        assert "of its 1 core busy" in said


def busy_of_alone(folder) -> list[float]:
    """Return each device's all-busy throughput over its throughput alone, after checks of the records."""
    every = [tputfind.load_record(path) for path in sorted(folder.glob("*.json"))]
    busy = {one.environment.device: one.rows[0] for one in every if one.spec.load == "all_busy"}
    alone = {one.environment.device: one.rows[0] for one in every if one.spec.load == "solo"}
    assert busy.keys() == alone.keys()
    assert all(timing.all_busy_share > 0.99 for row in busy.values() for timing in row.timings)
    return [busy[name].samples_per_s / alone[name].samples_per_s for name in busy]


COUNTS = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
import torch
torch.set_num_threads(1)
layer, batch = torch.nn.Conv2d(32, 32, 3), torch.rand(8, 32, 32, 32)
layer(batch)
print("ready", flush=True)
sys.stdin.readline()
count, end = 0, time.perf_counter() + 3
with torch.inference_mode():
    while time.perf_counter() < end:
        layer(batch)
        count += 1
print(count)
"""


def counted(*core_numbers) -> list[int]:
    """Return the counts that plain convolution loops reach, one on each core, all at once."""
    with ExitStack() as stack:
        loops = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", COUNTS, str(core)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for core in core_numbers
        ]
        for loop in loops:
            assert loop.stdout.readline() == "ready\n"
        for loop in loops:
            loop.stdin.write("\n")
            loop.stdin.flush()
        return [int(loop.communicate()[0]) for loop in loops]


def skip_where_two_cores_are_not_two():
    """Skip if plain loops slow each other: two virtual cores may share one, or other processes may use them."""
    paces = [both / alone for both, alone in zip(counted(0, 1), counted(0) + counted(1), strict=True)]
    if not all(0.97 <= pace <= 1.03 for pace in paces):
        shares = " and ".join(f"{pace:.0%}" for pace in paces)
        pytest.skip(f"on this machine plain loops on two cores at once come to {shares} of each alone")


@pytest.mark.alone
def test_disjoint_core_sets_do_not_slow_each_other_down(tmp_path):
    """Leave 15 %: a shared host drifts by 8 % between the windows alone and busy, and one shared core costs 40 %."""
    skip_where_two_cores_are_not_two()
    ran = run(tmp_path, *COMPUTES, "--all-busy", "--processes", 4, "--device", "cpu:0,cpu:1", "--output", "apart")

    assert ran.status == 0, ran.err
    assert "share core" not in ran.err
    shares = busy_of_alone(tmp_path / "apart")
    skip_where_two_cores_are_not_two()
    assert shares == pytest.approx([1.0, 1.0], abs=0.15)


@pytest.mark.alone
def test_overlapping_core_sets_slow_each_other_down_with_a_warning(tmp_path):
    asked = ("--all-busy", "--processes", 4, "--device", "cpu:0,cpu:0-1", "--output", "shared")
    ran = run(tmp_path, *COMPUTES, *asked)

    assert ran.status == 0, ran.err
    assert "cpu:0 and cpu:0-1 share core 0: they slow each other down" in ran.err
    assert min(busy_of_alone(tmp_path / "shared")) < 0.6
    said = " ".join(ran.out.split())
    assert "2 devices busy at once, each against itself alone" in said
    assert "of its 2 cores busy" in said
