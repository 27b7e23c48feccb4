"""What one `tputfind size` asks: records, prices and arrivals read, simulated, written and shown."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from tputfind import files
from tputfind.errors import BadRequest, TputfindError
from tputfind.job import say, stop_signals, terminal_that_may_be_gone
from tputfind.places import Places, check_apart, check_places
from tputfind.record import Record
from tputfind.report import plans
from tputfind.sizing.answers import answers, curve
from tputfind.sizing.demand import Demand, gaps_of, read_demand
from tputfind.sizing.plan import Price


class Request(NamedTuple):
    """What to size, from what, and where to write it."""

    records: list[Record]
    demand: Demand
    prices: list[Price]
    places: Places
    curve: bool


def read_request(
    records: Sequence[str],
    options: Mapping[str, object],
    places: Places,
    *,
    arrivals: str | None,
    price_file: str | None,
    curve: bool,
) -> Request:
    """Return the request that a command line describes, checked before anything is simulated.

    Args:
        records: files that runs of the tool saved.
        options: as ``demand.read_demand`` takes them.
        places: files to write.
        arrivals: a file of the times at which requests came, in its first column, or None.
        price_file: a file of prices, or None.
        curve: whether to follow the rate instead.

    Raises:
        BadRequest: what is wrong with the options or a file.
        BadRecord: a file is no record.
    """
    if not records:
        raise BadRequest("no record to size from", "tputfind size results/resnet50-fp16-nvidia-h200.json --rate ...")
    if curve and len(records) > 1:
        raise BadRequest("--curve follows one record")
    if curve and (places.csv or places.json or places.md):
        raise BadRequest("--curve is printed: > curve.csv keeps it")
    gaps = None if arrivals is None else _gaps(Path(arrivals))
    demand = read_demand({**options, "gaps": gaps})
    prices = [] if price_file is None else _prices(Path(price_file))
    check_places(places, None, 1)
    check_apart(places, records)
    return Request([files.load_record(path) for path in records], demand, prices, places, curve)


def do(request: Request, *, show_traceback: bool) -> int:
    """Simulate, write, show, and return the exit code.

    Raises:
        TputfindError: no record allows a plan.
    """
    problems: list[TputfindError] = []
    with stop_signals():
        if request.curve:
            followed = plans.curve_csv(curve(request.records[0], request.demand))
            with terminal_that_may_be_gone(problems):
                sys.stdout.write(followed.decode())
            return problems[0].exit_code if problems else 0
        found = answers(request.records, request.demand, request.prices)
    if not found.plans:
        for _, error in found.without[1:]:
            say(error, show_traceback=show_traceback)
        raise found.without[0][1]
    for path, written in (
        (request.places.csv, plans.to_csv),
        (request.places.json, plans.to_json),
        (request.places.md, plans.to_markdown),
    ):
        if path:
            files.write_whole(Path(path), written(found))
    with terminal_that_may_be_gone(problems):
        plans.print_plans(found, Console())
    for _, error in found.without:
        say(error, show_traceback=show_traceback)
    for plan in found.plans if request.prices else ():
        if plan.price is None:
            say(BadRequest(f"--price has none of {plan.device_name}"), show_traceback=show_traceback)
    return problems[0].exit_code if problems else 0


def _lines(path: Path) -> list[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [[cell.strip() for cell in line] for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadRequest(f"{path} cannot be read: {error}") from None


def _gaps(path: Path) -> tuple[float, ...]:
    """Return the times between the requests whose times are in the first column of a file, with or without a header."""
    cells = [line[0] for line in _lines(path)]
    try:
        first = [] if not cells or not _is_number(cells[0]) else [float(cells[0])]
        return gaps_of(first + [float(cell) for cell in cells[1:]])
    except ValueError as error:
        raise BadRequest(f"--arrivals {path}: {error}", "its first column holds the times of requests") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _prices(path: Path) -> list[Price]:
    names, *lines = _lines(path) or [[]]
    found: list[Price] = []
    for line in lines:
        try:
            found.append(msgspec.convert(dict(zip(names, line, strict=True)), Price, strict=False))
            if [price.device for price in found].count(found[-1].device) > 1:
                raise ValueError("that device has a price already")  # noqa: TRY301  # as for a line that cannot be read
        except (ValueError, msgspec.ValidationError) as error:
            hint = "its columns are device,price_per_hour,currency,source,date"
            raise BadRequest(f"--price {path}: {', '.join(line)}: {error}", hint) from None
    if not found:
        raise BadRequest(f"--price {path} holds no price")
    return found
