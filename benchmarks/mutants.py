"""Measure how many small changes to the code the tests notice, and show the others.

    python benchmarks/mutants.py resume compare --most 100

A random sample of mutmut's changes in each group is made, one at a time, in a copy of this repository, and the group's
tests are run. Needs ``pip install mutmut``; a change takes from half a second to about ten. A change that is not
noticed means either a missing test or a line without effect: judge each.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import tputfind

ROOT: Final = Path(__file__).parents[1]
NOT_NOTICED: Final = {0: "not noticed", 33: "no test runs it"}
"""mutmut's exit codes of changes that pass; with any other code a test failed or did not end."""
TIMED_OUT: Final = -signal.SIGXCPU
"""The exit code of a change whose tests did not end; it counts as noticed."""


class Group(NamedTuple):
    """Modules to change, and the tests that should notice it, as files and folders of ``tests/unit``."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS: Final = {
    "search": Group(("search/edge", "search/forecast"), ("search",)),
    "replay": Group(
        ("search/allocator", "search/replay"),
        ("search/test_allocator.py", "search/test_replay.py", "search/test_addresses.py"),
    ),
    "stats": Group(("stats",), ("test_stats.py", "analysis/test_answers.py", "analysis/test_compare.py")),
    "compare": Group(
        ("analysis/compare",),
        ("analysis/test_compare.py", "analysis/test_gate.py", "analysis/test_turns.py", "report/test_fleet.py"),
    ),
    "answers": Group(
        ("analysis/answers",),
        ("analysis/test_answers.py", "analysis/test_effective.py", "report/test_report.py", "test_stats.py"),
    ),
    "notices": Group(("analysis/notices/*",), ("analysis/test_notices.py", "analysis/test_noise.py")),
    "turns": Group(("analysis/turns",), ("analysis/test_turns.py", "analysis/test_race.py", "runners/test_race.py")),
    "race": Group(
        ("analysis/race", "runners/race"),
        ("analysis/test_race.py", "runners/test_race.py", "session/test_resume.py"),
    ),
    "rounds": Group(("session/turns",), ("runners/test_race.py", "../real/test_compare_run.py")),
    "failures": Group(("processes/failures",), ("processes",)),
    "outcome": Group(("session/outcome", "session/expectations"), ("session",)),
    "stopping": Group(
        ("session/stopping",),
        ("session/test_stopping.py", "session/test_session.py", "analysis/test_effective.py"),
    ),
    "resume": Group(("session/resume",), ("session/test_resume.py", "report/test_fleet.py")),
    "sizing": Group(("sizing/*",), ("sizing",)),
    "record": Group(("record/record", "record/untrusted"), ("record",)),
    "output_check": Group(("worker/output_check",), ("../real/test_output_check.py", "worker/test_novelty.py")),
}
"""Packages, or modules in them, in which an unnoticed change would cost the most."""


def main() -> None:
    """Change the code of each named group, print the fraction noticed, and the other changes as diffs."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("groups", nargs="+", choices=GROUPS)
    asked.add_argument("--most", type=int, default=100, help="changes of a group")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--at-once", type=int, default=2, help="processes")
    given = asked.parse_args()
    if missing := stale_patterns():
        sys.exit(f"{Path(__file__).name}: GROUPS names what does not exist: {', '.join(missing)}; correct the table")
    for name in given.groups:
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch, "copy")
            prepare(copy, GROUPS[name])
            run(copy, ["none of that name"])  # makes all changes, and tries none of them
            every = sorted(outcomes(copy))
            some = random.Random(given.seed).sample(every, min(given.most, len(every)))
            words = run(copy, ["--max-children", str(given.at_once), *some])
            tried = {change: code for change, code in outcomes(copy).items() if change in some and code is not None}
            if not tried:
                sys.exit(f"{name}: mutmut tried nothing:\n{words[-2000:]}")
            show(copy, name, tried, len(every))


def stale_patterns() -> list[str]:
    """Return the modules and tests of ``GROUPS`` that match no file."""
    modules = [f"{module}.py" for group in GROUPS.values() for module in group.modules]
    tests = [f"tests/unit/{test}" for group in GROUPS.values() for test in group.tests]
    package = Path(tputfind.__file__).parent
    found = [(package, pattern) for pattern in modules] + [(ROOT, pattern) for pattern in tests]
    return [pattern for folder, pattern in found if not any(folder.glob(pattern))]


def prepare(copy: Path, group: Group) -> None:
    """Copy the repository, and configure which modules mutmut changes and which tests it runs."""
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "mutants", "build"))
    real = any("real/" in test for test in group.tests)  # these are marked long, as are others that take too long here
    settings = {
        "source_paths": ["tputfind"],
        "only_mutate": [f"tputfind/{module}.py" for module in group.modules],
        "also_copy": ["tests", "results", "docs", "README.md", "CONTRIBUTING.md", "pyproject.toml", "setup.cfg"],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", *(["-m", "long or not long"] if real else [])],
        # Tests that never end stop after this many times their usual seconds, which vary on a machine that others use.
        "timeout_multiplier": ["3"],
        "pytest_add_cli_args_test_selection": [f"tests/unit/{test}" for test in group.tests],
    }
    lines = (f"{name} =\n" + "".join(f"    {value}\n" for value in values) for name, values in settings.items())
    with (copy / "setup.cfg").open("a") as file:
        file.write("\n[mutmut]\n" + "".join(lines))


def run(copy: Path, arguments: list[str]) -> str:
    """Run mutmut and return its output; it exits with an error if no change matches, which is ignored."""
    command = [sys.executable, "-m", "mutmut", "run", *arguments]
    done = subprocess.run(command, cwd=copy, check=False, capture_output=True, text=True)
    return done.stdout.replace("\r", "\n") + done.stderr


def outcomes(copy: Path) -> dict[str, int | None]:
    """Return mutmut's exit code of every change; None if it was not tried."""
    kept = (json.loads(path.read_text())["exit_code_by_key"] for path in (copy / "mutants").rglob("*.meta"))
    return {change: code for codes in kept for change, code in codes.items()}


def show(copy: Path, name: str, tried: dict[str, int], every: int) -> None:
    """Print the fraction of changes that were noticed, and those that were not."""
    missed = {change: NOT_NOTICED[code] for change, code in tried.items() if code in NOT_NOTICED}
    outcomes = Counter({**NOT_NOTICED, TIMED_OUT: "timed out"}.get(code, "") for code in tried.values())
    counts = ", ".join(f"{count} {words}" for words, count in outcomes.items() if words)
    print(f"{name}: {1 - len(missed) / len(tried):.1%} of {len(tried)} changes noticed, of {every} there are; {counts}")
    for change in missed:
        command = [sys.executable, "-m", "mutmut", "show", change]
        shown = subprocess.run(command, cwd=copy, check=False, capture_output=True, text=True)
        print(shown.stdout)


if __name__ == "__main__":
    main()
