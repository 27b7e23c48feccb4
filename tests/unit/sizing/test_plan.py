"""The search for the least fleet, over simulations that are told what to answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import msgspec
import pytest
from support.records import example, row

import tputfind
from tputfind.errors import BadRequest, NoPlan
from tputfind.record.identity import name_of
from tputfind.record.record import Record, Timing
from tputfind.sizing.demand import Demand
from tputfind.sizing.formulas import devices_by_mean
from tputfind.sizing.options import read_demand
from tputfind.sizing.plan import Price, Rules, least, plan
from tputfind.sizing.service import ServiceTimes, service_of
from tputfind.sizing.simulate import Fleet, Outcome
from tputfind.stats import t_quantile

TARGET_MS = 30.0
MOST = 10_000_000
Latencies = Callable[[Fleet, float], "float | tuple[float, float]"]
"""The percentile that a fleet comes to with an effort, or the interval in which it lies."""


def record(batches_ms: dict[int, float] | None = None) -> Record:
    """Batches that always take as long: of 5 ms and half a ms a sample, unless told otherwise."""
    rows = []
    for size, batch_ms in (batches_ms or {size: 5 + 0.5 * size for size in (1, 2, 4)}).items():
        spans = (batch_ms,) * 100
        rows.append(msgspec.structs.replace(row(size, 1.0), timings=(Timing(device_ms=spans, latency_ms=spans),)))
    return msgspec.structs.replace(example(), rows=tuple(rows), notices=())


def wanted(rate: float = 1.0, slo: float = TARGET_MS, **more: object) -> Demand:
    return read_demand({"rate": rate, "slo": slo, **more})


class Simulations:
    """What was simulated, each with its streams and effort, where every fleet answers as it is told to.

    By samples of the record drawn anew it comes to ``drawn_ms`` in turn, or to the same.
    """

    def __init__(
        self,
        latencies: Latencies,
        also: Callable[[Fleet, float], dict[str, object]] = lambda *_: {},
        drawn_ms: Sequence[float] = (),
    ) -> None:
        self.latencies, self.also = latencies, also
        self.drawn_ms = itertools.cycle(drawn_ms) if drawn_ms else None
        self.made: list[tuple[Fleet, int, float]] = []
        self.service: ServiceTimes | None = None

    def __call__(self, fleet: Fleet, service: ServiceTimes, demand: Demand, *, seeds: int, effort: float) -> Outcome:
        # The record's own times come first; later ones are of its samples drawn anew.
        self.service = self.service or service
        own = service is self.service
        if own:
            self.made.append((fleet, seeds, effort))
        self.demand = demand
        told = self.latencies(fleet, effort) if own or self.drawn_ms is None else next(self.drawn_ms)
        low, high = told if isinstance(told, tuple) else (told, told)
        names = "mean_ms", "p50_ms", "p95_ms", "p99_ms", "goodput_per_s", "utilisation", "mean_batch"
        figures = dict.fromkeys(names, 1)
        outcome = Outcome(
            devices=fleet.devices,
            batch_cap=fleet.cap,
            rate_per_s=fleet.rate_per_s,
            load=fleet.load(service, demand),
            steady=True,
            tail_ms=(low + high) / 2,
            tail_low_ms=low,
            tail_high_ms=high,
            requests=round(1000 * seeds * effort),
            **figures,
        )
        return msgspec.structs.replace(outcome, **self.also(fleet, effort))

    def tried(self) -> list[int]:
        """Numbers of devices, in the order in which they were first simulated."""
        return list(dict.fromkeys(fleet.devices for fleet, _, _ in self.made))

    def in_full(self, devices: int, effort: float = 1.0) -> list[int]:
        """Caps with which so many devices were simulated at a rate of 1, in five streams."""
        of_these = (devices, 1, 5, effort)
        return [fleet.cap for fleet, *how in self.made if (fleet.devices, fleet.rate_per_s, *how) == of_these]


@pytest.fixture
def simulated(monkeypatch):
    def answering(*answers: object, **more: object) -> Simulations:
        simulations = Simulations(*answers, **more)
        for module in ("fleets", "noise"):
            monkeypatch.setattr(f"tputfind.sizing.{module}.simulate", simulations)
        return simulations

    return answering


def from_devices(number: int) -> Latencies:
    """The target is met by so many devices or more."""
    return lambda fleet, effort: 2.0 if fleet.devices >= number else 40.0


@pytest.mark.parametrize("number", [*range(1, 36), 1000, 1998])
def test_the_least_number_of_devices_is_found_in_few_steps_and_nothing_is_simulated_twice(simulated, number):
    simulations = simulated(from_devices(number))

    found = plan(record(), wanted())

    assert found.outcome.devices == number
    assert (found.fewer.devices if found.fewer else 0) == number - 1
    assert found.fewer_fails
    assert len(simulations.tried()) <= 2 * number.bit_length() + 2
    assert len(set(simulations.made)) == len(simulations.made)
    assert {(seeds, effort) for _, seeds, effort in simulations.made} == {(1, 0.35), (5, 1.0)}


@pytest.mark.parametrize("number", [2001, 5000, 123_456, MOST - 1, MOST])
def test_of_two_thousand_devices_and_more_the_least_number_is_found_to_a_thousandth(simulated, number):
    simulations = simulated(from_devices(number))

    found = plan(record(), wanted())

    devices, step = found.outcome.devices, found.outcome.devices - found.fewer.devices
    assert number <= devices < number + step
    assert step == devices // 1000
    assert found.fewer_fails
    assert len(simulations.tried()) <= 2 * number.bit_length() + 2
    assert len(set(simulations.made)) == len(simulations.made)


def test_where_more_and_more_devices_do_not_help_the_most_are_asked_next(simulated):
    simulations = simulated(from_devices(MOST + 1), lambda *_: {"load": 0.5})

    with pytest.raises(NoPlan) as refused:
        plan(record(), wanted())

    assert simulations.tried() == [1, 2, 4, 8, 16, MOST]
    assert refused.value.message == (
        "not even 10000000 devices, the most that are planned with, answer 99 % of the requests within 30 ms: "
        "it takes 40 ms"
    )
    assert refused.value.hint == "a longer --slo"


def test_where_the_most_devices_are_busy_a_lower_rate_may_help(simulated):
    simulated(from_devices(MOST + 1), lambda *_: {"load": 0.51})

    with pytest.raises(NoPlan) as refused:
        plan(record(), wanted())

    assert refused.value.hint == "a lower --rate, or a longer --slo"


def test_the_search_begins_with_the_devices_that_the_throughput_takes(simulated):
    """The fourfold batch is slower than two of two, of which a device does 364 in a second."""
    simulations = simulated(from_devices(3))

    found = plan(record({1: 5.0, 2: 5.5, 4: 20.0}), wanted(1000))

    assert simulations.tried() == [3, 2]
    assert found.outcome.devices == 3
    assert found.fewer is not None
    assert (found.fewer.batch_cap, found.fewer.load > 1) == (2, True)


def test_the_most_devices_that_are_planned_with_may_just_do_by_their_throughput(simulated):
    simulated(from_devices(1))

    assert plan(record({1: 5.0}), wanted(2e9)).outcome.devices == MOST
    with pytest.raises(NoPlan, match="take 10000001 devices or more") as refused:
        plan(record({1: 5.0}), wanted(2e9 + 100))
    assert refused.value.hint == "a lower --rate"


@pytest.mark.parametrize(
    ("batches_ms", "given", "caps"),
    [
        ({1: 3.3, 256: 79.8}, {}, [1, 40, 60, 90]),
        ({1: 3.3, 256: 79.8}, {"max_batch": 50}, [1, 40, 50]),
        ({1: 3.3, 256: 79.8}, {"max_batch": 1000}, [1, 40, 60, 90]),
        ({1: 3.3, 256: 79.8}, {"slo": 5.0}, [1, 2, 6]),
        ({1: 3.3, 256: 79.8}, {"batcher": "litserve", "delay": 5.0, "overhead_per_get": 0.1}, [1, 40, 50]),
        ({1: 3.3, 256: 79.8}, {"slo": 35.0, "network": 5.0}, [1, 40, 60, 90]),
        ({4: 3.0, 8: 3.5}, {}, [1, 4, 8]),
        ({1: 3.0, 2: 3.0, 4: 3.0, 8: 40.0}, {"slo": 3.0}, [1, 2, 4]),
    ],
)
def test_caps_are_the_sizes_measured_and_those_of_the_rules_within_the_target(simulated, batches_ms, given, caps):
    simulations = simulated(from_devices(1))

    plan(record(batches_ms), wanted(**given))

    assert sorted(fleet.cap for fleet, seeds, _ in simulations.made if (fleet.rate_per_s, seeds) == (1, 1)) == caps


def test_where_a_batch_of_one_is_within_the_target_half_of_the_time_it_is_the_only_cap(simulated):
    """The mean is far beyond the target."""
    spans = (5.0,) * 60 + (100.0,) * 40
    one = msgspec.structs.replace(row(1, 5.0), timings=(Timing(device_ms=spans, latency_ms=spans),))
    simulations = simulated(from_devices(1))

    plan(
        msgspec.structs.replace(record(), rows=(one, msgspec.structs.replace(one, batch_size=2))),
        wanted(percentile=50),
    )

    assert {fleet.cap for fleet, _, _ in simulations.made} == {1}


@pytest.mark.parametrize(
    ("batches_ms", "given", "message", "hint"),
    [
        ({1: 5.0}, {"slo": 4.0}, "99 % of requests that are alone take up to 5 ms, and the target is 4 ms", "5ms"),
        ({4: 50.0}, {}, "99 % of batches of 4 take up to 50 ms, and the target is 30 ms", "50ms"),
        ({1: 1234.4}, {"percentile": 90}, "90 % of requests that are alone take up to 1234 ms", "1235ms"),
        ({1: 99.996}, {"network": 1.0}, "take up to 100 ms, and the target is 29 ms", "101ms"),
        (
            {1: 20.0},
            {"batcher": "litserve", "overhead_per_get": 7.0, "overhead_per_answer": 4.0, "network": 0.5},
            "99 % of requests that are alone take up to 31 ms, and the target is 29.5 ms",
            "31.5ms",
        ),
    ],
)
def test_a_request_that_is_late_even_alone_is_told_with_the_shortest_target(batches_ms, given, message, hint):
    with pytest.raises(NoPlan) as refused:
        plan(record(batches_ms), wanted(**given))

    assert refused.value.message.startswith("no device is fast enough: ")
    assert message in refused.value.message
    assert refused.value.hint == f"no --slo below {hint} can be met"


def test_three_slow_batches_in_two_hundred_are_late_at_a_percentile_of_99(simulated):
    spans = (5.0,) * 197 + (100.0,) * 3
    simulated(from_devices(1))
    odd = msgspec.structs.replace(row(1, 5.0), timings=(Timing(device_ms=spans, latency_ms=spans),))

    with pytest.raises(NoPlan, match="take up to 100 ms"):
        plan(msgspec.structs.replace(record(), rows=(odd,)), wanted())


def test_a_request_that_alone_takes_just_the_target_is_not_late(simulated):
    simulated(lambda fleet, effort: TARGET_MS)

    assert plan(record({1: TARGET_MS}), wanted()).outcome.devices == 1


@pytest.mark.parametrize(
    ("pilots", "caps", "best"),
    [
        ({1: 20.0, 2: 12.0, 4: 39.1}, [2, 1], 2),
        ({1: 20.0, 2: 12.0, 4: 39.0}, [2, 1, 4], 4),
        ({1: 50.0, 2: 50.0, 4: 49.0}, [4], 4),
    ],
)
def test_a_number_of_devices_is_judged_by_the_caps_whose_pilots_come_near_the_target(simulated, pilots, caps, best):
    """In full none meets it with one device: the larger the cap, the sooner it answers."""
    simulations = simulated(
        lambda fleet, effort: 10.0 if fleet.devices > 1 else pilots[fleet.cap] if effort < 1 else 40.0 - fleet.cap
    )

    found = plan(record(), wanted())

    assert simulations.in_full(1) == caps
    assert found.fewer is not None
    assert found.fewer.batch_cap == best


def test_once_a_cap_meets_the_target_no_other_is_tried_in_full(simulated):
    simulations = simulated(lambda fleet, effort: 20.0 - fleet.cap)

    plan(record(), wanted())

    assert simulations.in_full(1) == [4]


def test_a_fleet_whose_queue_grows_is_not_the_best_however_soon_it_answers(simulated):
    simulated(
        lambda fleet, effort: 10.0 if fleet.devices > 1 else 30.0 + fleet.cap,
        lambda fleet, effort: {"steady": fleet.devices > 1 or fleet.cap == 2},
    )

    found = plan(record(), wanted())

    assert found.fewer is not None
    assert found.fewer.batch_cap == 2


@pytest.mark.parametrize(
    ("first", "then", "efforts", "fails"),
    [
        ((31.0, 33.0), (31.0, 33.0), [1.0], True),
        ((28.0, 32.0), (31.0, 32.0), [1.0, 4.0], True),
        ((28.0, 32.0), (29.0, 31.0), [1.0, 4.0, 16.0], False),
    ],
)
def test_a_fleet_too_near_to_the_target_to_tell_is_simulated_for_longer(simulated, first, then, efforts, fails):
    def told(fleet, effort):
        return (10.0, 11.0) if fleet.devices > 1 else {0.35: (30.0, 30.0), 1.0: first}.get(effort, then)

    simulations = simulated(told)

    found = plan(record(), wanted(max_batch=1))

    assert [effort for effort in (1.0, 4.0, 16.0) if simulations.in_full(1, effort)] == efforts
    assert simulations.in_full(2, 4.0) == []
    assert found.fewer is not None
    assert (found.fewer.tail_low_ms, found.fewer.tail_high_ms) == then
    assert found.fewer_fails is fails


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("drawn_ms", "high_ms", "requests", "efforts"),
    [
        ((29.0, 31.0), 31.0, 375_001, [1.0, 4.0, 16.0]),
        ((15.0, 60.0), 31.0, 375_001, [1.0]),
        ((15.0, 60.0), 31.0, 93_751, [1.0, 4.0]),
        ((15.0, 60.0), 31.0, 93_750, [1.0, 4.0, 16.0]),
        ((15.0, math.inf), math.inf, 375_001, [1.0, 4.0, 16.0]),
    ],
)
def test_long_streams_are_not_made_longer_where_the_record_leaves_far_more_open(
    simulated, drawn_ms, high_ms, requests, efforts
):
    simulations = simulated(
        lambda fleet, effort: 10.0 if fleet.devices > 1 or effort < 1 else (29.0, high_ms),
        lambda fleet, effort: {"requests": round(requests * effort)},
        drawn_ms=drawn_ms,
    )

    found = plan(record(), wanted(max_batch=1))

    assert found.outcome.devices == 2
    assert [effort for effort in (1.0, 4.0, 16.0) if simulations.in_full(1, effort)] == efforts


@pytest.mark.parametrize(("drawn_ms", "full"), [((29.0, 31.0), True), ((15.0, 60.0), False)])
def test_the_ends_of_a_range_are_simulated_briefly_where_the_record_leaves_far_more_open(simulated, drawn_ms, full):
    simulations = simulated(lambda fleet, effort: (980 / fleet.devices, 1020 / fleet.devices), drawn_ms=drawn_ms)

    found = plan(record(), wanted())

    assert found.outcome.devices == 34
    assert found.fewest < 33
    assert bool(simulations.in_full(found.fewest)) is full


def test_a_stream_that_is_as_long_as_any_is_not_simulated_again(simulated):
    simulations = simulated(
        lambda fleet, _: 10.0 if fleet.devices > 1 else (29.0, 31.0),
        lambda fleet, effort: {"requests": 9000} if fleet.devices == 1 else {},
    )

    plan(record(), wanted(max_batch=1))

    assert [effort for effort in (1.0, 4.0, 16.0) if simulations.in_full(1, effort)] == [1.0, 4.0]


def test_one_device_that_does_has_none_fewer(simulated):
    simulated(from_devices(1))

    found = plan(record(), wanted())

    assert found.fewer is None
    assert found.fewer_fails


@pytest.mark.parametrize(
    ("with_more", "busy", "at_the_rate", "cap"),
    [
        ({1: 22.0, 2: 21.0, 4: 23.0}, (), {1: 20.0, 2: 20.0, 4: 20.0}, 2),
        ({1: 22.0, 2: 21.0, 4: 23.0}, (), {1: 20.0, 2: 31.0, 4: 20.0}, 1),
        ({1: 22.0, 2: 21.0, 4: 23.0}, (1, 2), {1: 20.0, 2: 20.0, 4: 20.0}, 4),
        ({1: 22.0, 2: 21.0, 4: 23.0}, (1, 2, 4), {1: 20.0, 2: 20.0, 4: 20.0}, 1),
    ],
)
def test_the_cap_that_bears_more_traffic_best_is_taken(simulated, with_more, busy, at_the_rate, cap):
    """Queues of caps that are busy grow with 20 % more traffic; where all are, the first is kept."""
    simulations = simulated(
        lambda fleet, effort: (with_more if fleet.rate_per_s > 1 else at_the_rate)[fleet.cap],
        lambda fleet, effort: {"steady": fleet.rate_per_s == 1 or fleet.cap not in busy},
    )

    found = plan(record(), wanted())

    assert found.outcome.batch_cap == cap
    assert found.outcome.rate_per_s == 1
    assert (found.more_traffic.batch_cap, found.more_traffic.rate_per_s) == (cap, 1.2)
    assert simulations.made[-1] == (Fleet(1, cap, 1.2), 5, 1.0)


def test_caps_with_which_a_device_cannot_keep_up_are_not_tried(simulated):
    """Batches of one do just the 200 requests that come in a second, and no more."""
    simulations = simulated(from_devices(1))

    plan(record({1: 5.0, 2: 6.0}), wanted(200))

    assert {fleet.cap for fleet, _, _ in simulations.made} == {2}


def test_a_plan_holds_what_was_asked_and_what_it_is_from(simulated):
    simulations = simulated(from_devices(2))
    one, demand = record(), wanted(batcher="mosec", delay=7.0, max_batch=4, rate=1000)
    price = Price(device="example", price_per_hour=3.6, currency="EUR")

    found = plan(one, demand, price)

    service = service_of(one, demand)
    assert (found.model, found.recipe) == ("resnet50", name_of(one.spec))
    assert (found.device_name, found.demand, found.arrivals) == ("NVIDIA Example", demand, 0)
    assert (found.slope_ms, found.intercept_ms) == service.line_ms()
    assert found.delay_ms == 7.0
    assert found.price == price
    assert found.cost_per_hour == 3.6 * found.outcome.devices
    assert found.cost_per_million == pytest.approx(found.outcome.devices, rel=1e-9)
    assert {"copies", "largest_measured"} <= {notice.kind for notice in found.notices}
    assert simulations.demand == demand


def test_a_plan_without_a_price_tells_no_cost(simulated):
    simulated(from_devices(1))

    found = plan(record(), wanted())

    assert (found.price, found.cost_per_hour, found.cost_per_million) == (None, None, None)


def test_rules_of_thumb_stand_beside_a_plan(simulated):
    """A batch of 8, the cap, takes 9 ms, and one of 2, the largest in half the target, 6 ms."""
    simulated(from_devices(1))
    one, demand = record({1: 5.5, 2: 6.0, 8: 9.0, 16: 13.0}), wanted(10_000, slo=12.4, max_batch=8)

    rules = plan(one, demand).rules

    assert rules == Rules(
        full_batches=12, naive=12, nexus=30, mean=devices_by_mean(service_of(one, demand), 10_000, 12.4)
    )


def test_of_recorded_arrivals_a_plan_keeps_the_number(simulated):
    simulated(from_devices(1))

    found = plan(record(), wanted(gaps=(1.0,) * 150))

    assert found.arrivals == 151
    assert found.demand == wanted()


@pytest.mark.parametrize("asked", [plan, least])
def test_each_simulation_is_told_of_before_it_is_made(simulated, asked):
    simulations = simulated(from_devices(2))
    told: list[str] = []

    asked(record(), wanted(max_batch=1), tell=told.append)

    assert told[0] == "resnet50: simulating 1 device with batches of up to 1"
    assert "resnet50: simulating 2 devices with batches of up to 1" in told
    assert len(told) == len(simulations.made)


def test_how_far_the_streams_differ_leaves_fewer_devices_open(simulated):
    """Of N devices the percentile takes 100 / N ms; the streams leave 30 % open to either side."""
    simulated(lambda fleet, effort: (70.0 / fleet.devices, 130.0 / fleet.devices))

    found = plan(record(), wanted())

    looser_ms = TARGET_MS * math.exp(1.645 * math.log(130 / 70) / 2 / t_quantile(4))
    assert (found.outcome.devices, found.fewest, found.most) == (5, math.ceil(100 / looser_ms), 5)
    assert found.fewest == 3


def test_where_no_number_of_devices_is_sure_the_range_has_no_end(simulated):
    """The latencies drawn anew differ by a factor of four, and more devices change nothing."""
    simulated(lambda fleet, effort: 29.0, drawn_ms=(15.0, 60.0))

    found = plan(record(), wanted())

    assert (found.outcome.devices, found.fewest, found.most) == (1, 1, None)


def test_rows_whose_processes_differ_leave_more_numbers_of_devices_open():
    """Two records of the same latencies, which one has by process and the other mixed."""
    slow, fast = (12.0,) * 50, (8.0,) * 50
    mixed = (8.0, 12.0) * 25

    def ranged(*processes: tuple[float, ...]):
        rows = tuple(
            msgspec.structs.replace(row(size, 1.0), timings=tuple(Timing(device_ms=p, latency_ms=p) for p in processes))
            for size in (1, 2, 4)
        )
        found = plan(msgspec.structs.replace(example(), rows=rows, notices=()), wanted(rate=2000.0, slo=40.0))
        return (found.most or math.inf) - found.fewest

    assert ranged(slow, fast) > ranged(mixed, mixed)


def test_with_spare_devices_the_target_holds_with_as_many_gone(simulated):
    simulated(from_devices(3))

    found = plan(record(), wanted(spare=2))

    assert (found.outcome.devices, found.without_spare.devices, found.fewer.devices) == (5, 3, 2)
    assert (found.fewest, found.most) == (5, 5)
    assert found.holding.devices == 3


def test_no_device_is_loaded_more_than_it_may_be(simulated):
    """Batches of 4 take 7 ms: a device does 571 of them in a second at the most."""
    simulated(from_devices(1))

    found = [plan(record(), wanted(1000, most_load=share)).outcome for share in (0.99, 0.6, 0.3)]

    assert [outcome.devices for outcome in found] == [2, 3, 6]
    assert all(outcome.load <= share for outcome, share in zip(found, (0.99, 0.6, 0.3), strict=True))


def test_of_given_devices_it_is_told_whether_they_hold(simulated):
    simulated(from_devices(3))

    few, enough = (plan(record(), wanted(devices=number)) for number in (2, 3))

    assert (few.holds, few.outcome.devices, few.fewer.devices) == (False, 2, 1)
    assert (enough.holds, enough.outcome.devices, enough.fewer.devices) == (True, 3, 2)


@pytest.mark.parametrize("spare", [0, 1])
def test_the_highest_rate_is_one_that_the_devices_hold_and_a_little_more_is_not(spare):
    asked = {"devices": 2 + spare, "slo": TARGET_MS, "spare": spare}
    found = plan(record(), read_demand(asked))
    rate = found.demand.rate_per_s

    assert found.holds
    assert found.holding.devices == 2
    assert not plan(record(), read_demand({**asked, "rate": 1.1 * rate})).holds
    assert plan(record(), wanted(rate=0.95 * rate)).outcome.devices <= 2


def test_the_tightest_target_is_one_that_the_devices_meet_and_no_much_tighter_one_is():
    found = plan(record(), read_demand({"devices": 2, "rate": 500.0}))
    slo_ms = found.demand.slo_ms

    assert found.holds
    assert not plan(record(), read_demand({"devices": 2, "rate": 500.0, "slo": 0.9 * slo_ms})).holds
    with pytest.raises(NoPlan, match="2 devices cannot serve 5000 requests/s"):
        plan(record(), read_demand({"devices": 2, "rate": 5000.0}))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": 5}, "--slo is needed, or --devices"),
        ({"slo": 5}, "--rate is needed, or --devices"),
        ({}, "name two of --rate, --slo and --devices: the third is the answer"),
        ({"devices": 2}, "name two of --rate, --slo and --devices: the third is the answer"),
        ({"devices": 2, "slo": 5, "spare": 2}, "--spare 2 leaves none of 2 devices"),
        ({"rate": 5, "slo": 5, "most_load": 0}, "--most-load"),
    ],
)
def test_a_question_names_two_of_three(given, said):
    with pytest.raises(BadRequest) as refused:
        read_demand(given)

    assert said in refused.value.message


def test_two_devices_that_serve_a_rate_only_in_large_batches_serve_it_within_a_long_target():
    """A lone request takes 5.5 ms; at 95 % of the throughput of batches of 64 only these do."""
    sizes = {size: 5 + 0.5 * size for size in (1, 4, 16, 64)}
    rate = 0.95 * 2 * 64 / 37 * 1000

    found = plan(record(sizes), read_demand({"devices": 2, "rate": rate}))

    assert found.holds
    assert found.outcome.batch_cap == 64


@pytest.mark.parametrize(("solved", "given"), [("rate", {"slo": 20.0}), ("slo", {"rate": 500.0})])
def test_of_several_plans_of_given_devices_the_one_with_the_best_answer_comes_first(solved, given):
    slow = msgspec.structs.replace(
        record({1: 8.0, 2: 9.0}), environment=msgspec.structs.replace(example().environment, device_name="Slow")
    )

    found = tputfind.size(slow, record({1: 5.0, 2: 6.0}), devices=3, **given)

    assert [each.device_name for each in found] == ["NVIDIA Example", "Slow"]
    assert [each.demand.solve for each in found] == [solved, solved]
    assert all(each.holds and (each.fewest, each.most) == (None, None) for each in found)
