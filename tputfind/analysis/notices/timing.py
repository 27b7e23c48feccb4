"""Notices of windows that were cut short, of time spent other than on the model, and of the device's health."""

from collections.abc import Iterator, Sequence
from typing import Final

from tputfind.analysis.answers import THROTTLED_SHARE, RowHealth, health, ran_in_all_processes, too_late
from tputfind.analysis.notices.words import batches, sizes, span
from tputfind.record.record import Notice, Record, Row, host_bound
from tputfind.record.types import is_compile_mode
from tputfind.stats import mean, percentile, samples_for_percentile

TUTORIALS_BATCHES: Final = 100
COPY_BOUND_SHARE: Final = 0.80


def timing_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    yield from _clock_test_notices(record)
    yield from _window_notices(record, timed)
    yield from _health_notices(record, timed)
    yield from _allocator_notices(record, timed)
    yield from _copy_notices(timed)
    yield from _host_bound_notices(record, timed)
    yield from _graph_break_notices(record, timed)


def _window_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    spec = record.spec
    whole = [row for row in timed if ran_in_all_processes(record, row)]  # the others are still to come
    wanted = spec.batches or (TUTORIALS_BATCHES if spec.thorough else 0)
    short = [row for row in whole if min(len(row.device_ms), len(row.latency_ms)) < wanted]
    if short:
        least = min(len(row.device_ms) for row in short)
        least_latency = min(len(row.latency_ms) for row in short)
        windows = ((least, "batches"), (least_latency, "latency batches"))
        lacking = [f"{fewest} of {wanted} {what}" for fewest, what in windows if fewest < wanted]
        yield Notice(
            kind="cut_short",
            seen=f"as few as {' and '.join(lacking)} were timed at {batches(short)}",
            cause="--max-seconds was over",
            advice="raise --max-seconds",
            batch_sizes=sizes(short),
        )
    few = [row for row in whole if percentile(row.latency_ms, spec.percentile) is None and not too_late(spec, row)]
    if spec.slo_ms is not None and few:
        needed = samples_for_percentile(spec.percentile)
        yield Notice(
            kind="few_latency_samples",
            seen=f"p{spec.percentile:g} of the latency is unknown at {batches(few)}",
            cause=f"it needs {needed} latency batches, not {min(len(row.latency_ms) for row in few)}",
            advice=f"{f'--batches {needed}' if wanted else 'a longer --max-seconds with --slo'}, or lower --percentile",
            batch_sizes=sizes(few),
        )


def _allocator_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Yield the notice of rows with a retry or more per step; the first step alone may take one or two."""
    busy = [row for row in timed if (row.allocator_retries or 0) >= row.steps]
    if busy:
        most = max(row.allocator_retries or 0 for row in busy)
        yield Notice(
            kind="allocator_retries",
            seen=f"the allocator freed memory and retried {most} times at {batches(busy)}",
            cause="it only just fits",
            advice="take a smaller batch" + (", or --allocator expandable" if record.spec.allocator is None else ""),
            batch_sizes=sizes(busy),
        )


def _copy_notices(timed: Sequence[Row]) -> Iterator[Notice]:
    """Yield the notice of rows that wait for their copies more than for their compute."""
    shares = {row.batch_size: _copies_ms(row) / (mean(row.device_ms) or 1.0) for row in timed}
    bound = [row for row in timed if shares[row.batch_size] >= COPY_BOUND_SHARE]
    if bound:
        told = [shares[row.batch_size] for row in bound]
        yield Notice(
            kind="copy_bound",
            seen=f"copying takes {span(min(told), max(told))} of the time at {batches(bound)}",
            cause="the device waits for it",
            advice="send smaller inputs (uint8) and reduced outputs",
            batch_sizes=sizes(bound),
        )


def _copies_ms(row: Row) -> float:
    """Return the time of the longer copy direction alone, in ms; the two directions overlap."""
    ways = [(timing.copy_in_ms or 0.0, timing.copy_out_ms or 0.0) for timing in row.timings]
    return max((mean([way[number] for way in ways]) or 0.0 for number in (0, 1)), default=0.0)


def _host_bound_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    bound = [row for row in timed if host_bound(row)]
    if bound:
        spans_ms = [mean(row.device_ms) or 1.0 for row in bound]
        # Submitting goes on while a span ends, so that it may seem to take longer.
        parts = zip(bound, spans_ms, strict=True)
        shares = [min((mean(row.enqueue_ms) or 0.0) / span_ms, 1.0) for row, span_ms in parts]
        grows = max(spans_ms) > _SAME_LAUNCHES * min(spans_ms)
        apart = max(row.batch_size for row in bound) >= _SAME_LAUNCHES * min(row.batch_size for row in bound)
        waits = _WAITS_FOR_PYTHON if apart or not record.spec.own_code else f"{_WAITS_FOR_PYTHON}, or {_WAITS_ITSELF}"
        ran = record.spec.phase, record.spec.mode.partition(":")[0], record.environment.can.graphs
        less_python = _LESS_PYTHON.get(ran, "") if record.spec.device_count == 1 else ""
        yield Notice(
            kind="host_bound",
            seen=f"submitting takes {span(min(shares), max(shares))} of the time at {batches(bound)}",
            cause=_WAITS_ITSELF if grows else waits,
            advice="a profiler says where" if grows else f"try a larger batch{less_python}",
            batch_sizes=sizes(bound),
        )


def _graph_break_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Yield the notice of steps compiled in part; a model that compiles parts of itself has a graph for each."""
    whole = is_compile_mode(record.spec.mode)
    compiled = {row.batch_size: [timing.compiled for timing in row.timings if timing.compiled] for row in timed}
    pieces = [row for row in timed if any((whole and one.graphs > 1) or one.breaks for one in compiled[row.batch_size])]
    if pieces:
        graphs = max(one.graphs for row in pieces for one in compiled[row.batch_size])
        yield Notice(
            kind="graph_breaks",
            seen=f"torch.compile left parts of {batches(pieces)} to Python, graphs made: {graphs}",
            cause="something there cannot be compiled",
            advice="TORCH_LOGS=graph_breaks says what",
            batch_sizes=sizes(pieces),
        )


_SAME_LAUNCHES: Final = 4.0
"""Launching the kernels of a large batch takes as long as for a small one, except for host load."""
_WAITS_FOR_PYTHON: Final = "the device waits for Python"
_WAITS_ITSELF: Final = "the model's own code waits for the device (.item())"
_LESS_PYTHON: Final = {
    ("infer", "eager", True): ", --mode cudagraph or compile",
    ("infer", "eager", False): " or --mode compile",
    ("infer", "compile", True): " or --mode cudagraph",
    ("train", "eager", True): " or --mode compile",
    ("train", "eager", False): " or --mode compile",
}
"""Further advice by the phase, the mode, and whether the device replays graphs."""


REASONS: Final = {
    "power_cap": "power limit",
    "hardware_slowdown": "hardware slowdown",
    "sync_boost": "sync boost group",
    "software_thermal": "temperature limit",
    "hardware_thermal": "thermal slowdown",
    "power_brake": "power brake",
}
_HEAT: Final = {"software_thermal", "hardware_thermal", "hardware_slowdown"}


def _health_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Yield notices of reduced clocks, and of a GPU whose health could not be read."""
    seen = [(row, found) for row in timed if (found := health(row)) is not None]
    unseen = [row for row in timed if health(row) is None]
    can, why = record.environment.can, ("", "")
    if unseen and not (can.health or can.is_cpu):
        why = (
            f"clocks, heat and power of {record.environment.device} are not read",
            "look at them with its vendor's tool",
        )
    elif unseen and record.environment.device_uuid is not None:
        why = "NVML does not answer", "install nvidia-ml-py; MIG has no clocks of its own"
    if all(why):
        yield Notice(
            kind="health_unknown",
            seen=f"whether the device was throttled is not known at {batches(unseen)}",
            cause=why[0],
            advice=why[1],
            batch_sizes=sizes(unseen),
        )
    slowed = [(row, found) for row, found in seen if found.throttled]
    if slowed:
        rows = [row for row, _ in slowed]
        shares = [item for _, found in slowed for item in found.slowed.items()]
        reasons = sorted({name for name, share in shares if share >= THROTTLED_SHARE})
        hot = any(name in _HEAT for name in reasons)
        held = _describe_throttling(batches(rows), [found for _, found in slowed], brief=len(reasons) > 1)
        yield Notice(
            kind="throttled",
            seen=f"clocks were reduced {held}",
            cause=" and ".join(REASONS.get(name, name) for name in reasons),
            advice="cool it better" if hot else "deploy under the same limit",
            batch_sizes=sizes(rows),
        )


def _clock_test_notices(record: Record) -> Iterator[Notice]:
    """Yield notices of defects of a device's clocks and counters that a test before the run found."""
    environment = record.environment
    test = environment.clock_test
    if test is None:
        return
    if environment.clock == "host":
        yield Notice(
            kind="host_clock",
            seen=f"the host clock times {environment.device}, and each batch is waited for",
            cause=test.findings[0],
            advice="try another version of its driver",
        )
    if not environment.can.memory_peaks:
        uncounted = [finding for finding in test.findings if "allocator" in finding]
        yield Notice(
            kind="memory_not_counted",
            seen="peaks of memory are left empty",
            cause=" ".join(uncounted) or "its allocator does not report them",
            advice="the largest batch does not rest on them",
        )


def _describe_throttling(rows: str, found: Sequence[RowHealth], *, brief: bool) -> str:
    """Describe how long clocks were reduced, and to which; ``brief`` leaves the clocks out to save space."""
    held = f"up to {max(max(each.slowed.values()) for each in found):.0%} of the time at {rows}"
    clocks = [each.sm_clock_mhz for each in found if each.sm_clock_mhz is not None]
    most = max((each.sm_clock_max_mhz for each in found if each.sm_clock_max_mhz is not None), default=None)
    if brief or not clocks or most is None:
        return held
    lower = min(clocks) / most - 1
    return f"{held}, {min(clocks):.0f} of {most:.0f} MHz ({lower:{'.0%' if lower < -0.005 else '.1%'}})"
