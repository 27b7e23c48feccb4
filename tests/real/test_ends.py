"""A run that is interrupted, killed or robbed of its folder, and the parent that waits for it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time

import psutil
from support.command import ENVIRONMENT, MODELS, QUICK, command


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
