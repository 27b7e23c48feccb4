"""Several instances of a model at once, each on its part of the cores."""

import csv
import os
import signal
import sys
import time

import psutil
import pytest
from support.command import EDGE, children_at_work, start_command
from support.folders import MODELS

import tputfind

FILE = MODELS / "instances.py"
TWO = ("--device", "cpu", "--instances", 2)
FEW = ("--batch-sizes", 4, "--max-seconds", 1, "--no-save")

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def test_two_instances_of_a_sleeping_model_double_its_throughput(tmp_path, ask):
    ran = ask(tmp_path, f"{FILE}:sleeps", "--device", "cpu", "--instances", "1,2", *FEW, "--save", "rows.csv")

    assert ran.status == 0, ran.err
    with (tmp_path / "rows.csv").open() as file:
        one, two = csv.DictReader(file)
    assert (one["instances"], two["instances"]) == ("1", "2")
    assert float(two["samples_per_s"]) == pytest.approx(2 * float(one["samples_per_s"]), rel=0.1)
    assert float(two["latency_ms_p50"]) == pytest.approx(float(one["latency_ms_p50"]), rel=0.1)
    assert "Best recipe    fp32 nchw eager instances=2, batch 4" in ran.out


def test_instances_are_as_fast_as_the_slowest_and_may_end_behind(tmp_path, ask):
    ran = ask(tmp_path, f"{FILE}:lags", *TWO, *FEW, "--save", "rows.csv")

    assert ran.status == 0, ran.err
    with (tmp_path / "rows.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["status"] == "ok"
    assert float(row["samples_per_s"]) == pytest.approx(2 * 4 / 0.1, rel=0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")
def test_instances_share_a_memory_ceiling(tmp_path, ask):
    search = ("--granularity", 128, *EDGE, "--save", "rows.json", "--overwrite")
    edges = []
    for placed in ((*TWO, "--memory-limit", "512MiB"), ("--device", "cpu:0", "--memory-limit", "256MiB")):
        ran = ask(tmp_path, f"{FILE}:grows", *placed, *search)
        assert ran.status == 0, ran.err
        edges.append(tputfind.load(tmp_path / "rows.json").edge)

    assert [edge.limited_by for edge in edges] == ["memory", "memory"]
    assert edges[0].largest_batch == pytest.approx(edges[1].largest_batch, rel=0.01)


@pytest.mark.parametrize(
    ("how", "told"),
    [("raises", "instance 1: ValueError: had enough"), ("dies", "instance 1: "), ("hangs", "no answer within")],
)
def test_failure_of_one_instance_ends_all(tmp_path, ask, how, told):
    begin_s = time.monotonic()
    patience = ("--trial-timeout", "12s") if how == "hangs" else ()
    ran = ask(tmp_path, f"{FILE}:{how}", *TWO, *FEW, *patience)

    assert ran.status == 5, ran.err
    assert told in " ".join(ran.err.split())
    assert time.monotonic() - begin_s < 100
    assert not children_at_work()


def test_interruption_leaves_no_instance_behind(tmp_path):
    process = start_command(tmp_path, f"{FILE}:sleeps", *TWO, "--batch-sizes", 4, "--max-seconds", 300, "--no-save")
    for line in process.stderr:
        if "timing batch" in line:
            break
    deadline = time.monotonic() + 30
    started = []
    while len(started) < 4 and time.monotonic() < deadline:  # a server and a child of each instance
        time.sleep(0.5)
        started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)

    assert process.returncode == 130
    assert len(started) >= 4
    assert not psutil.wait_procs(started, timeout=15)[1]


def test_comparison_of_one_and_two_instances_is_certain(tmp_path, ask):
    arguments = ("compare", "--run", f"{FILE}:sleeps", "--device", "cpu", "--instances", "1,2", "--batch-sizes", 4)
    ran = ask(tmp_path, *arguments, "--budget", "60s", "--save", "found.json", "--quiet")

    assert ran.status == 0, ran.err
    (row,) = tputfind.load(tmp_path / "found.json").rows
    assert row.verdict == "faster"
    assert row.ratio == pytest.approx(2, rel=0.1)


def test_race_is_won_by_two_instances(tmp_path, ask):
    arguments = ("tune", f"{FILE}:sleeps", "--device", "cpu", "--mode", "eager", "--batch-sizes", 8, "--no-save")
    ran = ask(tmp_path, *arguments, "--budget", "80s", "--save", "race.json", "--quiet")

    assert ran.status == 0, ran.err
    race = tputfind.load(tmp_path / "race.json")
    assert race.winner.instances == 2
    assert race.record.spec.instances == 2
    assert race.record.row(4).samples == 8
    assert "# in each of 2 processes, started on its part of the cores" in ran.out


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (("--device", "cpu:0", "--instances", 2), 2, "--instances 2 takes as many cores, and --device cpu:0 has 1"),
        (
            ("--device", "cpu:0,cpu:1", "--instances", 2),
            2,
            "--instances 2 takes as many cores, and --device cpu:0 has 1",
        ),
        (("--device", "cpu", "--instances", 64), 3, "64 instances need 64 cores, and there are "),
        (("--instances", 0), 2, "--instances: 0 is not between 1 and 64"),
        ((*TWO, "--gpus", 2), 2, "--instances are copies that work by themselves: leave --gpus and --parallel out"),
        (("--device", "cpu:0,cpu:1", "--all-busy", "--instances", 2), 2, "leave --instances out"),
    ],
)
def test_impossible_instances_are_refused_in_one_line(tmp_path, ask, arguments, status, line):
    ask(tmp_path, f"{FILE}:sleeps", *arguments, *FEW, "--quiet").check_refused(status, line)


def test_record_of_instances_is_refused_by_size(tmp_path, ask):
    ask(tmp_path, f"{FILE}:sleeps", *TWO, *FEW, "--save", "two.json")
    ran = ask(tmp_path, "size", "two.json", "--rate", 100, "--slo", "1s")

    assert ran.status == 2
    assert "is of 2 instances that share a device" in ran.err
