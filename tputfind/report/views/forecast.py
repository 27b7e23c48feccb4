"""Forecasts as a document, which marks every figure as a forecast."""

from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec

from tputfind.record.forecast import CardForecast, Forecasts, MemorySplit, VariantForecast
from tputfind.record.identity import optimizer_name
from tputfind.record.types import LARGEST_BATCH
from tputfind.report.document import Cell, Column, Document, Sentences, Table, count, data_table, sections_of, table
from tputfind.units import GIB, format_bytes, format_share

_FROM_TRIALS: Final = (
    "90 % of forecasts were this close on a device of this kind; on another, libraries may use other kernels"
)
_ON_FAKE: Final = {
    "infer": (
        "17 of 17 forecasts were this close to an H200's result; memory that libraries take is assumed to be an H200's"
    ),
    "train": (
        "29 of 29 forecasts were within 1.5 % of an H200's result, half within 0.4 %, and 15 too high; "
        "gradients are those at the peak, and the overhead is an H200's"
    ),
}
_SPLIT: Final = ("weights", "gradients", "optimizer", "activations", "overhead")
_OF_TRAINING: Final = ("gradients", "optimizer")
_WORDS: Final = {0: "none fits", LARGEST_BATCH: "no end in sight"}


def document(found: Forecasts) -> Document:
    """Return the largest batch for each memory size, the split of the memory, and the basis of the forecast."""
    spec = found.spec
    optimizer = optimizer_name(spec, own=found.own_optimizers)
    training = () if optimizer is None else ("train", optimizer)
    words = (spec.model, *training, spec.dtype, spec.layout)
    checkpoint = "; activations computed twice" if spec.grad_checkpoint else ""
    times = f"; {spec.accumulate} batches a step" if spec.accumulate > 1 else ""
    columns = map(Column, ("device memory", "largest batch, forecast", "give or take", "start with"))
    error = _FROM_TRIALS if found.device_name is not None else _ON_FAKE[spec.phase]
    return Document(
        title=f"{' '.join(words)}{checkpoint}{times}: forecast, not measured",
        sections=(
            *sections_of("the table", lambda: [table(columns, (_row(found, card) for card in found.cards))]),
            *sections_of("what takes the memory", lambda: _splits(found)),
            *sections_of("other ways of training", lambda: _variants(found)),
            Sentences((f"from {_source(found)}, batch {', '.join(map(str, found.tried))}", error)),
        ),
        data=partial(_data, found),
        source=found,
    )


def _row(found: Forecasts, card: CardForecast) -> tuple[Cell, ...]:
    memory = Cell(format_bytes(card.memory_bytes), card.memory_bytes), _batch(card.largest_batch)
    if card.largest_batch in _WORDS:
        return (*memory, Cell(), Cell())
    step = found.spec.granularity
    lower_end = max(1, int((1 - card.error) * card.largest_batch / step)) * step
    return (*memory, Cell(format_share(card.error), card.error), count(lower_end))


def _batch(largest_batch: int) -> Cell:
    return Cell(_WORDS[largest_batch]) if largest_batch in _WORDS else count(largest_batch)


def _splits(found: Forecasts) -> Iterator[Table]:
    splits = [
        (max(found.spec.granularity, card.largest_batch), card.split) for card in found.cards if card.split is not None
    ]
    if splits:
        kinds = [kind for kind in _SPLIT if found.spec.phase == "train" or kind not in _OF_TRAINING]
        rows = [(count(size), *(_memory(split, kind) for kind in kinds)) for size, split in splits]
        yield table(map(Column, ("batch", *kinds)), rows)


def _memory(split: MemorySplit, kind: str) -> Cell:
    size = getattr(split, f"{kind}_bytes")
    return Cell(format_bytes(size), size)


def _variants(found: Forecasts) -> Iterator[Table]:
    if found.variants:
        memories = [Column(format_bytes(card.memory_bytes)) for card in found.cards]
        rows = [(Cell(_options(found, variant)), *map(_batch, variant.largest_batches)) for variant in found.variants]
        yield table([Column("largest batch with", "text"), *memories], rows)


def _options(found: Forecasts, variant: VariantForecast) -> str:
    checkpoint = ["--grad-checkpoint"] if variant.grad_checkpoint != found.spec.grad_checkpoint else []
    return " ".join(([f"--dtype {variant.dtype}"] if variant.dtype != found.spec.dtype else []) + checkpoint)


def _data(found: Forecasts) -> Table:
    lines = [_line(found, card) for card in found.cards]
    for variant in found.variants:
        for card, largest_batch in zip(found.cards, variant.largest_batches, strict=True):
            changed = msgspec.structs.replace(card, largest_batch=largest_batch, split=None)
            how = {"dtype": variant.dtype, "grad_checkpoint": variant.grad_checkpoint}
            lines.append(_line(found, changed) | how)
    return data_table(tuple(next(iter(lines), ())), lines)


def _line(found: Forecasts, card: CardForecast) -> dict[str, object]:
    is_bounded = card.largest_batch < LARGEST_BATCH
    split = {
        f"{kind}_gib": getattr(card.split, f"{kind}_bytes") / GIB if card.split is not None else None for kind in _SPLIT
    }
    return {
        "model": found.spec.model,
        "dtype": found.spec.dtype,
        "layout": found.spec.layout,
        "memory_gib": card.memory_bytes / GIB,
        "largest_batch_forecast": card.largest_batch if is_bounded else None,
        "error_percent": 100 * card.error if is_bounded else None,
        "forecast_from": _source(found),
        "batches_tried": " ".join(map(str, found.tried)),
        "phase": found.spec.phase,
        "optimizer": optimizer_name(found.spec, own=found.own_optimizers),
        "grad_checkpoint": found.spec.grad_checkpoint,
        **split,
    }


def _source(found: Forecasts) -> str:
    return "fake tensors" if found.device_name is None else f"trials on {found.device_name}"
