"""The colours of pages and plots, for paper and for the dark, by the names that they have in a style sheet."""

from __future__ import annotations

from typing import Final

LIGHT: Final = {
    "paper": "#ffffff",
    "ink": "#1b1f24",
    "quiet": "#59636e",
    "grid": "#d8dee4",
    "shade": "#f4f6f8",
    "warning": "#8a4b00",
    "series-0": "#0b5cad",
    "series-1": "#b84300",
    "series-2": "#00734f",
    "series-3": "#8d3a94",
    "series-4": "#7a5c00",
    "series-5": "#17708f",
    "series-6": "#b3173f",
    "series-7": "#555e66",
}
DARK: Final = {
    "paper": "#12161b",
    "ink": "#e8ecf0",
    "quiet": "#a3adb8",
    "grid": "#343c45",
    "shade": "#1b2128",
    "warning": "#ffb454",
    "series-0": "#6db3f2",
    "series-1": "#ff9d5c",
    "series-2": "#4fd1a5",
    "series-3": "#dc9fe3",
    "series-4": "#dfbd4b",
    "series-5": "#7fd6ee",
    "series-6": "#ff8fa3",
    "series-7": "#b8c0c8",
}
SERIES: Final = sum(name.startswith("series-") for name in LIGHT)
"""From here on colours are taken again; markers tell the records apart."""
