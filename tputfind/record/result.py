"""Methods of every result: save to files, convert to a pandas table, and show."""

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
"""Functions of the package that take a record, which users may expect as methods."""
_reports: Callable[[], Any] | None = None


class Result:
    """A result: a measurement, timings, forecasts, a comparison or plans; ``KIND`` of its class names which."""

    __slots__ = ()

    def save(self, file: str | os.PathLike[str], *more: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write files, each in the format of its ending: .json, .csv, .md, .html, and for a record .svg and .png.

        Args:
            file: the path to write. A file that tputfind wrote in the same format is replaced, except a measurement of
                another model, device or configuration.
            more: further files, under the same rules.
            overwrite: replace any other file too.

        Raises:
            BadRequest: a file cannot be written, or a file with its name must not be replaced. The others are written,
                unless the problem is known before.
        """
        _report_module().save(self, (file, *more), overwrite=overwrite)

    def frame(self) -> pd.DataFrame:
        """Return the table of the CSV, with pandas types in which unknown values are NA."""
        frame: pd.DataFrame = _report_module().frame(self)
        return frame

    def plot(self) -> Figure:
        """Return the matplotlib figure that a record saves as .svg or .png.

        Raises:
            BadRequest: the result has no plot, or matplotlib is not installed.
        """
        figure: Figure = _report_module().plot(self)
        return figure

    if not TYPE_CHECKING:  # type checkers know which attributes there are

        def __getattr__(self, name: str) -> Never:
            """Raise AttributeError for a missing attribute; name the function of the package that may be meant."""
            instead = f": call tputfind.{name}({self.KIND})" if name in _FUNCTIONS else ""
            raise AttributeError(f"a {type(self).__name__} has no {name!r}{instead}", name=name, obj=self)

    def __repr__(self) -> str:
        """Return the text that a command prints for the result, for a prompt and a notebook."""
        return str(_report_module().text(self))


def shown_progress() -> AbstractContextManager[Any]:
    """Show progress on stderr, as a command does, in this context; it yields the progress listener."""
    shown: AbstractContextManager[Any] = _report_module().progress()
    return shown


def _report_module() -> Any:
    assert _reports is not None  # the package sets it before any other import
    return _reports()


def report_with(reports: Callable[[], Any]) -> None:
    """Set the function that returns the report module on demand; this package must not import that module itself."""
    global _reports  # noqa: PLW0603  # as a class of pandas' would hold it
    _reports = reports
