"""Find the largest batch a PyTorch model can take and how fast every batch size is.

``find`` measures a model (a name, a module, or a function that builds one) or a ``Step`` of one's own, which learns its
device from ``context``; ``tune`` finds the best way to run a model. ``load_record`` reads what a measurement saved, and
``load`` what any command did. ``to_deploy`` names the batch to deploy, ``compare`` says what became faster or slower
from one record, or model, to another, ``forecast`` the largest batch on devices with other memory, ``size`` how many
devices a stream of requests takes, ``StageTimer`` times the stages of a pipeline of one's own. Importing this package
imports neither torch nor pandas.
"""

from __future__ import annotations

from tputfind.record.result import report_with
from tputfind.version import __version__

TYPE_CHECKING = False  # the name is what type checkers know; typing takes time, in which Ctrl-C is not ours yet
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
    from tputfind.sizing.planner.plan import size
    from tputfind.stages.timer import StageTimer
    from tputfind.step import Context, Step, context

__all__ = [
    "Context",
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
    """Return the public names, those that were not imported yet among them."""
    return sorted(__all__)


def _results() -> ModuleType:
    """Return what makes files, tables and texts of results; it is imported when it is asked for."""
    from tputfind.report import results

    return results


report_with(_results)
