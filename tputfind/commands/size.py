"""`tputfind size`: read records, prices and arrivals, simulate, write and show the plans."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec

from tputfind.analysis import fleet
from tputfind.analysis.notices import shown_notices
from tputfind.commands.console import Given, finish, say, stop_signals, tell
from tputfind.commands.outputs import read_places, record_sources
from tputfind.errors import BadRequest, NoPlan, TputfindError
from tputfind.readers.csv_files import Recorded, arrivals_of, log_of, prices_of
from tputfind.record import files
from tputfind.record.record import Record
from tputfind.report.outputs import Source, check_places, forms
from tputfind.report.progress import StderrConsole, show_progress
from tputfind.report.views import size
from tputfind.sizing.planner.plan import answers
from tputfind.sizing.planner.question import read_demand
from tputfind.units import shorten_text

_AFTER_S: Final = 2.0
_REFRESH_S, _EVERY_S = 0.2, 10.0
"""Seconds between updates: of the line on a terminal, and between new lines elsewhere."""


def main(given: Given, *, show_traceback: bool) -> int:
    places, records, observed = read_places(given), given.pop("records"), given.pop("observed")
    arrivals, price = given.pop("arrivals"), given.pop("price")
    if not records:
        raise BadRequest("no record to size from", "tputfind size results/resnet50-fp16-nvidia-h200.json --rate ...")
    logged = tuple(files.path_of("--observed", path) for path in observed or ())
    arrivals_file = None if arrivals is None else files.path_of("--arrivals", arrivals)
    prices_file = None if price is None else files.path_of("--price", price)
    recorded = Recorded(None, None) if arrivals_file is None else arrivals_of(arrivals_file)
    demand = read_demand({**given, **recorded._asdict()})
    prices = [] if prices_file is None else prices_of(prices_file)
    sources = record_sources(records)
    sources += [Source("the file of arrivals", arrivals_file)] if arrivals_file is not None else []
    sources += [Source("a log", path) for path in logged]
    sources += [Source("the file of prices", prices_file)] if prices_file is not None else []
    loaded = [  # the notices of an old record may name options that no longer exist
        (path, msgspec.structs.replace(record, notices=tuple(shown_notices(record))))
        for path in records
        for record in files.load_records(path)
    ]
    read, notes = fleet.records_for_plan([record for _, record in loaded])
    if logged and len(read) > 1:
        raise BadRequest("--observed takes one record: that of the server's device")
    outputs, logs = check_places(places, sources, json="plans"), [log_of(path) for path in logged]
    for line in notes:
        tell(line)
    with stop_signals(), _progress_line() as show:
        found = answers(read, demand, prices, show, logs)
    paths = {id(record): path for path, record in loaded}  # two records may be equal
    without = [_add_file_name(error, record, paths) for record, error in found.without]
    if not found.plans:
        for error in without[1:]:
            say(error, show_traceback=show_traceback)
        raise without[0]
    document = size.document(found)
    outputs.write(forms(document))
    code = finish(document, outputs, show_traceback=show_traceback)
    for error in without:
        say(error, show_traceback=show_traceback)
    for plans in found.models:
        if not any(plan.holds for plan in plans):
            many = "none of the records' devices meets" if len(plans) > 1 else "the devices do not meet"
            many = "it is undecided whether the devices meet" if any(plan.may_yet_hold for plan in plans) else many
            which = f"{plans[0].model}: " if len(found.models) > 1 else ""
            missed = NoPlan(f"{which}{many} the target", "more --devices, a longer --slo or a lower --rate")
            say(missed, show_traceback=show_traceback)
            code = code or missed.exit_code
    for _, error in found.unplanned:
        code = code or error.exit_code
    currencies = sorted({plan.price.currency for plan in found.plans if plan.price is not None})
    if len(currencies) > 1 and demand.devices is None:
        mixed = f"--price has prices in {', '.join(currencies)}: plans are ranked by devices, and no mix is searched"
        say(BadRequest(mixed, "give them in one currency"), show_traceback=show_traceback)
    for plan in found.plans if prices else ():
        if plan.price is None:
            named = f"it names {shorten_text(', '.join(price.device for price in prices))}"
            say(BadRequest(f"--price has none of {plan.device_name}", named), show_traceback=show_traceback)
    return code


def _add_file_name(error: TputfindError, record: Record, paths: Mapping[int, str]) -> TputfindError:
    """Return the error of a record, with the record's file if there are several: they may be of one model."""
    return type(error)(f"{paths[id(record)]}: {error.message}", error.hint) if len(paths) > 1 else error


@contextmanager
def _progress_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current simulation on a progress line, after a delay and not too often."""
    console, next_s = StderrConsole(), time.monotonic() + _AFTER_S

    def show(what: str) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            subject, _, doing = what.partition(": ")
            progress.about(subject)
            progress.doing(doing, None)
            next_s = time.monotonic() + (_REFRESH_S if console.is_terminal else _EVERY_S)

    with show_progress(console) as progress:
        yield show
