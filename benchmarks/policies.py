"""Run the search on a simulated device, over shapes of models that it was not tuned for. Prints; measures nothing.

    PYTHONPATH=.:tests python benchmarks/policies.py --families linear,pieces --verbose

The first table covers every shape and four sizes of memory. For each policy, it gives the percentage of searches that
have ended with the exact edge, or know it to 1 %, after some seconds. ``late`` searches go on for 900 s, ``slow`` ones
end because a batch takes too long, ``wrong`` ones name a wrong edge. The second table gives the same for the whole
command under ``--budget``. The policies are this tree's own search and ``--search bisect``. To compare with another
version, set PYTHONPATH to its checkout, and to the ``tests`` of this one.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from statistics import mean, median
from time import perf_counter
from typing import Final, NamedTuple

from support.shapes import shapes
from support.simulated import Asked, Device, Searched, Shape, fits, measure, search

from tputfind.errors import OutOfTime
from tputfind.record.record import Edge, Record
from tputfind.record.types import LARGEST_BATCH
from tputfind.units import GIB

MEMORIES_GIB: Final = (8, 24, 80, 141)
MARKS_S: Final = (30, 60, 120)
MOST_S: Final = 900.0
CLOSE: Final = 0.01
TOO_SLOW: Final = ("timeout", "latency", "too_slow")
POLICIES: Final = {"own": "forecast", "bisect": "bisect"}


class Case(NamedTuple):
    """A simulation, described by names and numbers, which another process can receive."""

    policy: str
    shape: str
    memory_gib: int
    draws: int
    first: int
    budget_s: float | None
    start_s: float
    copied: bool


class Outcome(NamedTuple):
    """The outcome of a case. ``exact_s`` and ``close_s`` are when the edge was known exactly, and to 1 %."""

    case: Case
    family: str
    end: str
    exact_s: float
    close_s: float
    seconds: float
    trials: int
    host_bytes: float
    asked: list[Asked]
    said: str
    wall_s: float


def main() -> None:
    """Simulate, print the tables and the misses of each family."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--policies", default="own,bisect")
    asked.add_argument("--families", help="names of families, or parts of names of shapes, separated by commas")
    asked.add_argument("--memories", default=",".join(map(str, MEMORIES_GIB)))
    asked.add_argument("--draws", type=int, default=0, help="so many of either random generator, and nothing else")
    asked.add_argument("--first", type=int, default=1000, help="the first of the draws")
    asked.add_argument("--budget", type=float, default=60.0, help="seconds, for the second table; 0 leaves it out")
    asked.add_argument("--start", type=float, default=8.0, help="seconds of it that the command's start takes")
    asked.add_argument("--inputs", choices=["full", "copied"], default="full", help="how the host makes inputs")
    asked.add_argument("--processes", type=int, default=2)
    asked.add_argument("--verbose", action="store_true", help="list every case with what it asked")
    options = asked.parse_args()
    begun_s = perf_counter()
    chosen = pick(shapes(options.draws, options.first), options.families)
    memories = [int(memory) for memory in options.memories.split(",")]
    budgets = [None, *([options.budget] if options.budget else [])]
    more = (options.draws, options.first)
    cases = [
        Case(policy, name, memory, *more, budget, options.start, options.inputs == "copied")
        for budget in budgets
        for policy in options.policies.split(",")
        for name in chosen
        for memory in memories
    ]
    with get_context("fork").Pool(options.processes) as pool:
        outcomes = list(pool.imap(simulated, cases, chunksize=4))
    alone = [outcome for outcome in outcomes if outcome.case.budget_s is None]
    whole = [outcome for outcome in outcomes if outcome.case.budget_s is not None]
    if options.verbose:
        for outcome in outcomes:
            print(line_of(outcome))
    print(f"\n{len(chosen)} shapes x {len(memories)} memories, simulated: a model. Inputs {options.inputs}.")
    print("Search alone:")
    print_table(alone)
    print_families(alone)
    if whole:
        print(f"\nThe command with --budget {options.budget:g}s, of which its start takes {options.start:g} s:")
        print_budget(whole)
    print(f"\n{perf_counter() - begun_s:.0f} s", file=sys.stderr)


def pick(found: dict[str, Shape], wanted: str | None) -> list[str]:
    """Return the names of the shapes that match a filter."""
    if wanted is None:
        return list(found)
    parts = wanted.split(",")
    return [
        name for name, shape in found.items() if any(part == shape.family or (part and part in name) for part in parts)
    ]


def simulated(case: Case) -> Outcome:
    """Return the outcome of a case."""
    begun_s = perf_counter()
    shape, device = shapes(case.draws, case.first)[case.shape], Device(case.memory_gib, case.copied)
    options = {"search": POLICIES[case.policy]}
    if case.budget_s is None:
        found = search(device, shape, MOST_S, **options)
    else:
        found = measure(device, shape, budget_s=case.budget_s, start_s=case.start_s, **options)
    seconds = device.asked[-1].at_s if device.asked else 0.0
    end, exact = ended(device, shape, found)
    close_s = close_after(device.asked, seconds if exact else math.inf, shape.granularity)
    edge_s = edge_known_after(device.asked, found.edge, seconds) if exact else math.inf
    return Outcome(
        case,
        shape.family,
        end,
        edge_s if case.budget_s is not None else (seconds if exact else math.inf),
        close_s,
        seconds,
        device.processes,
        device.host_peak_bytes,
        device.asked,
        said(found),
        perf_counter() - begun_s,
    )


def ended(device: Device, shape: Shape, found: Searched) -> tuple[str, bool]:
    """Return how a search ended, and whether with the exact edge."""
    edge = found.edge
    if edge is None:
        smallest = any(asked.batch_size == shape.granularity for asked in device.asked)
        if isinstance(found.error, OutOfTime):
            return "late", False
        if found.error is None:
            return "no edge", False
        nothing = smallest and fits(device, shape, shape.granularity) is not None
        return ("right", True) if nothing else (f"wrong: {found.error}", False)
    if edge.limited_by in TOO_SLOW or "slow" in str(edge.limited_by):
        hangs = any(limit.hangs and edge.fails_at == limit.above + 1 for limit in shape.limits)
        return ("right", True) if hangs else ("slow", False)
    if edge.largest_batch and fits(device, shape, edge.largest_batch) is not None:
        return "wrong", False
    if edge.fails_at is None:
        return ("right", True) if edge.largest_batch == LARGEST_BATCH else ("wrong: no end", False)
    if fits(device, shape, edge.fails_at) is None:
        return "wrong", False
    if edge.fails_at - edge.largest_batch > shape.granularity:
        return "about", False
    return "right", True


def close_after(asked: Sequence[Asked], exact_s: float, granularity: int) -> float:
    """Return the seconds after which the trials bracket the edge to 1 %."""
    passes, fails = 0, math.inf
    for one in asked:
        if one.outcome == "fits":
            passes = max(passes, one.batch_size)
        elif one.outcome not in ("out of time", "left", "timeout"):
            fails = min(fails, one.batch_size) if one.batch_size > passes else fails
        if passes >= fails:  # not monotone
            fails = min(
                (a.batch_size for a in asked if a.outcome != "fits" and a.batch_size > passes), default=math.inf
            )
        if fails - passes <= max(granularity, CLOSE * passes):
            return min(one.at_s, exact_s)
    return exact_s


def edge_known_after(asked: Sequence[Asked], edge: Edge | None, seconds: float) -> float:
    """Return the seconds after which both sides of an edge had been tried."""
    if edge is None:
        return seconds
    sides = {edge.largest_batch, edge.fails_at} - {0, None}
    return max(
        (min((one.at_s for one in asked if one.batch_size == side), default=seconds) for side in sides), default=seconds
    )


def said(found: Searched) -> str:
    """Return the edge that a run would report, in short."""
    edge, record = found.edge, found.record
    if edge is None:
        return f"none ({largest_passed(record)} passed): {type(found.error).__name__ if found.error else 'no error'}"
    return f"{edge.largest_batch}, {edge.fails_at} {edge.limited_by}"


def largest_passed(record: Record) -> int:
    """Return the largest batch of a record that passed a trial."""
    return max((trial.batch_size for trial in record.trials if trial.failure is None), default=0)


def line_of(outcome: Outcome) -> str:
    """Return a case with all its trials, in order; ``!`` marks those that did not fit."""
    short = {"fits": "", "out_of_memory": "!", "out of time": "...", "kernel_limit": "!kernel", "index_limit": "!index"}
    asked = " ".join(
        f"{'r' if one.what == 'row' else ''}{one.batch_size}{short.get(one.outcome, '!' + one.outcome)}"
        f"({one.seconds:.1f})"
        for one in outcome.asked
    )
    case = outcome.case
    kind = "alone" if case.budget_s is None else f"budget {case.budget_s:g}"
    return (
        f"{case.policy}, {kind}, {case.shape}, {case.memory_gib} GiB: {outcome.end} [{outcome.said}]"
        f" {outcome.seconds:.1f} s, {outcome.trials} processes, host {outcome.host_bytes / GIB:.1f} GiB,"
        f" took {outcome.wall_s:.2f} s: {asked}"
    )


def percent(outcomes: Sequence[Outcome], seconds: Sequence[float], mark_s: float) -> str:
    return f"{100 * sum(at_s <= mark_s for at_s in seconds) / max(1, len(outcomes)):.1f}"


def print_table(outcomes: Sequence[Outcome]) -> None:
    """Print one line per policy for searches alone."""
    print(
        "| policy | cases | exact ≤30 s | ≤60 | ≤120 | to 1 % ≤30 s | ≤60 | ≤120 | median s | mean | worst "
        "| trials median (most) | late / slow / wrong / about | host GiB |"
    )
    print("|---|" + "--:|" * 13)
    for policy in dict.fromkeys(outcome.case.policy for outcome in outcomes):
        print(table_line(policy, [outcome for outcome in outcomes if outcome.case.policy == policy]))


def table_line(name: str, own: Sequence[Outcome]) -> str:
    """Return one line of the table of searches alone."""
    exact, close = [outcome.exact_s for outcome in own], [outcome.close_s for outcome in own]
    seconds = [outcome.seconds for outcome in own]
    ends = [outcome.end for outcome in own]
    wrong = sum(end.startswith(("wrong", "no edge")) for end in ends)
    trials = [outcome.trials for outcome in own]
    cells = [
        name,
        str(len(own)),
        *(percent(own, exact, mark_s) for mark_s in MARKS_S),
        *(percent(own, close, mark_s) for mark_s in MARKS_S),
        f"{median(seconds):.1f}",
        f"{mean(seconds):.0f}",
        f"{max(seconds):.0f}",
        f"{median(trials):g} ({max(trials)})",
        f"{ends.count('late')} / {ends.count('slow')} / {wrong} / {ends.count('about')}",
        f"{max(outcome.host_bytes for outcome in own) / GIB:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def print_families(outcomes: Sequence[Outcome]) -> None:
    """Print one line per family and policy, and the cases without an answer within 60 s."""
    for policy in dict.fromkeys(outcome.case.policy for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.case.policy == policy]
        print(f"\nBy family, {policy}: exact within 60 s, to 1 % within 60 s, mean seconds, most trials; misses")
        for family in dict.fromkeys(outcome.family for outcome in own):
            of_family = [outcome for outcome in own if outcome.family == family]
            missed: dict[str, list[str]] = {}
            for outcome in of_family:
                if not outcome.exact_s <= MARKS_S[1]:
                    end = "" if outcome.end == "right" else f" {outcome.end}"
                    text = f"{outcome.case.memory_gib}:{outcome.seconds:.0f}s{end}"
                    missed.setdefault(outcome.case.shape, []).append(text)
            counts = [
                percent(of_family, [outcome.exact_s for outcome in of_family], MARKS_S[1]),
                percent(of_family, [outcome.close_s for outcome in of_family], MARKS_S[1]),
                f"{mean(outcome.seconds for outcome in of_family):.0f}",
                str(max(outcome.trials for outcome in of_family)),
            ]
            shown = "; ".join(f"{name} {', '.join(texts)}" for name, texts in missed.items())
            print(f"  {family} ({len(of_family)}): {' / '.join(counts)}; {shown or 'none'}")


def print_budget(outcomes: Sequence[Outcome]) -> None:
    """Print one line per policy for the command under a budget."""
    print("| policy | cases | edge exact % | to 1 % | largest passed < a tenth of it | rows, median | no answer |")
    print("|---|" + "--:|" * 6)
    for policy in dict.fromkeys(outcome.case.policy for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.case.policy == policy]
        budget_s = own[0].case.budget_s or 0.0
        rows = [sum(one.what == "row" and one.outcome == "fits" for one in outcome.asked) for outcome in own]
        passed = [max((one.batch_size for one in o.asked if one.outcome == "fits"), default=0) for o in own]
        far = sum(10 * size < true_edge(outcome.case) for size, outcome in zip(passed, own, strict=True))
        cells = [
            policy,
            str(len(own)),
            percent(own, [outcome.exact_s for outcome in own], budget_s),
            percent(own, [outcome.close_s for outcome in own], budget_s),
            f"{100 * far / len(own):.1f} %",
            f"{median(rows):g}",
            str(sum(outcome.end.startswith("wrong") or not size for outcome, size in zip(own, passed, strict=True))),
        ]
        print(f"| {' | '.join(cells)} |")


def true_edge(case: Case) -> int:
    """Return the edge that doubling and bisection find."""
    shape, device = shapes(case.draws, case.first)[case.shape], Device(case.memory_gib, case.copied)
    low, high = 0, shape.granularity
    while high <= LARGEST_BATCH and fits(device, shape, high) is None:
        low, high = high, 2 * high
    while high - low > shape.granularity and high <= LARGEST_BATCH:
        middle = (low + high) // 2 // shape.granularity * shape.granularity
        low, high = (middle, high) if fits(device, shape, middle) is None else (low, middle)
    return low


if __name__ == "__main__":
    os.nice(5)
    main()
