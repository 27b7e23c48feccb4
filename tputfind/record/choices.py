"""The words that options take: records, readers, help and completion have them from here. It imports nothing heavy."""

from typing import Final, Literal, get_args

Dtype = Literal["fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16", "own"]
"""``own`` leaves a model and its inputs as they were made."""
Layout = Literal["nchw", "nhwc"]
Search = Literal["forecast", "bisect", "linear"]
Allocator = Literal["native", "expandable"]
Mode = Literal["eager", "cudagraph", "compile", "compile:freezing", "compile:reduce-overhead", "compile:max-autotune"]
"""The simplest to deploy first; what stands behind ``compile:`` is how it compiles."""
Phase = Literal["infer", "train", "step"]
"""``step`` is one of the user's own, which does what it does: it is found, and cannot be asked for."""
GradMode = Literal["inference", "no_grad", "enabled"]
Transfer = Literal["none", "h2d", "both"]
Load = Literal["solo", "queue", "all_busy"]
Parallel = Literal["ddp", "fsdp"]
DTYPES: Final = get_args(Dtype)
LAYOUTS: Final = get_args(Layout)
SEARCHES: Final = get_args(Search)
ALLOCATORS: Final = get_args(Allocator)
MODES: Final = get_args(Mode)
COMPILED: Final = tuple(mode for mode in MODES if mode.startswith("compile"))
GRAD_MODES: Final = get_args(GradMode)
"""From the strictest to the loosest."""
PHASES: Final = tuple(phase for phase in get_args(Phase) if phase != "step")
TRANSFERS: Final = get_args(Transfer)
DEVICES: Final = ("auto", "cpu", "cpu:0-3", "cuda", "cuda:N", "xpu", "npu", "hpu", "accelerator")
"""``N`` stands for the number of a device, which each kind of them takes, ``0-3`` for any set of cores."""
