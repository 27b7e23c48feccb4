"""A model that has been found, and not built yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import nn

from tputfind.measure.inputs import Call, Inputs
from tputfind.record import Notice


class Source(NamedTuple):
    """``build`` returns the module, in fp32 on the CPU, and its inputs.

    What is known beforehand: ``inputs``, where they are to be drawn; the number of ``parameters``; ``path``,
    the file that a user's factory lies in; ``unfit``, which says why a type of device (``cuda``) cannot run the model
    as asked, or nothing; ``caveats``, what must be known to use any number of it; ``made_of``, what else
    decides what is built, as text.
    """

    build: Callable[[], tuple[nn.Module, Inputs]]
    inputs: Call | None = None
    parameters: int | None = None
    path: Path | None = None
    unfit: Callable[[str], str] = lambda _: ""
    caveats: tuple[Notice, ...] = ()
    made_of: str = ""
