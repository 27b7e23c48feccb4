"""The power of fleets, the energy of samples and the racks, from the power that rows hold."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.folders import RESULTS
from support.records import HEALTH, example, row

from tputfind import load_record
from tputfind.analysis.answers import health
from tputfind.errors import BadRequest
from tputfind.record.record import Failure, Record
from tputfind.report import energy as shown
from tputfind.sizing.demand import Demand
from tputfind.sizing.energy import Energy, energy_of
from tputfind.sizing.options import read_demand
from tputfind.sizing.plan import plan
from tputfind.sizing.power import Batch, Computing, Power, mean_of, power_of
from tputfind.sizing.service import ServiceTimes, service_of
from tputfind.sizing.simulate import Fleet, simulate

METERED = Power({1: Batch(1.0, 5.0), 4: Batch(4.0, 8.0), 16: Batch(13.0, 20.0)})
"""200 W with batches of 1, 500 W with 4, 650 W with 16."""
LINE = ServiceTimes({1: [5.0], 4: [8.0], 16: [20.0]}, power=METERED)


def stream(rate_per_s: float, **more: object) -> Demand:
    return Demand(rate_per_s=rate_per_s, slo_ms=1000.0, **more)  # type: ignore[arg-type]


@given(st.integers(1, 16))
def test_energy_and_time_lie_on_the_line_between_two_sizes_that_were_metered(size):
    batch = METERED.of(size)

    assert batch.energy_j == pytest.approx(np.interp(size, [1, 4, 16], [1.0, 4.0, 13.0]))
    assert batch.span_ms == pytest.approx(np.interp(size, [1, 4, 16], [5.0, 8.0, 20.0]))
    assert METERED.least_w <= batch.power_w <= METERED.most_w(16)


def test_nothing_is_told_beyond_the_largest_size_that_was_metered():
    with pytest.raises(ValueError, match="batch 17 was not metered"):
        METERED.of(17)
    assert METERED.computing(np.array([17]), 100.0) is None
    assert METERED.computing(np.array([16]), 100.0) == Computing(share=0.2, power_w=650.0)


def test_below_the_smallest_metered_a_batch_takes_as_much_as_that():
    assert Power({4: Batch(4.0, 8.0)}).of(1) == Batch(4.0, 8.0)


def test_a_device_that_is_never_idle_takes_what_its_full_batches_take():
    outcome = simulate(Fleet(3, 16, 2390.0), LINE, stream(2390.0), seeds=2)

    assert outcome.computing is not None
    assert outcome.computing.share == pytest.approx(1.0, abs=0.01)
    assert outcome.computing.power_w == pytest.approx(650, rel=0.02)


def test_batches_of_one_compute_for_their_share_of_the_time_at_their_power():
    """Of a device that gets 100 requests a second, each of 5 ms."""
    outcome = simulate(Fleet(2, 1, 200.0), LINE, stream(200.0), seeds=3)

    assert outcome.computing is not None
    assert outcome.computing.share == pytest.approx(0.5, rel=0.02)
    assert outcome.computing.power_w == pytest.approx(200)


def test_while_the_server_adds_its_own_time_the_device_does_not_compute():
    slow = ServiceTimes({1: [5.0]}, per_batch_ms=5.0, power=METERED)
    outcome = simulate(Fleet(1, 1, 50.0), slow, stream(50.0, overhead_per_batch_ms=5.0), seeds=3)

    assert outcome.computing is not None
    assert outcome.utilisation == pytest.approx(0.5, rel=0.02)
    assert outcome.computing.share == pytest.approx(0.25, rel=0.02)


@pytest.mark.parametrize("routing", ["random", "least-loaded", "two-choices"])
def test_every_routing_tells_how_its_devices_compute(routing):
    outcome = simulate(Fleet(4, 1, 400.0), LINE, stream(400.0, routing=routing), seeds=2)

    assert outcome.computing is not None
    assert outcome.computing.share == pytest.approx(0.5, rel=0.02)


def energy(rate: float = 200.0, **more: object) -> Energy:
    outcome = simulate(Fleet(2, 1, rate), LINE, stream(rate), seeds=2)
    found = energy_of(METERED, outcome, stream(rate, **more))
    assert found is not None
    return found


def test_idle_power_that_is_not_known_is_between_nothing_and_the_least_of_a_row():
    unknown = energy()
    share = unknown.computing.share

    assert unknown.idle_w is None
    assert unknown.low_w == pytest.approx(2 * share * 200)
    assert unknown.high_w == pytest.approx(2 * 200)
    for idle_w in (1.0, 90.0, 199.0):
        known = energy(idle_w=idle_w)
        assert known.low_w == known.high_w == pytest.approx(2 * (share * 200 + (1 - share) * idle_w))
        assert unknown.low_w < known.low_w < unknown.high_w


def test_a_million_samples_take_the_power_over_the_rate():
    """400 W for 200 samples a second are 2 J a sample: 0.556 kWh a million."""
    assert energy().kwh_per_million_high == pytest.approx(2 / 3.6)


def test_requests_that_are_refused_are_no_samples_of_a_million():
    """Of 800 requests a second two devices answer 400, at full power: 1 J a sample."""
    demand = stream(800.0, max_queue=20)
    found = energy_of(METERED, simulate(Fleet(2, 1, 800.0), LINE, demand, seeds=2), demand)

    assert found is not None
    assert found.kwh_per_million_high == pytest.approx(1 / 3.6, rel=0.01)


def test_racks_are_not_counted_where_the_largest_batches_were_not_metered():
    small = Power({1: METERED.measured[1], 4: METERED.measured[4]})
    service = ServiceTimes({1: [5.0], 4: [8.0], 16: [20.0]}, power=small)
    demand = stream(20.0, rack_w=1000.0)
    found = energy_of(small, simulate(Fleet(2, 16, 20.0), service, demand, seeds=2), demand)

    assert found is not None
    assert found.racks is None


def test_the_best_batch_by_energy_stands_beside_the_best_by_rate():
    one = Power({8: Batch(4.0, 10.0), 16: Batch(9.0, 15.0)})
    found = energy_of(one, simulate(Fleet(1, 1, 10.0), LINE, stream(10.0), seeds=2), stream(10.0))

    assert found is not None
    assert (found.best_by_energy.batch_size, found.best_by_rate.batch_size) == (8, 16)
    assert found.best_by_energy.kwh_per_million == pytest.approx(0.5 / 3.6)


def test_a_rack_holds_what_its_power_supplies_at_the_most_that_a_device_takes():
    racks = energy(rack_w=1000.0).racks
    assert racks is not None
    assert (racks.device_w, racks.devices_each, racks.racks) == (200, 5, 1)
    small = energy(rack_w=399.0).racks
    assert small is not None
    assert (small.devices_each, small.racks) == (1, 2)
    with pytest.raises(BadRequest, match="--rack 150W holds no device: one takes up to 200 W"):
        energy(rack_w=150.0)


def test_a_rack_that_holds_no_device_is_refused_before_anything_is_simulated():
    told: list[str] = []
    with pytest.raises(BadRequest, match="--rack 399W holds no device: one takes up to 400 W"):
        plan(rows_of(1, 4, 16), wanted(rack="399W"), tell=told.append)

    assert told == []


def test_a_queue_that_grows_tells_no_power():
    outcome = simulate(Fleet(1, 1, 300.0), LINE, stream(300.0), seeds=2)

    assert energy_of(METERED, outcome, stream(300.0)) is None
    assert energy_of(None, outcome, stream(300.0)) is None


def test_streams_count_by_the_time_in_which_they_compute():
    streams = [Computing(share=0.2, power_w=100.0), Computing(share=0.6, power_w=300.0)]

    found = mean_of([*streams])
    assert found is not None
    assert (found.share, found.power_w) == (pytest.approx(0.4), pytest.approx(250.0))
    assert mean_of([*streams, None]) is None


METERED_RECORDS = [
    path for kind in ("kinds", "recipes") for path in sorted((RESULTS / "nvidia-h200" / kind).glob("*.json"))
]


@pytest.mark.parametrize("path", METERED_RECORDS[::4], ids=lambda path: path.stem)
def test_a_sample_takes_the_energy_that_the_table_of_its_record_says(path):
    record = load_record(path)
    power = power_of(record)

    assert power is not None
    told = [one for one in record.rows if one.failure is None]
    assert sorted(power.measured) == [one.batch_size for one in told]
    for one in told:
        seen = health(one)
        assert seen is not None
        mj = 1000 * power.of(one.batch_size).energy_j / one.batch_size
        assert mj == pytest.approx(seen.energy_mj_per_sample)


def without_power(record: Record) -> Record:
    dark = msgspec.structs.replace(HEALTH, power_w=None)
    rows = [
        msgspec.structs.replace(
            one, timings=tuple(msgspec.structs.replace(timing, health=dark) for timing in one.timings)
        )
        for one in record.rows
    ]
    return msgspec.structs.replace(record, rows=tuple(rows))


def rows_of(*sizes: int) -> Record:
    return msgspec.structs.replace(example(), rows=tuple(row(size, 4.0 + 0.25 * size) for size in sizes), notices=())


def wanted(**more: object) -> Demand:
    return read_demand({"rate": 1500, "slo": 50.0, **more})


def test_a_plan_says_its_power_its_energy_and_its_racks():
    found = plan(rows_of(1, 4, 16), wanted(rack="2kW"))

    assert found.energy is not None
    words = dict(shown.told(found))
    assert list(words) == ["Power", "Energy", "Racks"]
    assert "computing takes 400 W a device" in words["Power"]
    assert words["Power"].endswith("idle power is not known")
    assert "batches of 16, the best by energy and by rate" in words["Energy"]
    assert words["Racks"].startswith("1 of 2 kW, 5 devices in each, at up to 400 W")
    assert set(shown.cells(found)) == set(shown.COLUMNS)
    known = dict(shown.told(plan(rows_of(1, 4, 16), wanted(idle_power=80))))
    assert known["Power"].endswith("idle 80 W")
    assert " to " not in known["Power"]
    assert "Racks" not in known


def test_a_record_without_power_says_so_only_where_racks_are_asked_for():
    dark = without_power(rows_of(1, 4, 16))
    found, racks = plan(dark, wanted()), plan(dark, wanted(rack="2kW"))

    assert (found.energy, racks.energy, found.outcome.computing) == (None, None, None)
    assert list(shown.told(found)) == []
    assert "no_power" not in [notice.kind for notice in found.notices]
    assert "no_power" in [notice.kind for notice in racks.notices]


def test_rows_that_failed_or_tell_no_power_are_left_out():
    record = rows_of(1, 4, 16)
    failed = msgspec.structs.replace(record.rows[2], failure=Failure(kind="died", message="killed"))
    one = msgspec.structs.replace(record, rows=(*without_power(record).rows[:1], record.rows[1], failed))

    power = power_of(one)
    assert power is not None
    assert list(power.measured) == [4]
    assert service_of(one, wanted()).power is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rack": "10"}, "did you mean 10W or 10kW"),
        ({"rack": "0kW"}, "--rack: '0kW' is not above zero"),
        ({"idle_power": "-5W"}, "--idle-power: '-5W' is not a power such as 10kW or 90W"),
        ({"rack": "5mW"}, "--rack: '5mW' is not a power"),
        ({"idle_power": float("nan")}, "is not a finite number"),
    ],
)
def test_a_power_that_is_none_is_refused_in_words(options, message):
    with pytest.raises(BadRequest, match=message):
        wanted(**options)
