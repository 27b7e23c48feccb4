from __future__ import annotations

import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from support.folders import BENCHMARKS, RESULTS, ROOT

import tputfind
from tputfind.commands import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_on_the_page_of_options(command):
    shown = CliRunner().invoke(main, [command, "--help"]).output
    options = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", shown, re.MULTILINE)) - {"--help"}

    assert options
    assert options == set(re.findall(r"^\| `(--[a-z-]+)`", sections()[command], re.MULTILINE))


def sections() -> dict[str, str]:
    """The page of options by command."""
    _, *parts = re.split(r"^## tputfind (\w+)\n", (ROOT / "docs" / "options.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_generated_pages_are_what_their_script_writes(tmp_path):
    subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--to", tmp_path], check=True, cwd=ROOT)
    pages = list(tmp_path.iterdir())

    assert pages
    for page in pages:
        assert page.read_text() == (ROOT / "docs" / page.name).read_text(), f"{page.name}: run docs/generate.py"


# Those in results/ itself are not kept: a run in this folder saves there.
RECORDS = [
    str(path.relative_to(RESULTS).with_suffix(""))
    for path in sorted(RESULTS.glob("*/*/*.json"))
    if path.parent.name != "clocks"
]


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_that_is_kept_in_results_loads_and_is_whole(name):
    path = RESULTS / f"{name}.json"
    record = tputfind.load_record(path)

    assert record.finished is not None
    assert path.with_suffix(".csv").read_bytes().count(b"\n") == len(record.rows) + 1
    if record.edge is not None:
        assert any(row.batch_size == record.edge.largest_batch and row.status == "ok" for row in record.rows)


def test_the_index_of_results_is_what_its_script_writes(tmp_path):
    subprocess.run([sys.executable, BENCHMARKS / "index.py", "--to", tmp_path / "index.md"], check=True, cwd=ROOT)

    assert (tmp_path / "index.md").read_text() == (RESULTS / "README.md").read_text(), "run benchmarks/index.py"


def test_the_index_names_every_file_of_results():
    index = (RESULTS / "README.md").read_text()
    files = subprocess.run(
        ["git", "ls-files", "results/*/*"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()

    assert all(f"({file.removeprefix('results/')})" in index for file in files)
