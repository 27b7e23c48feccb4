"""What every result can do: save itself, become a pandas table, and show itself."""

from __future__ import annotations

TYPE_CHECKING = False  # as in the package itself, which imports this first
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any, Never

    import pandas as pd
    from matplotlib.figure import Figure

_FUNCTIONS = ("compare", "size", "to_deploy")
"""Functions of the package that take a record, where others may look for a method."""
_reports: Callable[[], Any] | None = None


class Result:
    """A result: a measurement, timings, forecasts, a comparison or plans; its class says in ``KIND`` which."""

    __slots__ = ()

    def save(self, file: str | os.PathLike[str], *more: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write files, each in the form that its ending says: .json, .csv, .md, .html, and of a record .svg and .png.

        Args:
            file: where to write; what tputfind wrote there in the same form is replaced, but for a measurement of
                another model, device or configuration.
            more: other files, each as the first.
            overwrite: replace any other file too.

        Raises:
            BadRequest: a file cannot be written, or is in the way of a name. The others are written, unless it is
                known before.
        """
        _report_module().save(self, (file, *more), overwrite=overwrite)

    def frame(self) -> pd.DataFrame:
        """Return the table of the CSV, with types of pandas in which the unknown is NA."""
        frame: pd.DataFrame = _report_module().frame(self)
        return frame

    def plot(self) -> Figure:
        """Return the figure that a record saves as .svg or .png, with which matplotlib can go on.

        Raises:
            BadRequest: the result has no plot, or matplotlib is not installed.
        """
        figure: Figure = _report_module().plot(self)
        return figure

    if not TYPE_CHECKING:  # type checkers know which attributes there are

        def __getattr__(self, name: str) -> Never:
            """Refuse an attribute that is missing; name the function of the package that is meant, if there is one."""
            instead = f": call tputfind.{name}({self.KIND})" if name in _FUNCTIONS else ""
            raise AttributeError(f"a {type(self).__name__} has no {name!r}{instead}", name=name, obj=self)

    def __repr__(self) -> str:
        """Return what a command prints of the result: a prompt and a notebook show it as it is on a terminal."""
        return str(_report_module().text(self))


def shown_progress() -> AbstractContextManager[Any]:
    """Show progress on stderr, as a command does, while the context lasts; what it yields is to be told."""
    shown: AbstractContextManager[Any] = _report_module().progress()
    return shown


def _report_module() -> Any:
    assert _reports is not None  # the package says it before anything else is imported
    return _reports()


def report_with(reports: Callable[[], Any]) -> None:
    """Have reports made by a module, which is asked for when one is needed: they are made above this room."""
    global _reports  # noqa: PLW0603  # as a class of pandas' would hold it
    _reports = reports
