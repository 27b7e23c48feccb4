"""A processor shared with other processes during the measurement is reported in the record and the report."""

import subprocess
import sys
from contextlib import ExitStack

from support.command import run
from support.folders import MODELS

BUSY = [sys.executable, "-c", "while True: pass"]
ASKED = (f"{MODELS}/plain.py:sleeps", "--batch-sizes", 8, "--processes", 2)


def test_work_of_other_processes_is_counted_and_reported(tmp_path):
    with ExitStack() as ends:
        for _ in range(2):
            other = subprocess.Popen(BUSY)
            ends.callback(other.wait)
            ends.callback(other.kill)
        ran = run(tmp_path, *ASKED)

    record = ran.record()
    (row,) = record.rows
    assert min(timing.others_busy_cores for timing in row.timings) > 0.3
    assert record.notices[0].kind == "host_busy"
    assert "cores busy while this was measured: they take time from the model" in " ".join(ran.out.split())
    assert f", {record.environment.torch_threads} thread" in " ".join(ran.out.split())
