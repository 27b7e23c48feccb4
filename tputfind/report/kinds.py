"""Which files are reports of this tool's own: told by what they begin with, or by what a plot says of its maker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

Kind = Literal["csv", "record", "clocks", "forecast", "comparison", "plans", "md", "html", "png", "svg"]

PLOT_MAKER: Final = "tputfind"
"""What a plot names as the program that made it."""
NAMES: Final[dict[Kind, str]] = {
    "csv": "CSV",
    "record": "record",
    "clocks": "JSON of clocks",
    "forecast": "JSON of forecasts",
    "comparison": "JSON of comparisons",
    "plans": "JSON of plans",
    "md": "Markdown",
    "html": "page",
    "png": "PNG plot",
    "svg": "SVG plot",
}
_LOOKED_AT_BYTES: Final = 2**16
"""Bytes at the beginning of a file in which it says what it is."""
_TEXT: Final = r'"(?:[^"\\]|\\.)*"'
"""A string of JSON."""
_TITLE: Final = r"\*\*[^\n]*\*\*\n\n"
_BEGINNINGS: Final[dict[Kind, tuple[str, ...]]] = {
    "csv": (
        r"model,phase,device,device_name,dtype,layout,mode,input_shape,batch_size,status,",
        r"model,recipe,device_name,status,rate_per_s,slo_ms,percentile,batcher,",
        r"model,dtype,layout,memory_gib,largest_batch_forecast,",
        r"model,device_name,batch_size,(?:way,condition|stage,way),mean_ms,",
        r"model,recipe,device_name,old_batch,new_batch,",
    ),
    "record": (r'\{\s*"schema":\s*\d+,\s*"method":\s*\d+,\s*"tputfind":\s*"',),
    "clocks": (r'\{\s*"kind":\s*"(?:methods|pipeline)",\s*"(?:schema":\s*\d+,\s*"method|tputfind)":',),
    "forecast": (r'\{\s*"kind":\s*"forecast",\s*"schema":\s*\d+,\s*"method":',),
    "comparison": (
        rf'\[\s*\{{\s*"model":\s*{_TEXT},\s*"recipe":\s*{_TEXT},\s*"device_name":\s*{_TEXT},\s*"old_started":',
    ),
    "plans": (
        rf'\{{\s*"plans":\s*\[\s*\{{\s*"model":\s*{_TEXT},\s*"recipe":\s*{_TEXT},\s*"device_name":\s*{_TEXT},\s*"demand":',
    ),
    "md": (
        r"\|(?:[^\n]*\|)? *batch *\| *samples/s *\| *± % *\|",  # of several records in one table, until 0.1
        rf"{_TITLE}\| *batch *\| *samples/s *\|",
        rf"{_TITLE}\| *batch *\| *OLD /s *\| *NEW /s *\|",
        r"\| *\| *devices *\| *cap *\| *each/s *\| *cost/h *\|",
        rf"{_TITLE}\| *\| *devices *\| *cap *\| *p50 ms *\|",
        r"\| *\| *devices *\| *max batch *\| *each/s *\| *cost/h *\|",
        rf"{_TITLE}- Devices: [0-9]",
        rf"(?:## [^\n]*\n\n)?{_TITLE}(?:\| *\| *devices *\| *max batch *\| *each/s *\| *cost/h *\||- Devices: [0-9])",
        rf"{_TITLE}ms an? (?:batch|iteration): mean of \d",
        rf"{_TITLE}\| *memory *\| *largest batch, forecast *\|",
    ),
    "html": (r"<!DOCTYPE html>(?s:.{0,300})default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-",),
    "png": (rf"\x89PNG\r\n\x1a\n(?s:.{{0,200}})\0\0\0\x{len('Software ' + PLOT_MAKER):02x}tEXtSoftware\0{PLOT_MAKER}",),
    "svg": (rf"<\?xml (?s:.{{0,2000}})<metadata>(?s:.{{0,2000}})<dc:title>{PLOT_MAKER}</dc:title>",),
}
_OF_KIND: Final = {kind: re.compile("|".join(beginnings).encode()) for kind, beginnings in _BEGINNINGS.items()}


def is_report(path: Path, kind: Kind) -> bool:
    """Return whether a file is a report of this kind that this tool wrote.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return _OF_KIND[kind].match(file.read(_LOOKED_AT_BYTES)) is not None
