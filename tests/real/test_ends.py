"""A run that is interrupted, killed or loses its folder, and the parent that waits for it."""

import fcntl
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time

import psutil
from support.command import ENVIRONMENT, QUICK, command, run_program, start_command
from support.folders import MODELS

import tputfind


def started(tmp_path, *arguments) -> subprocess.Popen:
    """Start a run, and return its process in its first row."""
    # A background job of a shell would inherit ignored signals.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = start_command(tmp_path, *arguments)
    for line in process.stderr:
        if "timing batch" in line:
            return process
    raise AssertionError("the run ended before its first row")


def test_deleted_folder_loses_neither_the_run_nor_its_table(tmp_path):
    process = started(tmp_path, f"{MODELS}/plain.py:sleeps", "--batch-sizes", "1,2,4", *QUICK, "--batches", 50)
    shutil.rmtree(tmp_path / "results")
    out, err = process.communicate(timeout=60)

    assert "Fastest batch" in out
    table = out.partition("Deploy")[0]  # notices have numbers too
    assert [line.split()[0] for line in table.splitlines() if line.split()[:1] and line.split()[0].isdigit()] == [
        "1",
        "2",
        "4",
    ]
    assert "tputfind: cannot write" in err
    assert process.returncode == 2


def test_interruption_keeps_results_and_shows_how_to_resume(tmp_path):
    process = started(tmp_path, f"{MODELS}/plain.py:sleeps", "--max-batch", 4, "--batches", 1000)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "interrupted; what was measured until then is saved" in err
    (path,) = (tmp_path / "results").glob("*.json")
    assert f"results/{path.name}" in err
    assert f"tputfind --resume results/{path.name}" in err
    assert path.with_suffix(".csv").read_text().startswith("model,")
    assert "Traceback" not in err


def test_closed_terminal_loses_no_results(tmp_path):
    """The test closes the other end of a real terminal, so every later write to it fails."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*command(), f"{MODELS}/plain.py:sleeps", "--max-batch", "4", "--batches", "1000"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  # one thread here
    )
    os.close(theirs)
    seen = b""
    while b"timing batch" not in seen:
        seen += os.read(ours, 1000)
    os.close(ours)

    assert process.wait(timeout=30) == 130
    (path,) = (tmp_path / "results").glob("*.json")
    assert tputfind.load_record(path).trials
    assert path.with_suffix(".csv").exists()


def test_reader_leaving_early_causes_no_error(tmp_path):
    shell = f"{shlex.join([*command(), f'{MODELS}/plain.py:sleeps', '--batch-sizes', '1', *map(str, QUICK)])} | true"
    done = run_program(["bash", "-c", f"set -o pipefail; {shell}"], tmp_path)

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert len(list((tmp_path / "results").iterdir())) == 2


def test_a_signal_that_was_ignored_from_the_start_stays_ignored(tmp_path):
    process = subprocess.Popen(
        ["nohup", *command(), f"{MODELS}/plain.py:sleeps", "--batch-sizes", "1", *map(str, QUICK)],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if "timing batch" in line:
            process.send_signal(signal.SIGHUP)
    process.communicate()

    assert process.returncode == 0


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

    assert (after.user + after.system) - (before.user + before.system) <= 0.035  # three ticks of the clock
    assert resident < 200 * 2**20


def test_launcher_that_ignores_ended_children_changes_nothing(tmp_path):
    arguments = ("--device", "cpu", "--batch-sizes", 1, *QUICK)
    asked = [*command(), f"{MODELS}/plain.py:mebibytes", *map(str, arguments)]
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    ran = run_program([sys.executable, "-c", ignoring, *asked], tmp_path)

    assert ran.returncode == 0, ran.stderr
