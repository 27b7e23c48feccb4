"""How well the reported throughput agrees with an independent loop, and with itself from run to run. Prints and writes.

    python benchmarks/agreement.py --runs 10 --csv results/agreement-nvidia-h200.csv

The loop is as plain as can be: a process of its own, warm-up, batches submitted for ten seconds, the host clock, one
synchronisation at the end. Each run is the main job with its defaults, in fresh processes, and the loops stand before
and after all of them. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import fmean, median, quantiles

import pandas as pd

from tputfind.files import Keeper
from tputfind.ledger import Silent
from tputfind.measure.children import Children
from tputfind.run import inspect, measure, new_record
from tputfind.spec import read_spec
from tputfind.summary import throughput_interval

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
        start, batches = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            for _ in range(10):
                module(inputs)
            batches += 10
        torch.cuda.synchronize()
        rates[size] = batches * size / (time.perf_counter() - start)
print(json.dumps(rates))
"""


def main() -> None:
    """Measure, print a line a batch size, write the table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--models", default="resnet50,mobilenet_v3_large,vit_b_16")
    asked.add_argument("--batch-sizes", default="1,32,256")
    asked.add_argument("--runs", type=int, default=10)
    asked.add_argument("--loop-seconds", type=float, default=10)
    asked.add_argument("--csv")
    options = asked.parse_args()
    sizes = [int(size) for size in options.batch_sizes.split(",")]
    table = []
    with Children() as children:
        for model in options.models.split(","):
            loops = [loop(model, sizes, options.loop_seconds)]
            runs = [rows(children, model, sizes) for _ in range(options.runs)]
            loops.append(loop(model, sizes, options.loop_seconds))
            for size in sizes:
                table.append(compared(model, size, [each[size] for each in loops], [each[size] for each in runs]))
                print(table[-1], flush=True)
            if options.csv:
                pd.DataFrame(table).to_csv(options.csv, index=False, float_format="%.6g")
    print(pd.DataFrame(table).to_string(float_format="%.4g"))


def loop(model: str, sizes: list[int], seconds: float) -> dict[int, float]:
    """Return the samples per second of the plain loop, by batch size."""
    command = [sys.executable, "-c", LOOP, model, json.dumps(sizes), str(seconds)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {int(size): rate for size, rate in json.loads(said.splitlines()[-1]).items()}


def rows(children: Children, model: str, sizes: list[int]) -> dict[int, tuple[float, float, float, str]]:
    """Return what one run reports, by batch size: throughput, both ends of its interval, kinds of notices."""
    spec = read_spec(model, {"dtype": "fp16", "device": "cuda", "batch_sizes": sizes})
    inspection = inspect(spec, children)
    record = measure(new_record(spec, inspection, "benchmarks/agreement.py"), children, Keeper(None, ""), Silent())
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
