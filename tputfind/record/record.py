"""What was measured: frozen values, and their JSON. Every table, page and plan is a function of these."""

from statistics import fmean
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tputfind.errors import BadRecord, BadRequest
from tputfind.record.environment import Environment
from tputfind.record.result import Result
from tputfind.record.spec import Spec
from tputfind.record.trace import Trace
from tputfind.record.types import METHOD, Amount, Bytes, Count, CountFromZero
from tputfind.record.untrusted import check_schema, command_of, indented, printable_json, told_as_bad_record
from tputfind.units import echoed

SCHEMA: Final = 11
"""Raised when a field is added or changes its meaning."""
OLDEST_SCHEMA: Final = 5
"""The first that this version reads."""

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
"""What ended the throughput window of one process: it had what was planned; it would not settle; its time was up."""
RowEnd = Literal["known", "full", "time", "budget", "alike", "beside"]
"""What ended a row: ``--max-noise`` is reached; it had all its processes; ``--max-seconds`` cut a window short, or was
over before ``--max-noise`` was reached; ``--budget`` was over; two processes are alike; no answer rests on it."""
LEAST_SPAN_MS: Final = 1e-6
"""A nanosecond: clocks tell no less, and records hold no more digits."""
Span = Annotated[float, Meta(ge=0, le=1e9)]
"""Milliseconds between two readings of a clock, up to eleven days."""
LatencySpan = Annotated[float, Meta(ge=LEAST_SPAN_MS, le=1e9)]
Celsius = Annotated[float, Meta(ge=-273, le=1000)]
TRIAL_STEPS: Final = 3
"""cuDNN may settle on an algorithm, and its workspace, as late as at the second step (pytorch issue 16655)."""


Sight = Literal[
    "drained",
    "inputs_repeated",
    "inputs_restored",
    "inputs_written",
    "cached",
    "recompiled",
    "fell_back",
    "loss_stand_in",
    "own_optimizers",
]
"""What was seen of a model while it was timed: its output was lazy and was drained within the step; its inputs repeat
the samples of a smaller batch; it writes into its inputs, which were restored between steps, or could not be; it is
faster for inputs that it has seen; a part that the model compiles itself was compiled anew during the timing, or torch
gave that up and ran it uncompiled; it returned no loss, so that a stand-in trained it; it was trained by optimizers of
its own."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of torch that the user's file made: its name, its value, whether it was kept or overridden."""

    name: str
    value: str
    kept: bool


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a trial or a row did not pass: a kind, one line, and the traceback of the model where it has one."""

    kind: FailureKind
    message: str
    traceback: str = ""

    @property
    def plain(self) -> str:
        """The message, of a kernel limit without the library's own text, which stands in parentheses at its end."""
        return self.message.partition(" (")[0] if self.kind == "kernel_limit" else self.message


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """What compiling a step came to: ``seconds`` until a call compiled nothing more, the steps of these calls among
    them; the ``graphs`` that it was compiled to; the ``breaks`` between them, where Python runs as ever.

    What a process before it compiled for the same batch size is not compiled again, so that the longest counts.
    """

    seconds: Amount
    graphs: Count
    breaks: CountFromZero = 0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One fresh process that took a few steps at one batch size.

    ``step_ms`` is the fastest step after the first (host clock, synchronised). Peaks are of the device's memory; on the
    CPU they are resident memory and address space beyond the idle process. ``memory_limit_bytes`` is the limit it ran
    under, None where there was none but the device's; ``memory_of_others_bytes`` is what other processes held of the
    device when it began. ``seconds`` is the whole process, as the parent saw it. ``trace`` is what was asked of the
    memory allocator, None where the device cannot tell. ``seen`` is what was seen of the model.
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


class OutputCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What became of comparing a batch's first and last sample with the same samples in small batches.

    ``right``: they agree, and every output is finite. ``small``: the batch is as small as those it would be compared
    with, and finite; one that was compiled or captured is compared with the model as it is instead. ``not_finite``:
    outputs hold NaN or infinity, in small batches too. ``unchecked``: a comparison would say nothing, for the reason in
    ``remark``. ``loss``: a step of training, whose loss is a finite number after all the steps before. ``difference``
    is the largest relative distance (L2 norm) of an output from what it was compared with, None where none was taken.
    """

    result: Literal["right", "small", "not_finite", "unchecked", "loss"]
    remark: str = ""
    difference: Amount | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The device during one throughput window, as NVML tells it. Unknown is None.

    ``sm_clock_mhz`` is the mean of the readings, ``temperature_c`` the highest; ``power_w`` the mean of the
    power that it tells for the moment, behind the first 0.15 s of a short window, or the rise of its energy counter
    over the time. ``slowed`` names the reasons for which the clocks were held down, each with its share of the window:
    by the driver's own counters of time where it has them, else by the share of the readings.
    """

    readings: CountFromZero
    sm_clock_mhz: Amount | None = None
    sm_clock_max_mhz: Amount | None = None
    power_w: Amount | None = None
    temperature_c: Celsius | None = None
    slowed: dict[str, Amount] = {}


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """What one process measured of a row.

    ``device_ms`` are the spans between consecutive marks of the throughput window, one a batch: they add up to it.
    ``latency_ms`` and ``enqueue_ms`` are of the latency window, one a batch: from the call to synchronised output, and
    from the call to its return. ``one_window`` says that these are the batches of the throughput window, since each was
    waited for, and that there was no other. ``first_step_ms`` is the first step of the process at this batch
    size, loading and choosing of kernels included, None where it is watched for a memory limit or others came before.
    ``warmup_steps`` and ``warmup_s`` do not count, that one among them: batches whose times had not settled, and those
    between the blocks of a window. ``steady`` says whether they had settled where the window begins, None where there
    were too few to tell; ``ended_by`` says what ended it, None in older records. ``copy_in_ms`` and ``copy_out_ms``
    are, under ``--transfer``, one batch's copies by themselves, on an idle device. ``others_busy_cores`` is how many
    cores of the host others kept busy during the throughput window, None where the device is not the host.
    ``all_busy_share`` is the share of that window during which all other devices that were to work did, None where none
    was to.
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
    """One batch size, timed in one or several processes, each fresh.

    ``allocator_retries`` is how often, warm-up included, the allocators found no room, gave all unused memory back to
    the device and asked again. ``memory_of_others_bytes`` is what other processes held of the device when the latest
    process began. ``seconds`` is what the processes spent on the row, 0 for one that died. ``ended_by`` says why no
    further process timed it, None while one is still to, and in older records. ``parameter_bytes`` are the bytes of the
    model's parameters by dtype, as they were measured; empty in older records. ``seen`` is what was seen of the model.
    ``samples`` are those of a step, if a step of the user's own says that they are not the batch size.
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
    seen: tuple[Sight, ...] = ()
    samples: Count | None = None

    @property
    def samples_per_step(self) -> int:
        """The samples that a step takes: the batch size, unless a step of the user's own says otherwise."""
        return self.samples or self.batch_size

    @property
    def status(self) -> Status:
        """``ok``, or the kind of the failure."""
        return self.failure.kind if self.failure else "ok"

    @property
    def device_ms(self) -> tuple[float, ...]:
        """The spans of all processes."""
        return tuple(span for timing in self.timings for span in timing.device_ms)

    @property
    def latency_ms(self) -> tuple[float, ...]:
        """The latencies of all processes."""
        return tuple(span for timing in self.timings for span in timing.latency_ms)

    @property
    def enqueue_ms(self) -> tuple[float, ...]:
        """The enqueue times of all processes."""
        return tuple(span for timing in self.timings for span in timing.enqueue_ms)

    @property
    def steps(self) -> int:
        """The steps of all processes: of warm-up, and of the windows."""
        singles = sum(0 if timing.one_window else len(timing.latency_ms) for timing in self.timings)
        return len(self.device_ms) + singles + sum(timing.warmup_steps for timing in self.timings)

    @property
    def samples_per_s(self) -> float | None:
        """Throughput: samples of all batches over all windows; None where nothing was timed, or the row failed."""
        device_ms = () if self.failure else self.device_ms
        window_ms = sum(device_ms)
        return len(device_ms) * self.samples_per_step * 1000 / window_ms if window_ms > 0 else None


def merged(row: Row, later: Row) -> Row:
    """Return a row with what a later process measured of the same batch size added; it fails where that failed."""
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
        seen=tuple(dict.fromkeys((*row.seen, *later.seen))),
        samples=row.samples or later.samples,
    )


def _largest(one: int | None, other: int | None) -> int | None:
    return max((count for count in (one, other) if count is not None), default=None)


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the search: ``largest_batch`` passed, ``fails_at`` was tried and did not.

    One step lies between the two, or up to 5 % of the batch where ``limited_by`` is ``latency``, which scatters. It is
    proven where the record has a row of it, and not yet timed in full where it has none.

    Where the search ended before, ``closed`` is False: larger batches may fit, up to ``fails_at`` where that is known.
    ``limited_by`` is then what stood in the way of ``fails_at``; ``timeout`` if that gave no answer in time, or if
    there is no ``fails_at`` and a trial of a larger batch would take minutes; ``cut_short`` if no batch failed.

    ``largest_batch`` is 0 where not even the smallest batch passed. ``fails_at`` is None where a cap ended the search.
    ``memory_limit_bytes`` is the limit it holds under, None where there was none but the device's. ``soaked_batches``
    is how many more batches the answer was run for, in a process of its own. ``steady`` is False where other processes
    took or freed memory between all attempts, so that its two sides were not tried while they held the same.
    ``expandable_forecast`` is the largest batch that is forecast for an allocator with expandable segments, where it
    was found with native ones. ``smaller_forecast`` is a smaller batch that is forecast not to fit, where trying it
    would take longer than a row may.
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
    """Something a reader must know to use a number: what was seen, the likely cause, what to try.

    ``batch_sizes`` are the rows it is about; none where it is about the whole run.
    """

    kind: str
    seen: str
    cause: str
    advice: str
    batch_sizes: tuple[Count, ...] = ()


class Record(Result, msgspec.Struct, frozen=True, kw_only=True):
    """The saved result of one run: the request, where it ran, every trial, the edge, the rows, the notices.

    ``source_sha256`` is of the file that a user's factory lies in, of the file of weights, or of the pickled bytes of a
    live object. ``caveats`` are what must be known of the model, whatever is measured of it; ``settings`` are those of
    torch that the user's file made. ``edge`` is the largest batch, ``safe`` the largest with the memory that
    ``--headroom`` keeps free. If a model runs on several devices, batch sizes are those of each, and ``single_rows``
    are some of them on the first device by itself. ``finished`` is None while the run goes on, and for ever if it was
    cut short; ``resumed`` says when it was taken up again. Times are ISO 8601, UTC.
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

        It is that of ``edge``, up to which larger ones may fit where that is not ``closed``. Without an edge (the run
        was killed, or ``batch_sizes`` named what to time) it is the largest that passed a trial or was timed.
        """
        if self.edge is not None:
            return self.edge.largest_batch
        tried: tuple[Trial | Row, ...] = (*self.trials, *self.rows)
        ran = {one.batch_size for one in tried if one.failure is None}
        return max(ran - {row.batch_size for row in self.rows if row.failure is not None}, default=0)

    def row(self, batch_size: int) -> Row | None:
        """Return the row of a batch size, if there is one."""
        return next((row for row in self.rows if row.batch_size == batch_size), None)

    def scaling_efficiency(self, row: Row) -> float | None:
        """Return the rate of a row as a share of what its devices would do if none waited for others; None if unknown.

        The rate of one device is that of the same batch size, measured in the same run.
        """
        single = next((one for one in self.single_rows if one.batch_size == row.batch_size), None)
        if single is None or not single.samples_per_s or row.samples_per_s is None:
            return None
        return row.samples_per_s / (single.samples_per_s * self.spec.device_count)

    def to_json(self) -> bytes:
        """Return the record as indented JSON, for a file."""
        return indented(self)


class Records(Result, list[Record]):
    """Records of one call, which show and save themselves together."""

    KIND = "record"
    __slots__ = ()


def check_record(name: str, value: object) -> None:
    """Raise BadRequest where what Python code gives under a name is no record."""
    if not isinstance(value, Record):
        raise BadRequest(
            f"{name}: {echoed(value)} is a {type(value).__name__}, and no Record",
            "tputfind.find and tputfind.load_record(path) return records",
        )


def from_json(data: bytes, name: str) -> Record:
    """Return the record that ``Record.to_json`` wrote; ``name`` says in errors whose bytes they are.

    Raises:
        BadRecord: the bytes are cut short, edited out of shape, or of a schema that this version does not read.
    """
    with told_as_bad_record(data, name):
        data = printable_json(data)
        if command := command_of(data):
            raise BadRecord(f"{name} is no record of a run: tputfind {command} wrote it", "tputfind report shows it")
        check_schema(data, name, SCHEMA, OLDEST_SCHEMA)
        record = msgspec.json.decode(data, type=Record)
    return _checked(record, name)


def _checked(record: Record, name: str) -> Record:
    """Return a record, or refuse one with a window from which no rate can be reckoned; no single span shows that."""
    for place, row in enumerate(record.rows):
        for number, timing in enumerate(row.timings):
            window_ms = sum(timing.device_ms)
            if timing.device_ms and window_ms < LEAST_SPAN_MS:
                where = f"rows[{place}].timings[{number}].device_ms"
                why = f"{where} adds up to {window_ms:g} ms, and a clock tells no less than {LEAST_SPAN_MS:g}"
                raise BadRecord(f"{name} is not a tputfind record: {why}")
    return record


HOST_BOUND_SHARE: Final = 0.80
"""trtexec warns from the same share of enqueue time on."""
_DOUBT_DEVICE_BOUND: Final = 0.02
_DOUBT_OTHER: Final = 0.45
"""Of 467 recorded processes of host-bound rows, some 95 % lay within the latter of the others of their row; of 510 of
device-bound rows, over 99 % lay within the former (``benchmarks/plan.py one``)."""


def host_bound(row: Row) -> bool | None:
    """Return whether the device waits for Python: submitting a batch takes 80 % of its span; None if unknown."""
    if not row.enqueue_ms or not row.device_ms:
        return None
    return fmean(row.enqueue_ms) >= HOST_BOUND_SHARE * fmean(row.device_ms)


def doubt_of_one_process(row: Row) -> float:
    """Return how far, as a share, the throughput of a row's first process may lie from that of others."""
    return _DOUBT_DEVICE_BOUND if host_bound(row) is False else _DOUBT_OTHER
