"""Where a measurement says what it is doing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Where a run tells what it is doing."""

    def about(self, subject: str) -> None:
        """Name the model that the next words are about."""

    def doing(self, what: str, seconds_left: float | None) -> None:
        """Something starts; ``seconds_left`` is a guess for the whole stage, or None."""

    def did(self, what: str) -> None:
        """Something has ended, so."""


class Silent:
    """Progress that nobody watches."""

    def about(self, subject: str) -> None:
        """Say nothing."""

    def doing(self, what: str, seconds_left: float | None) -> None:
        """Say nothing."""

    def did(self, what: str) -> None:
        """Say nothing."""
