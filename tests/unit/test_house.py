"""The package has the rooms of its layers, and no other module."""

import importlib
import re
from pathlib import Path

import pytest
from support.folders import ROOT
from support.seams import ROWS

import tputfind

ROOMS = {
    "analysis",
    "commands",
    "processes",
    "readers",
    "record",
    "report",
    "runners",
    "search",
    "session",
    "sizing",
    "stages",
    "worker",
}
NAMES = ("__init__", "__main__", "declaration", "errors", "options", "stats", "step", "units", "version")
MODULES = {f"{name}.py" for name in NAMES}


def test_package_top_holds_its_rooms_and_shared_modules():
    inside = list(Path(tputfind.__file__).parent.iterdir())

    assert {path.name for path in inside if any(path.glob("*.py"))} == ROOMS
    assert {path.name for path in inside if path.suffix == ".py"} == MODULES


def test_every_room_has_a_docstring():
    package = Path(tputfind.__file__).parent
    for room in ROOMS:
        assert (package / room / "__init__.py").read_text().startswith('"""')


def place_of(path: str) -> Path:
    """Return the path of a repository file; package files are in the installation."""
    return (Path(tputfind.__file__).parents[1] if path.startswith("tputfind/") else ROOT) / path


@pytest.mark.parametrize(("what", "listed"), ROWS)
def test_each_seam_takes_at_most_seven_existing_files(what, listed):
    named = [re.findall(r"`([\w/.-]+\.\w+)`", entry.partition(" (")[0]) for entry in listed.split("; ")]

    assert len(named) <= 7, what
    assert all(named)
    assert [path for entry in named for path in entry if "NAME" not in path and not place_of(path).exists()] == []


def test_the_seams_of_the_design_are_all_there():
    seams = ["a device", "a mode", "a model source", "a result", "a notice", "a column", "a command"]
    seams += ["an option of a measurement", "a batcher"]
    assert [what for what, _ in ROWS] == seams


def test_only_devices_package_checks_the_device_type():
    asks = re.compile(r"device(?:\.type|_type)? *[!=]= *[\"'](?:cpu|cuda)|startswith\([\"'](?:cuda|cpu)")
    package = Path(tputfind.__file__).parent
    found = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "devices" not in path.parts and asks.search(path.read_text())
    ]

    assert found == ["record/environment.py"]  # a CPU fills its host


def test_groups_of_mutants_match_files(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    mutants = importlib.import_module("mutants")

    assert mutants.stale_patterns() == []
