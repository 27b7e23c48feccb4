"""Parse sizes, durations and counts that a user writes, and format them for output."""

import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from decimal import Decimal

KIB = 2**10
MIB = 2**20
GIB = 2**30

ROUGH = 0.5
"""Relative half-width above which only the order of magnitude of a figure is known."""

_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KIB": KIB, "MIB": MIB, "GIB": GIB, "TIB": 2**40, "PIB": 2**50, "EIB": 2**60}
_MS = {"US": 1e-3, "MS": 1.0, "S": 1e3, "MIN": 60e3, "H": 3600e3}
_NEXT_UNIT = 1023.5
"""Larger figures would be printed as 1024 of a binary unit."""
_SMALL_KWH = 0.001
"""Smaller energies are printed in Wh."""
_RUN = 3
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:\s*([A-Za-z\u00b5\u03bc]+))?")
_MEANT_BYTES = {"": ("MiB", "GiB")} | {sign: (f"{sign}iB", f"{sign}B") for sign in "KMGT"}
"""The likely meanings of an invalid unit. G may be GiB or GB: 24GiB is 7 % more than 24GB."""
_MEANT_MS = {"": ("ms", "s"), "M": ("min", "ms"), "\u039cS": ("us",)}
_SPELLED = {"us": "USEC MICROSECOND", "ms": "MSEC MILLISECOND", "s": "SEC SECOND", "min": "MINUTE", "h": "HR HOUR"}
_MEANT_MS |= {
    f"{word}{many}": (unit,) for unit, words in _SPELLED.items() for word in words.split() for many in ("", "S")
}
_MEANT_MS |= {"MINS": ("min",)}


_SHOWN = 60
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxother, _SHORT.maxlong = 2, _SHOWN, _SHOWN


def echo(value: object) -> str:
    """Return a value as an error message shows it: on one line, and cut if it is long."""
    if isinstance(value, str):
        return repr(shorten_text(value, _SHOWN))
    try:
        shown = _SHORT.repr(value)
    except ValueError:  # a number with thousands of digits
        shown = f"a very long {type(value).__name__}"
    return " ".join("".join(sign if sign.isprintable() else " " for sign in shown).split())


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return text with every character that a terminal could act on escaped, such as ``\\x1b``.

    White space becomes blanks, except for line ends if ``lines``.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or (lines and sign == "\n") else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    return " " if sign in "\t\n\r\v\f" else sign.encode("unicode_escape", "backslashreplace").decode()


def parse_bytes(text: str) -> int:
    """Return the bytes that ``8GiB``, ``512 MiB`` or ``24GB`` name; ValueError if the number or the unit is missing."""
    return int(_quantity(text, _BYTES, _MEANT_BYTES, "a size such as 8GiB or 512MiB"))


def parse_ms(text: str) -> float:
    """Return the milliseconds that ``50ms``, ``1.5s`` or ``2min`` name; ValueError if number or unit is missing."""
    return float(_quantity(text, _MS, _MEANT_MS, "a duration such as 50ms or 1s"))


def has_unit(text: str) -> bool:
    """Whether text is a number followed by letters, known unit or not."""
    number, unit = _parts(text)
    return bool(number and unit)


def _quantity(text: str, units: Mapping[str, float], meant: Mapping[str, tuple[str, ...]], wanted: str) -> Decimal:
    number, unit = _parts(text)
    if unit not in units:
        near = meant.get(unit, ()) if 0 < len(number) <= _SHOWN else ()
        question = f": did you mean {' or '.join(f'{number}{right}' for right in near)}?" if near else ""
        raise ValueError(f"{echo(text)} is not {wanted}{question}")
    if not math.isfinite(float(number) * units[unit]):
        raise ValueError(f"{echo(text)} is too large for {wanted}")
    return Decimal(number) * Decimal(str(units[unit]))


def _parts(text: str) -> tuple[str, str]:
    """Return the number and the unit in capitals; both are empty if the text is not a quantity."""
    match = _QUANTITY.fullmatch(text.strip())
    return (match[1], (match[2] or "").upper()) if match else ("", "")


def format_bytes(count: int) -> str:
    """Format bytes with the binary unit in which the figure is below 1024: ``113.9 GiB``, ``870 MiB``, ``300 KiB``."""
    if count >= _NEXT_UNIT * MIB:
        return f"{count / GIB:.1f} GiB"
    if count >= _NEXT_UNIT * KIB or count == 0:
        return f"{count / MIB:.0f} MiB"
    return f"{count / KIB:.0f} KiB"


def format_seconds(seconds: float) -> str:
    """Format a duration in seconds: ``8 s``, ``2 min 05 s``, ``1 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_figure(value: float) -> str:
    """Format a measured figure with four significant digits and no exponent: ``12257``, ``4.118``, ``0.05210``.

    Digits before the decimal point are all kept. An infinite figure is ``inf``.
    """
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    exponent = int(f"{value:.3e}".partition("e")[2])  # of the rounded value: 999.96 has four digits before the point
    return f"{value:.{max(0, 3 - exponent)}f}"


def format_amount(value: float) -> str:
    """Format a number that a user chose, with all its digits and no exponent: ``50``, ``0.25``, ``1000000``."""
    return f"{Decimal(f'{value:.12g}'):f}"


def format_estimate(value: float, half_width: float | None) -> str:
    """Format a figure with the digits that its interval supports: ``10845``, or ``5400`` for a half-width of 40 %.

    ``half_width`` is a fraction of the figure. It is rounded to two digits, and the figure ends at the same decimal
    place (JCGM 100:2008, 7.2.6). At most four significant digits are shown, also if the interval is unknown. If the
    half-width exceeds half the figure, one digit is left, after a sign: ``~5000``.
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
    """Format a figure whose interval is unknown with three significant digits after a sign: ``~5380``."""
    exponent = int(f"{value:.2e}".partition("e")[2])  # of the rounded value, as in format_figure
    places = 2 - exponent if value > 0 else 0
    return f"~{round(value, places):.{max(0, places)}f}"


def format_width(half_width: float) -> str:
    """Format a half-width, a fraction of the figure, in percent without the sign: ``0.2``, ``335.5``."""
    return f"{half_width:.1%}".removesuffix("%")


def format_share(share: float) -> str:
    """Format a nonnegative fraction as a percentage with two digits: ``41 %``, ``4.6 %``, ``0.52 %``."""
    percent = 100 * share
    if percent < 0.01:
        return "less than 0.01 %"
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def format_share_up(share: float) -> str:
    """Format a fraction rounded up, as an upper bound: ``0.4 %``, ``30 %``."""
    percent = round(100 * share, 9)  # 100 * 0.07 is a little more than 7
    return f"{math.ceil(percent)} %" if percent > 9.9 else f"{max(1, math.ceil(10 * percent)) / 10} %"


def format_watts(power_w: float) -> str:
    """Format watts with three digits: ``612 W``, ``4.52 kW``, ``1240 kW``."""
    shown_w = float(f"{power_w:.3g}")
    return f"{_three_digits(shown_w / 1000)} kW" if shown_w >= 1000 else f"{_three_digits(shown_w)} W"


def format_kwh(energy_kwh: float) -> str:
    """Format an energy with three digits: ``0.0139 kWh``, ``0.280 Wh``."""
    is_small = energy_kwh < _SMALL_KWH
    return f"{_three_digits(1000 * energy_kwh)} Wh" if is_small else f"{_three_digits(energy_kwh)} kWh"


def _three_digits(value: float) -> str:
    rounded = float(f"{value:.3g}")
    return f"{rounded:.0f}" if rounded >= 100 else f"{rounded:#.3g}"


def format_span(least: str, most: str) -> str:
    """Format two bounds with units: ``1.2 to 1.4 kW``, ``980 W to 1.1 kW``; a single figure if both print alike."""
    if least == most:
        return most
    number, _, unit = least.partition(" ")
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def format_ratio(ratio: float) -> str:
    """Format a ratio: ``180 times``, ``14.2 times``, ``1.46 times``."""
    return f"{ratio:.0f} times" if ratio >= 100 else f"{ratio:.3g} times"


def shorten_text(text: str, most: int = 60) -> str:
    """Return foreign text for a message: only its two ends if it is longer than ``most``."""
    return text if len(text) <= most + len("...") else f"{text[: most // 2]}...{text[-(most // 2) :]}"


def format_sizes(sizes: Iterable[int]) -> str:
    """Format batch sizes, with runs of three or more as ranges: ``1, 2, 8-32``."""
    runs: list[list[int]] = []
    for size in sorted(sizes):
        if runs and size == runs[-1][-1] + 1:
            runs[-1].append(size)
        else:
            runs.append([size])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) >= _RUN else ", ".join(map(str, run)) for run in runs)
