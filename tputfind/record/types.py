"""The types, bounds and words of what a record holds, and the number of the method of measuring."""

from typing import Annotated, Final, Literal, NamedTuple, cast, get_args

from msgspec import Meta

from tputfind.options import LARGEST_WHOLE

LARGEST_BATCH: Final = LARGEST_WHOLE
Count = Annotated[int, Meta(ge=1, le=LARGEST_BATCH)]
CountFromZero = Annotated[int, Meta(ge=0, le=LARGEST_BATCH)]
Bytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Above0 = Annotated[float, Meta(gt=0, le=1e15)]

# What a field is for two records that are compared, set side by side, or gone on with. Every field of Spec and of
# Environment has one of these.
WORK: Final = Meta(extra={"role": "work"})
"""Two records must agree on it."""
TOLD: Final = Meta(extra={"role": "told"})
"""Two records may differ in it, and whoever compares them is told. A run that is gone on with must agree."""
ASKED: Final = Meta(extra={"role": "asked"})
"""Says which batch sizes are looked for, which rows show anyway. A run that is gone on with must agree."""
FREE: Final = Meta(extra={"role": "free"})
"""May differ, also in a run that is gone on with."""


Dtype = Literal["fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16", "own"]
"""``own`` leaves a model and its inputs as they were made."""
Layout = Literal["nchw", "nhwc"]
Search = Literal["forecast", "bisect", "linear"]
Allocator = Literal["native", "expandable"]
Phase = Literal["infer", "train", "step"]
"""``step`` is one of the user's own, which does what it does: it is found, and cannot be asked for."""
GradMode = Literal["inference", "no_grad", "enabled"]
Transfer = Literal["none", "h2d", "both"]
Load = Literal["solo", "queue", "all_busy"]
Parallel = Literal["ddp", "fsdp"]
DTYPES: Final = get_args(Dtype)
LAYOUTS: Final = get_args(Layout)
MODES: Final = ("eager", "cudagraph", "compile", "compile:freezing", "compile:reduce-overhead", "compile:max-autotune")
"""The simplest to deploy first. ``compile:NAME`` is also any other backend of ``torch.compile``."""
GRAD_MODES: Final = get_args(GradMode)
"""From the strictest to the loosest."""
PHASES: Final = tuple(phase for phase in get_args(Phase) if phase != "step")
MODE_PATTERN: Final = r"eager|cudagraph|compile(:[A-Za-z][A-Za-z0-9_.-]{0,63})?"
DEVICES: Final = ("auto", "cpu", "cpu:0-3", "cuda", "cuda:N", "xpu", "npu", "hpu", "accelerator")
"""``N`` stands for the number of a device, which each kind of them takes, ``0-3`` for any set of cores."""


METHOD: Final = 10
"""Raised when measuring changes, so that numbers taken before and after are not compared unawares."""
REPEATABILITY: Final = 0.002
"""Figures of one machine are not known better than to this share, however many samples there are: the same loop of ten
seconds, in processes of its own some minutes apart, differed by 0.2 % (ResNet-50, batch 256, on an H200), while the
processes of one run lay within 0.03 %."""
NEGLIGIBLE_BYTES: Final = 16 * 2**20
"""Drivers and monitors hold up to this much of a device, which changes no answer."""


SourceName = Literal["torchvision", "timm", "hf", "file", "factory", "live"]
SAVED_SUFFIXES: Final = (".pt", ".pth", ".ts", ".pt2")
"""Of files that hold a model: TorchScript, and programs of torch.export."""
LIVE: Final = " (live)"
"""Ends the name of an object that Python code handed to ``find``; nothing can be found by that name."""


class ModelSource(NamedTuple):
    """A source of models: the ``package`` that has them, None where they are the user's own.

    Names with a ``prefix`` begin with that of the source (``timm:vit_tiny_patch16_224``), which also names the extra of
    this package that installs the other one.
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
    """Return where a model comes from."""
    if model.endswith(LIVE):
        return "live"
    first, apart, _ = model.partition(":")
    if apart and any(source.prefix and name == first for name, source in SOURCES.items()):
        return cast("SourceName", first)
    if model.endswith(SAVED_SUFFIXES):
        return "file"
    return "factory" if apart else "torchvision"


def is_compiled(mode: str) -> bool:
    """Return whether a mode runs through ``torch.compile``."""
    return mode.startswith("compile")
