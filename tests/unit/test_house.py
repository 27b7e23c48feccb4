"""The rooms and the seams of the package. That it has no other module than its layers is import-linter's business."""

import importlib
import re
from pathlib import Path

import pytest
from support.folders import ROOT
from support.seams import ROWS

import tputfind

PACKAGE = Path(tputfind.__file__).parent


def test_every_room_has_a_docstring():
    rooms = {path.parent for path in PACKAGE.glob("*/*.py")}

    assert len(rooms) > 5
    assert all((room / "__init__.py").read_text().startswith('"""') for room in rooms)


def place_of(path: str) -> Path:
    """Return the path of a repository file; package files are in the installation."""
    return (PACKAGE.parent if path.startswith("tputfind/") else ROOT) / path


@pytest.mark.parametrize(("what", "listed"), ROWS)
def test_each_seam_takes_at_most_seven_existing_files(what, listed):
    named = [re.findall(r"`([\w/.-]+\.\w+)`", entry.partition(" (")[0]) for entry in listed.split("; ")]

    assert len(named) <= 7, what
    assert all(named)
    assert [path for entry in named for path in entry if "NAME" not in path and not place_of(path).exists()] == []


def test_the_seams_of_the_design_are_all_there():
    seams = ["a device", "a mode", "a model source", "a result", "a notice", "a column", "a command"]
    seams += ["an option of a measurement", "an option of `size`", "a batcher"]
    assert [what for what, _ in ROWS] == seams


def test_only_devices_package_checks_the_device_type():
    asks = re.compile(r"device(?:\.type|_type)? *[!=]= *[\"'](?:cpu|cuda)|startswith\([\"'](?:cuda|cpu)")
    found = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "devices" not in path.parts and asks.search(path.read_text())
    ]

    assert found == ["record/environment.py"]  # a CPU fills its host


def test_groups_of_mutants_match_files(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    mutants = importlib.import_module("mutants")

    assert mutants.stale_patterns() == []
