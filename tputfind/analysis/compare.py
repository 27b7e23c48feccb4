"""Two records of the same work side by side: which rows became faster or slower, and whether a gate is passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from tputfind import options
from tputfind.analysis.answers import (
    THROTTLED_SHARE,
    fastest,
    health,
    in_one_process,
    known_interval,
    largest_of,
    rate_ratio_interval,
)
from tputfind.analysis.turns import FEWEST_ROUNDS, Turns
from tputfind.errors import BadRequest, Regression, TooNoisy, TputfindError
from tputfind.record import identity
from tputfind.record.identity import name_of
from tputfind.record.record import Failure, Record, Row, check_record, host_bound
from tputfind.record.result import Result
from tputfind.record.spec import Spec
from tputfind.record.types import REPEATABILITY, Above0, Amount, Count
from tputfind.stats import CONFIDENCE, Interval
from tputfind.units import format_sizes

Verdict = Literal["same", "faster", "slower", "ambiguous", "not_comparable"]
TOLERANCE: Final = 0.01
"""Rates whose ratio certainly lies within this of 1 are called the same."""
LEAST_TOLERANCE: Final = sqrt(2) * REPEATABILITY
"""No two rates are known well enough to be the same within less."""
_CLOCKS_DIFFER: Final = 0.02
ONE_PROCESS: Final = "timed in one process: measure with --processes 3 or more"
"""Why a row that was timed in one process is not judged."""


_COMPARED_OTHERWISE: Final = {"model", "weights", "image_size", "input_size", "sequence_length"}
"""Names count without their folders, and the record holds the shape of the input."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """One rate over another: NEW over OLD, with the interval of the ratio and what to make of it.

    ``old_share`` and ``new_share`` are half the widths of the rates' own intervals, as shares. ``host_bound`` says that
    Python sets the pace in one of the two; ``lost`` is a batch size that ran in OLD and does not in NEW. ``reason``
    says why they cannot be compared, or what else differs; empty where there is nothing to say.
    """

    old_batch: Count
    new_batch: Count
    old_per_s: Amount | None = None
    new_per_s: Amount | None = None
    old_share: Amount | None = None
    new_share: Amount | None = None
    ratio: Above0 | None = None
    low: Above0 | None = None
    high: Above0 | None = None
    verdict: Verdict
    host_bound: bool = False
    lost: bool = False
    reason: str = ""

    @property
    def was_judged(self) -> bool:
        """Whether there are enough figures to compare."""
        return self.verdict != "not_comparable" and self.reason != ONE_PROCESS

    def slower_than(self, share: float) -> bool:
        """Whether NEW is certainly slower, and as far as is known by more than this share, or does not run at all."""
        return self.lost or (self.high is not None and self.high < 1 and (self.ratio or 1.0) < 1 - share)

    def is_regression(self, share: float) -> bool:
        """Whether NEW is slower by itself: the pace of a row that is bound by the host changes from run to run."""
        return self.slower_than(share) and (self.lost or not self.host_bound)

    def may_be_slower_than(self, share: float) -> bool:
        """Whether that cannot be excluded of rates that were judged."""
        return self.was_judged and (self.low is None or self.low < 1 - share)


class Comparison(Result, msgspec.Struct, frozen=True, kw_only=True):
    """Two records: their fastest rows among the batch sizes that both have, and each of these.

    ``unlike`` is what should have kept them from being compared, and did not because it was asked for; ``differs`` is
    what else is not the same. Of two models that were timed in turn, ``variants`` are both as they ran, ``turns`` what
    was timed of each batch size, and ``seconds`` what all of it took.
    """

    KIND = "comparison"
    model: str
    recipe: str
    device_name: str
    old_started: str
    new_started: str
    tolerance: Annotated[float, Meta(ge=0, lt=1)]
    best: Judgement | None
    rows: tuple[Judgement, ...]
    old_largest: str = ""
    new_largest: str = ""
    unlike: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    variants: tuple[Spec, ...] = ()
    turns: tuple[Turns, ...] = ()
    seconds: Amount = 0.0

    @property
    def verdict(self) -> Verdict:
        """That of the fastest rows."""
        return self.best.verdict if self.best else "not_comparable"

    def slower_than(self, share: float) -> list[Judgement]:
        """Return what became certainly slower by more than this share, or does not run any more."""
        judged = [*([self.best] if self.best else []), *self.rows]
        return [one for one in judged if one.is_regression(share)]


class Comparisons(Result, list[Comparison]):
    """Comparisons of several records, which show and save themselves together."""

    KIND = "comparison"
    __slots__ = ()


def compare(old: Record, new: Record, *, tolerance: float = TOLERANCE, force: bool = False) -> Comparison:
    """Return what became of the throughput from one record to a later one, of the same work on the same device.

    The ratio of the fastest rows has a 95 % confidence interval of its own; those of the batch sizes hold together with
    95 % (Bonferroni). A row is the ``same`` where its whole interval lies within the tolerance, ``faster`` or
    ``slower`` where the interval excludes 1, and else ``ambiguous``: the processes differ too much to tell. As far as
    processes are independent and their paces normal, two equal runs are told apart in fewer than 5 % of cases; a host
    that keeps a pace for a whole run is neither. See ``stats.ratio_interval``.

    Args:
        old: what came before.
        new: what is asked about.
        tolerance: the share up to which a difference is none: 0.01 is 1 %.
        force: compare unlike things too; the comparison then names them.

    Raises:
        BadRequest: they are unlike, or the tolerance is none.
    """
    check_record("old", old)
    check_record("new", new)
    tolerance = checked_tolerance(tolerance)
    unlike = tuple(_unlike(old, new))
    if unlike and not force:
        raise BadRequest(
            f"these are not comparable: {'; '.join(unlike)}", "--force compares them nevertheless, and says so"
        )
    pairs = list(_pairs(old, new))
    certain = 1 - (1 - CONFIDENCE) / max(1, sum(not in_one_process(*pair) for pair in pairs))
    rows = [*(_judged(old, new, pair, tolerance, certain) for pair in pairs), *_beyond(old, new)]
    return Comparison(
        model=subject(new.spec),
        recipe=name_of(new.spec),
        device_name=new.environment.device_name,
        old_started=old.started,
        new_started=new.started,
        tolerance=tolerance,
        best=_best(old, new, tolerance),
        rows=tuple(sorted(rows, key=lambda row: row.old_batch)),
        old_largest=_largest(old),
        new_largest=_largest(new),
        unlike=unlike,
        differs=tuple(_differs(old, new)),
    )


def checked_tolerance(tolerance: float) -> float:
    """Return a tolerance that verdicts can be told by.

    Raises:
        BadRequest: it is none.
    """
    try:
        tolerance = options.number(tolerance)
    except ValueError as problem:
        raise BadRequest(f"tolerance: {problem}") from None
    if not LEAST_TOLERANCE < tolerance < 1:
        raise BadRequest(
            f"a tolerance of {tolerance:g} is not above {LEAST_TOLERANCE:.2%}, which is what figures repeat to"
        )
    return tolerance


class Tried(NamedTuple):
    """A batch size of two variants that take turns, OLD and NEW: what was timed, and what keeps one from running."""

    turns: Turns
    failed: int | None = None
    failure: Failure | None = None


def judged_in_turn(tried: Tried, tolerance: float, comparisons: int, scatter: float | None = None) -> Judgement:
    """Return what to make of a batch size of two variants that were timed in turn; see ``Turns.interval``."""
    turns, failure = tried.turns, tried.failure
    old_per_s, new_per_s = turns.rate_per_s(0), turns.rate_per_s(1)
    interval = None if failure else turns.interval(1, 0, comparisons, scatter)
    if failure is not None:
        reason = f"{failure.kind.replace('_', ' ')} in {('OLD', 'NEW')[tried.failed or 0]}"
    else:
        reason = (
            "" if interval else f"timed in {len(turns.rounds)} rounds: {FEWEST_ROUNDS} are the fewest that say anything"
        )
    return Judgement(
        old_batch=turns.batch_sizes[0],
        new_batch=turns.batch_sizes[1],
        old_per_s=old_per_s,
        new_per_s=new_per_s,
        ratio=turns.ratio(1, 0),
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        verdict="not_comparable" if failure else verdict_of(interval, tolerance),
        lost=tried.failed == 1,
        reason=reason,
    )


def is_certain(judgement: Judgement, fail_slower: float | None) -> bool:
    """Return whether further rounds would change nothing that was asked: the verdict, or whether a gate is passed."""
    if judgement.low is None or judgement.high is None:
        return judgement.verdict == "not_comparable"
    if fail_slower is None:
        return judgement.verdict != "ambiguous"
    return judgement.low >= 1 - fail_slower or judgement.high < 1 - fail_slower


def in_turn(
    variants: tuple[Spec, Spec],
    device_name: str,
    started: str,
    tried: Sequence[Tried],
    *,
    tolerance: float,
    seconds: float,
    differs: tuple[str, ...] = (),
) -> Comparison:
    """Return the comparison of two models or recipes that were timed in turn, a row for each batch size."""
    rows = tuple(judged_in_turn(one, tolerance, len(tried)) for one in tried)
    ran = [row for row in rows if row.ratio is not None]
    return Comparison(
        model=" and ".join(dict.fromkeys(map(subject, variants))),
        recipe=" and ".join(dict.fromkeys(map(name_of, variants))),
        device_name=device_name,
        old_started=started,
        new_started=started,
        tolerance=tolerance,
        best=max(ran, key=lambda row: max(row.old_per_s or 0.0, row.new_per_s or 0.0), default=None),
        rows=rows,
        differs=differs,
        variants=variants,
        turns=tuple(one.turns for one in tried),
        seconds=seconds,
    )


def subject(spec: Spec) -> str:
    """Name the model; of one in a file without the folder, so that two checkouts of it are the same."""
    return spec.model.rpartition("/")[2] if spec.own_code else spec.model


def _best(old: Record, new: Record, tolerance: float) -> Judgement | None:
    """Set the fastest rows side by side: of the batch sizes that both have, or of all where they share none."""
    both = {row.batch_size for row in old.rows} & {row.batch_size for row in new.rows}
    rows = ([row for row in record.rows if row.batch_size in both or not both] for record in (old, new))
    before, after = map(fastest, rows)
    if before is None or after is None:
        return None
    found = _judged(old, new, (before, after), tolerance, CONFIDENCE)
    return found if both else msgspec.structs.replace(found, reason="no batch size is in both")


def _unlike(old: Record, new: Record) -> Iterator[str]:
    yield from _told("model", subject(old.spec), subject(new.spec))
    yield from _told("weights", _weights(old), _weights(new))
    for name, before, after in identity.differing(old.spec, new.spec, "work"):
        if name not in _COMPARED_OTHERWISE:
            yield from _told(name, before, after)
    yield from _told("input", old.input_shape, new.input_shape)
    yield from _told("device", old.environment.device_name, new.environment.device_name)
    if new.environment.can.on_host:
        yield from _told("threads", old.environment.torch_threads, new.environment.torch_threads)
    yield from _told("allocator", _allocator(old), _allocator(new))
    yield from _told("method", old.method, new.method)
    if (old.spec.load == "all_busy") != (new.spec.load == "all_busy"):
        yield "one is of a device alone, the other of all devices busy"


def _weights(record: Record) -> str:
    return (record.spec.weights or "random").rpartition("/")[2]


def _allocator(record: Record) -> str:
    """Return the settings of the memory allocator in one order, without one that leaves it as it is."""
    settings = {setting.strip() for setting in (record.environment.allocator_conf or "").split(",")}
    return ",".join(sorted(settings - {"", "expandable_segments:False"})) or "as it is"


def _differs(old: Record, new: Record) -> Iterator[str]:
    yield from _told("parameters", old.parameters, new.parameters)
    if old.source_sha256 != new.source_sha256:
        live = old.spec.source == new.spec.source == "live"
        yield "the bytes of the live object" if live else "the file that the model or its weights are made by"
    for name, before, after in (
        *identity.differing(old.spec, new.spec, "told"),
        *identity.differing(old.environment, new.environment, "told"),
    ):
        yield from _told(name, before, after)
    for record, other, which in ((old, new, "OLD"), (new, old, "NEW")):
        if record.finished is None:
            yield f"{which} was cut short"
        alone = {row.batch_size for row in record.rows} - {row.batch_size for row in other.rows}
        if alone:
            yield f"only {which} has batch {format_sizes(alone)}"


def _told(name: str, before: object, after: object) -> Iterator[str]:
    if before != after:
        yield f"{name.removesuffix('_bytes').replace('_', ' ')} {before} and {after}"


def _largest(record: Record) -> str:
    """Return the largest batch and what limits it; empty where it was not searched for."""
    edge = record.edge
    return "" if edge is None else f"{largest_of(edge)} ({edge.limited_by.replace('_', ' ')})"


def _pairs(old: Record, new: Record) -> Iterator[tuple[Row, Row]]:
    after = {row.batch_size: row for row in new.rows}
    for row in old.rows:
        if row.batch_size in after and (row.failure is None or after[row.batch_size].failure is None):
            yield row, after[row.batch_size]


def _beyond(old: Record, new: Record) -> Iterator[Judgement]:
    """Yield the rows of OLD that lie beyond the largest batch of NEW, where that is not a limit that was set."""
    edge, same_memory = new.edge, old.spec.memory_limit_bytes == new.spec.memory_limit_bytes
    if edge is None or not edge.closed or edge.limited_by in ("cap", "latency") or not same_memory:
        return
    tried = {row.batch_size for row in new.rows}
    for row in old.rows:
        if row.samples_per_s is not None and row.batch_size > edge.largest_batch and row.batch_size not in tried:
            yield Judgement(
                old_batch=row.batch_size,
                new_batch=row.batch_size,
                old_per_s=row.samples_per_s,
                verdict="not_comparable",
                lost=True,
                reason=f"beyond the largest batch of NEW, {_largest(new)}",
            )


def _judged(
    old_record: Record, new_record: Record, pair: tuple[Row, Row], tolerance: float, confidence: float
) -> Judgement:
    old, new = pair
    against = _against(old, new)
    interval = None if against else rate_ratio_interval(new, old, confidence)
    unknown = ONE_PROCESS if in_one_process(old, new) else "processes differ too much to tell"
    known = old.samples_per_s is not None and new.samples_per_s is not None
    return Judgement(
        old_batch=old.batch_size,
        new_batch=new.batch_size,
        old_per_s=old.samples_per_s,
        new_per_s=new.samples_per_s,
        old_share=_share(old_record, old),
        new_share=_share(new_record, new),
        ratio=(new.samples_per_s or 0.0) / (old.samples_per_s or 1.0) if known else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        verdict="not_comparable" if against else verdict_of(interval, tolerance),
        host_bound=bool(host_bound(old) or host_bound(new)),
        lost=old.samples_per_s is not None and new.failure is not None,
        reason=against or (unknown if interval is None else _clocks(old, new)),
    )


def _share(record: Record, row: Row) -> float | None:
    interval = known_interval(record, row)
    return None if interval is None else interval.half_width


def verdict_of(interval: Interval | None, tolerance: float) -> Literal["same", "faster", "slower", "ambiguous"]:
    """Return what to make of the interval of a ratio: ``same`` if all of it lies within the tolerance of 1."""
    if interval is None:
        return "ambiguous"
    if 1 / (1 + tolerance) <= interval.low and interval.high <= 1 + tolerance:
        return "same"
    return "faster" if interval.low > 1 else "slower" if interval.high < 1 else "ambiguous"


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


def gate(compared: Sequence[Comparison], share: float | None, problems: list[TputfindError]) -> int:
    """Return the exit code of a gate at this share, and add what it comes to to the problems; None passes everything.

    A regression counts most, then a record that could not be judged at all, then rows that are too noisy to judge.
    """
    if share is None:
        return 0
    regressions = [told for one in compared for told in _regressions(one, share)]
    for one in compared:
        problems += _not_judged(one)
    code = BadRequest.exit_code if problems else 0
    unsure = [told for one in compared for told in _unsure(one, share)]
    if unsure:
        what = f"too noisy to exclude that it is {100 * share:g} % slower: {'; '.join(unsure)}"
        more = (
            "measure longer, such as --budget 5min"
            if any(one.turns for one in compared)
            else "measure in more processes"
        )
        problems.append(TooNoisy(what, f"{more}, or on a quiet machine"))
    if any(_unsure_fastest(one, share) for one in compared):
        code = code or TooNoisy.exit_code
    if not regressions:
        return code
    problems.append(Regression(f"slower by more than {100 * share:g} %: {'; '.join(regressions)}"))
    return Regression.exit_code


def _regressions(one: Comparison, share: float) -> Iterator[str]:
    found = one.slower_than(share)
    sizes = {row.new_batch for row in found if row is not one.best}
    for row in found:
        what = f"batch {row.new_batch}"
        if row is one.best:
            if row.old_batch == row.new_batch and row.new_batch in sizes:
                continue
            what = f"the fastest (batch {row.old_batch} and {row.new_batch})"
        told = row.reason if row.lost else f"{100 * (1 - (row.ratio or 0.0)):.1f} % slower"
        yield f"{one.model} {one.recipe}, {what}: {told}"


def _not_judged(one: Comparison) -> Iterator[BadRequest]:
    """Yield why the fastest rows cannot be judged, however quiet the machine is."""
    if one.best is None or not one.best.was_judged:
        reason = "one of them has no row that was timed" if one.best is None else one.best.reason
        yield BadRequest(f"{one.model} {one.recipe} could not be judged: {reason}")


def _unsure_fastest(one: Comparison, share: float) -> Judgement | None:
    """Return the fastest rows if they may be slower, though not certainly, or because of the host alone."""
    best = one.best
    return best if best and best.may_be_slower_than(share) and not best.is_regression(share) else None


def _unsure(one: Comparison, share: float) -> Iterator[str]:
    """Yield the batch sizes of a comparison that may be slower, though not certainly."""
    rows = [row for row in one.rows if row.may_be_slower_than(share) and not row.slower_than(share)]
    named = {f"{row.new_batch}": "" for row in rows}
    if best := _unsure_fastest(one, share):
        bound = ", bound by the host" if best.host_bound else ""
        batches = dict.fromkeys((best.old_batch, best.new_batch))
        named[" and ".join(map(str, batches))] = f" (the fastest{bound})"
    if named:
        yield f"{one.model} {one.recipe} at batch {', '.join(batch + remark for batch, remark in named.items())}"
