"""Request streams: drawn, replayed and thinned, and the samples of requests."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tputfind.errors import BadRequest
from tputfind.sizing.planner.question import read_demand
from tputfind.sizing.traffic import Traffic, full_batches, many_of, read_shares, shares_of, without_idle

RAMP = tuple(float(number) for number in range(1, 101))
MIXED = "1:0.8,4:0.2"


def wanted(**more: object):
    return read_demand({"rate": 100, "slo": "50ms", **more})


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_stream_of_one_seed_is_reproducible_with_mean_gap_one(burstiness, share):
    traffic = Traffic(burstiness)
    times = traffic.draw(100_000, share, (3,)).times

    assert times.tolist() == traffic.draw(100_000, share, (3,)).times.tolist()
    assert times[-1] == pytest.approx(100_000, rel=0.05)
    if burstiness:
        assert not np.any(traffic.draw(100_000, share, (4,)).times == times)


@pytest.mark.parametrize("burstiness", [0.0, 1e-200, 1e-160, 1e-7])
def test_stream_with_almost_no_burstiness_is_even(burstiness):
    assert Traffic(burstiness).draw(3, 1.0, (0,)).times.tolist() == [1.0, 2.0, 3.0]


def test_half_of_a_bursty_stream_is_nearer_to_a_poisson_stream():
    assert Traffic(3.0).dispersion(1.0) == 9
    assert Traffic(3.0).dispersion(0.5) == 5
    assert Traffic(0.0).dispersion(0.5) == 0.5


def test_recorded_stream_is_replayed_whole_from_its_beginning():
    times = Traffic(gaps=RAMP).draw(102, 1.0, (0,)).times

    gaps = np.diff(times, prepend=0.0) * 50.5  # the mean gap
    assert gaps == pytest.approx(np.array([*RAMP, *RAMP]))


def test_part_of_a_recorded_stream_is_drawn_from_one_replay_if_that_is_enough():
    stream = Traffic(gaps=(1.0,) * 10_000).draw(1429, 1 / 7, (0,))

    assert len(stream.times) == pytest.approx(1429, rel=0.1)


@pytest.mark.parametrize("share", [0.25, 1e-7])
def test_recorded_stream_is_thinned_to_any_share(share):
    stream = Traffic(gaps=RAMP).draw(5000, share, (0,))

    assert len(stream.times) == pytest.approx(5000, rel=0.1)
    assert stream.times[-1] == pytest.approx(5000, rel=0.1)


def test_drawn_samples_have_their_fractions_and_recorded_ones_follow_gaps():
    drawn = wanted(samples_per_request=MIXED).traffic.draw(50_000, 1.0, (1,)).sizes
    assert np.mean(drawn == 4) == pytest.approx(0.2, abs=0.01)
    assert set(drawn.tolist()) == {1, 4}

    # A request after a gap of n has n samples.
    recorded = wanted(gaps=list(RAMP), samples=[7, *range(1, 101)])
    assert recorded.samples_per_request[6] == (7, pytest.approx(1 / 100))  # the first is not replayed
    assert recorded.traffic.draw(300, 1.0, (2,)).sizes.tolist() == [*range(1, 101)] * 3
    assert len(set(recorded.traffic.draw(300, 0.5, (2,)).sizes.tolist())) > 60


def test_recorded_stream_without_samples_draws_them_like_another():
    traffic = wanted(gaps=list(RAMP), samples_per_request=MIXED).traffic

    for share in (1.0, 0.5):
        stream = traffic.draw(20_000, share, (1,))
        assert len(stream.sizes) == len(stream.times)
        assert np.mean(stream.sizes == 4) == pytest.approx(0.2, abs=0.015)


@pytest.mark.parametrize(("window_ms", "times"), [(0.0, [20.0, 21.0, 50.0]), (30.0, [40.0, 41.0, 81.0])])
def test_idle_time_is_cut_except_for_unanswered_requests(window_ms, times):
    """A request takes less than 10 ms; with a window, only whole windows are cut."""
    assert without_idle(np.cumsum([100.0, 1.0, 100.0]), 10.0, window_ms).tolist() == times


@settings(max_examples=25)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=30), st.integers(6, 20))
def test_batch_is_full_if_the_next_request_does_not_fit(counts, cap):
    packed = full_batches(tuple(counts), cap)

    batch, sizes = 0, []
    for samples in itertools.islice(itertools.cycle(counts), 6000):
        if batch + samples > cap:
            sizes.append(batch)
            batch = 0
        batch += samples
    mean = sum(size * count for size, count in packed.items()) / sum(packed.values())
    assert mean == pytest.approx(np.mean(sizes), rel=0.005)


def test_requests_of_four_up_to_a_batch_of_ten_fill_eight():
    assert set(full_batches(many_of(read_shares(4)), 10)) == {8}


def test_shares_of_recorded_requests_are_counted():
    assert shares_of(Counter([4, 1, 1, 1])) == ((1, 0.75), (4, 0.25))


@pytest.mark.parametrize(
    ("batcher", "is_whole"),
    [("greedy", False), ("triton", True), ("mosec", False), ("litserve", False), ("ray", False)],
)
def test_each_server_has_its_own_way_with_a_request_of_several_samples(batcher, is_whole):
    assert wanted(batcher=batcher, samples_per_request=2).is_whole is is_whole
    assert not wanted(batcher=batcher).is_whole


@pytest.mark.parametrize(
    ("value", "shares"),
    [
        ("4", ((4, 1.0),)),
        (4, ((4, 1.0),)),
        (" 4:0.2, 1:0.8 ", ((1, 0.8), (4, 0.2))),
        ("1:3,4:1", ((1, 0.75), (4, 0.25))),
        ({1: 0.8, 4: 0.2}, ((1, 0.8), (4, 0.2))),
        ([(4, 1), (1, 1)], ((1, 0.5), (4, 0.5))),
        ("1:0.33,2:0.33,3:0.33", ((1, 1 / 3), (2, 1 / 3), (3, 1 / 3))),
        ("7:1", ((7, 1.0),)),
    ],
)
def test_requests_have_one_number_of_samples_or_several_with_shares_or_weights(value, shares):
    assert [pair for read in (read_shares(value),) for each in read for pair in each] == pytest.approx(
        [pair for each in shares for pair in each]
    )


WRONG_SAMPLES = [
    ("0:1", "--samples-per-request: 0 is not between 1 and"),
    ("0", "0 is not between 1 and"),
    ("1:0", "'0' is not from 1e-09 to 1e+15"),
    ("1:nan", "'nan' is not a finite number"),
    ("1:inf", "'inf' is not a finite number"),
    ("1:-1", "'-1' is not from"),
    ("4:0.2,4:0.8", "4 samples have two shares"),
    ("1:0.8,4:0.3", "the shares add up to 1.1, and not to 1"),
    ("1:0.5", "the shares add up to 0.5, and not to 1"),
    ("1:75%,4:25%", "'75%' is not a number"),
    ("1:0.8:3", "is not a number of samples with its fraction, such as 4:0.2"),
    ("1:0.8,", "is not a number of samples with its fraction"),
    ("1:,4:1", "'' is not a number"),
    (":1", "'' is not a whole number"),
    ("two", "'two' is not a whole number"),
    ("1.5", "'1.5' is not a whole number"),
    ("99999999999", "99999999999 is not between 1 and"),
    ("", "'' is not a whole number"),
    ({}, "has no number of samples"),
    ([3, 4], "is not a number of samples with its fraction"),
    (True, "True is not a whole number"),
]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(({"samples_per_request": value}, said) for value, said in WRONG_SAMPLES),
        ({"samples": [1, 2]}, "1 requests have a time, and 2 a number of samples"),
        ({"gaps": [1.0] * 99, "samples": [1] * 99}, "100 requests have a time, and 99 a number of samples"),
        ({"gaps": [1.0] * 99, "samples": [0] * 100}, "--samples: number 0: 0 is not between 1 and"),
        ({"gaps": [1.0] * 99, "samples": "many"}, "'many' is not a list of numbers of samples"),
        (
            {"gaps": [1.0] * 99, "samples": [2] * 100, "samples_per_request": 2},
            "--samples-per-request cannot be combined with --arrivals",
        ),
    ],
)
def test_invalid_samples_are_refused_in_one_line(given, said):
    with pytest.raises(BadRequest) as refused:
        wanted(**given)

    assert said in refused.value.message
    assert "\n" not in refused.value.message
