"""The power of fleets and the energy of samples, from the power readings of rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.folders import record_paths
from support.records import HEALTH, example, row

from tputfind.analysis.answers import health
from tputfind.record.files import load_records
from tputfind.record.identity import name_of
from tputfind.record.record import Failure, Record
from tputfind.report.views import size, size_answers
from tputfind.sizing.engine.events import Routing
from tputfind.sizing.engine.replications import Effort, Fleet, Goal, Simulated, simulate
from tputfind.sizing.engine.servers import Server
from tputfind.sizing.engine.service_times import Overheads, ServiceTimes
from tputfind.sizing.engine.serving import Kind
from tputfind.sizing.planner.costs import Batch, Computing, Energy, Power, energy_of, power_of
from tputfind.sizing.planner.plan import plan
from tputfind.sizing.planner.question import Demand, read_demand

METERED = Power({1: Batch(1.0, 5.0), 4: Batch(4.0, 8.0), 16: Batch(13.0, 20.0)})
"""200 W with batches of 1, 500 W with 4, 650 W with 16."""
LINE = ServiceTimes({1: [5.0], 4: [8.0], 16: [20.0]})


def ran(devices: int, cap: int, rate_per_s: float, service: ServiceTimes = LINE, **server: object) -> Simulated:
    fleet = Fleet([Kind(devices, cap, service)], rate_per_s, Server(**server))  # type: ignore[arg-type]
    return simulate(fleet, Goal(1000.0, 99.0), Effort(40_000, 400_000), (0,))


def computing(one: Simulated) -> Computing:
    return METERED.computing(one.sizes[0], one.lasts_ms)


@given(st.integers(1, 16))
def test_energy_and_time_are_interpolated_between_metered_sizes(size):
    batch = METERED.of(size)

    assert batch.energy_j == pytest.approx(np.interp(size, [1, 4, 16], [1.0, 4.0, 13.0]))
    assert batch.span_ms == pytest.approx(np.interp(size, [1, 4, 16], [5.0, 8.0, 20.0]))
    assert METERED.least_w <= batch.power_w <= 650


def test_computing_is_none_beyond_the_largest_metered_size():
    assert METERED.computing({17: 1}, 100.0) is None
    assert METERED.computing({16: 1}, 100.0) == Computing(share=0.2, power_w=650.0)


def test_below_the_smallest_metered_a_batch_takes_as_much_as_that():
    assert Power({4: Batch(4.0, 8.0)}).of(1) == Batch(4.0, 8.0)


def test_saturated_device_draws_power_of_full_batches():
    found = computing(ran(3, 16, 2390.0))

    assert found.share == pytest.approx(1.0, abs=0.01)
    assert found.power_w == pytest.approx(650, rel=0.02)


@pytest.mark.parametrize("routing", ["shared", "random", "least-loaded", "two-choices"])
def test_batches_of_one_compute_for_their_fraction_at_their_power(routing: Routing):
    """Each device gets 100 requests per second of 5 ms each."""
    found = computing(ran(4, 1, 400.0, routing=routing))

    assert found.share == pytest.approx(0.5, rel=0.02)
    assert found.power_w == pytest.approx(200)


def test_while_the_server_adds_its_own_time_the_device_does_not_compute():
    one = ran(1, 1, 50.0, ServiceTimes({1: [5.0]}, Overheads(5.0)))

    assert one.outcome.busy == pytest.approx(0.5, rel=0.02)
    assert computing(one).share == pytest.approx(0.25, rel=0.02)


def energy(one: Simulated, power: Power = METERED) -> Energy:
    return energy_of(power, one, 1.0)


def test_power_is_bounded_by_idle_power_of_zero_or_row_minimum():
    found = energy(ran(2, 1, 200.0))

    assert found.low_w == pytest.approx(2 * found.computing.share * 200)
    assert found.high_w == pytest.approx(2 * 200)


def test_a_million_samples_take_the_power_over_the_rate():
    """400 W at 200 samples per second are 2 J a sample: 0.556 kWh per million."""
    assert energy(ran(2, 1, 200.0)).kwh_per_million_high == pytest.approx(2 / 3.6)


def test_requests_that_are_refused_are_no_samples_of_a_million():
    """Two devices answer 400 of 800 requests per second, at full power: 1 J a sample."""
    assert energy(ran(2, 1, 800.0, limit=20)).kwh_per_million_high == pytest.approx(1 / 3.6, rel=0.01)


def test_best_batch_by_energy_may_differ_from_best_by_rate():
    found = energy(ran(1, 1, 10.0), Power({8: Batch(4.0, 10.0), 16: Batch(9.0, 15.0)}))

    assert (found.best_by_energy.batch_size, found.best_by_rate.batch_size) == (8, 16)
    assert found.best_by_energy.kwh_per_million == pytest.approx(0.5 / 3.6)


def test_padded_batch_takes_the_energy_and_time_of_the_next_larger():
    power = Power({8: Batch(4.0, 10.0), 16: Batch(9.0, 15.0)}, padded=True)

    assert [power.of(size) for size in (1, 8, 9, 16)] == [(4.0, 10.0)] * 2 + [(9.0, 15.0)] * 2


def test_a_queue_that_grows_or_a_record_without_power_has_no_energy():
    assert energy_of(METERED, ran(1, 1, 300.0), 1.0) is None
    assert energy_of(None, ran(1, 1, 30.0), 1.0) is None


METERED_PATHS = [path for kind in ("kinds", "recipes") for path in record_paths(f"nvidia-h200/{kind}/*.json")]
METERED_RECORDS = [record for path in METERED_PATHS for record in load_records(path) if not record.spec.has_instances]


@pytest.mark.parametrize("record", METERED_RECORDS[::4], ids=lambda record: name_of(record.spec))
def test_energy_per_sample_matches_the_table_of_its_record(record):
    power = power_of(record)

    told = [one for one in record.rows if one.failure is None]
    assert sorted(power.measured) == [one.batch_size for one in told]
    for one in told:
        seen = health(one)
        mj = 1000 * power.of(one.batch_size).energy_j / one.batch_size
        assert mj == pytest.approx(seen.energy_mj_per_sample)


def without_power(record: Record) -> Record:
    dark = replace(HEALTH, power_w=None)
    rows = [replace(one, timings=tuple(replace(timing, health=dark) for timing in one.timings)) for one in record.rows]
    return replace(record, rows=tuple(rows))


def rows_of(*sizes: int) -> Record:
    return replace(example(), rows=tuple(row(size, 4.0 + 0.25 * size) for size in sizes), notices=())


def wanted(**more: object) -> Demand:
    return read_demand({"rate": 1500, "slo": 50.0, **more})


def test_plan_shows_its_power_and_energy():
    found = plan(rows_of(1, 4, 16), wanted())

    words = dict([*size_answers.summary(found), *size_answers.details(found)])
    assert [label for label in words if label in ("Power", "Energy")] == ["Power", "Energy"]
    assert "computing takes 400 W a device" in words["Power"]
    assert "batches of 16, the best by energy and by rate" in words["Energy"]
    assert None not in [size.line_of(found)[name] for name in size._ENERGY]


def test_energy_is_of_samples_if_requests_have_several():
    """A busy device draws 400 W: with 4 samples a request, a million samples take the same energy as before."""
    found = plan(rows_of(1, 4, 16), wanted(samples_per_request=4))

    assert found.energy.kwh_per_million_high == pytest.approx(found.energy.high_w / found.samples_per_s / 3.6)


def test_plan_without_power_readings_shows_no_power():
    found = plan(without_power(rows_of(1, 4, 16)), wanted())

    assert found.energy is None
    assert not {"Power", "Energy"} & dict([*size_answers.summary(found), *size_answers.details(found)]).keys()


def test_failed_rows_and_rows_without_power_are_left_out():
    record = rows_of(1, 4, 16)
    failed = replace(record.rows[2], failure=Failure(kind="died", message="killed"))
    one = replace(record, rows=(*without_power(record).rows[:1], record.rows[1], failed))

    power = power_of(one)
    assert list(power.measured) == [4]
