"""Every figure below is reckoned anew from the file that is its evidence, and must stand in README or docs as reckoned.

To add a claim, write its sentence with ``{}`` for each figure and a function that returns the figures as text.
"""

from __future__ import annotations

import ast
import base64
import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from math import ceil
from operator import itemgetter
from statistics import median
from typing import NamedTuple

import pandas as pd
import pytest
from support.docs import PAGES
from support.folders import RESULTS

from tputfind import load_record
from tputfind.analysis.answers import health, knee, rate_ratio_interval
from tputfind.record.record import Record, Row


class Claim(NamedTuple):
    """A sentence or table line of README or docs, the file under ``results/`` that it rests on, and its figures."""

    said: str
    evidence: str
    reckon: Callable[[], tuple[str, ...]]

    @property
    def name(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.said.lower()).strip("-")[:60]


def folded(text: str) -> str:
    return " ".join(text.split())


LINKED = re.compile(r" ?\(\[[^\]]*\]\([^()]*\)[^()]*(?:\([^()]*\)[^()]*)*\)")
"""A link to evidence, or several, in brackets."""
SAID = " ".join(LINKED.sub("", folded(page.read_text())) for page in PAGES)


def record(name: str) -> Record:
    return load_record(RESULTS / f"{name}.json")


def table(name: str) -> pd.DataFrame:
    return pd.read_csv(RESULTS / name)


def fastest(rows: tuple[Row, ...]) -> Row:
    return max(rows, key=lambda row: row.samples_per_s or 0.0)


def rate(row: Row) -> str:
    return f"{row.samples_per_s:.0f}"


def edge_and_fastest(name: str) -> tuple[str, ...]:
    """The largest batch and its rate, the fastest and its rate, the seconds that the run took."""
    found = record(name)
    largest = next(row for row in found.rows if row.batch_size == found.edge.largest_batch)
    best = fastest(found.rows)
    return f"{largest.batch_size}", rate(largest), f"{best.batch_size}", rate(best), f"{found.wall_s:.0f}"


def edge_of_kind(name: str) -> tuple[str, ...]:
    largest, _, best, rate_of_best, seconds = edge_and_fastest(f"nvidia-h200/kinds/{name}")
    return largest, best, rate_of_best, seconds


def edge_of_training(name: str) -> tuple[str, ...]:
    largest, best, rate_of_best, seconds = edge_of_kind(name)
    return largest, f"{record(f'nvidia-h200/kinds/{name}').edge.fails_at}", best, rate_of_best, seconds


def recipes(name: str) -> tuple[str, ...]:
    """Rates at the largest batch size: eager, compiled, their ratio, the compile time, as a CUDA graph, its ratio."""
    eager, compiled, graph = (record(f"nvidia-h200/recipes/{name}{mode}") for mode in ("", "-compile", "-cudagraph"))
    base, above, of_graph = (found.rows[-1] for found in (eager, compiled, graph))
    known = [one.compiled for one in (*compiled.trials, *above.timings) if one.compiled is not None]
    seconds = max(one.seconds for one in known)
    return rate(base), rate(above), times(above, base), f"{seconds:.0f}", rate(of_graph), times(of_graph, base)


def thorough_beside_default() -> tuple[str, ...]:
    """By how many percent the fastest rates of the same models differ, at most; edges and knees are the same."""
    off = []
    for name in (
        "resnet50-fp16",
        "resnet50-fp16-nhwc",
        "vit_b_16-fp16",
        "mobilenet_v3_large-fp16",
        "efficientnet_b0-fp16",
    ):
        usual, thorough = (record(f"nvidia-h100/thorough/{name}{kind}") for kind in ("", "-thorough"))
        assert usual.edge.largest_batch == thorough.edge.largest_batch
        assert usual.edge.fails_at == thorough.edge.fails_at == usual.edge.largest_batch + 1
        assert knee(usual.rows).batch_size == knee(thorough.rows).batch_size
        off.append(abs(fastest(usual.rows).samples_per_s / fastest(thorough.rows).samples_per_s - 1))
    return (f"{100 * max(off):.1f}",)


def times(above: Row, below: Row) -> str:
    interval = rate_ratio_interval(above, below)
    if interval.low <= 1 <= interval.high:
        return "within the noise"
    return f"{above.samples_per_s / below.samples_per_s:.2f}"


def zoo() -> pd.DataFrame:
    return pd.concat([table(f"nvidia-{card}/zoo.csv") for card in ("h200", "h100")])


def zoo_runs() -> tuple[str, ...]:
    every = zoo()
    ran = every.query("status == 'ok'").groupby("dtype").model.nunique()
    never = every.groupby("model").status.agg(lambda status: "ok" not in set(status)).sum()
    return f"{ran['fp16']}", f"{every.model.nunique()}", f"{never}"


def hf_types() -> tuple[str, ...]:
    statuses = table("cpu/hf-types.csv").status.value_counts()
    counts = [statuses[status] for status in ("runs", "refused", "failed", "not built")]
    return tuple(f"{count}" for count in (counts[0], sum(counts[:3]), *counts[1:]))


def zoo_outputs() -> tuple[str, ...]:
    models = zoo().groupby(["model", "family"]).output.agg(set).reset_index()
    unchecked = models[models.output.map(lambda outputs: "unchecked" in outputs)]
    detectors = (unchecked.family == "detection").sum()
    infinite = models.output.map(lambda outputs: "not_finite" in outputs).sum()
    words = {5: "five"}
    return f"{len(unchecked) - detectors}", f"{detectors}", words[infinite]


def largest_is_slower_than_the_fastest() -> tuple[str, ...]:
    found = record("nvidia-h100/default/resnet50-fp16")
    largest, best = found.rows[-1], fastest(found.rows)
    return f"{100 * (1 - largest.samples_per_s / best.samples_per_s):.0f}", f"{best.batch_size}"


def trace_sizes() -> tuple[str, ...]:
    """Of the allocator's traces, as the JSON of the records holds them."""
    sizes = [len(base64.b64encode(trial.trace.packed)) for found in records() for trial in found.trials if trial.trace]
    return f"{min(sizes) / 1000:.1f}", f"{max(sizes) / 1000:.0f}"


def records() -> Iterator[Record]:
    for path in RESULTS.rglob("*.json"):
        if path.parent.name != "clocks":
            yield load_record(path)


def searches(dtype: str, memory: str) -> tuple[str, ...]:
    of = table(f"nvidia-h200/search/{dtype}.csv").query("memory == @memory")
    over, faster = of.forecast_s / of.forecast_proving_s, of.bisect_s / of.forecast_s
    same = (of.forecast_edge == of.bisect_edge).sum()
    return (
        f"{len(of)}", f"{same}", f"{of.forecast_trials.median():.0f} ({of.forecast_trials.max()})",
        f"{of.bisect_trials.median():.0f} ({of.bisect_trials.max()})", f"{of.forecast_s.median():.0f}",
        f"{over.median():.1f} ({over.max():.1f})", f"{faster.median():.1f} ({faster.min():.1f})",
    )  # fmt: skip


def forecasts() -> tuple[str, ...]:
    both = pd.concat([table(f"nvidia-h200/search/{dtype}.csv") for dtype in ("fp16", "fp32")])
    off = both[both.command_forecast.notna()].command_off_percent.abs()
    words = {3: "three"}
    return f"{(off == 0).sum()}", f"{len(off)}", words[((off > 0) & (off <= 0.2)).sum()]


def forecasts_on_fake() -> tuple[str, ...]:
    off = table("nvidia-h200/search/on-fake.csv").off_percent.abs()
    assert (off <= 20).all()
    return f"{(off == 0).sum()}", f"{len(off)}"


def training_forecasts() -> tuple[str, ...]:
    found = table("nvidia-h200/training/forecasts.csv")
    off = found.off_percent
    assert (off.abs() <= found.stated_percent).all()
    return (
        f"{len(found)}",
        f"{off.abs().median():.1f}",
        f"{off.abs().max():.1f}",
        f"{(off > 0).sum()}",
        f"{off.max():.1f}",
    )


def edges_that_differ() -> tuple[str, ...]:
    both = pd.concat([table(f"nvidia-h200/search/{dtype}.csv") for dtype in ("fp16", "fp32")])
    words = {1: "One"}
    return words[(both.forecast_edge != both.bisect_edge).sum()], f"{len(both)}"


def expandable() -> tuple[str, ...]:
    native = table("nvidia-h200/search/fp16.csv").query("model == 'resnet50' and memory == '8GiB' and layout == 'nchw'")
    (found,) = table("nvidia-h200/search/expandable-resnet50-fp16.csv").itertuples()
    assert found.forecast_edge == found.bisect_edge
    return f"{found.forecast_edge}", f"{native.forecast_edge.item()}"


def first_pooling_past_32_bits() -> tuple[str, ...]:
    return (f"{2**32 // (64 * 56 * 56) + 1}",)


def agreement(model: str, batch: int) -> tuple[str, ...]:
    found = table(f"nvidia-h200/agreement/{model}-fp16.csv").query("batch_size == @batch").iloc[0]
    return f"{found.runs_within_half_percent:.0f}", f"{found.intervals_that_cover:.0f}"


def agreement_of_device_bound_rows() -> tuple[str, ...]:
    models = ("resnet50", "vit_b_16", "mobilenet_v3_large")
    rows = [table(f"nvidia-h200/agreement/{model}-fp16.csv").query("batch_size == 256").iloc[0] for model in models]
    return f"{sum(row.runs_within_half_percent for row in rows):.0f}", f"{sum(row.runs for row in rows):.0f}"


def served(load: float) -> tuple[str, ...]:
    """p99 measured and predicted, and the error, of either server at a share of what the device can do."""
    cells: list[str] = []
    for server in ("mosec", "litserve"):
        found = table(f"nvidia-h200/serving/{server}-vit_l_16-fp32.csv").query("load == @load").iloc[0]
        cells += [f"{found.p99_ms:.0f}", f"{found.simulated_p99_ms:.0f}", f"{100 * found.p99_error:+.1f}"]
    return tuple(cells)


def fleet(name: str, rate_per_s: float, devices: int) -> tuple[str, ...]:
    found = table(name)
    row = found[(found.rate_per_s.round() == rate_per_s) & (found.devices == devices)].iloc[0]
    predicted = f"{row.simulated_p99_ms:.3g}" if row.met else "cannot keep up"
    return f"{row.recommended}", f"{row.p99_ms:.4g}" if row.p99_ms >= 1000 else f"{row.p99_ms:.3g}", predicted


def verdicts(name: str, *batches: str) -> Counter[str]:
    found = table(f"nvidia-h200/verdicts/{name}-resnet50-fp16.csv")
    return Counter(found[found.what.isin(batches)].verdict)


def same_verdicts() -> tuple[str, ...]:
    device_bound, host_bound = verdicts("same", "batch 256"), verdicts("same", "batch 1", "batch 32")
    assert set(device_bound) == {"same"}
    assert set(host_bound) == {"ambiguous", "slower"}
    words = {2: "two"}
    return f"{device_bound['same']}", f"{host_bound['ambiguous']}", f"{host_bound.total()}", words[host_bound["slower"]]


def slower_verdicts() -> tuple[str, ...]:
    planted = verdicts("slower", "batch 256")
    assert set(planted) == {"SLOWER"} or set(planted) == {"slower"}
    return (f"{planted.total()}",)


def numbers_in(name: str, pattern: str) -> tuple[str, ...]:
    found = re.search(pattern, (RESULTS / name).read_text())
    assert found, pattern
    return found.groups()


def sampling() -> tuple[str, ...]:
    pattern = r"ratio ([0-9.]+), standard error ([0-9.]+)"
    one, large = re.findall(pattern, (RESULTS / "nvidia-h100/timing/sampling.txt").read_text())
    vit = re.findall(pattern, (RESULTS / "nvidia-h200/timing/sampling.txt").read_text())[-1]
    return *large, *one, *vit


def clock_said(start: str) -> tuple[str, ...]:
    """The line of the report that begins so, whole."""
    for name in ("mobilenet_v3_large-fp32", "resnet50-fp16-batch-1"):
        lines = (RESULTS / f"nvidia-h200/clocks/{name}.md").read_text().splitlines()
        for line in lines:
            if line.startswith(f"- {start}") and folded(line).rstrip(".") in SAID:
                return (folded(line).rstrip("."),)
    return (f"no report has a line of the docs that begins with {start!r}",)


HEADLINES = {
    "resnet50 --dtype fp16": "nvidia-h100/default/resnet50-fp16",
    "resnet50 --dtype fp16 --layout nhwc": "nvidia-h100/default/resnet50-fp16-nhwc",
    "vit_b_16 --dtype fp16": "nvidia-h100/default/vit_b_16-fp16",
    "mobilenet_v3_large --dtype fp16": "nvidia-h100/default/mobilenet_v3_large-fp16",
    "efficientnet_b0 --dtype fp16": "nvidia-h100/default/efficientnet_b0-fp16",
}
KINDS = {
    "deeplabv3_resnet50 --dtype fp16` | 3x520x520": "deeplabv3_resnet50-fp16",
    "fasterrcnn_resnet50_fpn --dtype amp-fp16` | 3x800x1333": "fasterrcnn_resnet50_fpn-amp-fp16",
    "r3d_18 --dtype fp16` | 3x16x112x112": "r3d_18-fp16",
    "raft_small --dtype amp-fp16` | two of 3x520x960": "raft_small-amp-fp16",
    "timm:convnext_tiny --dtype fp16` | 3x224x224": "timm-convnext_tiny-fp16",
    "hf:gpt2 --dtype bf16` | 512 tokens": "hf-gpt2-bf16",
}
RECIPES = {
    "`resnet50` nchw | 256": "resnet50-fp16",
    "`resnet50` nhwc | 256": "resnet50-fp16-nhwc",
    **{
        f"`{model}` | 256": f"{model}-fp16"
        for model in (
            "vit_b_16", "resnet18", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "swin_t",
            "regnet_y_3_2gf", "densenet121", "resnext50_32x4d",
        )
    },
    "`hf:bert`, 512 tokens | 32": "hf-bert-fp16",
}  # fmt: skip


SPINS = tuple(rf"\] {ms} ms: \[([0-9]+\.[0-9]{{3}})" for ms in (1, 5, 20))
"""Of kernels that spin, what events read."""
NEXT_HELD = r"thorough run's rate (\d+) of (\d+)"
"""How many intervals held the rate of the run right after, and of how many."""


def printed(said: str, file: str, *patterns: str) -> Claim:
    """Return the claim whose figures are those of the patterns, in their order, in the output that is in the file."""
    return Claim(said, file, lambda: tuple(figure for one in patterns for figure in numbers_in(file, one)))


def marks_against_loops() -> tuple[str, ...]:
    """The number of windows, and the median, lowest and highest ratio of their rates to the loops'."""
    (found,) = numbers_in("nvidia-h200/tests/loops.txt", r"window against loop: [0-9.]+ of \[([^]]*)\]")
    ratios = [float(ratio) for ratio in found.split(", ")]
    return f"{len(ratios)}", f"{median(ratios):.3f}", f"{min(ratios):.2f}", f"{max(ratios):.2f}"


def p99_of_servers() -> tuple[str, ...]:
    """The largest error of a p99 that was predicted; none that the overheads were found at is in the table."""
    files = (
        "nvidia-h200/serving/mosec-vit_l_16-fp32.csv",
        "nvidia-h200/serving/litserve-vit_l_16-fp32.csv",
        "nvidia-h200-x2/serving/mosec.csv",
    )
    errors = [table(name).query("load >= 0.7").p99_error.abs().max() for name in files]
    return (f"{ceil(1000 * max(errors)) / 10:.1f}",)


def same_edges() -> tuple[str, ...]:
    both = pd.concat([table(f"nvidia-h200/search/{dtype}.csv") for dtype in ("fp16", "fp32")])
    return f"{(both.forecast_edge == both.bisect_edge).sum()}", f"{len(both)}"


def runs_on_an_h100() -> tuple[str, ...]:
    """How many of the runs of three models are within half a percent, and how many there are."""
    names = ("batch-256", "mobilenet_v3_large-batch-256", "mobilenet_v3_large-batch-256-again")
    found = pd.concat([table(f"nvidia-h100/agreement/{name}.csv") for name in names])
    return f"{found.runs_within_half_percent.sum()}", f"{found.runs.sum()}"


def runs_of_mobilenet_again() -> tuple[str, ...]:
    """By how much the worst of ten runs is off, and its interval; the others are within half a percent, all hold it."""
    name = "nvidia-h100/agreement/mobilenet_v3_large-batch-256-again"
    (of_all,) = table(f"{name}.csv").itertuples()
    assert (of_all.runs, of_all.runs_within_half_percent, of_all.intervals_that_cover) == (10, 9, 10)
    lines = (RESULTS / f"{name}.txt").read_text().splitlines()
    runs = [ast.literal_eval(line.partition(" ")[2])[256] for line in lines if line.startswith("mobilenet_v3_large {")]
    rate, low, high, _ = min(runs, key=itemgetter(0))
    return f"{100 * (1 - rate / of_all.loop_per_s):.1f}", f"{100 * (high - low) / 2 / rate:.0f}"


def memory_of_few_batches() -> tuple[str, ...]:
    """GiB at batch 8192, of a row of few batches and of one of more."""
    few, more = (record(f"nvidia-h100/thorough/mobilenet_v3_large-fp16{kind}") for kind in ("", "-thorough"))
    return tuple(f"{found.row(8192).peak_reserved_bytes / 2**30:.1f}" for found in (few, more))


def power_behind_a_rest() -> tuple[str, ...]:
    """Watts of a row of short windows behind a rest, and of one of long ones."""
    rows = (record(f"nvidia-h100/thorough/efficientnet_b0-fp16{kind}").row(2048) for kind in ("", "-thorough"))
    return tuple(f"{health(row).power_w:.0f}" for row in rows)


def seconds_of(records: list[Record]) -> float:
    """From the start of the first to the end of the last."""
    begun = min(datetime.fromisoformat(record.started) for record in records)
    return (max(datetime.fromisoformat(record.finished) for record in records) - begun).total_seconds()


def queues() -> tuple[str, ...]:
    """Seconds of 16 jobs on two devices and on one, the percentage that the two worked, the most that rates differ."""
    on_two, on_one = (
        [load_record(path) for path in (RESULTS / "nvidia-h200-x2").glob(f"sweep-{name}/*.json")]
        for name in ("two-devices", "one-device")
    )
    assert len(on_two) == len(on_one) == 16
    share = sum(record.wall_s for record in on_two) / seconds_of(on_two) / 2
    rates = {(record.spec.model, record.spec.dtype): record.rows[0].samples_per_s for record in on_one}
    ratios = [record.rows[0].samples_per_s / rates[record.spec.model, record.spec.dtype] for record in on_two]
    most = max(abs(ratio - 1) for ratio in ratios)
    return (
        f"{seconds_of(on_two):.0f}",
        f"{seconds_of(on_one):.0f}",
        f"{100 * share:.0f}",
        f"{ceil(1000 * most) / 10:.1f}",
    )


def rows_in_turn() -> tuple[str, ...]:
    """In words: how many rows there are, are within half a percent of the loop, have intervals that hold it."""
    lines = (RESULTS / "nvidia-h100/agreement/vit_b_16-rows-in-turn.txt").read_text().splitlines()
    (loop,) = [ast.literal_eval(line.partition(" loop ")[2]) for line in lines if " loop " in line]
    runs = [ast.literal_eval(line.partition(" ")[2]) for line in lines if line.startswith("vit_b_16 {")]
    rows = [(loop[size], *of) for run in runs for size, of in run.items()]
    near = sum(abs(rate / truth - 1) <= 0.005 for truth, rate, *_ in rows)
    held = sum(low <= truth <= high for truth, _, low, high, _ in rows)
    words = {6: "six", 8: "eight", 9: "nine"}
    return words[len(rows)], words[near], words[held]


def forecasts_for_another_device() -> tuple[str, ...]:
    """How many there are, in words, and how far the worst is off, in samples."""
    found = table("nvidia-h100/search/from-h200.csv")
    words = {1: "one", 5: "Five"}
    return words[len(found)], words[(found.forecast - found.largest_batch).abs().max()]


def seconds_to_rows() -> tuple[str, ...]:
    """How soon a run had its first row, and one of every batch size: the least and the most of all runs."""
    outputs = [path.read_text() for path in RESULTS.glob("nvidia-h*/plan/progress-*.txt")]
    seconds = [[float(at) for at in re.findall(r"(?m)^ *([0-9.]+) .*, process 1$", output)] for output in outputs]
    assert len(outputs) == 10
    ends = (min, max)
    return tuple(f"{end(row[which] for row in seconds):.0f}" for which in (0, -1) for end in ends)


def edges_of_swin() -> tuple[str, ...]:
    (found,) = table("nvidia-h200/search/fp16.csv").query("model == 'swin_t' and memory == '80GiB'").itertuples()
    return f"{found.forecast_edge}", f"{found.forecast_edge + 1}", f"{found.bisect_edge}", f"{found.bisect_edge + 1}"


def forecasts_too_low() -> tuple[str, ...]:
    swin = table("nvidia-h200/search/fp16.csv").query("model == 'swin_t'").set_index("memory").command_off_percent
    return f"{-swin['80GiB']:.0f}", f"{-swin['8GiB']:.0f}"


def worst_forecast() -> tuple[str, ...]:
    both = pd.concat([table(f"nvidia-h200/search/{dtype}.csv") for dtype in ("fp16", "fp32")])
    assert both.command_off_percent.abs().max() == -both.command_off_percent.min()
    return *forecasts()[:2], f"{-both.command_off_percent.min():.0f}"


def coverage() -> tuple[str, ...]:
    """The lowest and the highest share of simulated intervals that hold the truth, for normal and skewed processes."""
    shares = re.findall(r"([0-9.]+)% of 4000", (RESULTS / "simulated/plan/coverage.txt").read_text())
    normal, skewed = sorted(map(float, shares[::2])), sorted(map(float, shares[1::2]))
    return f"{normal[0]}", f"{normal[-1]}", f"{skewed[0]}", f"{skewed[-1]}"


def replayed_defaults() -> tuple[str, ...]:
    """Fewest and most seconds of replayed and of recorded default runs on an H100; the share of right replays."""
    output = (RESULTS / "simulated/plan/replay.txt").read_text()
    runs = re.findall(r"nvidia-h100/default/\S+: (\d+) s then;.*; default: (\d+) s", output)
    assert len(runs) == 5
    then, now = (sorted(int(run[place]) for run in runs) for place in (0, 1))
    (both,) = numbers_in("simulated/plan/replay.txt", r"\ndefault: of 2300 replays: .*, both ([0-9.]+)%")
    return f"{now[0]}", f"{now[-1]}", f"{then[0]}", f"{then[-1]}", both


def right_replays() -> tuple[str, ...]:
    """Replays and records, the shares of right knees and fastest batches, and these with every row in 3 processes."""
    output = (RESULTS / "simulated/plan/replay.txt").read_text()
    shares = {
        name: re.search(rf"\n{name}: of (\d+) replays: knee .*? ([0-9.]+)%, fastest within 1 % ([0-9.]+)%", output)
        for name in ("default", "every row in 3 processes")
    }
    short, long = (found.groups() for found in shares.values())
    return short[0], f"{len(re.findall('s then;', output))}", *short[1:], *long[1:]


def policies(name: str) -> tuple[str, str]:
    """The share of edges found within 60 s of simulated search, and of how many; none of them wrong."""
    output = (RESULTS / f"simulated/search/{name}.txt").read_text()
    row = re.search(r"\| own \| (\d+) \| [0-9.]+ \| ([0-9.]+) \|.*\| \d+ / \d+ / (\d+) / \d+ \|", output)
    assert row is not None
    assert row[3] == "0"
    return row[2], row[1]


def budgets(name: str) -> str:
    output = (RESULTS / f"simulated/search/{name}.txt").read_text()
    return output.split("The command with --budget 60s")[1].split("| own |")[1].split("|")[1].strip()


def latest_search() -> str:
    """The seconds of the longest search of the simulation."""
    (worst,) = numbers_in("simulated/search/policies.txt", r"\n\| own \| 424 (?:\| [0-9.]+ ){8}\| (\d+) \|")
    return worst


def latest_of_budgets() -> tuple[str, ...]:
    runs = re.findall(r"--budget (\d+)s: ([0-9.]+) s", (RESULTS / "cpu/plan/budget.txt").read_text())
    (kept,) = numbers_in("cpu/plan/budget.txt", r"(\d+) of 20 ended within their budget")
    assert int(kept) == len(runs)
    return kept, f"{max(float(took) - float(budget) for budget, took in runs):.1f}"


def recipes_at_batch_1(name: str) -> tuple[str, ...]:
    return tuple(
        rate(record(f"nvidia-h200/recipes/{name}-fp16{mode}").rows[0]) for mode in ("", "-compile", "-cudagraph")
    )


CLAIMS = [
    *(
        Claim(
            f"| `tputfind {command}` | {{}}, {{}} samples/s | {{}}, {{}} samples/s | {{}} s |",
            f"{name}.json",
            partial(edge_and_fastest, name),
        )
        for command, name in HEADLINES.items()
    ),
    *(
        Claim(
            f"| `{row} | {{}} | {{}}, {{}} samples/s | {{}} s |",
            f"nvidia-h200/kinds/{name}.json",
            partial(edge_of_kind, name),
        )
        for row, name in KINDS.items()
    ),
    *(
        Claim(
            f"| `{row} | {{}}, batch {{}} does not fit | {{}}, {{}} samples/s | {{}} s |",
            f"nvidia-h200/kinds/{name}-amp-fp16-train.json",
            partial(edge_of_training, f"{name}-amp-fp16-train"),
        )
        for row, name in {"resnet50` (SGD)": "resnet50", "vit_b_16 --optimizer adamw`": "vit_b_16"}.items()
    ),
    *(
        Claim(
            f"| {row} | {{}} | {{}} | {{}} | {{}} | {{}} | {{}} |",
            f"nvidia-h200/recipes/{name}.json",
            partial(recipes, name),
        )
        for row, name in RECIPES.items()
    ),
    Claim(
        "ResNet-50's largest batch is {} % slower than its batch {}.",
        "nvidia-h100/default/resnet50-fp16.json",
        largest_is_slower_than_the_fastest,
    ),
    *(
        Claim(
            f"| `{model}` | {{}} | {{}} | {{}} | ",
            f"nvidia-h200/recipes/{name}-fp16.json",
            partial(recipes_at_batch_1, name),
        )
        for model, name in {"hf:bert": "hf-bert", "mobilenet_v3_large": "mobilenet_v3_large"}.items()
    ),
    printed(
        "Kernels that spin for 1, 5 and 20 ms read as {}, {} and {} ms",
        "nvidia-h200/tests/timing.txt",
        *SPINS,
    ),
    Claim(
        "Where the GPU sets the pace, {} of {} runs are within 0.5 % of them",
        "nvidia-h200/agreement/resnet50-fp16.csv",
        agreement_of_device_bound_rows,
    ),
    Claim("In {} of {} cases, plain bisection finds the same batch", "nvidia-h200/search/fp16.csv", same_edges),
    Claim("Bisection finds the same edge in {} of {} searches", "nvidia-h200/search/fp16.csv", same_edges),
    Claim(
        "The forecast finds {}, and {} fails. Bisection finds {}, and {} fails.",
        "nvidia-h200/search/fp16.csv",
        edges_of_swin,
    ),
    Claim(
        "were too low, by {} % under 80 GiB and by {} % under 8 GiB", "nvidia-h200/search/fp16.csv", forecasts_too_low
    ),
    Claim(
        "Replayed from their rows, default runs of five models take {} to {} s on an H100. "
        "With three processes and more a row they took {} to {} s. "
        "{} % of 2300 replays name the right knee and fastest batch.",
        "simulated/plan/replay.txt",
        replayed_defaults,
    ),
    Claim(
        "Of {} replays of {} recorded runs, {} % named the same knee, or one that cannot be told from it. "
        "In {} % the fastest batch was within 1 %. With three processes for every row it was {} and {} %",
        "simulated/plan/replay.txt",
        right_replays,
    ),
    printed(
        "Of single processes, 95 % lie within {} % of the others of their row if the device sets the pace. "
        "In host-bound rows they lie within {} %.",
        "simulated/plan/one.txt",
        r"device sets the pace: .*95% ([0-9.]+)%",
        r"host bound: .*95% ([0-9.]+)%",
    ),
    Claim(
        "Within 60 s of search, {} % of {} edges are found and tried on both sides, and none named is wrong. "
        "Before it was {} %",
        "simulated/search/policies.txt",
        lambda: (*policies("policies"), policies("policies-before")[0]),
    ),
    Claim("The latest search ends after {} s", "simulated/search/policies.txt", lambda: (latest_search(),)),
    Claim(
        "Under a budget of 60 s, of which the start takes 8 s, {} % are found. Before it was {} %",
        "simulated/search/policies.txt",
        lambda: (budgets("policies"), budgets("policies-before")),
    ),
    Claim(
        "Of {1} shapes drawn at random afterwards, {0} % are found within 60 s of search",
        "simulated/search/policies-held-out.txt",
        lambda: policies("policies-held-out"),
    ),
    Claim(
        "{} of {} forecasts from trials are exact, and the worst is {} % too low",
        "nvidia-h200/search/fp16.csv",
        worst_forecast,
    ),
    Claim("Two forecasts of Swin-T are too low, by {} % and {} %", "nvidia-h200/search/fp16.csv", forecasts_too_low),
    Claim(
        "as few as {} of 20 intervals hold the loops' mean",
        "nvidia-h200/agreement/vit_b_16-fp16.csv",
        lambda: (f"{table('nvidia-h200/agreement/vit_b_16-fp16.csv').intervals_that_cover.min()}",),
    ),
    Claim(
        "Of {1} pairs of equal runs at batch 1 and 32, {2} are called `slower`",
        "nvidia-h200/verdicts/same-resnet50-fp16.csv",
        lambda: same_verdicts()[1:],
    ),
    printed(
        "An interval does not cover the next run on a shared machine: {} of {} did",
        "cpu/plan/pairs.txt",
        NEXT_HELD,
    ),
    Claim(
        "A queue of 16 jobs (eight models, two dtypes, batch 256) was measured in {} s on both and in {} s on one. "
        "That is from the first job's start to the last one's end, by the records. "
        "On the two, a job was under way for {} % of it. "
        "The rates of the two queues differ by at most {} %",
        "nvidia-h200-x2/sweep-two-devices/output.txt",
        queues,
    ),
    Claim(
        "On an H100, {} of {} are",
        "nvidia-h100/agreement/batch-256.csv",
        runs_on_an_h100,
    ),
    Claim(
        "the tenth is {} % below. Its interval says ± {} %",
        "nvidia-h100/agreement/mobilenet_v3_large-batch-256-again.csv",
        runs_of_mobilenet_again,
    ),
    Claim(
        "MobileNetV3 at batch 8192 took {} GiB, and {} GiB where `--thorough` timed more.",
        "nvidia-h100/thorough/mobilenet_v3_large-fp16.json",
        memory_of_few_batches,
    ),
    Claim(
        "EfficientNet-B0 at batch 2048 read {} W, and {} W over 4 s",
        "nvidia-h100/thorough/efficientnet_b0-fp16.json",
        power_behind_a_rest,
    ),
    Claim(
        "Of {} rows, {} are within 0.5 % of a loop, and {} intervals hold it",
        "nvidia-h100/agreement/vit_b_16-rows-in-turn.txt",
        rows_in_turn,
    ),
    Claim(
        "{} records of an H200 forecast the largest batch of an H100 to {} sample",
        "nvidia-h100/search/from-h200.csv",
        forecasts_for_another_device,
    ),
    Claim(
        "The first row of a run stands after {} to {} s, one of every batch size after {} to {} s",
        "nvidia-h100/plan/progress-resnet50-fp16.txt",
        seconds_to_rows,
    ),
    Claim(
        "{} forecasts of training are off by {} % at the median and {} % at the most; {} are too high",
        "nvidia-h200/training/forecasts.csv",
        training_forecasts,
    ),
    Claim("{} of {} forecasts from fake tensors are exact", "nvidia-h200/search/on-fake.csv", forecasts_on_fake),
    Claim(
        "From fake tensors, all {} lay within 20 %, and {} were right to the sample",
        "nvidia-h200/search/on-fake.csv",
        lambda: forecasts_on_fake()[::-1],
    ),
    Claim("{} of {} forecasts are exact", "nvidia-h200/search/fp16.csv", lambda: forecasts()[:2]),
    Claim(
        "All {} pairs of equal runs are `same`",
        "nvidia-h200/verdicts/same-resnet50-fp16.csv",
        lambda: same_verdicts()[:1],
    ),
    Claim(
        "All {} pairs with a planted delay of 5 % are `slower`",
        "nvidia-h200/verdicts/slower-resnet50-fp16.csv",
        slower_verdicts,
    ),
    Claim(
        "the predicted p99 is at most {} % off",
        "nvidia-h200/serving/mosec-vit_l_16-fp32.csv",
        p99_of_servers,
    ),
    Claim(
        "{} to {} % of intervals hold the true rate where processes scatter normally. Where they scatter to one side, "
        "{} to {} % do",
        "simulated/plan/coverage.txt",
        coverage,
    ),
    printed(
        "{} of {} intervals held the rate of the run right after",
        "cpu/plan/pairs.txt",
        NEXT_HELD,
    ),
    printed(
        "In {} of 20 pairs the knees were equal or within the noise. The fastest batch was within 1 % in {}.",
        "cpu/plan/pairs.txt",
        r"told apart (\d+); fastest within 1 % (\d+)",
    ),
    Claim(
        "Of {} runs on a CPU the latest was {} s late", "cpu/plan/budget.txt", latest_of_budgets
    ),
    Claim(
        "{} of the {} types that it can build from their default configurations run, with few layers on a CPU. "
        "{} are refused in one line, and {} fail so or take over ten minutes. "
        "It builds no model from the default configuration of {} types more",
        "cpu/hf-types.csv",
        hf_types,
    ),
    Claim("{} of the {} run in pure fp16", "nvidia-h200/zoo.csv", lambda: zoo_runs()[:2]),
    Claim("and the {} quantized ones on the CPU only", "nvidia-h200/zoo.csv", lambda: zoo_runs()[2:]),
    Claim(
        "the outputs of {} of them cannot be checked in fp16: they fall below its normal numbers, or hardly differ. "
        "Those of the {} detectors cannot be compared, and those of {} models are not finite.",
        "nvidia-h200/zoo.csv",
        zoo_outputs,
    ),
    Claim("some thousand requests, in {} to {} kB of the record", "nvidia-h200/kinds", trace_sizes),
    *(
        Claim(
            f"| {dtype} | {shown} | {{}} | {{}} | {{}} | {{}} | {{}} | {{}} times | {{}} times |",
            f"nvidia-h200/search/{dtype}.csv",
            partial(searches, dtype, memory),
        )
        for dtype in ("fp16", "fp32")
        for memory, shown in {"8GiB": "8 GiB", "24GiB": "24 GiB", "80GiB": "80 GiB", "all": "whole card"}.items()
    ),
    Claim("{} of the {} edges differs", "nvidia-h200/search/fp16.csv", edges_that_differ),
    Claim(
        "right to the sample in {} of {} cases and within 0.2 % in {}", "nvidia-h200/search/fp16.csv", forecasts
    ),
    Claim(
        "ResNet-50 fp16 under 8 GiB fits {} instead of {}", "nvidia-h200/search/expandable-resnet50-fp16.csv",
        expandable,
    ),
    Claim(
        "The rates of the fastest differ by {} % at most.", "nvidia-h100/thorough/vit_b_16-fp16-thorough.json",
        thorough_beside_default,
    ),
    Claim(
        "On the whole card DenseNet-121 fits {} samples.", "nvidia-h100/search/densenet121-fp16.json",
        lambda: (f"{record('nvidia-h100/search/densenet121-fp16').edge.largest_batch}",),
    ),
    Claim("From batch {} on its first pooling (64x56x56 a sample)", "", first_pooling_past_32_bits),
    *(
        Claim(
            f"| {load:.0%} ({rates} requests/s)".replace("%", " %") + " | {} | {} | {} % | {} | {} | {} % |",
            "nvidia-h200/serving/mosec-vit_l_16-fp32.csv",
            partial(served, load),
        )
        for load, rates in {0.7: "227 and 219", 0.85: "274 and 264", 0.95: "306 and 295"}.items()
    ),
    *(
        Claim(
            f"| {rate_per_s} | {{}} | {devices} | {{}}{after} | {{}} |",
            name,
            partial(fleet, name, rate_per_s, devices),
        )
        for name, rates in {
            "nvidia-h200/serving/fleet-mosec-vit_l_16-fp32.csv": (
                (301, 1, ""), (368, 2, ""), (368, 1, " after 20 s"), (626, 2, ""), (765, 2, " after 20 s"),
            ),
            "nvidia-h200-x2/serving/fleet-mosec.csv": (
                (255, 1, ""), (311, 2, ""), (311, 1, " after 6 s"), (535, 2, ""), (654, 2, " after 6 s"),
            ),
        }.items()
        for rate_per_s, devices, after in rates
    ),
    *(
        Claim(
            f"| {model} | {batch} | {{loops}} | {{}} of 20 | {{}} of 20 |",
            f"nvidia-h200/agreement/{model}-fp16.csv",
            partial(agreement, model, batch),
        )
        for model in ("resnet50", "vit_b_16", "mobilenet_v3_large")
        for batch in (1, 32, 256)
    ),
    Claim(
        "So rows that the GPU limits were within 0.5 % in {} of {} runs",
        "nvidia-h200/agreement/resnet50-fp16.csv",
        agreement_of_device_bound_rows,
    ),
    Claim(
        "at batch 256 all {} pairs are `same`. At batch 1 and 32 that host set the pace: {} of {} are `ambiguous`, "
        "and {} `slower`",
        "nvidia-h200/verdicts/same-resnet50-fp16.csv",
        same_verdicts,
    ),
    Claim(
        "all {} pairs with the ten are `slower` at batch 256",
        "nvidia-h200/verdicts/slower-resnet50-fp16.csv",
        slower_verdicts,
    ),
    Claim(
        "| `mobilenet_v3_large` | 256 | {} | {} | | `mobilenet_v3_large` | 1 | {} | {} | "
        "`python benchmarks/sampling.py` measured it. A time limit left out ViT-B/16. "
        "At five times a second on an H200, ViT-B/16 at batch 256 "
        "came to {}, with an error of {}",
        "nvidia-h100/timing/sampling.txt",
        sampling,
    ),
    Claim(
        "600 stages of 1 ms took {} % longer with it than without.",
        "nvidia-h200/timing/stages.txt",
        lambda: (f"{float(*numbers_in('nvidia-h200/timing/stages.txt', r'overhead +([0-9.]+) % of')):.2f}",),
    ),
    printed(
        "A stage of 1 ms was {} % longer than when it was synchronised, one of 1.7 ms {} %",
        "nvidia-h200/timing/stages.txt",
        r"spin kernel: .*\+([0-9.]+) %\n *matmul: .*\+([0-9.]+) %",
    ),
    printed(
        "a kernel that spins for 1, 5, 20 ms by the GPU's own clock | {}, {}, {} ms by our events",
        "nvidia-h200/tests/timing.txt",
        *SPINS,
    ),
    Claim(
        "windows and plain loops in turn in one process, {} of each: MobileNetV3 at batch 1, on a busy host | "
        "{} at the median, {} to {} |",
        "nvidia-h200/tests/loops.txt",
        marks_against_loops,
    ),
    printed(
        "resnet18 {} against {}; vit_b_16 {} against {} |",
        "nvidia-h200/tests/edge.txt",
        *(rf"{model}: --memory-limit 4GiB (\d+), a card with 4 GiB (\d+)" for model in ("resnet18", "vit_b_16")),
    ),
    printed(
        "index limit at {1} samples, largest batch {0}; wrong output at {3}, largest batch {2} |",
        "nvidia-h200/tests/faults.txt",
        *(
            rf"largest_batch=(\d+), limited_by='{limit}', fails_at=(\d+)"
            for limit in ("index", "wrong_output")
        ),
    ),
    printed(
        "| `tputfind --help` | {} s | | `tputfind resnet50 --dtype fp16 --layout nhwc --max-batch 256` | {} s | "
        "| the part of it outside the timed windows | {} s |",
        "nvidia-h200/timing/overhead.txt",
        r"--help: median of 15 ([0-9.]+) s", r"whole command +([0-9.]+) s", r"outside the timed windows +([0-9.]+)",
    ),
    printed(
        "once a run | {} s | | a trial of ResNet-50 | {} s |",
        "nvidia-h200/timing/overhead.txt",
        r"torchvision: ([0-9.]+) s, once", r"trials +2, median ([0-9.]+) s each",
    ),
    *(
        Claim("{}", "nvidia-h200/clocks/mobilenet_v3_large-fp32.md", partial(clock_said, start))
        for start in ("The host clock alone sees", "No warm-up:", "Copying the input")
    ),
]  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS, ids=[f"{number}-{claim.name}" for number, claim in enumerate(CLAIMS)])
def test_a_claim_is_what_its_evidence_comes_to(claim):
    if claim.evidence:
        assert (RESULTS / claim.evidence).exists()
    if "{loops}" in claim.said:  # a line of a table of which only the last figures are counted
        start, end = claim.said.split("{loops}")
        pattern = re.escape(start) + r"[^|]*(?:\|[^|]*){3}" + re.escape(end.format(*claim.reckon()))
        assert re.search(pattern, SAID), pattern
        return
    assert claim.said.format(*claim.reckon()) in SAID
