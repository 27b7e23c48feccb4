"""A demand from its options: values, consequences, and refusals."""

import numpy as np
import pytest

from tputfind.errors import BadRequest
from tputfind.sizing.engine.service_times import Overheads
from tputfind.sizing.planner.question import PRESETS, Demand, read_demand
from tputfind.sizing.traffic import gaps_of

GREEDY_WAITS = "--delay of the greedy batcher is 0"


def wanted(**more: object) -> Demand:
    return read_demand({"rate": 5, "slo": "50ms", **more})


def test_each_option_is_its_field():
    given = {
        "rate": ("7", {"rate_per_s": 7.0}),
        "slo": ("60ms", {"slo_ms": 60.0}),
        "percentile": ("95", {"percentile": 95.0}),
        "burstiness": ("2", {"burstiness": 2.0}),
        "batcher": ("litserve", {"batcher": "litserve"}),
        "delay": ("3ms", {"delay_ms": 3.0}),
        "routing": ("random", {"routing": "random"}),
        "overhead": ("1ms+2ms", {"overhead_per_batch_ms": 1.0, "overhead_per_request_ms": 2.0}),
        "network": ("5ms", {"network_ms": 5.0}),
        "max_batch_size": ("6", {"max_batch_size": 6}),
        "seed": ("8", {"seed": 8}),
        "devices": ("9", {"devices": 9, "solve": "nothing"}),
        "spare": ("2", {"spare": 2}),
        "max_utilization": ("70%", {"max_utilization": 0.7}),
        "samples_per_request": ("1:0.75,4:0.25", {"samples_per_request": ((1, 0.75), (4, 0.25))}),
    }
    fields = {name: field for _, its in given.values() for name, field in its.items()}

    assert read_demand({option: value for option, (value, _) in given.items()}) == Demand(**fields)


def test_limits_of_a_server_are_its_own_unless_given():
    ray, given = wanted(batcher="ray"), wanted(batcher="ray", max_ongoing="64", max_queue="9")

    assert (ray.most_ongoing, ray.max_queue) == (5, None)
    assert (given.most_ongoing, given.max_queue) == (64, 9)
    assert (wanted().most_ongoing, wanted(max_ongoing=7).most_ongoing) == (None, 7)


@pytest.mark.parametrize(
    ("value", "overheads"),
    [
        ("0.5ms+0.05ms", (0.5, 0.05, 0.0)),
        (" 500us + 0 ", (0.5, 0.0, 0.0)),
        ("2ms", (2.0, 0.0, 0.0)),
        ("1ms+2ms+3ms", (1.0, 2.0, 3.0)),
        ((0.5, 0.05), (0.5, 0.05, 0.0)),
        (1.5, (1.5, 0.0, 0.0)),
        ("mosec", PRESETS["mosec"]),
        ("LitServe", PRESETS["litserve"]),
    ],
)
def test_overhead_is_per_batch_and_per_request_or_a_preset(value, overheads):
    assert wanted(overhead=value).overheads == Overheads(*overheads)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": None, "slo": None}, "name two of --rate, --slo and --devices"),
        (
            {"rate": "x", "slo": "50"},
            "--rate: 'x' is not a finite number per second such as 5000, 5k or 1M; --slo: '50' is not a duration",
        ),
        ({"rate": "0"}, "--rate: '0' is not from 1e-09 to 1e+12"),
        ({"rate": 1e-10}, "--rate: 1e-10 is not from 1e-09 to 1e+12"),
        ({"rate": "nan"}, "--rate: 'nan' is not a finite number"),
        ({"rate": 10**400}, "is not a finite number"),
        ({"slo": "99999999h"}, "--slo: '99999999h' is more than 100h"),
        ({"seed": "inf"}, "--seed: 'inf' is not a whole number"),
        ({"percentile": "100"}, "--percentile: '100' is not from 50 to 99.99"),
        ({"percentile": "0.99"}, "in percent: did you mean 99?"),
        ({"burstiness": "-1"}, "--burstiness: '-1' is not from 0 to 20"),
        ({"network": "-1"}, "--network: '-1' is not a duration"),
        ({"max_batch_size": "1.5"}, "not a whole number"),
        ({"batcher": "torchserve"}, "is not one of greedy, triton"),
        ({"delay": "101h", "batcher": "triton"}, "--delay: '101h' is more than 100h"),
        ({"overhead": "1ms+2ms+3ms+4ms"}, "--overhead: '1ms+2ms+3ms+4ms' has more than three times; give 0.5ms+0.05ms"),
        ({"overhead": "fast"}, "--overhead: 'fast' is not a duration"),
        ({"overhead": "-1ms"}, "give 0.5ms+0.05ms (a batch, a request), or mosec or litserve"),
        ({"gaps": [0.0] * 200}, "--gaps: the times of requests must rise"),
        ({"gaps": [1.0] * 150 + [float("nan")]}, "--gaps: number 150: nan is not a finite number"),
        ({"gaps": [1.0] * 150 + [-1.0]}, "--gaps: number 150: -1.0 is not from 0 to 1e+15"),
        ({"gaps": [1.0] * 150 + [1e16]}, "--gaps: number 150: 1e+16 is not from 0 to 1e+15"),
        ({"gaps": "1,2"}, "--gaps: '1,2' is not a list"),
    ],
)
def test_wrong_value_is_refused_with_option_and_accepted_values(options, message):
    with pytest.raises(BadRequest) as refused:
        wanted(**options)

    assert message in refused.value.message


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
def test_batch_wait_defaults_to_that_of_its_server(given, wait_ms):
    assert wanted(**given).wait_ms == wait_ms


def test_ray_requests_use_two_choices_routing_by_default():
    assert wanted(batcher="ray").routing == "two-choices"
    assert wanted(batcher="ray", routing="random").routing == "random"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"network": "50ms"}, "--network 50 ms leaves nothing of --slo 50 ms"),
        ({"delay": 1.0}, GREEDY_WAITS),
        (
            {"batcher": "ray", "routing": "shared"},
            "--batcher ray batches in each replica: --routing two-choices, least-loaded or random",
        ),
        (
            {"batcher": "mosec", "delay": 1.5},
            "--delay of the mosec batcher is whole ms from 1 on",
        ),
        ({"batcher": "mosec", "delay": 0}, "--delay of the mosec batcher is whole ms from 1 on"),
        ({"batcher": "triton", "delay": 9e-4}, "--delay: 0.0009 ms is neither 0 nor at least 1us"),
        (
            {"gaps": (1.0,) * 99, "burstiness": 2},
            "--burstiness and --samples-per-request cannot be combined with --arrivals, which show them",
        ),
        (
            {"network": "60ms", "delay": 1.0},
            "--network 60 ms leaves nothing of --slo 50 ms; " + GREEDY_WAITS,
        ),
    ],
)
def test_options_at_odds_are_refused_with_all_that_is_wrong(given, message):
    with pytest.raises(BadRequest) as refused:
        wanted(**given)

    assert (refused.value.message, refused.value.hint) == (message, "see tputfind size --help")


def test_barely_consistent_options_are_accepted():
    assert wanted(network="49.9ms").target_ms == pytest.approx(0.1)
    assert wanted(delay=0).wait_ms == 0
    assert wanted(gaps=(1.0,) * 99, burstiness=1).gaps == (1.0,) * 99


def test_recorded_requests_keep_their_rate_unless_given_or_asked_for():
    gaps = {"gaps": (0.02,) * 199}

    assert read_demand({"slo": 50, **gaps}).rate_per_s == pytest.approx(50)
    found = read_demand({"devices": 4, **gaps})
    assert (found.rate_per_s, found.solve) == (pytest.approx(50), "slo")
    assert read_demand({"slo": 50, "devices": 4, **gaps}).solve == "rate"
    assert read_demand({"slo": 50, "rate": 7, **gaps}).rate_per_s == 7


def test_gaps_are_read_from_an_array_too():
    assert wanted(gaps=np.arange(99.0)).gaps == tuple(range(99))


def test_gaps_need_100_requests_and_at_most_the_replay_limit(monkeypatch):
    monkeypatch.setattr("tputfind.sizing.traffic.MOST_ARRIVALS", 200)

    assert len(wanted(gaps=[1.0] * 199).gaps or ()) == 199
    for wrong in (98, 200):
        with pytest.raises(BadRequest) as refused:
            wanted(gaps=[1.0] * wrong)
        assert refused.value.message == f"--gaps: {wrong + 1} requests are not from 100 to 200"


def test_times_of_requests_come_to_the_gaps_between_them(monkeypatch):
    monkeypatch.setattr("tputfind.sizing.traffic.MOST_ARRIVALS", 200)
    names = [f"line {number}" for number in range(300)]

    assert gaps_of([0.0, 0.0, 1e15, *(1e15 + number for number in range(97))], names)[:4] == (0.0, 1e15, 0.0, 1.0)
    assert gaps_of([float(number) for number in range(200)], names) == (1.0,) * 199


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([*range(99)], "99 requests are not from 100 to 200"),
        ([*range(201)], "201 requests are not from 100 to 200"),
        ([5, 4, *range(5, 150)], "line 1: 4 comes after 5: times must rise, by at most 1e+15"),
        ([*range(150), 1e16], "line 150: 1e+16 comes after 149: times must rise, by at most 1e+15"),
        ([0.0] * 100, "the times of requests must rise, by 1e-15 on average, and rise by 0"),
    ],
)
def test_times_that_show_no_stream_are_refused_by_their_names(monkeypatch, times, message):
    monkeypatch.setattr("tputfind.sizing.traffic.MOST_ARRIVALS", 200)

    with pytest.raises(ValueError) as refused:
        gaps_of(times, [f"line {number}" for number in range(300)])

    assert str(refused.value) == message
