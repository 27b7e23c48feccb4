"""Progress on stderr: on a terminal a table that grows over a line that changes, plain lines elsewhere."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tputfind.record.record import Record
from tputfind.report import text
from tputfind.report.renderers import terminal
from tputfind.report.views.records import rows_table
from tputfind.units import format_seconds

_SO_FAR: Final = ("Fastest batch", "Knee")
"""Answers that hold for the rows that there are; the others are none before the search has ended."""
_BESIDE_ROWS: Final = 3
"""Lines of the table's head, and the line of what is under way."""
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
        self._line = ""
        self._record: Record | None = None

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
        self._record = None

    def doing(self, what: str, seconds_left: float | None) -> None:
        """Show what is under way and about how long its stage will still take."""
        left = "" if seconds_left is None else f", about {format_seconds(seconds_left)} left"
        self._line = f"{self._subject}: {what}{left}"
        if self._live is not None:
            self._draw(self._live)
        else:
            self._print(self._line)

    def did(self, what: str) -> None:
        """Leave a line behind; a row of the table says as much."""
        if self._record is None or not self._record.rows:
            self._print(f"{self._subject}: {what}")

    def measured(self, record: Record) -> None:
        """Show the table and the answers so far."""
        if self._live is not None:
            self._record = record
            self._draw(self._live)

    def _draw(self, live: Live) -> None:
        with suppress(*_NOBODY_WATCHES):
            line = Text(self._line, no_wrap=True, overflow="ellipsis" if terminal.has_blocks(self._console) else "crop")
            live.update(Group(*self._rows_so_far(), line), refresh=True)

    def _rows_so_far(self) -> list[RenderableType]:
        """Return the table and the answers so far; of more rows than the terminal has lines, the last."""
        record, console = self._record, self._console
        if record is None or not record.rows:
            return []
        searched = record.edge is not None or record.spec.batch_sizes is not None
        known = [(label, answer) for label, answer in text.summary(record) if label in _SO_FAR or searched]
        below = [Text(text.legend(record)), *terminal.answer_lines(known, console.width)]
        room = max(1, console.height - len(below) - _BESIDE_ROWS)
        table = terminal.fitted(rows_table(record, ()), console, room)
        return [table, *below]

    def _print(self, line: str) -> None:
        with suppress(*_NOBODY_WATCHES):
            self._console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)
