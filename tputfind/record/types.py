"""Types, bounds and vocabularies of record fields, and the version of the measuring method."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple, cast, get_args

from msgspec import Meta

from tputfind.options import LARGEST_WHOLE

LARGEST_BATCH: Final = LARGEST_WHOLE
Count = Annotated[int, Meta(ge=1, le=LARGEST_BATCH)]
CountFromZero = Annotated[int, Meta(ge=0, le=LARGEST_BATCH)]
Bytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Values = Annotated[int, Meta(ge=0, le=2**63 - 1)]
MOST_AMOUNT: Final = 1e15
Amount = Annotated[float, Meta(ge=0, le=MOST_AMOUNT)]
Above0 = Annotated[float, Meta(gt=0, le=MOST_AMOUNT)]

# The role of a field when two records are compared or a run is resumed. Every field of Spec and of Environment has one
# of these.
WORK: Final = Meta(extra={"role": "work"})
"""Two records must agree on it to be compared."""
TOLD: Final = Meta(extra={"role": "told"})
"""Two records may differ in it; a comparison names the difference. A resumed run must agree on it."""
ASKED: Final = Meta(extra={"role": "asked"})
"""Selects batch sizes, or rows that the record shows anyway. A resumed run must agree on it."""
FREE: Final = Meta(extra={"role": "free"})
"""May differ, also in a resumed run."""


Dtype = Literal["fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16", "int8", "fp8", "own"]
"""``own`` leaves a model and its inputs unchanged. ``int8`` and ``fp8`` are those of linear layers in ``bf16``."""
Layout = Literal["nchw", "nhwc"]
Search = Literal["forecast", "bisect", "linear"]
Allocator = Literal["native", "expandable"]
Phase = Literal["infer", "train", "step"]
"""``step`` is a step of the user's own; it is detected, and no option requests it."""
GradMode = Literal["inference", "no_grad", "enabled"]
Transfer = Literal["none", "h2d", "both"]
Load = Literal["solo", "queue", "all_busy"]
Parallel = Literal["ddp", "fsdp"]
DTYPES: Final = get_args(Dtype)
QUANTIZED: Final[dict[str, str]] = {
    "int8": "Int8DynamicActivationInt8WeightConfig",
    "fp8": "Float8DynamicActivationFloat8WeightConfig",
}
"""Dtypes of quantised linear layers, each with the configuration of torchao."""
CONVERTED: Final[dict[str, str]] = {"fp16": "float16"} | dict.fromkeys(("bf16", *QUANTIZED), "bfloat16")
"""torch's name of the dtype to which real floating-point parameters are converted; float32 for all others."""
AUTOCAST: Final[dict[str, str]] = {"amp-fp16": "float16", "amp-bf16": "bfloat16"}
LAYOUTS: Final = get_args(Layout)
MODES: Final = ("eager", "cudagraph", "compile", "compile:freezing", "compile:reduce-overhead", "compile:max-autotune")
"""The simplest to deploy first. ``compile:NAME`` is also any other backend of ``torch.compile``."""
GRAD_MODES: Final = get_args(GradMode)
"""From the strictest to the least strict."""
PHASES: Final = tuple(phase for phase in get_args(Phase) if phase != "step")
MODE_PATTERN: Final = r"eager|cudagraph|compile(:[A-Za-z][A-Za-z0-9_.-]{0,63})?"
DEVICES: Final = ("auto", "cpu", "cpu:0-3", "cuda", "cuda:N", "xpu", "npu", "hpu", "accelerator")
"""``N`` stands for a device's number, which every kind of device accepts; ``0-3`` for any set of cores."""


METHOD: Final = 1
"""Incremented when measuring changes, so that old and new numbers are not compared by mistake."""
NOISE: Final = {"fp32": 1e-3, "tf32": 2e-2, "fp16": 2e-2, "amp-fp16": 2e-2} | dict.fromkeys(
    ("bf16", "amp-bf16", "int8", "fp8", "own"), 1e-1
)
"""Maximum relative distance (L2 norm) of two outputs of a sample that rounding explains, by dtype.

Another batch size uses other kernels, which add up in another order. Measured on an H200 with torchvision's models,
random weights, batch 32 against 2: at most 3e-6 (fp32), 1e-3 (tf32 and fp16) and 7e-3 (bf16) if nothing underflows."""
REPEATABILITY: Final = 0.002
"""Limit of repeatability on one machine, as a fraction, however many samples there are: the same loop of ten seconds,
in separate processes some minutes apart, differed by 0.2 % (ResNet-50, batch 256, on an H200), while the processes of
one run lay within 0.03 %."""
NEGLIGIBLE_BYTES: Final = 16 * 2**20
"""Drivers and monitors hold up to this much device memory, which changes no answer."""


SourceName = Literal["torchvision", "timm", "hf", "file", "factory", "live"]
SAVED_SUFFIXES: Final = (".pt", ".pth", ".ts", ".pt2")
"""Endings of files that hold a model: TorchScript, and programs of torch.export."""
LIVE: Final = " (live)"
"""Ending of the name of an object that Python code passed to ``find``; no model can be loaded by that name."""


class ModelSource(NamedTuple):
    """A source of models: its ``package``, None for the user's own code.

    With ``prefix``, names begin with that of the source (``timm:vit_tiny_patch16_224``), which is also the name of the
    extra of tputfind that installs the package.
    """

    package: str | None = None
    prefix: bool = False


SOURCES: Final[dict[SourceName, ModelSource]] = {
    "torchvision": ModelSource("torchvision"),
    "timm": ModelSource("timm", prefix=True),
    "hf": ModelSource("transformers", prefix=True),
    "file": ModelSource(),
    "factory": ModelSource(),
    "live": ModelSource(),
}


def source_of(model: str) -> SourceName:
    if model.endswith(LIVE):
        return "live"
    first, apart, _ = model.partition(":")
    if apart and any(source.prefix and name == first for name, source in SOURCES.items()):
        return cast("SourceName", first)
    if model.endswith(SAVED_SUFFIXES):
        return "file"
    return "factory" if apart else "torchvision"


def is_compile_mode(mode: str) -> bool:
    return mode.startswith("compile")


_SIZED: Final = {"vit_": "image_size", "maxvit_": "input_size"}
"""Prefixes of torchvision's models that are built for one image size, and the builder's argument for that size."""


def size_argument(name: str, shape: Sequence[int]) -> dict[str, int | tuple[int, ...]]:
    """Return the argument of torchvision's builder of a model for samples of a shape; empty if it takes any size."""
    found = next((argument for start, argument in _SIZED.items() if name.startswith(start)), None)
    return {} if found is None else {found: shape[-1] if found == "image_size" else tuple(shape[-2:])}
