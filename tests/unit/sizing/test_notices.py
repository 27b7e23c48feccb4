"""Notices of a plan: uncertainties of the record or of the request."""

from itertools import pairwise
from math import inf

import pytest
from msgspec.structs import replace
from support.records import CPU_CAN, example, row, whole

from tputfind.record.record import Failure, Notice, Record, Row
from tputfind.record.spec import Spec, own_step
from tputfind.sizing.engine.replications import Outcome
from tputfind.sizing.planner.inverse import Edge
from tputfind.sizing.planner.notices import notices
from tputfind.sizing.planner.question import read_demand

FIGURES = (
    "rate_per_s", "utilization", "late", "late_error", "mean_ms",
    "p50_ms", "p95_ms", "p99_ms", "tail_ms", "tail_low_ms", "tail_high_ms",
    "goodput_per_s", "busy", "mean_batch", "requests",
)  # fmt: skip


def record(*rows: tuple[int, int], transfer: str = "both") -> Record:
    """Return a record with this number of latencies per batch size."""
    made = example()
    return replace(
        made,
        spec=replace(made.spec, transfer=transfer),
        rows=tuple(in_three_processes(size, count) for size, count in rows),
        notices=(),
        edge=None,
    )


def in_three_processes(size: int, count: int) -> Row:
    parts = (count - 2 * (count // 3), count // 3, count // 3)
    timings = [row(size, 5.0, batches=part).timings[0] for part in parts]
    return replace(row(size, 5.0), timings=tuple(timings))


def told(one: Record, cap: int = 4, largest: int = 8, **options: object) -> list[Notice]:
    """Return the notices of a plan, except for an unmeasured cap, which has its own test."""
    return [notice for notice in every(one, cap, largest, **options) if notice.kind != "interpolated_cap"]


def outcome_of(cap: int, tail_high_ms: float = 1.0, devices: int = 1) -> Outcome:
    figures = dict.fromkeys(FIGURES, 1) | {"tail_high_ms": tail_high_ms}
    return Outcome(devices=devices, batch_cap=cap, verdict="meets", **figures)  # type: ignore[arg-type]


def every(one: Record, cap: int, largest: int, tail_high_ms: float = 1.0, **options: object) -> list[Notice]:
    outcome = outcome_of(cap, tail_high_ms)
    demand = read_demand({"rate": 5, "slo": "50ms", "overhead": "1ms", **options})
    return list(whole(list(notices(one, outcome, largest, demand))))


def test_record_of_an_own_step_may_be_of_training():
    made = record((1, 1000), (4, 1000), (8, 1000))

    assert "own_step" in [one.kind for one in told(replace(made, spec=own_step(Spec(model="net.py:step"))))]


def test_sound_record_gives_no_notices():
    assert told(record((1, 1000), (4, 1000), (8, 10))) == []


@pytest.mark.parametrize(
    ("high_ms", "seen"),
    [(1.04, []), (1.06, ["p99 lies between 1.000 and 1.060 ms"]), (inf, ["p99 lies above 1.000 ms"])],
)
def test_percentile_that_is_not_known_within_5_percent_is_reported(high_ms, seen):
    found = told(record((1, 1000), (4, 1000), (8, 10)), tail_high_ms=high_ms)

    assert [(notice.kind, notice.seen) for notice in found] == [("wide_percentile", each) for each in seen]


def test_sizes_with_fewer_latencies_than_percentile_needs_are_reported():
    """Sizes up to the cap count; larger ones do not."""
    assert told(record((1, 100), (2, 99), (4, 50), (8, 10)), cap=4) == [
        Notice(
            kind="few_latency_samples",
            seen="the slowest batches of 2, 4 may be missing",
            cause="p99 takes 100 latencies",
            advice="measure with --thorough or more --batches",
        )
    ]


def test_measured_size_above_an_interpolated_cap_counts_too():
    one = record((1, 1000), (4, 1000), (8, 50), (16, 50))
    said = Notice(kind="throttled", seen="seen", cause="cause", advice="advice", batch_sizes=(8,))

    few, throttled = told(replace(one, notices=(said,)), cap=6, largest=16)

    assert few.seen == "the slowest batches of 8 may be missing"
    assert throttled.kind == "throttled"


def test_a_record_of_one_process_leaves_open_how_processes_differ():
    one = record((1, 1000), (4, 1000), (8, 1000))
    once = replace(one, rows=tuple(row(each.batch_size, 5.0, batches=1000) for each in one.rows))

    assert [notice.kind for notice in told(once)] == ["one_process"]


def test_sizes_without_a_distribution_are_among_those_with_few_latencies():
    one = record((1, 1000), (2, 9), (4, 1000), (8, 9))

    assert [(notice.seen, notice.cause) for notice in told(one)] == [
        ("the slowest batches of 2 may be missing", "p99 takes 100 latencies; under 10, a size is left out")
    ]


@pytest.mark.parametrize(("spare", "most"), [(0, 8), (2, 6)])
def test_sensitive_number_of_devices_is_reported_with_both_percentiles(spare, most):
    outcome = outcome_of(4, devices=4)
    demand = read_demand({"rate": 5, "slo": "50ms", "percentile": 99.99, "spare": spare})

    notice = next(iter(whole(list(notices(record((1, 1000)), outcome, 8, demand, Edge(1, None, None))))))

    assert notice.seen == f"p99.989 takes {1 + spare} devices, and p99.991 more than {most}"


def test_sizes_that_failed_are_no_sizes_with_few_latencies():
    one = record((1, 1000), (2, 0))
    failed = replace(one.rows[1], failure=Failure(kind="out_of_memory", message=""))

    found = told(replace(one, rows=(one.rows[0], failed)))
    assert [notice.kind for notice in found] == ["failed_batches"]


@pytest.mark.parametrize(
    ("kind", "sizes", "is_told"),
    [
        *((kind, (1, 8), True) for kind in ("cut_short", "throttled", "wide_interval", "not_settled", "unfinished")),
        ("host_bound", (4,), True),
        ("spread", (4,), True),
        ("throttled", (8,), False),
        ("smaller_at_once", (1,), False),
    ],
)
def test_record_notices_on_sizes_in_use_are_repeated_without_sizes(kind, sizes, is_told):
    said = Notice(kind=kind, seen="seen", cause="cause", advice="advice", batch_sizes=sizes)

    found = told(replace(record((1, 1000), (4, 1000), (8, 1000)), notices=(said,)), cap=4)

    assert found == ([replace(said, batch_sizes=())] if is_told else [])


def test_cut_short_record_gives_interrupted_notice():
    assert told(replace(record((1, 1000)), finished=None)) == [
        Notice(
            kind="interrupted",
            seen="the record was cut short",
            cause="the run that made it was interrupted",
            advice="finish it with tputfind --resume",
        )
    ]


@pytest.mark.parametrize(("given", "better"), [({}, "need fewer devices"), ({"devices": 2}, "do better")])
def test_cap_at_largest_measured_batch_is_reported_if_several_devices_fill_it(given, better):
    asked = read_demand({"rate": 5, "slo": "50ms", "overhead": "1ms", **given})
    measured = record((1, 1000), (8, 1000))

    def find(devices: int, **more: bool) -> list[str]:
        found = notices(measured, outcome_of(8, devices=devices), 8, asked, **more)
        return [notice.seen for notice in found if notice.kind == "largest_measured"]

    assert find(2) == [f"a larger maximum batch size than 8 may {better}"]
    assert find(2, fills=False) == []
    assert bool(find(1)) == bool(given)


@pytest.mark.parametrize(
    ("rows", "limited_by", "given", "advice"),
    [
        ([(1, 1000), (8, 1000), (16, 7)], "memory", {}, ["measure batch 16 with --thorough or more --batches"]),
        ([(1, 1000), (8, 1000)], "cap", {}, ["measure larger batches"]),
        ([(1, 1000), (8, 1000)], "memory", {}, []),
        ([(1, 1000), (8, 1000)], "cap", {"max_batch_size": 8}, []),
    ],
)
def test_larger_batches_are_advised_unless_there_are_none(rows, limited_by, given, advice):
    demand = read_demand({"rate": 5, "slo": "50ms", "overhead": "1ms", **given})
    edge = replace(example().edge, largest_batch=max(rows)[0], limited_by=limited_by)
    measured = replace(record(*rows), edge=edge)

    found = notices(measured, outcome_of(8, devices=2), 8, demand)
    assert [notice.advice for notice in found if notice.kind == "largest_measured"] == advice


def test_batch_size_that_failed_below_the_cap_is_reported():
    measured = record((1, 1000), (4, 1000), (8, 1000))
    failed = replace(measured.rows[1], failure=Failure(kind="wrong_output", message="differs"))
    measured = replace(measured, rows=(measured.rows[0], failed, measured.rows[2]))

    (notice,) = told(measured, cap=8)
    assert notice.seen == "batch 4 failed when measured, and the server makes such batches"
    assert told(measured, cap=1) == []


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"mode": "cudagraph"}, "cudagraph prepares each alone"),
        ({"granularity": 2}, "the model takes multiples of 2"),
    ],
)
def test_padding_to_measured_batch_sizes_is_reported(fields, cause):
    measured = record((1, 1000), (4, 1000), (8, 1000))
    padded = replace(measured, spec=replace(measured.spec, **fields))

    assert [notice.cause for notice in every(padded, 6, 8)] == [cause]
    assert every(padded, 1, 8) == []


def test_short_log_of_arrivals_is_reported():
    measured = record((1, 1000), (4, 1000), (8, 10))
    (notice,) = told(measured, gaps=(0.2,) * 998)

    assert (notice.kind, notice.advice) == ("few_arrivals", "record 1000 requests or more")
    assert told(measured, gaps=(0.2,) * 999) == []


def test_times_since_1970_are_known_to_be_rounded():
    times = [1.76e9 + round(number / 5000, 3) for number in range(2000)]
    gaps = (*(late - early for early, late in pairwise(times)), 0.05)

    (notice,) = (
        each for each in told(record((1, 1000), (4, 1000), (8, 10)), gaps=gaps, slo="5ms") if "coarse" in each.kind
    )
    assert notice.seen.endswith("in steps of 0.001 s")


def test_cap_between_measured_sizes_is_reported():
    one = record((1, 1000), (4, 1000), (8, 1000))

    (between,) = every(one, 6, 8)
    assert (between.kind, between.seen) == (
        "interpolated_cap",
        "the times of the maximum batch size, 6, are interpolated",
    )
    assert between.advice == "measure it: --batch-sizes 6"
    assert every(one, 4, 8) == []


def test_times_without_copies_are_reported_except_on_the_host():
    one = record((1, 1000), transfer="none")

    assert told(one) == [
        Notice(
            kind="copies",
            seen="batch times are without copies to and from the device",
            cause="the record has no --transfer",
            advice="measure with --transfer both, or give --observed",
        )
    ]
    on_host = replace(one.environment, device="cpu", can=CPU_CAN)
    assert told(replace(one, environment=on_host)) == []


def test_figures_without_an_overhead_say_so_with_the_presets():
    (notice,) = told(record((1, 1000)), overhead=0)

    assert notice.kind == "no_overhead"
    assert notice.seen.endswith("such as 0.52 ms a batch and 0.042 to 0.14 ms a request")
    assert notice.advice == "give --overhead or --observed"


@pytest.mark.parametrize("given", [{"batcher": "ray"}, {"max_ongoing": 5}])
def test_limit_on_ongoing_requests_is_reported_with_twice_the_batch(given):
    (notice,) = told(record((1, 1000)), cap=5, **given)

    assert (notice.kind, notice.seen) == (
        "few_ongoing",
        "a replica takes 5 requests at a time, and no larger batch",
    )
    assert "set it to 10 or more" in notice.advice
    assert told(record((1, 1000)), cap=2, **given) == []


def test_recorded_times_that_are_rounded_to_seconds_are_reported():
    measured = record((1, 1000), (4, 1000), (8, 10))
    rounded = ((0.0,) * 199 + (1.0,)) * 5

    seen = {notice.kind: notice.seen for notice in told(measured, gaps=rounded)}
    exact = {notice.kind for notice in told(measured, gaps=(0.005,) * 999)}

    assert seen["coarse_arrivals"] == "most recorded times coincide, in steps of 1 s"
    assert "coarse_arrivals" not in exact


@pytest.mark.parametrize(
    ("seconds", "factor", "peak", "advice"),
    [
        (0.5, "2.5", "0.4 s, and queues absorb it", "merge"),
        (0.1, "0.5", "2 s, and queues grow", "thin"),
    ],
)
def test_replay_at_other_rate_reports_length_of_peaks(seconds, factor, peak, advice):
    (notice,) = told(record((1, 1000), (4, 1000), (8, 10)), gaps=(seconds,) * 999)

    assert (notice.kind, notice.seen) == ("arrivals_scaled", f"recorded requests are replayed {factor} times as fast")
    assert notice.cause == f"a peak of a second lasts {peak}"
    assert advice in notice.advice


@pytest.mark.parametrize("seconds", [0.161, 0.2, 0.249])
def test_replay_at_about_the_recorded_rate_gives_no_notice(seconds):
    assert told(record((1, 1000), (4, 1000), (8, 10)), gaps=(seconds,) * 999) == []
