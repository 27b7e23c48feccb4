"""Compare the search by forecast with plain bisection: edges, trials, durations. Prints and writes.

    python benchmarks/search.py --limits 8GiB,24GiB,80GiB,all --csv results/nvidia-h200/search/fp16.csv

Both searches use fresh processes, and neither times any rows. A search takes the sum of its trials. The unavoidable
part is one trial on either side of the edge: ``proving_s``. Each line also has the result of `tputfind forecast` for a
device of that memory, compared with the larger of the two edges, and whether batches around the edge fail and fit as
forecast (``gap``, ``again``). The table is written after every line, and summed up by ``search_summary.py``. Needs a
CUDA device.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

import msgspec
import pandas as pd

from tputfind.processes.children import Children
from tputfind.record.files import RecordFile
from tputfind.record.record import Edge, Record
from tputfind.record.spec import Spec, read_spec
from tputfind.record.types import LARGEST_BATCH, METHOD
from tputfind.search.edge import find_edge
from tputfind.session import forecast
from tputfind.session.expectations import first_batch
from tputfind.session.inspect import inspect, new_record
from tputfind.session.progress import Silent
from tputfind.session.session import Session
from tputfind.session.trials import TrialRunner
from tputfind.units import GIB

MODELS = "resnet50,efficientnet_b0,vit_b_16,swin_t,densenet121,mobilenet_v3_large"


def main() -> None:
    """Measure, print every search, write the table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--models", default=MODELS)
    asked.add_argument("--dtypes", default="fp16,fp32")
    asked.add_argument("--layouts", default="nchw")
    asked.add_argument("--limits", default="8GiB,24GiB,80GiB,all")
    asked.add_argument("--allocator", choices=["native", "expandable"])
    asked.add_argument("--searches", default="forecast,bisect")
    asked.add_argument("--csv", help="lines are added to what it holds")
    asked.add_argument("--keep", help="folder for the records, with all trials")
    options = asked.parse_args()
    limits, searches = options.limits.split(","), options.searches.split(",")
    held = options.csv and Path(options.csv).exists()
    lines: list[dict[str, object]] = []
    if held:
        lines += [
            {str(name): value for name, value in line.items()} for line in pd.read_csv(options.csv).to_dict("records")
        ]
    with Children() as children:
        for named in itertools.product(
            *(value.split(",") for value in (options.models, options.dtypes, options.layouts))
        ):
            model, dtype, layout = named
            given = {"dtype": dtype, "layout": layout, "device": "cuda", "allocator": options.allocator}
            edges: dict[int, int] = {}
            for limit, search in itertools.product(limits, searches):
                limited = {} if limit == "all" else {"memory_limit": limit}
                edge, session = searched(children, model, given | limited | {"search": search})
                record, limit_bytes = session.record, edge.memory_limit_bytes
                if search == searches[0]:
                    lines.append({"method": METHOD, "model": model, "dtype": dtype, "layout": layout, "memory": limit})
                lines[-1] |= compared(search, edge, record)
                if search == "forecast":
                    lines[-1] |= around(session, edge)
                if limit_bytes is not None:
                    edges[limit_bytes] = max(edge.largest_batch, edges.get(limit_bytes, 0))
                print(*named, limit, search, told(edge, record), flush=True)
                if options.keep:
                    name = f"{model}-{dtype}-{layout}-{limit}-{search}.json"
                    (Path(options.keep) / name).write_bytes(session.record.to_json())
                write(lines, options.csv)
            of_model = [line for line in lines if (line["model"], line["dtype"], line["layout"]) == named]
            add_forecasts(children, read_spec(model, given), edges, of_model)
            write(lines, options.csv)
    print(pd.DataFrame(lines).to_string(float_format="%.6g"))


def write(lines: list[dict[str, object]], path: str | None) -> None:
    """Write the table, if a file was named."""
    if path:
        pd.DataFrame(lines).to_csv(path, index=False, float_format="%.6g")


def add_forecasts(children: Children, spec: Spec, edges: dict[int, int], lines: list[dict[str, object]]) -> None:
    """Add the result of `tputfind forecast` for these memories to the lines with known edges."""
    if not edges:
        return
    start = perf_counter()
    found = forecast.forecast_with(spec, sorted(edges), children, Silent(), "benchmarks/search.py")
    print(spec.model, spec.dtype, spec.layout, found.cards, found.tried, f"{perf_counter() - start:.1f} s", flush=True)
    for card in found.cards:
        for line in lines:
            if line["memory"] == f"{card.memory_bytes // GIB}GiB":
                off = card.largest_batch / edges[card.memory_bytes] - 1
                line |= {"command_forecast": card.largest_batch, "command_off_percent": 100 * off}
                line |= {"command_stated_percent": 100 * card.error, "command_trials": len(found.tried)}


def searched(children: Children, model: str, given: Mapping[str, str | bool | None]) -> tuple[Edge, Session]:
    """Return the edge, and the session with the trials."""
    spec = read_spec(model, given)
    inspection = inspect(spec, children)
    record = new_record(spec, inspection, "benchmarks/search.py")
    session = Session(record, TrialRunner(children, spec, inspection.environment), RecordFile(None, ""), Silent())
    edge = find_edge(
        session.try_batch,
        lambda _: None,
        granularity=1,
        max_batch=LARGEST_BATCH,
        first=first_batch(session.record),
        forecast=session.expected_edge,
    )
    return msgspec.structs.replace(edge, memory_limit_bytes=spec.memory_limit_bytes), session


def compared(search: str, edge: Edge, record: Record) -> dict[str, object]:
    """Return the columns of one search in a line of the table."""
    seconds = {trial.batch_size: trial.seconds for trial in record.trials}
    found: dict[str, object] = {
        f"{search}_edge": edge.largest_batch,
        f"{search}_trials": len(record.trials),
        f"{search}_s": sum(seconds.values()),
    }
    proving_s = seconds[edge.largest_batch] + seconds.get(edge.fails_at or 0, 0.0)
    return found | {f"{search}_proving_s": proving_s}


def around(session: Session, edge: Edge) -> dict[str, object]:
    """Return a smaller batch that is forecast to fail, a larger one forecast to fit, and whether each failed."""
    gap, again = session.probe_non_monotonic(edge)
    fails = {trial.batch_size: trial.failure is not None for trial in session.record.trials}
    found: dict[str, object] = {
        "gap_forecast": gap,
        "gap_fails": fails.get(gap or 0),
        "again_forecast": again,
        "again_fails": fails.get(again or 0),
    }
    print(found, flush=True)
    return found


def told(edge: Edge, record: Record) -> str:
    """Return a search in words, trial by trial."""
    limit = record.spec.memory_limit_bytes
    steps = " ".join(
        f"{trial.batch_size}{'' if trial.failure is None else '!'}({trial.seconds:.1f})" for trial in record.trials
    )
    return f"{edge.largest_batch} by {edge.limited_by}, {len(record.trials)} trials, limit {limit}: {steps}"


if __name__ == "__main__":
    main()
