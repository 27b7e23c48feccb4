"""Read option values from text (command line) or Python values; ValueError if a value is invalid."""

import re
from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite
from numbers import Real
from operator import index
from typing import Final

from tputfind import units
from tputfind.units import echo

LARGEST_WHOLE: Final = 2**31 - 1
LARGEST_SIZE: Final = 2**60
LONGEST_MS: Final = 100 * 3600e3
"""Longest duration, in ms. Waits for a process may last several times as long; the system limits waits to 24 days."""
SHORTEST_MS: Final = 1e-3
_LONGEST: Final = "100h"
_WHOLE: Final = re.compile(r"(-?)([0-9]+)")
_LEADING_ZERO: Final = re.compile("0[0-9]+")
_MOST_DIGITS: Final = 20
_SHOWN: Final = 60
_GROUPED: Final = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
"""A number with thousands separators, such as ``1,000``."""
_NO_LIST: Final = re.compile(",0")
"""A group that starts with 0 makes ``1,024`` a single number; ``224,256`` may be two."""
_THOUSANDS: Final = re.compile("([0-9]{1,6})k", re.IGNORECASE)
_SPAN: Final = re.compile("([0-9]{1,9}) *(?:-|\\.\\.|:| ) *([0-9]{1,9})")
"""Two numbers without a comma between them: all batch sizes from one to the other, or just the two."""
_TIMES: Final = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
"""Suffixes of a rate. A lower-case m is ambiguous (a thousandth, or a minute), so it is refused."""
_PER_S: Final = re.compile(r"(?:/\s*s(?:ec)?|[rq]ps)$", re.IGNORECASE)
_MEANT: Final = {
    **dict.fromkeys(("half", "float16"), "fp16"),
    **dict.fromkeys(("float", "float32", "single"), "fp32"),
    "bfloat16": "bf16",
    "channels-last": "nhwc",
    **dict.fromkeys(("channels-first", "contiguous-format"), "nchw"),
    "inductor": "compile",
    **dict.fromkeys(("inference", "eval"), "infer"),
    "gpu": "cuda",
    "d2h": "both",
    "binary": "bisect",
    "help": "--help",
    **{f"--{form}": f"--save FILE.{form}" for form in ("json", "csv", "md", "html")},
    "--plot": "--save FILE",
}
"""Names in other tools and in earlier versions, mapped to ours; for an option, with the value that it takes."""
CALLED: Final = {
    "--accumulate": "grad-accum grad-accumulation gradient-accumulation-steps accumulate-grad-batches accum-steps "
    "accumulation",
    "--allocator expandable": "expandable-segments",
    "--arrivals": "arrival trace traces log logs",
    "--batch-size": "b bs bsz batch batchsize batch-sizes",
    "--batch-sizes": "b bs bsz batch batchsize batch-size mini-batch",
    "--batches": "iters iterations num-iters n-iters steps num-steps runs num-runs loops repeat repeats number",
    "--budget": "timeout time time-limit max-time deadline",
    "--burstiness": "cv burst bursts",
    "--device": "gpu n-gpus num-gpus gpu-id device-id devices",
    "--device all": "all-gpus all-devices multi-gpu",
    "--device cpu": "cpu no-cuda",
    "--device cuda": "cuda",
    "--devices": "gpus n-gpus num-gpus replicas instances servers workers device",
    "--dtype": "precision type data-type torch-dtype",
    "--dtype amp-fp16": "amp autocast mixed-precision",
    "--dtype bf16": "bf16 bfloat16",
    "--dtype fp16": "fp16 half float16",
    "--dtype fp32": "fp32 float32",
    "--dtype tf32": "tf32 allow-tf32",
    "--effective-batch": "effective-batch-size global-batch-size global-batch total-batch-size",
    "--gpus": "nproc-per-node nproc world-size",
    "--grad-checkpoint": "checkpointing gradient-checkpointing activation-checkpointing",
    "--image-size": "size img-size imgsz resolution res height width",
    "--input-size": "shape input-shape",
    "--layout": "memory-format",
    "--layout nhwc": "channels-last nhwc",
    "--max-batch": "max-bs max-batch-size",
    "--max-batch-size": "max-bs max-batch",
    "--max-seconds": "duration min-run-time measure-time",
    "--memory": "vram mem gpu-memory memory-limit capacity",
    "--memory-limit": "vram mem gpu-memory memory limit max-memory",
    "--mode": "backend",
    "--mode compile": "compile torch-compile inductor",
    "--mode cudagraph": "cudagraphs cuda-graph cuda-graphs graph graphs",
    "--mode eager": "eager",
    "--no-save": "dry-run",
    "--optimizer": "opt optim optimiser",
    "--output": "output-dir out-dir save-dir results",
    "--parallel ddp": "ddp data-parallel distributed strategy",
    "--parallel fsdp": "fsdp sharded",
    "--percentile": "p quantile tail",
    "--phase infer": "infer inference eval",
    "--phase train": "train training backward",
    "--price": "cost",
    "--processes": "repeats trials",
    "--quiet": "q silent no-progress",
    "--rate": "qps rps throughput request-rate requests load",
    "--save": "o out outfile output-file export format to",
    "--sequence-length": "seq-len seqlen seq-length max-length max-seq-len context context-length tokens",
    "--slo": "sla latency target deadline max-latency latency-target target-latency",
    "--soak": "stress",
    "--traceback": "debug verbose v",
    "--trust-model-file": "trust trust-remote-code unsafe",
    "--warmup": "warm-up nwarmup num-warmup n-warmup warmups warmup-iters warmup-steps warmup-runs",
    "--weights DEFAULT": "pretrained",
    "--weights": "checkpoint ckpt state-dict weight load",
    "OMP_NUM_THREADS before the command": "threads num-threads n-threads intra-op-threads omp",
    "tputfind models": "list list-models models ls",
}
"""Options, and their names in other tools; the first match that the command has is suggested."""
_LIKENESS: Final = 0.7
"""Minimum similarity of two option names; at difflib's default of 0.6, --bs would suggest --slo."""
Reader = Callable[[object], object]


def fields_of(
    options: Mapping[str, object], readers: Mapping[str, tuple[str, Reader]]
) -> tuple[dict[str, object], list[str]]:
    """Return the values by field, and a message for every invalid option; skip options that are None.

    ``readers`` have the field of each option, and the function that reads its value.
    """
    fields: dict[str, object] = {}
    problems: list[str] = []
    for name, value in options.items():
        if name not in readers:
            problems.append(_unknown_option(name, readers))
        elif value is not None:
            field, read = readers[name]
            try:
                fields[field] = read(option_word(value))
            except (ValueError, TypeError) as error:
                problems.append(f"--{name.replace('_', '-')}: {error}")
    return fields, problems


def _unknown_option(name: str, known: Iterable[str]) -> str:
    near = [option for option in nearest(f"--{name}", [f"--{one}" for one in known]) if option.startswith("--")]
    names = " or ".join(option.partition(" ")[0].lstrip("-").replace("-", "_") for option in near)
    return f"there is no option {echo(name)}" + (f": did you mean {names}?" if near else "")


def option_word(value: object) -> object:
    """Return a dtype, device, memory format or optimizer of torch as an option takes it, such as fp16 or cuda:1."""
    if isinstance(value, type) and value.__module__.startswith("torch.optim"):
        return value.__name__.lower()
    kind = type(value)
    if kind.__module__ != "torch" or kind.__name__ not in ("dtype", "device", "memory_format"):
        return value
    word = str(value).removeprefix("torch.").replace("_", "-")
    return _MEANT.get(word, word)


def device_text(value: object) -> object:
    """Return devices as an option takes them: ``["cuda:0", torch.device("cuda", 1)]`` is cuda:0,cuda:1."""
    return ",".join(f"{option_word(one)}" for one in value) if isinstance(value, (list, tuple)) else option_word(value)


def text(value: object) -> str:
    """Return the value if it is non-empty printable text."""
    if not isinstance(value, str) or not value.isprintable() or not value:
        raise ValueError(f"{echo(value)} is not a name or a file")
    return value


def nearest(word: str, choices: Iterable[str]) -> list[str]:
    """Return the choices that a word may stand for.

    A known alias comes first, then up to three choices that contain the word (those that begin with it, if any), then
    the most similar one.
    """
    from difflib import get_close_matches

    word, spelled, alike = _plain(word[:_SHOWN]), {_plain(choice): choice for choice in choices}, 0.6
    meant = _MEANT.get(word, "")
    if meant.partition(" ")[0] in spelled:
        return [meant]
    if word.startswith("-") and any(plain.startswith("--") for plain in spelled):
        called = [option for option, names in CALLED.items() if word.lstrip("-") in names.split()]
        own = [option for option in called if option.partition(" ")[0] in spelled or not option.startswith("-")]
        spelled = {plain.lstrip("-"): choice for plain, choice in spelled.items()}
        word, alike = word.lstrip("-"), _LIKENESS
        if own:
            return own[:1]
    longer = [plain for plain in spelled if word in plain] if len(word) > 2 else []
    begun = [plain for plain in longer if plain.startswith(word)]
    return [spelled[plain] for plain in (begun or longer)[:3] or get_close_matches(word, spelled, n=1, cutoff=alike)]


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", "-")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return the end of a message about an invalid word: a question that names the nearest choices, or nothing."""
    near = nearest(word, choices)
    return f": did you mean {' or '.join(near)}?" if near else ""


def whole(value: object, least: int = 1, most: int = LARGEST_WHOLE) -> int:
    """Return a whole number from ``least`` to ``most``, from text such as ``1000`` or ``1,000`` or from a number."""
    if isinstance(value, str):
        match = _WHOLE.fullmatch(_remove_separators(value) if _NO_LIST.search(value) else value.strip())
        number = None if match is None else int(match[1] + (match[2].lstrip("0") or "0")[:_MOST_DIGITS])
        shown = value.strip() if len(value) <= _MOST_DIGITS else echo(value)
    else:
        number, shown = _index_of(value), echo(value)
    if number is None:
        raise ValueError(f"{echo(value)} is not a whole number{_whole_meant(value)}")
    if not least <= number <= most:
        raise ValueError(f"{shown} is not between {least} and {most}")
    return number


def _whole_meant(value: object) -> str:
    """Return the question for an ambiguous number: 4k may be 4000 or 4096."""
    text = value.strip() if isinstance(value, str) else ""
    if len(text) <= _MOST_DIGITS and _GROUPED.fullmatch(text) and "." not in text:
        return f": did you mean {text.replace(',', '')}?"
    match = _THOUSANDS.fullmatch(text)
    return f": did you mean {1000 * int(match[1])} or {1024 * int(match[1])}?" if match else ""


def _remove_separators(text: str) -> str:
    text = text.strip()
    return text.replace(",", "") if _GROUPED.fullmatch(text) else text


def _index_of(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]  # objects without __index__ raise TypeError
    except TypeError:
        return None


def count_from_zero(value: object) -> int:
    return whole(value, least=0)


def wholes(value: object, separator: str, most: int = 1000) -> tuple[int, ...]:
    """Return whole numbers from 1 on, at most ``most`` of them, from text with a separator or from a sequence."""
    parts = value.strip().lstrip("[(").rstrip(")]").split(separator) if isinstance(value, str) else value
    if isinstance(parts, int):
        parts = (parts,)
    if not isinstance(parts, (list, tuple, range)) or not parts:
        raise ValueError(f"{echo(value)} is not a list of whole numbers")
    ends = _SPAN.fullmatch(parts[0]) if separator == "," and isinstance(parts[0], str) else None
    if ends:
        raise ValueError(f"{echo(value)} has no commas: put them between numbers, such as {ends[1]},{ends[2]}")
    if len(parts) > most:
        raise ValueError(f"{len(parts)} numbers are more than {most}")
    for part in filter(lambda part: isinstance(part, str), parts):
        if "," in part:
            raise ValueError(f"{echo(part)} has commas: put {separator} between numbers, such as 3{separator}224")
        if separator == "," and _LEADING_ZERO.fullmatch(part.strip()):
            raise ValueError(f"{echo(part)} begins with 0: commas set numbers apart here, so write 1000 for 1,000")
    return tuple(whole(part) for part in parts)


def size(value: object) -> int:
    """Return a number of bytes, from 1 to 1 EiB."""
    count = units.parse_bytes(value) if isinstance(value, str) else whole(value, most=LARGEST_SIZE)
    if count < 1:
        raise ValueError(f"{echo(value)} is not a size of memory")
    if count > LARGEST_SIZE:
        raise ValueError(f"{echo(value)} is more than 1 EiB")
    return count


def share(value: object) -> float:
    """Return a fraction between 0 and 1, from text such as ``5%`` or from a number."""
    percent = isinstance(value, str) and value.strip().endswith("%")
    share = number(str(value).strip()[:-1]) / 100 if percent else number(value)
    if not 0 < share < 1:
        meant = f": did you mean {share:g}%?" if isinstance(value, str) and not percent and 1 <= share < 100 else ""
        raise ValueError(f"{echo(value)} is not between 0 and 100 %{meant}")
    return share


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (Real, str)):
        raise ValueError(f"{echo(value)} is not a number")  # noqa: TRY004  # one kind for all wrong values
    try:
        number = float(value)
    except (ValueError, TypeError):
        raise ValueError(f"{echo(value)} is not a number") from None
    except OverflowError:
        number = inf
    if not isfinite(number):
        raise ValueError(f"{echo(value)} is not a finite number")
    return number


def is_number(text: str) -> bool:
    """Whether text is a finite number without a unit."""
    try:
        number(text)
    except ValueError:
        return False
    return True


def rate(value: object) -> float:
    """Return a rate per second, from a number or text such as ``5000``, ``5,000``, ``5k``, ``5000/s``, ``5krps``."""
    if not isinstance(value, str):
        return number(value)
    text = _PER_S.sub("", value.strip()).rstrip()
    times = _TIMES.get(text[-1:])
    text = _remove_separators(text if times is None else text[:-1])
    if not is_number(text):
        raise ValueError(f"{echo(value)} is not a finite number per second such as 5000, 5k or 1M")
    return float(text) * (times or 1)


def percentile(value: object) -> float:
    """Return a percentile above 0, from text such as ``99``, ``99%`` or ``p99`` or a number; fractions are refused."""
    bare = value
    if isinstance(value, str):
        bare = value.strip().removesuffix("%").lower().removeprefix("p")
        if not is_number(bare):
            raise ValueError(f"{echo(value)} is not a number such as 99")
    read = number(bare)
    if 0 < read < 1:
        raise ValueError(f"{echo(value)} is a share, and this is in percent: did you mean {100 * read:g}?")
    if read <= 0:
        raise ValueError(f"{echo(value)} is not between 0 and 100")
    return read


def number_within(least: float, most: float, reader: Callable[[object], float] = number) -> Callable[[object], float]:
    """Return a reader of numbers from ``least`` to ``most``, both included."""

    def read(value: object) -> float:
        read = reader(value)
        if not least <= read <= most:
            raise ValueError(f"{echo(value)} is not from {least:g} to {most:g}")
        return read

    return read


def positive_seconds(value: object) -> float:
    """Return seconds, from 1 us to the longest duration."""
    number_s = number(value)
    if number_s < 0:
        raise ValueError(f"{echo(value)} is below zero")
    if number_s > LONGEST_MS / 1000:
        raise ValueError(f"{echo(value)} is more than {LONGEST_MS / 1000:.0f} seconds, which are {_LONGEST}")
    _check_positive(value, number_s * 1000)
    return number_s


def ms(value: object) -> float:
    """Return milliseconds from text such as ``50ms`` or ``0``, or from a number, from 0 to the longest duration."""
    span = units.parse_ms(value) if isinstance(value, str) and value.strip() != "0" else number(value)
    if span < 0:
        raise ValueError(f"{echo(value)} is below zero")
    if span > LONGEST_MS:
        raise ValueError(f"{echo(value)} is more than {_LONGEST}")
    return span


def positive_ms(value: object) -> float:
    """Return milliseconds from text such as ``50ms`` or from a number, from 1 us to the longest duration."""
    if isinstance(value, str):
        units.parse_ms(value)  # a 0 without a unit is not a duration here
    elif number(value) <= 0:
        raise ValueError(f"{echo(value)} is not above zero")
    span = ms(value)
    _check_positive(value, span)
    return span


def _check_positive(value: object, span_ms: float) -> None:
    if span_ms <= 0:
        raise ValueError(f"{echo(value)} is not above zero")
    if span_ms < SHORTEST_MS:
        raise ValueError(f"{echo(value)} is less than 1us")


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{echo(value)} is neither True nor False")  # noqa: TRY004  # one kind for all wrong values
    return value


def one_of(choices: tuple[str, ...]) -> Callable[[object], str]:
    """Return a reader of one of several words, in upper or lower case."""

    def read(value: object) -> str:
        word = value.strip().lower() if isinstance(value, str) else None
        if word not in choices:
            raise none_of(value, choices)
        return word

    return read


def none_of(value: object, choices: tuple[str, ...]) -> ValueError:
    """Return the error that a value is not one of the choices; its message suggests the nearest."""
    near = did_you_mean(value, choices) if isinstance(value, str) else ""
    return ValueError(f"{echo(value)} is not one of {', '.join(choices)}{near}")
