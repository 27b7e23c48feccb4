"""The simulator beside the batching code of Ray Serve and BentoML, run as it is on a simulated clock."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from support.folders import BENCHMARKS

from tputfind.sizing.adaptive import Adaptive
from tputfind.sizing.batchers import rule_of
from tputfind.sizing.queues import Ends
from tputfind.sizing.replicas import Blocked, ByRule, Router

pytestmark = pytest.mark.long


@pytest.fixture
def ray(monkeypatch):
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'ray[serve]'")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from serving import virtual_ray

    yield virtual_ray
    sys.modules.pop("serving", None)


@pytest.fixture
def bentoml(monkeypatch):
    pytest.importorskip("bentoml", reason="BentoML is not installed: pip install bentoml")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from serving import virtual_bentoml

    yield virtual_bentoml
    sys.modules.pop("serving", None)


def line_ms(size: int) -> float:
    return 5 + 0.5 * size


def stream(requests: int, rate_per_s: float) -> np.ndarray:
    return np.cumsum(np.random.default_rng(0).exponential(1000 / rate_per_s, requests))


def simulated_ms(arrivals_ms, *, cap, delay_ms, max_ongoing, blocking, max_queued=-1):
    ends = Ends(len(arrivals_ms))
    if blocking:
        replica = Blocked(0.0, cap, line_ms, delay_ms, ends)
    else:
        replica = ByRule(0.0, cap, line_ms, rule_of("ray", delay_ms), ends)
    queued = np.inf if max_queued < 0 else max_queued
    return Router([replica], ends, None, max_ongoing, queued).serve(arrivals_ms.tolist()).done_ms


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(("rate_per_s", "cap", "limit"), [(300, 32, 100), (150, 5, 5), (240, 32, 5)])
def test_of_one_replica_of_ray_every_request_is_answered_when_ray_answers_it(ray, blocking, rate_per_s, cap, limit):
    """Requests that find no room and ask again among them."""
    arrivals_ms = stream(1000, rate_per_s)
    limits = {"cap": cap, "delay_ms": 10.0, "max_ongoing": limit, "blocking": blocking}

    theirs = ray.answered_ms(arrivals_ms, [line_ms], **limits)

    assert simulated_ms(arrivals_ms, **limits) == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(("rate_per_s", "cap", "limit", "most_queued"), [(900, 16, 100, -1), (250, 32, 5, 8)])
def test_near_its_limit_ray_answers_as_late_as_its_simulation(ray, blocking, rate_per_s, cap, limit, most_queued):  # noqa: PLR0917
    """A loop that was blocked takes what came meanwhile into one batch or the next: Pythons differ in that."""
    arrivals_ms = stream(3000, rate_per_s)
    limits = {"cap": cap, "delay_ms": 10.0, "max_ongoing": limit, "blocking": blocking, "max_queued": most_queued}

    theirs = ray.answered_ms(arrivals_ms, [line_ms], **limits) - arrivals_ms
    ours = simulated_ms(arrivals_ms, **limits) - arrivals_ms

    shares = [50, 95, 99]
    assert np.nanpercentile(ours, shares) == pytest.approx(np.nanpercentile(theirs, shares), rel=0.03)
    assert np.isnan(ours).mean() == pytest.approx(np.isnan(theirs).mean(), abs=0.01)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(("rate_per_s", "most_ms"), [(300, 60_000), (1200, 60_000), (1600, 80)])
def test_bentoml_answers_as_late_as_its_simulation_and_refuses_as_many(bentoml, blocking, rate_per_s, most_ms):
    arrivals_ms, ends = stream(10_000, rate_per_s), Ends(10_000)
    replica = Adaptive(0.0, 32, line_ms, most_ms, ends, blocking=blocking)

    ours = (Router([replica], ends).serve(arrivals_ms.tolist()).done_ms - arrivals_ms)[1000:]
    theirs = bentoml.answered_ms(arrivals_ms, line_ms, cap=32, max_latency_ms=most_ms, blocking=blocking)
    theirs = (theirs - arrivals_ms)[1000:]

    shares = [50, 95, 99]
    assert np.nanpercentile(ours, shares) == pytest.approx(np.nanpercentile(theirs, shares), rel=0.02)
    assert np.isnan(ours).mean() == pytest.approx(np.isnan(theirs).mean(), abs=0.005)
