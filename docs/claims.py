"""The claims of README and docs: what is claimed, the file that it rests on, and how its figures follow from the file.

``docs/generate.py`` writes them as the table of ``docs/evidence.md``; ``tests/unit/test_claims.py`` checks that README
and docs repeat the same figures. To add a claim, add a ``Claim`` to ``CLAIMS``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd

from tputfind import load, load_record
from tputfind.analysis.answers import rate_ratio_interval, throughput_interval
from tputfind.analysis.race import Race
from tputfind.record.files import load_records
from tputfind.record.record import Record, Row

RESULTS: Final = Path(__file__).parents[1] / "results"
H200, TWO_H200 = "H200", "two H200s"
CPU, NO_DEVICE = "two CPU cores", "none"

Figures = tuple[str, ...]


class Claim(NamedTuple):
    """A row of the table of evidence.

    ``figure`` has a ``{}`` for each figure that ``compute`` returns. ``repeated`` are sentences or table lines of
    README and docs that hold the same figures, with ``{}`` or ``{0}`` in the places of the figures.
    """

    claim: str
    figure: str
    command: str
    hardware: str
    files: Figures
    compute: Callable[[], Figures]
    repeated: Figures = ()


def record(name: str) -> Record:
    """Return a record of ``results/``."""
    return load_record(RESULTS / f"{name}.json")


def table(*names: str) -> pd.DataFrame:
    """Return one table of several CSVs of ``results/``."""
    return pd.concat([pd.read_csv(RESULTS / name) for name in names])


def match(name: str, *patterns: str) -> Figures:
    """Return the groups of all patterns in the text of a file of ``results/``."""
    text = (RESULTS / name).read_text()
    found = [re.search(pattern, text, re.MULTILINE) for pattern in patterns]
    assert all(found), (name, patterns)
    return tuple(group for one in found if one for group in one.groups())


def fastest(rows: tuple[Row, ...]) -> Row:
    """Return the row with the highest throughput."""
    return max(rows, key=lambda row: row.samples_per_s or 0.0)


def throughput(row: Row) -> str:
    """Return samples/s as a whole number."""
    return f"{row.samples_per_s:.0f}"


# Whole runs


def slowdown_of_largest() -> Figures:
    """Return by how many percent the largest batch is slower than the fastest, and the fastest batch."""
    rows = record("nvidia-h200/default/resnet50-fp16").rows
    best = fastest(rows)
    return f"{100 * (1 - rows[-1].samples_per_s / best.samples_per_s):.0f}", f"{best.batch_size}"


def default_run(name: str) -> Figures:
    """Return the largest batch and its throughput, the fastest and its throughput, the seconds of the run."""
    found = record(f"nvidia-h200/default/{name}")
    largest, best = found.row(found.edge.largest_batch), fastest(found.rows)
    figures = f"{largest.batch_size}", throughput(largest), f"{best.batch_size}", throughput(best)
    return *figures, f"{found.wall_s:.0f}"


DEFAULT_RUNS: Final = {
    "ResNet-50": ("resnet50-fp16", "resnet50 --dtype fp16"),
    "ResNet-50, channels last": ("resnet50-fp16-nhwc", "resnet50 --dtype fp16 --layout nhwc"),
    "ViT-B/16": ("vit_b_16-fp16", "vit_b_16 --dtype fp16"),
    "MobileNetV3": ("mobilenet_v3_large-fp16", "mobilenet_v3_large --dtype fp16"),
    "EfficientNet-B0": ("efficientnet_b0-fp16", "efficientnet_b0 --dtype fp16"),
}


def wrong_outputs_of_bert() -> Figures:
    """Return the smallest batch with wrong outputs, and the largest that fits in memory."""
    found = record("nvidia-h200/default/bert-fp16")
    assert found.edge.limited_by == "wrong_output"
    return f"{found.edge.fails_at}", f"{max(one.batch_size for one in found.trials if one.failure is None)}"


def seconds_of_default_runs() -> Figures:
    """Return the shortest and the longest run, in seconds."""
    seconds = [record(f"nvidia-h200/default/{name}").wall_s for name, _ in DEFAULT_RUNS.values()]
    return f"{min(seconds):.0f}", f"{max(seconds):.0f}"


RUNS = (
    Claim(
        "The largest batch of ResNet-50 is slower than its fastest",
        "{} % slower than batch {}",
        "tputfind resnet50 --dtype fp16",
        H200,
        ("nvidia-h200/default/resnet50-fp16.json",),
        slowdown_of_largest,
        ("ResNet-50's largest batch is {} % slower than its batch {}.",),
    ),
    *(
        Claim(
            f"{model}, default run in fp16",
            "largest batch {} at {}/s, fastest {} at {}/s, {} s",
            f"tputfind {command}",
            H200,
            (f"nvidia-h200/default/{name}.json",),
            partial(default_run, name),
        )
        for model, (name, command) in DEFAULT_RUNS.items()
    ),
    Claim(
        "Training of ResNet-50 with AdamW and autocast, default run",
        "largest batch {} at {}/s, fastest {} at {}/s, {} s",
        "tputfind resnet50 --phase train --dtype amp-bf16 --optimizer adamw",
        H200,
        ("nvidia-h200/default/resnet50-amp-bf16-train.json",),
        partial(default_run, "resnet50-amp-bf16-train"),
    ),
    Claim(
        "An own training step, of a GAN: default run",
        "largest batch {} at {}/s, fastest {} at {}/s, {} s",
        "tputfind train_gan.py:step",
        H200,
        ("nvidia-h200/default/two_networks-train.json",),
        partial(default_run, "two_networks-train"),
    ),
    Claim(
        "Wrong outputs of BERT in fp16, by torch 2.11, at batch sizes that fit in memory",
        "from batch {} on, though {} fits",
        "tputfind hf:bert --dtype fp16",
        H200,
        ("nvidia-h200/default/bert-fp16.json",),
        wrong_outputs_of_bert,
        ("`hf:bert` in fp16 computes wrong outputs from batch {} on, though {} fits in memory",),
    ),
    Claim(
        "Default runs (five of four models)",
        "{} to {} s",
        "tputfind MODEL --dtype fp16",
        H200,
        tuple(f"nvidia-h200/default/{name}.json" for name, _ in DEFAULT_RUNS.values()),
        seconds_of_default_runs,
        ("Five default runs took {} to {} s",),
    ),
)

# Timing

AGREEMENT: Final = "nvidia-h200/agreement/fp16.csv"


def runs_near_loops() -> Figures:
    """Return how many runs at batch 256 lie within half a percent of plain loops, and how many runs there are."""
    rows = table(AGREEMENT).query("batch_size == 256")
    return f"{rows.runs_within_half_percent.sum()}", f"{rows.runs.sum()}"


def host_bound_coverage() -> Figures:
    """Return the fewest and most of 5 intervals that hold the loops' mean, over models at batch 1 and 32."""
    covered = table(AGREEMENT).query("batch_size < 256").intervals_that_cover
    return f"{covered.min()}", f"{covered.max()}"


def memory_limits() -> Figures:
    """Return largest batches under a limit and on a card of that size, of two models."""
    patterns = (rf"{model}: --memory-limit 4GiB (\d+), a card with 4 GiB (\d+)" for model in ("resnet18", "vit_b_16"))
    return match("nvidia-h200/tests/edge.txt", *patterns)


def interval_coverage() -> Figures:
    """Return the lowest and the highest percentage of intervals that hold the truth; normal, then skewed processes."""
    shares = re.findall(r"([0-9.]+)% of 4000", (RESULTS / "simulated/plan/coverage.txt").read_text())
    normal, skewed = sorted(map(float, shares[::2])), sorted(map(float, shares[1::2]))
    return f"{normal[0]}", f"{normal[-1]}", f"{skewed[0]}", f"{skewed[-1]}"


def correct_replays() -> Figures:
    """Return the number of replays, and the percentages with the same knee and with the fastest batch within 1 %."""
    pattern = r"^default: of (\d+) replays: knee .*? ([0-9.]+)%, fastest within 1 % ([0-9.]+)%"
    return match("simulated/plan/replay.txt", pattern)


def latest_end() -> Figures:
    """Return the number of runs with a budget, and by how many seconds the latest exceeded its own."""
    runs = re.findall(r"--budget (\d+)s: ([0-9.]+) s", (RESULTS / "cpu/plan/budget.txt").read_text())
    return f"{len(runs)}", f"{max(float(took) - float(budget) for budget, took in runs):.1f}"


TIMING = (
    Claim(
        "CUDA events read the true time of kernels that spin for 1, 5 and 20 ms",
        "{}, {} and {} ms",
        "pytest -m gpu -s tests/gpu/test_timing.py",
        H200,
        ("nvidia-h200/tests/timing.txt",),
        partial(match, "nvidia-h200/tests/timing.txt", *(rf"\] {ms} ms: \[([0-9]+\.[0-9]{{3}})" for ms in (1, 5, 20))),
        ("Kernels that spin for 1, 5 and 20 ms read as {}, {} and {} ms",),
    ),
    Claim(
        "Throughput agrees with plain loops within 0.5 % at batch 256 (three models)",
        "{} of {} runs",
        "python benchmarks/agreement.py --runs 5",
        H200,
        (AGREEMENT,),
        runs_near_loops,
        ("{} of {} runs at batch 256 agree with plain loops within 0.5 %",),
    ),
    Claim(
        "Host-bound rows (batch 1 and 32) differ between processes: intervals that hold the loops' mean",
        "{} to {} of 5",
        "python benchmarks/agreement.py --runs 5",
        H200,
        (AGREEMENT,),
        host_bound_coverage,
        ("{} to {} of 5 intervals hold the mean of plain loops",),
    ),
    Claim(
        "Simulated 95 % intervals hold the true throughput",
        "{} to {} % with normal variation between processes, {} to {} % with skewed variation",
        "python benchmarks/plan.py coverage",
        NO_DEVICE,
        ("simulated/plan/coverage.txt",),
        interval_coverage,
        ("{} to {} % of the intervals hold the true throughput ({} to {} % if processes vary with a skew)",),
    ),
    Claim(
        "On a shared CPU, intervals hold the throughput of the next run",
        "{} of {}",
        "python benchmarks/plan.py pairs 20",
        CPU,
        ("cpu/plan/pairs.txt",),
        partial(match, "cpu/plan/pairs.txt", r"thorough run's rate (\d+) of (\d+)"),
        ("{} of {} intervals held the throughput of the next run",),
    ),
    Claim(
        "A single process differs from the other processes of its row, in 95 % of cases by at most",
        "{} % if device-bound, {} % if host-bound",
        "python benchmarks/plan.py one RECORD ...",
        NO_DEVICE,
        ("simulated/plan/one.txt",),
        partial(
            match, "simulated/plan/one.txt", r"device sets the pace: .*95% ([0-9.]+)%", r"host bound: .*95% ([0-9.]+)%"
        ),
        ("by at most {} % in device-bound rows and {} % in host-bound rows",),
    ),
    Claim(
        "Timing only the rows that decide gives the same answers (replays of recorded runs)",
        "{} replays: same knee in {} %, fastest batch within 1 % in {} %",
        "python benchmarks/plan.py replay --draws 100 RECORD ...",
        NO_DEVICE,
        ("simulated/plan/replay.txt",),
        correct_replays,
        ("In {} replays of recorded runs, {} % name the same knee, and {} % a fastest batch within 1 %",),
    ),
    Claim(
        "A run keeps its budget",
        "of {} runs the latest ended {} s late",
        "python benchmarks/plan.py budget 20",
        CPU,
        ("cpu/plan/budget.txt",),
        latest_end,
    ),
    Claim(
        "StageTimer prolongs 600 stages of 1 ms",
        "by {} %",
        "python benchmarks/stages.py",
        H200,
        ("nvidia-h200/timing/stages.txt",),
        lambda: tuple(
            f"{float(one):.2f}" for one in match("nvidia-h200/timing/stages.txt", r"overhead +([0-9.]+) % of")
        ),
        ("600 stages of 1 ms took {} % longer with it",),
    ),
)

# Search

SEARCHES: Final = ("nvidia-h200/search/fp16.csv", "nvidia-h200/search/fp32.csv")


def same_edges() -> Figures:
    """Return how many searches found the largest batch of bisection, how many there are, and the median speed-up."""
    found = table(*SEARCHES)
    same = (found.forecast_edge == found.bisect_edge).sum()
    return f"{same}", f"{len(found)}", f"{(found.bisect_s / found.forecast_s).median():.1f}"


def forecasts_from_trials() -> Figures:
    """Return how many forecasts are exact, how many there are, and by how many percent the worst is too low."""
    off = table(*SEARCHES).command_off_percent.dropna()
    assert off.abs().max() == -off.min()
    return f"{(off == 0).sum()}", f"{len(off)}", f"{-off.min():.0f}"


def forecasts_from_fake_tensors() -> Figures:
    """Return how many forecasts are exact, how many there are, and the largest error in percent."""
    off = table("nvidia-h200/search/on-fake.csv").off_percent.abs()
    return f"{(off == 0).sum()}", f"{len(off)}", f"{ceil(off.max())}"


RANKS: Final = "nvidia-h200-x2/training"


def edge_of_ranks() -> Figures:
    """Return the largest batch of a device with DDP, the batch that a bare loop runs, and the one that it does not."""
    bare = match(f"{RANKS}/bare-loops.txt", r" (\d+) 3\n.*: [\d.]+ ms", r"batch (\d+): rank 0 is out of memory")
    return f"{record(f'{RANKS}/resnet50-ddp').largest_batch}", *bare


def rate_of_ranks(model: str, kind: str) -> Figures:
    """Return the samples/s of two devices, and those of a bare loop."""
    (row,) = record(f"{RANKS}/{model}-{kind}-batch-256").rows
    (bare_per_s,) = match(f"{RANKS}/bare-loops.txt", rf"{model} {kind} batch 256: [\d.]+ ms, ([\d.]+)")
    return throughput(row), f"{float(bare_per_s):.0f}"


def forecasts_of_training() -> Figures:
    """Return how many forecasts there are, and their median and largest error in percent."""
    found = table("nvidia-h200/training/forecasts.csv")
    off = found.off_percent.abs()
    assert (off <= found.stated_percent).all()
    return f"{len(found)}", f"{off.median():.1f}", f"{off.max():.1f}"


def expandable_segments() -> Figures:
    """Return the largest batch of ResNet-50 in fp16 under 8 GiB with expandable segments, and with native ones."""
    native = table(SEARCHES[0]).query("model == 'resnet50' and memory == '8GiB' and layout == 'nchw'")
    found = table("nvidia-h200/search/expandable-resnet50-fp16.csv")
    return f"{found.forecast_edge.item()}", f"{native.forecast_edge.item()}"


def simulated_searches(name: str) -> Figures:
    """Return the percentage of largest batches that are proven within 60 s, and their number; none is wrong."""
    pattern = r"^\| own \| (\d+) \| [0-9.]+ \| ([0-9.]+) \|.*\| \d+ / \d+ / (\d+) / \d+ \|"
    searches, percent, wrong = match(f"simulated/search/{name}.txt", pattern)
    assert wrong == "0"
    return percent, searches


SEARCH = (
    Claim(
        "The search finds the largest batch that bisection finds, and is faster (median)",
        "{} of {} searches, {} times as fast",
        "python benchmarks/search.py",
        H200,
        SEARCHES,
        same_edges,
        ("Plain bisection finds the same batch in {} of {} searches, and takes {} times as long",),
    ),
    Claim(
        "A memory limit of 4 GiB acts like a card with 4 GiB (ResNet-18, ViT-B/16)",
        "{} and {}, {} and {}",
        "pytest -m gpu -s tests/gpu/test_edge.py",
        H200,
        ("nvidia-h200/tests/edge.txt",),
        memory_limits,
    ),
    Claim(
        "An index limit and silent wrong outputs are found at the exact batch",
        "largest batch {}, {} fails; largest batch {}, wrong output at {}",
        "pytest -m gpu -s tests/gpu/test_faults.py",
        H200,
        ("nvidia-h200/tests/faults.txt",),
        partial(
            match,
            "nvidia-h200/tests/faults.txt",
            *(rf"largest_batch=(\d+), limited_by='{limit}', fails_at=(\d+)" for limit in ("index", "wrong_output")),
        ),
    ),
    Claim(
        "On simulated models, the largest batch is proven within 60 s of search, and never wrong",
        "{} % of {} searches",
        "python benchmarks/policies.py",
        NO_DEVICE,
        ("simulated/search/policies.txt",),
        partial(simulated_searches, "policies"),
        ("{} % of {} simulated searches prove the largest batch within 60 s",),
    ),
    Claim(
        "The same on models that were drawn at random afterwards",
        "{} % of {} searches",
        "python benchmarks/policies.py",
        NO_DEVICE,
        ("simulated/search/policies-held-out.txt",),
        partial(simulated_searches, "policies-held-out"),
    ),
    Claim(
        "Forecasts from trials are exact",
        "{} of {}; the worst is {} % too low",
        "python benchmarks/search.py",
        H200,
        SEARCHES,
        forecasts_from_trials,
        ("{} of {} forecasts from trials are exact; the worst is {} % too low",),
    ),
    Claim(
        "Forecasts from fake tensors are exact",
        "{} of {}; all within {} %",
        "python benchmarks/on_fake.py results/nvidia-h200/search/fp*.csv",
        "none; compared with an H200",
        ("nvidia-h200/search/on-fake.csv",),
        forecasts_from_fake_tensors,
        ("{} of {} forecasts from fake tensors are exact, and all are within {} %",),
    ),
    Claim(
        "Forecasts of training from fake tensors",
        "{} forecasts: off by {} % (median), {} % (largest)",
        "python benchmarks/training_forecasts.py EDGES.csv",
        "none; compared with an H200",
        ("nvidia-h200/training/forecasts.csv",),
        forecasts_of_training,
        ("{} forecasts of training are off by {} % at the median and {} % at most",),
    ),
    Claim(
        "DDP on two GPUs (ResNet-50 with AdamW): the largest batch of a device, and in a bare loop under torchrun",
        "{}; there batch {} runs and {} is out of memory",
        "tputfind resnet50 --phase train --dtype amp-bf16 --optimizer adamw --parallel ddp --gpus 2 --budget 90s",
        TWO_H200,
        (f"{RANKS}/resnet50-ddp.json", f"{RANKS}/bare-loops.txt"),
        edge_of_ranks,
    ),
    *(
        Claim(
            f"{kind} on two GPUs ({title}, batch 256): samples/s, and in a bare loop under torchrun",
            "{}; {}",
            "python benchmarks/ranks.py, and tputfind with --batch-sizes 256",
            TWO_H200,
            (f"{RANKS}/{model}-{kind.lower()}-batch-256.json", f"{RANKS}/bare-loops.txt"),
            partial(rate_of_ranks, model, kind.lower()),
        )
        for kind, title, model in (("DDP", "ResNet-50", "resnet50"), ("FSDP", "ViT-B/16", "vit_b_16"))
    ),
    Claim(
        "Expandable segments fit more under 8 GiB (ResNet-50 in fp16)",
        "batch {} instead of {}",
        "python benchmarks/search.py --models resnet50 --dtypes fp16 --limits 8GiB --allocator expandable",
        H200,
        ("nvidia-h200/search/expandable-resnet50-fp16.csv", SEARCHES[0]),
        expandable_segments,
        ("ResNet-50 in fp16 under 8 GiB fits batch {} instead of {}",),
    ),
)

# Comparison and recipes

SAME, SLOWER = (f"nvidia-h200/verdicts/{name}-resnet50-fp16.csv" for name in ("same", "slower"))


def verdicts(name: str, verdict: str, *batches: int) -> Figures:
    """Return how many pairs have a verdict at some batch sizes, and how many pairs there are."""
    found = table(name)
    counts = Counter(found[found.what.isin([f"batch {batch}" for batch in batches])].verdict.str.lower())
    return f"{counts[verdict]}", f"{counts.total()}"


def recipe_rows(name: str, layout: str, number: int) -> list[Row]:
    """Return the rows of one of the batch sizes: eager, compiled, and as a CUDA graph."""
    found = load_records(RESULTS / f"nvidia-h200/recipes/{name}.json")
    return [record.rows[number] for record in found if record.spec.layout == layout]


def speedup(above: Row, below: Row) -> str:
    """Return the ratio of two throughputs, as 2.43 times, or that 1 lies in its interval."""
    interval = rate_ratio_interval(above, below)
    if interval.low <= 1 <= interval.high:
        return "within the noise"
    return f"{above.samples_per_s / below.samples_per_s:.2f} times"


def recipes(name: str, layout: str) -> Figures:
    """Return throughput at the larger batch size: eager; compiled and its ratio; as a CUDA graph and its ratio."""
    eager, compiled, graph = recipe_rows(name, layout, -1)
    figures = throughput(compiled), speedup(compiled, eager), throughput(graph), speedup(graph, eager)
    return throughput(eager), *figures


def recipes_at_batch_1(name: str) -> Figures:
    """Return throughput at batch 1: eager, compiled, as a CUDA graph."""
    return tuple(map(throughput, recipe_rows(name, "nchw", 0)))


RECIPES: Final = {
    "`resnet50`, batch 256": ("resnet50-fp16", "nchw"),
    "`resnet50`, channels last, batch 256": ("resnet50-fp16", "nhwc"),
    "`vit_b_16`, batch 256": ("vit_b_16-fp16", "nchw"),
    "`mobilenet_v3_large`, batch 256": ("mobilenet_v3_large-fp16", "nchw"),
}


def raced(name: str, place: str = "nvidia-h200") -> tuple[Race, Row]:
    """Return a race, and the fastest row of its winner."""
    race = load(RESULTS / f"{place}/tune/{name}-fp16.json")
    assert isinstance(race, Race)
    assert race.record is not None
    return race, fastest(race.record.rows)


def race_of_resnet50() -> Figures:
    """Return the winner's throughput and batch size, then what layout, compiling and freezing gained, one by one."""
    race, best = raced("resnet50")
    shares = {(one.spec.layout, one.spec.mode): one.of_winner or 0.0 for one in race.contenders}
    steps = [shares["nchw", "eager"], *(shares["nhwc", mode] for mode in ("eager", "compile", "compile:freezing"))]
    return throughput(best), f"{best.batch_size}", *(f"{after / before:.2f}" for before, after in pairwise(steps))


def race_and_recipes(name: str) -> Figures:
    """Return the winner's throughput and batch size, and the throughput of the fastest measured recipe."""
    _, best = raced(name)
    found = load_records(RESULTS / f"nvidia-h200/recipes/{name}-fp16.json")
    return throughput(best), f"{best.batch_size}", throughput(fastest(tuple(one.rows[-1] for one in found)))


def race_of_timm() -> Figures:
    """Return the winner's mode, throughput and batch size, and how many times the throughput of plain eager it has."""
    race, best = raced("mobilenetv4")
    (plain,) = [one for one in race.contenders if (one.spec.layout, one.spec.mode) == ("nchw", "eager")]
    assert race.winner.layout == "nhwc"
    assert plain.of_winner is not None
    return race.winner.mode, throughput(best), f"{best.batch_size}", f"{1 / plain.of_winner:.2f}"


def race_on_two() -> Figures:
    """Return the winner's mode, throughput and batch size, and how many variants met of how many."""
    race, best = raced("resnet50", "nvidia-h200-x2")
    variants = len(race.contenders)
    return race.winner.mode, throughput(best), f"{best.batch_size}", f"{variants - len(race.untried)}", f"{variants}"


def rates_of_instances() -> Figures:
    """Return throughput at batch 32 and half of its interval in percent: of four instances, then of one."""
    one, _, four = load_records(RESULTS / "nvidia-h200/recipes/resnet50-fp16-instances.json")
    figures = list[str]()
    for row in map(fastest, (four.rows, one.rows)):
        interval = throughput_interval(row)
        assert interval is not None
        figures += throughput(row), f"{100 * interval.half_width:.1f}"
    return tuple(figures)


def gains_on_cpu() -> Figures:
    """Return the number of models, and the smallest and the largest gain of the winner over the default."""
    gains = [float(gain) for gain in re.findall(r"([0-9.]+) times the plain", (RESULTS / "cpu/tuned.txt").read_text())]
    return f"{len(gains)}", f"{min(gains):.2f}", f"{max(gains):.2f}"


_PLANTED: Final = ("5 % slower", "3 % slower")


def verdicts_in_turn() -> Figures:
    """Return how many equal pairs have a false verdict, and how many of two slower kinds the right one, of how many."""
    text = (RESULTS / "cpu/in_turn.txt").read_text()
    verdict = {name: Counter(re.findall(rf"^{name}: (\w+)", text, re.MULTILINE)) for name in ("equal", *_PLANTED)}
    alarms = verdict["equal"]["slower"] + verdict["equal"]["faster"]
    found = [(f"{verdict[name]['slower']}", f"{verdict[name].total()}") for name in _PLANTED]
    return f"{alarms}", f"{verdict['equal'].total()}", *found[0], *found[1]


def simulated_races(place: str, longer_min: int) -> Figures:
    """Return the mean regret of ``tune``, how often it is 2 % or less in 10 min and longer, and optuna's in 10 min."""
    found = []
    for search, seconds in (("tune", 600), ("tune", 60 * longer_min), ("optuna, TPE", 600)):
        line = rf"^{place}: .* --budget {seconds}s\n(?:.*\n)*?  {search} +regret +(\S+)% on average, .* less in (\S+)%"
        found += match("simulated/tune/races.txt", line)
    return (*found[:2], *found[3:])


def race_claim(place: str, space: str, longer_min: int, sentence: str) -> Claim:
    """Return the claim about races in simulated spaces of a kind of device."""
    return Claim(
        f"The winner of races of 10 min in 1000 simulated spaces of {space}: its mean distance from the best, and the "
        "fraction of spaces with 2 % or less; optuna 5 (TPE) took the same time",
        f"{{}} %, {{}} % of spaces ({{}} % in {longer_min} min); optuna {{}} %, {{}} % of spaces",
        "python benchmarks/races.py --spaces 1000",
        NO_DEVICE,
        ("simulated/tune/races.txt",),
        partial(simulated_races, place, longer_min),
        (sentence,),
    )


COMPARISON = (
    race_claim(
        "gpu",
        "12 recipes of a GPU",
        15,
        "12 recipes of a GPU, the winner was {} % below the best on average, and 2 % or less in {} % of them, in {} % "
        "after 15 min; optuna's TPE sampler in the same time: {} % and {} %",
    ),
    race_claim(
        "cpu",
        "80 recipes of a CPU",
        40,
        "80 recipes of a CPU: {} % and {} %, in {} % after 40 min, optuna {} % and {} %",
    ),
    Claim(
        "A race of eight minutes finds the fastest recipe for ResNet-50 among those that it has time for",
        "{} samples/s at batch {}; channels last gain a factor of {}, compiling {}, freezing {}",
        "tputfind tune resnet50 --dtype fp16 --budget 8min",
        H200,
        ("nvidia-h200/tune/resnet50-fp16.json",),
        race_of_resnet50,
        ("{} samples/s at batch {}: channels last gained a factor of {}, compiling another {}, freezing another {}",),
    ),
    *(
        Claim(
            f"A race of {budget} compared with the fastest of {count} recipes at batch 256: `{name}`",
            "{} samples/s at batch {}, compared with {}",
            f"tputfind tune {name} --dtype fp16 --budget {budget.replace(' ', '')}",
            H200,
            (f"nvidia-h200/tune/{name}-fp16.json", f"nvidia-h200/recipes/{name}-fp16.json"),
            partial(race_and_recipes, name),
        )
        for name, budget, count in (
            ("resnet50", "8 min", 6),
            ("mobilenet_v3_large", "3 min", 3),
            ("vit_b_16", "3 min", 3),
        )
    ),
    Claim(
        "A race of 3 min for MobileNetV4 of timm, compared with plain eager",
        "`{}` in channels last, {} samples/s at batch {}, {} times",
        "tputfind tune timm:mobilenetv4_conv_medium --dtype fp16 --budget 3min",
        H200,
        ("nvidia-h200/tune/mobilenetv4-fp16.json",),
        race_of_timm,
    ),
    Claim(
        "A race of 4 min for ResNet-50 on two GPUs",
        "`{}` in channels last, {} samples/s at batch {}; {} of {} variants were timed",
        "tputfind tune resnet50 --dtype fp16 --budget 4min --device all",
        TWO_H200,
        ("nvidia-h200-x2/tune/resnet50-fp16.json",),
        race_on_two,
    ),
    Claim(
        "Four instances of ResNet-50 under MPS, batch 32 each, compared with one",
        "{}/s ± {} %, {}/s ± {} %",
        "tputfind resnet50 --dtype fp16 --instances 1,2,4 --batch-sizes 1,32",
        H200,
        ("nvidia-h200/recipes/resnet50-fp16-instances.json",),
        rates_of_instances,
        ("four instances of ResNet-50 in fp16 reached {} samples/s at batch 32 (± {} %), one {} (± {} %)",),
    ),
    Claim(
        "Races of 2 min on a CPU: how many times the throughput of the default the winners have, both timed again",
        "{} models, {} to {} times",
        "python benchmarks/tuned.py --budget 2min",
        CPU,
        ("cpu/tuned.txt",),
        gains_on_cpu,
        ("races of two minutes found {1} to {2} times the throughput of the default for {0} models",),
    ),
    Claim(
        "Pairs of models compared in turns within a minute: false alarms of equal ones, then planted 5 % and 3 % found",
        "{} of {}; {} of {}; {} of {}",
        "python benchmarks/in_turn.py --repeats 100",
        CPU,
        ("cpu/in_turn.txt",),
        verdicts_in_turn,
        (
            (
                "{} of {} pairs of equal models compare as slower or faster; a delay of 5 % is found in {} of {}, "
                "and one of 3 % in {} of {}"
            ),
        ),
    ),
    Claim(
        "Two equal runs compare as `same` (batch 256)",
        "{} of {} pairs",
        "python benchmarks/verdicts.py FOLDER",
        H200,
        (SAME,),
        partial(verdicts, SAME, "same", 256),
    ),
    Claim(
        "A planted delay of 5 % compares as `slower` (batch 256)",
        "{} of {} pairs",
        "python benchmarks/verdicts.py FOLDER FOLDER",
        H200,
        (SLOWER,),
        partial(verdicts, SLOWER, "slower", 256),
    ),
    *(
        Claim(
            f"Modes: {model}",
            "eager {}/s; compile {}/s, {}; cudagraph {}/s, {}",
            "tputfind MODEL --dtype fp16 --mode eager,compile,cudagraph",
            H200,
            (f"nvidia-h200/recipes/{name}.json",),
            partial(recipes, name, layout),
        )
        for model, (name, layout) in RECIPES.items()
    ),
    Claim(
        "Modes at batch 1: `mobilenet_v3_large`",
        "eager {}/s, compile {}/s, cudagraph {}/s",
        "tputfind MODEL --dtype fp16 --mode eager,compile,cudagraph",
        H200,
        ("nvidia-h200/recipes/mobilenet_v3_large-fp16.json",),
        partial(recipes_at_batch_1, "mobilenet_v3_large-fp16"),
    ),
)

# Sizing

SERVERS: Final = (
    "nvidia-h200/serving/mosec-vit_l_16-fp32.csv",
    "nvidia-h200/serving/litserve-vit_l_16-fp32.csv",
)
FLEETS: Final = ("nvidia-h200-x2/serving/fleet-mosec.csv",)


def error_of_p99() -> Figures:
    """Return the largest error of a predicted p99, in percent, at loads that the overheads were not fitted to."""
    errors = table(*SERVERS).query("load >= 0.7").p99_error.abs()
    return (f"{ceil(1000 * errors.max()) / 10:.1f}",)


def recommended_fleets() -> Figures:
    """Return how many fleets of the recommended size met the target, of how many; and the same of one device fewer."""
    found = table(*FLEETS)
    enough, fewer = found[found.devices == found.recommended], found[found.devices < found.recommended]
    return f"{enough.met.sum()}", f"{len(enough)}", f"{fewer.met.sum()}", f"{len(fewer)}"


def error_of_ray_serve() -> Figures:
    """Return the largest error of a p99, in percent."""
    text = (RESULTS / "simulated/sizing/servers.txt").read_text()
    return (max(re.findall(r"^ray .* [+-]([0-9.]+)%$", text, re.MULTILINE), key=float),)


SIZING = (
    Claim(
        "The predicted p99 of real servers (mosec, LitServe; ViT-L/16) at 70 to 95 % utilization",
        "off by at most {} %",
        "python benchmarks/serve.py",
        H200,
        SERVERS,
        error_of_p99,
        ("the predicted p99 is off by at most {} %",),
    ),
    Claim(
        "The recommended number of devices meets the target served by mosec, one fewer does not",
        "{} of {} meet it; with one fewer {} of {}",
        "python benchmarks/serve_fleet.py",
        TWO_H200,
        FLEETS,
        recommended_fleets,
        ("{} of {} recommended fleets met the target; with one device fewer, {} of {} did",),
    ),
    Claim(
        "The range of devices holds the true number (records drawn from a simulated device)",
        "{} of {}",
        "python benchmarks/ranges.py",
        NO_DEVICE,
        ("simulated/sizing/ranges.txt",),
        partial(match, "simulated/sizing/ranges.txt", r"(\d+) of (\d+) ranges hold the true number"),
        ("{} of {} ranges held the true number",),
    ),
    Claim(
        "Simulated p99 agrees with the batching code of Ray Serve on a simulated clock",
        "off by at most {} %",
        "python benchmarks/servers.py --requests 100000 --processes 2",
        NO_DEVICE,
        ("simulated/sizing/servers.txt",),
        error_of_ray_serve,
        ("p99 off by at most {} %",),
    ),
    Claim(
        "Time of a plan, on one busy CPU core",
        "median {} s, longest {} s, of 75 plans",
        "python benchmarks/size_times.py --every 3 --cpu",
        NO_DEVICE,
        ("simulated/sizing/times.txt",),
        partial(match, "simulated/sizing/times.txt", r"median ([0-9.]+) s, worst ([0-9.]+) s; .* of 75 "),
        ("A plan takes {} s at the median and {} s at most",),
    ),
)

# Several devices, and models


BUSY: Final = "nvidia-h200-x2/all-busy/resnet50-fp16-cudagraph.json"


def busy_pair() -> Figures:
    """Return the lowest and the highest ratio of two busy devices to the two alone, over three batch sizes."""
    rates: dict[tuple[str, int], float] = Counter()
    for one in load_records(RESULTS / BUSY):
        for row in one.rows:
            assert row.samples_per_s is not None
            rates[one.spec.load, row.batch_size] += row.samples_per_s
    ratios = [rates["all_busy", size] / rates["solo", size] for size in (1, 32, 256)]
    return f"{min(ratios):.4f}", f"{max(ratios):.4f}"


def zoo() -> Figures:
    """Return how many models of torchvision run in fp16, in some dtype, and how many there are."""
    rows = table("nvidia-h200/zoo.csv")
    ran = rows[rows.status == "ok"]
    in_fp16 = ran[ran.dtype == "fp16"]
    return tuple(f"{found.model.nunique()}" for found in (in_fp16, ran, rows))


def transformers_types() -> Figures:
    """Return how many types of transformers run, and how many can be built from their default configuration."""
    statuses = table("cpu/hf-types.csv").status.value_counts()
    return f"{statuses['runs']}", f"{sum(statuses[status] for status in ('runs', 'refused', 'failed'))}"


def one_driver() -> Figures:
    """Return the driver's CPU seconds and MiB for 1000 jobs on 200 nodes."""
    (found,) = (
        table("simulated/fleet/scale.csv").query("jobs == 1000 and nodes == 200 and lost == 0").to_dict("records")
    )
    return f"{found['driver CPU s']:.1f}", f"{found['driver memory MiB']:.0f}"


OTHERS = (
    Claim(
        "Two busy GPUs of one host do not slow each other down (ResNet-50 as CUDA graphs, three batch sizes)",
        "{} to {} of their throughput alone",
        "tputfind resnet50 --dtype fp16 --batch-sizes 1,32,256 --device all --all-busy --mode cudagraph",
        TWO_H200,
        (BUSY,),
        busy_pair,
    ),
    Claim(
        "One driver follows 1000 jobs on 200 simulated nodes",
        "{} s of CPU time, {} MiB",
        "PYTHONPATH=tests python benchmarks/fleet_scale.py",
        NO_DEVICE,
        ("simulated/fleet/scale.csv",),
        one_driver,
    ),
    Claim(
        "Models of torchvision that run in fp16, or in another dtype",
        "{}, {} of {}",
        "python benchmarks/zoo.py --at-once 10 --csv FILE",
        H200,
        ("nvidia-h200/zoo.csv",),
        zoo,
        ("{} of torchvision's models run in fp16, and {} of {} in fp16 or another dtype",),
    ),
    Claim(
        "Types of transformers that run, with few layers",
        "{} of {}",
        "python benchmarks/hf_types.py --csv FILE",
        CPU,
        ("cpu/hf-types.csv",),
        transformers_types,
        ("{} of the {} types that transformers builds from a default configuration run",),
    ),
)

CLAIMS: Final = (*RUNS, *TIMING, *SEARCH, *COMPARISON, *SIZING, *OTHERS)
