"""The words of a record's report: its title, its answers, and the marks and failures of its rows."""

from collections.abc import Sequence
from typing import Final

from tputfind.analysis import answers, recipes
from tputfind.analysis.fleet import group_by
from tputfind.analysis.notices.words import few
from tputfind.record import identity
from tputfind.record.record import Edge, LimitedBy, Record, Row
from tputfind.record.spec import Spec
from tputfind.record.types import Phase
from tputfind.report import snippet
from tputfind.stats import percentile
from tputfind.units import ROUGH, format_amount, format_bytes, format_figure, format_seconds, format_sizes

_STOPPED_BY: Final[dict[LimitedBy, str]] = {
    "memory": "batch {at} does not fit in memory",
    "index": "batch {at} passes a 32-bit limit of a kernel, not of memory",
    "kernel": "kernel limit at batch {at}: {why}",
    "host_memory": "the host's memory ran out at batch {at}",
    "cap": "not tried further: --max-batch",
    "unsupported": "batch {at} has no kernel",
    "died": "the process died at batch {at}",
    "timeout": "batch {at}: {why}",
    "latency": "limited by --max-latency: batch {at} {why}; --max-latency none searches to the end of memory",
    "cut_short": "the search was cut short",
    "wrong_output": "batch {at} computes wrong outputs",
    "error": "the model fails at batch {at}",
}


_MARKS: Final[dict[answers.Answer, str]] = {"fastest": "F", "knee": "K", "largest": "L", "safe": "S"}
TO_USE: Final[dict[Phase, str]] = {"infer": "Deploy", "train": "Train with", "step": "Run with"}
_ONLY: Final = "the only one timed"


def title(record: Record) -> str:
    spec = record.spec
    memory = record.environment.memory_total_bytes if spec.memory_limit_bytes is None else spec.memory_limit_bytes
    size = "" if memory is None else f", {format_bytes(memory)}"
    copies = {"none": "", "h2d": ", inputs copied in", "both": ", inputs copied in and outputs out"}[spec.transfer]
    layout = layout_shown(spec, record.input_shape)
    recipe = " ".join((spec.dtype, *layout, *spec.mode_and_phase, *identity.trained_with(record)))
    times = f", {spec.accumulate} batches a step" if spec.accumulate > 1 else ""
    busy = f", all {spec.busy_devices} devices busy" if spec.load == "all_busy" else ""
    work = " ".join(filter(None, (spec.model, recipe, record.input_shape)))
    several = spec.ranks is not None and spec.ranks > 1
    where = f"{spec.device_count} x {device_of(record)}" if spec.device_count > 1 else device_of(record)
    shared = f", shared by {spec.instances} instances" if spec.has_instances else ""
    one = "instance" if spec.has_instances else "device"
    each = f"{' each' if spec.device_count > 1 else ''}; batch sizes are per {one}" if several else ""
    return f"{work} on {where}{size}{shared}{each}{copies}{times}{busy}"


def layout_shown(spec: Spec, input_shape: str) -> tuple[str, ...]:
    """Return the layout as a tuple; empty for a step, and for nchw if no input is an image or a volume."""
    if spec.phase == "step":
        return ()
    return (spec.layout,) if identity.has_images(input_shape) or spec.layout != "nchw" else ()


def device_of(record: Record) -> str:
    """Return a device's name, its number unless it is the first and alone, and the compute threads of a processor."""
    count, name = answers.threads(record), record.environment.device_name
    places = ", ".join(record.spec.devices) if len(record.spec.devices) > 1 else record.environment.device
    if record.spec.busy_devices > 1 or record.spec.device.partition(":")[2] not in ("", "0"):
        name = f"{name} ({places})"
    return name if count is None else f"{name}, {count} thread{'s' if count > 1 else ''}"


def failure_of(row: Row) -> str:
    return "" if row.failure is None else row.failure.kind.replace("_", " ")


def marks(record: Record, row: Row) -> str:
    return "".join(_MARKS[name] for name, answer in answers.answers(record) if answer is row)


def legend(record: Record) -> str:
    return ", ".join(f"{_MARKS[name]} {name}" for name, _ in answers.answers(record))


def models_in_recipes(records: Sequence[Record]) -> list[list[Record]]:
    """Return the newest records of each model in several recipes with the same SLO that are otherwise alike."""
    works = group_by(records, lambda record: (identity.work_key(record), answers.slo_of(record.spec)))
    alike = [_newest_of_each(of_device) for of_model in works for of_device in _group_by_device(of_model)]
    return [of_model for of_model in alike if len(of_model) > 1]


def _newest_of_each(records: Sequence[Record]) -> list[Record]:
    together = group_by(records, lambda record: (identity.name_of(record.spec), record.environment.device))
    newest = [max(of_recipe, key=lambda one: one.started) for of_recipe in together]
    return [record for record in records if any(record is one for one in newest)]


def _group_by_device(records: list[Record]) -> list[list[Record]]:
    """Group the records by device if a recipe ran on more than one device; else return one group."""
    recipes_run = [(identity.name_of(record.spec), record.environment.device) for record in records]
    if len({recipe for recipe, _ in recipes_run}) == len(set(recipes_run)):
        return [records]
    return group_by(records, lambda record: record.environment.device)


def are_recipes(records: Sequence[Record]) -> bool:
    return models_in_recipes(records) == [list(records)]


def recipes_title(records: Sequence[Record]) -> str:
    common = recipes.common_of(records)
    return f"{records[0].spec.model} in {len(records)} recipes{f', all {common}' if common else ''}"


def record_names(records: Sequence[Record]) -> list[str]:
    """Return a name for each of several records, made of the fields that distinguish it."""
    fields = identity.distinguishing_fields(records)
    named = {field: [identity.NAMES[field](record) for record in records] for field in fields}
    named |= {"recipe": recipes.names_of(records)} if "recipe" in named else {}
    return [", ".join(filter(None, parts)) for parts in zip(*named.values(), strict=True)]


def code(records: Sequence[Record]) -> list[str]:
    """Return the lines of Python that run the best of a model's recipes, at the batch size to deploy."""
    best = recipes.best_of(records)
    if best is None:
        return []
    record, fastest = best
    row = answers.to_deploy(record) or fastest
    why = [] if row is fastest else [f"# batch size {row.batch_size}, the one to deploy: {_share_of(row, fastest)}"]
    return [*why, *snippet.lines(record, row.batch_size)]


def tracebacks(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return the tracebacks of models in the records, each once, with a line that names the failed batches."""
    found: dict[str, list[tuple[Record, int, str]]] = {}
    for record in records:
        for one in record.attempts:
            if one.failure is not None and one.failure.traceback:
                found.setdefault(one.failure.traceback, []).append((record, one.batch_size, one.failure.message))
    return [(_failure_title(failures), traceback.rstrip()) for traceback, failures in found.items()]


def _failure_title(failures: Sequence[tuple[Record, int, str]]) -> str:
    sizes: dict[str, set[int]] = {}
    for record, batch_size, _ in failures:
        sizes.setdefault(f"{record.spec.model} {identity.name_of(record.spec)}", set()).add(batch_size)
    where = "; ".join(f"{name} at batch {format_sizes(batches)}" for name, batches in sizes.items())
    return f"{where}: {failures[0][2]}"


def summary(record: Record) -> list[tuple[str, str]]:
    best, bend = answers.fastest(record.rows), answers.knee(record.rows)
    found = {
        TO_USE[record.spec.phase]: _deploy(record, best) if best else "",
        "Largest batch": _largest(record),
        "Safe batch": _safe(record, record.safe) if record.safe else "",
        "Fastest batch": _row_text(record, best),
        "Effective": _effective(record) if record.spec.effective_batch else "",
        "Knee": f"{_row_text(record, bend)}, the smallest with {answers.KNEE_SHARE:.0%} of the best" if bend else "",
        "Scaling": _scaling(record),
        "Took": _duration_text(record) if record.wall_s else "",
    }
    return [(label, answer) for label, answer in found.items() if answer]


def _scaling(record: Record) -> str:
    known = [(row, share) for row in record.rows if (share := record.scaling_efficiency(row)) is not None]
    times = (
        f"{share * record.spec.device_count:.2f} times the throughput of one at batch {row.batch_size} ({share:.0%})"
        for row, share in known
    )
    return f"{record.spec.device_count} devices have {', '.join(times)}" if known else ""


def _deploy(record: Record, best: Row) -> str:
    spec, row = record.spec, answers.to_deploy(record)
    if row is None:
        return f"no batch {answers.none_within_slo([record])}"
    percent = 50 if spec.slo_ms is None else spec.percentile
    latency_ms, slowest_ms = (percentile(one.latency_ms, percent) for one in (row, best))
    peak, rate = answers.peak_bytes(record, row), row.samples_per_s or 0.0
    limit = "" if spec.slo_ms is None else f" within --slo {format_amount(spec.slo_ms)} ms"
    doubt = doubt_of(record, (row, best))
    figures = [
        f"{doubt}batch {row.batch_size}: {answers.format_rate(record, row)} samples/s",
        *([_ONLY if _is_only_row(record) else "the fastest"] if row is best else []),
        *([] if latency_ms is None else [f"p{percent:g} {answers.format_latency(record, row, latency_ms)} ms{limit}"]),
        *([] if peak is None else [format_bytes(peak)]),
    ]
    if row is best or answers.scatter((row, best)) > ROUGH:
        return ", ".join(figures)
    saved = f" at {latency_ms / slowest_ms:.0%} of its latency" if latency_ms and slowest_ms else ""
    faster = [one for one in answers.deployable(record) if (one.samples_per_s or 0.0) > rate]
    unknown = any(percentile(one.latency_ms, percent) is None and not answers.too_late(spec, one) for one in faster)
    more = f"its p{percent:g} is unknown: measure with --slo and a longer --max-seconds"
    left_out = f"; a faster batch may meet the SLO, but {more}" if unknown and spec.slo_ms is not None else ""
    return f"{', '.join(figures)}; {_share_of(row, best)}{saved}{left_out}"


def _share_of(row: Row, best: Row) -> str:
    share = (row.samples_per_s or 0.0) / (best.samples_per_s or 1.0)
    return f"{share:.0%} of the throughput of batch {best.batch_size}"


def _is_only_row(record: Record) -> bool:
    """Whether a single batch size was timed, so that none is known to be the fastest."""
    return sum(row.samples_per_s is not None for row in record.rows) == 1


def _effective(record: Record) -> str:
    spec, size = record.spec, record.spec.effective_batch or 0
    reached = answers.reach(record, size)
    if reached is None:
        largest = record.largest_batch or size
        others = [each for each in answers.sizes_that_divide(spec, largest) if record.row(each) is None]
        advice = f"; --batch-sizes {','.join(map(str, others))} do" if others else ""
        return f"{size} a step: no batch size that was timed divides it and leaves room for gradients{advice}"
    row, times, devices = reached.row, reached.accumulate, reached.devices
    parts = [f"batch {row.batch_size}", *([f"{times} accumulated"] if times > 1 else [])]
    parts += [f"{devices} devices"] if devices > 1 else []
    least, most = ("at least ", "at most ") if reached.repeats > 1 else ("", "")
    figures = f"{least}{answers.format_rate(record, row)} samples/s, {most}{format_figure(reached.step_ms)} ms a step"
    more = f"; --accumulate {times} --batch-sizes {row.batch_size} measures it" if reached.repeats > 1 else ""
    return f"{size} a step: {doubt_of(record, (row,))}{' x '.join(parts)}, {figures}{more}"


def doubt_of(record: Record, rows: Sequence[Row]) -> str:
    """Return a prefix for an answer that rests on uncertain or incomplete rows; else an empty string."""
    rows = [row for row in rows if not answers.too_late(record.spec, row)] or rows
    widest = answers.scatter(rows)
    if widest > ROUGH:
        return f"not known, rates scatter by {widest:.0%}; best guess "
    if widest > answers.PROVISIONAL_SHARE:
        return f"provisional, rates scatter by {widest:.0%}; "
    best = max(rows, key=lambda row: row.samples_per_s or 0.0)
    if untimed := answers.gaps_near(record, best):
        return f"provisional, {few(untimed)} not timed; "
    short = [len(row.timings) for row in rows if not answers.ran_in_all_processes(record, row)]
    if short:
        return f"provisional, timed in {min(short)} of {record.spec.row_processes} processes; "
    rival = _rival(record, best)
    return "" if rival is None else f"provisional, batch {rival.batch_size} may be faster; "


def _rival(record: Record, best: Row) -> Row | None:
    """Return a larger batch with an interval so wide that it may beat the fastest; None if there is no such batch."""
    larger = [row for row in answers.deployable(record) if row.batch_size > best.batch_size]
    larger = [row for row in larger if not answers.too_late(record.spec, row)]
    known = [(interval, row) for row in larger if (interval := answers.throughput_interval(row)) is not None]
    unsure = [(interval.high, row) for interval, row in known if interval.half_width > answers.PROVISIONAL_SHARE]
    faster = [row for high_per_s, row in unsure if high_per_s > (best.samples_per_s or 0.0)]
    return max(faster, key=lambda row: row.samples_per_s or 0.0, default=None)


def _duration_text(record: Record) -> str:
    """Return the duration of a run and its parts; parts below a second are left out, except the longest."""
    spent = seconds_spent(record)
    longest = max(spent.values(), default=0.0)
    parts = [f"{what} {format_seconds(seconds)}" for what, seconds in spent.items() if seconds >= min(1.0, longest)]
    return f"{format_seconds(record.wall_s)}: {', '.join(parts)}"


def _largest(record: Record) -> str:
    edge = record.edge
    if record.spec.load == "all_busy":
        return "not searched: all devices take the batch sizes that each took alone"
    if record.spec.batch_sizes is not None:
        return "not searched: --batch-sizes names those to be timed"
    if edge is None:
        fits = record.largest_batch
        none_fits = "no batch fits" if record.trials or record.rows else "nothing was tried"
        return f"not known: the search was cut short; {f'batch {fits} fits' if fits else none_fits}"
    if edge.limited_by == "cap" and record.spec.max_batch is None:
        return f"{edge.largest_batch}, the largest that is ever tried: neither memory nor time sets a limit"
    proven = edge.largest_batch == 0 or record.row(edge.largest_batch) is not None
    untimed = "" if proven else "; not yet timed in full"
    if edge.limited_by == "timeout" and edge.fails_at is None:
        return f"{_bracket(record, edge)}: a larger one would exceed the time limit of the search{untimed}"
    reason = _step_time if edge.limited_by == "latency" else _failure_reason
    stopped_by = _STOPPED_BY[edge.limited_by].format(at=edge.fails_at, why=reason(record, edge.fails_at))
    return f"{_bracket(record, edge)}, {stopped_by}{untimed}"


def _bracket(record: Record, edge: Edge) -> str:
    """Return the largest batch, or its bounds if the search ended before it was found; "about" if it is not exact."""
    if edge.closed:
        apart = 0 if edge.fails_at is None else edge.fails_at - edge.largest_batch
        is_rough = edge.limited_by == "latency" and apart > record.spec.granularity
        return f"{'about ' if is_rough else ''}{_batch(edge)}"
    if edge.fails_at is None or edge.limited_by == "timeout":
        return f"at least {edge.largest_batch}" if edge.largest_batch else "none known to fit"
    return f"between {edge.largest_batch} and {edge.fails_at - record.spec.granularity}"


def _failure_reason(record: Record, batch_size: int | None) -> str:
    failed = (one for one in record.attempts if one.batch_size == batch_size)
    return next((one.failure.plain for one in failed if one.failure is not None), "the reason is not in the record")


def _step_time(record: Record, batch_size: int | None) -> str:
    """Return the longest step of the trials of a batch: ``took 1.370 s``, or ``took longer`` if the record lacks it."""
    taken = [trial.step_ms for trial in record.trials if trial.batch_size == batch_size and trial.step_ms is not None]
    if not taken:
        return "took longer"
    seconds = max(taken) / 1000
    return f"took {f'{format_figure(seconds)} s' if seconds < 60 else format_seconds(seconds)}"


def _batch(edge: Edge) -> str:
    soaked = f", soaked for {edge.soaked_batches} batches" if edge.soaked_batches else ""
    return f"{edge.largest_batch or 'none'}{soaked}"


def _safe(record: Record, safe: Edge) -> str:
    headroom = record.spec.headroom
    kept = format_bytes(headroom) if isinstance(headroom, int) else f"{100 * (headroom or 0):g}%"
    return f"{_batch(safe)}, with {kept} of the memory kept free"


def _row_text(record: Record, row: Row | None) -> str:
    if row is None or row.samples_per_s is None:
        return "nothing was timed"
    width = answers.scatter([row])
    known = f", known to within {width:.0%}" if width > answers.PROVISIONAL_SHARE else ""
    only = f", {_ONLY}" if _is_only_row(record) else ""
    return f"{row.batch_size}, {answers.format_rate(record, row)} samples/s{only}{known}"


def seconds_spent(record: Record) -> dict[str, float]:
    """Return the seconds of each part of a run, in order.

    The search consists of whole trials. Warm-up, timing and compiling are those of the rows, also of those of one
    device by itself. The rest of their processes is building the model, first steps, checks and copies by themselves,
    all the time of failed rows, and warm-up if the record lacks it. The rest of the run is starting processes and
    saving.
    """
    rows = (*record.rows, *record.single_rows)
    timings = [timing for row in rows for timing in row.timings]
    search_s = sum(trial.seconds for trial in record.trials)
    rows_s = sum(row.seconds for row in rows)
    warmup_s = sum(timing.warmup_s or 0.0 for timing in timings)
    two = [timing for timing in timings if not timing.one_window]
    windows_ms = sum(sum(timing.device_ms) for timing in timings) + sum(sum(timing.latency_ms) for timing in two)
    compiling_s = sum(timing.compiled.seconds for timing in timings if timing.compiled is not None)
    known_s = warmup_s + windows_ms / 1000 + compiling_s
    told = all(timing.warmup_s is not None for timing in timings)
    parts = {
        "search": search_s,
        "warm-up": warmup_s,
        "timing": windows_ms / 1000,
        "compiling": compiling_s,
        "building and checks" if told else "warm-up, building and checks": max(0.0, rows_s - known_s),
        "starting and saving": max(0.0, record.wall_s - search_s - max(rows_s, known_s)),
    }
    return {what: seconds for what, seconds in parts.items() if seconds > 0}
