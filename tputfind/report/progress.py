"""Progress on stderr.

A terminal shows a changing line, below the table so far or one for each device; other streams get a line per event.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tputfind.record.record import Record
from tputfind.report import text
from tputfind.report.document import Defect, attempt
from tputfind.report.renderers import terminal
from tputfind.report.views.records import rows_table
from tputfind.units import format_seconds

_SO_FAR: Final = ("Fastest batch", "Knee")
"""Answers that are valid while the search goes on; the others need its end."""
_BESIDE_ROWS: Final = 3
"""Lines of the table's head, and the progress line."""
_LEAST_ROWS: Final = 4
"""Lines of a terminal for the table, whatever the answers below it take."""
_NOBODY_WATCHES: Final = (OSError, SystemExit)
"""The terminal is gone, or the pipe is closed (rich exits by SystemExit). The measurement must go on."""


class StderrConsole(Console):
    """A console on stderr that goes silent once nobody reads it; rich's own would silence stdout and exit."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(stderr=True, quiet=quiet)

    def on_broken_pipe(self) -> None:
        self.quiet = True


@contextmanager
def show_progress(console: Console) -> Iterator[DeviceProgress]:
    """Show the progress of a run on one or several devices; yield the object to report to, from any thread."""
    if not console.is_terminal:
        yield DeviceProgress(_PlainListener(console))
        return
    listener = _TerminalListener(console)
    with suppress(*_NOBODY_WATCHES):
        listener.live.start()
    try:
        yield DeviceProgress(listener)
    finally:
        with suppress(*_NOBODY_WATCHES):
            listener.live.stop()


class DeviceProgress:
    """The progress of a device, or of the run itself if nameless. It implements ``session.progress.Progress``."""

    def __init__(self, listener: _PlainListener, name: str = "") -> None:
        self._listener = listener
        self.name = name
        self.subject = ""
        self.line = ""
        self._said = ""
        self.last_did = ""
        self.record: Record | None = None
        with listener.lock:  # other threads draw the devices
            listener.devices[name] = self

    def of(self, name: str) -> DeviceProgress:
        return self._listener.devices.get(name) or DeviceProgress(self._listener, name)

    def about(self, subject: str) -> None:
        self.subject, self.last_did, self.record = subject, "", None

    def doing(self, what: str, seconds_left: float | None) -> None:
        left = "" if seconds_left is None else f", about {format_seconds(seconds_left)} left"
        with self._listener.lock:
            self.line = self._about(f"{what}{left}")
            if self.line != self._said:  # a process may end before the next batch size that it was to time
                self._said = self.line
                self._listener.doing(self)

    def did(self, what: str) -> None:
        with self._listener.lock:
            self._listener.did(self, self._about(what))
            self.last_did, self._said = what, ""

    def measured(self, record: Record) -> None:
        with self._listener.lock:
            self.record = record
            self._listener.measured(self)

    def _about(self, what: str) -> str:
        return f"{self.subject}: {what}" if self.subject else what


class _PlainListener:
    def __init__(self, console: Console) -> None:
        self.devices: dict[str, DeviceProgress] = {}
        self.lock = RLock()
        self._console = console

    def doing(self, device: DeviceProgress) -> None:
        self._print(f"{device.name} {device.line}".strip())

    def did(self, device: DeviceProgress, line: str) -> None:
        self._print(f"{device.name} {line}".strip())

    def measured(self, device: DeviceProgress) -> None:
        """Print nothing: the report has the table."""

    def _print(self, line: str) -> None:
        with suppress(*_NOBODY_WATCHES):
            self._console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)


class _TerminalListener(_PlainListener):
    """Draws a line for each device, on events alone: a thread that refreshed it would take time from measuring."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.live = Live(console=console, auto_refresh=False, transient=True)

    def doing(self, device: DeviceProgress) -> None:
        if device.name and device.last_did:
            device.line = f"{device.line} ({device.last_did})"
        self._draw()

    def did(self, device: DeviceProgress, line: str) -> None:
        """Print a permanent line, unless rows of the table already show it."""
        if device.name:
            device.line = line
            self._draw()
        elif device.record is None or not device.record.rows:
            self._print(line)

    def measured(self, device: DeviceProgress) -> None:
        if not device.name:
            self._draw()

    def _draw(self) -> None:
        console, cut = self._console, "ellipsis" if terminal.has_blocks(self._console) else "crop"
        several = [device for name, device in self.devices.items() if name and device.line]
        width = max((len(device.name) for device in several), default=0)
        lines = [f"{device.name:<{width}} {device.line}".strip() for device in several or [self.devices[""]]]
        shown: list[RenderableType] = [Text(line, no_wrap=True, overflow=cut) for line in lines]  # type: ignore[arg-type]
        with suppress(*_NOBODY_WATCHES):
            so_far = () if several else attempt("the table so far", lambda: self._rows_so_far(self.devices[""].record))
            table = () if isinstance(so_far, Defect) else so_far  # the report shows the defect; the run goes on
            self.live.update(Group(*table, *shown[: max(1, console.height - 1)]), refresh=True)

    def _rows_so_far(self, record: Record | None) -> list[RenderableType]:
        """Return the table and the answers so far; a table taller than the terminal is cut to its last rows."""
        console = self._console
        if record is None or not record.rows:
            return []
        searched = record.edge is not None or record.spec.batch_sizes is not None
        known = [(label, answer) for label, answer in text.summary(record) if label in _SO_FAR or searched]
        below = [Text(text.legend(record)), *terminal.answer_lines(known, console.width)]
        below = below[: max(1, console.height - _BESIDE_ROWS - _LEAST_ROWS)]
        room = max(1, console.height - len(below) - _BESIDE_ROWS)
        table = terminal.fit_table(rows_table(record, ()), console, room)
        return [table, *below]
