"""Find the largest batch size of a PyTorch model and the throughput at every batch size.

``find`` measures a model (a name, a module, or a function that builds one) or a ``Step`` of the user's own, which gets
its device from ``context``. ``tune`` finds the best way to run a model. ``load_record`` reads a saved measurement,
``load`` the saved result of any command. ``to_deploy`` returns the batch size to deploy, ``compare`` the speed
differences between two records or models, ``forecast`` the largest batch on devices with other memory, ``size`` the
number of devices that a stream of requests needs. ``StageTimer`` times the stages of the user's own pipeline. Importing
this package imports neither torch nor pandas.
"""

from __future__ import annotations

from tputfind.record.result import report_with
from tputfind.version import __version__

TYPE_CHECKING = False  # type checkers know this name; importing typing takes time in which Ctrl-C is not handled
if TYPE_CHECKING:
    from types import ModuleType

    from tputfind.analysis.answers import to_deploy
    from tputfind.readers.results import load
    from tputfind.record.files import load_record
    from tputfind.record.record import Record
    from tputfind.runners.compare import compare
    from tputfind.runners.find import find
    from tputfind.runners.tune import tune
    from tputfind.session.forecast import forecast
    from tputfind.sizing.planner.costs import Price
    from tputfind.sizing.planner.plan import size
    from tputfind.stages.timer import StageTimer
    from tputfind.step import Context, Step, context

__all__ = [
    "Context",
    "Price",
    "Record",
    "StageTimer",
    "Step",
    "__version__",
    "compare",
    "context",
    "find",
    "forecast",
    "load",
    "load_record",
    "size",
    "to_deploy",
    "tune",
]

_HOMES = {
    "compare": "tputfind.runners.compare",
    "context": "tputfind.step",
    "Context": "tputfind.step",
    "Step": "tputfind.step",
    "find": "tputfind.runners.find",
    "forecast": "tputfind.session.forecast",
    "load": "tputfind.readers.results",
    "load_record": "tputfind.record.files",
    "size": "tputfind.sizing.planner.plan",
    "Price": "tputfind.sizing.planner.costs",
    "Record": "tputfind.record.record",
    "StageTimer": "tputfind.stages.timer",
    "to_deploy": "tputfind.analysis.answers",
    "tune": "tputfind.runners.tune",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use, so that ``import tputfind`` stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, including those that are not imported yet."""
    return sorted(__all__)


def _results() -> ModuleType:
    from tputfind.report import results

    return results


report_with(_results)
