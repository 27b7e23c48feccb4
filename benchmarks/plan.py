"""Measure the cost and the accuracy of the plan of timing, against rows that are timed in full.

    python benchmarks/plan.py coverage                      how often intervals contain the true rate, simulated
    python benchmarks/plan.py replay RECORD.json ...         the plan on the raw samples of records
    python benchmarks/plan.py one RECORD.json ...            how far one process lies from others of its row
    python benchmarks/plan.py pairs 20                      default and --thorough runs in turn, on this CPU
    python benchmarks/plan.py repeats 12                    one model again and again: processes of a run, and runs
    python benchmarks/plan.py budget 20                     runs under --budget, on this CPU

A replayed process is one of the row's recorded processes, from a random batch on. Processes beyond the recorded number
are shifted by the variation between the recorded ones. Building, checks and first steps take their recorded time. The
batches before a recorded window were not kept, so transients are not replayed.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from statistics import correlation, fmean, median, stdev
from typing import Final, NamedTuple

from msgspec.structs import replace

from tputfind.analysis.answers import fastest, knee, known_interval, throughput_interval
from tputfind.processes.messages import Plan
from tputfind.record.files import load_record
from tputfind.record.record import Record, Row, Timing, host_bound, merge_rows
from tputfind.record.spec import Spec
from tputfind.report.text import seconds_spent
from tputfind.session import stopping
from tputfind.stats import percentile, t_quantile
from tputfind.worker.timing import lacking_batches, settled_from

REPEATS: Final = 20
SIMULATED: Final = 4000
WANTED: Final = 0.03
"""The ``--max-noise`` of simulated rows."""
MODELS: Final = (
    "resnet18 --image-size 64",
    "mobilenet_v3_small --image-size 96",
    "squeezenet1_1 --image-size 96",
    "shufflenet_v2_x0_5 --image-size 96",
    "mnasnet0_5 --image-size 96",
)
CAP: Final = "--max-batch 8"


class Compared(NamedTuple):
    """The answers of a short run, compared with a long run of the same batch sizes."""

    same_knee: bool
    fastest_within: bool
    held: int
    rows: int


def compared(short: Record, long: Record) -> Compared:
    """Compare the answers and intervals of a short run with a long one of the same batch sizes.

    Two rows count as the same knee if their throughputs differ by less than the combined half-width of the long run.
    """
    rates = {row.batch_size: row.samples_per_s or 0.0 for row in long.rows}
    widths = {row.batch_size: width(row) for row in long.rows}
    bends, bests = (knee(short.rows), knee(long.rows)), (fastest(short.rows), fastest(long.rows))
    same_knee = bends[0] is None or bends[1] is None or near(bends[0], bends[1], rates, widths)
    best = bests[0] is not None and rates[bests[0].batch_size] >= 0.99 * max(rates.values())
    intervals = [(known_interval(short, row), rates[row.batch_size]) for row in short.rows]
    told = [(interval, rate) for interval, rate in intervals if interval is not None]
    held = sum(interval.low <= rate <= interval.high for interval, rate in told)
    return Compared(same_knee, best, held, len(told))


def near(one: Row, other: Row, rates: dict[int, float], widths: dict[int, float]) -> bool:
    ratio = rates[one.batch_size] / rates[other.batch_size]
    return abs(ratio - 1) <= math.hypot(widths[one.batch_size], widths[other.batch_size]) + 1e-9


def same_edge(one: Record, other: Record) -> bool:
    """Whether two runs found the same largest batch for the same reason; the free memory may differ."""
    if one.edge is None or other.edge is None:
        return one.edge is other.edge
    return (one.edge.largest_batch, one.edge.limited_by) == (other.edge.largest_batch, other.edge.limited_by)


def width(row: Row) -> float:
    interval = throughput_interval(row)
    return 0.0 if interval is None else interval.half_width


def coverage(_: argparse.Namespace) -> None:
    """Print how often the interval of a row contains the true throughput, if the plan ends rows."""
    default = Spec(model="resnet18")
    kinds = (
        ("--max-noise 3%, 0.5 s a process", replace(default, max_noise=WANTED), False),
        ("default, the host sets the pace", default, False),
        ("default, the device sets the pace", default, True),
    )
    for kind, spec, device_bound in kinds:
        print(f"{kind}\nscatter  {'normal':32}skewed (exponential)")
        for factor in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 4.0):
            scatter = factor * (stopping.ALIKE if device_bound else WANTED)
            told = [simulated(scatter, spec, device_bound=device_bound, skewed=skewed) for skewed in (False, True)]
            parts = "   ".join(f"{held:6.1%} of {SIMULATED}, {count:4.1f} processes" for held, count in told)
            print(f"{scatter:7.2%}  {parts}")


def simulated(scatter: float, spec: Spec, *, device_bound: bool, skewed: bool) -> tuple[float, float]:
    """Return the fraction of rows whose interval contains the true throughput, and their mean number of processes.

    Args:
        scatter: the standard deviation of processes, as a fraction of their mean.
        spec: the options that end a row.
        device_bound: whether the device limits the throughput.
        skewed: whether the processes have a skewed distribution.
    """
    draw = random.Random(f"{scatter} {spec.max_noise} {device_bound} {skewed}")
    step_ms = 333.0
    held = processes = 0
    for _ in range(SIMULATED):
        row = Row(batch_size=1)
        while stopping.wants_more(spec, row):
            offset = (draw.expovariate(1.0) - 1.0) if skewed else draw.gauss(0.0, 1.0)
            pace_ms = step_ms * (1 + offset * scatter)
            timing = Timing(device_ms=(pace_ms,), enqueue_ms=(1.0,) if device_bound else ())
            row = merge_rows(row, Row(batch_size=1, timings=(timing,), seconds=0.5))
        interval = throughput_interval(row)
        assert interval is not None
        held += interval.low <= 1000 / step_ms <= interval.high
        processes += len(row.timings)
    return held / SIMULATED, processes / SIMULATED


def replay(asked: argparse.Namespace) -> None:
    """Print the results that the plan would give for each record, next to three processes a row, and the totals."""
    plans = {"every row in 3 processes": 3, "default": None}
    said: dict[str, list[Compared]] = {name: [] for name in plans}
    for path in asked.records:
        record = load_record(path)
        if not any(len(row.timings) > 1 for row in record.rows):
            continue
        beside = path.with_name(f"{path.stem}-thorough.json")
        truth = load_record(beside) if beside.exists() else record
        parts = []
        for name, processes in plans.items():
            spec = Spec(model=record.spec.model, processes=processes)
            shorts = [replayed(record, spec, random.Random(f"{path} {number}")) for number in range(asked.draws)]
            said[name] += [compared(short, truth) for short in shorts]
            of_record = said[name][-len(shorts) :]
            wrong = sum(not (one.same_knee and one.fastest_within) for one in of_record)
            walls = [short.wall_s for short in shorts]
            counts = [sum(len(row.timings) for row in short.rows) for short in shorts]
            parts.append(
                f"{name}: {median(walls):.0f} s ({min(walls):.0f}-{max(walls):.0f}), {median(counts):.0f} processes of "
                f"rows, {wrong} wrong"
            )
        print(f"{path}: {record.wall_s:.0f} s then; {'; '.join(parts)}", flush=True)
    for name, found in said.items():
        print(f"{name}: {told_of(found)}")


def told_of(found: Sequence[Compared]) -> str:
    runs, rows = len(found), sum(one.rows for one in found)
    knees, bests = sum(one.same_knee for one in found), sum(one.fastest_within for one in found)
    both = sum(one.same_knee and one.fastest_within for one in found)
    held = sum(one.held for one in found)
    return (
        f"of {runs} replays: knee the same or not to be told apart {knees / runs:.1%}, fastest within 1 % "
        f"{bests / runs:.1%}, both {both / runs:.1%}; of {rows} intervals {held / rows:.1%} hold the record's rate"
    )


def one(asked: argparse.Namespace) -> None:
    """Print how far the throughput of one process lies from that of its row's other processes."""
    off: dict[bool | None, list[float]] = {}
    for path in asked.records:
        for row in load_record(path).rows:
            spans = [timing.device_ms for timing in row.timings if timing.device_ms]
            for number, span in enumerate(spans if len(spans) > 2 else []):
                others = [fmean(other) for place, other in enumerate(spans) if place != number]
                off.setdefault(host_bound(row), []).append(abs(fmean(span) / fmean(others) - 1))
    names = {False: "the device sets the pace", True: "host bound", None: "unknown"}
    for bound, shares in off.items():
        at = "  ".join(f"{percent}% {percentile(shares, percent):.2%}" for percent in (50, 90, 95, 99))
        print(f"{names[bound]}: {len(shares)} processes, off by: {at}  most {max(shares):.2%}")


def replayed(record: Record, spec: Spec, draw: random.Random) -> Record:
    """Return the record as the plan would have made it. Search, start and saving take their recorded time."""
    sources = {row.batch_size: row for row in record.rows if row.failure is None and len(row.timings) > 1}
    order = {size: draw.sample(row.timings, len(row.timings)) for size, row in sources.items()}
    rows: dict[int, Row] = {}
    while True:
        in_order = tuple(rows[size] for size in sorted(rows))
        number, sizes = stopping.next_round(spec, in_order, sorted(sources), record.edge)
        if not sizes:
            break
        for size in sizes:
            made = one_process(spec, sources[size], order[size], number, draw)
            rows[size] = merge_rows(rows[size], made) if number else made
    rest_s = record.wall_s - sum(row.seconds for row in record.rows)
    ended = stopping.end_rows(spec, in_order, record.edge)
    return replace(record, spec=spec, rows=ended, wall_s=rest_s + sum(row.seconds for row in ended))


def one_process(spec: Spec, source: Row, order: Sequence[Timing], number: int, draw: random.Random) -> Row:
    """Return the row that one process times: the recorded processes in this order, then some drawn from them."""
    counted_s = sum((timing.warmup_s or 0.0) + windows_s(timing) for timing in source.timings)
    around_s = max(0.0, source.seconds - counted_s) / len(source.timings)
    means = [fmean(timing.device_ms) for timing in source.timings]
    timing = order[number] if number < len(means) else draw.choice(source.timings)
    shift = 1.0 if number < len(means) else draw.gauss(fmean(means), stdev(means)) / fmean(timing.device_ms)
    made = process(stopping.process_plan(spec, number), timing, shift, draw)
    seconds = around_s + (made.warmup_s or 0.0) + windows_s(made)
    return Row(batch_size=source.batch_size, timings=(made,), seconds=seconds)


def windows_s(timing: Timing) -> float:
    return (sum(timing.device_ms) + (0.0 if timing.one_window else sum(timing.latency_ms))) / 1000


def process(planned: Plan, source: Timing, shift: float, draw: random.Random) -> Timing:
    """Return the timing of a process with the batches of a recorded one, in a cycle from a random batch on."""
    begin = draw.randrange(len(source.device_ms))
    endless = [span_ms * shift for span_ms in (source.device_ms[begin:] + source.device_ms[:begin])]
    taken: list[float] = []
    step_ms, lead_ins = source.first_step_ms or endless[0], 0
    while True:
        start, steady = settled_from(taken)
        kept = taken[start:]
        lacking = lacking_batches(planned, kept, step_ms)
        over_s = sum(taken) / 1000
        if (not lacking and (steady is not False or over_s >= 4 * planned.window_s)) or (
            kept and over_s >= planned.max_seconds
        ):
            break
        block = min(lacking or len(kept) // 2 + 1, max(1, math.floor((planned.max_seconds - over_s) * 1000 / step_ms)))
        taken += [endless[number % len(endless)] for number in range(len(taken), len(taken) + block)]
        step_ms, lead_ins = median(taken[-block:]), lead_ins + 1
    one_by_one = step_ms >= 100
    latency = source.latency_ms[: planned.latency_batches]
    soft = next((n for n in range(1, len(latency)) if sum(latency[:n]) >= 1000 * planned.window_s), len(latency))
    before_ms = (source.first_step_ms or step_ms) + (0 if one_by_one else lead_ins * step_ms) + sum(taken[:start])
    return Timing(
        device_ms=tuple(kept),
        latency_ms=tuple(kept) if one_by_one else latency[: max(1, soft)],
        one_window=one_by_one,
        enqueue_ms=source.enqueue_ms[: max(1, soft)],
        first_step_ms=source.first_step_ms,
        warmup_steps=1,
        warmup_s=before_ms / 1000,
        compiled=source.compiled,
    )


def run(arguments: str, folder: Path) -> tuple[Record, float]:
    """Run the command, and return its record and its seconds."""
    file = folder / "record.json"
    file.unlink(missing_ok=True)
    start = time.perf_counter()
    command = [sys.executable, "-m", "tputfind", *arguments.split(), "--quiet", "--no-save", "--save", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return load_record(file), time.perf_counter() - start


def pairs(asked: argparse.Namespace) -> None:
    """Print the results of default runs and thorough ones of the same model, in turn."""
    said: list[Compared] = []
    seconds: list[tuple[float, float]] = []
    ratios: list[float] = []
    edges = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.count):
            model = MODELS[number % len(MODELS)]
            short, short_s = run(f"{model} {CAP}", Path(folder))
            long, long_s = run(f"{model} {CAP} --thorough", Path(folder))
            spent = seconds_spent(short)
            ratios.append(short.wall_s / (spent.get("search", 0.0) + spent["timing"]))
            said.append(compared(short, long))
            seconds.append((short_s, long_s))
            edges += same_edge(short, long)
            one = said[-1]
            print(
                f"{model} {CAP}: {short_s:.1f} s, thorough {long_s:.1f} s, wall over search and windows "
                f"{ratios[-1]:.2f}; knee {one.same_knee}, fastest {one.fastest_within}, {one.held} of {one.rows} held",
                flush=True,
            )
    count = len(said)
    shorts, longs = zip(*seconds, strict=True)
    print(
        f"median {median(shorts):.1f} s, thorough {median(longs):.1f} s; wall over search and windows "
        f"{median(ratios):.2f}; same edge {edges} of {count}; knee the same or not to be told apart "
        f"{sum(one.same_knee for one in said)}; fastest "
        f"within 1 % {sum(one.fastest_within for one in said)}; intervals that hold the thorough run's rate "
        f"{sum(one.held for one in said)} of {sum(one.rows for one in said)}"
    )


def repeats(asked: argparse.Namespace) -> None:
    """Print the run-to-run variation of one model's throughput, and its estimate from the processes of each run."""
    with tempfile.TemporaryDirectory() as folder:
        records = [run(f"{MODELS[0]} {CAP} --processes 3", Path(folder))[0] for _ in range(asked.count)]
    by_row = [[record.rows[at] for record in records] for at in range(len(records[0].rows))]
    for rows in by_row:
        rates = [one.samples_per_s or 0.0 for one in rows]
        # Half a width over the quantile of Student's t is a standard error.
        errors = [width(one) / t_quantile(len(one.timings) - 1) for one in rows]
        between, within = stdev(rates) / fmean(rates), math.sqrt(fmean(error**2 for error in errors))
        apart = list(combinations(rows, 2))
        ratios = [((other.samples_per_s or 0.0) / (one.samples_per_s or 1.0), width(one)) for one, other in apart]
        held = sum(abs(ratio - 1) <= half for ratio, half in ratios)
        drift = correlation(rates[:-1], rates[1:])
        print(
            f"batch {rows[0].batch_size}: runs scatter by {between:.2%}, their processes let expect {within:.2%}; "
            f"{held} of {len(apart)} intervals hold a later run's rate; a run's rate and the next one's correlate by "
            f"{drift:+.2f}; rates {' '.join(f'{rate:.0f}' for rate in rates)}",
            flush=True,
        )
    rates_of = [[one.samples_per_s or 0.0 for one in rows] for rows in by_row]
    together = [f"{correlation(one, other):+.2f}" for one, other in pairwise(rates_of)]
    print(f"rates of neighbouring batch sizes in one run correlate by {' '.join(together)}")


def budget(asked: argparse.Namespace) -> None:
    """Print the durations of runs under a budget; the allowance is one step and two seconds."""
    kept = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.count):
            model, given_s = MODELS[number % len(MODELS)], 6 + number
            record, seconds = run(f"{model} {CAP} --budget {given_s}s", Path(folder))
            step_s = max((trial.step_ms or 0.0 for trial in record.trials), default=0.0) / 1000
            kept += seconds <= given_s + step_s + 2
            ended = ", ".join(f"{row.batch_size} {row.ended_by}" for row in record.rows)
            print(f"{model} {CAP} --budget {given_s}s: {seconds:.1f} s, rows {ended}", flush=True)
    print(f"{kept} of {asked.count} ended within their budget, a step and 2 s")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the named benchmark."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = asked.add_subparsers(required=True)
    words.add_parser("coverage").set_defaults(do=coverage)
    of_records = words.add_parser("replay")
    of_records.add_argument("records", nargs="+", type=Path)
    of_records.add_argument("--draws", type=int, default=REPEATS)
    of_records.set_defaults(do=replay)
    of_records = words.add_parser("one")
    of_records.add_argument("records", nargs="+", type=Path)
    of_records.set_defaults(do=one)
    for name, do in (("pairs", pairs), ("repeats", repeats), ("budget", budget)):
        of_runs = words.add_parser(name)
        of_runs.add_argument("count", type=int)
        of_runs.set_defaults(do=do)
    given = asked.parse_args(arguments)
    given.do(given)


if __name__ == "__main__":
    main()
