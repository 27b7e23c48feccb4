"""Two records of the same work side by side: which rows became faster or slower, and which cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tputfind.errors import BadRequest
from tputfind.recipes import name_of
from tputfind.record import Record, Row
from tputfind.spec import REPEATABILITY, Above0, Amount, Count
from tputfind.stats import CONFIDENCE, Interval, ratio_interval
from tputfind.summary import THROTTLED_SHARE, fastest, health

Verdict = Literal["same", "faster", "slower", "ambiguous", "not_comparable"]
TOLERANCE: Final = 0.01
"""Rates that certainly differ by less than this are called the same."""
_CLOCKS_DIFFER: Final = 0.02
_UNLIKE: Final = ("phase", "dtype", "optimizer", "transfer", "weights")
"""What of a request makes it another job. Layout, mode and checkpointing are ways to do the same one."""
_TOLD: Final = (
    "layout",
    "mode",
    "grad_checkpoint",
    "processes",
    "min_seconds",
    "memory_limit_bytes",
    "batches",
    "seed",
)
_TOLD_OF_PLACE: Final = (
    "torch", "torchvision", "timm", "transformers", "cuda", "cudnn", "driver", "python", "host", "cpu_name",
    "cpu_count", "torch_threads", "device_uuid",
)  # fmt: skip


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """One rate over another: NEW over OLD, with the interval of the ratio and what to make of it.

    ``reason`` says why they cannot be compared, or what else differs; empty where there is nothing to say.
    """

    old_batch: Count
    new_batch: Count
    old_per_s: Amount | None = None
    new_per_s: Amount | None = None
    ratio: Above0 | None = None
    low: Above0 | None = None
    high: Above0 | None = None
    verdict: Verdict
    reason: str = ""

    @property
    def lost(self) -> bool:
        """Whether a batch size that ran in OLD fails in NEW."""
        return self.old_per_s is not None and self.new_per_s is None

    def slower_than(self, share: float) -> bool:
        """Whether NEW is certainly slower, and by more than this share."""
        return self.lost or (self.verdict == "slower" and self.ratio is not None and self.ratio < 1 - share)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two records: their fastest rows, and each batch size that both have.

    ``unlike`` is what should have kept them from being compared, and did not because it was asked for; ``differs`` is
    what else is not the same. ``old_largest`` and ``new_largest`` are None where none was searched for.
    """

    model: str
    recipe: str
    device_name: str
    tolerance: Annotated[float, Meta(ge=0, lt=1)]
    best: Judgement | None
    rows: tuple[Judgement, ...]
    old_largest: int | None = None
    new_largest: int | None = None
    unlike: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """That of the fastest rows."""
        return self.best.verdict if self.best else "not_comparable"

    @property
    def judged(self) -> bool:
        """Whether of anything in it is known by how much its rate changed, and how well."""
        return any(one.low is not None for one in self._all)

    @property
    def _all(self) -> list[Judgement]:
        return [*([self.best] if self.best else []), *self.rows]

    def slower_than(self, share: float) -> list[Judgement]:
        """Return what became certainly slower by more than this share, or does not run any more."""
        return [one for one in self._all if one.slower_than(share)]


def compare(old: Record, new: Record, *, tolerance: float = TOLERANCE, force: bool = False) -> Comparison:
    """Return what became of the throughput from one record to a later one, of the same work on the same device.

    The ratio of the fastest rows has a 95 % confidence interval of its own; those of the batch sizes hold together with
    95 % (Bonferroni). A row is the ``same`` where its whole interval lies within the tolerance, ``faster`` or
    ``slower`` where the interval excludes 1, and else ``ambiguous``: the processes differ too much to tell. Two equal
    runs are thus told apart in fewer than 5 % of cases; see ``stats.ratio_interval``.

    Args:
        old: what came before.
        new: what is asked about.
        tolerance: the share up to which a difference is none.
        force: compare unlike things too; the comparison then names them.

    Raises:
        BadRequest: they are unlike, or have no batch size in common and nothing else to compare.
    """
    unlike = tuple(_unlike(old, new))
    if unlike and not force:
        raise BadRequest(
            f"these are not comparable: {'; '.join(unlike)}", "--force compares them nevertheless, and says so"
        )
    pairs = list(_pairs(old, new))
    certain = 1 - (1 - CONFIDENCE) / max(1, len(pairs))
    before, after = fastest(old.rows), fastest(new.rows)
    best = None if before is None or after is None else _judged(before, after, tolerance, CONFIDENCE)
    return Comparison(
        model=subject(new),
        recipe=name_of(new.spec),
        device_name=new.environment.device_name,
        tolerance=tolerance,
        best=best,
        rows=tuple(_judged(one, other, tolerance, certain) for one, other in pairs),
        old_largest=old.edge.largest_batch if old.edge else None,
        new_largest=new.edge.largest_batch if new.edge else None,
        unlike=unlike,
        differs=tuple(_differs(old, new)),
    )


def subject(record: Record) -> str:
    """Name the model; of one in a file without the folder, so that two checkouts of it are the same."""
    spec = record.spec
    return spec.model.rpartition("/")[2] if spec.source in ("factory", "file") else spec.model


def _unlike(old: Record, new: Record) -> Iterator[str]:
    yield from _told("model", subject(old), subject(new))
    for name in _UNLIKE:
        yield from _told(name, getattr(old.spec, name), getattr(new.spec, name))
    yield from _told("input", old.input_shape, new.input_shape)
    yield from _told("device", old.environment.device_name, new.environment.device_name)
    yield from _told("allocator", _allocator(old), _allocator(new))
    yield from _told("method", old.method, new.method)


def _allocator(record: Record) -> str:
    """Return the settings of the memory allocator, without one that leaves it as it is."""
    return (record.environment.allocator_conf or "").replace("expandable_segments:False", "") or "as it is"


def _differs(old: Record, new: Record) -> Iterator[str]:
    for name in _TOLD:
        yield from _told(name, getattr(old.spec, name), getattr(new.spec, name))
    for name in _TOLD_OF_PLACE:
        yield from _told(name, getattr(old.environment, name), getattr(new.environment, name))
    yield from _told("parameters", old.parameters, new.parameters)
    for record, which in ((old, "OLD"), (new, "NEW")):
        if record.finished is None:
            yield f"{which} was cut short"
    if old.source_sha256 != new.source_sha256:
        yield "the file that the model is made by"


def _told(name: str, before: object, after: object) -> Iterator[str]:
    if before != after:
        yield f"{name.removesuffix('_bytes').replace('_', ' ')} {before} and {after}"


def _pairs(old: Record, new: Record) -> Iterator[tuple[Row, Row]]:
    after = {row.batch_size: row for row in new.rows}
    for row in old.rows:
        if row.batch_size in after and (row.failure is None or after[row.batch_size].failure is None):
            yield row, after[row.batch_size]


def _judged(old: Row, new: Row, tolerance: float, confidence: float) -> Judgement:
    def judgement(verdict: Verdict, reason: str, interval: Interval | None = None) -> Judgement:
        known = old.samples_per_s is not None and new.samples_per_s is not None
        return Judgement(
            old_batch=old.batch_size,
            new_batch=new.batch_size,
            old_per_s=old.samples_per_s,
            new_per_s=new.samples_per_s,
            ratio=(new.samples_per_s or 0.0) / (old.samples_per_s or 1.0) if known else None,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            verdict=verdict,
            reason=reason,
        )

    against = _against(old, new)
    if against:
        return judgement("not_comparable", against)
    interval = _ratio(old, new, confidence)
    if interval is None:
        return judgement("ambiguous", "timed in one process only")
    return judgement(_verdict(interval, tolerance), _clocks(old, new), interval)


def _ratio(old: Row, new: Row, confidence: float) -> Interval | None:
    """Return the interval of NEW's rate over OLD's."""
    spans = [[timing.device_ms for timing in row.timings] for row in (old, new)]
    interval = ratio_interval(spans[0], spans[1], REPEATABILITY, confidence)
    if interval is None:
        return None
    batches = new.batch_size / old.batch_size
    return Interval(interval.low * batches, interval.high * batches)


def _verdict(interval: Interval, tolerance: float) -> Verdict:
    if 1 / (1 + tolerance) <= interval.low and interval.high <= 1 + tolerance:
        return "same"
    if interval.low > 1:
        return "faster"
    return "slower" if interval.high < 1 else "ambiguous"


def _against(old: Row, new: Row) -> str:
    """Say why two rows cannot be compared: one failed, or its clocks were held down by something not its own."""
    for row, which in ((old, "OLD"), (new, "NEW")):
        if row.failure is not None:
            return f"{row.failure.kind.replace('_', ' ')} in {which}"
        if row.samples_per_s is None:
            return f"not timed in {which}"
        found = health(row)
        slowed = {} if found is None else found.slowed
        foreign = [name for name, share in slowed.items() if share >= THROTTLED_SHARE and name != "power_cap"]
        if foreign:
            return f"throttled in {which}: {', '.join(foreign).replace('_', ' ')}"
    return ""


def _clocks(old: Row, new: Row) -> str:
    """Say how the clocks differ where they do: a device at the limit of its power runs as fast as that lets it."""
    before, after = health(old), health(new)
    if before is None or after is None or not before.sm_clock_mhz or not after.sm_clock_mhz:
        return ""
    if abs(after.sm_clock_mhz / before.sm_clock_mhz - 1) < _CLOCKS_DIFFER:
        return ""
    capped = " at the power limit" if "power_cap" in before.slowed or "power_cap" in after.slowed else ""
    return f"SM clock {before.sm_clock_mhz:.0f} and {after.sm_clock_mhz:.0f} MHz{capped}"
