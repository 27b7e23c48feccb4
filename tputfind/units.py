"""Sizes, durations and counts: read what a user writes, print what a user reads."""

import math
import re
import reprlib
from collections.abc import Iterable, Mapping

MIB = 2**20
GIB = 2**30

ROUGH = 0.5
"""Of a figure that is known no better than to this share, only its size is known."""

_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KIB": 2**10, "MIB": MIB, "GIB": GIB, "TIB": 2**40, "PIB": 2**50, "EIB": 2**60}
_MS = {"US": 1e-3, "MS": 1.0, "S": 1e3, "MIN": 60e3, "H": 3600e3}
_SMALL_KWH = 0.001
"""Less energy is printed in Wh."""
_RUN = 3
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:\s*([A-Za-z\u00b5\u03bc]+))?")
_MEANT_BYTES = {"": ("GiB",)} | {sign: (f"{sign}iB", f"{sign}B") for sign in "KMGT"}
"""What a wrong unit may stand for. G is both to some: 24GiB are 7 % more than 24GB."""
_MEANT_MS = {"": ("ms", "s"), "M": ("min", "ms"), "\u039cS": ("us",)}
_SPELLED = {"us": "USEC MICROSECOND", "ms": "MSEC MILLISECOND", "s": "SEC SECOND", "min": "MINUTE", "h": "HR HOUR"}
_MEANT_MS |= {
    f"{word}{many}": (unit,) for unit, words in _SPELLED.items() for word in words.split() for many in ("", "S")
}
_MEANT_MS |= {"MINS": ("min",)}


_SHOWN = 60
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxother, _SHORT.maxlong = 2, _SHOWN, _SHOWN


def echoed(value: object) -> str:
    """Return a value as an error shows it: on one line, and cut where it is long."""
    if isinstance(value, str):
        return repr(shortened(value, _SHOWN))
    try:
        shown = _SHORT.repr(value)
    except ValueError:  # of a number with thousands of digits
        shown = f"a very long {type(value).__name__}"
    return " ".join("".join(sign if sign.isprintable() else " " for sign in shown).split())


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return text with every sign that a terminal could act on written as an escape, such as ``\\x1b``.

    White space becomes blanks, but for the ends of ``lines`` where these are wanted.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or (lines and sign == "\n") else _shown(sign) for sign in text)


def _shown(sign: str) -> str:
    return " " if sign in "\t\n\r\v\f" else sign.encode("unicode_escape", "backslashreplace").decode()


def parse_bytes(text: str) -> int:
    """Return the bytes that ``8GiB``, ``512 MiB`` or ``24GB`` name; ValueError where there is no number or no unit."""
    return int(_quantity(text, _BYTES, _MEANT_BYTES, "a size such as 8GiB or 512MiB"))


def parse_ms(text: str) -> float:
    """Return the milliseconds that ``50ms``, ``1.5s`` or ``2min`` name; ValueError where there is no number or unit."""
    return _quantity(text, _MS, _MEANT_MS, "a duration such as 50ms or 1s")


def has_unit(text: str) -> bool:
    """Whether text is a number with letters after it, whatever these say."""
    number, unit = _parts(text)
    return bool(number and unit)


def _quantity(text: str, units: Mapping[str, float], meant: Mapping[str, tuple[str, ...]], wanted: str) -> float:
    number, unit = _parts(text)
    if unit not in units:
        near = meant.get(unit, ()) if 0 < len(number) <= _SHOWN else ()
        question = f": did you mean {' or '.join(f'{number}{right}' for right in near)}?" if near else ""
        raise ValueError(f"{echoed(text)} is not {wanted}{question}")
    quantity = float(number) * units[unit]
    if not math.isfinite(quantity):
        raise ValueError(f"{echoed(text)} is too large for {wanted}")
    return quantity


def _parts(text: str) -> tuple[str, str]:
    """Return the number and the unit in capitals, either empty where there is none."""
    match = _QUANTITY.fullmatch(text.strip())
    return (match[1], (match[2] or "").upper()) if match else ("", "")


def format_bytes(count: int) -> str:
    """Print bytes with a binary unit: ``113.9 GiB``, ``870 MiB``."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def format_seconds(seconds: float) -> str:
    """Print a span that a person waits for: ``8 s``, ``2 min 05 s``, ``1 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_figure(value: float) -> str:
    """Print a measured figure with four significant digits and no exponent: ``12257``, ``4.118``, ``0.05210``.

    Digits before the decimal point are all kept. An infinite figure is ``inf``.
    """
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    exponent = int(f"{value:.3e}".partition("e")[2])  # of the rounded value: 999.96 has four digits before the point
    return f"{value:.{max(0, 3 - exponent)}f}"


def format_known(value: float, half_width: float | None) -> str:
    """Print a figure with no more digits than are known: ``10845``, ``5400`` where it is known to within 40 %.

    The half of its interval, a share of it, is taken to two digits, and the figure ends where these do (JCGM 100:2008,
    7.2.6); with four significant digits at the most, as where nothing is known of its interval. Where it is more than
    half the figure, one digit is left, and a sign before it: ``~5000``.
    """
    shown = format_figure(value)
    if not half_width or value <= 0:
        return shown
    rough = half_width > ROUGH
    places = -math.floor(math.log10(value)) if rough else 1 - math.floor(math.log10(half_width * value))
    sign = "~" if rough else ""
    if places <= 0:
        return f"{sign}{round(value, places):.0f}"
    return f"{sign}{value:.{min(places, len(shown.partition('.')[2]))}f}"


def format_about(value: float) -> str:
    """Print a figure whose interval is unknown with three significant digits and a sign before it: ``~5380``."""
    places = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return f"~{round(value, places):.{max(0, places)}f}"


def format_width(half_width: float) -> str:
    """Print half an interval, a share of the figure, in percent without the sign, as everywhere: ``0.2``, ``335.5``."""
    return f"{half_width:.1%}".removesuffix("%")


def format_share(share: float) -> str:
    """Print a share that is not below 0 as a percentage with two digits: ``41 %``, ``4.6 %``, ``0.52 %``."""
    percent = 100 * share
    if percent < 0.01:
        return "less than 0.01 %"
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def format_share_up(share: float) -> str:
    """Print a share rounded up, as a bound that it keeps: ``0.4 %``, ``30 %``."""
    percent = 100 * share
    return f"{math.ceil(percent)} %" if percent > 9.9 else f"{max(1, math.ceil(10 * percent)) / 10} %"


def format_watts(power_w: float) -> str:
    """Print watts with three digits: ``612 W``, ``4.52 kW``, ``1240 kW``."""
    shown_w = float(f"{power_w:.3g}")
    return f"{_three_digits(shown_w / 1000)} kW" if shown_w >= 1000 else f"{_three_digits(shown_w)} W"


def format_kwh(energy_kwh: float) -> str:
    """Print an energy with three digits: ``0.0139 kWh``, ``0.280 Wh``."""
    is_small = energy_kwh < _SMALL_KWH
    return f"{_three_digits(1000 * energy_kwh)} Wh" if is_small else f"{_three_digits(energy_kwh)} kWh"


def _three_digits(value: float) -> str:
    rounded = float(f"{value:.3g}")
    return f"{rounded:.0f}" if rounded >= 100 else f"{rounded:#.3g}"


def format_span(least: str, most: str) -> str:
    """Print two bounds with units: ``1.2 to 1.4 kW``, ``980 W to 1.1 kW``; a single figure if both print alike."""
    if least == most:
        return most
    number, _, unit = least.partition(" ")
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def format_ratio(ratio: float) -> str:
    """Print how many times as much: ``180 times``, ``14.2 times``, ``1.46 times``."""
    return f"{ratio:.0f} times" if ratio >= 100 else f"{ratio:.3g} times"


def shortened(text: str, most: int = 60) -> str:
    """Return what somebody else wrote as a message quotes it: its two ends where it is longer than ``most``."""
    return text if len(text) <= most + len("...") else f"{text[: most // 2]}...{text[-(most // 2) :]}"


def format_sizes(sizes: Iterable[int]) -> str:
    """Print batch sizes, runs of three or more by their ends: ``1, 2, 8-32``."""
    runs: list[list[int]] = []
    for size in sorted(sizes):
        if runs and size == runs[-1][-1] + 1:
            runs[-1].append(size)
        else:
            runs.append([size])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) >= _RUN else ", ".join(map(str, run)) for run in runs)
