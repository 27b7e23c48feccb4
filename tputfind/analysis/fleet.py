"""Comparison of devices of one kind: which are slow, and how much they slow each other. Pure functions of records."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import fsum
from statistics import median
from typing import Final, Literal, NamedTuple

from tputfind.analysis import answers
from tputfind.analysis.compare import COMPARED_OTHERWISE, TOLERANCE, verdict_of
from tputfind.analysis.notices.timing import REASONS
from tputfind.record import identity
from tputfind.record.record import Record, Row, host_bound
from tputfind.record.spec import Spec
from tputfind.record.types import NEGLIGIBLE_BYTES, REPEATABILITY
from tputfind.stats import CONFIDENCE, Interval, estimate, interval_of_product, mean
from tputfind.units import format_bytes, format_figure

Verdict = Literal["same", "faster", "slower", "not known"]
_CLOCKS_DIFFER: Final = 0.02
_HOTTER_C: Final = 10.0
_BUSY_SHARE: Final = 0.15
_MOSTLY: Final = 0.5
"""A row during which all devices worked for a smaller fraction of the window does not show them busy together."""
_LONGER: Final = 1.05
"""Factor by which a duration must grow under load to count as a cause."""


class Judged(NamedTuple):
    """A row's throughput over that of other rows, with its interval, if known; ``causes`` are other differences."""

    record: Record
    row: Row
    ratio: float | None
    interval: Interval | None
    causes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        verdict = verdict_of(self.interval, TOLERANCE)
        return "not known" if verdict == "ambiguous" else verdict


class ByDevice(NamedTuple):
    """One job on each device, against the others at the fastest batch size; ``elsewhere`` are differences at others."""

    batch_size: int
    devices: tuple[Judged, ...]
    elsewhere: tuple[Judged, ...]


class AllBusy(NamedTuple):
    """One batch size on all devices at once: each against itself alone, and all together."""

    batch_size: int
    devices: tuple[Judged, ...]
    alone_per_s: float
    busy_per_s: float
    ratio: float
    interval: Interval | None


def device_key(record: Record) -> str:
    """Return the identity of a device: its UUID, or without one its torch name and its node or host: ``xpu:0 h1``."""
    _, node = identity.place_of(record)
    there = record.environment
    return there.device_uuid or f"{there.device} {node or there.host}".strip()


def compare_devices(records: Sequence[Record]) -> list[ByDevice]:
    """Return the comparison of every job on several devices of one kind, by the latest record of each."""
    solo = [record for record in records if record.spec.load != "all_busy"]
    groups = group_by(
        solo, lambda record: (identity.work_key(record), identity.name_of(record.spec), answers.threads(record))
    )
    judged = (_compare_group(_latest(group)) for group in groups)
    return [one for one in judged if one is not None]


def all_busy(records: Sequence[Record]) -> list[list[AllBusy]]:
    """Return the comparison of every job that ran on all devices at once, batch size by batch size."""
    groups = group_by([record for record in records if record.spec.load == "all_busy"], _job)
    found = []
    for group in groups:
        busy = _latest(group)
        alone = {
            device_key(one): one
            for one in _latest([one for one in records if one.spec.load != "all_busy" and _job(one) == _job(busy[0])])
        }
        pairs = [(one, alone[device_key(one)]) for one in busy if device_key(one) in alone]
        sizes = sorted(_common([one for pair in pairs for one in pair]))
        found.append([_all_busy(pairs, size) for size in sizes])
    return [one for one in found if one]


def records_for_plan(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Return the records to plan with, and a sentence for each job whose records this changes.

    If a job ran on all devices at once, those records count, because the devices will work so in production. Among
    devices of one kind the slowest counts, at the batch size that is fastest (alone, if measured); records of a device
    alone are left out. Records do not count if they were cut short before that batch size, or if, unlike others, their
    devices were mostly not busy together.
    """
    kept, told = list(records), []
    for busy in group_by([one for one in records if one.spec.load == "all_busy"], _kind_of_job):
        alone = [one for one in records if one.spec.load != "all_busy" and _kind_of_job(one) == _kind_of_job(busy[0])]
        best = answers.fastest([row for one in alone or busy for row in one.rows])
        if best is None:
            continue
        rates = [(rate, one) for one in busy if (rate := _rate_at(one, best.batch_size)) is not None]
        slowest_per_s, slowest = min(rates, key=lambda pair: pair[0], default=(0.0, None))
        job = f"{busy[0].spec.model} {identity.name_of(busy[0].spec)} on {busy[0].environment.device_name}"
        if slowest is None and not alone:
            told.append(f"{job}: planned with its devices as measured, mostly not busy at the same time")
            continue
        instead = busy if slowest is None else [*busy, *alone]
        kept = [one for one in kept if one is slowest or all(one is not other for other in instead)]
        if slowest is None:
            told.append(
                f"{job}: planned with devices alone; "
                f"batch {best.batch_size}, the fastest, was not timed while all were busy"
            )
            continue
        same = [_rate_at(one, best.batch_size) for one in alone if device_key(one) == device_key(slowest)]
        change = f", {slowest_per_s / same[-1]:.2f} times what it does alone" if same and same[-1] else ""
        which = f"the slowest of {len(rates)}, " if len(rates) > 1 else ""
        told.append(
            f"{job}: planned with {which}{slowest.environment.device}, while {slowest.spec.busy_devices} devices were "
            f"busy: {format_figure(slowest_per_s)} samples/s at batch {best.batch_size}{change}"
        )
    return kept, told


def _rate_at(record: Record, batch_size: int) -> float | None:
    """Return the throughput at a batch size; None without one, or if all were to work and mostly did not."""
    row = record.row(batch_size)
    share = None if row is None else answers.all_busy_share(row)
    return None if row is None or (share is not None and share < _MOSTLY) else row.samples_per_s


def all_busy_share_of_window(window_s: tuple[float, float], others: Sequence[tuple[float, float] | None]) -> float:
    """Return the fraction of a window during which all others worked; None stands for one that never did."""
    begin, end = window_s
    if None in others or end <= begin:
        return 0.0
    spans = [span for span in others if span is not None]
    low = max([begin, *(span[0] for span in spans)])
    high = min([end, *(span[1] for span in spans)])
    return max(0.0, high - low) / (end - begin)


def ratio_to_others(
    row: Row, others: Sequence[Row], confidence: float = CONFIDENCE
) -> tuple[float | None, Interval | None]:
    """Return the throughput of a row over the median of other rows of its batch size, and the interval of the ratio.

    With an even number the faster of the two middle rows is the median: a defect slows a device down, and must not make
    the others look fast. The interval covers the variation of the row and of the median row.
    """
    ordered = sorted(others, key=lambda other: other.samples_per_s or 0.0)
    middle = ordered[len(ordered) // 2]
    if row.samples_per_s is None or not middle.samples_per_s:
        return None, None
    return row.samples_per_s / middle.samples_per_s, answers.rate_ratio_interval(row, middle, confidence)


def _compare_group(records: Sequence[Record]) -> ByDevice | None:
    sizes = sorted(_common(records))
    if len(records) < 2 or not sizes:
        return None
    rows = {size: [(record, _row(record, size)) for record in records] for size in sizes}
    best = max(sizes, key=lambda size: median(row.samples_per_s or 0.0 for _, row in rows[size]))
    pairs = 1 if len(records) == 2 else len(records)  # with two, each ratio is the other's reciprocal
    elsewhere = [
        judged
        for size in sizes
        if size != best
        for judged in _judge_rows(rows[size], 1 - (1 - CONFIDENCE) / (pairs * len(sizes)))
        if judged.verdict in ("slower", "faster")
    ]
    return ByDevice(best, tuple(_judge_rows(rows[best], 1 - (1 - CONFIDENCE) / pairs)), tuple(elsewhere))


def _judge_rows(rows: Sequence[tuple[Record, Row]], confidence: float) -> Iterator[Judged]:
    """Judge each row against the median of the others; together the intervals hold with 95 % (Bonferroni)."""
    for place, (record, row) in enumerate(rows):
        others = [pair for number, pair in enumerate(rows) if number != place]
        ratio, interval = ratio_to_others(row, [other for _, other in others], confidence)
        judged = Judged(record, row, ratio, interval)
        yield judged if judged.verdict == "same" else judged._replace(causes=tuple(_beside(record, row, others)))


def _beside(record: Record, row: Row, others: Sequence[tuple[Record, Row]]) -> Iterator[str]:
    """Yield the observed differences between a device and the others, other than its throughput."""
    seen, theirs = answers.health(row), [found for _, other in others if (found := answers.health(other)) is not None]
    if seen is not None and theirs:
        clock = _median(one.sm_clock_mhz for one in theirs)
        if seen.sm_clock_mhz and clock and abs(seen.sm_clock_mhz / clock - 1) >= _CLOCKS_DIFFER:
            yield f"SM clock {seen.sm_clock_mhz:.0f} MHz, the others {clock:.0f}"
        heat = _median(one.temperature_c for one in theirs)
        if seen.temperature_c is not None and heat is not None and seen.temperature_c >= heat + _HOTTER_C:
            yield f"{seen.temperature_c:.0f} °C, the others {heat:.0f}"
    yield from _held_down(seen)
    if (row.memory_of_others_bytes or 0) > NEGLIGIBLE_BYTES:
        yield f"other processes hold {format_bytes(row.memory_of_others_bytes or 0)} of its memory"
    yield from _host(record, row)
    if host_bound(row):
        yield "the host sets its pace"


def _held_down(seen: answers.RowHealth | None) -> Iterator[str]:
    for reason, share in ({} if seen is None else seen.slowed).items():
        if share >= answers.THROTTLED_SHARE:
            yield f"{REASONS.get(reason, reason)} {share:.0%} of the time"


def _host(record: Record, row: Row) -> Iterator[str]:
    cores, busy = record.environment.cpu_count, answers.others_busy_cores(row)
    if busy is not None and busy >= _BUSY_SHARE * cores:
        yield f"other processes kept {busy:.1f} of its {cores} core{'s' if cores > 1 else ''} busy"


def _all_busy(pairs: Sequence[tuple[Record, Record]], size: int) -> AllBusy:
    """Judge a batch size of each device under load against the same alone; all intervals hold together with 95 %."""
    rows = [(busy, _row(busy, size), _row(alone, size)) for busy, alone in pairs]
    confidence = 1 - (1 - CONFIDENCE) / len(rows)
    devices = []
    for record, busy, alone in rows:
        ratio, interval = ratio_to_others(busy, [alone], confidence)
        judged = Judged(record, busy, ratio, interval)
        slowed = judged.verdict in ("slower", "not known")
        devices.append(judged._replace(causes=tuple(_under_load(record, busy, alone))) if slowed else judged)
    alone_per_s = fsum(alone.samples_per_s or 0.0 for _, _, alone in rows)
    busy_per_s = fsum(busy.samples_per_s or 0.0 for _, busy, _ in rows)
    factors = [
        (found, (row.samples_per_s or 0.0) / whole)
        for whole, side in ((alone_per_s, [alone for *_, alone in rows]), (busy_per_s, [busy for _, busy, _ in rows]))
        for row in side
        if not row.failure and (found := estimate([timing.device_ms for timing in row.timings])) is not None
    ]
    ratio = busy_per_s / alone_per_s
    interval = interval_of_product(ratio, factors, REPEATABILITY) if len(factors) == 2 * len(rows) else None
    return AllBusy(size, tuple(devices), alone_per_s, busy_per_s, ratio, interval)


def _under_load(record: Record, busy: Row, alone: Row) -> Iterator[str]:
    """Yield the observed changes of a device under load, the likely causes of a slowdown."""
    now, then = answers.health(busy), answers.health(alone)
    clock, clock_alone = (seen and seen.sm_clock_mhz for seen in (now, then))
    if clock and clock_alone and clock <= (1 - _CLOCKS_DIFFER) * clock_alone:
        yield f"SM clock {clock:.0f} MHz, alone {clock_alone:.0f}"
        yield from _held_down(now)
    submitting, submitted = mean(busy.enqueue_ms), mean(alone.enqueue_ms)
    if submitting and submitted and submitting >= _LONGER * submitted and host_bound(busy):
        yield f"the host takes {submitting / submitted:.2f} times as long to submit a batch, and sets the pace"
    for way, now_ms, then_ms in (
        ("in", _copies(busy, "copy_in_ms"), _copies(alone, "copy_in_ms")),
        ("out", _copies(busy, "copy_out_ms"), _copies(alone, "copy_out_ms")),
    ):
        if now_ms and then_ms and now_ms >= _LONGER * then_ms:
            yield f"copies {way} take {now_ms / then_ms:.2f} times as long"
    more = (answers.others_busy_cores(busy) or 0.0) - (answers.others_busy_cores(alone) or 0.0)
    if more >= _BUSY_SHARE * record.environment.cpu_count:
        yield from _host(record, busy)
    share = answers.all_busy_share(busy)
    if share is not None and share < 1 - TOLERANCE:
        yield f"all were busy for {share:.0%} of the window only"


def _copies(row: Row, name: str) -> float | None:
    return _median(getattr(timing, name) for timing in row.timings)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _job(record: Record) -> tuple[object, ...]:
    """Return a key that records share if they are of the same job, on any device."""
    spec = record.spec
    names = [name for name, role in identity.roles(Spec).items() if role == "work" and name not in COMPARED_OTHERWISE]
    work = [getattr(spec, name) for name in names]
    return (*identity.requests_key(record), identity.name_of(spec), *work, record.method)


def _kind_of_job(record: Record) -> tuple[object, ...]:
    """Return a key that records share if they are of the same job on the same kind of device."""
    return (*_job(record), record.environment.device_name, answers.threads(record))


def group_by(records: Sequence[Record], key: Callable[[Record], object]) -> list[list[Record]]:
    found: dict[object, list[Record]] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return list(found.values())


def _latest(records: Sequence[Record]) -> list[Record]:
    """Return the latest record of each device, in the order in which devices first appear."""
    return [max(reversed(of_device), key=lambda one: one.started) for of_device in group_by(records, device_key)]


def _common(records: Sequence[Record]) -> set[int]:
    timed = [{row.batch_size for row in record.rows if row.samples_per_s is not None} for record in records]
    return set.intersection(*timed) if timed else set()


def _row(record: Record, batch_size: int) -> Row:
    return next(row for row in record.rows if row.batch_size == batch_size)
