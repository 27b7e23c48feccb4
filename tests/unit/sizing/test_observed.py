"""Overheads of a server, estimated from logs of a simulated server whose overheads are known."""

import numpy as np
import pytest
from support.folders import record_path

import tputfind
from tputfind.errors import BadRequest
from tputfind.sizing.calibration import Log, log_of, notices_of_logs
from tputfind.sizing.engine.service_times import service_times_of
from tputfind.sizing.planner.plan import add_estimate, answers, calibration_of, plan_by_logs
from tputfind.sizing.planner.question import read_demand

CAP = 32
PER_BATCH_MS, PER_REQUEST_MS, ON_THE_WAY_MS, SCATTER_MS, UNEVEN_MS = 0.8, 0.1, 1.5, 0.5, 0.2
LIGHT, HALF, HEAVY = 33.0, 165.0, 270.0


@pytest.fixture(scope="module")
def record():
    return tputfind.load_record(record_path("nvidia-h200/serving/vit_l_16-fp32.json"))


def asked(**more):
    return read_demand({"rate": 600, "slo": "300ms", "max_batch_size": CAP, **more})


def log(record, rate_per_s: float, count: int, seed: int, *, batches: bool = False, slower: float = 1.0) -> Log:
    """Return the log of a greedy server with overheads; its answers have random delays in transit."""
    service, chance = service_times_of(record), np.random.default_rng(seed)
    curves = {size: service.curve_ms(size) for size in range(1, CAP + 1)}
    sent_ms = np.cumsum(chance.exponential(1000 / rate_per_s, count))
    came, free, head = sent_ms + ON_THE_WAY_MS, 0.0, 0
    answered, begun, ended = np.zeros(count), np.zeros(count), np.zeros(count)
    while head < count:
        start = max(free, came[head])
        size = min(CAP, int(np.searchsorted(came[head:], start, side="right")))
        these = slice(head, head + size)
        begun[these], ended[these] = start, start + slower * chance.choice(curves[size])
        free = ended[head] + PER_BATCH_MS + PER_REQUEST_MS * size + chance.normal(0, UNEVEN_MS)
        answered[these] = free + chance.exponential(SCATTER_MS, size)
        head += size
    return Log(f"{rate_per_s:g}", sent_ms, answered, *((begun, ended) if batches else ()))


def real_logs(server: str, *, batches: bool) -> list[Log]:
    """Return the logs of a server on an H200, at 10, 50 and 85 % utilization."""
    logs = []
    with np.load(record_path(f"nvidia-h200/serving/{server}-vit_l_16-fp32.npz")) as file:
        for load in ("0.1", "0.5", "0.85"):
            sent_ms, latency_ms, _, step_ms, begun_ms = file[load].T
            log = Log(load, sent_ms, sent_ms + latency_ms, begun_ms, begun_ms + step_ms)
            logs.append(log if batches else log._replace(begun_ms=None, ended_ms=None))
    return logs


@pytest.mark.parametrize("batches", [False, True])
def test_logs_of_light_and_half_load_predict_heavy_load(record, batches):
    logs = [log(record, LIGHT, 1200, 1, batches=batches), log(record, HALF, 4000, 2, batches=batches)]
    found = calibration_of(record, asked(), [*logs, log(record, HEAVY, 6000, 3)]).observed

    assert found.found_by == ("batches" if batches else "latencies")
    assert found.per_batch.value_ms == pytest.approx(PER_BATCH_MS, abs=0.2)
    assert found.per_request.value_ms == pytest.approx(PER_REQUEST_MS, abs=0.05)
    assert found.beside.value_ms == pytest.approx(ON_THE_WAY_MS + SCATTER_MS, abs=0.3)
    for overhead in (found.per_batch, found.per_request, found.beside):
        assert 0 <= overhead.low_ms <= overhead.value_ms <= overhead.high_ms
    light, half, heavy = found.runs
    assert (light.fitted, half.fitted, heavy.fitted) == (True, True, False)
    assert heavy.off[2] == pytest.approx(0, abs=0.08)
    assert half.off == pytest.approx((0, 0, 0), abs=0.05)
    assert heavy.observed.p99_ms == pytest.approx(np.quantile(log(record, HEAVY, 6000, 3).latency_ms[600:], 0.99))


def test_delay_of_triton_that_passed_while_the_device_computed_is_no_overhead(record):
    logs = [log(record, LIGHT, 1200, 1, batches=True), log(record, HALF, 4000, 2, batches=True)]
    found = calibration_of(record, asked(batcher="triton", delay=2.0), logs).observed

    assert found.per_batch.value_ms == pytest.approx(PER_BATCH_MS, abs=0.2)


def even(count: int, gap_ms: float, latency_ms: float) -> Log:
    sent_ms = np.arange(count) * gap_ms
    return Log("even", sent_ms, sent_ms + latency_ms)


def in_milliseconds(found: Log) -> Log:
    return Log("ms", 1000 * found.sent_ms, 1000 * found.answered_ms)


@pytest.mark.parametrize(
    ("logged", "options", "message"),
    [
        (
            lambda record: log(record, LIGHT, 1200, 1),
            {},
            r"10% of what the device can do is too light a load .*requests/s too: half of what the device can do",
        ),
        (lambda record: log(record, HEAVY, 1200, 1), {}, r"no log has 65% or less of what the device can do"),
        (lambda _: even(1000, 1.0, 20.0), {}, r"of what one device can do by the record"),
        (
            lambda record: log(record, 40, 1200, 1, batches=True),
            {"max_batch_size": 2},
            r"has batches of [0-9]+, and 2 is the largest here",
        ),
        (
            lambda record: in_milliseconds(log(record, HALF, 1200, 1)),
            {},
            r"too light a load .*times are in seconds\)$",
        ),
        (
            lambda record: even(3000, 15.0, service_times_of(record).mean_ms(1)),
            {},
            r"too light a load|lies anywhere",
        ),
    ],
)
def test_logs_that_show_no_overheads_are_refused_with_what_to_log(record, logged, options, message):
    with pytest.raises(BadRequest, match=message):
        calibration_of(record, asked(**options), [logged(record)])


def test_transit_time_is_subtracted_from_target_with_network(record):
    logs = [log(record, HALF, 3000, 2, batches=True)]
    found = calibration_of(record, asked(), logs)
    demand = add_estimate(asked(network="3ms"), found.estimate)

    assert demand.network_ms == pytest.approx(3 + found.observed.beside.value_ms)
    assert demand.overhead_per_batch_ms == found.observed.per_batch.value_ms
    with pytest.raises(BadRequest, match="leave nothing of --slo 5 ms"):
        add_estimate(asked(network="4.5ms", slo="5ms"), found.estimate)


def test_plan_uses_logged_overheads_and_its_range_their_uncertainty(record):
    logs = [log(record, HALF, 4000, 2)]
    (found,) = answers([record], asked(), logs=logs).plans

    assert found.demand.overhead_per_batch_ms == found.observed.per_batch.value_ms > 0
    assert found.fewest <= found.outcome.devices <= found.most
    assert "copies" not in [notice.kind for notice in found.notices]


@pytest.mark.parametrize(
    ("given", "said"), [({"overhead": 1.0}, "--overhead"), ({"samples_per_request": 2}, "samples")]
)
def test_logs_are_refused_with_options_that_they_contradict(record, given, said):
    with pytest.raises(BadRequest, match=f"--observed does not go with .*{said}"):
        plan_by_logs(record, asked(**given), [log(record, LIGHT, 50, 2)])


def test_model_slower_than_its_record_is_reported(record):
    slow = [log(record, HALF / 1.5, 3000, 2, batches=True, slower=1.5)]
    fit = calibration_of(record, asked(), slow)

    assert [notice.kind for notice in notices_of_logs(fit.observed)] == ["observed_off"]
    good = calibration_of(record, asked(), [log(record, HALF, 4000, 2, batches=True)])
    assert list(notices_of_logs(good.observed)) == []


@pytest.mark.parametrize("batches", [False, True])
def test_batcher_that_waits_too_long_gives_no_negative_overheads_and_is_reported(record, batches):
    logs = [log(record, LIGHT, 800, 1, batches=batches), log(record, HALF, 2000, 2, batches=batches)]
    found = calibration_of(record, asked(batcher="mosec", delay="20ms"), logs)

    assert found.estimate.per_batch == found.estimate.beside == 0
    assert min(found.estimate) >= 0
    (notice,) = notices_of_logs(found.observed)
    assert notice.seen.startswith("p95 of 165 is predicted +")


def test_rows_are_sorted_and_times_count_from_the_first():
    count = 120
    sent = [1.7e9 + 0.01 * number for number in range(count)]
    columns = {"sent": sent[::-1], "answered": [one + 0.005 for one in sent[::-1]]}
    found = log_of("log.csv", columns, [f"line {number}" for number in range(count)])

    assert found.sent_ms == pytest.approx(np.arange(count) * 10.0, abs=1e-3)
    assert found.latency_ms == pytest.approx(np.full(count, 5.0), abs=1e-3)
    assert found.rate_per_s == pytest.approx(100)


@pytest.mark.parametrize(("batches", "off"), [(False, 0.1), (True, 0.03)])
@pytest.mark.parametrize("server", ["mosec", "litserve"])
def test_logs_of_real_servers_predict_an_unfitted_load(record, server, batches, off):
    found = calibration_of(record, asked(batcher=server, delay=5.0), real_logs(server, batches=batches)).observed

    *_, heavy = found.runs
    assert not heavy.fitted
    assert heavy.load > 0.75
    assert abs(heavy.off[2]) < off


@pytest.mark.long
@pytest.mark.parametrize("batches", [False, True])
def test_intervals_hold_the_overheads_that_a_server_has(record, batches):
    held = []
    for seed in range(6):
        logs = [
            log(record, LIGHT, 1200, 2 * seed, batches=batches),
            log(record, HALF, 4000, 2 * seed + 1, batches=batches),
        ]
        found = calibration_of(record, asked(), logs).observed
        pairs = ((found.per_batch, PER_BATCH_MS), (found.per_request, PER_REQUEST_MS))
        held.append([one.low_ms <= true <= one.high_ms for one, true in pairs])
    assert np.mean(held) >= 0.8
