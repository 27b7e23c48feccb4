"""A demand by its options: what is read, what follows from it, and what is refused in words."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tputfind.errors import BadRequest
from tputfind.sizing.demand import Demand
from tputfind.sizing.gaps import gaps_of
from tputfind.sizing.options import read_demand


def wanted(**more: object) -> Demand:
    return read_demand({"rate": 5, "slo": "50ms", **more})


def test_each_option_is_its_field():
    assert msgspec.structs.asdict(
        read_demand(
            {
                "rate": "7",
                "slo": "60ms",
                "percentile": "95",
                "burstiness": "2",
                "batcher": "litserve",
                "delay": "3ms",
                "routing": "random",
                "overhead_per_batch": "1ms",
                "overhead_per_request": "2ms",
                "overhead_per_get": "0.5ms",
                "overhead_per_answer": "4ms",
                "network": "5ms",
                "max_batch": "6",
                "seed": "8",
                "devices": "9",
                "spare": "2",
                "most_load": "70%",
                "rack": "10kW",
                "idle_power": "90W",
                "samples_per_request": "1:0.75,4:0.25",
                "requests": "split",
            }
        )
    ) == {
        "rate_per_s": 7.0,
        "slo_ms": 60.0,
        "percentile": 95.0,
        "burstiness": 2.0,
        "gaps": None,
        "batcher": "litserve",
        "delay_ms": 3.0,
        "routing": "random",
        "overhead_per_batch_ms": 1.0,
        "overhead_per_request_ms": 2.0,
        "overhead_per_get_ms": 0.5,
        "overhead_per_answer_ms": 4.0,
        "network_ms": 5.0,
        "max_batch": 6,
        "seed": 8,
        "devices": 9,
        "solve": "nothing",
        "spare": 2,
        "most_load": 0.7,
        "max_queue": None,
        "preferred_batches": (),
        "search_delay": False,
        "rack_w": 10_000.0,
        "idle_w": 90.0,
        "samples_per_request": ((1, 0.75), (4, 0.25)),
        "counts": None,
        "requests": "split",
        "handler": None,
        "max_ongoing": None,
        "max_latency_ms": None,
    }


def test_limits_of_a_server_are_its_own_unless_they_are_told():
    ray, told = wanted(batcher="ray"), wanted(batcher="ray", max_ongoing="64", handler="threaded", max_queue="9")
    bento = wanted(batcher="bentoml", max_latency="40ms")

    assert (ray.handled, ray.most_ongoing, ray.max_queue, ray.most_latency_ms) == ("blocking", 5, None, None)
    assert (told.handled, told.most_ongoing, told.max_queue) == ("threaded", 64, 9)
    assert (bento.handled, bento.routing, bento.most_latency_ms) == ("threaded", "random", 40.0)
    assert (wanted().handled, wanted().most_ongoing, wanted().most_latency_ms) == (None, None, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"handler": "threaded"}, "--handler is of --batcher ray or bentoml"),
        ({"max_ongoing": 8, "batcher": "bentoml"}, "--max-ongoing is of --batcher ray"),
        ({"max_queue": 8, "batcher": "litserve"}, "--max-queue is of --batcher greedy, triton, mosec or ray"),
        ({"max_latency": "8ms", "batcher": "ray"}, "--max-latency is of --batcher bentoml"),
        ({"delay": "8ms", "batcher": "bentoml"}, "finds out by itself how long to wait"),
        ({"handler": "async", "batcher": "ray"}, "blocking, threaded"),
        ({"max_ongoing": 0, "batcher": "ray"}, "max-ongoing"),
    ],
)
def test_a_limit_that_the_server_does_not_have_is_refused_in_one_line(options, said):
    with pytest.raises(BadRequest) as refused:
        wanted(**options)

    assert said in refused.value.message


@pytest.mark.parametrize(
    ("given", "wait_ms"),
    [
        ({}, 0.0),
        ({"batcher": "triton"}, 0.0),
        ({"batcher": "mosec"}, 10.0),
        ({"batcher": "litserve"}, 0.0),
        ({"batcher": "ray"}, 10.0),
        ({"batcher": "ray", "delay": 0}, 0.0),
        ({"batcher": "triton", "delay": "1us"}, 0.001),
        ({"batcher": "mosec", "delay": "1ms"}, 1.0),
        ({"batcher": "mosec", "delay": 7.0}, 7.0),
    ],
)
def test_a_batch_waits_as_long_as_its_server_has_it_unless_told_otherwise(given, wait_ms):
    assert wanted(**given).wait_ms == wait_ms


def test_requests_of_ray_are_routed_as_ray_does_unless_told_otherwise():
    assert wanted(batcher="ray").routing == "two-choices"
    assert wanted(batcher="ray", routing="random").routing == "random"


@pytest.mark.parametrize(("delay", "get", "most"), [(5.0, 0.0, None), (0.0, 0.2, None), (5.0, 2.0, 3), (4.0, 2.0, 2)])
def test_only_so_many_requests_are_got_as_begin_in_a_window(delay, get, most):
    for routing in ("shared", "random"):
        demand = wanted(batcher="litserve", delay=delay, overhead_per_get=get, routing=routing)
        assert demand.most_in_window == most


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"network": "50ms"}, "--network 50 ms leaves nothing of --slo 50 ms"),
        ({"delay": 1.0}, "--delay: the greedy batcher sends what is there, and waits for nothing"),
        (
            {"batcher": "ray", "routing": "shared"},
            "--batcher ray batches in each replica: --routing two-choices, least-loaded or random",
        ),
        ({"batcher": "mosec", "delay": 1.5}, "--delay of mosec is in whole milliseconds, 1 ms at the least"),
        ({"batcher": "mosec", "delay": 0}, "--delay of mosec is in whole milliseconds, 1 ms at the least"),
        ({"overhead_per_get": 1.0}, "overhead_per_get is of --batcher litserve, and of --routing shared or random"),
        (
            {"overhead_per_get": 1.0, "batcher": "litserve", "routing": "two-choices"},
            "overhead_per_get is of --batcher litserve, and of --routing shared or random",
        ),
        ({"batcher": "triton", "delay": 9e-4}, "--delay and overhead_per_get are 0, or 1us at the least"),
        (
            {"batcher": "litserve", "overhead_per_get": 9e-4},
            "--delay and overhead_per_get are 0, or 1us at the least",
        ),
        (
            {"gaps": (1.0,) * 99, "burstiness": 2},
            "--arrivals say how bursty the stream is, so --burstiness has nothing to add",
        ),
        (
            {"network": "60ms", "overhead_per_get": 9e-4, "batcher": "litserve"},
            "--network 60 ms leaves nothing of --slo 50 ms; --delay and overhead_per_get are 0, or 1us at the least",
        ),
    ],
)
def test_options_at_odds_are_refused_with_all_that_is_wrong(given, message):
    with pytest.raises(BadRequest) as refused:
        wanted(**given)

    assert (refused.value.message, refused.value.hint) == (message, "see tputfind size --help")


def test_what_just_fits_together_is_accepted():
    assert wanted(network="49.9ms").target_ms == pytest.approx(0.1)
    assert wanted(delay=0).wait_ms == 0
    assert wanted(batcher="litserve", overhead_per_get="1us").overhead_per_get_ms == 0.001
    assert wanted(gaps=(1.0,) * 99, burstiness=1).gaps == (1.0,) * 99


def test_gaps_are_read_from_an_array_too():
    assert wanted(gaps=np.arange(99.0)).gaps == tuple(range(99))


def test_gaps_are_of_100_requests_or_more_and_of_no_more_than_are_replayed(monkeypatch):
    monkeypatch.setattr("tputfind.sizing.gaps.MOST_ARRIVALS", 200)

    assert len(wanted(gaps=[1.0] * 199).gaps or ()) == 199
    for wrong in (98, 200):
        with pytest.raises(BadRequest) as refused:
            wanted(gaps=[1.0] * wrong)
        assert refused.value.message == f"--gaps: {wrong} times between requests are not from 99 to 200"


def test_times_of_requests_come_to_the_gaps_between_them(monkeypatch):
    monkeypatch.setattr("tputfind.sizing.gaps.MOST_ARRIVALS", 200)
    names = [f"line {number}" for number in range(300)]

    assert gaps_of([0.0, 0.0, 1e15, *(1e15 + number for number in range(97))], names)[:4] == (0.0, 1e15, 0.0, 1.0)
    assert gaps_of([float(number) for number in range(200)], names) == (1.0,) * 199


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([*range(99)], "99 requests show no stream: at least 100 are needed"),
        ([*range(201)], "201 requests are more than are replayed: 200 at the most"),
        ([5, 4, *range(5, 150)], "line 1: 4 is before 5: times must rise"),
        ([*range(150), 1e16], "line 150: 1e+16 is more than 1e+15 after the one before"),
        ([0.0] * 100, "the times of requests must rise, by 1e-15 on average, and rise by 0"),
    ],
)
def test_times_that_show_no_stream_are_refused_by_their_names(monkeypatch, times, message):
    monkeypatch.setattr("tputfind.sizing.gaps.MOST_ARRIVALS", 200)

    with pytest.raises(ValueError) as refused:
        gaps_of(times, [f"line {number}" for number in range(300)])

    assert str(refused.value) == message
