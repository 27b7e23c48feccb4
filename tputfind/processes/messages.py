"""What the parent asks of a child process and what comes back: JSON values, so that rubbish is told from an answer."""

from typing import Literal, Self

import msgspec

from tputfind.errors import BY_NAME, TputfindError
from tputfind.processes.failures import Passed
from tputfind.record.clocks import Loop
from tputfind.record.environment import Capabilities, Environment
from tputfind.record.record import TRIAL_STEPS, Failure, Notice, OutputCheck, Setting, Sight, Timing, Trial
from tputfind.record.spec import Spec
from tputfind.record.trace import Trace
from tputfind.record.types import Above0, Amount, Bytes, Count, CountFromZero, GradMode, SourceName


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Can this be measured, on what, and with which input? Answered by one ``Inspection``."""

    spec: Spec


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to time of each row.

    The throughput window lasts for ``batches`` and ``window_s``; past ``max_seconds`` it ends with ``least_batches``.
    ``latency_batches`` follow, one at a time: all of them where ``every_latency`` says so, else fewer where
    ``window_s`` show nothing but the device's own time. ``warmup`` steps are left out however steady they are.
    """

    batches: int
    least_batches: int
    window_s: float
    latency_batches: int
    every_latency: bool
    warmup: int
    max_seconds: float


class TryBatch(msgspec.Struct, frozen=True, tag=True):
    """Does this batch size fit, for ``steps`` steps under this memory limit (or the spec's)? Answered by one ``Trial``.

    ``passed`` is the largest smaller batch known to pass: it decides what ambiguous failures mean. ``can`` is what the
    device was found to do at the start of the run. With ``then`` the answer is a ``Timed`` that holds the trial. If the
    batch fits, the process goes on with further steps of it, and answers as for ``TimeBatches`` by this plan.
    """

    spec: Spec
    batch_size: int
    steps: int = TRIAL_STEPS
    memory_limit_bytes: int | None = None
    passed: Passed | None = None
    can: Capabilities | None = None
    then: Plan | None = None


class TimeBatches(msgspec.Struct, frozen=True, tag=True):
    """How fast are these batch sizes? Answered by one ``Timed`` with a batch each, in order, and ended early where the
    process is past use: by a batch that failed, or by one whose check left the device unusable. ``number`` says which
    of a row's processes this is, from 0; the first one checks the outputs. ``together``: the processes of other devices
    time the same meanwhile, and they meet before and after each window: see ``Timed``.
    """

    spec: Spec
    plan: Plan
    batch_sizes: tuple[int, ...]
    number: int = 0
    memory_limit_bytes: int | None = None
    passed: Passed | None = None
    can: Capabilities | None = None
    together: bool = False


class TakeTurns(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How long does a step take, in windows that take turns with those of other processes?

    Answered by a ``Turn`` without steps once the process is warm, then by one each time that its gate lets it go on. It
    ends when its gate is closed. A window lasts for ``window_s``, or for one step. ``number`` says which of a variant's
    processes this is, from 0; the first one checks the output.
    """

    spec: Spec
    batch_size: int
    window_s: float
    number: int = 0
    can: Capabilities | None = None


class TimeMethods(msgspec.Struct, frozen=True, tag=True):
    """How long does a batch take, by these ways of timing it? Answered by ``clocks.Cell``s, several for most ways: they
    are timed in turn, and a turn's cells hold its samples. After a cell that failed there is none for its way.

    There are ``repeats`` timings by each method. The first ``drop`` do not count and stand before the turns.
    ``loops`` are warm, or a single one that is to be timed without warm-up; that takes about ``expected_s``.
    """

    spec: Spec
    batch_size: int
    repeats: int
    drop: int
    loops: tuple[Loop, ...]
    expected_s: float = 0.0
    can: Capabilities | None = None


class TimePipeline(msgspec.Struct, frozen=True, tag=True):
    """How long do the stages and the whole of a pipeline take: a model, work of the host, another model? Answered by
    ``clocks.PipelineTimes``, one a turn. There are ``repeats`` timings by each method. The first ``drop`` do not
    count.
    """

    specs: tuple[Spec, Spec]
    batch_size: int
    repeats: int
    drop: int
    host_work_ms: float
    can: Capabilities | None = None


class TraceOnFake(msgspec.Struct, frozen=True, tag=True):
    """What would this batch size ask of a device's memory? Answered by one ``FakeTrace``, on no device."""

    spec: Spec
    batch_size: int


class FakeTrace(msgspec.Struct, frozen=True):
    """A trace from fake tensors, and which of its allocations, by number, are gradients, optimizer state, or kept by
    libraries for themselves. The fixed ones are weights; all others are activations, inputs among them.
    """

    trace: Trace
    gradients: tuple[int, ...] = ()
    optimizer: tuple[int, ...] = ()
    libraries: tuple[int, ...] = ()


class Diagnose(msgspec.Struct, frozen=True, tag=True):
    """Why does the first batch size fail, the model or its handling? Answered by one ``Diagnosis``."""

    spec: Spec
    batch_size: int
    can: Capabilities | None = None


class ListModels(msgspec.Struct, frozen=True, tag=True):
    """Which models of a zoo can be named? Answered by one ``NamedModel`` each."""

    zoo: SourceName = "torchvision"


class ListDevices(msgspec.Struct, frozen=True, tag=True):
    """Which devices are here? Answered by one ``Environment`` each."""


class TryDevice(msgspec.Struct, frozen=True, tag=True):
    """Does this device still compute? Answered by its ``Environment``, after it has multiplied two matrices."""

    device: str


Question = (
    Inspect
    | TryBatch
    | TimeBatches
    | TakeTurns
    | TimeMethods
    | TimePipeline
    | TraceOnFake
    | Diagnose
    | ListModels
    | ListDevices
    | TryDevice
)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a process in a job of several: its ``rank`` of ``size``, and the ``folder`` where they meet.

    ``device`` is as it was named: the same for all ranks if it has no number.
    """

    rank: int
    size: int
    device: str
    folder: str


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A question as it is sent to a process, with the process's group if it has one."""

    question: Question
    group: Group | None = None


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What a run will measure: the environment, the shape of one sample (``3x224x224``), the number of parameters, and
    the SHA-256 of a user's own file (the factory's, or that of the weights), which packages that are slow to import it
    needs, and what must be known of the model to use any number of it; what the user's file has set in torch; and the
    granularity of batches that its inputs have, where they have one and nobody has said so; and whether it is a step of
    the user's own.
    """

    environment: Environment
    input_shape: str
    parameters: int | None
    source_sha256: str | None = None
    imports: tuple[str, ...] = ()
    caveats: tuple[Notice, ...] = ()
    settings: tuple[Setting, ...] = ()
    granularity: int | None = None
    own_step: bool = False


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a model run that fails otherwise, and the notices that say so; nothing if the model itself fails."""

    grad_mode: GradMode | None = None
    granularity: int | None = None
    find_unused_parameters: bool | None = None
    caveats: tuple[Notice, ...] = ()


class NamedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be asked for by name, with the shape of one sample; ``parameters`` may be unknown."""

    name: str
    family: str
    input_shape: str
    parameters: int | None = None


class TimedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch size in one process: its timing, or why it failed. The fields are those of ``Row``."""

    batch_size: Count
    failure: Failure | None = None
    timing: Timing | None = None
    peak_allocated_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    allocator_retries: CountFromZero | None = None
    output: OutputCheck | None = None
    parameter_bytes: dict[str, Bytes] = {}
    seen: tuple[Sight, ...] = ()
    samples: Count | None = None


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """Word of a process that times: a ``batch`` is done, which took ``seconds``; or the throughput window of the next
    one ``begins`` or has ended; or the ``trial`` that comes before a batch is timed is done.

    One that ``meets`` the processes of other devices goes on working, untimed, until its gate lets it go. ``at_s`` is
    when, by the host's monotonic clock.
    """

    batch: TimedBatch | None = None
    seconds: Amount = 0.0
    trial: Trial | None = None
    window: Literal["meets", "begins", "ended"] | None = None
    at_s: float | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One window of a process that takes turns: the time of each step, of ``samples`` samples; or why it takes none."""

    device_ms: tuple[Above0, ...] = ()
    samples: Count = 1
    output: OutputCheck | None = None
    failure: Failure | None = None


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The TputfindError of a child, or of a node of a cluster: its class name and its texts."""

    error: str
    message: str
    hint: str
    traceback: str

    @classmethod
    def of(cls, error: TputfindError) -> Self:
        """Return what tells of an error."""
        return cls(error=type(error).__name__, message=error.message, hint=error.hint, traceback=error.traceback)

    def to_error(self) -> TputfindError:
        """Return the error that it tells of."""
        return BY_NAME.get(self.error, TputfindError)(self.message, self.hint, self.traceback)


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a child: an answer (its type is the question's), a refusal, word that all is said, or a sign of
    life: for about ``busy_s`` seconds it will say nothing. ``doing`` is what it does on the host until its next
    message, in the past tense: "made the inputs of batch 8 on the host".
    """

    answer: msgspec.Raw = msgspec.Raw()
    refusal: Refusal | None = None
    busy_s: float | None = None
    done: bool = False
    doing: str = ""
