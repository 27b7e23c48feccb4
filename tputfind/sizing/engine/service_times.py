"""Service times of batches by size, from the latencies of a record, without extrapolation to larger batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain, count
from math import exp
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tputfind.errors import BadRequest
from tputfind.record.record import Record, Row, doubt_of_one_process
from tputfind.sizing.traffic import Traffic, full_batches, many_of

FEWEST_SAMPLES: Final = 10
_FEWEST, _MOST = 200, 5000
"""Minimum and maximum of the equally likely times that stand for the samples of a batch size."""
_NORMAL_95: Final = 1.96
"""Standard deviations within which 95 % of a normal distribution lie."""
_SHORTEST_MS: Final = 1e-4
"""A call of an empty function takes longer."""
_DRAWN: Final = 2**10
"""Random numbers that are drawn at once."""


class Overheads(NamedTuple):
    """Overheads of a server in ms: per batch, per request in it, and per answer after it."""

    per_batch_ms: float = 0.0
    per_request_ms: float = 0.0
    per_answer_ms: float = 0.0


class ServiceTimes:
    """Equally likely times of a batch of any size up to the largest measured, in ms, including overheads.

    Between two measured sizes each quantile is interpolated linearly; batches that are ``padded`` take as long as the
    larger of them. Batches below the smallest measured take as long as that one. A larger batch takes no less time than
    a smaller one: if its samples say otherwise, the quantiles of neighbouring sizes are pooled (``_isotonic``).
    """

    def __init__(
        self,
        measured: Mapping[int, Sequence[float]],
        overheads: Overheads = Overheads(),  # noqa: B008  # it is immutable
        *,
        whole: tuple[int, ...] | None = None,
        padded: bool = False,
    ) -> None:
        """Take the samples of every batch size, in ms; raise ValueError if one has none.

        ``whole`` are the sample counts of many requests that stay whole: they determine the full batches, and the
        overhead of a request counts once for all its samples. A server fills batches up to a measured size if they are
        ``padded``.
        """
        if not measured or not all(measured.values()):
            raise ValueError("no batch size has samples")
        self.sizes = sorted(measured)
        self.overheads = overheads
        times = min(max(_FEWEST, *map(len, measured.values())), _MOST)
        shares = (np.arange(times) + 0.5) / times
        curves = [np.quantile(measured[size], shares, method="inverted_cdf") for size in self.sizes]
        self._curves = _isotonic(np.stack(curves), [len(measured[size]) for size in self.sizes])
        self._whole, self._per_ms, self._mean_ms = whole, dict[int, float](), dict[int, float]()
        self._padded = padded
        self.items_per_sample = len(whole) / sum(whole) if whole else 1.0
        self.least_cap = max(whole) if whole else 1

    def replace_overheads(self, overheads: Overheads) -> ServiceTimes:
        other: ServiceTimes = copy(self)
        other.overheads, other._per_ms, other._mean_ms = overheads, {}, {}
        return other

    @property
    def largest(self) -> int:
        return self.sizes[-1]

    def curve_ms(self, batch_size: int, requests: float | None = None) -> NDArray[np.float64]:
        """Return the times of a measured or smaller batch in ms, rising; ``requests`` are its own, if not the mean."""
        overheads = self.overheads
        requests = batch_size * self.items_per_sample if requests is None else requests
        return self._model_ms(batch_size) + (overheads.per_batch_ms + overheads.per_request_ms * requests)

    def mean_ms(self, batch_size: int) -> float:
        if batch_size not in self._mean_ms:
            self._mean_ms[batch_size] = float(self.curve_ms(batch_size).mean())
        return self._mean_ms[batch_size]

    def per_ms(self, batch_size: int) -> float:
        """Return the samples per ms of a device that always has full batches of at most this size.

        If requests stay whole, ``batch_size`` must be no smaller than the largest of them.
        """
        if batch_size not in self._per_ms:
            sizes = {batch_size: 1} if self._whole is None else full_batches(self._whole, batch_size)
            samples = sum(size * often for size, often in sizes.items())
            busy_ms = sum(often * self.mean_ms(size) for size, often in sizes.items())
            answers_ms = self.overheads.per_answer_ms * samples * self.items_per_sample
            self._per_ms[batch_size] = samples / max(busy_ms, answers_ms)
        return self._per_ms[batch_size]

    def largest_within(self, most_ms: float) -> int | None:
        """Return the largest batch size whose mean time is within a bound; None if there is none."""
        place: int = bisect_left(range(1, self.largest + 1), True, key=lambda size: self.mean_ms(size) > most_ms)
        return place or None

    def line_ms(self) -> tuple[float, float]:
        """Return slope and intercept of the straight line through the mean times: ms per sample, and ms per batch."""
        means = np.array([self.mean_ms(size) for size in self.sizes])
        if len(means) == 1:
            return float(means[0] / self.sizes[0]), 0.0
        # Weights equalise relative errors, so that large batches do not dominate the small ones.
        slope, intercept = np.polyfit(self.sizes, means, 1, w=1 / means)
        return float(slope), float(intercept)

    def drawn(self, cap: int, seed: Sequence[int]) -> Callable[[int, int], float]:
        """Return a function that draws the time of a batch of up to ``cap`` samples from its samples and items."""
        curves: list[memoryview | None] = [None] * (cap + 1)
        places, per_item = self.places(seed), self.overheads.per_request_ms

        def draw(samples: int, items: int) -> float:
            curve = curves[samples]
            if curve is None:
                curve = curves[samples] = (self._model_ms(samples) + self.overheads.per_batch_ms).data
            drawn: float = curve[next(places)]
            return drawn + per_item * items

        return draw

    def places(self, seed: Sequence[int]) -> Iterator[int]:
        """Yield indices into a curve, all equally likely."""
        chance, times = np.random.default_rng([*seed, 3]), self._curves.shape[1]
        return chain.from_iterable(chance.integers(times, size=_DRAWN).tolist() for _ in count())

    def _model_ms(self, batch_size: int) -> NDArray[np.float64]:
        """Return the times of a batch size without overheads, from those of the measured sizes around it."""
        if batch_size > self.largest:
            raise ValueError(f"batch {batch_size} was not measured, nor any larger one")
        above = bisect_left(self.sizes, batch_size)
        times: NDArray[np.float64] = self._curves[above]
        if above > 0 and self.sizes[above] > batch_size and not self._padded:
            lower, low, high = self._curves[above - 1], self.sizes[above - 1], self.sizes[above]
            times = lower + (times - lower) * ((batch_size - low) / (high - low))
        return times


def _isotonic(curves: NDArray[np.float64], weights: Sequence[int]) -> NDArray[np.float64]:
    """Return the nearest curves, a row per batch size, in which no larger size takes less time.

    Isotonic regression of each quantile over the sizes, weighted by their samples, by the max-min formula (Barlow,
    Bartholomew, Bremner and Brunk, "Statistical Inference under Order Restrictions", 1972). It keeps the order of
    quantiles, so that each row still rises.
    """
    falls = (np.diff(curves, axis=0) < 0).any(axis=0)
    of = curves[:, falls]
    mass = np.cumsum([0, *weights])[:, None]
    total = np.cumsum(np.vstack([np.zeros_like(of[:1]), of * np.diff(mass, axis=0)]), axis=0)
    fitted = np.zeros_like(of)
    for low in range(len(curves)):
        means = (total[low + 1 :] - total[low]) / (mass[low + 1 :] - mass[low])
        fitted[low:] = np.maximum(fitted[low:], np.minimum.accumulate(means[::-1])[::-1])
    pooled = curves.copy()
    pooled[:, falls] = fitted
    return pooled


def service_times_of(
    record: Record,
    overheads: Overheads = Overheads(),  # noqa: B008  # it is immutable
    traffic: Traffic = Traffic(),  # noqa: B008  # it is immutable too
    *,
    is_whole: bool = False,
    draw: np.random.Generator | None = None,
) -> ServiceTimes:
    """Return the service times of a record; raise BadRequest if it has none, or is of training or several devices.

    With ``draw``, they are those of a bootstrap sample: of the processes of each row, and of the latencies in each.
    """
    if record.spec.phase == "train":
        raise BadRequest(f"the record of {record.spec.model} is of training, and serves no requests")
    if (count := record.spec.device_count) > 1:
        raise BadRequest(f"the record of {record.spec.model} is of {count} devices that share one model")
    if (count := record.spec.instances) > 1:
        raise BadRequest(
            f"the record of {record.spec.model} is of {count} instances that share a device",
            "measure one by itself, on a CPU on its part of the cores (--device cpu:0-3), and plan with that",
        )
    rows = timed_rows(record)
    if not rows:
        raise BadRequest(
            f"the record of {record.spec.model} has no row with {FEWEST_SAMPLES} latencies or more",
            "measure it anew, with --thorough or more --batches",
        )
    for row in rows:
        if fmean(row.latency_ms) < _SHORTEST_MS:
            raise BadRequest(
                f"batches of {row.batch_size} take {fmean(row.latency_ms):g} ms by the record of {record.spec.model}: "
                "no step is that fast",
                "measure it anew",
            )
    several = any(len(row.timings) > 1 for row in rows)
    whole = (traffic.counts or many_of(traffic.sizes)) if is_whole and traffic.has_several_samples else None
    return ServiceTimes(
        {row.batch_size: row.latency_ms if draw is None else _resample(row, draw, several=several) for row in rows},
        overheads,
        whole=whole,
        padded=pads_batches(record),
    )


def pads_batches(record: Record) -> bool:
    """Whether a server fills batches up to a measured size: each is compiled alone, or the model takes only some."""
    return record.spec.mode != "eager" or record.spec.granularity > 1


def timed_rows(record: Record) -> list[Row]:
    return [row for row in record.rows if row.failure is None and len(row.latency_ms) >= FEWEST_SAMPLES]


def _resample(row: Row, draw: np.random.Generator, *, several: bool) -> list[float]:
    """Return a bootstrap sample of a row's latencies: processes with replacement, and then the latencies of each.

    See Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8. A row of one process does not
    show the variation between processes. If other rows show it (``several``), its latencies are all scaled by a random
    factor with the usual variation of such rows; otherwise they are not scaled.
    """
    processes = [timing.latency_ms for timing in row.timings if timing.latency_ms]
    if several and len(processes) == 1:
        pace = exp(draw.normal(0.0, doubt_of_one_process(row) / _NORMAL_95))
        processes = [tuple(latency_ms * pace for latency_ms in processes[0])]
    drawn = [processes[place] for place in draw.integers(len(processes), size=len(processes))]
    return [float(latency_ms) for one in drawn for latency_ms in draw.choice(one, size=len(one))]
