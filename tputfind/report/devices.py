"""Progress of several devices on stderr: on a terminal a line for each, plain lines that name it elsewhere."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tputfind.record.record import Record
from tputfind.report.renderers.terminal import has_blocks
from tputfind.units import format_seconds

_NOBODY_WATCHES: Final = (OSError, SystemExit)
"""As in ``progress``."""


class DevicesProgress:
    """Shows what several devices are doing; use it as a context manager, in one thread."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._devices: dict[str, _Device] = {}

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

    def of(self, place: str) -> _Device:
        """Return where one device tells what it does; a nameless one is the host."""
        return self._devices.setdefault(place, _Device(self, place))

    def did(self, what: str) -> None:
        """Leave a line behind."""
        with suppress(*_NOBODY_WATCHES):
            self._console.print(what, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def changed(self, device: _Device, line: str) -> None:
        """Show what a device has just told."""
        if self._live is None:
            self.did(f"{device.place} {line}".strip())
            return
        told = [one for one in self._devices.values() if one.line and (one.place or len(self._devices) == 1)]
        width = max((len(one.place) for one in told), default=0)
        cut = "ellipsis" if has_blocks(self._console) else "crop"
        lines = [Text(f"{one.place:<{width}} {one.line}".strip(), no_wrap=True, overflow=cut) for one in told]  # type: ignore[arg-type]
        with suppress(*_NOBODY_WATCHES):
            self._live.update(Group(*lines[: max(1, self._console.height - 1)]), refresh=True)


class _Device:
    """What one device tells; its line is the latest of it."""

    def __init__(self, shown: DevicesProgress, place: str) -> None:
        self._shown = shown
        self._subject = ""
        self._did = ""
        self.place = place
        self.line = ""

    def about(self, subject: str) -> None:
        """Say which model the next words are about."""
        self._subject, self._did = subject, ""

    def doing(self, what: str, seconds_left: float | None) -> None:
        """Show what is under way, about how long its stage will still take, and what came before."""
        left = "" if seconds_left is None else f", about {format_seconds(seconds_left)} left"
        now = f"{self._subject}: {what}{left}"
        self.line = f"{now} ({self._did})" if self._did else now
        self._shown.changed(self, now)

    def did(self, what: str) -> None:
        """Show what has ended."""
        self._did = what
        self.line = f"{self._subject}: {what}"
        self._shown.changed(self, self.line)

    def measured(self, record: Record) -> None:
        """Nothing is shown of a record before it is whole: there are several."""
