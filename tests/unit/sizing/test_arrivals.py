"""When requests come: drawn, replayed, and with idle time cut out."""

from __future__ import annotations

import numpy as np
import pytest

from tputfind.sizing.arrivals import arrivals_ms, dispersion_of, gaps_ms, without_idle_ms
from tputfind.sizing.batchers import held_ms, rule_of
from tputfind.sizing.demand import BATCHERS
from tputfind.sizing.options import read_demand


def wanted(**more):
    return read_demand({"rate": 5, "slo": "50ms", **more})


RAMP = tuple(float(number) for number in range(1, 101))


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_one_seed_gives_one_stream_faster_or_slower_and_its_gaps(burstiness, share):
    demand = wanted(burstiness=burstiness)
    times = arrivals_ms(demand, 300, 500.0, share, seed=(3,))

    assert len(times) == 300
    assert np.cumsum(gaps_ms(demand, 300, 500.0, share, seed=(3,))) == pytest.approx(times, rel=1e-12)
    assert arrivals_ms(demand, 300, 50.0, share, seed=(3,)) == pytest.approx(10 * times, rel=1e-12)
    if burstiness:
        assert not np.any(arrivals_ms(demand, 300, 500.0, share, seed=(4,)) == times)


def test_an_even_stream_is_even():
    assert arrivals_ms(wanted(burstiness=0), 3, 500.0, 1.0, seed=(0,)).tolist() == [2.0, 4.0, 6.0]


def test_half_of_a_bursty_stream_is_nearer_to_a_poisson_stream():
    assert dispersion_of(wanted(burstiness=3), 1.0) == 9
    assert dispersion_of(wanted(burstiness=3), 0.5) == 5
    assert dispersion_of(wanted(burstiness=0), 0.5) == 0.5


def test_a_recorded_stream_is_replayed_at_the_rate_from_its_beginning_and_again():
    """Between two rounds lie the mean gap, 50.5, and the first one."""
    times = arrivals_ms(wanted(gaps=RAMP), 202, 1000.0, 1.0, seed=(0,))

    gaps = np.diff(times, prepend=0.0) * 50.5 * 101 / 100
    expected = np.array([*RAMP, 51.5, *RAMP[1:], 51.5, 2.0])
    assert gaps == pytest.approx(expected)
    assert gaps_ms(wanted(gaps=RAMP), 202, 1000.0, 1.0, seed=(0,)) == pytest.approx(np.diff(times, prepend=0.0))


@pytest.mark.parametrize(("window_ms", "times"), [(0.0, [20.0, 21.0, 50.0]), (30.0, [40.0, 41.0, 81.0])])
def test_idle_time_is_cut_but_for_two_requests_and_what_is_unanswered(window_ms, times):
    """A request takes less than 10 ms; by the clock only whole windows are cut."""
    assert without_idle_ms(np.array([100.0, 1.0, 100.0]), 10.0, window_ms).tolist() == times


def test_only_timers_of_mosec_hold_a_batch_for_longer_than_asked():
    assert [held_ms(batcher, 5.0) for batcher in BATCHERS] == [5.0, 5.0, 6.0, 5.0, 5.0, 5.0]


@pytest.mark.parametrize("batcher", ["greedy", "triton", "litserve"])
def test_without_a_delay_a_free_device_takes_what_is_there(batcher):
    rule = rule_of(batcher, 0.0)

    assert rule(30.0, 27.0, 21.0, np.inf) == 30.0
    assert rule(10.0, 5.0, 50.0, np.inf) == 50.0


def test_a_window_of_litserve_that_ends_as_a_request_comes_is_over():
    rule = rule_of("litserve", 10.0)

    assert rule(10.0, 5.0, 20.0, np.inf) == 30.0
    assert rule(10.0, 5.0, 10.0, np.inf) == 20.0
    assert rule(10.0, 5.0, 12.0, 15.0) == 15.0
