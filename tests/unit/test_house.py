"""The package has the rooms that its layers are drawn for, and no loose module beside them."""

from __future__ import annotations

from pathlib import Path

import tputfind

ROOMS = {
    "analysis",
    "commands",
    "fleet",
    "processes",
    "record",
    "report",
    "search",
    "session",
    "sizing",
    "stages",
    "worker",
}
MODULES = {"__init__.py", "__main__.py", "errors.py", "options.py", "stats.py", "units.py", "version.py"}


def test_the_top_of_the_package_holds_its_rooms_and_what_all_of_them_use():
    inside = list(Path(tputfind.__file__).parent.iterdir())

    assert {path.name for path in inside if any(path.glob("*.py"))} == ROOMS
    assert {path.name for path in inside if path.suffix == ".py"} == MODULES


def test_every_room_says_what_it_is_for():
    package = Path(tputfind.__file__).parent
    for room in ROOMS:
        assert (package / room / "__init__.py").read_text().startswith('"""')
