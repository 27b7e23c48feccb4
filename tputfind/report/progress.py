"""Progress on stderr: a line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tputfind.units import format_seconds

_NOBODY_WATCHES: Final = (OSError, SystemExit)
"""The terminal is gone, or the pipe closed, for which rich leaves by SystemExit. What is measured is worth more."""


class ShownProgress:
    """Shows what a run is doing; use it as a context manager.

    The line is drawn only when something happens: a thread that refreshed it would take time from what is measured.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._subject = ""

    def __enter__(self) -> Self:
        if self._live is not None:
            with suppress(*_NOBODY_WATCHES):
                self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with suppress(*_NOBODY_WATCHES):
                self._live.stop()

    def about(self, subject: str) -> None:
        """Say which model the next words are about."""
        self._subject = subject

    def doing(self, what: str, seconds_left: float | None) -> None:
        """Show what is under way and about how long its stage will still take."""
        left = "" if seconds_left is None else f", about {format_seconds(seconds_left)} left"
        line = f"{self._subject}: {what}{left}"
        if self._live is not None:
            with suppress(*_NOBODY_WATCHES):
                self._live.update(Text(line), refresh=True)
        else:
            self._print(line)

    def did(self, what: str) -> None:
        """Leave a line behind."""
        self._print(f"{self._subject}: {what}")

    def _print(self, line: str) -> None:
        with suppress(*_NOBODY_WATCHES):
            self._console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)
