"""Read results that commands saved as JSON back into their values."""

import re
from itertools import islice
from math import inf
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tputfind.analysis.compare import Comparison, Comparisons, decode_comparisons
from tputfind.analysis.race import Race, decode_race
from tputfind.errors import TputfindError
from tputfind.record import files
from tputfind.record.clocks import Methods, Pipeline
from tputfind.record.environment import unknown_environment
from tputfind.record.forecast import Forecasts
from tputfind.record.record import Record, Records
from tputfind.record.spec import Spec
from tputfind.record.types import CountFromZero
from tputfind.record.untrusted import printable_json, told_as_bad_record
from tputfind.sizing.engine.replications import Outcome
from tputfind.sizing.planner.plan import Answers, Plan, Plans, Ranking

_COMPARISONS: Final = re.compile(rb'\s*\[\s*\{\s*"model"\s*:')
_RACE: Final = re.compile(rb'\s*\{\s*"kind"\s*:\s*"race"')
_PLANS: Final = re.compile(rb'\s*\{\s*"plans"\s*:')


_INFINITE: Final = re.compile(rb'("(?:mean|p50|p95|p99|tail|tail_low|tail_high)_ms":\s*)null')
"""An infinite latency of an outcome, which JSON writes as null."""
_HUGE_MS: Final = 1e15
"""Placeholder of an infinite latency while it is decoded."""


class _Without(msgspec.Struct, frozen=True):
    """A model without a plan."""

    model: str
    reason: str


class _SavedPlans(msgspec.Struct, frozen=True, kw_only=True):
    plans: Annotated[tuple[Plan, ...], Meta(min_length=1)]
    without: tuple[_Without, ...] = ()
    ranked_by: Ranking = "devices"
    plans_of_each_model: tuple[CountFromZero, ...] = ()
    unplanned: tuple[CountFromZero, ...] = ()


def load(
    path: str | Path,
) -> Record | Records | Methods | Pipeline | Forecasts | Comparison | Comparisons | Race | Plans:
    """Read the ``.json`` result of a command: records, timings of ``clocks``, forecasts, comparisons, a race or plans.

    Raises:
        BadRequest: the argument is not a path.
        BadRecord: the file is missing, unreadable, cut short, edited out of shape, or of a schema that this version
            does not read.
    """
    data = files.content(path)
    if _PLANS.match(data):
        with told_as_bad_record(str(path)):
            finite = _INFINITE.sub(rb"\g<1>%.0e" % _HUGE_MS, printable_json(data))
            return Plans(_answers(msgspec.json.decode(finite, type=_SavedPlans)))
    if _COMPARISONS.match(data):
        return decode_comparisons(data, str(path))
    if _RACE.match(data):
        return decode_race(data, str(path))
    return files.load(path)


def _answers(saved: _SavedPlans) -> Answers:
    """Return the plans as they were computed; for records without a plan, only their model is known."""
    plans = [_restore_infinite(plan) for plan in saved.plans]
    left = iter(plans)
    models = [list(islice(left, count)) for count in saved.plans_of_each_model or (len(plans),)]
    without = [(_record_of(one.model), TputfindError(one.reason)) for one in saved.without]
    if sum(map(len, models)) != len(plans) or not all(models) or max(saved.unplanned, default=-1) >= len(without):
        raise msgspec.ValidationError("its numbers of plans do not add up")
    return Answers(plans, without, saved.ranked_by, models, [without[place] for place in saved.unplanned])


def _restore_infinite(plan: Plan) -> Plan:
    outcomes = {name: one for name in Plan.__struct_fields__ if isinstance(one := getattr(plan, name), Outcome)}
    mix = plan.mix and msgspec.structs.replace(plan.mix, outcome=_restore_outcome(plan.mix.outcome))
    return msgspec.structs.replace(plan, mix=mix, **{name: _restore_outcome(one) for name, one in outcomes.items()})


def _restore_outcome(outcome: Outcome) -> Outcome:
    fields = msgspec.structs.asdict(outcome).items()
    return msgspec.structs.replace(outcome, **{name: inf for name, value in fields if value == _HUGE_MS})


def _record_of(model: str) -> Record:
    spec, environment = Spec(model=model), unknown_environment()
    return Record(tputfind="", command="", started="", spec=spec, environment=environment, input_shape="")
