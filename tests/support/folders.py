"""Where the tests find what lies beside them."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden"
MODELS = TESTS / "models"
ROOT = TESTS.parent
BENCHMARKS = ROOT / "benchmarks"
RESULTS = ROOT / "results"
