import copy
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.oracle import NO_CAP, Oracle, searched
from support.searches import SEARCHES

from tputfind.record.record import Failure, Trial
from tputfind.record.trace import Event, Trace, pack_events
from tputfind.search.edge import _Search, find_edge
from tputfind.search.forecast import (
    Known,
    NonMonotonic,
    edge_where,
    expected_batch,
    expected_non_monotonic,
    index_limits,
    non_monotonic_where,
)
from tputfind.search.replay import Forecast, Memory

MIB = 2**20
EDGES = st.integers(0, 100_000)


def most(edge: int, first: int | None = None) -> int:
    """Return the most trials: twice those of climbing and bisection, plus two, plus those to come down from a guess."""
    down = math.ceil(math.log(max(1, (first or 1) / max(1, edge)), 4))
    return 2 * (2 * math.ceil(math.log2(max(1, edge))) + 4) + 2 + down


def right(edge):
    return lambda passes, fails: edge


def useless(edge):
    return lambda passes, fails: None


FORECASTS = {
    "right": right,
    "useless": useless,
    "creeping": lambda edge: lambda passes, fails: passes,
    "overshooting": lambda edge: lambda passes, fails: (fails or NO_CAP) - 1,
    "shrinking from far above": lambda edge: lambda passes, fails: (fails or NO_CAP) // 2,
    "stubborn": lambda edge: lambda passes, fails: 7777,
}


@pytest.mark.parametrize("kind", FORECASTS)
@given(edge=EDGES, first=st.sampled_from([None, 1, 61, 5000]))
def test_search_with_any_forecast_finds_edge_in_twice_the_trials_plus_two(kind, edge, first):
    found, asked = searched(edge, first=first, forecast=FORECASTS[kind](edge))

    assert found.largest_batch == edge
    assert found.fails_at == edge + 1
    assert edge + 1 in asked
    assert len(asked) == len(set(asked))
    assert len(asked) <= most(edge, first)


@given(edge=EDGES, seed=st.integers(0, 2**32), first=st.one_of(st.none(), st.integers(1, NO_CAP)))
def test_random_forecast_costs_at_most_twice_the_trials_plus_two(edge, seed, first):
    chance = random.Random(seed)

    def forecast(passes, fails):
        low, high = max(1, passes), fails or NO_CAP
        return chance.choice([None, passes, high - 1, int(math.sqrt(low * high)), chance.randint(passes, high)])

    found, asked = searched(edge, first=first, forecast=forecast)

    assert found.largest_batch == edge
    assert len(asked) <= most(edge, first)
    for number, size in enumerate(asked):
        passed = [one for one in asked[:number] if one <= edge]
        assert not passed or size <= 16 * max(passed)


def asked_at_the_most(edge: int, first: int | None, cap: int = 20) -> int:
    """Return the most trials that an adversarial forecast with knowledge of the edge can cause."""
    known: dict[tuple[int, ...], int] = {}

    def left(search: _Search) -> int:
        state = (
            *(search.passes, search.fails_at, search._credit, search._forecast is None, search._guess or 0),
            *(search._passes_in_a_row, search._failures_in_a_row, search._expected),
        )
        if state not in known:
            known[state] = max(1 + left(after) if after else 0 for after in answered(search))
        return known[state]

    def answered(search: _Search):
        chosen = set()
        for size in [None, *range(search.passes, search.fails_at + 4)]:
            after = copy.copy(search)
            after._forecast = after._forecast and (lambda passes, fails, size=size: size)
            unit = after.next(linear=False)
            if (unit, after._expected) in chosen:
                continue  # many forecasts lead to the same trial
            chosen.add((unit, after._expected))
            after.failed, after._passed = search.failed.copy(), search._passed.copy()
            if unit is not None:
                after.learn(unit, None if unit <= edge else "memory")
            yield None if unit is None else after

    return left(_Search(cap, 1, useless(edge), first or 0))


@pytest.mark.parametrize("first", [None, 1, 9])
def test_worst_forecast_costs_at_most_twice_the_trials_plus_two(first):
    costs = {edge: asked_at_the_most(edge, first) for edge in (1, 2, 4, 8)}

    assert all(cost <= most(edge) for edge, cost in costs.items())
    # A guess above all of them reveals that, so the worst case is smaller for most.
    worst = [4, 7, 9] if first == 9 else [7, 11, 15]
    assert [costs[edge] for edge in (1, 2, 4)] == worst


def ahead(passes, fails):
    """Forecast three times the passed size plus 5, or one below the failed size."""
    return fails - 1 if fails else 3 * passes + 5


def from_100_down_and_then_60(passes, fails):
    return 60 if (passes, fails) == (20, None) else (fails or 101) - 1


@pytest.mark.parametrize(
    ("edge", "forecast", "options", "asked"),
    [
        # It loses its credit and waits for a step of bisection repeatedly.
        (20, from_100_down_and_then_60, {"max_batch": 100}, "1 16 100 99 95 38 27 21 18 20 60"),
        (20, lambda passes, fails: passes, {"max_batch": 100}, "1 2 3 7 23 8 9 13 22 14 18 20 21"),
        # Climbing earns credit, to be lost later.
        (20, ahead, {"max_batch": 100}, "1 8 29 28 24 22 15 21 20 65"),
        (20, ahead, {"max_batch": 30}, "1 8 29 28 24 22 15 21 20"),
        (20, lambda passes, fails: 2 * passes, {"max_batch": 100}, "1 2 4 8 24 16 23 22 18 21 20 40"),
        # Without credit it does not extend the search beyond the edge.
        (0, lambda passes, fails: 42, {"max_batch": 50, "first": 49}, "49 12 3 1"),
    ],
)
def test_forecast_is_followed_while_it_has_credit(edge, forecast, options, asked):
    assert " ".join(map(str, searched(edge, forecast=forecast, **options)[1])) == asked


@pytest.mark.parametrize(("cap", "asked"), [(39, [20, 21]), (40, [20, 21, 40]), (41, [20, 21, 40])])
def test_a_look_beyond_the_edge_goes_as_far_as_the_cap(cap, asked):
    oracle = Oracle(20)

    def forecast(passes, fails):
        return 40 if 21 in oracle.asked else 20

    find_edge(oracle, Oracle(20), granularity=1, max_batch=cap, first=20, forecast=forecast)

    assert oracle.asked == asked


def test_a_look_beyond_the_edge_earns_no_credit():
    asked = []

    def ask(batch_size):
        asked.append(batch_size)
        return None if batch_size <= 10 or 30 <= batch_size <= 37 else "memory"

    def forecast(passes, fails):
        return (fails or 101) - 1 if passes >= 30 else 30 if 11 in asked else 10

    find_edge(ask, lambda batch_size: None, granularity=1, max_batch=100, first=10, forecast=forecast)

    assert asked == [10, 11, 30, 100, 99, 95, 79, 54, 42, 36, 41, 40, 38, 37]


@given(edge=st.integers(1, 100_000))
def test_a_forecast_that_is_right_takes_the_two_trials_that_prove_it(edge):
    first = -(-edge // 16)

    assert searched(edge, first=first, forecast=right(edge))[1] == sorted({first, edge, edge + 1})


@pytest.mark.parametrize(
    ("forecast", "first"), [(right(70), [61, 71, 70]), (right(0), [61, 62]), (useless(70), [61, 244])]
)
def test_first_guess_is_tried_before_the_forecast(forecast, first):
    found, asked = searched(70, first=61, forecast=forecast)

    assert asked[: len(first)] == first
    assert found.largest_batch == 70


@given(edge=EDGES, cap=st.integers(1, 100_000), step=st.integers(1, 64), guess=st.integers(0, 10**12))
def test_no_forecast_leads_beyond_the_cap_or_off_the_granularity(edge, cap, step, guess):
    cap = max(cap, step)

    found, asked = searched(edge, granularity=step, max_batch=cap, forecast=lambda passes, fails: guess, first=61)

    assert max(asked) <= cap
    assert all(batch_size % step == 0 for batch_size in asked)
    assert found.largest_batch == min(edge, cap) // step * step


def fitted(batch_size, peak_mib, step_ms=1.0):
    return Trial(batch_size=batch_size, step_ms=step_ms, peak_reserved_bytes=peak_mib * 2**20)


def known(*trials, **fields):
    answers = {trial.batch_size: trial.failure is None for trial in trials}
    return Known(trials, answers, granularity=1, max_batch=NO_CAP, **fields)


def requesting(batch_size, sizes, *, fixed=(), complete=True):
    return Trace(
        batch_size=batch_size,
        fixed=len(fixed),
        memory_bytes=1024 * MIB,
        capped=False,
        expandable=False,
        complete=complete,
        packed=pack_events([Event("allocate", size) for size in (*fixed, *sizes)]),
    )


def test_index_limits_follow_elements_per_sample_of_tensors():
    per_sample = 56 * 56 * 64
    traces = [
        requesting(61, [7 * 61]),
        requesting(976, [976 * per_sample * 2, 976 * 1000 * 2, 12_345], fixed=[976 * 2]),
        requesting(15_026, [15_026 * 2], complete=False),
    ]

    counts = 2**31 - 1, 2**32 - 1
    assert index_limits(traces, (2,)) == sorted(most // each for each in (per_sample, 1000) for most in counts)
    assert index_limits(traces, (4,)) == sorted(most // each for each in (per_sample // 2, 500) for most in counts)
    assert index_limits(traces[2:], (2,)) == []


def test_unreadable_trace_gives_no_index_limits():
    assert index_limits([replace(requesting(976, [976]), packed=b"rubbish")], (1,)) == []


def test_line_through_allocated_memory_gives_end_once_device_is_full():
    """ResNet-50 in FSDP on an H200, in MiB: from batch 2592 on, the allocator released unused blocks."""
    seen = [(61, 2946, 3430), (244, 10749, 13530), (2592, 110968, 138822), (3083, 131919, 139326)]
    trials = [
        Trial(batch_size=size, peak_allocated_bytes=allocated * MIB, peak_reserved_bytes=reserved * MIB)
        for size, allocated, reserved in seen
    ]
    device_bytes = 143155 * MIB

    assert expected_batch(known(*trials[:2], memory_bytes=device_bytes), 244, None) == pytest.approx(2600, rel=0.02)
    assert expected_batch(known(*trials, memory_bytes=device_bytes), 3083, None) == pytest.approx(3290, rel=0.02)
    limited = known(*trials, memory_bytes=device_bytes, limit_bytes=device_bytes)
    assert expected_batch(limited, 3083, None) < expected_batch(known(*trials, memory_bytes=device_bytes), 3083, None)


def refused(size, asked, free, allocated, unused, *, allowed=""):
    """Return a trial that failed with CUDA's message, in GiB."""
    message = (
        f"OutOfMemoryError: CUDA out of memory. Tried to allocate {asked:.2f} GiB. GPU 0 has a total capacity of "
        f"139.80 GiB of which {free:.2f} GiB is free. Including non-PyTorch memory, this process has 113.92 GiB memory "
        f"in use. {allowed}Of the allocated memory {allocated:.2f} GiB is allocated by PyTorch, with 41.47 GiB "
        f"allocated in private pools (e.g., CUDA Graphs), and {unused:.2f} GiB is reserved by PyTorch but unallocated."
    )
    return Trial(batch_size=size, failure=Failure(kind="out_of_memory", message=message))


GRAPH = (
    Trial(batch_size=18859, peak_allocated_bytes=80111952896, peak_reserved_bytes=111472017408),
    Trial(batch_size=25580, peak_allocated_bytes=108575144448, peak_reserved_bytes=148050542592),
)
"""Trials of ViT-B/16 as a CUDA graph on an H200."""


def test_refused_requests_of_two_failures_give_the_end_of_memory():
    failed = refused(26628, 30.02, 25.87, 109.20, 3.99), refused(27677, 31.20, 21.74, 113.33, 3.99)

    found = expected_batch(known(*GRAPH, *failed, memory_bytes=150110000000), 25580, 26628)

    assert found == pytest.approx(26628 - 4.15 / (9.46 - 4.15) * (27677 - 26628), abs=1)


def test_refused_request_of_one_failure_gives_an_end_between_both_sides():
    failed = refused(35388, 39.89, 5.26, 99.88, 33.91)

    assert 25580 < expected_batch(known(*GRAPH, failed, memory_bytes=150110000000), 25580, 35388) < 32000


def test_allowed_memory_of_a_refused_request_is_its_end():
    fits = Trial(
        batch_size=100, peak_allocated_bytes=20 * 2**30, peak_reserved_bytes=20 * 2**30, memory_limit_bytes=2**35
    )
    failed = replace(refused(200, 4.00, 100.00, 20.00, 2.00, allowed="24.00 GiB allowed; "), memory_limit_bytes=2**35)

    assert expected_batch(known(fits, failed, limit_bytes=2**35), 100, 200) == 100 + 100 * 4 // (4 + 2)


@pytest.mark.parametrize("text", ["", "9" * 400, "1.2.3", "-1"])
def test_unreadable_amounts_of_a_refused_request_are_ignored(text):
    failed = refused(26628, 30.02, 25.87, 109.20, 3.99)
    message = failed.failure.message.replace("25.87", text)

    failed = replace(failed, failure=replace(failed.failure, message=message))
    assert expected_batch(known(*GRAPH, failed), 25580, 26628) is None


def simulated_graph(size):
    """Return the trial of a simulated model: its eager steps leave fragments, and its graph takes memory of its own."""
    asked, allocated = 0.001127 * size, 0.002823 * size
    eager_gib, graph_gib = 139.06 + 0.00479 * (size - 28158), 139.06 + 0.00506 * (size - 25808)
    if eager_gib > 139.06:
        return refused(size, asked, 139.06 - eager_gib + asked, allocated, eager_gib - asked - allocated)
    if graph_gib > 139.06:
        return refused(size, asked, 139.06 - graph_gib + asked, graph_gib - asked - 3.99, 3.99)
    peaks = {"peak_allocated_bytes": 0.003953 * size, "peak_reserved_bytes": min(137.88, 0.00605 * size)}
    return Trial(batch_size=size, **{name: int(gib * 2**30) for name, gib in peaks.items()})


def test_search_without_traces_takes_half_the_trials_by_refused_requests():
    def search(taken):
        def ask(size):
            taken.append(simulated_graph(size))
            return None if taken[-1].failure is None else "memory"

        def forecast(passes, fails):
            return expected_batch(known(*taken, memory_bytes=150110000000), passes, fails)

        return find_edge(ask, lambda size: None, granularity=1, max_batch=NO_CAP, first=64, forecast=forecast)

    taken = []
    assert search(taken).largest_batch == 25808
    assert len(taken) <= 10  # 20 by peaks of memory alone


LINE = fitted(10, 120, step_ms=10.0), fitted(20, 140, step_ms=20.0)
"""Peaks and step times that rise by 2 MiB and 1 ms per sample."""
SQUARE = tuple(fitted(size, 100 + size + size**2) for size in (4, 16, 64))


def failing(size, kind="out_of_memory"):
    return Trial(batch_size=size, failure=Failure(kind=kind, message=""))


@pytest.mark.parametrize(
    ("trials", "limits", "passes", "fails", "expected"),
    [
        ((), {"limit_bytes": 1024 * MIB}, 0, None, None),
        (LINE, {}, 20, None, None),
        (LINE, {"limit_bytes": 200 * MIB}, 20, None, 50),
        (SQUARE, {"limit_bytes": (100 + 500 + 500**2) * MIB}, 64, None, 500),
        ((fitted(1, 101), fitted(2, 102)), {"memory_bytes": 1000 * MIB}, 2, None, 900),
        ((fitted(10, 120), fitted(20, 120)), {"limit_bytes": 1024 * MIB}, 20, None, NO_CAP),
        # A step may take exactly the latency limit; from one trial it is taken to grow with the batch.
        (LINE[:1], {"most_ms": 30.0}, 10, None, 30),
        (LINE, {"limit_bytes": 1024 * MIB, "most_ms": 55.0}, 20, None, 55),
        (LINE, {"most_ms": 54.9}, 20, None, 54),
        (LINE, {"most_ms": 55.0}, 20, None, 55),
        # A third trial shows whether the line bends.
        ((fitted(1, 100, step_ms=9.0), *LINE), {"most_ms": 55.0}, 20, None, 35),
        ((fitted(1, 100, step_ms=0.5), *LINE), {"most_ms": 55.0}, 20, None, 55),
        # The earlier of both limits counts.
        (LINE, {"limit_bytes": 200 * MIB, "most_ms": 90.0}, 20, None, 50),
        (LINE, {"limit_bytes": 300 * MIB, "most_ms": 45.0}, 20, None, 45),
        # Memory is expected to end at 100, but 64 failed: beyond 20 no end is then foreseen.
        (LINE, {"limit_bytes": 300 * MIB}, 20, None, 100),
        ((*LINE, failing(64)), {"limit_bytes": 300 * MIB}, 20, 64, None),
        (LINE, {"limit_bytes": 300 * MIB}, 20, 101, 100),
        (LINE, {"limit_bytes": 130 * MIB}, 20, 40, 20),
        ((*LINE, failing(30)), {"limit_bytes": 200 * MIB}, 20, 30, None),
        ((*LINE, failing(21, "died"), failing(40, "died")), {"limit_bytes": 200 * MIB}, 20, None, None),
    ],
)
def test_expected_batch_is_where_memory_or_time_ends_unless_trials_contradict(trials, limits, passes, fails, expected):
    assert expected_batch(known(*trials, **limits), passes, fails) == expected


def traced(batch_size, per_sample_mib, device_mib, *, has_mib=None):
    """Return a trial of a model with one request; the device may have less memory than it reports."""
    peak_mib = batch_size * per_sample_mib
    fits = peak_mib <= (has_mib or device_mib)
    trace = Trace(
        batch_size=batch_size,
        fixed=0,
        memory_bytes=device_mib * MIB,
        capped=False,
        expandable=False,
        complete=fits,
        packed=pack_events([Event("outside", 0), Event("allocate" if fits else "refused", peak_mib * MIB)]),
    )
    failure = None if fits else Failure(kind="out_of_memory", message="")
    return Trial(batch_size=batch_size, peak_reserved_bytes=peak_mib * MIB, trace=trace, failure=failure)


@given(per_sample=st.integers(10, 50).map(lambda half: 2 * half), edge=st.integers(62, 3000), missing=st.integers(2, 9))
def test_refused_request_reveals_memory_missing_from_device_size(per_sample, edge, missing):
    device = (edge + 1) * per_sample + 1  # the driver cannot allocate the last MiB
    trials = [traced(61, per_sample, device)]
    assert expected_batch(known(*trials), 61, None) == edge + 1

    trials.append(traced(edge + 1, per_sample, device, has_mib=device - missing))

    assert expected_batch(known(*trials), 61, edge + 1) == edge


@given(per_sample=st.integers(10, 50).map(lambda half: 2 * half), edge=st.integers(62, 3000))
def test_forecast_for_a_whole_device_leaves_out_its_last_mib(per_sample, edge):
    trial = traced(61, per_sample, (edge + 1) * per_sample)
    limit_bytes = (edge + 1) * per_sample * MIB

    assert expected_batch(known(trial), 61, None) == edge
    assert expected_batch(known(trial, limit_bytes=limit_bytes), 61, None) == edge + 1


@given(fitting=st.sets(st.integers(1, 500)))
def test_forecast_edge_equals_bisection_edge(fitting):
    def ask(batch_size):
        return None if batch_size in fitting else "memory"

    plain = find_edge(ask, ask, granularity=1, max_batch=NO_CAP)

    assert edge_where(fitting.__contains__, granularity=1, max_batch=NO_CAP) == plain.largest_batch


def test_fitting_batch_beyond_edge_is_followed_by_the_forecast():
    """Measured for swin_t under 8 GiB on an H200: 816 fits, 817 does not, and 896 to 929 do."""
    asked = []

    def ask(batch_size):
        asked.append(batch_size)
        return None if batch_size <= 816 or 896 <= batch_size <= 929 else "memory"

    def forecast(passes, fails):
        return 929 if 817 in asked else 816

    found = find_edge(ask, lambda batch_size: None, granularity=1, max_batch=NO_CAP, first=816, forecast=forecast)

    assert asked == [816, 817, 929, 930]
    assert (found.largest_batch, found.fails_at) == (929, 930)


@given(edge=st.integers(1, 100_000), beyond=st.integers(1, 200_000))
def test_failed_look_beyond_the_edge_costs_one_trial(edge, beyond):
    oracle = Oracle(edge)

    def forecast(passes, fails):
        return edge if len(oracle.asked) < 2 else edge + beyond

    found = find_edge(oracle, Oracle(edge), granularity=1, max_batch=NO_CAP, first=edge, forecast=forecast)

    assert found.largest_batch == edge
    assert len(oracle.asked) <= 3


@given(
    fitting=st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 500)), max_size=6),
    edge=st.integers(1, 2000),
    step=st.integers(1, 4),
    most=st.integers(1, 4000),
)
def test_non_monotonic_batches_lie_on_their_sides_of_the_edge(fitting, edge, step, most):
    edge, most = edge * step, max(edge, most) * step

    def fits(size):
        return any(start <= size // step < start + width for start, width in fitting)

    around = non_monotonic_where(fits, edge, granularity=step, max_batch=most)

    assert around.fails is None or (edge / 2 < around.fails < edge and not fits(around.fails))
    assert around.fits is None or (edge < around.fits <= min(1.5 * edge, most) and fits(around.fits))
    assert all(size is None or size % step == 0 for size in around)


@given(edge=st.integers(2, 100_000), places=st.data())
def test_gap_and_second_edge_of_1_percent_are_found(edge, places):
    wide = edge // 100 + 1
    gap = places.draw(st.integers(edge // 2 + wide, max(edge // 2 + wide, edge - 2 * wide)))
    again = places.draw(st.integers(edge + 1, edge + edge // 2))

    around = non_monotonic_where(
        lambda size: (size <= edge and not gap <= size < gap + wide) or again <= size < again + wide,
        edge,
        granularity=1,
        max_batch=NO_CAP,
    )

    assert gap + wide > edge or gap <= around.fails < gap + wide
    assert again + wide > edge + edge // 2 or again <= around.fits < again + wide


@pytest.mark.parametrize("searched", SEARCHES.values(), ids=SEARCHES)
def test_forecast_matches_every_answer_of_alternating_searches(searched):
    traces = [tried.trace for tried in searched.trials]
    forecast = Forecast(traces, Memory(searched.limit_bytes, capped=True))

    assert {size for size in (*searched.fits, *searched.fails) if forecast.fits(size)} == set(searched.fits)


def test_failing_smaller_batch_is_expected_at_its_measured_place():
    """For swin_t under 8 GiB 816 fits, 817 does not, and 929 does."""
    searched = SEARCHES["swin_t fp16 8GiB"]

    assert expected_non_monotonic(known(*searched.taken(), limit_bytes=searched.limit_bytes), 929).fails == 817


def test_a_forecast_that_is_wrong_about_any_answer_expects_no_alternation():
    searched = SEARCHES["swin_t fp16 8GiB"]
    right_about_all = known(*searched.taken(), limit_bytes=searched.limit_bytes)
    wrong = right_about_all._replace(answers={**right_about_all.answers, 400: False})

    assert expected_non_monotonic(wrong, 929) == NonMonotonic(None, None)


def test_a_line_through_peaks_expects_no_alternation():
    trials = fitted(10, 120), fitted(20, 140)

    assert expected_non_monotonic(known(*trials, limit_bytes=200 * 2**20), 50) == NonMonotonic(None, None)
