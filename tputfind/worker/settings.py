"""Settings of torch that a user's file changes: some are kept during the measurement, others are overridden."""

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.random  # loaded here once for all children, since numpy loads it lazily
import torch

from tputfind.record.record import Setting

_KEPT: Final = (
    "torch.get_num_threads()",
    "torch.get_num_interop_threads()",
    "torch.get_default_dtype()",
    "torch.get_default_device()",
    "torch.are_deterministic_algorithms_enabled()",
    "torch.is_anomaly_enabled()",
    "torch.backends.cudnn.enabled",
    "torch.backends.cudnn.benchmark",
    "torch.backends.cudnn.deterministic",
    "torch.backends.mkldnn.enabled",
    "torch.backends.cuda.flash_sdp_enabled()",
    "torch.backends.cuda.mem_efficient_sdp_enabled()",
    "torch.backends.cuda.math_sdp_enabled()",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
)
_OVERRIDDEN: Final = (
    "torch.get_float32_matmul_precision()",
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.backends.cudnn.allow_tf32",
    "torch.backends.fp32_precision",
    "torch.backends.cuda.matmul.fp32_precision",
    "torch.backends.cudnn.fp32_precision",
    "torch.backends.mkldnn.fp32_precision",
)
"""The arithmetic of fp32, which ``--dtype`` sets."""


def read_settings() -> dict[str, str]:
    """Return the current settings of torch as text by name, without those that this version of torch lacks.

    The value is ``unclear`` if torch refuses to read a setting, as for old and new switches that contradict each other.
    """
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (*_KEPT, *_OVERRIDDEN):
            with suppress(AttributeError):
                try:
                    found[name] = f"{_read(name)}"
                except RuntimeError:
                    found[name] = "unclear"
    return found


def _read(name: str) -> object:
    value = attrgetter(name.removeprefix("torch.").removesuffix("()"))(torch)
    return value() if name.endswith("()") else value


def changed_settings(before: Mapping[str, str]) -> tuple[Setting, ...]:
    """Return the settings that have changed since ``before``."""
    now = read_settings()
    return tuple(
        Setting(name=name, value=value, kept=name in _KEPT)
        for name, value in now.items()
        if before.get(name, value) != value
    )


_on_import: dict[str, Setting] = {}


@contextmanager
def noting_imports() -> Iterator[None]:
    """Record the settings that change in this context, in which the user's file is imported."""
    before = read_settings()
    try:
        yield
    finally:
        _on_import.update({setting.name: setting for setting in changed_settings(before)})


def set_on_import() -> tuple[Setting, ...]:
    """Return the settings that the user's file changed when it was imported."""
    return tuple(_on_import.values())


def set_fp32_arithmetic(*, tf32: bool) -> None:
    """Compute matrix products, convolutions and recurrences of fp32 data in TF32, or in fp32 by IEEE 754.

    This uses torch's older switches, which set the newer ones (``fp32_precision``) too. The newer ones alone would
    contradict the older ones in torch 2.11, and compiling and exporting a model would fail. Newer ones that a user's
    file has set are reset first.
    """
    holders: tuple[Any, ...] = (torch.backends, torch.backends.mkldnn, getattr(torch.backends.mkldnn, "conv", None))
    for holder in holders:
        if getattr(holder, "fp32_precision", "none") != "none":
            holder.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32


def seed_all(seed: int) -> None:
    """Seed the random number generators of torch, Python and numpy."""
    seed_torch(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # the generator that users' input functions use


def seed_torch(seed: int) -> None:
    """Seed the random number generators of torch on the host and, if there is one, on the accelerator."""
    # For each kind of accelerator that has not started, torch.manual_seed formats the stack of its caller. It keeps the
    # lines of all those files, which are memory of a trial.
    seed_generators = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    seed_generators(seed)
