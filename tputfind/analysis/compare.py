"""Comparison of two records of the same work: which rows became faster or slower, and whether a gate is passed."""

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from tputfind import options
from tputfind.analysis import answers
from tputfind.analysis.turns import FEWEST_ROUNDS, Scatter, Turns
from tputfind.errors import BadRequest, Regression, TooNoisy, TputfindError
from tputfind.record import identity
from tputfind.record.identity import has_images, name_of
from tputfind.record.record import Failure, Record, Row, Trial, check_record, host_bound
from tputfind.record.result import Result
from tputfind.record.spec import Spec
from tputfind.record.types import REPEATABILITY, Above0, Amount, Count
from tputfind.record.untrusted import printable_json, told_as_bad_record
from tputfind.stats import CONFIDENCE, Interval
from tputfind.units import format_bytes, format_sizes

Verdict = Literal["same", "faster", "slower", "ambiguous", "not_comparable"]
TOLERANCE: Final = 0.01
"""Throughputs whose ratio is certainly within this of 1 count as the same."""
LEAST_TOLERANCE: Final = sqrt(2) * REPEATABILITY
_CLOCKS_DIFFER: Final = 0.02
_AS_MUCH_MEMORY: Final = 0.99
_FITS: Final = 0.9
"""Fraction of NEW's memory that OLD's row may need for NEW to have had enough."""
ONE_PROCESS: Final = "timed in one process: measure with --processes 3 or more"


COMPARED_OTHERWISE: Final = {"model", "weights", "image_size", "input_size", "sequence_length", "gpus"}
"""Names count without their folders, the record holds the shape of the input, and ``--device`` may name the GPUs."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """One throughput over another: NEW over OLD, with the interval of the ratio and the verdict.

    ``old_share`` and ``new_share`` are the relative half-widths of the two throughputs. ``host_bound`` is whether one
    of the two is host-bound; ``lost`` is whether the batch size ran in OLD and does not in NEW. ``reason`` is why they
    cannot be compared, or another difference; it may be empty.
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
    def has_verdict(self) -> bool:
        return self.verdict != "not_comparable" and self.reason != ONE_PROCESS

    def slower_than(self, share: float) -> bool:
        """Whether NEW is certainly slower, by an estimate of more than ``share``, or does not run at all."""
        return self.lost or (self.high is not None and self.high < 1 and (self.ratio or 1.0) < 1 - share)

    def is_regression(self, share: float) -> bool:
        """Whether NEW is slower for its own reasons: a host-bound row varies from run to run."""
        return self.slower_than(share) and (self.lost or not self.host_bound)

    def may_be_slower_than(self, share: float) -> bool:
        """Whether a slowdown of more than ``share`` cannot be excluded; False for rows that were not judged."""
        return self.has_verdict and (self.low is None or self.low < 1 - share)


class Comparison(Result, msgspec.Struct, frozen=True, kw_only=True):
    """Two records: their fastest rows among the batch sizes that both have, and each of these.

    ``unlike`` lists differences that forbid a comparison, which was forced; ``differs`` lists other differences. For
    two models timed in turn, ``variants`` are both as they ran, ``turns`` the timings of each batch size, and
    ``seconds`` the duration of all.
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
    def specs(self) -> tuple[Spec, ...]:
        return self.variants

    @property
    def verdict(self) -> Verdict:
        return self.best.verdict if self.best else "not_comparable"

    def slower_than(self, share: float) -> list[Judgement]:
        """Return the rows that became certainly slower by more than ``share``, or do not run any more."""
        judged = [*([self.best] if self.best and self.best not in self.rows else []), *self.rows]
        return [one for one in judged if one.is_regression(share)]


class Comparisons(Result, list[Comparison]):
    """Comparisons of several records; they show and save themselves together."""

    KIND = "comparison"
    __slots__ = ()


def decode_comparisons(data: bytes, name: str) -> Comparison | Comparisons:
    """Return the comparisons in a file's bytes; raise BadRecord, with the file's name, if there are none."""
    with told_as_bad_record(name):
        kind = Annotated[list[Comparison], Meta(min_length=1)]
        found: list[Comparison] = msgspec.json.decode(printable_json(data), type=kind)
    return found[0] if len(found) == 1 else Comparisons(found)


def compare(old: Record, new: Record, *, tolerance: float = TOLERANCE, force: bool = False) -> Comparison:
    """Compare the throughput of a record with that of a later one, for the same work on the same device.

    The ratio of the fastest rows has a 95 % confidence interval of its own; those of the batch sizes hold together with
    95 % (Bonferroni). A row is the ``same`` if its whole interval lies within the tolerance, ``faster`` or ``slower``
    if the interval excludes 1, and otherwise ``ambiguous``: the variation between processes is too large. If processes
    are independent and their throughputs normal, two equal runs differ significantly in fewer than 5 % of cases; a host
    that keeps one speed for a whole run violates both. See ``stats.ratio_interval``.

    Args:
        old: the earlier record.
        new: the later record.
        tolerance: the fraction up to which a difference counts as none: 0.01 is 1 %.
        force: compare different work too; the comparison then names the differences.

    Raises:
        BadRequest: the records are not of the same work, or the tolerance is invalid.
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
    certain = 1 - (1 - CONFIDENCE) / max(1, sum(not answers.is_single_process(*pair) for pair in pairs))
    rows = [*(_judge_pair(old, new, pair, tolerance, certain) for pair in pairs), *_beyond(old, new)]
    return Comparison(
        model=subject(new.spec),
        recipe=name_of(new.spec, images=has_images(new.input_shape)),
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
    """Return the tolerance as a number; raise BadRequest if it is not between ``LEAST_TOLERANCE`` and 1."""
    try:
        tolerance = options.number(tolerance)
    except ValueError as problem:
        raise BadRequest(f"tolerance: {problem}") from None
    if not LEAST_TOLERANCE < tolerance < 1:
        raise BadRequest(f"a tolerance of {tolerance:g} is not above {LEAST_TOLERANCE:.2%}, the precision of figures")
    return tolerance


class Tried(NamedTuple):
    """A batch size of two variants timed in turn, OLD and NEW: their timings, or which one failed, and why."""

    turns: Turns
    failed: int | None = None
    failure: Failure | None = None


def judged_in_turn(tried: Tried, tolerance: float, comparisons: int, scatter: Scatter | None = None) -> Judgement:
    """Return the judgement of a batch size of two variants that were timed in turn; see ``Turns.interval``."""
    turns, failure = tried.turns, tried.failure
    old_per_s, new_per_s, count = turns.rate_per_s(0), turns.rate_per_s(1), len(turns.rounds)
    interval = None if failure else turns.interval(1, 0, comparisons, scatter)
    if failure is not None:
        reason = f"{failure.kind.replace('_', ' ')} in {('OLD', 'NEW')[tried.failed or 0]}"
    elif count < FEWEST_ROUNDS and interval is None:
        reason = f"timed in {count} round{'' if count == 1 else 's'}: a verdict needs {FEWEST_ROUNDS}"
    else:
        reason = "" if interval else "rounds differ too much to tell"
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
    """Return whether further rounds would change neither the verdict nor, with a gate, whether it is passed."""
    if judgement.low is None or judgement.high is None:
        return judgement.verdict == "not_comparable"
    if fail_slower is None:
        return judgement.verdict != "ambiguous"
    return judgement.low >= 1 - fail_slower or judgement.high < 1 - fail_slower


def compare_turns(
    variants: tuple[Spec, Spec],
    device_name: str,
    started: str,
    tried: Sequence[Tried],
    *,
    tolerance: float,
    seconds: float,
    differs: tuple[str, ...] = (),
    images: bool = True,
) -> Comparison:
    """Return the comparison of two variants that were timed in turn, by batch size; ``images`` as for ``name_of``."""
    rows = tuple(judged_in_turn(one, tolerance, len(tried)) for one in tried)
    ran = [row for row in rows if row.ratio is not None]
    return Comparison(
        model=" and ".join(dict.fromkeys(map(subject, variants))),
        recipe=" and ".join(dict.fromkeys(name_of(spec, images=images) for spec in variants)),
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
    """Name the model, without the folder of its file, so that two checkouts have the same name."""
    return spec.model.rpartition("/")[2] if spec.own_code else spec.model


def _best(old: Record, new: Record, tolerance: float) -> Judgement | None:
    """Judge the fastest rows of the batch sizes that both records have, or of all if they share none."""
    both = {row.batch_size for row in old.rows} & {row.batch_size for row in new.rows}
    full = {row.batch_size: row for row in new.rows if row.status == "out_of_memory"}
    ran = [row for row in old.rows if row.samples_per_s is not None]
    excused = {
        row.batch_size for row in ran if (failed := full.get(row.batch_size)) and _less_memory(old, row, new, [failed])
    }
    rows = ([row for row in record.rows if row.batch_size in both - excused or not both] for record in (old, new))
    before, after = map(answers.fastest, rows)
    if before is None or after is None:
        return None
    found = _judge_pair(old, new, (before, after), tolerance, CONFIDENCE)
    return found if both else msgspec.structs.replace(found, reason="no batch size is in both")


def _unlike(old: Record, new: Record) -> Iterator[str]:
    yield from _describe_difference("model", subject(old.spec), subject(new.spec))
    yield from _describe_difference("weights", weights_name(old), weights_name(new))
    for name, before, after in identity.differing(old.spec, new.spec, "work"):
        if name not in COMPARED_OTHERWISE:
            yield from _describe_difference(name, before, after)
    yield from _describe_difference("gpus", old.spec.device_count, new.spec.device_count)
    yield from _describe_difference("input", old.input_shape, new.input_shape)
    yield from _describe_difference("device", old.environment.device_name, new.environment.device_name)
    if new.environment.can.is_cpu:
        yield from _describe_difference("threads", old.environment.torch_threads, new.environment.torch_threads)
    yield from _describe_difference("allocator", allocator_settings(old), allocator_settings(new))
    yield from _describe_difference("method", old.method, new.method)
    if (old.spec.load == "all_busy") != (new.spec.load == "all_busy"):
        yield "one is of a device alone, the other of all devices busy"


def weights_name(record: Record) -> str:
    return (record.spec.weights or "random").rpartition("/")[2]


def allocator_settings(record: Record) -> str:
    """Return the allocator's settings in a fixed order, without a setting that equals the default."""
    settings = {setting.strip() for setting in (record.environment.allocator_conf or "").split(",")}
    return ",".join(sorted(settings - {"", "expandable_segments:False"})) or "as it is"


def _differs(old: Record, new: Record) -> Iterator[str]:
    yield from _describe_difference("parameters", old.parameters, new.parameters)
    if old.source_sha256 != new.source_sha256:
        live = old.spec.source == new.spec.source == "live"
        yield "the bytes of the live object" if live else "the file that the model or its weights are made by"
    for name, before, after in (
        *identity.differing(old.spec, new.spec, "told"),
        *identity.differing(old.environment, new.environment, "told"),
    ):
        yield from _describe_difference(name, before, after)
    for record, other, which in ((old, new, "OLD"), (new, old, "NEW")):
        if record.finished is None:
            yield f"{which} was cut short"
        alone = {row.batch_size for row in record.rows} - {row.batch_size for row in other.rows}
        if alone:
            yield f"only {which} has batch {format_sizes(alone)}"


def _describe_difference(name: str, before: object, after: object) -> Iterator[str]:
    if before != after:
        words = name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")
        yield f"{words} {_value_text(name, before)} and {_value_text(name, after)}"


def _value_text(name: str, value: object) -> str:
    """Return a value of a field as text, with the unit that the field's name ends with."""
    if name.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    return f"{value:g} s" if name.endswith("_s") and isinstance(value, float) else f"{value}"


def _largest(record: Record) -> str:
    edge = record.edge
    return "" if edge is None else f"{answers.largest_of(edge)} ({edge.limited_by.replace('_', ' ')})"


def _pairs(old: Record, new: Record) -> Iterator[tuple[Row, Row]]:
    after = {row.batch_size: row for row in new.rows}
    for row in old.rows:
        if row.batch_size in after and (row.failure is None or after[row.batch_size].failure is None):
            yield row, after[row.batch_size]


def _beyond(old: Record, new: Record) -> Iterator[Judgement]:
    """Yield the rows of OLD beyond the largest batch of NEW, unless NEW had a cap or a latency limit."""
    edge = new.edge
    if edge is None or not edge.closed or edge.limited_by in ("cap", "latency"):
        return
    tried, least = {row.batch_size for row in new.rows}, edge.fails_at or edge.largest_batch + 1
    above = [one for one in new.attempts if one.batch_size == edge.fails_at and one.failure is not None]
    for row in old.rows:
        if row.samples_per_s is not None and row.batch_size >= least and row.batch_size not in tried:
            less = _less_memory(old, row, new, above) if edge.limited_by == "memory" else ""
            yield Judgement(
                old_batch=row.batch_size,
                new_batch=row.batch_size,
                old_per_s=row.samples_per_s,
                verdict="not_comparable",
                lost=not less,
                reason=less or f"beyond the largest batch of NEW, {_largest(new)}",
            )


def _less_memory(old: Record, row: Row, new: Record, failed: Sequence[Trial | Row]) -> str:
    """Return how NEW, which ran out of memory in these, had less of it than a row of OLD; empty if it had as much."""
    before, after = _usable_bytes(old, [row]), _usable_bytes(new, failed)
    needed = answers.peak_bytes(old, row)
    if needed is not None and after is not None and needed < _FITS * after:
        return ""
    if new.edge is not None and not new.edge.steady:
        return "other processes took or freed memory in NEW"
    if before is None or after is None or after >= _AS_MUCH_MEMORY * before:
        return ""
    return f"NEW had {format_bytes(after)} of memory, OLD {format_bytes(before)}"


def _usable_bytes(record: Record, tried: Sequence[Trial | Row]) -> int | None:
    """Return the memory in bytes that the model could use, in the best of these cases; None if unknown."""
    spec, environment = record.spec, record.environment
    limit_bytes = (record.edge and record.edge.memory_limit_bytes) or spec.memory_of_each_bytes
    if not environment.can.own_memory:
        return limit_bytes or environment.memory_free_bytes
    if environment.memory_total_bytes is None:
        return limit_bytes
    held = [one.memory_of_others_bytes for one in tried if one.memory_of_others_bytes is not None]
    free_bytes = environment.memory_total_bytes - min(held, default=environment.memory_of_others_bytes or 0)
    return min(free_bytes, limit_bytes or free_bytes)


def _judge_pair(
    old_record: Record, new_record: Record, pair: tuple[Row, Row], tolerance: float, confidence: float
) -> Judgement:
    old, new = pair
    against, lost = _against(old, new), old.samples_per_s is not None and new.failure is not None
    if lost and new.status == "out_of_memory" and (less := _less_memory(old_record, old, new_record, [new])):
        against, lost = less, False
    interval = None if against else answers.rate_ratio_interval(new, old, confidence)
    unknown = ONE_PROCESS if answers.is_single_process(old, new) else "processes differ too much to tell"
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
        lost=lost,
        reason=against or (unknown if interval is None else _clocks(old, new)),
    )


def _share(record: Record, row: Row) -> float | None:
    interval = answers.known_interval(record, row)
    return None if interval is None else interval.half_width


def verdict_of(interval: Interval | None, tolerance: float) -> Literal["same", "faster", "slower", "ambiguous"]:
    """Return the verdict of a ratio's interval: ``same`` if all of it lies within the tolerance of 1."""
    if interval is None:
        return "ambiguous"
    if 1 / (1 + tolerance) <= interval.low and interval.high <= 1 + tolerance:
        return "same"
    return "faster" if interval.low > 1 else "slower" if interval.high < 1 else "ambiguous"


def _against(old: Row, new: Row) -> str:
    """Return why two rows cannot be compared: one failed, was not timed, or was throttled; empty if they can."""
    for row, which in ((old, "OLD"), (new, "NEW")):
        if row.failure is not None:
            return f"{row.failure.kind.replace('_', ' ')} in {which}"
        if row.samples_per_s is None:
            return f"not timed in {which}"
        found = answers.health(row)
        slowed = {} if found is None else found.slowed
        foreign = [name for name, share in slowed.items() if share >= answers.THROTTLED_SHARE and name != "power_cap"]
        if foreign:
            return f"throttled in {which}: {', '.join(foreign).replace('_', ' ')}"
    return ""


def _clocks(old: Row, new: Row) -> str:
    """Describe a difference of the SM clocks, which a power limit also causes; empty if they agree."""
    before, after = answers.health(old), answers.health(new)
    if before is None or after is None or not before.sm_clock_mhz or not after.sm_clock_mhz:
        return ""
    if abs(after.sm_clock_mhz / before.sm_clock_mhz - 1) < _CLOCKS_DIFFER:
        return ""
    capped = " at the power limit" if "power_cap" in before.slowed or "power_cap" in after.slowed else ""
    return f"SM clock {before.sm_clock_mhz:.0f} and {after.sm_clock_mhz:.0f} MHz{capped}"


def gate(compared: Sequence[Comparison], share: float | None, problems: list[TputfindError]) -> int:
    """Return the exit code of a gate at this fraction, and add its findings to ``problems``; None passes everything.

    A regression counts most, then a record that could not be judged at all, then rows that are too noisy to judge.
    """
    if share is None:
        return 0
    regressions = [told for one in compared for told in _regressions(one, share)]
    for one in compared:
        if one.best is None or not one.best.has_verdict:
            reason = "one of them has no row that was timed" if one.best is None else one.best.reason
            problems.append(BadRequest(f"{one.model} {one.recipe} could not be judged: {reason}"))
    code = BadRequest.exit_code if problems else 0
    unsure = [told for one in compared for told in _unsure(one, share)]
    if unsure:
        turns = [turns for one in compared for turns in one.turns]
        short = any(0 < len(one.rounds) < FEWEST_ROUNDS for one in turns)
        why = f"fewer than {FEWEST_ROUNDS} rounds, too few" if short else "too noisy"
        what = f"{why} to exclude that it is {100 * share:g} % slower: {'; '.join(unsure)}"
        more = "measure longer, such as --budget 5min" if turns else "measure in more processes"
        problems.append(TooNoisy(what, more if short else f"{more}, or on a quiet machine"))
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
        if row is one.best and row not in one.rows:
            if row.old_batch == row.new_batch and row.new_batch in sizes:
                continue
            what = f"the fastest (batch {row.old_batch} and {row.new_batch})"
        told = row.reason if row.lost else f"{100 * (1 - (row.ratio or 0.0)):.1f} % slower"
        yield f"{one.model} {one.recipe}, {what}: {told}"


def _unsure_fastest(one: Comparison, share: float) -> Judgement | None:
    """Return the fastest rows' judgement if they may be slower, but not certainly, or only because of the host."""
    best = one.best
    return best if best and best.may_be_slower_than(share) and not best.is_regression(share) else None


def _unsure(one: Comparison, share: float) -> Iterator[str]:
    rows = [row for row in one.rows if row.may_be_slower_than(share) and not row.slower_than(share)]
    named = {f"{row.new_batch}": "" for row in rows}
    if best := _unsure_fastest(one, share):
        bound = ", bound by the host" if best.host_bound else ""
        batches = dict.fromkeys((best.old_batch, best.new_batch))
        named[" and ".join(map(str, batches))] = f" (the fastest{bound})"
    if named:
        yield f"{one.model} {one.recipe} at batch {', '.join(batch + remark for batch, remark in named.items())}"
