"""Spec: what is asked for, checked whole before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from tputfind import units
from tputfind.errors import BadRequest

DTYPES: Final = ("fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16")
LAYOUTS: Final = ("nchw", "nhwc")
SEARCHES: Final = ("bisect", "linear")
LARGEST_BATCH: Final = 2**31 - 1


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One model in one configuration, and how to measure it. Build it with ``read_spec``, which checks it.

    Shapes are those of one sample, without the batch axis. ``None`` means: not asked for.
    """

    model: str
    device: str = "auto"
    dtype: str = "fp32"
    layout: str = "nchw"
    mode: Literal["eager"] = "eager"
    phase: Literal["infer"] = "infer"
    image_size: int | None = None
    input_size: tuple[int, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    max_batch: int | None = None
    granularity: int = 1
    memory_limit_bytes: int | None = None
    max_latency_ms: float | Literal["auto"] | None = "auto"
    batches: int = 100
    warmup: int = 10
    latency_batches: int = 100
    max_seconds: float = 60.0
    slo_ms: float | None = None
    percentile: float = 99.0
    search: str = "bisect"
    seed: int = 0


def read_spec(model: str, options: Mapping[str, object]) -> Spec:
    """Return the Spec that the options describe.

    Args:
        model: a torchvision name, ``file.py:factory`` or ``package.module:factory``.
        options: values by option name, with underscores (``batch_sizes``, ``memory_limit``), as a command line writes
            them (text) or as Python code would (numbers: bytes, milliseconds, seconds; sequences of whole numbers).
            None means: not given.

    Raises:
        BadRequest: one or more options are wrong; its message names them all.
    """
    fields: dict[str, object] = {"model": model}
    problems: list[str] = []
    if not isinstance(model, str) or not model:
        problems.append("MODEL must be a name, file.py:factory or package.module:factory")
    elif not model.isprintable():
        problems.append(f"MODEL {model!r} has characters that cannot be shown")
    for name, value in options.items():
        if name not in _READERS:
            problems.append(f"there is no option {name!r}")
        elif value is not None:
            field, read = _READERS[name]
            try:
                fields[field] = read(value)
            except (ValueError, TypeError) as error:
                problems.append(f"--{name.replace('_', '-')}: {error}")
    if not problems:
        spec = Spec(**fields)  # type: ignore[arg-type]  # each reader returns its field's type
        problems = _conflicts(spec)
    if problems:
        raise BadRequest("; ".join(problems), "see tputfind --help")
    return spec


def _conflicts(spec: Spec) -> list[str]:
    """Return what is wrong between options that are each right by themselves."""
    rules = [
        (
            spec.max_batch is not None and spec.max_batch < spec.granularity,
            f"--max-batch {spec.max_batch} is below --granularity {spec.granularity}: no batch size is left to try",
        ),
        (
            spec.image_size is not None and spec.input_size is not None,
            "--image-size and --input-size say the same thing: give one",
        ),
        (
            spec.batch_sizes is not None and spec.max_batch is not None,
            "--batch-sizes names every batch size to time, so --max-batch has nothing to limit: give one",
        ),
        (
            spec.layout == "nhwc" and spec.input_size is not None and len(spec.input_size) not in (3, 4),
            "--layout nhwc needs samples of 3 or 4 dimensions (CxHxW or CxDxHxW)",
        ),
    ]
    return [text for broken, text in rules if broken]


def _whole(value: object, least: int = 1, most: int = LARGEST_BATCH) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.lstrip("-").isdigit()):
        raise ValueError(f"{value!r} is not a whole number")
    if not least <= int(text) <= most:
        raise ValueError(f"{text} is not between {least} and {most}")
    return int(text)


def _count_from_zero(value: object) -> int:
    return _whole(value, least=0)


def _wholes(value: object, separator: str) -> tuple[int, ...]:
    parts = value.split(separator) if isinstance(value, str) else value
    if isinstance(parts, int):
        parts = (parts,)
    if not isinstance(parts, (list, tuple, range)) or not parts:
        raise ValueError(f"{value!r} is not a list of whole numbers")
    return tuple(_whole(part) for part in parts)


def _batch_sizes(value: object) -> tuple[int, ...]:
    return tuple(sorted(set(_wholes(value, ","))))


def _shape(value: object) -> tuple[int, ...]:
    return _wholes(value, "x")


def _bytes(value: object) -> int:
    count = units.parse_bytes(value) if isinstance(value, str) else _whole(value, most=2**63)
    if count < 1:
        raise ValueError(f"{value!r} is no memory at all")
    return count


def _positive_ms(value: object) -> float:
    span = units.parse_ms(value) if isinstance(value, str) else _number(value)
    if span <= 0:
        raise ValueError(f"{value!r} is not above zero")
    return span


def _max_latency_ms(value: object) -> float | None:
    return None if value == "none" else _positive_ms(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a number")  # noqa: TRY004  # one kind for all wrong values
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a number") from None
    if not abs(number) < float("inf"):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def _seconds(value: object) -> float:
    number = _number(value)
    if number <= 0:
        raise ValueError(f"{value!r} is not above zero")
    return number


def _percentile(value: object) -> float:
    number = _number(value)
    if not 0 < number < 100:
        raise ValueError(f"{value!r} is not between 0 and 100")
    return number


def _one_of(choices: tuple[str, ...]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return str(value)

    return read


def _device(value: object) -> str:
    kind, _, index = str(value).partition(":")
    if str(value) in ("auto", "cpu", "cuda") or (kind == "cuda" and index.isascii() and index.isdigit()):
        return str(value)
    raise ValueError(f"{value!r} is none of auto, cpu, cuda, cuda:N")


_READERS: Final[dict[str, tuple[str, Callable[[object], object]]]] = {
    "device": ("device", _device),
    "dtype": ("dtype", _one_of(DTYPES)),
    "layout": ("layout", _one_of(LAYOUTS)),
    "image_size": ("image_size", _whole),
    "input_size": ("input_size", _shape),
    "batch_sizes": ("batch_sizes", _batch_sizes),
    "max_batch": ("max_batch", _whole),
    "granularity": ("granularity", _whole),
    "memory_limit": ("memory_limit_bytes", _bytes),
    "max_latency": ("max_latency_ms", _max_latency_ms),
    "batches": ("batches", _whole),
    "warmup": ("warmup", _count_from_zero),
    "latency_batches": ("latency_batches", _whole),
    "max_seconds": ("max_seconds", _seconds),
    "slo": ("slo_ms", _positive_ms),
    "percentile": ("percentile", _percentile),
    "search": ("search", _one_of(SEARCHES)),
    "seed": ("seed", _count_from_zero),
}
