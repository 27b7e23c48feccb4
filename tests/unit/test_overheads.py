"""The overheads of a server, estimated by the harness of ``benchmarks/serve.py`` from a server with known ones."""

import sys

import numpy as np
import pytest
from support.folders import ROOT, record_path

import tputfind
from tputfind.sizing.calibration import Estimate

PER_BATCH_MS, PER_REQUEST_MS, PER_ANSWER_MS, ON_THE_WAY_MS = 0.8, 0.1, 0.3, 1.5
CAP, HELD_MS, SCATTER_MS = 32, 6.0, 0.5


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from serving import harness

    yield harness
    for name in [name for name in sys.modules if name.partition(".")[0] == "serving"]:
        monkeypatch.delitem(sys.modules, name, raising=False)


def served(harness, service, rate_per_s: float, count: int, seed: int):
    """Simulate a server like mosec, which holds a batch for 6 ms and is busy for a while after each."""
    due_ms = np.cumsum(np.random.default_rng(seed).exponential(1000 / rate_per_s, count))
    came, answers, free, head = due_ms + ON_THE_WAY_MS, [], 0.0, 0
    scatter = np.random.default_rng([seed, 1])
    while head < count:
        first = max(free, came[head])
        full = came[head + CAP - 1] if head + CAP <= count else np.inf
        begun = min(first + HELD_MS, max(first, full))
        size = min(CAP, int(np.searchsorted(came[head:], begun, side="right")))
        step_ms = service.mean_ms(size)
        free = begun + step_ms + PER_BATCH_MS + PER_REQUEST_MS * size
        for place in range(size):
            late_ms = PER_ANSWER_MS * (place + 1) + scatter.exponential(SCATTER_MS)
            answers.append(harness.Answer(free + late_ms - due_ms[head + place], size, step_ms, begun))
        head += size
    return harness.Load(rate_per_s, due_ms, answers)


def test_overheads_fitted_at_low_loads_predict_higher_ones(harness):
    record = tputfind.load_record(record_path("nvidia-h200/serving/vit_l_16-fp32.json"))
    case = harness.Case("vit_l_16", {"dtype": "fp32"}, "mosec", CAP, 5.0)
    service = harness.service_of(record)

    low, middle, high = (
        served(harness, service, rate_per_s, 6000, seed) for seed, rate_per_s in enumerate((33.0, 165.0, 285.0))
    )
    overheads = harness.fitted(record, case, [low, middle])

    assert overheads.per_batch == pytest.approx(PER_BATCH_MS, rel=0.1)
    assert overheads.per_request == pytest.approx(PER_REQUEST_MS, rel=0.1)
    assert overheads.per_answer == pytest.approx(PER_ANSWER_MS, rel=0.1)
    found = harness.simulated(record, case, high.due_ms, overheads)
    assert found == pytest.approx(high.latency, rel=0.05)
    assert harness.simulated(record, case, high.due_ms, Estimate()).p99 < 0.9 * high.latency.p99
