"""Compare the reported throughput with an independent loop, and from run to run. Prints and writes.

    python benchmarks/agreement.py --runs 10 --csv results/nvidia-h200/agreement/fp16.csv

The loop is plain: its own process, five seconds of untimed work, ten more of timed batches, the host clock, and one
synchronisation at the end. Each run is the main job with its defaults, in fresh processes. Loops run before the runs,
after them and evenly between; their mean is the reference. The table is written after every run, and the figures of
each run are printed. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import fmean, median, quantiles

import pandas as pd

from tputfind.analysis.answers import throughput_interval
from tputfind.processes.children import Children
from tputfind.record.files import RecordFile
from tputfind.record.spec import read_spec
from tputfind.session.inspect import inspect, new_record
from tputfind.session.progress import Silent
from tputfind.session.run import measure

LOOP = """
import json, sys, time, torch, torchvision
model, sizes, seconds = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
module = torchvision.models.get_model(model, weights=None).eval().half().cuda()
rates = {}
for size in sizes:
    inputs = torch.randn(size, 3, 224, 224, dtype=torch.float16, device="cuda")
    with torch.inference_mode():
        for _ in range(20):
            module(inputs)
        torch.cuda.synchronize()
        for lasts in (seconds / 2, seconds):  # the first does not count: a power limit takes seconds to show
            start, batches = time.perf_counter(), 0
            while time.perf_counter() - start < lasts:
                for _ in range(10):
                    module(inputs)
                batches += 10
            torch.cuda.synchronize()
        rates[size] = batches * size / (time.perf_counter() - start)
print(json.dumps(rates))
"""


Run = dict[int, tuple[float, float, float, str]]
"""The report of a run by batch size: throughput, both ends of its interval, kinds of notices."""


def main() -> None:
    """Measure, print the figures of every loop and run, write the table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--models", default="resnet50,mobilenet_v3_large,vit_b_16")
    asked.add_argument("--batch-sizes", default="1,32,256")
    asked.add_argument("--runs", type=int, default=10)
    asked.add_argument("--loops", type=int, default=3)
    asked.add_argument("--loop-seconds", type=float, default=10)
    asked.add_argument("--csv")
    options = asked.parse_args()
    sizes = [int(size) for size in options.batch_sizes.split(",")]
    done: list[dict[str, object]] = []
    with Children() as children:
        for model in options.models.split(","):
            loops, runs = [loop(model, sizes, options.loop_seconds)], list[Run]()
            print(model, "loop", loops[-1], flush=True)
            for number in range(1, options.runs + 1):
                runs.append(rows(children, model, sizes))
                print(model, runs[-1], flush=True)
                while len(loops) - 1 < number * (options.loops - 1) // options.runs:
                    loops.append(loop(model, sizes, options.loop_seconds))
                    print(model, "loop", loops[-1], flush=True)
                lines = [compared(model, size, [at[size] for at in loops], [at[size] for at in runs]) for size in sizes]
                if options.csv:
                    pd.DataFrame(done + lines).to_csv(options.csv, index=False, float_format="%.6g")
            done += lines
    print(pd.DataFrame(done).to_string(float_format="%.4g"))


def loop(model: str, sizes: list[int], seconds: float) -> dict[int, float]:
    """Return the samples per second of the plain loop, by batch size."""
    command = [sys.executable, "-c", LOOP, model, json.dumps(sizes), str(seconds)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {int(size): rate for size, rate in json.loads(said.splitlines()[-1]).items()}


def rows(children: Children, model: str, sizes: list[int]) -> Run:
    """Return the report of one run."""
    spec = read_spec(model, {"dtype": "fp16", "device": "cuda", "batch_sizes": sizes})
    inspection = inspect(spec, children)
    begun = new_record(spec, inspection, "benchmarks/agreement.py")
    record, _, ended_by = measure(begun, children, RecordFile(None, ""), Silent())
    if ended_by is not None:
        raise ended_by
    found = {}
    for row in record.rows:
        interval = throughput_interval(row)
        assert interval is not None
        assert row.samples_per_s is not None
        kinds = ";".join(notice.kind for notice in record.notices if row.batch_size in notice.batch_sizes)
        found[row.batch_size] = (row.samples_per_s, interval.low, interval.high, kinds)
    return found


def compared(
    model: str, size: int, loops: list[float], runs: list[tuple[float, float, float, str]]
) -> dict[str, object]:
    """Return one line of the table."""
    rates = [rate for rate, _, _, _ in runs]
    truth = fmean(loops)
    first, _, third = quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else rates * 3
    return {
        "model": model,
        "batch_size": size,
        "loop_per_s": truth,
        "loops": len(loops),
        "loops_differ_percent": 100 * (max(loops) / min(loops) - 1),
        "runs": len(runs),
        "run_per_s_median": median(rates),
        "run_off_percent_median": 100 * (median(rates) / truth - 1),
        "runs_within_half_percent": sum(abs(rate / truth - 1) <= 0.005 for rate in rates),
        "intervals_that_cover": sum(low <= truth <= high for _, low, high, _ in runs),
        "interval_half_width_percent_median": 100 * median((high - low) / 2 / rate for rate, low, high, _ in runs),
        "runs_iqr_percent": 100 * (third - first) / median(rates),
        "notices": " ".join(sorted({kind for *_, kinds in runs for kind in kinds.split(";") if kind})),
    }


if __name__ == "__main__":
    main()
