"""Rules of thumb, mean latencies in closed form, and batch times."""

from math import exp, inf

import numpy as np
import pytest
from msgspec.structs import replace
from support.records import timed_record

from tputfind.errors import BadRequest
from tputfind.record.record import Failure, Record
from tputfind.sizing.engine.service_times import Overheads, ServiceTimes, service_times_of
from tputfind.sizing.planner import closed_forms

LINE = ServiceTimes({size: [5 + 0.5 * size] for size in (1, 2, 4, 8, 16)})


def test_full_batch_devices_use_best_batch_up_to_the_cap():
    """In samples per ms, batches of 2 do 1, of 3 0.9, of 4 0.86, and of 8 1.71: 4 and 8 are pooled."""
    service = ServiceTimes({1: [2.0], 2: [2.0], 4: [6.0], 8: [4.0, 4.0]})

    assert [closed_forms.devices_at_full_batch(service, 12_000, cap) for cap in (1, 2, 3, 4)] == [24, 12, 12, 12]
    assert service.mean_ms(4) == service.mean_ms(8) == pytest.approx(14 / 3)
    assert closed_forms.devices_at_full_batch(service, 12_000, 8) == 7


@pytest.mark.parametrize(
    ("most_ms", "size"), [(5.4, None), (5.5, 1), (5.9, 1), (6.0, 2), (8.9, 7), (9.0, 8), (12.9, 15), (13, 16), (99, 16)]
)
def test_the_largest_batch_within_a_bound_may_take_all_of_it(most_ms, size):
    assert LINE.largest_within(most_ms) == size


def test_devices_by_batch_time_grow_with_times_or_are_none():
    times = [closed_forms.devices_by_batch_time(LINE, 10_000, 4, 12.0, times) for times in (1, 2, 3)]

    assert times == [18, 30, None]


@pytest.mark.parametrize("rate_per_ms", [0.001, 0.05, 0.3, 1.0, 1.9])
def test_the_mean_latency_balances_arrivals_and_services(rate_per_ms):
    """The mean batch is the fixed point; batches beyond the first request have a Poisson distribution."""
    slope_ms, intercept_ms = 0.5, 5.0
    load, waits = rate_per_ms * slope_ms, rate_per_ms * intercept_ms
    batch = 1.0
    for _ in range(100_000):
        batch = max(1.0, load * batch + waits + exp(-rate_per_ms * (slope_ms * batch + intercept_ms)))
    squared = (batch + 2 * load * waits * batch + waits**2) / (1 - load**2)
    span_squared = (slope_ms**2 * squared) + (2 * slope_ms * intercept_ms * batch) + intercept_ms**2
    expected = (rate_per_ms * span_squared / 2 + slope_ms * squared + intercept_ms * batch) / batch

    assert closed_forms.mean_ms_of_one_device(rate_per_ms, slope_ms, intercept_ms) == pytest.approx(expected, rel=1e-6)


def test_a_device_that_cannot_keep_up_has_no_mean_latency():
    assert closed_forms.mean_ms_of_one_device(2.0, 0.5, 5.0) == inf
    assert closed_forms.mean_ms_of_one_device(1.99, 0.5, 5.0) < inf


@pytest.mark.parametrize("rate_per_s", [1, 100, 2000, 5000, 20_000, 90_000])
@pytest.mark.parametrize("target_ms", [5.6, 9.0, 30.0])
def test_devices_by_mean_are_least_whose_mean_meets_target(rate_per_s, target_ms):
    devices = closed_forms.devices_by_mean(LINE, rate_per_s, target_ms)

    means_ms = [
        closed_forms.mean_ms_of_one_device(rate_per_s / 1000 / number, 0.5, 5.0) for number in range(1, devices + 1)
    ]
    assert [mean_ms <= target_ms for mean_ms in means_ms] == [False] * (devices - 1) + [True]


def test_devices_by_mean_are_none_if_lone_request_takes_target():
    assert closed_forms.devices_by_mean(LINE, 100, 5.49) is None
    assert closed_forms.devices_by_mean(ServiceTimes({1: [2.0]}), 100, 2.0) is None


@pytest.mark.parametrize("measured", [{}, {1: []}, {1: [1.0], 2: []}])
def test_sizes_without_samples_are_refused(measured):
    with pytest.raises(ValueError, match=r"^no batch size has samples$"):
        ServiceTimes(measured)


@pytest.mark.parametrize(("samples", "times"), [(1, 200), (200, 200), (201, 201), (5000, 5000), (5001, 5000)])
def test_service_curve_has_as_many_times_as_samples_within_bounds(samples, times):
    service = ServiceTimes({1: [1.0], 2: [float(number) for number in range(samples)]})

    assert len(service.curve_ms(1)) == len(service.curve_ms(2)) == times


def test_each_sample_stands_for_as_many_times():
    times = ServiceTimes({1: [7.0, 3.0, 5.0, 1.0]}).curve_ms(1)

    assert times.tolist() == [1.0] * 50 + [3.0] * 50 + [5.0] * 50 + [7.0] * 50


def test_drawn_times_come_from_the_curve():
    service = ServiceTimes({2: [1.0, 2.0], 6: [3.0, 8.0]}, Overheads(0.25, 0.125))

    for size in (1, 2, 3, 6):
        draw = service.drawn(6, (0,))
        assert {draw(size, size) for _ in range(300)} == set(service.curve_ms(size).tolist())
    assert service.curve_ms(3)[[0, -1]].tolist() == [1.5 + 0.25 + 0.375, 3.5 + 0.25 + 0.375]
    assert service.curve_ms(1)[[0, -1]].tolist() == [1.0 + 0.25 + 0.125, 2.0 + 0.25 + 0.125]
    with pytest.raises(ValueError, match=r"^batch 7 was not measured, nor any larger one$"):
        service.curve_ms(7)


def test_throughput_of_a_device_is_bound_by_its_answers():
    assert ServiceTimes({4: [2.0]}, Overheads(per_answer_ms=0.25)).per_ms(4) == 2.0
    assert ServiceTimes({4: [2.0]}, Overheads(per_answer_ms=1.0)).per_ms(4) == 1.0


def test_the_line_through_one_size_has_no_intercept():
    assert ServiceTimes({4: [2.0]}).line_ms() == (0.5, 0.0)


def test_the_line_through_sizes_weighs_relative_errors():
    """Compare with the normal equations."""
    sizes, means = np.array([1.0, 2.0, 10.0]), np.array([3.0, 3.0, 20.0])
    slope, intercept = np.linalg.lstsq(np.column_stack([sizes, np.ones(3)]) / means[:, None], np.ones(3), rcond=None)[0]

    line = ServiceTimes({1: [3.0], 2: [3.0], 10: [20.0]}).line_ms()

    assert line == pytest.approx((slope, intercept), rel=1e-9)


def record(*latencies: tuple[float, ...]) -> Record:
    """Return a record with batches of 1, 2, 4 and so on, each with its latencies."""
    return timed_record({2**power: spans_ms for power, spans_ms in enumerate(latencies)})


def test_service_times_use_passed_rows_with_ten_latencies():
    one = record((5.0,) * 10, (6.0,) * 9, (7.0,) * 10)
    failed = replace(one.rows[2], failure=Failure(kind="out_of_memory", message=""))

    assert service_times_of(one).sizes == [1, 4]
    assert service_times_of(replace(one, rows=(one.rows[0], failed))).sizes == [1]
    assert service_times_of(record((1e-4,) * 10)).sizes == [1]


@pytest.mark.parametrize(
    ("latencies", "spec", "message", "hint"),
    [
        ([], {"phase": "train", "dtype": "bf16"}, "the record of resnet50 is of training, and serves no requests", ""),
        ([], {"phase": "step", "gpus": 2}, "the record of resnet50 is of 2 devices that share one model", ""),
        (
            [(5.0,) * 9],
            {},
            "the record of resnet50 has no row with 10 latencies or more",
            "measure it anew, with --thorough or more --batches",
        ),
        (
            [(5.0,) * 10, (9e-5,) * 10],
            {},
            "batches of 2 take 9e-05 ms by the record of resnet50: no step is that fast",
            "measure it anew",
        ),
    ],
)
def test_record_without_service_times_is_refused_with_advice(latencies, spec, message, hint):
    one = record(*latencies)

    with pytest.raises(BadRequest) as refused:
        service_times_of(replace(one, spec=replace(one.spec, **spec)))
    assert (refused.value.message, refused.value.hint) == (message, hint)
