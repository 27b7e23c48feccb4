"""Each of torchvision's models at two batch sizes, through the tool: which run, and why the others do not.

    python benchmarks/zoo.py --dtypes fp16,amp-fp16 --batch-sizes 1,8 --csv results/zoo-nvidia-h200.csv

A model is measured in the first of the dtypes; where it fails there, its line stays and the next dtype has another. The
table is written after every model. Few batches are timed, in one process: what it shows is whether they run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pandas as pd

from tputfind.errors import TputfindError
from tputfind.files import Keeper
from tputfind.ledger import Silent
from tputfind.measure import catalogue
from tputfind.measure.children import Children
from tputfind.measure.messages import NamedModel
from tputfind.run import inspect, measure, new_record
from tputfind.spec import read_spec

QUICK = {"batches": 10, "latency_batches": 10, "warmup": 2, "processes": 1, "min_seconds": "0"}


def main() -> None:
    """Measure, print every line, write the table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--models", default="*", help="a pattern")
    asked.add_argument("--dtypes", default="fp16,amp-fp16")
    asked.add_argument("--batch-sizes", default="1,8")
    asked.add_argument("--image-size", help="for a quick try; the models' own otherwise")
    asked.add_argument("--device", default="auto")
    asked.add_argument("--csv")
    options = asked.parse_args()
    lines: list[dict[str, object]] = []
    with Children() as children:
        for model in catalogue.asked("*", children):
            if not fnmatchcase(model.name, options.models):
                continue
            for dtype in options.dtypes.split(","):
                given = {"dtype": dtype, "batch_sizes": options.batch_sizes, "device": options.device}
                found = list(measured(model, given | {"image_size": options.image_size} | QUICK, children))
                lines += found
                for line in found:
                    print(*line.values(), flush=True)
                if options.csv:
                    pd.DataFrame(lines).to_csv(options.csv, index=False, float_format="%.6g")
                if all(line["status"] == "ok" for line in found):
                    break
    statuses = pd.DataFrame(lines).groupby(["family", "dtype", "batch_size", "status"]).size()
    print(statuses.to_string())


def measured(model: NamedModel, options: dict[str, object], children: Children) -> Iterator[dict[str, object]]:
    """Yield a line for every batch size that was timed or failed."""
    spec = read_spec(model.name, {name: value for name, value in options.items() if value is not None})
    named = {"model": model.name, "family": model.family, "dtype": spec.dtype}
    keeper = Keeper(None, "")
    reason = ""
    try:
        measure(new_record(spec, inspect(spec, children), "benchmarks/zoo.py"), children, keeper, Silent())
    except TputfindError as error:
        reason = error.message
    rows = keeper.record.rows if keeper.record else ()
    for row in rows:
        yield {
            **named,
            "batch_size": row.batch_size,
            "status": row.status,
            "samples_per_s": row.samples_per_s,
            "output": row.output.result if row.output else "",
            "reason": row.failure.message if row.failure else (row.output.remark if row.output else ""),
        }
    if not rows:
        batch_size = (spec.batch_sizes or (1,))[0]
        line = {**named, "batch_size": batch_size, "status": "refused", "samples_per_s": None, "output": ""}
        yield line | {"reason": reason}


if __name__ == "__main__":
    main()
