"""Spec: the request, validated as a whole before the run starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from math import prod
from typing import Annotated, Final, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from tputfind import options as values
from tputfind.declaration import FAR, HOW, LONG, OTHER, WHAT, Option, options_by_field, readers_of
from tputfind.errors import BadRequest
from tputfind.record.types import (
    ASKED,
    DEVICES,
    FREE,
    LARGEST_BATCH,
    MODE_PATTERN,
    MODES,
    MOST_AMOUNT,
    PHASES,
    QUANTIZED,
    REPEATABILITY,
    SOURCES,
    TOLD,
    WORK,
    Above0,
    Allocator,
    Count,
    CountFromZero,
    Dtype,
    GradMode,
    Layout,
    Load,
    Parallel,
    Phase,
    Search,
    SourceName,
    Transfer,
    source_of,
)
from tputfind.units import echo, has_unit

LARGEST_IMAGE: Final = 2**19
MOST_BATCH_SIZES: Final = 10_000
_MOST_ELEMENTS: Final = 2**40
_MOST_DIMENSIONS: Final = 24
_CORES: Final = "[0-9]{1,4}(?:-[0-9]{1,4})?"
_DEVICE: Final = re.compile(
    rf"auto|cpu(?::(?:node[0-9]{{1,3}}|{_CORES}(?:\+{_CORES})*))?|([a-z][a-z0-9_]{{1,30}})(?::[0-9]{{1,3}})?"
)
_KINDS: Final = {name for name in DEVICES if name not in ("auto", "cpu", "cpu:0-3", "cuda:N")}
MOST_RANKS: Final = 64
MOST_PROCESSES: Final = 100
PROCESSES: Final = 3
FEW_SAMPLES: Final = 64
"""An input function is called for this many samples, if larger batches can repeat them."""
LONGEST_NAME: Final = 4096
"""Maximum characters of a model's name, as of a path; no file system allows longer paths."""


_OPTIMIZER: Final = "[a-z][a-z0-9_]{0,40}"
_Memory = Annotated[int, Meta(ge=1, le=2**63 - 1)]
_Share = Annotated[float, Meta(gt=0, lt=1)]
_Sizes = Annotated[tuple[Count, ...], Meta(min_length=1)]


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One input of a model: a keyword argument if it has a name. ``B`` in its shape is the batch size.

    The dtype ``float`` is the spec's. Whole numbers are drawn from 0 to ``below`` - 1.
    """

    name: str = ""
    dtype: Literal["float", "fp32", "int64", "int32", "uint8", "bool"] = "float"
    shape: tuple[Count | Literal["B"], ...]
    below: Count = 2


class Spec(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """One model in one configuration, and how to measure it. Build it with ``read_spec``, which validates it.

    Shapes are those of one sample, without the batch axis. ``None`` means that the option was not given.
    """

    model: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME), WORK]
    device: Annotated[
        str,
        ASKED,
        Option(
            HOW,
            "run on this device; auto is an accelerator if there is one; a list, or all, shares the work",
            DEVICES,
            _device,
            lists=True,
        ),
    ] = "auto"
    load: Annotated[Load, TOLD] = "solo"
    """The work of the host's other devices meanwhile: none, other jobs of a queue, or the same as this one."""
    busy_devices: Annotated[Count, TOLD] = 1
    """How many devices worked at the same time, including this one."""
    dtype: Annotated[Dtype, WORK, Option(HOW, "compute in this number format", lists=True)] = "fp32"
    layout: Annotated[Layout, TOLD, Option(HOW, "store images channels first or channels last (nhwc)", lists=True)] = (
        "nchw"
    )
    mode: Annotated[
        Annotated[str, Meta(pattern=f"^({MODE_PATTERN})$")],
        TOLD,
        Option(HOW, "run eager, through torch.compile, or as a CUDA graph", MODES, _mode, lists=True),
    ] = "eager"
    parallel: Annotated[
        Parallel | None,
        WORK,
        Option(HOW, "train one model on several devices: ddp copies it to each, fsdp shards its weights"),
    ] = None
    gpus: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_RANKS)] | None,
        WORK,
        Option(
            HOW,
            "run one model, or a step of your own, on the first N devices; batch sizes are per device",
            "N",
            partial(values.whole, most=MOST_RANKS),
            default="no process group",
        ),
    ] = None
    """The ranks of a job; None if there are no ranks, or as many as ``device`` names."""
    instances: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_RANKS)],
        TOLD,
        Option(
            HOW,
            "run N copies of the model at once on a CPU, or on a GPU under NVIDIA's MPS; batch sizes are per copy",
            "N",
            partial(values.whole, most=MOST_RANKS),
            lists=True,
        ),
    ] = 1
    phase: Annotated[
        Phase, WORK, Option(WHAT, "measure inference, or training: forward, loss, backward, optimizer step", PHASES)
    ] = "infer"
    optimizer: Annotated[
        Annotated[str, Meta(pattern=f"^{_OPTIMIZER}$")] | None,
        WORK,
        Option(
            WHAT,
            "train with this optimizer of torch.optim, such as adamw or adafactor; sgd has momentum",
            "NAME",
            _optimizer,
            default="sgd",
        ),
    ] = None
    """A class of ``torch.optim`` in lower case; the worker checks that it exists."""
    clip: Annotated[
        Above0 | None, WORK, Option(WHAT, "clip gradients to this norm before the optimizer's step", "NORM", _norm)
    ] = None
    accumulate: Annotated[
        Count, WORK, Option(WHAT, "accumulate the gradients of N batches in each optimizer step", "N", values.whole)
    ] = 1
    """Micro-batches per step; throughput counts the samples of all."""
    effective_batch: Annotated[
        Count | None,
        ASKED,
        Option(
            WHAT,
            "also name the batch size and --accumulate that reach N samples per optimizer step the fastest",
            "N",
            values.whole,
        ),
    ] = None
    grad_checkpoint: Annotated[bool, TOLD, Option(WHAT, "save memory in training: compute activations twice")] = False
    grad_mode: Annotated[GradMode, TOLD] = "inference"
    """The autograd mode of inference: ``inference_mode``, unless the model failed under it."""
    find_unused_parameters: Annotated[bool, TOLD] = False
    """Whether DDP looks for parameters without a gradient at every step; only if training failed without this."""
    host_lengths: Annotated[bool, TOLD] = False
    """Whether one-dimensional integer inputs stay on the host; only if the model failed with them on the device."""
    lengths_input: Annotated[Count | None, TOLD] = None
    """The only one of these inputs that stays on the host, counted from 1; None for all of them."""
    weights: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        WORK,
        Option(
            WHAT,
            "load published weights (DEFAULT or a name), or a file of weights",
            "NAME|FILE",
            values.text,
            default="random",
        ),
    ] = None
    image_size: Annotated[
        Count | None,
        WORK,
        Option(WHAT, "use square images of this height and width", "PIXELS", _image_size, default="the model's own"),
    ] = None
    input_size: Annotated[
        _Sizes | None,
        WORK,
        Option(
            WHAT, "use samples of this shape, such as 3x640x480 or 16", "SHAPE", _input_size, default="the model's own"
        ),
    ] = None
    sequence_length: Annotated[
        Count | None,
        WORK,
        Option(WHAT, "use N tokens per sample (hf: models)", "N", values.whole, default="512, or the model's maximum"),
    ] = None
    inputs: Annotated[
        Annotated[tuple[Input, ...], Meta(min_length=1)] | None,
        WORK,
        Option(
            WHAT,
            "describe an input of your own model, such as ids:int64:Bx128:30000 (B is the batch size, integers are "
            "below 30000); repeat for each",
            "NAME:DTYPE:SHAPE",
            _inputs,
            name="input",
            repeats=True,
        ),
    ] = None
    fresh_inputs: Annotated[
        bool,
        TOLD,
        Option(WHAT, "let an input function make all samples; else a large batch repeats the samples of a small one"),
    ] = False
    batch_sizes: Annotated[
        _Sizes | None,
        ASKED,
        Option(FAR, "time only these batch sizes, such as 1,8,32; search nothing", "LIST", _batch_sizes),
    ] = None
    max_batch: Annotated[Count | None, ASKED, Option(FAR, "try no batch above N", "N", values.whole)] = None
    granularity: Annotated[
        Count, ASKED, Option(FAR, "find the largest batch among multiples of N", "N", values.whole)
    ] = 1
    memory_limit_bytes: Annotated[
        _Memory | None,
        TOLD,
        Option(
            FAR,
            "act as if the device had this much memory, such as 24GiB",
            "SIZE",
            values.size,
            name="memory_limit",
            default="the device's",
        ),
    ] = None
    headroom: Annotated[
        _Memory | _Share | None,
        ASKED,
        Option(
            FAR, "also find the largest batch that keeps this much memory free, such as 5% or 2GiB", "SIZE", _headroom
        ),
    ] = None
    """A whole number of bytes, or a fraction of the memory below 1."""
    max_latency_ms: Annotated[
        Above0 | Literal["auto"] | None,
        ASKED,
        Option(
            FAR,
            "stop the search at a step longer than this, such as 50ms; none sets no limit",
            "TIME",
            _max_latency_ms,
            name="max_latency",
            default="none; 1s on the CPU",
        ),
    ] = "auto"
    thorough: Annotated[bool, TOLD, Option(LONG, "time every row for 100 batches and 3 seconds")] = False
    batches: Annotated[
        Count | None,
        TOLD,
        Option(
            LONG,
            "time N batches of every row, in all its processes together, for at most --max-seconds",
            "N",
            values.whole,
        ),
    ] = None
    """Batches of every row; None leaves them to the length of the windows."""
    warmup: Annotated[
        CountFromZero | None,
        TOLD,
        Option(
            LONG,
            "leave out at least the first N batches of each process",
            "N",
            values.count_from_zero,
            default="until times settle",
        ),
    ] = None
    """Minimum steps to leave out; None leaves out the detected transient only."""
    max_seconds: Annotated[
        Above0 | None,
        TOLD,
        Option(
            LONG, "stop timing a row after S seconds", "S", _max_seconds, default="4; 60 with --thorough or --batches"
        ),
    ] = None
    budget_s: Annotated[
        Above0 | None,
        TOLD,
        Option(
            LONG,
            "end the whole run within this time, such as 60s; rows that decide an answer are timed first",
            "TIME",
            _duration_s,
            name="budget",
        ),
    ] = None
    processes: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_PROCESSES)] | None,
        TOLD,
        Option(
            LONG,
            "time every row in N fresh processes; with --max-noise, in at least N",
            "N",
            partial(values.whole, most=MOST_PROCESSES),
            default="1 to 3 by need; 3 with --batch-sizes",
        ),
    ] = None
    """Processes of every row (minimum, with ``max_noise``); None uses more for rows on which an answer rests."""
    max_noise: Annotated[
        Annotated[float, Meta(gt=REPEATABILITY, lt=1)] | None,
        TOLD,
        Option(
            LONG,
            "time a row until the 95 % interval of its throughput is ± this, such as 1%, for at most --max-seconds",
            "SHARE",
            _noise,
        ),
    ] = None
    """Target half-width of the interval of a row's throughput, as a fraction; the row goes on until it is reached. None
    adds no process to the usual ones."""
    transfer: Annotated[
        Transfer,
        WORK,
        Option(
            HOW, "include copies of inputs from pinned memory (h2d), and of outputs to it (both); they overlap compute"
        ),
    ] = "none"
    soak: Annotated[
        CountFromZero,
        ASKED,
        Option(
            FAR, "run the largest batch N more times; take a smaller one if that fails", "N", values.count_from_zero
        ),
    ] = 0
    slo_ms: Annotated[
        Above0 | None,
        ASKED,
        Option(
            WHAT,
            "also name the best batch whose latency is below this, such as 20ms",
            "TIME",
            values.positive_ms,
            name="slo",
        ),
    ] = None
    percentile: Annotated[
        float,
        Meta(gt=0, lt=100),
        ASKED,
        Option(WHAT, "apply --slo to this percentile of the latency", "P", _percentile),
    ] = 99.0
    search: Annotated[Search, ASKED, Option(FAR, "search by forecasts, by bisection, or upwards (linear)")] = "forecast"
    allocator: Annotated[
        Allocator | None,
        ASKED,
        Option(HOW, "use native or expandable CUDA memory segments", default="the environment's", lists=True),
    ] = None
    """None keeps the setting of the environment."""
    seed: Annotated[
        CountFromZero, TOLD, Option(OTHER, "draw weights and inputs from this seed", "N", values.count_from_zero)
    ] = 0
    trial_timeout_s: Annotated[
        Above0 | None,
        FREE,
        Option(
            OTHER,
            "kill a process that is silent for longer than this",
            "TIME",
            _duration_s,
            name="trial_timeout",
            default="10min, then 4 times the expected time",
        ),
    ] = None
    strict: Annotated[bool, FREE, Option(OTHER, "refuse to run if other processes hold memory of the device")] = False

    given_defaults: Annotated[tuple[str, ...], FREE] = ()
    """Fields given explicitly with their default; a step of the user's own refuses them too. Empty in a record."""

    @property
    def source(self) -> SourceName:
        return source_of(self.model)

    @property
    def own_code(self) -> bool:
        """Whether the model is the user's own code: its name is a path or a module, and its traceback is useful."""
        return SOURCES[self.source].package is None

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.device.split(","))

    @property
    def cores(self) -> str:
        """The cores that a device such as ``cpu:0-3+8`` names; empty if it names none."""
        found = _DEVICE.fullmatch(self.device)
        return "" if found is None or found[1] else self.device.partition(":")[2]

    @property
    def has_instances(self) -> bool:
        return self.instances > 1

    @property
    def ranks(self) -> int | None:
        """The processes that run together, one per device or instance; None without a group of processes."""
        if self.has_instances:
            return self.instances
        return self.gpus or (None if self.parallel is None else len(self.devices))

    @property
    def device_count(self) -> int:
        return 1 if self.has_instances else self.ranks or 1

    @property
    def memory_of_each_bytes(self) -> int | None:
        """The requested memory limit of each process: instances share one device."""
        return None if self.memory_limit_bytes is None else self.memory_limit_bytes // self.instances

    @property
    def mode_and_phase(self) -> tuple[str, ...]:
        words = (self.mode, self.phase, self.parallel)
        return tuple(word for word in words if word not in ("eager", "infer", None))

    @property
    def row_processes(self) -> int:
        """Processes for a row on which an answer rests, unless two are alike."""
        return PROCESSES if self.processes is None else self.processes

    @property
    def smallest_batch(self) -> int:
        """The smallest requested batch size: some models and input functions accept none below."""
        return (self.batch_sizes or (self.granularity,))[0]

    @property
    def few_samples(self) -> int:
        """The samples for which an input function is called, if larger batches repeat them."""
        return max(1, FEW_SAMPLES // self.smallest_batch) * self.smallest_batch

    def sizes_up_to(self, largest: int) -> list[int]:
        """Return the batch sizes to time up to the largest: the granularity times the powers of two."""
        return [self.granularity * 2**exponent for exponent in range((largest // self.granularity).bit_length())]

    @property
    def scales_gradients(self) -> bool:
        """Whether a step trains with fp16 gradients, which a gradient scaler keeps from underflow."""
        return self.phase == "train" and self.dtype == "amp-fp16"

    def __post_init__(self) -> None:
        """Check fields against each other; msgspec calls this for a record's spec too."""
        if problems := "; ".join(_conflicts(self)):
            raise ValueError(problems)


def apply_findings(asked: Spec, found: Spec) -> Spec:
    """Return the requested spec with the findings of a run, such as the autograd mode."""
    granularity = found.granularity if asked.granularity == 1 and asked.batch_sizes is None else asked.granularity
    if found.phase == "step" and not refused_by_step(asked):
        asked = own_step(asked)
    return msgspec.structs.replace(
        asked,
        grad_mode=found.grad_mode,
        granularity=granularity,
        find_unused_parameters=found.find_unused_parameters,
        fresh_inputs=asked.fresh_inputs or found.fresh_inputs,
        host_lengths=found.host_lengths,
        lengths_input=found.lengths_input,
        given_defaults=(),
    )


def own_step(spec: Spec) -> Spec:
    """Return the spec of a step of the user's own, run as it is; raise BadRequest if options would change a model."""
    if refused := refused_by_step(spec):
        accumulates = {"--accumulate", "--effective-batch"}.intersection(refused)
        raise BadRequest(
            f"{spec.model} is a step of its own, which is run as it is: leave {', '.join(refused)} out",
            _COUNT_STEPS if accumulates else _OWN_CODE,
        )
    return msgspec.structs.replace(spec, phase="step", dtype="own", grad_mode="enabled")


_OWN_CODE: Final = "its own code sets the dtype and the inputs; a factory of a model takes no arguments"
_COUNT_STEPS: Final = "measure one for each number of micro-batches, and compare them"


def refused_by_step(spec: Spec) -> list[str]:
    defaults = Spec(model=spec.model)

    def is_set(field: str) -> bool:
        left = getattr(defaults, field), _OF_STEPS.get(field)
        return field in spec.given_defaults or getattr(spec, field) not in left

    return [
        option.flag for field, option in options_by_field(Spec).items() if field in _NOT_FOR_STEPS and is_set(field)
    ]


_OF_STEPS: Final = {"dtype": "own", "phase": "step"}
_NOT_FOR_STEPS: Final = {
    *("dtype", "layout", "mode", "phase", "optimizer", "grad_checkpoint", "weights", "transfer", "fresh_inputs"),
    *("image_size", "input_size", "sequence_length", "inputs", "clip", "accumulate"),
    *("effective_batch", "parallel"),
}


def read_spec(model: str, options: Mapping[str, object]) -> Spec:
    """Return the Spec that the options describe; raise BadRequest, which names all that are wrong.

    Options are by name, with underscores (``batch_sizes``, ``memory_limit``): text as on a command line, or Python
    values (numbers: bytes, milliseconds, seconds; sequences of whole numbers). None means not given.
    """
    problems: list[str] = []
    if not isinstance(model, str) or not model:
        problems.append(f"MODEL must be a name, file.py:factory or package.module:factory, not {echo(model)}")
    elif not model.isprintable():
        problems.append(f"MODEL {echo(model)} has characters that cannot be shown")
    elif len(model) > LONGEST_NAME:
        problems.append(f"MODEL {echo(model)} has {len(model)} characters: no name has more than {LONGEST_NAME}")
    fields, wrong = values.fields_of(options, readers_of(Spec))
    problems += wrong
    if not problems:
        try:
            spec = Spec(model=model, **fields)  # type: ignore[arg-type]  # each reader returns its field's type
        except ValueError as conflict:
            problems.append(str(conflict))
        else:
            problems += _idle_options(spec)
    if not problems:
        defaults = Spec(model=model)
        given = (field for field, value in fields.items() if value == getattr(defaults, field))
        return msgspec.structs.replace(spec, given_defaults=tuple(sorted(_NOT_FOR_STEPS.intersection(given))))
    raise BadRequest("; ".join(problems), "--help lists every option")


def _conflicts(spec: Spec) -> Iterator[str]:
    if spec.max_batch is not None and spec.max_batch < spec.granularity:
        yield f"--max-batch {spec.max_batch} is below --granularity {spec.granularity}: no batch size is left to try"
    if spec.image_size is not None and spec.input_size is not None:
        yield "--image-size and --input-size say the same thing: give one"
    if spec.inputs is not None and (spec.image_size or spec.input_size) is not None:
        yield "--input describes all inputs: --image-size and --input-size cannot be combined with it"
    if spec.inputs is not None and spec.sequence_length is not None:
        yield "--input describes all inputs: --sequence-length cannot be combined with it"
    if spec.inputs is not None and not any("B" in each.shape for each in spec.inputs):
        yield "--input: no shape has a B, which stands for the batch, such as input_ids:int64:Bx128"
    if spec.phase == "infer" and (spec.optimizer is not None or spec.grad_checkpoint):
        yield "--optimizer and --grad-checkpoint are for --phase train"
    if spec.phase == "infer" and spec.clip is not None:
        yield "--clip is for --phase train"
    if spec.phase == "infer" and (spec.accumulate > 1 or spec.effective_batch is not None):
        yield f"--accumulate and --effective-batch are for --phase train (a step of your own: {_COUNT_STEPS})"
    if spec.phase == "train" and spec.dtype == "fp16":
        yield "--phase train in pure fp16 comes to NaN: --dtype amp-fp16, amp-bf16 or bf16 train"
    if spec.phase == "train" and spec.dtype in QUANTIZED:
        yield f"--dtype {spec.dtype} quantises weights for inference: with --phase train, take another"
    if spec.phase == "train" and spec.mode == "cudagraph":
        yield "--mode cudagraph captures inference: with --phase train, leave it out"
    if spec.phase == "train" and spec.mode == "compile:freezing":
        yield "--mode compile:freezing makes constants of weights, which --phase train changes: --mode compile trains"
    yield from _conflicts_of_ranks(spec)
    if spec.batch_sizes is not None and spec.max_batch is not None:
        yield "--batch-sizes cannot be combined with --max-batch: it names every batch size to time"
    if spec.layout == "nhwc" and spec.input_size is not None and len(spec.input_size) not in (3, 4):
        yield "--layout nhwc needs samples of 3 or 4 dimensions (CxHxW or CxDxHxW)"
    if spec.thorough and spec.batches is not None:
        yield "--thorough and --batches both say how many batches a row takes: give one"
    if spec.max_noise is not None and spec.row_processes < 2:
        yield "--max-noise needs --processes 2 or more: one process does not show how much processes differ"
    if spec.batch_sizes is not None and (spec.headroom is not None or spec.soak > 0):
        yield "--batch-sizes cannot be combined with --headroom or --soak: it searches nothing"
    if spec.batch_sizes is not None and list(spec.batch_sizes) != sorted(set(spec.batch_sizes)):
        yield "--batch-sizes must rise"
    if any(size % spec.granularity for size in spec.batch_sizes or ()):
        yield f"--batch-sizes must be multiples of --granularity {spec.granularity}"


def _idle_options(spec: Spec) -> Iterator[str]:
    """Yield options that would change nothing; a record with them is readable."""
    if spec.batch_sizes is not None and spec.max_latency_ms not in ("auto", None):
        yield "--batch-sizes cannot be combined with --max-latency: it searches nothing"
    if (each := spec.accumulate * spec.device_count) > 1 and (spec.effective_batch or 0) % each:
        yield f"--effective-batch {spec.effective_batch} is no multiple of {each}, the batches of each optimizer step"


def _conflicts_of_ranks(spec: Spec) -> Iterator[str]:
    if len(spec.devices) > 1 and spec.ranks is None:
        several = "--parallel ddp or fsdp trains one model on them, and the command line shares jobs among them"
        yield f"--device {spec.device} are several devices: {several}"
    if len(spec.devices) > 1 and spec.ranks not in (None, len(spec.devices)):
        yield f"--device names {len(spec.devices)} devices, and --gpus {spec.gpus}"
    if spec.gpus is not None and spec.gpus > 1 and len(spec.devices) == 1 and spec.device[-1:].isdigit():
        yield f"--device {spec.device} is one device, and --gpus {spec.gpus}: name them all, or none by number"
    if spec.parallel is not None and spec.phase == "infer":
        yield f"--parallel {spec.parallel} trains: add --phase train"
    if spec.parallel is not None and spec.device_count == 1:
        yield f"--parallel {spec.parallel} takes two devices or more, such as --gpus 2"
    if spec.has_instances and (spec.gpus is not None or spec.parallel is not None):
        yield "--instances are copies that work by themselves: leave --gpus and --parallel out"
    if spec.instances > (count := _core_count(spec.cores) or MOST_RANKS):
        yield f"--instances {spec.instances} takes as many cores, and --device {spec.device} has {count}"
    if spec.memory_of_each_bytes == 0:
        yield f"--memory-limit {spec.memory_limit_bytes}B leaves nothing for each of --instances {spec.instances}"
    if spec.ranks is not None and not spec.has_instances and spec.mode != "eager":
        yield f"--mode {spec.mode} is for one device: leave it out, or compile in a step of your own"
    if spec.device_count > 1 and spec.transfer != "none":
        yield "--transfer is for one device"


def _core_count(cores: str) -> int:
    """Return the number of cores in a text such as ``0-3+8``; 0 if it names a node, only falling ranges or nothing."""
    ends = (one.partition("-") for one in re.findall(_CORES, "" if "node" in cores else cores))
    count, last = 0, -1
    for low, high in sorted((int(low), int(high or low)) for low, _, high in ends):
        count += max(high - max(low, last + 1) + 1, 0)
        last = max(high, last)
    return count


def _image_size(value: object) -> int:
    if isinstance(value, str) and ("," in value or "x" in value.lower()):
        raise ValueError(f"{echo(value)} is not one length: --input-size takes shapes, such as 3x640x480")
    return values.whole(value, most=LARGEST_IMAGE)


def _input_size(value: object) -> tuple[int, ...]:
    return _sample(values.wholes(value, "x"))


def _batch_sizes(value: object) -> tuple[int, ...]:
    return tuple(sorted(set(values.wholes(value, ",", MOST_BATCH_SIZES))))


def _sample(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one sample; raise ValueError if no device could hold it."""
    if len(lengths) > _MOST_DIMENSIONS:
        raise ValueError(f"{len(lengths)} dimensions are more than {_MOST_DIMENSIONS}")
    if prod(lengths) > _MOST_ELEMENTS:
        raise ValueError(f"a sample of {'x'.join(map(str, lengths))} has more than 2^40 elements")
    return lengths


def _inputs(value: object) -> tuple[Input, ...] | None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)):
        raise ValueError(f"{echo(value)} is not a list of inputs")  # noqa: TRY004  # one kind for all wrong values
    inputs = tuple(map(_input, texts))
    names = [each.name for each in inputs if each.name]
    if len(set(names)) < len(names):
        raise ValueError("two inputs have the same name")
    return inputs or None


def _input(value: object) -> Input:
    """Read ``NAME:DTYPE:SHAPE`` or ``NAME:DTYPE:SHAPE:BELOW``; inputs without a name are positional."""
    parts = value.split(":") if isinstance(value, str) else []
    dtypes = get_args(get_type_hints(Input)["dtype"])
    if len(parts) not in (3, 4):
        raise ValueError(f"{echo(value)} is not NAME:DTYPE:SHAPE, such as input_ids:int64:Bx128")
    name, dtype, shape = parts[:3]
    if name and not name.isidentifier():
        raise ValueError(f"{echo(name)} cannot be the name of an argument")
    dtype = values.one_of(dtypes)(dtype)
    if "," in shape:
        raise ValueError(f"{echo(shape)} has commas: put x between lengths, such as Bx3x224")
    lengths = [length if length == "B" else values.whole(length) for length in shape.split("x") if shape]
    if lengths.count("B") > 1:
        raise ValueError(f"{echo(shape)} has more than one B")
    _sample(tuple(length for length in lengths if isinstance(length, int)))
    whole = dtype not in ("float", "fp32", "bool")
    if len(parts) == 4 and not whole:
        raise ValueError(f"{dtype} takes no bound: {echo(value)}")
    below = values.whole(parts[3], most=256 if dtype == "uint8" else LARGEST_BATCH) if len(parts) == 4 else 2
    return Input(name=name, dtype=dtype, shape=tuple(lengths), below=below)  # type: ignore[arg-type]  # both are checked


def _mode(value: object) -> str:
    """Return a mode: one of ``MODES``, or ``compile:NAME`` with any backend of ``torch.compile``."""
    word = value.strip() if isinstance(value, str) else ""
    if word.lower() in MODES:
        return word.lower()
    if not re.fullmatch(MODE_PATTERN, word):
        raise values.none_of(value, (*MODES, "compile:BACKEND"))
    return word


def _optimizer(value: object) -> str:
    """Return the name of an optimizer in lower case, from ``AdamW``, ``adamw`` or ``torch.optim.AdamW``."""
    name = value.strip().lower().removeprefix("torch.optim.") if isinstance(value, str) else ""
    if not re.fullmatch(_OPTIMIZER, name):
        raise ValueError(f"{echo(value)} is not the name of an optimizer, such as adamw")
    return name


def _norm(value: object) -> float:
    norm = values.number(value)
    if norm <= 0:
        raise ValueError(f"{echo(value)} is not above zero")
    if norm > MOST_AMOUNT:
        raise ValueError(f"{echo(value)} is more than {MOST_AMOUNT:g}, which clips nothing")
    return norm


def _headroom(value: object) -> int | float:
    if isinstance(value, float) or (isinstance(value, str) and value.strip().endswith("%")):
        return values.share(value)
    try:
        return values.size(value)
    except ValueError as problem:
        if isinstance(value, str) and values.is_number(value) and 0 < float(value) < 100:
            percent = 100 * float(value) if float(value) < 1 else float(value)
            raise ValueError(f"{echo(value)} is not a size or a share: did you mean {percent:g}%?") from None
        raise problem from None


def _noise(value: object) -> float:
    share = values.share(value)
    if share <= REPEATABILITY:
        raise ValueError(f"{echo(value)} is not above {REPEATABILITY:.1%}, the precision of any figure here")
    return share


def _max_latency_ms(value: object) -> float | Literal["auto"] | None:
    word = value.strip().lower() if isinstance(value, str) else ""
    return "auto" if word == "auto" else None if word == "none" else values.positive_ms(value)


def _duration_s(value: object) -> float:
    return values.positive_ms(value) / 1000 if isinstance(value, str) else values.positive_seconds(value)


def _max_seconds(value: object) -> float:
    return _duration_s(value) if isinstance(value, str) and has_unit(value) else values.positive_seconds(value)


def _percentile(value: object) -> float:
    number = values.percentile(value)
    if not number < 100:
        raise ValueError(f"{echo(value)} is not below 100")
    return number


def _device(value: object) -> str:
    """Return the name of a device, or several separated by commas; an installed package may add kinds of devices."""
    text = values.device_text(value)
    if not isinstance(text, str):
        raise values.none_of(text, DEVICES)
    return ",".join(dict.fromkeys(map(_one_device, text.strip().lower().split(","))))


def _one_device(value: str) -> str:
    name = value.strip()
    found = _DEVICE.fullmatch(name)
    kind = found and found[1]
    if name == "all" or re.fullmatch(r"(?!cpu)[a-z]+:[0-9]+-.*", name):
        raise ValueError(f"{echo(value)} is several devices: write --device cuda:0,cuda:1 or --gpus N for one model")
    if not found or (kind and kind not in _KINDS and find_spec(f"torch_{kind}") is None):
        raise values.none_of(value, (*DEVICES, "NAME of a package torch_NAME"))
    return name
