"""The package has the rooms that its layers are drawn for, and no loose module beside them."""

import re
from pathlib import Path

import pytest
from support.folders import ROOT
from support.seams import LISTS

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


def test_the_top_of_the_package_holds_its_rooms_and_what_all_of_them_use():
    inside = list(Path(tputfind.__file__).parent.iterdir())

    assert {path.name for path in inside if any(path.glob("*.py"))} == ROOMS
    assert {path.name for path in inside if path.suffix == ".py"} == MODULES


def test_every_room_says_what_it_is_for():
    package = Path(tputfind.__file__).parent
    for room in ROOMS:
        assert (package / room / "__init__.py").read_text().startswith('"""')


def place_of(path: str) -> Path:
    """Where a file of the repository lies; those of the package lie where it is installed."""
    return (Path(tputfind.__file__).parents[1] if path.startswith("tputfind/") else ROOT) / path


@pytest.mark.parametrize(("what", "listed"), LISTS)
def test_each_seam_takes_seven_files_at_the_most_and_all_that_are_named_exist(what, listed):
    named = [re.findall(r"`([\w/.-]+\.\w+)`", line.partition(":")[0]) for line in listed.splitlines()]

    assert len(named) <= 7, what
    assert all(named)
    assert [path for line in named for path in line if "NAME" not in path and not place_of(path).exists()] == []


def test_the_seams_of_the_design_are_all_there():
    seams = ["a device", "a mode", "a model source", "a result", "a column", "a command"]
    seams += ["an option of a measurement", "a batcher"]
    assert [what for what, _ in LISTS] == seams


def test_nothing_but_the_devices_asks_which_device_it_runs_on():
    asks = re.compile(r"device(?:\.type|_type)? *[!=]= *[\"'](?:cpu|cuda)|startswith\([\"'](?:cuda|cpu)")
    package = Path(tputfind.__file__).parent
    found = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "devices" not in path.parts and asks.search(path.read_text())
    ]

    assert found == ["record/environment.py"]  # which reads records of versions that did not ask for capabilities
