"""Questions from the parent to a child process, and the answers: JSON values, so that invalid output is detected."""

from typing import Literal, Self

import msgspec

from tputfind.errors import BY_NAME, TputfindError
from tputfind.processes.failures import Passed
from tputfind.record.clocks import Asked, Loop
from tputfind.record.environment import Capabilities, Environment
from tputfind.record.record import TRIAL_STEPS, Failure, Notice, Row, Setting, Trial
from tputfind.record.spec import Spec
from tputfind.record.trace import Trace
from tputfind.record.types import Above0, Amount, Bytes, Count, GradMode, SourceName


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Asks whether the spec can be measured, on which device, and with which input. Answered by one ``Inspection``."""

    spec: Spec


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The timing plan of one process, the same for each row.

    The throughput window lasts for at least ``batches`` steps and ``window_s``; after ``max_seconds`` it ends with at
    least ``least_batches``. Then ``latency_batches`` are timed one at a time: all of them if ``every_latency`` is set,
    else fewer if ``window_s`` of them show only the device's own time. ``warmup`` is the number of steps that are left
    out, however steady they are.
    """

    batches: int
    least_batches: int
    window_s: float
    latency_batches: int
    every_latency: bool
    warmup: int
    max_seconds: float


class TryBatch(msgspec.Struct, frozen=True, tag=True):
    """Asks whether a batch size fits, in ``steps`` steps under the memory limit (or the spec's). Answered by one
    ``Trial``.

    ``passed`` is the largest smaller batch that fits; it decides the kind of ambiguous failures. ``can`` has the
    device's capabilities as tested at the start of the run. If ``then`` is set, the answer is a ``Timed`` with the
    trial; if the batch fits, the process then times it by this plan and answers as for ``TimeBatches``.
    """

    spec: Spec
    batch_size: int
    steps: int = TRIAL_STEPS
    memory_limit_bytes: int | None = None
    passed: Passed | None = None
    can: Capabilities | None = None
    then: Plan | None = None


class TimeBatches(msgspec.Struct, frozen=True, tag=True):
    """Asks for the timings of some batch sizes. Answered by one ``Timed`` with a row for each, in order.

    The answers end early if the process becomes unusable: a batch failed, or its check broke the device. ``number``
    counts the processes of a row from 0; the first one checks the outputs. If ``together`` is set, the processes of
    other devices time the same batches meanwhile, and all meet before and after each window: see ``Timed``.
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
    """Asks for step times, in windows that alternate with those of other processes.

    Answered by a ``Turn`` once the process is warm, then by one each time the gate lets it go on. The process ends when
    its gate is closed. A window lasts for ``window_s``, or for one step. Its steps are timed back to back, and those of
    the first turn one at a time; ``alone`` exchanges the two. ``number`` counts the processes of a variant from 0; the
    first one checks the output.
    """

    spec: Spec
    batch_size: int
    window_s: float
    alone: bool = False
    number: int = 0
    can: Capabilities | None = None


class TimeMethods(msgspec.Struct, frozen=True, tag=True):
    """Asks for the time of a batch by each of several timing methods, the ``loops``. Answered by ``clocks.Cell``s.

    The methods alternate, and most get several cells: each has the samples of one turn. A method gets no cell after one
    that failed. The dropped timings are made before the turns. All ``loops`` are warm, except for a single one that is
    timed without warm-up and takes about ``expected_s``.
    """

    asked: Asked
    loops: tuple[Loop, ...]
    expected_s: float = 0.0


class TimePipeline(msgspec.Struct, frozen=True, tag=True):
    """Asks for the times of a pipeline and its stages: a model, work of the host, another model.

    Answered by ``clocks.PipelineTimes``, one a turn.
    """

    asked: Asked


class TraceOnFake(msgspec.Struct, frozen=True, tag=True):
    """Asks how much device memory a batch size would need. Answered by one ``FakeTrace``, without any device."""

    spec: Spec
    batch_size: int


class FakeTrace(msgspec.Struct, frozen=True):
    """A trace from fake tensors, with the numbers of some of its allocations by purpose.

    ``gradients`` and ``optimizer`` name gradients and optimizer state; ``libraries`` names workspaces of libraries.
    Fixed allocations are weights; all others are activations, inputs included. ``own_optimizers`` is as in a row's
    ``seen``, ``granularity`` as in a spec.
    """

    trace: Trace
    granularity: Count
    gradients: tuple[int, ...] = ()
    optimizer: tuple[int, ...] = ()
    libraries: tuple[int, ...] = ()
    own_optimizers: bool = False


class Diagnose(msgspec.Struct, frozen=True, tag=True):
    """Asks whether the model or its handling makes a batch size fail. Answered by one ``Diagnosis``."""

    spec: Spec
    batch_size: int
    can: Capabilities | None = None


class ListModels(msgspec.Struct, frozen=True, tag=True):
    """Asks for the models of a zoo that can be named. Answered by one ``NamedModel`` each."""

    zoo: SourceName = "torchvision"


class ListDevices(msgspec.Struct, frozen=True, tag=True):
    """Asks for the devices of this machine. Answered by one ``Environment`` each."""


class TryDevice(msgspec.Struct, frozen=True, tag=True):
    """Asks whether a device still computes. Answered by its ``Environment``, after multiplying two matrices."""

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
    """The rank of a process in a job of ``size`` processes, and the ``folder`` in which the ranks meet.

    ``device`` is the name as the user gave it; without a number it is the same for all ranks. ``instances`` share it,
    and do not communicate.
    """

    rank: int
    size: int
    device: str
    folder: str
    instances: bool = False


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A question on its way to a process, with the process's group if it has one."""

    question: Question
    group: Group | None = None


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The model and device that a run will measure.

    ``input_shape`` is the shape of one sample (``3x224x224``). ``source_sha256`` is the hash of the user's own file:
    the factory's, or that of the weights. ``caveats`` are notices that apply to every result of the run. ``settings``
    are those that the user's file changed in torch. ``granularity`` is that of the inputs' batches, if they have one
    and the user gave none. ``own_step`` says whether the model is a step of the user's own, ``own_optimizers`` whether
    it is trained by optimizers of its own.
    """

    environment: Environment
    input_shape: str
    parameters: int | None
    source_sha256: str | None = None
    caveats: tuple[Notice, ...] = ()
    settings: tuple[Setting, ...] = ()
    granularity: int | None = None
    own_step: bool = False
    own_optimizers: bool = False


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that make a failing model run, and the notices about them; empty if the model itself fails."""

    grad_mode: GradMode | None = None
    granularity: int | None = None
    find_unused_parameters: bool | None = None
    fresh_inputs: bool | None = None
    host_lengths: bool | None = None
    lengths_input: int | None = None
    caveats: tuple[Notice, ...] = ()

    @property
    def settings(self) -> dict[str, object]:
        """The changes: the fields of a spec with their new values."""
        values = msgspec.structs.asdict(self)
        return {name: value for name, value in values.items() if name != "caveats" and value is not None}


class NamedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be named, with the shape of one sample; ``parameters`` is None if unknown."""

    name: str
    family: str
    input_shape: str
    parameters: int | None = None


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """A progress message of a process that times batches.

    It reports the finished ``row`` of a batch, and before that the same row ``unchecked``, since the checks may end the
    process; or that the throughput window of the next batch ``begins`` or has ``ended``; or the finished ``trial``
    before the timing. A process that ``meets`` those of other devices goes on working, untimed, until its gate lets it
    go. ``at_s`` is the time of the message, by the host's monotonic clock.
    """

    row: Row | None = None
    unchecked: Row | None = None
    trial: Trial | None = None
    window: Literal["meets", "begins", "ended"] | None = None
    at_s: float | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One window of a process that takes turns: the time of each step of ``samples`` samples, or its failure.

    ``submission_ms`` are the host's own times of the steps if they ran one at a time; ``compile_s`` is the time of
    compiling. The last turn has no times, but ``values`` of the outputs of the smallest batch, run eagerly, and
    ``sources``: some values of the weights and inputs that they come from. In the first round an empty turn comes
    before it, when the windows are known to be good.
    """

    device_ms: tuple[Above0, ...] = ()
    submission_ms: tuple[Above0, ...] = ()
    values: tuple[float, ...] = ()
    sources: tuple[float, ...] = ()
    samples: Count = 1
    compile_s: Amount | None = None
    peak_allocated_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    failure: Failure | None = None


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The TputfindError of a child or of a cluster node: its class, its kind and its texts."""

    error: str
    kind: str = "error"
    message: str
    hint: str
    traceback: str

    @classmethod
    def of(cls, error: TputfindError) -> Self:
        name = type(error).__name__
        return cls(error=name, kind=error.kind, message=error.message, hint=error.hint, traceback=error.traceback)

    def make_error(self) -> TputfindError:
        error = BY_NAME.get(self.error, TputfindError)(self.message, self.hint, self.traceback)
        error.kind = self.kind
        return error


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a child: an answer (of the question's answer type), a refusal, the closing message, or a sign of
    life.

    The child will be silent for about ``busy_s`` seconds. ``doing`` is its work on the host until its next message, in
    the past tense: "made the inputs of batch 8 on the host". The first answer has the slow ``imports`` of
    the child so far: the server imports them once, so that further children begin with them.
    """

    answer: msgspec.Raw = msgspec.Raw()
    refusal: Refusal | None = None
    busy_s: float | None = None
    done: bool = False
    doing: str = ""
    imports: tuple[str, ...] = ()
