"""Progress output while a run is under way."""

import io
import os
import re
import subprocess
import sys

import pytest
from msgspec.structs import replace
from rich.console import Console
from support.records import example, row

from tputfind.report.progress import show_progress


def told(record, *, terminal: bool, width: int = 100, height: int = 50) -> str:
    """Return the output of a run that tried a batch, timed rows, and continues."""
    paper = io.StringIO()
    console = Console(file=paper, force_terminal=terminal, width=width, height=height, color_system=None)
    with show_progress(console) as progress:
        progress.about("resnet50")
        progress.doing("does batch 8 fit?", 90.0)
        progress.did("batch 8 does not fit")
        progress.measured(record)
        progress.did("batch 5: 500.0 samples/s, process 1")
        progress.doing("timing batch 16", None)
        return paper.getvalue()


def test_closed_stderr_leaves_stdout_open():
    code = """
import os, sys
from tputfind.report.progress import StderrConsole, show_progress
with show_progress(StderrConsole()) as progress:
    for number in range(3):
        progress.doing(f"batch {number}", None)
print("the result")
"""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stderr=write, stdout=subprocess.PIPE, text=True, check=False)
    os.close(write)

    assert (done.returncode, done.stdout) == (0, "the result\n")


def searching(record):
    return replace(record, edge=None, safe=None, finished=None)


def test_terminal_shows_table_above_current_step():
    shown = told(example(), terminal=True)
    last = shown[shown.rindex("± %") :]  # a head of the table

    assert all(figure in last for figure in ("250.0", "800.0", "500.0", "died"))
    assert "Fastest batch" in last
    assert last.rstrip().endswith("resnet50: timing batch 16")


def test_row_in_the_terminal_table_has_no_extra_line():
    assert "batch 8 does not fit" in told(example(), terminal=True)
    assert "process 1" not in told(example(), terminal=True)
    assert "process 1" in told(replace(example(), rows=()), terminal=True)


@pytest.mark.parametrize(("record", "known"), [(example(), True), (searching(example()), False)])
def test_answers_of_unfinished_search_are_omitted(record, known):
    shown = told(record, terminal=True)

    assert "Knee" in shown
    assert ("Largest batch" in shown) is known


@pytest.mark.parametrize("count", [4, 12, 16, 40])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 16), (100, 50)])
def test_terminal_shows_last_rows_that_fit_and_current_step(count, width, height):
    record = replace(example(), rows=tuple(row(size, 5.0) for size in range(1, count + 1)))
    shown = told(record, terminal=True, width=width, height=height)
    head = list(re.finditer(r"batch +samples/s", shown))[-1]
    last = shown[head.start() :].splitlines()

    assert len(last) <= height
    assert max(map(len, last)) <= width
    assert any(line.split()[:1] == [str(count)] for line in last)
    assert last[-1].strip() == "resnet50: timing batch 16"


def test_elsewhere_progress_is_lines_without_a_table():
    assert told(example(), terminal=False).splitlines() == [
        "resnet50: does batch 8 fit?, about 1 min 30 s left",
        "resnet50: batch 8 does not fit",
        "resnet50: batch 5: 500.0 samples/s, process 1",
        "resnet50: timing batch 16",
    ]


def test_the_table_of_one_model_is_gone_when_the_next_begins():
    paper = io.StringIO()
    with show_progress(Console(file=paper, force_terminal=True, width=100, color_system=None)) as progress:
        progress.about("resnet50")
        progress.measured(example())
        before = len(paper.getvalue())
        progress.about("vit_b_16")
        progress.doing("looking at the model and the device", None)
        progress.did("batch 1 fits")
        after = paper.getvalue()[before:]

    assert "800.0" not in after
    assert "vit_b_16: batch 1 fits" in after
