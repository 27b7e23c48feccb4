"""Closed forms: rules of thumb, and the mean latency of a bulk-service queue."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil, exp, inf

from tputfind.sizing.engine.service_times import ServiceTimes


def devices_at_full_batch(service: ServiceTimes, samples_per_s: float, cap: int) -> int:
    """Return how many devices just keep up if every batch has the size of the highest throughput, up to a cap."""
    sizes = [size for size in service.sizes if service.least_cap <= size < cap]
    return ceil(samples_per_s / 1000 / max(service.per_ms(size) for size in (*sizes, cap)))


def devices_by_batch_time(
    service: ServiceTimes, samples_per_s: float, cap: int, target_ms: float, times: int
) -> int | None:
    """Return how many devices are needed if a request takes ``times`` batch times, with batches up to a cap.

    Once is the naive rule. Twice is Nexus's (Shen et al., SOSP 2019): a request just misses a batch, waits for it, and
    is in the next. None if no batch is that fast, or none that the largest request fits in.
    """
    batch_size = service.largest_within(target_ms / times)
    if batch_size is None or batch_size < service.least_cap:
        return None
    return ceil(samples_per_s / 1000 / service.per_ms(min(batch_size, cap)))


def mean_ms_of_one_device(
    rate_per_ms: float, slope_ms: float, intercept_ms: float, samples: float = 1.0, dispersion: float = 1.0
) -> float:
    """Return the mean latency of a device that takes all waiting samples: ``n`` samples in ``slope n + intercept`` ms.

    Poisson arrivals, no cap on the batch. From the balance of arrivals and services over one batch, with the requests
    in it taken as Poisson beyond the first: within 0.5 % of simulations up to a load of 0.5, 1 % at 0.7, 3 % at 0.9.
    Infinite if the device cannot keep up. ``samples`` is the mean number of samples of the requests, ``dispersion``
    their mean square over the square of their mean.
    """
    load = rate_per_ms * samples * slope_ms
    if load >= 1:
        return inf
    waits = rate_per_ms * samples * intercept_ms
    batch = max(samples, waits)
    for _ in range(200):
        none_come = exp(-rate_per_ms * (slope_ms * batch + intercept_ms))
        batch = max(samples, (waits + samples * none_come) / (1 - load))
    squared = ((samples * dispersion + 2 * load * waits) * batch + waits**2) / (1 - load**2)
    span_squared = slope_ms**2 * squared + 2 * slope_ms * intercept_ms * batch + intercept_ms**2
    requests = batch / samples
    with_requests = batch + samples * rate_per_ms**2 * span_squared
    return (rate_per_ms * span_squared / 2 + slope_ms * with_requests + intercept_ms * requests) / requests


def devices_by_mean(
    service: ServiceTimes, rate_per_s: float, target_ms: float, samples: float = 1.0, dispersion: float = 1.0
) -> int | None:
    """Return the least number of devices, each with a random part of the requests, that meets a mean latency.

    None if even an idle device exceeds the target. ``samples`` and ``dispersion`` as for ``mean_ms_of_one_device``.
    """
    slope_ms, intercept_ms = service.line_ms()
    if slope_ms * samples + intercept_ms >= target_ms:
        return None

    def meets(devices: int) -> bool:
        each_per_ms = rate_per_s / 1000 / devices
        return mean_ms_of_one_device(each_per_ms, slope_ms, intercept_ms, samples, dispersion) <= target_ms

    most = 1
    while not meets(most):
        most *= 2
    return bisect_left(range(most), True, lo=1, key=meets) if most > 1 else 1
