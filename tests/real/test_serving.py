"""Simulated latencies compared with real servers on loopback; run on a quiet machine, with -m serving."""

import importlib.util
import sys

import pytest
from support.folders import BENCHMARKS

MODEL, OPTIONS = "resnet18", {"image_size": 96, "device": "cpu"}


@pytest.fixture
def harness(monkeypatch):
    """Return the module of ``benchmarks/serve.py``; model and server share one core, the client has another."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("serve", BENCHMARKS / "serve.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "serve", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.serving
@pytest.mark.parametrize("server", ["mosec", "litserve"])
def test_a_server_answers_as_its_simulation_lets_expect(harness, server):
    pytest.importorskip(server)
    case = harness.Case(MODEL, OPTIONS, server, 8, 5.0)

    record = harness.measured(case)
    lines = {line.load: line for line in harness.compare(case, record, *harness.driven(case, record, 15, 300))}

    assert list(lines) == [*harness.FITTED, *harness.PREDICTED]
    for load in (0.7, 0.85):
        line = lines[load]
        assert line.simulated_p50_ms == pytest.approx(line.p50_ms, rel=0.15)
        assert line.simulated_p95_ms == pytest.approx(line.p95_ms, rel=0.25)
        assert 1 < line.mean_batch <= 8
