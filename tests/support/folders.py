"""Folders of the repository that tests use."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden"
MODELS = TESTS / "models"
ROOT = TESTS.parent
BENCHMARKS = ROOT / "benchmarks"
RESULTS = ROOT / "results"
RECORDS = TESTS / "records"
"""Records for tests only, in folders named like those of ``results/``."""


def record_path(name: str) -> Path:
    """Return the path of a record relative to ``results/`` or to ``tests/records``."""
    path = RESULTS / name
    return path if path.exists() else RECORDS / name


def record_paths(pattern: str) -> list[Path]:
    """Return the paths in both folders that match a pattern, given relative to them."""
    return sorted(path for folder in (RESULTS, RECORDS) for path in folder.glob(pattern))
