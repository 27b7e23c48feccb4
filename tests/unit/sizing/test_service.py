"""Batch times from noisy samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import example

from tputfind.record.record import Row, Timing
from tputfind.sizing.engine.service_times import ServiceTimes, service_times_of

times_ms = st.lists(st.floats(0.1, 100), min_size=1, max_size=30)
measured = st.dictionaries(st.integers(1, 64), times_ms, min_size=1, max_size=8)


@given(measured)
def test_service_time_never_falls_with_batch_size_or_quantile(samples_ms):
    curves = np.stack([ServiceTimes(samples_ms).curve_ms(size) for size in sorted(samples_ms)])

    assert np.all(np.diff(curves, axis=0) >= -1e-9)
    assert np.all(np.diff(curves, axis=1) >= -1e-9)


@given(measured)
def test_pooling_preserves_total_time_across_batch_sizes(samples_ms):
    sizes = sorted(samples_ms)
    weights = [len(samples_ms[size]) for size in sizes]
    pooled = [ServiceTimes(samples_ms).mean_ms(size) for size in sizes]
    count = len(ServiceTimes(samples_ms).curve_ms(sizes[0]))
    shares = (np.arange(count) + 0.5) / count
    alone = [np.quantile(samples_ms[size], shares, method="inverted_cdf").mean() for size in sizes]

    assert np.average(pooled, weights=weights) == pytest.approx(np.average(alone, weights=weights))


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=8), st.floats(1, 2))
def test_times_that_rise_with_the_batch_are_left_alone(steps_ms, scatter):
    samples_ms = {size: (base, base * scatter) for size, base in enumerate(np.cumsum(steps_ms).tolist(), start=1)}

    for size, (low, high) in samples_ms.items():
        assert ServiceTimes(samples_ms).curve_ms(size)[[0, -1]].tolist() == pytest.approx([low, high])


def test_noisy_size_raises_larger_sizes_by_its_fraction_of_samples():
    """Four sizes take 2 ms, but 5 of 100 batches of one size take 10 ms."""
    steady = [2.0] * 100
    service = ServiceTimes({1: steady, 2: [2.0] * 95 + [10.0] * 5, 4: steady, 8: steady})

    assert service.curve_ms(1)[-1] == 2.0
    assert [service.curve_ms(size)[-1] for size in (2, 4, 8)] == [pytest.approx(14 / 3)] * 3


@pytest.mark.parametrize(
    ("enqueue_ms", "low", "high"), [(1.0, 0.005, 0.02), (4.5, 0.1, 0.4)], ids=["device-bound", "host-bound"]
)
def test_drawn_service_of_single_process_row_varies_like_processes(enqueue_ms, low, high):
    timing = Timing(device_ms=(5.0,) * 20, latency_ms=(5.0,) * 20, enqueue_ms=(enqueue_ms,) * 20)
    rows = tuple(Row(batch_size=size, timings=(timing,) * processes) for size, processes in ((1, 1), (64, 2)))
    record = replace(example(), rows=rows[:1])
    rng = np.random.default_rng(1)

    def spread(one):
        return np.std([np.log(service_times_of(one, draw=rng).mean_ms(1)) for _ in range(100)])

    assert spread(record) < 1e-9  # no row shows the variation between processes, and a notice reports that
    assert low < spread(replace(record, rows=rows)) < high
