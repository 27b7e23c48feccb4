"""An answer based on uncertain or unfinished figures looks different from a certain one."""

import pytest
from msgspec.structs import replace
from support.records import example
from support.shown import frame, report_of

from tputfind.analysis import notices
from tputfind.record.record import Edge, Record, Row, Timing, Trial
from tputfind.report import text
from tputfind.report.views import page

PACES_MS = {2: 1.0, 8: 3.8}
"""Step times of batch 2, and of batch 8, which is the fastest."""


def measured(factors: tuple[float, ...], **asked: object) -> Record:
    """Return a record of two rows, timed in one process per factor, slowed by that factor."""
    rows = [
        Row(
            batch_size=size,
            timings=tuple(
                Timing(device_ms=(pace_ms * factor, pace_ms * factor * 1.001) * 20, latency_ms=(pace_ms * factor,) * 40)
                for factor in factors
            ),
        )
        for size, pace_ms in PACES_MS.items()
    ]
    spec = replace(example().spec, **{"slo_ms": None, "processes": 3, **asked})
    return replace(example(), safe=None, spec=spec, rows=tuple(rows), notices=())


QUIET, NOISY, WILD = (1.0, 1.01, 0.99), (1.0, 1.3, 1.1), (1.0, 2.0, 1.2)


def deploy(record: Record) -> str:
    return dict(text.summary(record))["Deploy"]


@pytest.mark.parametrize(("ms", "words"), [(0.08, "took 0.00008000 s"), (1.234e6, "took 20 min 34 s")])
def test_step_time_that_limits_the_search_has_no_exponent(ms, words):
    edge = Edge(largest_batch=1894, limited_by="latency", fails_at=1978)
    record = replace(measured(QUIET), edge=edge, trials=(Trial(batch_size=1978, step_ms=ms),))

    assert f"batch 1978 {words};" in largest(record)


def test_slo_in_the_batch_to_deploy_has_no_exponent():
    assert " within --slo 1000000 ms" in deploy(measured(QUIET, slo_ms=1e6))


def test_batch_with_precise_rate_is_named_without_doubt():
    assert deploy(measured(QUIET)).startswith("batch 2: ")
    assert "known to within" not in dict(text.summary(measured(QUIET)))["Fastest batch"]


def test_batch_to_deploy_is_provisional_if_rates_scatter_by_a_quarter():
    record = measured(NOISY)

    assert deploy(record).startswith("provisional, rates scatter by ")
    assert "of the throughput of batch 8" in deploy(record)
    assert ", known to within " in dict(text.summary(record))["Fastest batch"]


def test_batch_to_deploy_is_not_known_if_rates_scatter_by_half():
    record = measured(WILD)

    assert deploy(record).startswith("not known, rates scatter by ")
    assert "best guess batch 2: ~1000 samples/s" in deploy(record)
    assert "of the throughput of batch 8" not in deploy(record)
    assert dict(text.summary(record))["Fastest batch"].startswith("8, ~2000 samples/s, known to within ")
    (group,) = page.groups([record])
    assert next(tile.note for tile in group.sections[0].tiles if tile.label == "Batch to deploy").startswith(
        "not known, rates"
    )


def test_lone_timed_batch_is_not_called_the_fastest():
    both = measured(QUIET)
    lone = replace(both, rows=both.rows[1:])

    assert "the fastest" in deploy(measured(QUIET, slo_ms=100.0))
    assert "the fastest" not in deploy(lone)
    assert "samples/s, the only one timed, " in deploy(lone)
    assert dict(text.summary(lone))["Fastest batch"].endswith(" samples/s, the only one timed")


def test_cut_short_run_is_provisional_and_has_no_intervals():
    cut, whole = measured(QUIET[:1]), measured(QUIET)

    assert deploy(cut).startswith("provisional, timed in 1 of 3 processes; batch 2: ")
    columns = ["samples_per_s_ci_low", "samples_per_s_ci_high", "latency_ms_p50_ci_low", "latency_ms_p50_ci_high"]
    assert frame([cut])[columns].isna().all(axis=None)
    assert frame([whole])[columns].notna().all(axis=None)
    assert deploy(measured(QUIET[:1], processes=1)).startswith("batch 2: ")


def test_a_larger_batch_that_may_be_faster_makes_the_fastest_provisional():
    record = measured(QUIET)
    slow = replace(record.rows[-1], batch_size=16)
    stalled = replace(
        slow, timings=tuple(Timing(device_ms=(ms,) * 20, latency_ms=(ms,) * 40) for ms in (7.6, 7.5, 25.0))
    )
    sure = replace(
        slow, timings=tuple(Timing(device_ms=(ms,) * 20, latency_ms=(ms,) * 40) for ms in (16.0, 16.1, 15.9))
    )

    def deployed(*more):
        return deploy(replace(record, rows=(*record.rows, *more)))

    assert deployed(stalled).startswith("provisional, batch 16 may be faster; batch 2: ")
    assert deployed(sure).startswith("batch 2: ")
    smaller = replace(stalled, batch_size=1)
    assert deploy(replace(record, rows=(smaller, *record.rows))).startswith("batch 2: ")


def test_no_batch_meets_slo_if_half_of_answers_are_late():
    late, unknown = (measured(QUIET[:2], processes=2, slo_ms=slo_ms) for slo_ms in (0.5, 3.0))

    assert deploy(late) == "no batch has p99 within --slo 0.5 ms"
    assert "few_latency_samples" not in [notice.kind for notice in notices.of(late)]
    assert deploy(unknown) == "no batch is known to have p99 within --slo 3 ms"
    assert "few_latency_samples" in [notice.kind for notice in notices.of(unknown)]


def test_row_ended_as_known_is_not_provisional():
    short = measured(QUIET[:2])
    known = [replace(row, ended_by="known") for row in short.rows]

    assert deploy(short).startswith("provisional, timed in 2 of 3 processes; batch 2: ")
    assert deploy(replace(short, rows=tuple(known))).startswith("batch 2: ")


@pytest.mark.parametrize("factors", [QUIET, NOISY, WILD, QUIET[:1]])
def test_a_terminal_of_ascii_shows_all_of_it(factors):
    report_of([measured(factors)], 80, "ascii")


def largest(record: Record) -> str:
    return dict(text.summary(record))["Largest batch"]


def test_largest_batch_limited_by_time_is_approximate_and_names_step_time():
    edge = Edge(largest_batch=1894, limited_by="latency", fails_at=1978)
    trial = Trial(batch_size=1978, step_ms=1012.3)
    record = replace(measured(QUIET), edge=edge, trials=(trial,))

    assert largest(record) == (
        "about 1894, limited by --max-latency: batch 1978 took 1.012 s; --max-latency none searches to the end of "
        "memory; not yet timed in full"
    )
    beside = replace(record, edge=replace(edge, fails_at=1895))
    assert largest(beside).startswith("1894, limited by --max-latency: batch 1895 took longer")
    ended = replace(record, edge=replace(edge, closed=False))
    assert largest(ended).startswith("between 1894 and 1977, limited by --max-latency: batch 1978 took 1.012 s")


def test_batch_that_misses_the_slo_casts_no_doubt_on_the_one_that_meets_it():
    quiet, wild = (measured(factors, slo_ms=2.0, percentile=50) for factors in (QUIET, WILD))
    both = replace(quiet, rows=(quiet.rows[0], wild.rows[1]))

    assert deploy(both).startswith("batch 2: ")


def test_unknown_percentile_of_a_faster_batch_asks_for_more_seconds():
    record = measured(QUIET, slo_ms=100.0)
    rows = tuple(
        replace(row, timings=tuple(replace(one, latency_ms=one.latency_ms[:1] * count) for one in row.timings))
        for row, count in zip(record.rows, (100, 20), strict=True)
    )
    found = deploy(replace(record, rows=rows))

    assert "a faster batch may meet the SLO, but its p99 is unknown" in found
    assert "--max-seconds" in found


def test_code_says_why_its_batch_is_not_the_fastest():
    record = measured(QUIET)
    first, *_ = text.code([record])

    assert first.startswith("# batch size 2, the one to deploy: 9")
    assert first.endswith("% of the throughput of batch 8")
