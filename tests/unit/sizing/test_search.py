"""The search for the smallest fleet, with simulations of given outcomes."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

import pytest
from msgspec.structs import replace
from support.records import timed_record, whole

from tputfind.errors import NoPlan
from tputfind.record.record import Record
from tputfind.sizing.engine.replications import Effort, Fleet, Goal, Outcome, Simulated, simulate
from tputfind.sizing.planner.plan import plan
from tputfind.sizing.planner.question import Demand, read_demand
from tputfind.sizing.planner.search import LATE_REQUESTS, Search, least_number

TARGET_MS = 30.0
MOST = 10_000_000
Tail = Callable[[int, int, float], float]
"""The percentile latency of a fleet in ms, by its devices, its batch limit and its rate."""


def record(batches_ms: dict[int, float] | None = None) -> Record:
    """Return a record of constant batch times: 5 ms plus 0.5 ms per sample, unless given."""
    batches_ms = batches_ms or {size: 5 + 0.5 * size for size in (1, 2, 4)}
    return timed_record({size: [batch_ms] * 100 for size, batch_ms in batches_ms.items()})


def wanted(rate: float = 1.0, slo: float = TARGET_MS, **more: object) -> Demand:
    return read_demand({"rate": rate, "slo": slo, **more})


class Simulations:
    """Records simulations with their effort; each fleet has the given percentile, or is undecided.

    Half of the requests are late if it misses the target, and none if it meets it. ``late`` overrides this by devices.
    """

    def __init__(self, tail: Tail, undecided: tuple[int, ...] = (), late: Sequence[float] | None = None) -> None:
        self.tail, self.undecided, self.late = tail, undecided, late
        self.made: list[tuple[int, int, float, float]] = []

    def __call__(self, fleet: Fleet, goal: Goal, effort: Effort, seed: object) -> Simulated:
        if fleet.utilization >= 1:
            return simulate(fleet, goal, effort, (0,))
        devices, cap = fleet.devices, fleet.kinds[0].cap
        self.made.append((devices, cap, fleet.rate_per_s, effort.least))
        tail_ms = self.tail(devices, cap, fleet.rate_per_s)
        figures = dict.fromkeys(("mean_ms", "p50_ms", "p95_ms", "p99_ms", "goodput_per_s", "busy", "mean_batch"), 1)
        is_met = tail_ms <= goal.target_ms
        verdict = "undecided" if devices in self.undecided else "meets" if is_met else "misses"
        outcome = Outcome(
            devices=devices,
            batch_cap=cap,
            rate_per_s=fleet.rate_per_s,
            utilization=fleet.utilization,
            verdict=verdict,
            late=self.late[min(devices, len(self.late) - 1)] if self.late else 0.0 if is_met else 0.5,
            late_error=0.0,
            tail_ms=tail_ms,
            tail_low_ms=tail_ms,
            tail_high_ms=tail_ms,
            requests=1000,
            **figures,
        )
        return Simulated(outcome, [Counter({cap: 1})], inf, [1.0])

    def tried(self) -> list[int]:
        """Return the numbers of devices in the order of their first simulation."""
        return list(dict.fromkeys(devices for devices, *_ in self.made))


@pytest.fixture
def simulated(monkeypatch):
    def answering(*answers: object) -> Simulations:
        simulations = Simulations(*answers)
        monkeypatch.setattr("tputfind.sizing.planner.search.simulate", simulations)
        monkeypatch.setattr("tputfind.sizing.planner.plan.energy_of", lambda *_: None)
        return simulations

    return answering


def from_devices(number: int) -> Tail:
    """Return a function: the target is met from this number of devices on."""
    return lambda devices, cap, rate: 2.0 if devices >= number else 40.0


@pytest.mark.parametrize("number", [*range(1, 36), 300, 498])
def test_least_number_is_found_in_few_steps_without_repeats(simulated, number):
    simulations = simulated(from_devices(number))

    search = Search(record(), wanted())
    found = search.least()

    assert found.devices == number
    assert (search.fewer(number) or found).devices == max(1, number - 1)
    assert len(simulations.tried()) <= 2 * number.bit_length() + 2
    assert len(set(simulations.made)) == len(simulations.made)


@pytest.mark.parametrize("number", [501, 5000, 123_456, MOST - 1, MOST])
def test_least_number_from_500_devices_is_within_four_per_thousand(simulated, number):
    simulated(from_devices(number))

    search = Search(record(), wanted())
    devices = search.least().devices

    fewer = search.fewer(devices)
    assert fewer.devices < number <= devices
    assert devices - fewer.devices <= devices // 250
    assert fewer.verdict == "misses"


def test_many_useless_devices_lead_directly_to_the_most(simulated):
    simulations = simulated(from_devices(MOST + 1))

    with pytest.raises(NoPlan) as refused:
        plan(record(), wanted())

    assert simulations.tried() == [1, 2, 4, 8, 16, MOST, 3]
    assert refused.value.message == (
        "not even 10000000 devices, the maximum of a plan, answer 99 % of the requests within 30 ms: it takes 40 ms"
    )
    assert refused.value.hint == "a longer --slo"


def test_search_begins_with_the_devices_that_the_throughput_takes(simulated):
    """A batch of four is slower than two batches of two; a device does 364 of the latter in a second."""
    simulations = simulated(from_devices(3))

    found = plan(record({1: 5.0, 2: 5.5, 4: 20.0}), wanted(1000))

    assert simulations.tried() == [3]
    assert found.outcome.devices == 3
    assert (found.fewer.batch_cap, found.fewer.utilization > 1) == (2, True)


def test_the_most_devices_may_just_do_by_their_throughput(simulated):
    simulated(from_devices(1))

    assert Search(record({1: 5.0}), wanted(1.99e9)).least().devices <= MOST
    with pytest.raises(NoPlan) as refused:
        Search(record({1: 5.0}), wanted(2e9 + 100)).least()
    assert "take 10000001 devices or more by their throughput alone" in refused.value.message
    assert "a plan has at most 10000000" in refused.value.message
    assert refused.value.hint == "a lower --rate"


@pytest.mark.parametrize("best", [1, 7, 23, 57])
def test_any_batch_limit_may_win_even_unmeasured_ones(simulated, best):
    """Two devices suffice with batch limits within 8 % of the best one."""
    simulated(lambda devices, cap, rate: 20.0 + 10 * abs(cap / best - 1) if devices < 4 else 2.0)
    search = Search(record({1: 3.3, 256: 79.8}), wanted(slo=20.8))

    found = search.least()

    assert found.devices == 1
    assert abs(found.batch_cap / best - 1) <= 0.08


def test_batch_limits_end_at_given_one_and_largest_within_target():
    largest = [
        Search(record({1: 3.3, 256: 79.8}), wanted(**given)).caps[-1]
        for given in ({}, {"max_batch_size": 50}, {"max_ongoing": 40}, {"slo": 5.0}, {"slo": 35.0, "network": 5.0})
    ]

    assert largest == [90, 50, 40, 6, 90]


@pytest.mark.parametrize(
    ("batches_ms", "given", "message", "hint"),
    [
        ({1: 5.0}, {"slo": 4.0}, "99 % of lone requests take up to 5 ms, and the target is 4 ms", "5ms"),
        ({4: 50.0}, {}, "99 % of batches of 4 take up to 50 ms, and the target is 30 ms", "50ms"),
        ({1: 1234.4}, {"percentile": 90}, "90 % of lone requests take up to 1234 ms", "1235ms"),
        ({1: 99.996}, {"network": 1.0}, "take up to 100 ms, and the target is 29 ms", "101ms"),
        ({1: 29.0}, {"overhead": "2ms+0.5ms"}, "take up to 31.5 ms, and the target is 30 ms", "31.5ms"),
    ],
)
def test_late_lone_request_is_refused_with_the_shortest_target(batches_ms, given, message, hint):
    with pytest.raises(NoPlan) as refused:
        plan(record(batches_ms), wanted(**given))

    assert refused.value.message.startswith("no device is fast enough: ")
    assert message in refused.value.message
    assert refused.value.hint == f"no --slo below {hint} can be met"


def test_a_request_that_alone_takes_just_the_target_is_not_late(simulated):
    simulated(lambda devices, cap, rate: TARGET_MS)

    assert plan(record({1: TARGET_MS}), wanted()).outcome.devices == 1


def test_judgements_have_two_hundred_late_requests_or_more(simulated):
    simulations = simulated(from_devices(3))

    Search(record(), wanted(percentile=99.9)).least()

    floor = LATE_REQUESTS / 0.001
    judged = {devices for devices, _, _, least in simulations.made if least >= 0.999 * floor}
    assert {2, 3} <= judged


def test_batch_limit_whose_batches_alone_are_late_is_not_judged(simulated):
    """2 % of batches of 4 take 45 ms, and of 3, by interpolation, more than the target of 30 ms."""
    simulations = simulated(lambda _, cap, __: 10 + 1 / cap)
    plan(timed_record({1: [5.0] * 100, 4: [5.2] * 98 + [1.5 * TARGET_MS] * 2}), wanted())
    judged = {cap for _, cap, rate, least in simulations.made if rate == 1.0 and least >= LATE_REQUESTS / 0.011}
    assert judged == {2}


def test_the_batch_limit_that_bears_more_traffic_best_is_taken(simulated):
    more = {1: 22.0, 2: 21.0, 3: 23.0, 4: 23.0}
    simulated(lambda devices, cap, rate: more[cap] if rate > 1 else 20.0)

    found = plan(record(), wanted())

    assert found.outcome.batch_cap == 2
    assert (found.more_traffic.batch_cap, found.more_traffic.rate_per_s) == (2, 1.2)


def test_batch_limits_with_which_a_device_cannot_keep_up_are_not_tried(simulated):
    """Batches of one serve exactly the 200 requests that come in a second."""
    simulations = simulated(from_devices(1))

    Search(record({1: 5.0, 2: 6.0}), wanted(200)).least()

    assert {cap for _, cap, _, _ in simulations.made} == {2}


def test_undecided_fleets_do_not_count_as_meeting_and_count_in_the_range(simulated):
    simulated(from_devices(3), (3, 4))

    found = plan(record(), wanted())

    assert (found.outcome.devices, found.fewest) == (5, 3)
    assert (found.fewer.verdict, found.fewer_fails) == ("undecided", False)


def test_batch_limits_with_equal_pilots_are_judged_once(simulated):
    simulations = simulated(from_devices(3), (3,))

    Search(record(), wanted()).least()

    judged = {cap for devices, cap, _, requests in simulations.made if devices == 3 and requests > 10_000}
    assert len(judged) == 1


def test_batch_limits_above_the_largest_batch_share_one_pilot(monkeypatch, simulated):
    """Batches have one or two samples: all batch limits above two are alike, also from the last best one upwards."""
    usual = simulated(lambda devices, cap, rate: 41.0 if cap == 1 else 40.0)

    def simulate_small(fleet: Fleet, goal: Goal, effort: Effort, seed: object) -> Simulated:
        return usual(fleet, goal, effort, seed)._replace(sizes=[Counter({min(2, fleet.kinds[0].cap): 1})])

    monkeypatch.setattr("tputfind.sizing.planner.search.simulate", simulate_small)
    search = Search(record({size: 5.0 + 0.01 * size for size in (1, 2, 4, 8, 12, 16, 24, 32)}), wanted())
    search._last[1.0] = 6, 4

    search.may_meet(6)

    assert {cap for _, cap, _, _ in usual.made} == {2, 4, 32}


def test_only_judged_numbers_are_judged_for_longer(simulated):
    """All numbers below 1660 are undecided close to the target, where a longer judgement is of little use."""
    simulated(lambda devices, cap, rate: 2.0 if devices >= 1660 else 0.99 * TARGET_MS, tuple(range(1000, 1660)))
    search = Search(record({1: 5.0}), wanted(200_000))
    meets_at_length, are_judged = search._meets_at_length, list[bool]()

    def meet(devices: int) -> bool:
        are_judged.append(devices in search._best)
        return meets_at_length(devices)

    search._meets_at_length = meet

    assert 1660 <= search.least().devices < 1667
    assert are_judged == [True]


def test_undecided_fleets_far_from_the_target_are_judged_for_longer(monkeypatch, simulated):
    """Four devices are undecided until the judgement is repeated for longer, and three miss the target."""
    usual = simulated(from_devices(4))
    most = list[float]()

    def simulate_for_long(fleet: Fleet, goal: Goal, effort: Effort, seed: object) -> Simulated:
        found = usual(fleet, goal, effort, seed)
        most.append(effort.most)
        verdict = "undecided" if fleet.devices == 4 and effort.most <= 6e6 else found.outcome.verdict
        return found._replace(outcome=replace(found.outcome, verdict=verdict, mean_batch=100.0))

    monkeypatch.setattr("tputfind.sizing.planner.search.simulate", simulate_for_long)

    found = plan(record(), wanted())

    assert (found.outcome.devices, found.fewer_fails) == (4, True)
    assert sum(requests > 6e6 for requests in most) == 1


def test_with_spare_devices_the_target_is_met_with_as_many_gone(simulated):
    simulated(from_devices(3))

    found = plan(record(), wanted(spare=2))

    assert (found.outcome.devices, found.without_spare.devices, found.fewer.devices) == (5, 3, 2)
    assert (found.fewest, found.most) == (5, 5)
    assert found.serving.devices == 3


def test_utilization_stays_at_the_allowed_one_or_below(simulated):
    """Batches of 4 take 7 ms: a device does at most 571 samples in a second."""
    simulated(from_devices(1))

    found = [plan(record(), wanted(1000, max_utilization=share)).outcome for share in (0.99, 0.6, 0.3)]

    assert [outcome.devices for outcome in found] == [2, 3, 6]
    assert all(outcome.utilization <= share for outcome, share in zip(found, (0.99, 0.6, 0.3), strict=True))


def test_plan_of_given_devices_shows_whether_they_meet_target(simulated):
    simulated(from_devices(3))

    few, enough = (plan(record(), wanted(devices=number)) for number in (2, 3))

    assert (few.holds, few.outcome.devices, few.fewer.devices) == (False, 2, 1)
    assert (enough.holds, enough.outcome.devices, enough.fewer.devices) == (True, 3, 2)


def test_each_simulation_is_announced_before_it_runs(simulated):
    simulations = simulated(from_devices(2))
    told: list[str] = []

    Search(record(), wanted(max_batch_size=1), told.append).least()

    assert told[0] == "resnet50: simulating 1 device with batches of up to 1"
    assert "resnet50: simulating 2 devices with batches of up to 1" in told
    assert len(told) == len(simulations.made)


@pytest.mark.parametrize(("start", "least"), [(1, 1), (1, 17), (50, 17), (17, 17), (16, 17)])
def test_least_number_from_any_start(start, least):
    assert least_number(lambda number: number >= least, start, 1) == least


def test_least_number_with_good_guesses_takes_fewer_steps():
    halved, guessed = Counter[int](), Counter[int]()

    def guess(fails: int, passes: int) -> int:
        return min(max(fails + 1, 171), passes - 1)

    assert least_number(lambda one: bool(halved.update([one]) or one >= 171), 100, 1) == 171
    assert least_number(lambda one: bool(guessed.update([one]) or one >= 171), 100, 1, between=guess) == 171
    assert guessed.total() < halved.total()


@pytest.mark.parametrize(("start", "least"), [(5000, 700), (5000, 9000), (700, 5000)])
def test_least_number_with_parts_is_exact_to_a_part_of_the_distance(start, least):
    coarse, exact = Counter[int](), Counter[int]()

    found = least_number(lambda number: bool(coarse.update([number]) or number >= least), start, 1, parts=16)
    least_number(lambda number: bool(exact.update([number]) or number >= least), start, 1)

    assert 0 <= found - least <= abs(found - start) / 16
    assert coarse.total() < exact.total()


@pytest.mark.parametrize(
    ("late", "seen"),
    [
        ([0.5] * 17 + [0.0105] * 14 + [0.006] * 69, "p98.9 takes 17 devices, and p99.09 31"),
        ([0.5] * 20 + [0.0095] * 80, "p98.9 takes 20 devices, and p99.09 more than 40"),
        ([0.0095 * (31 / max(1, devices)) ** 0.3 for devices in range(100)], "p98.9 takes 20 devices, and p99.09 36"),
        ([0.0095 * (31 / max(1, devices)) ** 2 for devices in range(100)], None),
        ([0.0095 * (31 / max(1, devices)) ** 10 for devices in range(100)], None),
    ],
)
def test_number_sensitive_to_allowed_late_fraction_is_reported(simulated, late, seen):
    simulated(lambda devices, cap, rate: 2.0 if late[min(devices, 99)] <= 0.01 else 32.0, (), late)

    told = [notice for notice in plan(record(), wanted(network=10, slo=40.0)).notices if notice.kind == "on_edge"]

    assert [notice.seen for notice in whole(told)] == ([] if seen is None else [seen])


def test_edge_notice_counts_spare_devices_and_devices_at_longer_target(simulated):
    late = [0.5] * 17 + [0.0105] * 14 + [0.006] * 69
    simulated(lambda devices, cap, rate: 2.0 if devices >= 31 else 32.0 if devices >= 12 else 99.0, (), late)

    (told,) = [one for one in plan(record(), wanted(network=10, slo=40.0, spare=2)).notices if one.kind == "on_edge"]

    assert told.seen == "p98.9 takes 19 devices, and p99.09 33"
    assert whole([told])
    assert told.advice.startswith("accept --slo 43ms (14 devices), or ")
