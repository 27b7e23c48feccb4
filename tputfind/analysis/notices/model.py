"""Notices about the model itself: what stayed unchanged, what was changed, and side effects of its steps."""

from collections.abc import Iterator, Sequence
from typing import Final

from tputfind.analysis.notices.words import batches, sizes
from tputfind.record.record import Notice, Record, Row, Setting, Sight, Trial
from tputfind.record.types import CONVERTED, QUANTIZED

_NAMED: Final = 2
"""Maximum settings that a notice names; the record has all."""
_KINDS: Final[dict[Sight, str]] = {"drained": "output_drained", "grows": "memory_grows"}
_SEEN: Final[dict[Sight, tuple[str, str, str]]] = {
    "drained": (
        "outputs are lazy at {}",
        "a call alone computes nothing of a generator, a future or a coroutine",
        "each step takes all of it",
    ),
    "inputs_restored": (
        "the model writes into its inputs at {}",
        "a further step would see other values",
        "they were restored between steps, untimed",
    ),
    "inputs_written": (
        "the model writes into its inputs at {}",
        "each step sees what the one before left",
        "have it write into a copy",
    ),
    "cached": (
        "inputs that were seen before are over twice as fast at {}",
        "the model keeps a cache",
        "switch it off and measure again: these times are of cached inputs",
    ),
    "grows": (
        "each step leaves more memory in use at {}",
        "the model keeps what earlier steps made",
        "let it drop that: a long run may get slower, or run out of memory",
    ),
    "recompiled": (
        "torch.compile compiled anew while {} ran",
        "a guard of the model's own compilation failed",
        "TORCH_LOGS=recompiles says which",
    ),
    "fell_back": (
        "torch gave up compiling, and ran uncompiled, at {}",
        "it reached its limit of recompilations",
        "TORCH_LOGS=recompiles says why",
    ),
}
"""The observation, its cause and the advice, by sight. The notice's kind is the sight, or another in ``_KINDS``."""


def model_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Yield notices of settings, unconverted parameters, side effects of steps, and stand-ins in training."""
    yield from _settings_notices(record)
    yield from _dtype_notices(record, timed)
    for sight, (seen, cause, advice) in _SEEN.items():
        rows = [row for row in timed if sight in row.seen]
        if rows:
            kind, named = _KINDS.get(sight, sight), seen.format(batches(rows))
            yield Notice(kind=kind, seen=named, cause=cause, advice=advice, batch_sizes=sizes(rows))
    yield from _repeat_notices(record, timed)
    yield from _training_notices(record, timed)


def _repeat_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Yield the notice of batches that repeat the samples of a smaller batch from the user's input function."""
    taken: tuple[Trial | Row, ...] = (*record.trials, *timed)
    if any("inputs_repeated" in one.seen for one in taken) and record.spec.own_code:
        yield Notice(
            kind="inputs_repeated",
            seen=f"batches above {record.spec.few_samples} repeat {record.spec.few_samples} samples",
            cause="copies cost less than calls of the input function",
            advice="--fresh-inputs calls it for all",
            batch_sizes=sizes([row for row in timed if "inputs_repeated" in row.seen]),
        )


def _settings_notices(record: Record) -> Iterator[Notice]:
    overridden = [setting for setting in record.settings if not setting.kept]
    kept = [setting for setting in record.settings if setting.kept]
    if overridden:
        as_tf32 = record.spec.dtype == "fp32" and record.environment.compute_capability is not None
        yield Notice(
            kind="settings_overridden",
            seen=f"the file sets {_list_settings(overridden)}",
            cause=f"overridden by --dtype {record.spec.dtype}",
            advice="--dtype tf32 measures it so" if as_tf32 else "leave the line out",
        )
    if kept:
        yield Notice(
            kind="settings_kept",
            seen=f"the file sets {_list_settings(kept)}",
            cause="kept: it was measured so",
            advice="set the same where it is deployed",
        )


def _list_settings(settings: Sequence[Setting]) -> str:
    named = [f"{_short(setting.name)} = {setting.value.removeprefix('torch.')}" for setting in settings[:_NAMED]]
    more = len(settings) - _NAMED
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _short(name: str) -> str:
    return name.removeprefix("torch.").removeprefix("backends.").removesuffix("()")


def _dtype_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Yield the notice of parameters that no conversion touches: complex, fp8, integer and quantised ones."""
    if record.spec.dtype == "own" or not timed:
        return
    converted = CONVERTED.get(record.spec.dtype, "float32")
    found = {name: count for row in timed[:1] for name, count in row.parameter_bytes.items() if name != converted}
    total_bytes = sum(timed[0].parameter_bytes.values())
    named = ", ".join(f"{name} {count / total_bytes:.0%}" for name, count in found.items())
    if found and record.spec.dtype in QUANTIZED:
        yield Notice(
            kind="quantized",
            seen=f"linear layers compute in {record.spec.dtype}; parameters: {named}, the rest {converted}",
            cause="torchao quantises without calibration",
            advice="the accuracy is not judged: compare it",
        )
    elif found:
        yield Notice(
            kind="dtypes",
            seen=f"parameters left as they are, by size: {named}",
            cause=f"--dtype {record.spec.dtype} converts real floating-point numbers alone",
            advice="--dtype own converts nothing",
        )


def _training_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Yield notices of stand-ins in training; the cross-entropy of a classifier's scores is its usual loss."""
    spec = record.spec
    if spec.phase != "train" or not timed:
        return
    loss = any("loss_stand_in" in row.seen for row in timed)
    if spec.source == "hf" and loss:
        yield Notice(
            kind="stand_ins",
            seen="the loss is a stand-in",
            cause="no labels are known for this class of transformers",
            advice="name a class with a head under architectures in config.json",
        )
    optimizer = spec.optimizer is None and not any("own_optimizers" in row.seen for row in timed)
    if not spec.own_code or not (loss or optimizer):
        return
    named = [*["the loss"] * loss, *["the optimizer (sgd)"] * optimizer]
    several = len(named) > 1
    advice = [*["return the loss under the name loss"] * loss, *["--optimizer names another"] * optimizer]
    yield Notice(
        kind="stand_ins",
        seen=f"{' and '.join(named)} {'are stand-ins' if several else 'is a stand-in'}",
        cause=f"the model's own {'are' if several else 'is'} not known",
        advice="; ".join(advice),
    )
