"""Packages that not every user has."""

from __future__ import annotations

import importlib
from typing import Any

from tputfind.errors import UnknownModel


def imported(package: str, extra: str) -> Any:
    """Return a package.

    Raises:
        UnknownModel: it is not installed; the hint says what installs it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # it is there, and something that it needs is not
        raise UnknownModel(f"{package} is not installed", f"pip install 'tputfind[{extra}]'") from None
