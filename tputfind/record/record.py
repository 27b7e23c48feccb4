"""The record of a run as frozen values, and their JSON. Every table, page and plan is a function of these."""

from collections.abc import Sequence
from itertools import chain
from statistics import fmean
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tputfind.errors import BadRecord, BadRequest
from tputfind.record.environment import Environment
from tputfind.record.result import Result
from tputfind.record.spec import Spec
from tputfind.record.trace import Trace
from tputfind.record.types import METHOD, Amount, Bytes, Count, CountFromZero, Values
from tputfind.record.untrusted import check_schema, command_of, indent_json, printable_json, told_as_bad_record
from tputfind.units import echo

SCHEMA: Final = 1
"""Incremented when a field is added or changes its meaning."""

FailureKind = Literal[
    "out_of_memory",
    "index_limit",
    "kernel_limit",
    "host_memory",
    "unsupported",
    "died",
    "timeout",
    "wrong_output",
    "error",
]
Status = Literal["ok"] | FailureKind
LimitedBy = Literal[
    "memory",
    "index",
    "kernel",
    "host_memory",
    "latency",
    "cap",
    "cut_short",
    "unsupported",
    "died",
    "timeout",
    "wrong_output",
    "error",
]
WindowEnd = Literal["full", "unsettled", "time"]
"""Why a process ended its throughput window: it was full, its times would not settle, or its time was up."""
RowEnd = Literal["known", "full", "time", "budget", "alike", "beside"]
"""Why a row ended. ``known``: it reached ``--max-noise``. ``full``: all its processes ran. ``time``: ``--max-seconds``
cut a window short, or ended before the row reached ``--max-noise``. ``budget``: ``--budget`` ended. ``alike``: two
processes agree. ``beside``: no answer rests on the row."""
LEAST_SPAN_MS: Final = 1e-6
"""A nanosecond: the resolution of clocks, and of records."""
Span = Annotated[float, Meta(ge=0, le=1e9)]
"""Milliseconds between two readings of a clock, up to eleven days."""
LatencySpan = Annotated[float, Meta(ge=LEAST_SPAN_MS, le=1e9)]
Celsius = Annotated[float, Meta(ge=-273, le=1000)]
TRIAL_STEPS: Final = 3
"""cuDNN may choose an algorithm, and its workspace, as late as at the second step (pytorch issue 16655)."""


Sight = Literal[
    "named_inputs",
    "several_inputs",
    "drained",
    "inputs_repeated",
    "inputs_restored",
    "inputs_written",
    "cached",
    "grows",
    "recompiled",
    "fell_back",
    "loss_stand_in",
    "own_optimizers",
]
"""Observations of a model while it was timed. ``named_inputs``: it takes a dict of keyword arguments;
``several_inputs``: it takes several arguments. ``drained``: its output was lazy and was consumed within the step.
``inputs_repeated``: its inputs repeat the samples of a smaller batch. ``inputs_restored``: it writes into its inputs,
which were restored between steps; ``inputs_written``: they could not be restored. ``cached``: it is faster for inputs
that it has seen. ``grows``: each step leaves more memory in use. ``recompiled``: a part that the model compiles itself
was recompiled during the timing. ``fell_back``: torch gave up compiling such a part and ran it uncompiled.
``loss_stand_in``: it returned no loss, so that a stand-in trained it. ``own_optimizers``: optimizers of its own trained
it."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of torch that the user's file made: its name, its value, and whether it was kept or overridden."""

    name: str
    value: str
    kept: bool


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a trial or a row failed: the kind, one line, and the model's traceback if there is one."""

    kind: FailureKind
    message: str
    traceback: str = ""

    @property
    def plain(self) -> str:
        """The message; for a kernel limit without the library's text, which follows in parentheses."""
        return self.message.partition(" (")[0] if self.kind == "kernel_limit" else self.message


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """The compilation of a step.

    ``seconds`` lasts until a call compiled nothing more, and includes the steps of these calls. ``graphs`` is the
    number of graphs, ``breaks`` that of the breaks between them, at which Python runs uncompiled. A process reuses the
    results of an earlier one for the same batch size, so that the longest time counts.
    """

    seconds: Amount
    graphs: Count
    breaks: CountFromZero = 0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One fresh process that ran a few steps at one batch size.

    ``step_ms`` is the fastest step after the first (host clock, synchronised). Peaks are of the device's memory; on the
    CPU they are resident memory and address space beyond the idle process. ``memory_limit_bytes`` is the limit of the
    trial, None if only the device's memory limited it; ``memory_of_others_bytes`` is the device memory that other
    processes held when it began. ``seconds`` is the duration of the process, measured by its parent. ``trace`` is the
    allocator's log, if it keeps one. ``seen`` are observations of the model, and ``returned`` is the number of values
    in the smallest output of a step after the first.
    """

    batch_size: Count
    steps: Count = TRIAL_STEPS
    memory_limit_bytes: Bytes | None = None
    memory_of_others_bytes: Bytes | None = None
    failure: Failure | None = None
    step_ms: Span | None = None
    compiled: Compiled | None = None
    peak_allocated_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    seconds: Amount = 0.0
    trace: Trace | None = None
    seen: tuple[Sight, ...] = ()
    returned: Values | None = None


class OutputCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a batch's first and last sample with the same samples in small batches.

    ``right``: they agree, and every output is finite. ``small``: the batch is as small as those of the comparison, and
    finite; a compiled or captured model is compared with the uncompiled one instead. ``not_finite``: outputs hold NaN
    or infinity, in small batches too. ``unchecked``: a comparison would be meaningless, for the reason in ``remark``.
    ``loss``: a training step, whose loss is finite after all the steps before. ``difference`` is the largest relative
    distance (L2 norm) of an output from its reference, None if there is no reference.
    """

    result: Literal["right", "small", "not_finite", "unchecked", "loss"]
    remark: str = ""
    difference: Amount | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The device during one throughput window, as read from NVML; of several, the one that is slowed down most.

    Unknown is None. ``sm_clock_mhz`` is the mean of the readings, ``temperature_c`` the highest. ``power_w`` is the
    mean of the power readings, without the first 0.15 s of a short window, or the increase of the energy counter over
    the time. ``slowed`` names the reasons for reduced clocks, each with its fraction of the window: by the driver's
    time counters if it has them, else by the fraction of the readings.
    """

    readings: CountFromZero
    sm_clock_mhz: Amount | None = None
    sm_clock_max_mhz: Amount | None = None
    power_w: Amount | None = None
    temperature_c: Celsius | None = None
    slowed: dict[str, Amount] = {}


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one process for a row.

    ``device_ms`` are the spans between consecutive marks of the throughput window, one per batch; they add up to it.
    ``latency_ms`` and ``enqueue_ms`` are from the latency window, one per batch: from the call to synchronised output,
    and from the call to its return. With ``one_window`` these are the batches of the throughput window, each of which
    was synchronised, and there was no latency window. ``first_step_ms`` is the first step of the process at this batch
    size, including the loading and choice of kernels; it is None if the step is watched for a memory limit or other
    steps came before. ``warmup_steps`` and ``warmup_s`` do not count, the first step included: batches whose times had
    not settled, and those between the blocks of a window. ``steady`` is whether times had settled when the window
    began, None if there were too few to test. ``copy_in_ms`` and ``copy_out_ms`` are, with ``--transfer``, the copies
    of one batch alone on an idle device. ``others_busy_cores`` is the number of host cores that other processes kept
    busy during the throughput window, None if the device is not the host. ``all_busy_share`` is the fraction of that
    window during which all other devices of the job worked too, None if there are no others.
    """

    device_ms: tuple[Span, ...] = ()
    latency_ms: tuple[LatencySpan, ...] = ()
    enqueue_ms: tuple[Span, ...] = ()
    one_window: bool = False
    first_step_ms: Span | None = None
    warmup_steps: CountFromZero = 0
    warmup_s: Amount | None = None
    steady: bool | None = None
    ended_by: WindowEnd | None = None
    copy_in_ms: Span | None = None
    copy_out_ms: Span | None = None
    compiled: Compiled | None = None
    health: Health | None = None
    others_busy_cores: Amount | None = None
    all_busy_share: Amount | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One batch size, timed in one or several fresh processes.

    ``allocator_retries`` is how often, warm-up included, the allocators ran out, returned all unused memory to the
    device and tried again. ``memory_of_others_bytes`` is the device memory that other processes held when the latest
    process began. ``seconds`` is the time that the processes spent on the row, 0 for one that died. ``ended_by`` is why
    no further process timed it, None while one is due. ``parameter_bytes`` are the bytes of the model's parameters by
    dtype, as measured, and ``gradient_bytes`` those of the gradients of trained ones. ``seen`` are observations of
    the model. ``samples`` is the number of samples of a step, if a step of the user's own sets another than the batch
    size.
    """

    batch_size: Count
    failure: Failure | None = None
    timings: tuple[Timing, ...] = ()
    peak_allocated_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    allocator_retries: CountFromZero | None = None
    output: OutputCheck | None = None
    memory_of_others_bytes: Bytes | None = None
    seconds: Amount = 0.0
    ended_by: RowEnd | None = None
    parameter_bytes: dict[str, Bytes] = {}
    gradient_bytes: Bytes | None = None
    seen: tuple[Sight, ...] = ()
    samples: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None

    @property
    def samples_per_step(self) -> int:
        """The samples of a step: the batch size, unless a step of the user's own sets another number."""
        return self.samples or self.batch_size

    @property
    def status(self) -> Status:
        return self.failure.kind if self.failure else "ok"

    @property
    def device_ms(self) -> tuple[float, ...]:
        return tuple(chain.from_iterable(timing.device_ms for timing in self.timings))

    @property
    def latency_ms(self) -> tuple[float, ...]:
        return tuple(chain.from_iterable(timing.latency_ms for timing in self.timings))

    @property
    def enqueue_ms(self) -> tuple[float, ...]:
        return tuple(chain.from_iterable(timing.enqueue_ms for timing in self.timings))

    @property
    def steps(self) -> int:
        """The steps of all processes: warm-up and windows."""
        singles = sum(0 if timing.one_window else len(timing.latency_ms) for timing in self.timings)
        return len(self.device_ms) + singles + sum(timing.warmup_steps for timing in self.timings)

    @property
    def samples_per_s(self) -> float | None:
        """Throughput: samples of all batches over all windows; None if the row failed or has no times."""
        device_ms = () if self.failure else self.device_ms
        window_ms = sum(device_ms)
        return len(device_ms) * self.samples_per_step * 1000 / window_ms if window_ms > 0 else None

    def __repr__(self) -> str:
        """Return the batch size and the throughput or the failure, for a prompt and a notebook."""
        rate = "" if self.samples_per_s is None else f", samples_per_s={self.samples_per_s:.6g}"
        return f"Row(batch_size={self.batch_size}, status={self.status!r}{rate}, processes={len(self.timings)})"


def merge_rows(row: Row, later: Row) -> Row:
    """Return a row with the results of a later process for the same batch size added; it fails if either failed."""
    return msgspec.structs.replace(
        row,
        failure=row.failure or later.failure,
        timings=row.timings + later.timings,
        peak_allocated_bytes=_largest(row.peak_allocated_bytes, later.peak_allocated_bytes),
        peak_reserved_bytes=_largest(row.peak_reserved_bytes, later.peak_reserved_bytes),
        allocator_retries=_sum(row.allocator_retries, later.allocator_retries),
        output=row.output or later.output,
        memory_of_others_bytes=later.memory_of_others_bytes,
        seconds=row.seconds + later.seconds,
        parameter_bytes=row.parameter_bytes or later.parameter_bytes,
        gradient_bytes=_largest(row.gradient_bytes, later.gradient_bytes),
        seen=tuple(dict.fromkeys((*row.seen, *later.seen))),
        samples=row.samples or later.samples,
    )


def _largest(one: int | None, other: int | None) -> int | None:
    return max((count for count in (one, other) if count is not None), default=None)


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the search: ``largest_batch`` passed, ``fails_at`` was tried and failed.

    The two are one step apart, or up to 5 % of the batch if ``limited_by`` is ``latency``, which varies from run to
    run. A row of the record at this size confirms the answer; without one it has not been timed in full.

    If the search ended early, ``closed`` is False: larger batches may fit, up to ``fails_at`` if that is set. Then
    ``limited_by`` is the reason why ``fails_at`` failed; ``timeout`` if that trial gave no answer in time, or if there
    is no ``fails_at`` and a larger batch would exceed the time limit of the search; ``cut_short`` if no batch failed.

    ``largest_batch`` is 0 if not even the smallest batch passed. ``fails_at`` is None if ``--max-batch``, the ``cap``,
    ended the search: it is ``closed``, though larger batches may fit. ``memory_limit_bytes`` is as in a trial.
    ``soaked_batches`` is how many more batches a process of its own ran at the answer. ``steady`` is False if other
    processes took or freed memory between all attempts, so that its two sides were not tried with the same free memory.
    ``expandable_forecast`` is the largest batch that is forecast for an allocator with expandable segments, if it was
    found with native ones. ``smaller_forecast`` is a smaller batch that is forecast not to fit, if a trial of it would
    take longer than a row may.
    """

    largest_batch: CountFromZero
    limited_by: LimitedBy
    fails_at: CountFromZero | None = None
    closed: bool = True
    memory_limit_bytes: Bytes | None = None
    soaked_batches: CountFromZero = 0
    steady: bool = True
    expandable_forecast: CountFromZero | None = None
    smaller_forecast: Count | None = None


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """An observation, its likely cause, advice, and the batch sizes of the rows concerned; empty for the whole run."""

    kind: str
    seen: str
    cause: str
    advice: str
    batch_sizes: tuple[Count, ...] = ()


class Record(Result, msgspec.Struct, frozen=True, kw_only=True):
    """The saved result of one run: the request, its environment, every trial, the edge, the rows, the notices.

    ``source_sha256`` is of the file of a user's factory, of the file of weights, or of the pickled bytes of a live
    object. ``caveats`` are notices about the model itself; ``settings`` are those of torch that the user's file made.
    ``edge`` is the largest batch, ``safe`` the largest with the memory that ``--headroom`` keeps free. If a model runs
    on several devices, batch sizes are per device, and ``single_rows`` are some of them on the first device by itself.
    ``finished`` is None while the run goes on, and remains None if it was cut short; ``resumed`` are the times at which
    it was resumed. Times are ISO 8601, UTC.
    """

    KIND = "record"
    schema: int = SCHEMA
    method: int = METHOD
    tputfind: str
    command: str
    started: str
    resumed: tuple[str, ...] = ()
    finished: str | None = None
    wall_s: Amount = 0.0
    spec: Spec
    environment: Environment
    input_shape: str
    parameters: Bytes | None = None
    source_sha256: str | None = None
    caveats: tuple[Notice, ...] = ()
    settings: tuple[Setting, ...] = ()
    trials: tuple[Trial, ...] = ()
    edge: Edge | None = None
    safe: Edge | None = None
    rows: tuple[Row, ...] = ()
    single_rows: tuple[Row, ...] = ()
    notices: tuple[Notice, ...] = ()

    @property
    def largest_batch(self) -> int:
        """The largest batch size known to run; 0 if none did.

        It is that of ``edge``; larger ones may fit if the edge is not ``closed``. Without an edge (the run was killed,
        or ``batch_sizes`` lists what to time) it is the largest that passed a trial or was timed.
        """
        if self.edge is not None:
            return self.edge.largest_batch
        ran = {one.batch_size for one in self.attempts if one.failure is None}
        return max(ran - {row.batch_size for row in self.rows if row.failure is not None}, default=0)

    @property
    def attempts(self) -> tuple[Trial | Row, ...]:
        return (*self.trials, *self.rows)

    def row(self, batch_size: int) -> Row | None:
        return next((row for row in self.rows if row.batch_size == batch_size), None)

    def scaling_efficiency(self, row: Row) -> float | None:
        """Return a row's throughput over that of its devices alone, at its batch size in this run; None if unknown."""
        single = next((one for one in self.single_rows if one.batch_size == row.batch_size), None)
        if single is None or not single.samples_per_s or row.samples_per_s is None:
            return None
        return row.samples_per_s / (single.samples_per_s * self.spec.device_count)

    def to_json(self) -> bytes:
        return indent_json(self)


class Records(Result, list[Record]):
    """Records of one call; they show and save themselves together."""

    KIND = "record"
    __slots__ = ()


def check_record(name: str, value: object) -> None:
    """Raise BadRequest if a value of Python code, called ``name`` in the message, is not a Record."""
    if not isinstance(value, Record):
        raise BadRequest(
            f"{name}: {echo(value)} is a {type(value).__name__}, not a Record",
            "tputfind.find and tputfind.load_record(path) return records",
        )


def decode_record(data: bytes, name: str) -> Record:
    """Return the record from its JSON; raise BadRecord, with this name, if it is malformed or of a newer schema."""
    with told_as_bad_record(name):
        data = printable_json(data)
        if data.lstrip().startswith(b"["):
            raise BadRecord(f"{name} holds a list of results", "tputfind report shows it, and tputfind.load reads it")
        if command := command_of(data):
            raise BadRecord(f"{name} is not a record of a run: tputfind {command} wrote it", "tputfind report shows it")
        check_schema(data, name, SCHEMA)
        record = msgspec.json.decode(data, type=Record)
    return _check_windows(record, name)


def decode_records(data: bytes, name: str) -> Records:
    """Return the records from the bytes of one or of a list of several; errors as for ``decode_record``."""
    if not data.lstrip().startswith(b"["):
        return Records([decode_record(data, name)])
    with told_as_bad_record(name):
        parts = msgspec.json.decode(data, type=Annotated[list[msgspec.Raw], Meta(min_length=1)])
    return Records(decode_record(bytes(part), f"{name}[{place}]") for place, part in enumerate(parts))


def _check_windows(record: Record, name: str) -> Record:
    """Return the record; raise BadRecord if the spans of a window add up to less than a nanosecond."""
    for place, row in enumerate(record.rows):
        for number, timing in enumerate(row.timings):
            window_ms = sum(timing.device_ms)
            if timing.device_ms and window_ms < LEAST_SPAN_MS:
                where = f"rows[{place}].timings[{number}].device_ms"
                why = f"{where} adds up to {window_ms:g} ms, and a clock tells no less than {LEAST_SPAN_MS:g}"
                raise BadRecord(f"{name} is not a tputfind record: {why}")
    return record


HOST_BOUND_SHARE: Final = 0.80
"""Fraction of enqueue time from which a row is host-bound; trtexec warns from the same fraction on."""
_DOUBT_DEVICE_BOUND: Final = 0.02
_DOUBT_OTHER: Final = 0.45
"""In 467 recorded processes of host-bound rows, some 95 % lay within ``_DOUBT_OTHER`` of the other processes of their
row; in 510 of device-bound rows, over 99 % lay within ``_DOUBT_DEVICE_BOUND`` (``benchmarks/plan.py one``)."""


def host_bound(row: Row) -> bool | None:
    """Return whether the row is host-bound: submitting a batch takes 80 % of its span; None if unknown."""
    return waits_for_host(row.enqueue_ms, row.device_ms)


def waits_for_host(submission_ms: Sequence[float], spans_ms: Sequence[float]) -> bool | None:
    if not submission_ms or not spans_ms:
        return None
    return fmean(submission_ms) >= HOST_BOUND_SHARE * fmean(spans_ms)


def doubt_of_one_process(row: Row) -> float:
    """Return how far, as a fraction, the throughput of one process may lie from that of other processes."""
    return _DOUBT_DEVICE_BOUND if host_bound(row) is False else _DOUBT_OTHER
