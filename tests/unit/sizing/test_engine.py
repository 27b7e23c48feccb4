"""The event engine: invariants of any server, closed forms, real servers' batches, and the fast path."""

import math
import sys
from math import factorial, inf

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from support.folders import BENCHMARKS, RESULTS, record_path
from support.queues import arrival_lists, batches_by_size, busy_ms, refused_of_constant

from tputfind.record.files import load_record, load_records
from tputfind.sizing.engine.events import Routing
from tputfind.sizing.engine.replications import Effort, Fleet, Goal, Outcome, simulate
from tputfind.sizing.engine.servers import PROFILES, Batcher, Server
from tputfind.sizing.engine.service_times import Overheads, ServiceTimes, service_times_of
from tputfind.sizing.engine.serving import Kind, Served, serve
from tputfind.sizing.planner.closed_forms import mean_ms_of_one_device
from tputfind.sizing.traffic import Traffic, without_idle

SIZES = [2**power for power in range(10)]
LINE = ServiceTimes({size: [0.5 * size + 5] for size in SIZES})
"""A device whose batch always takes 5 ms plus 0.5 ms per sample."""
EXPONENTIAL = ServiceTimes({1: (-10 * np.log(1 - (np.arange(5000) + 0.5) / 5000)).tolist()})
"""Batches of one with exponentially distributed times of mean 10 ms."""
CONSTANT = ServiceTimes({1: [10.0]})
BATCHERS: list[Batcher] = list(PROFILES)
LONG = Effort(600_000, 4_000_000)
POISSON = Traffic()

arrivals = arrival_lists.map(np.array)
together = st.lists(st.integers(0, 3), min_size=1, max_size=60).map(lambda gaps: 1.0 + np.cumsum(gaps))
"""Arrival times with many ties, as in bursts."""
counts, caps, limits = st.integers(1, 4), st.integers(1, 8), st.integers(1, 6)
waits = st.integers(1, 30).map(lambda halves: halves / 2)
routings: st.SearchStrategy[Routing] = st.sampled_from(["shared", "random", "least-loaded", "two-choices"])


def run(times, devices=1, cap=8, service=LINE, *, samples=None, by_events=True, **server: object) -> Served:
    kinds = [Kind(devices, cap, service)]
    free = [0.0] * devices
    return serve(np.array(times), samples, kinds, Server(**server), free_ms=free, seed=(0,), by_events=by_events)


def batches_of(served: Served) -> list[int]:
    """Return batch sizes in order of completion; batches that end at the same time count as one."""
    done = served.done_ms[np.isfinite(served.done_ms)]
    return [int(count) for count in np.unique(done, return_counts=True)[1]]


def simulated(service, kind: tuple[int, int], rate_per_s, traffic=POISSON, **server) -> Outcome:
    """Simulate a kind, given by its devices and its largest batch."""
    fleet = Fleet([Kind(*kind, service)], rate_per_s, Server(**server), traffic)
    return simulate(fleet, Goal(50.0, 99.0), LONG, (0,)).outcome


@pytest.mark.parametrize(
    ("devices", "routing", "cell"), [(100, "shared", 100), (300, "shared", 256), (300, "least-loaded", 16)]
)
def test_outcome_names_the_devices_that_were_simulated(devices, routing, cell):
    fleet = Fleet([Kind(devices, 64, LINE)], 1200.0 * devices, Server(routing=routing))

    assert simulate(fleet, Goal(200.0, 99.0), Effort(500, 20_000), (0,)).outcome.simulated == cell


@given(arrivals, counts, caps, st.sampled_from(BATCHERS), routings, waits)
def test_serve_any_server_answers_each_request_once(times, devices, cap, batcher, routing, wait_ms):  # noqa: PLR0917
    if batcher == "ray" and routing == "shared":
        routing = "two-choices"  # each replica of Ray Serve has a queue of its own
    served = run(times, devices, cap, batcher=batcher, delay_ms=wait_ms, routing=routing)

    batches = sum(batches_by_size(served))
    assert (served.done_ms - times).min() >= 5.5 - 1e-9
    assert sum(size * often for size, often in enumerate(batches_by_size(served))) == len(times)
    assert math.ceil(len(times) / cap) <= batches <= len(times)
    assert busy_ms(served) == pytest.approx(5 * batches + 0.5 * len(times))
    assert busy_ms(served) <= devices * served.done_ms.max() + 1e-9


@given(arrivals | together, counts, caps, st.sampled_from([None, 3, (2, 1, 4)]))
def test_serve_greedily_equals_the_event_engine(times, devices, cap, samples):
    counted = None if samples is None else np.resize(np.array(samples), len(times))
    fast = run(times, devices, cap, samples=counted, by_events=False)
    plain = run(times, devices, cap, samples=counted)

    assert fast.done_ms == pytest.approx(plain.done_ms)
    assert batches_by_size(fast) == batches_by_size(plain)
    assert busy_ms(fast) == pytest.approx(busy_ms(plain))


@given(arrivals, caps, st.sampled_from(["mosec", "litserve", "ray"]), waits, st.sampled_from([None, (2, 1, 4)]))
def test_serve_a_lone_device_by_batches_equals_the_event_engine(times, cap, batcher, wait_ms, samples):
    """No two requests arrive at the same time: the event engine would look at the queue between them."""
    counted = None if samples is None else np.resize(np.array(samples), len(times))
    server = {"batcher": batcher, "delay_ms": wait_ms, "routing": "random"}
    fast = run(times, 1, cap, samples=counted, by_events=False, **server)
    plain = run(times, 1, cap, samples=counted, **server)

    assert fast.done_ms == pytest.approx(plain.done_ms)
    assert batches_by_size(fast) == batches_by_size(plain)


def test_simulate_devices_that_fall_in_step_slowly_judges_them_in_step():
    """Batches of nearly constant length synchronise after some hundred batches, and requests then wait longer."""
    kind = Kind(35, 5, ServiceTimes({1: [36.9], 5: [37.8]}))
    times = POISSON.draw(300_000, 1.0, (5,)).times / 3.62
    free_ms = np.random.default_rng(1).uniform(0, 37, 35).tolist()
    served = serve(times, None, [kind], Server(), free_ms=free_ms, seed=(5,))
    settled_ms = float(np.quantile((served.done_ms - times)[150_000:], 0.9))
    at_first_ms = float(np.quantile((served.done_ms - times)[:5000], 0.9))

    outcome = simulate(Fleet([kind], 3620.0), Goal(62.0, 90.0), Effort(2000, 1e6, 0.02, 0.03), (0,)).outcome

    assert at_first_ms < 0.9 * settled_ms
    assert outcome.verdict == "misses"
    assert outcome.tail_ms == pytest.approx(settled_ms, rel=0.03)


def test_simulate_near_saturation_gives_an_interval_that_holds_the_percentile():
    """M/D/1: the wait has an exponential tail (Asmussen, "Applied Probability and Queues", section XIII.5).

    The interval is one of 95 %. Far from the target the run is short: some hundred relaxation times of the queue.
    """
    utilization, percentile = 0.97, 99
    decay = scipy.optimize.brentq(lambda one: utilization * math.expm1(one) - one, 1e-6, 1.0)
    chance = (1 - utilization) / (utilization * math.exp(decay) - 1)
    exact_ms = 10 + 10 * math.log(chance / (1 - percentile / 100)) / decay
    fleet, goal = Fleet([Kind(1, 1, CONSTANT)], 100 * utilization), Goal(40 * exact_ms, percentile)

    found = [simulate(fleet, goal, Effort(20_000, 3e5, 0.02, 0.03), (seed,)).outcome for seed in range(20)]

    assert sum(one.tail_low_ms <= exact_ms <= one.tail_high_ms for one in found) >= 18
    assert max(one.tail_high_ms / one.tail_low_ms for one in found) < 5


def test_simulate_far_from_saturation_knows_the_percentile():
    found = simulate(Fleet([Kind(1, 64, LINE)], 100.0), Goal(100.0, 99), Effort(20_000, 1e6, 0.02, 0.03), (0,)).outcome

    assert found.tail_high_ms / found.tail_low_ms < 1.06


def test_simulate_longer_replications_begun_anew_stay_within_the_maximum():
    """Eight replications show devices in step; two of half the maximum, half of it unmeasured, replace them."""
    kind = Kind(35, 5, ServiceTimes({1: [36.9], 5: [37.8]}))

    outcome = simulate(Fleet([kind], 3620.0), Goal(70.0, 90.0), Effort(2000, 150_000, 0.02, 0.001), (3,)).outcome

    assert outcome.requests == 75_000


def test_simulate_many_devices_with_large_batches_shows_the_latency_of_fewer():
    """Before their queues settle, batches are smaller; 200 000 requests are less than four batches of each device."""
    service, server = ServiceTimes({1: [4.0], 512: [45.0]}), Server(routing="least-loaded")
    many, few = (
        simulate(Fleet([Kind(devices, 512, service)], 10_600.0 * devices, server), goal, Effort(4000, most, 0.02), (0,))
        for devices, most, goal in ((100, 200_000, Goal(80.0, 95.0)), (16, 400_000, Goal(80.0, 95.0)))
    )

    assert many.outcome.mean_batch == pytest.approx(few.outcome.mean_batch, rel=0.1)
    assert many.outcome.tail_ms == pytest.approx(few.outcome.tail_ms, rel=0.05)


def test_simulate_percentile_close_to_the_target_ends_sooner_than_an_undecided_one():
    fleet = Fleet([Kind(4, 2, LINE)], 400.0, Server("mosec", 1.0), Traffic(3.0))
    tail_ms = simulate(fleet, Goal(1e3, 99.0), Effort(100_000, 1e6), (0,)).outcome.tail_ms
    close, undecided = (
        simulate(fleet, Goal(factor * tail_ms, 99.0), Effort(5000, 400_000, 0.02), (0,)).outcome
        for factor in (1.005, 1.1)
    )

    assert close.verdict == undecided.verdict == "undecided"
    assert close.requests < undecided.requests


def test_simulate_with_few_late_requests_ends_before_the_error_is_small():
    """The late fraction is three quarters of the allowed one, and three errors below it after the first requests."""
    fleet = Fleet([Kind(64, 1, CONSTANT)], 1280.0, Server(routing="two-choices"))
    tail_ms = simulate(fleet, Goal(1e3, 99.0), Effort(100_000, 1e6), (0,)).outcome.tail_ms

    found = simulate(fleet, Goal(1.04 * tail_ms, 99.0), Effort(20_000, 1e6, 0.02, 0.03), (0,)).outcome

    assert found.verdict == "meets"
    assert found.requests <= 40_000


@given(arrivals, counts, caps, waits)
def test_serve_equal_kinds_equals_one_kind(times, devices, cap, wait_ms):
    """For every server, two equal kinds behave like one."""
    for batcher in ("greedy", "triton", "mosec", "litserve"):
        server = Server(batcher, wait_ms)
        one = serve(times, None, [Kind(2 * devices, cap, LINE)], server, free_ms=[0.0] * 2 * devices, seed=(0,))
        kinds = [Kind(devices, cap, LINE)] * 2
        two = serve(times, None, kinds, server, free_ms=[0.0] * 2 * devices, seed=(0,))
        assert two.done_ms == pytest.approx(one.done_ms)


@pytest.mark.parametrize(
    ("batcher", "when_busy_ms", "when_idle_ms"),
    [
        ("greedy", 30.0, 57.0),
        ("triton", 31.0, 67.0),
        ("mosec", 41.0, 68.0),
        ("litserve", 40.0, 60.0),
        ("ray", 40.0, 67.0),
    ],
)
def test_station_begins_batch_at_batcher_time_on_busy_and_idle_devices(batcher, when_busy_ms, when_idle_ms):
    """A lone request comes at 21 ms, before the device is free at 30; or at 57, when it is idle since 10.

    mosec's timer adds 1 ms. LitServe's windows follow the clock from the time when the device became free.
    """
    for came_ms, free_ms, begins_ms in ((21.0, 30.0, when_busy_ms), (57.0, 10.0, when_idle_ms)):
        kinds, server = [Kind(1, 8, LINE)], Server(batcher, 10.0)
        served = serve(np.array([came_ms]), None, kinds, server, free_ms=[free_ms], seed=(0,))
        assert served.done_ms.tolist() == [begins_ms + 5.5]


@pytest.mark.parametrize("batcher", BATCHERS[1:])
def test_station_with_a_full_batch_does_not_wait(batcher):
    served = run([50.0, 52.0], cap=2, batcher=batcher, delay_ms=10.0)

    assert served.done_ms.tolist() == [58.0, 58.0]


def test_ray_closes_no_batch_while_its_model_blocks_the_event_loop():
    served = run([0.0, 4.0, 8.0, 12.0, 16.0, 20.0], batcher="ray", delay_ms=3.0)

    assert max(batches_of(served)) > 1


@given(arrivals, counts, caps, waits, limits)
def test_serve_with_a_limit_answers_or_refuses_each_request(times, devices, cap, wait_ms, limit):
    for batcher in ("greedy", "triton", "mosec", "litserve"):
        served = run(times, devices, cap, batcher=batcher, delay_ms=wait_ms, limit=limit)
        answered = np.isfinite(served.done_ms)
        assert sum(size * often for size, often in enumerate(batches_by_size(served))) == answered.sum()
        assert (served.done_ms > 0).all()
        roomy = run(times, devices, cap, batcher=batcher, delay_ms=wait_ms, limit=1000)
        assert np.isfinite(roomy.done_ms).all()


@pytest.mark.parametrize("batcher", ["greedy", "triton"])
def test_serve_split_and_whole_requests(batcher):
    """Three requests of two samples, batches up to three: whole requests go one by one, split ones share a batch."""
    whole = batcher == "triton"
    times, samples = [0.0, 1.0, 2.0], np.array([2, 2, 2])
    served = run(times, cap=3, samples=samples, batcher=batcher, is_whole=whole)

    sizes = {size: often for size, often in enumerate(batches_by_size(served)) if often}
    assert sizes == ({2: 3} if whole else {2: 1, 3: 1, 1: 1})


def test_serve_counts_the_overhead_of_a_whole_request_once():
    service = ServiceTimes({size: [0.5 * size + 5] for size in SIZES}, Overheads(1.0, 0.25), whole=(4, 4))
    served = run([0.0], cap=8, service=service, samples=np.array([4]), batcher="triton", is_whole=True)

    assert served.done_ms.tolist() == [5 + 2 + 1 + 0.25]
    assert service.mean_ms(4) == 8.25


def test_answers_go_out_one_by_one_while_the_device_goes_on():
    served = run([0.0, 1.0, 1.5], cap=2, per_answer_ms=4.0)

    assert served.done_ms.tolist() == [5.5 + 4, 11.5 + 4, 11.5 + 8]


def erlang_c(devices: int, load: float) -> float:
    """Return the probability that a request waits in M/M/c."""
    offered = load * devices
    last = offered**devices / factorial(devices) / (1 - load)
    return last / (sum(offered**state / factorial(state) for state in range(devices)) + last)


@pytest.mark.parametrize(("devices", "load"), [(1, 0.5), (1, 0.8), (4, 0.8), (20, 0.9)])
def test_exponential_service_waits_as_erlang_c_has_it(devices, load):
    rate_per_s = load * devices * 100
    mean_ms = 10 + erlang_c(devices, load) * 10 / devices / (1 - load)

    for routing in ("shared", "random") if devices == 1 else ("shared",):
        outcome = simulated(EXPONENTIAL, (devices, 1), rate_per_s, routing=routing)
        assert outcome.mean_ms == pytest.approx(mean_ms, rel=0.03)
        assert outcome.busy == pytest.approx(load, rel=0.01)
        assert outcome.utilization == pytest.approx(load, rel=1e-3)


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("routing", ["shared", "random"])
def test_constant_service_waits_as_pollaczek_and_khinchine_have_it(load, routing):
    """A random split of a Poisson stream gives each of four devices a Poisson stream."""
    devices = 4 if routing == "random" else 1
    outcome = simulated(CONSTANT, (devices, 1), load * devices * 100, routing=routing)

    assert outcome.mean_ms == pytest.approx(10 + load * 10 / 2 / (1 - load), rel=0.03)


@pytest.mark.parametrize("load", [0.1, 0.3, 0.5, 0.7])
def test_bulk_service_has_the_mean_of_its_closed_form(load):
    service = ServiceTimes({size: [0.5 * size + 5] for size in (1, 4096)})
    rate_per_s = load / 0.5 * 1000
    outcome = simulated(service, (1, 4096), rate_per_s)

    assert outcome.mean_ms == pytest.approx(mean_ms_of_one_device(rate_per_s / 1000, 0.5, 5.0), rel=0.02)


def blocked(devices: int, load: float, places: int) -> float:
    """Return the fraction that M/M/c/(c + K) refuses, by Erlang's balance of each state with the next."""
    offered = load * devices
    weights = [offered**state / factorial(state) for state in range(devices + 1)]
    weights += [weights[-1] * load**waiting for waiting in range(1, places + 1)]
    return weights[-1] / sum(weights)


@pytest.mark.parametrize(("devices", "places", "load"), [(1, 1, 0.5), (1, 5, 1.0), (3, 4, 0.9), (3, 4, 1.5)])
def test_a_full_queue_refuses_as_erlang_has_it(devices, places, load):
    outcome = simulated(EXPONENTIAL, (devices, 1), load * devices * 100, limit=places)

    assert outcome.refused == pytest.approx(blocked(devices, load, places), rel=0.05, abs=0.0015)


@pytest.mark.parametrize(("batcher", "load"), [("greedy", 0.7), ("greedy", 1.4), ("mosec", 1.0)])
def test_full_queue_of_constant_service_refuses_like_embedded_chain(load, batcher):
    outcome = simulated(CONSTANT, (1, 1), load * 100, limit=4, batcher=batcher)

    assert outcome.refused == pytest.approx(refused_of_constant(load, 4), rel=0.05, abs=0.001)


@pytest.mark.parametrize(("limit", "batches"), [(inf, [1, 1, 16, 11, 16, 11, 4]), (8, [1, 8, 8])])
def test_triton_itself_made_the_same_batches(limit, batches):
    """Seen in PyTriton 0.7.0: one instance, largest batch 16, constant batch time, a request every 15 ms."""
    times = [3.0 + 15 * number for number in range(60)]
    served = run(times, 1, 16, ServiceTimes({16: [205.0]}), batcher="triton", delay_ms=10, limit=limit)

    assert batches_of(served) == batches


def test_full_triton_queue_leaves_free_device_idle_for_half_a_second():
    """The first batch ends at 110 ms, the queue is full since 15, and an accepted request does not wake the batcher."""
    service = ServiceTimes({4: [100.0]})
    served = run([10.0, 15.0, 20.0, 115.0, 200.0], 1, 4, service, batcher="triton", limit=1)

    assert served.done_ms[[0, 1]].tolist() == [110.0, 710.0]
    assert np.isinf(served.done_ms[2:]).all()


@given(arrivals, caps, counts)
def test_triton_without_delay_equals_greedy(times, cap, devices):
    """With an unreachable limit the Triton class runs; without a limit the greedy one does."""
    greedy = run(times, devices, cap)

    assert run(times, devices, cap, batcher="triton").done_ms == pytest.approx(greedy.done_ms)


long_gaps = st.lists(st.sampled_from([0.0, 0.3, 2.0, 7.7, 40.1, 333.3, 5000.7]), min_size=1, max_size=40)


@given(long_gaps, st.integers(1, 3), caps, st.sampled_from(BATCHERS))
def test_without_idle_time_every_latency_is_the_same(gaps, devices, cap, batcher):
    server = Server(batcher, 0.0 if batcher == "greedy" else 4.0, "least-loaded" if batcher == "ray" else "shared")
    times = np.cumsum(np.array(gaps) + np.sqrt(2) / 1000)
    longest_ms = float(LINE.curve_ms(cap)[-1]) + server.longest_wait_ms
    shorter = without_idle(times, longest_ms, server.window_ms)

    kinds, free = [Kind(devices, cap, LINE)], [0.0] * devices
    plain, cut = (serve(each, None, kinds, server, free_ms=free, seed=(0,)).done_ms - each for each in (times, shorter))
    assert cut == pytest.approx(plain, abs=1e-6)
    assert shorter[-1] <= times[-1]


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 1.0, 2.0])
def test_a_thinned_queue_is_one_of_a_random_split(burstiness):
    """The whole fleet, with each request on a random device, has the latencies of one thinned queue."""
    traffic = Traffic(burstiness)
    kinds, rate_per_s = [Kind(5, 8, LINE)], 3000.0
    one = simulated(LINE, (5, 8), rate_per_s, traffic=traffic, routing="random")
    tails = []
    for seed in range(4):
        times = traffic.draw(100_000, 1.0, (seed,)).times * 1000 / rate_per_s
        free = np.random.default_rng(seed).uniform(0, 8, 5).tolist()
        whole = serve(times, None, kinds, Server(routing="random"), free_ms=free, seed=(seed,))
        tails.append(float(np.quantile((whole.done_ms - times)[10_000:], 0.99)))

    assert one.tail_ms == pytest.approx(np.mean(tails), rel=0.03)


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 2.0])
def test_a_thinned_stream_keeps_its_index_of_dispersion(burstiness):
    times = Traffic(burstiness).draw(400_000, 0.25, (0,)).times
    window = 50.0
    counted = np.bincount((times / window).astype(int))[:-1]

    assert times[-1] / len(times) == pytest.approx(1.0, rel=0.02)
    assert counted.var() / counted.mean() == pytest.approx(Traffic(burstiness).dispersion(0.25), rel=0.08)


@pytest.fixture
def ray(monkeypatch):
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'ray[serve]'")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from serving import virtual_ray

    yield virtual_ray
    sys.modules.pop("serving", None)


@pytest.mark.long
@pytest.mark.parametrize(("rate_per_s", "cap"), [(300, 32), (150, 5), (240, 8)])
def test_ray_serve_itself_answers_every_request_at_the_same_time(ray, rate_per_s, cap):
    times = np.cumsum(np.random.default_rng(0).exponential(1000 / rate_per_s, 1000))
    theirs = ray.answered_ms(
        times, [lambda size: 5 + 0.5 * size], cap=cap, delay_ms=10.0, max_ongoing=1000, blocking=True
    )

    served = run(times, 1, cap, batcher="ray", delay_ms=10.0)

    assert served.done_ms == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_late_fraction_does_not_depend_on_number_of_slow_draws(seed):
    """1 % of lone requests take 50 ms: plain counting would have a standard error of 7 %."""
    service = ServiceTimes({1: [5.0] * 99 + [50.0]})

    found = simulate(Fleet([Kind(50, 1, service)], 10.0), Goal(20.0, 99.0), Effort(20_000, 20_000), (seed,)).outcome

    assert found.late == pytest.approx(0.01, rel=0.01)
    assert found.late_error < 0.02 * 0.01


def test_simulate_devices_that_bunch_forgets_how_they_began():
    """Devices that end their batches together make the queue too long, for about twenty batches."""
    times = service_times_of(load_record(record_path("nvidia-h200/earlier/efficientnet_b0-fp16.json")))
    fleet = Fleet([Kind(41, 12, times)], 75_000)

    late = [simulate(fleet, Goal(7.02, 99.0), Effort(20_000, 400_000), (seed,)).outcome.late for seed in range(12)]

    assert np.mean(late) == pytest.approx(0.0138, rel=0.1)


def test_simulate_latencies_that_fall_for_long_are_measured_later():
    """Initially long queues shrink for 300 000 requests: p99.9 is 59.7 ms after three million."""
    times = service_times_of(load_record(record_path("nvidia-h100/default/resnet50-fp16-nhwc.json")))
    fleet = Fleet([Kind(14, 417, times)], 195_000, Server("litserve", 1.0, "two-choices"), Traffic(0.5))

    found = simulate(fleet, Goal(74.0, 99.9), Effort(200_000, 1e6, 0.04, 0.03), (0, 1)).outcome

    assert found.tail_ms == pytest.approx(59.7, rel=0.03)


def test_simulate_too_few_excursions_of_the_queue_leaves_the_target_unmet():
    """0.4 % of six million requests are late, in few excursions: a run of 366 000 may have none."""
    times = service_times_of(load_record(RESULTS / "nvidia-h200/default/efficientnet_b0-fp16.json"))
    fleet = Fleet([Kind(37, 186, times)], 491_000)

    found = simulate(fleet, Goal(16.7, 99.9), Effort(200_000, 6e6, 0.008, 0.03), (0, 1)).outcome

    assert found.late > 0.001
    assert not found.meets_target


def test_batches_that_triton_has_ready_are_there_when_latencies_are_measured():
    """The fleet fills its queues within about fifty batches, and then answers a sixth of the requests too late."""
    eager, *_ = load_records(RESULTS / "nvidia-h200/recipes/resnet50-fp16.json")
    times = service_times_of(eager, Overheads(0.5, 0.02))
    fleet = Fleet([Kind(79, 256, times)], 605_000, Server("triton", 18.0, "random"))

    found = simulate(fleet, Goal(110.0, 90.0), Effort(20_000, 400_000), (0,)).outcome

    assert found.verdict == "misses"
    assert found.late == pytest.approx(0.168, rel=0.05)
