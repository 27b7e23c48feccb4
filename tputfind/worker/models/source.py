"""A model that has been found, and not built yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from torch import nn

from tputfind.record.environment import Capabilities
from tputfind.record.record import Notice
from tputfind.worker.inputs import Call, Inputs

LONGEST_PATH: Final = 300
"""So much of a path is quoted: its middle says more than that of a name."""


def found(look: Callable[[], bool]) -> bool:
    """Return what a path's ``is_file`` or ``exists`` says; of one that no file system takes, being too long, False."""
    try:
        return look()
    except OSError:
        return False


class Source(NamedTuple):
    """``build`` returns the module, in fp32 on the CPU, and its inputs.

    What is known beforehand: ``inputs``, where they are to be drawn; the number of ``parameters``; ``path``,
    the file that a user's factory lies in; ``unfit``, which says why a device that can do so much cannot run the model
    as asked, or nothing; ``caveats``, what must be known to use any number of it; ``made_of``, what else
    decides what is built, as text.
    """

    build: Callable[[], tuple[nn.Module, Inputs]]
    inputs: Call | None = None
    parameters: int | None = None
    path: Path | None = None
    unfit: Callable[[Capabilities], str] = lambda _: ""
    caveats: tuple[Notice, ...] = ()
    made_of: str = ""
