"""How long a batch takes, by its size: from the latencies that a record holds, and never beyond them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import exp
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tputfind.errors import BadRequest
from tputfind.record.pace import doubt_of_one_process
from tputfind.record.record import Record, Row
from tputfind.sizing.demand import Demand
from tputfind.sizing.power import Power, power_of
from tputfind.sizing.samples import full_batches, many_of

_FEWEST, _MOST = 200, 5000
"""Least and most equally likely times that stand for the samples of a batch size."""

FEWEST_SAMPLES: Final = 10
_NORMAL_95: Final = 1.96
"""Standard deviations within which 95 % of a normal distribution lie."""
_SHORTEST_MS: Final = 1e-4
"""To call one empty function takes longer."""


class _Rows(NamedTuple):
    """By batch size: the curves around it, how far it is from the lower to the upper, and what a server adds."""

    below: NDArray[np.int64]
    above: NDArray[np.int64]
    share: NDArray[np.float64]
    more_ms: NDArray[np.float64]


class ServiceTimes:
    """Equally likely times of a batch of any size up to the largest measured, in ms.

    Between two measured sizes each time lies on the straight line between the two that are as likely. Batches below
    the smallest measured take as long as that one. A larger batch takes no less time than a smaller one: where its
    samples say otherwise, the quantiles of neighbouring sizes are pooled (``_isotonic``).
    """

    def __init__(
        self,
        measured: Mapping[int, Sequence[float]],
        *,
        per_batch_ms: float = 0,
        per_sample_ms: float = 0,
        per_get_ms: float = 0,
        per_answer_ms: float = 0,
        power: Power | None = None,
        whole: tuple[int, ...] | None = None,
    ) -> None:
        """Take the samples of every batch size, in ms, and what a server adds to each batch and for each sample.

        ``per_get_ms`` passes for each sample before the batch begins, while its device does nothing, and
        ``per_answer_ms`` after it, while the device goes on. ``power`` is what batches take, if that is known.
        ``whole`` are the samples of many requests that stay whole: full batches are then those that they fill.

        Raises:
            ValueError: nothing was measured.
        """
        if not measured or not all(measured.values()):
            raise ValueError("no batch size has samples")
        self.sizes = sorted(measured)
        count = min(max(_FEWEST, *map(len, measured.values())), _MOST)
        shares = (np.arange(count) + 0.5) / count
        curves = [np.quantile(measured[size], shares, method="inverted_cdf") for size in self.sizes]
        self._curves = _isotonic(np.stack(curves), [len(measured[size]) for size in self.sizes])
        self._per_batch_ms = per_batch_ms
        self._per_sample_ms = per_sample_ms
        self.per_get_ms = per_get_ms
        self.per_answer_ms = per_answer_ms
        self.power = power
        self._whole, self._per_ms = whole, dict[int, float]()
        self._table: _Rows | None = None
        self.least_cap = max(whole) if whole else 1

    @property
    def largest(self) -> int:
        """The largest batch size that was measured."""
        return self.sizes[-1]

    def curve_ms(self, batch_size: int) -> NDArray[np.float64]:
        """Return the times of a batch size, rising.

        Raises:
            ValueError: it is larger than any measured.
        """
        lower, upper, share = self._between(batch_size)
        curve = upper if lower is upper else lower + (upper - lower) * share
        times: NDArray[np.float64] = curve + (self._per_batch_ms + self._per_sample_ms * batch_size)
        return times

    def one_ms(self, batch_size: int, number: int) -> float:
        """Return one of the times of a batch size, without the others; errors as for ``curve_ms``."""
        lower, upper, share = self._between(batch_size)
        low, high = float(lower[number]), float(upper[number])
        time_ms = high if lower is upper else low + (high - low) * share
        return time_ms + (self._per_batch_ms + self._per_sample_ms * batch_size)

    def each_ms(self, batch_sizes: NDArray[np.int64], numbers: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return one of the times of each of several batch sizes; none may be larger than any measured."""
        table = self._table = self._table or self._rows()
        low = self._curves[table.below[batch_sizes], numbers]
        high = self._curves[table.above[batch_sizes], numbers]
        times: NDArray[np.float64] = low + (high - low) * table.share[batch_sizes] + table.more_ms[batch_sizes]
        return times

    def _rows(self) -> _Rows:
        every, sizes = np.arange(self.largest + 1), np.array(self.sizes)
        above = np.searchsorted(sizes, every)
        below = np.where((above == 0) | (sizes[above] == every), above, above - 1)
        share: NDArray[np.float64] = np.zeros(len(every))
        np.divide(every - sizes[below], sizes[above] - sizes[below], out=share, where=above > below)
        more_ms = np.asarray(self._per_batch_ms + self._per_sample_ms * every, dtype=np.float64)
        return _Rows(below, above, share, more_ms)

    def _between(self, batch_size: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Return the curves of the measured sizes around one, and how far it is from the lower to the upper."""
        if batch_size > self.largest:
            raise ValueError(f"batch {batch_size} was not measured, nor any larger one")
        above = bisect_left(self.sizes, batch_size)
        upper = self._curves[above]
        if above == 0 or self.sizes[above] == batch_size:
            return upper, upper, 0.0
        low, high = self.sizes[above - 1], self.sizes[above]
        return self._curves[above - 1], upper, (batch_size - low) / (high - low)

    def mean_ms(self, batch_size: int) -> float:
        """Return the mean time of a batch size; errors as for ``curve_ms``."""
        return float(self.curve_ms(batch_size).mean())

    def per_ms(self, batch_size: int) -> float:
        """Return the samples per ms of a device that always has a full batch, up to a size; errors as for ``curve_ms``.

        Where requests stay whole, that is no smaller than the largest of them.
        """
        if batch_size not in self._per_ms:
            sizes = {batch_size: 1} if self._whole is None else full_batches(self._whole, batch_size)
            self._per_ms[batch_size] = self.per_ms_in(sizes)
        return self._per_ms[batch_size]

    def per_ms_in(self, sizes: Mapping[int, int]) -> float:
        """Return the samples per ms of a device that always has batches of sizes, each so often; errors likewise."""
        samples = sum(size * count for size, count in sizes.items())
        busy_ms = sum(count * self.mean_ms(size) for size, count in sizes.items()) + self.per_get_ms * samples
        return samples / max(busy_ms, self.per_answer_ms * samples)

    def line_ms(self) -> tuple[float, float]:
        """Return slope and intercept of the straight line through the mean times: ms per sample, and ms per batch."""
        means = np.array([self.mean_ms(size) for size in self.sizes])
        if len(means) == 1:
            return float(means[0] / self.sizes[0]), 0.0
        # Relative errors count alike, so that large batches do not drown the small ones.
        slope, intercept = np.polyfit(self.sizes, means, 1, w=1 / means)
        return float(slope), float(intercept)


def _isotonic(curves: NDArray[np.float64], weights: Sequence[int]) -> NDArray[np.float64]:
    """Return the curves nearest to those given, a row a batch size, in which no larger size takes less time.

    Isotonic regression of each quantile over the sizes, weighted by their samples, by pooling adjacent violators
    (Barlow, Bartholomew, Bremner and Brunk, "Statistical Inference under Order Restrictions", 1972). It keeps the order
    of quantiles, so that each row still rises.
    """
    pooled = curves.copy()
    for place in np.flatnonzero((np.diff(curves, axis=0) < 0).any(axis=0)):
        blocks: list[tuple[float, int, int]] = []
        for value, weight in zip(curves[:, place].tolist(), weights, strict=True):
            mean, mass, sizes = value, weight, 1
            while blocks and blocks[-1][0] > mean:
                before, of_before, its_sizes = blocks.pop()
                mean = (before * of_before + mean * mass) / (of_before + mass)
                mass, sizes = mass + of_before, sizes + its_sizes
            blocks.append((mean, mass, sizes))
        pooled[:, place] = np.repeat([mean for mean, _, _ in blocks], [sizes for _, _, sizes in blocks])
    return pooled


def service_of(record: Record, demand: Demand, draw: np.random.Generator | None = None) -> ServiceTimes:
    """Return how long batches take by a record.

    With ``draw``, by a bootstrap sample of it: of the processes of each row, and of the latencies of each of them.

    Raises:
        BadRequest: it has no rows that could tell.
    """
    rows = [row for row in record.rows if row.failure is None and len(row.latency_ms) >= FEWEST_SAMPLES]
    if record.spec.phase == "train":
        raise BadRequest(f"the record of {record.spec.model} is of training, and serves no requests")
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
    samples = demand.mean_samples if demand.whole else 1.0  # those of what the server handles one by one
    return ServiceTimes(
        {row.batch_size: row.latency_ms if draw is None else _resampled(row, draw, several=several) for row in rows},
        per_batch_ms=demand.overhead_per_batch_ms,
        per_sample_ms=demand.overhead_per_request_ms / samples,
        per_get_ms=demand.overhead_per_get_ms / samples,
        per_answer_ms=demand.overhead_per_answer_ms / samples,
        whole=(demand.counts or many_of(demand.samples_per_request)) if demand.whole else None,
        power=power_of(record),
    )


def _resampled(row: Row, draw: np.random.Generator, *, several: bool) -> list[float]:
    """Return latencies of a row drawn anew: processes with replacement, and of each as many latencies as it has
    (Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8).

    A row of one process does not tell how processes differ. If others of the record have ``several``, its latencies are
    all longer or shorter by as much as processes of such rows differ; else no row tells, and they are drawn alone.
    """
    processes = [timing.latency_ms for timing in row.timings if timing.latency_ms]
    if several and len(processes) == 1:
        pace = exp(draw.normal(0.0, doubt_of_one_process(row) / _NORMAL_95))
        processes = [tuple(latency_ms * pace for latency_ms in processes[0])]
    drawn = [processes[place] for place in draw.integers(len(processes), size=len(processes))]
    return [float(latency_ms) for one in drawn for latency_ms in draw.choice(one, size=len(one))]
