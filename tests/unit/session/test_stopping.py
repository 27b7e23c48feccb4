"""End of the timing of a row, and the rows timed next."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tputfind.analysis.answers import throughput_interval
from tputfind.record.record import Compiled, Edge, Failure, Row, Timing, merge_rows
from tputfind.record.spec import MOST_PROCESSES, PROCESSES, Spec
from tputfind.session import stopping

DEFAULT = Spec(model="m")
NARROW = Spec(model="m", max_noise=0.03)
EVERY_ROW = Spec(model="m", processes=3)
paces = st.floats(0.01, 100.0)


def process(step_ms: float, batches: int = 5, *, seconds: float = 0.5, enqueue_share: float | None = None) -> Row:
    """Return a row of one process; with ``enqueue_share`` its device is a GPU."""
    enqueue_ms = () if enqueue_share is None else (enqueue_share * step_ms,)
    timing = Timing(device_ms=(step_ms,) * batches, latency_ms=(step_ms,), enqueue_ms=enqueue_ms, ended_by="full")
    return Row(batch_size=4, timings=(timing,), seconds=seconds)


def row_of(*processes: Row, batch_size: int = 4) -> Row:
    whole, *others = processes
    for other in others:
        whole = merge_rows(whole, other)
    return replace(whole, batch_size=batch_size)


@given(
    st.lists(paces, min_size=PROCESSES, max_size=PROCESSES),
    st.floats(0.001, 20.0),
    st.floats(0.0, 1.0) | st.none(),
    st.sampled_from([{}, {"slo_ms": 50.0}, {"batch_sizes": (4,)}, {"thorough": True}]),
)
def test_row_ends_after_three_processes_at_most(steps_ms, seconds, share, asked):
    made = [process(step_ms, seconds=seconds, enqueue_share=share) for step_ms in steps_ms]
    spec = replace(DEFAULT, **asked)

    assert stopping.ended_by(spec, made[0]) is None
    assert stopping.ended_by(spec, row_of(*made[:2])) in (None, "alike")
    assert stopping.ended_by(spec, row_of(*made)) == "full"


@given(st.lists(paces, min_size=MOST_PROCESSES, max_size=MOST_PROCESSES), st.floats(0.001, 20.0))
def test_row_with_max_noise_ends_within_its_seconds(steps_ms, seconds):
    row = process(steps_ms[0], seconds=seconds)
    for step_ms in steps_ms[1:]:
        if stopping.ended_by(NARROW, row) is not None:
            break
        row = merge_rows(row, process(step_ms, seconds=seconds))

    assert stopping.ended_by(NARROW, row) in ("known", "time")
    assert len(row.timings) >= 3
    assert row.seconds < stopping.row_seconds(NARROW) + max(seconds, 3 * seconds)


@given(st.lists(st.floats(0.9, 1.1), min_size=3, max_size=8))
def test_row_is_known_if_its_interval_is_within_max_noise(shares):
    row = row_of(*(process(10 * share) for share in shares))

    assert (stopping.ended_by(NARROW, row) == "known") == (throughput_interval(row).half_width <= NARROW.max_noise)


def test_row_takes_the_requested_number_of_processes():
    five, alone = (replace(DEFAULT, processes=processes) for processes in (5, 1))
    narrow = replace(five, max_noise=0.03)

    assert [stopping.ended_by(five, row_of(*[process(10.0)] * count)) for count in (3, 4, 5)] == [None, None, "full"]
    assert [stopping.ended_by(narrow, row_of(*[process(10.0)] * count)) for count in (3, 4, 5)] == [None, None, "known"]
    assert stopping.ended_by(alone, row_of(process(10.0, 2))) == "full"


def on_card(step_ms, batches=2, enqueue_share=0.1):
    return process(step_ms, batches, seconds=2.5, enqueue_share=enqueue_share)


def test_two_processes_suffice_if_not_host_bound_and_within_half_a_percent():
    alike, apart = (row_of(on_card(10.0), on_card(other)) for other in (10.045, 10.055))

    assert stopping.ended_by(DEFAULT, row_of(on_card(10.0))) is None
    assert stopping.ended_by(DEFAULT, alike) == "alike"
    assert throughput_interval(alike).half_width > stopping.ALIKE
    assert stopping.ended_by(DEFAULT, apart) is None
    for share in (0.9, None):  # the host sets the pace, or nobody knows what does
        assert stopping.ended_by(DEFAULT, row_of(*[on_card(10.0, enqueue_share=share)] * 2)) is None


EXACT = [{"processes": 3}, {"batches": 6}, {"thorough": True}, {"max_noise": 0.01}, {"batch_sizes": (4,)}]


@pytest.mark.parametrize("asked", [*EXACT, {"slo_ms": 50.0}], ids=str)
def test_two_processes_do_not_suffice_under_exact_options_or_slo(asked):
    row = row_of(on_card(10.0, batches=30), on_card(10.005, batches=30))

    assert stopping.ended_by(replace(DEFAULT, **asked), row) is None


def test_row_continues_within_its_seconds_only_with_max_noise():
    wide = [process(step_ms, 100, seconds=1.1) for step_ms in (10, 20, 15)]

    assert stopping.ended_by(DEFAULT, row_of(*wide)) == "full"
    assert stopping.ended_by(NARROW, row_of(*wide)) is None
    assert stopping.ended_by(NARROW, row_of(*wide, process(12, seconds=0.9))) == "time"
    longer = replace(NARROW, max_seconds=7.0)
    assert stopping.ended_by(longer, row_of(*wide, process(12, seconds=0.9))) is None


def test_fixed_number_of_batches_is_timed_once_or_ended_by_time():
    asked = replace(DEFAULT, batches=9)
    cut = replace(process(20.0).timings[0], ended_by="time")

    assert stopping.ended_by(asked, row_of(process(10), process(20), process(30))) == "full"
    assert stopping.ended_by(asked, row_of(process(10), Row(batch_size=4, timings=(cut,)), process(30))) == "time"
    assert stopping.ended_by(replace(DEFAULT, thorough=True), row_of(*[process(10)] * 3)) == "full"


def test_first_compilation_does_not_count_against_row_seconds():
    def compiled(step_ms, seconds):
        row = process(step_ms, seconds=seconds + 0.5)
        timing = replace(row.timings[0], compiled=Compiled(seconds=seconds, graphs=1))
        return replace(row, timings=(timing,))

    assert stopping.ended_by(NARROW, row_of(compiled(10, 30.0), compiled(20, 0.4), compiled(15, 0.4))) is None
    assert stopping.ended_by(NARROW, row_of(compiled(10, 30.0), compiled(20, 3.0), compiled(15, 3.0))) == "time"


def test_a_row_that_failed_takes_no_further_process():
    row = Row(batch_size=4, failure=Failure(kind="died", message="it died"))

    assert stopping.ended_by(DEFAULT, row) is None
    assert not stopping.wants_more(DEFAULT, row)
    assert stopping.next_round(DEFAULT, [row], [4], None) == (0, [])


@given(st.integers(1, 10), st.integers(1, 1000) | st.none(), st.booleans())
def test_processes_of_a_row_divide_its_batches_and_seconds(processes, batches, thorough):
    spec = Spec(model="m", processes=processes, batches=batches, thorough=thorough and batches is None)
    plans = [stopping.process_plan(spec, number) for number in range(processes)]

    assert sum(each.max_seconds for each in plans) == pytest.approx(stopping.row_seconds(spec))
    assert all(each.batches >= each.least_batches >= 1 for each in plans)
    if batches is not None:
        assert sum(each.batches for each in plans) == max(batches, processes)
        assert {each.window_s for each in plans} == {0.0}
    elif spec.thorough:
        assert sum(each.batches for each in plans) == 100
        assert sum(each.window_s for each in plans) == pytest.approx(3.0)
    else:
        assert sum(each.window_s for each in plans) == pytest.approx(1.0)
        assert 6 <= sum(each.batches for each in plans) < 6 + processes
        assert not any(each.every_latency for each in plans)


def test_a_percentile_that_a_target_is_set_for_takes_all_its_latencies():
    spec = Spec(model="m", slo_ms=10.0, percentile=99.9)

    assert sum(stopping.process_plan(spec, number).latency_batches for number in range(3)) == 1000
    assert stopping.process_plan(spec, 0).every_latency


def rows_of(**counts: int) -> list[Row]:
    """Return rows by batch size with this number of processes each, at noisy rates, the best at 8, the knee at 4."""
    rates = {1: 10.0, 2: 20.0, 4: 39.0, 8: 40.0, 16: 30.0, 32: 20.0}
    return [
        row_of(
            *(process(1000 * size / rates[size] * (1 + 0.2 * number), 1) for number in range(counts[f"b{size}"])),
            batch_size=size,
        )
        for size in rates
        if counts.get(f"b{size}")
    ]


def test_all_rows_take_their_turn_before_any_is_timed_again():
    sizes = [1, 2, 4, 8]

    assert stopping.next_round(EVERY_ROW, [], sizes, None) == (0, sizes)
    assert stopping.next_round(EVERY_ROW, rows_of(b8=1), sizes, None) == (0, [1, 2, 4])
    assert stopping.next_round(EVERY_ROW, rows_of(b1=1, b2=1, b4=1, b8=1), sizes, None) == (1, sizes)
    assert stopping.next_round(EVERY_ROW, rows_of(b1=2, b2=1, b4=2, b8=1), sizes, None) == (1, [2, 8])
    assert stopping.next_round(DEFAULT, rows_of(b8=1), sizes, None) == (0, [1, 2, 4])


@pytest.mark.parametrize("budget_s", [None, 60.0])
def test_only_rows_that_answers_rest_on_are_timed_again(budget_s):
    asked = replace(DEFAULT, budget_s=budget_s)
    sizes = [1, 2, 4, 8, 16, 32]
    edge = Edge(largest_batch=32, limited_by="memory", fails_at=33)
    once = rows_of(b1=1, b2=1, b4=1, b8=1, b16=1, b32=1)

    assert stopping.next_round(asked, once[:3], sizes, edge) == (0, [8, 16, 32])
    assert stopping.next_round(asked, once, sizes, edge) == (1, [4, 8, 16])
    full = [
        row_of(*[process(1000 * row.batch_size / row.samples_per_s)] * 3, batch_size=row.batch_size) for row in once
    ]
    rows = [*once[:2], *full[2:5], once[5]]
    assert stopping.next_round(asked, rows, sizes, edge) == (0, [])
    ends = ["beside", "beside", None, None, None, "beside"]  # the other rows already had their end
    assert [row.ended_by for row in stopping.end_rows(asked, rows, edge)] == ends


@pytest.mark.parametrize("asked", EXACT, ids=str)
def test_all_rows_are_timed_again_if_an_option_is_exact(asked):
    once = rows_of(b1=1, b2=1, b4=1, b8=1)

    assert stopping.next_round(replace(DEFAULT, **asked), once, [1, 2, 4, 8], None) == (1, [1, 2, 4, 8])


def card_rows(rates, enqueue_share=0.1):
    """Return rows of powers of two, timed once each at these throughputs."""
    made = [process(1000 * 2**place / rate, enqueue_share=enqueue_share) for place, rate in enumerate(rates)]
    return [row_of(one, batch_size=2**place) for place, one in enumerate(made)]


def test_contenders_are_rows_possibly_misjudged_by_one_process():
    rates = [50.0, 92.0, 94.0, 96.0, 98.5, 100.0, 99.0, 90.0]

    assert stopping.contenders(DEFAULT, card_rows(rates), None) == {4, 8, 16, 32, 64}
    assert stopping.contenders(DEFAULT, card_rows(rates, 0.9), None) == {2, 4, 8, 16, 32, 64}
    assert stopping.contenders(DEFAULT, card_rows([10.0, 96.0, 99.6, 99.7, 100.0]), None) == {2, 8, 16}
    edge = Edge(largest_batch=64, limited_by="memory", fails_at=65)
    assert stopping.contenders(DEFAULT, card_rows(rates[:7]), edge) == {4, 8, 16, 32}
    assert stopping.contenders(DEFAULT, card_rows([*rates[:6], 110.0]), edge) == {64}
    assert stopping.contenders(DEFAULT, [Row(batch_size=1)], None) == set()


def test_contenders_under_slo_include_possible_batches_to_deploy():
    once = card_rows([10.0, 18.0, 32.0, 56.0, 80.0])  # step times of 100, 111, 125, 143 and 200 ms
    rows = [with_latencies(row, row.latency_ms * 3) for row in once]
    asked = replace(DEFAULT, slo_ms=130.0)

    assert stopping.contenders(DEFAULT, rows, None) == {16}
    assert stopping.contenders(asked, rows, None) == {4, 16}
    unsure = [*rows[:2], with_latencies(rows[2], [125.0, 126.0, 131.0]), *rows[3:]]
    assert stopping.contenders(asked, unsure, None) == {2, 4, 16}


def with_latencies(row, latency_ms):
    return replace(row, timings=(replace(row.timings[0], latency_ms=tuple(latency_ms)),))


@given(
    st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(0.0, 0.03)), min_size=1, max_size=6),
    st.floats(0.3, 3.0),
    st.sampled_from([0.1, 0.9, None]),
    st.sampled_from([{}, {"budget_s": 60.0}, {"slo_ms": 20.0}, *EXACT]),
    st.integers(0, 999),
)
@settings(max_examples=100)
def test_rounds_end_with_as_many_processes_as_the_answers_need(rows_made, seconds, share, asked, seed):
    """Each row has its own throughput and noise, and may fail in any of its processes."""
    rng = random.Random(seed)
    sizes = [2**number for number in range(len(rows_made))]
    spec = replace(DEFAULT, **{**asked, **({"batch_sizes": tuple(sizes)} if "batch_sizes" in asked else {})})
    edge = Edge(largest_batch=sizes[-1], limited_by="memory", fails_at=sizes[-1] + 1)
    rows: dict[int, Row] = {}
    decided: set[int] = set()
    for _ in range(MOST_PROCESSES * len(sizes) + 1):
        in_order = [rows[size] for size in sorted(rows)]
        number, wanted = stopping.next_round(spec, in_order, sizes, edge)
        if not wanted:
            break
        assert {len(rows[size].timings) if size in rows else 0 for size in wanted} == {number}
        assert number or set(wanted) == set(sizes) - set(rows)
        if number:
            decided |= set(wanted)
            assert set(wanted) <= stopping.deciding(spec, in_order, edge)
        for size in wanted:
            rate, noise = rows_made[sizes.index(size)]
            made = process(1000 * size / rate * rng.gauss(1, noise), seconds=seconds, enqueue_share=share)
            if rng.random() < 0.05:
                made = Row(batch_size=4, failure=Failure(kind="died", message="it died"))
            made = replace(made, batch_size=size)
            rows[size] = merge_rows(rows[size], made) if size in rows else made

    assert not wanted
    assert sorted(rows) == sizes
    deciding = stopping.deciding(spec, in_order, edge)
    for row in stopping.end_rows(spec, in_order, edge):
        if row.failure is None:
            assert (len(row.timings) == 1) is (row.batch_size not in decided)
            assert row.batch_size not in deciding or len(row.timings) >= (3 if stopping.is_exact(spec) else 2)
            assert row.batch_size in decided or row.ended_by == "beside"
            assert spec.max_noise is not None or len(row.timings) <= 3
