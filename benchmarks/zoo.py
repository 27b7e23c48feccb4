"""Run each of torchvision's models at two batch sizes through the tool; report which run, and why others do not.

    python benchmarks/zoo.py --dtypes fp16,amp-fp16 --batch-sizes 1,8 --at-once 6 --csv zoo.csv

A model is measured in the first of the dtypes; if it fails there, its line stays and the next dtype gets another. The
table is written after every model. It shows whether models run, not how fast: few batches are timed, in one process,
while other models run at the same time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fnmatch import fnmatchcase
from queue import SimpleQueue

import pandas as pd

from tputfind.errors import TputfindError
from tputfind.processes.children import Children
from tputfind.processes.messages import NamedModel
from tputfind.record.files import RecordFile
from tputfind.record.record import Row
from tputfind.record.spec import read_spec
from tputfind.session import catalogue
from tputfind.session.inspect import inspect, new_record
from tputfind.session.progress import Silent
from tputfind.session.run import measure

QUICK = {"batches": 10, "warmup": 2, "processes": 1}


def main() -> None:
    """Measure, print every line, write the table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--models", default="*", help="patterns, with commas between")
    asked.add_argument("--dtypes", default="fp16,amp-fp16")
    asked.add_argument("--batch-sizes", default="1,8")
    asked.add_argument("--image-size", help="for a quick try; the models' own otherwise")
    asked.add_argument("--device", default="auto")
    asked.add_argument("--at-once", type=int, default=1, help="models")
    asked.add_argument("--csv")
    options = asked.parse_args()
    given = {name: getattr(options, name) for name in ("batch_sizes", "device", "image_size")} | QUICK
    lines: list[dict[str, object]] = []
    idle: SimpleQueue[Children] = SimpleQueue()
    with ExitStack() as opened:
        for _ in range(options.at_once):
            idle.put(opened.enter_context(Children()))

        def in_turn(model: NamedModel) -> list[dict[str, object]]:
            children = idle.get()
            try:
                return list(in_first_dtype(model, options.dtypes.split(","), given, children))
            finally:
                idle.put(children)

        first = idle.get()
        patterns = options.models.split(",")
        models = [
            model for model in catalogue.ask_zoo("*", first) if any(fnmatchcase(model.name, at) for at in patterns)
        ]
        idle.put(first)
        pool = opened.enter_context(ThreadPoolExecutor(options.at_once))
        for found in pool.map(in_turn, models):
            lines += found
            for line in found:
                print(*line.values(), flush=True)
            if options.csv:
                pd.DataFrame(lines).to_csv(options.csv, index=False)
    statuses = pd.DataFrame(lines).groupby(["family", "dtype", "batch_size", "status"]).size()
    print(statuses.to_string())


def in_first_dtype(
    model: NamedModel, dtypes: list[str], options: dict[str, object], children: Children
) -> Iterator[dict[str, object]]:
    """Yield the lines of the first dtype in which a model runs, and of the dtypes before it."""
    for dtype in dtypes:
        lines = list(measured(model, options | {"dtype": dtype}, children))
        yield from lines
        if all(line["status"] == "ok" for line in lines):
            return


def measured(model: NamedModel, options: dict[str, object], children: Children) -> Iterator[dict[str, object]]:
    """Yield a line for every batch size that was timed or failed."""
    spec = read_spec(model.name, {name: value for name, value in options.items() if value is not None})
    named = {"model": model.name, "family": model.family, "dtype": spec.dtype}
    rows: tuple[Row, ...] = ()
    reason = ""
    try:
        begun = new_record(spec, inspect(spec, children), "benchmarks/zoo.py")
        record, _, ended_by = measure(begun, children, RecordFile(None, ""), Silent())
        rows = record.rows
        if ended_by is not None:
            raise ended_by
    except TputfindError as error:
        reason = error.message
    for row in rows:
        yield {
            **named,
            "batch_size": row.batch_size,
            "status": row.status,
            "output": row.output.result if row.output else "",
            "reason": row.failure.message if row.failure else (row.output.remark if row.output else ""),
        }
    if not rows:
        batch_size = (spec.batch_sizes or (1,))[0]
        line = {**named, "batch_size": batch_size, "status": "refused", "output": ""}
        yield line | {"reason": reason}


if __name__ == "__main__":
    main()
