"""Compare the race of ``tputfind tune`` with other searches on simulated spaces of recipes. Prints; measures nothing.

    pip install optuna==5.0.0
    PYTHONPATH=. python benchmarks/races.py --spaces 1000 > results/simulated/tune/races.txt
    PYTHONPATH=. python benchmarks/races.py --spaces 1000 --alone --budgets 900 2400

A space has two layouts and the six modes of a GPU, or on a CPU four modes, five numbers of instances and three sets of
cores. Its throughputs are products of factors, drawn from ranges around those of the recipes of ResNet-50, ViT-B/16,
MobileNetV3 and BERT on an H200, and of an interaction of 2 %. A process scatters by 0.2, 1 or 2 %, and takes about as
long as in the race of ResNet-50 on an H200. The race is the tool's own, on a simulated clock. Regret is how far the
true throughput of the answer is below the best of the space. The grid measures every recipe in three processes. The
other searches get the time that the race took, and answer with the recipe that they measured to be the fastest. A race
drops a recipe wrongly if it calls it slower, or not faster, than a leader that it is truly faster than by over 3 %.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from math import exp, log
from random import Random
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

from tputfind.analysis.compare import Tried
from tputfind.analysis.race import Levels
from tputfind.analysis.turns import Round, Turns, order_of_block
from tputfind.record.spec import Spec
from tputfind.record.types import LAYOUTS, MODES, is_compile_mode
from tputfind.runners.race import Course
from tputfind.runners.tune import OF_RACE
from tputfind.session.progress import Silent
from tputfind.session.turns import Duel

BATCH_SIZE: Final = 32
START_S: Final = 8.0
COMPILE_S: Final = {"compile:max-autotune": 200.0}
COMPILES_S: Final = 20.0
AGAIN: Final = 0.4
"""Fraction of the compile time of a further process, which finds kernels in the cache of the first."""
WINDOWS_S: Final = 3.0
PROCESSES: Final = 3
BLOCKS: Final = 10
WITHIN: Final = 0.01
GPU: Final[Levels] = {"layout": LAYOUTS, "mode": MODES}
CPU: Final[Levels] = {
    "layout": LAYOUTS,
    "instances": (1, 2, 4, 8, 16),
    "device": ("cpu", "cpu:0-7", "cpu:0"),
    "mode": ("eager", "compile", "compile:freezing", "compile:max-autotune"),
}
BUDGETS_S: Final = (300.0, 600.0)


class Space:
    """A space of recipes: their true throughputs, and a clock on which processes run."""

    def __init__(self, levels: Levels, seed: int) -> None:
        self.levels = levels
        self.random = Random(seed)
        self.now_s = 0.0
        self.compiled: set[Spec] = set()
        names = list(levels)
        self.plain = msgspec.structs.replace(
            Spec(model="simulated"), **{name: values[0] for name, values in levels.items()}
        )
        self.recipes = []
        for values in itertools.product(*levels.values()):
            with suppress(ValueError):  # more instances than cores
                self.recipes.append(msgspec.structs.replace(self.plain, **dict(zip(names, values, strict=True))))
        draw = self.random
        self.scatter = draw.choice([0.002, 0.01, 0.02])
        self.compile_factor = exp(draw.uniform(log(0.9), log(2.5)))
        factors = {name: {value: self._factor(name, value) for value in levels[name]} for name in names}
        kept = draw.random() < 0.5  # else a compiler chooses the layout itself
        self.true_per_s: dict[Spec, float] = {}
        for spec in self.recipes:
            parts = {name: log(factors[name][getattr(spec, name)]) for name in names}
            if is_compile_mode(spec.mode) and not kept:
                parts["layout"] = draw.gauss(0, 0.01)
            self.true_per_s[spec] = 1000 * exp(sum(parts.values()) + draw.gauss(0, 0.02))

    def _factor(self, name: str, value: object) -> float:
        """Draw the factor of a level; that of the plain one is 1."""
        draw = self.random
        if value == self.levels[name][0]:
            return 1.0
        ranges: dict[object, tuple[float, float]] = {
            "nhwc": (0.8, 1.6),
            "cudagraph": (0.97, 1.1),
            2: (0.9, 1.5),
            4: (0.8, 1.8),
            8: (0.6, 1.9),
            16: (0.4, 2.0),
            "cpu:0-7": (0.5, 1.2),
            "cpu:0": (0.1, 1.1),
        }
        if str(value).startswith("compile:"):
            return self.compile_factor * draw.uniform(0.97, 1.2)
        if value == "compile":
            return self.compile_factor
        low, high = ranges[value]
        return exp(draw.uniform(log(low), log(high)))

    def start(self, *specs: Spec) -> None:
        """Let the clock go on by the start of a process of each of these, at once."""
        took_s = []
        for spec in specs:
            whole_s = COMPILE_S.get(spec.mode, COMPILES_S) if is_compile_mode(spec.mode) else 0.0
            took_s.append(START_S + whole_s * (AGAIN if spec in self.compiled else 1.0))
        self.compiled.update(specs)
        self.now_s += max(took_s)

    def pace_per_s(self, spec: Spec) -> float:
        """Return the throughput of a new process."""
        return self.true_per_s[spec] * exp(self.random.gauss(0, self.scatter))

    def measure_per_s(self, spec: Spec) -> float:
        """Return the measured throughput of one process, and let the clock go on."""
        self.start(spec)
        self.now_s += WINDOWS_S
        return self.pace_per_s(spec)

    def regret(self, spec: Spec) -> float:
        """Return how far the throughput of a recipe is below the best, as a fraction."""
        return 1 - self.true_per_s[spec] / max(self.true_per_s.values())


class SimulatedDuel(Duel):
    """Two recipes of a space, which take turns on its clock."""

    def __init__(self, space: Space, leader: Spec, challenger: Spec) -> None:
        self.space = space
        self.pair = leader, challenger
        self.tried = Tried(Turns(batch_sizes=(BATCH_SIZE, BATCH_SIZE)))
        self.took_s = 0.0

    def take_round(self, random: Random) -> None:
        """Take one more round."""
        begin_s, space = self.space.now_s, self.space
        space.start(*self.pair)
        paces = [space.pace_per_s(spec) for spec in self.pair]
        per_s: list[list[float]] = [[], []]
        for _ in range(BLOCKS):
            for variant in order_of_block((0, 1), random):
                per_s[variant].append(paces[variant] * exp(space.random.gauss(0, WITHIN)))
        space.now_s += WINDOWS_S
        rounds = (*self.tried.turns.rounds, Round(tuple(map(tuple, per_s))))
        self.tried = self.tried._replace(turns=msgspec.structs.replace(self.tried.turns, rounds=rounds))
        self.took_s = space.now_s - begin_s


def race(space: Space, budget_s: float) -> tuple[Spec, bool]:
    """Return the winner of the tool's race, and whether it dropped a recipe wrongly."""
    as_duel, clock = partial(SimulatedDuel, space), partial(getattr, space, "now_s")
    course = Course(space.plain, space.levels, as_duel, OF_RACE * budget_s, progress=Silent(), clock=clock)
    course.run()
    dropped = [one for one in course.contenders if one.outcome in ("behind", "not_faster")]
    true_per_s = space.true_per_s
    return course.leader, any(one.against and true_per_s[one.spec] > 1.03 * true_per_s[one.against] for one in dropped)


Search = Callable[[Space, float], Iterator[Spec]]
"""A search yields the recipe that it is about to measure; it receives the throughput as the value of ``yield``."""


def by_random(space: Space, _: float) -> Any:
    """Measure recipes in random order, the plain one first."""
    others = space.recipes[1:]
    space.random.shuffle(others)
    found = {}
    for spec in (space.plain, *others):
        found[spec] = yield spec


def by_hill_climbing(space: Space, _: float) -> Any:
    """Measure all neighbours of the best recipe, which differ in one factor, and move to the best of them."""
    best, best_per_s = space.plain, (yield space.plain)
    measured = {best}
    while True:
        found = {}
        for name, values in space.levels.items():
            for value in values:
                with suppress(ValueError):
                    spec = msgspec.structs.replace(best, **{name: value})
                if spec not in measured:
                    measured.add(spec)
                    found[spec] = yield spec
        ahead = max(found, key=lambda spec: found[spec], default=None)
        if ahead is None or found[ahead] <= best_per_s:
            return
        best, best_per_s = ahead, found[ahead]


def by_optuna(space: Space, _: float) -> Any:
    """Let optuna's TPE sampler choose, the plain recipe first."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = space.random.randrange(2**31)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=4))
    study.enqueue_trial({name: values[0] for name, values in space.levels.items()})
    known: dict[Spec, float] = {}
    for _ in range(300):
        trial = study.ask()
        chosen = {name: trial.suggest_categorical(name, list(values)) for name, values in space.levels.items()}
        try:
            spec = msgspec.structs.replace(space.plain, **chosen)
        except ValueError:  # more instances than cores
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        if spec not in known:
            known[spec] = yield spec
        study.tell(trial, known[spec])


def answer_of(search: Any, space: Space, until_s: float) -> Spec:
    """Return the recipe that a search measured to be the fastest within the time."""
    space.now_s, space.compiled = 0.0, set()
    found: dict[Spec, float] = {}
    steps = search(space, until_s)
    try:
        spec = next(steps)
        while True:
            before_s = space.now_s
            per_s = space.measure_per_s(spec)
            if space.now_s > until_s and found:
                space.now_s = before_s
                break
            found[spec] = per_s
            spec = steps.send(per_s)
    except StopIteration:
        pass
    return max(found, key=lambda one: found[one])


def grid_s(space: Space) -> float:
    """Return the seconds of measuring every recipe in three processes."""
    space.now_s, space.compiled = 0.0, set()
    for spec in space.recipes:
        for _ in range(PROCESSES):
            space.measure_per_s(spec)
    return space.now_s


class Result(NamedTuple):
    """The regret of each search in one space, the race's time over the grid's, and whether it dropped wrongly."""

    regrets: Mapping[str, float]
    share: float
    race_s: float
    wrong: bool


OTHERS: Final = {"optuna, TPE": by_optuna, "hill climbing": by_hill_climbing, "random": by_random}


def result_of(
    levels: Levels, seed: int, budget_s: float, others: Mapping[str, Callable[[Space, float], Any]]
) -> Result:
    """Return the result of one space."""
    space = Space(levels, seed)
    winner, wrong = race(space, budget_s)
    regrets, race_s = {"tune": space.regret(winner)}, space.now_s
    for name, search in others.items():
        regrets[name] = space.regret(answer_of(search, space, race_s))
    return Result(regrets, race_s / grid_s(space), race_s, wrong)


def main() -> None:
    """Simulate, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS_S, help="seconds")
    parser.add_argument("--alone", action="store_true", help="leave the other searches out")
    asked = parser.parse_args()
    for (name, levels), budget_s in itertools.product({"gpu": GPU, "cpu": CPU}.items(), asked.budgets):
        seeds = range(asked.first, asked.first + asked.spaces)
        results = [result_of(levels, seed, budget_s, {} if asked.alone else OTHERS) for seed in seeds]
        count = len(Space(levels, 0).recipes)
        shares = [one.share for one in results]
        print(f"{name}: {len(results)} spaces of {count} recipes, --budget {budget_s:.0f}s")
        print(f"  the race took {median(one.race_s for one in results):.0f} s, {median(shares):.0%} of the grid's time")
        print(f"  a recipe was dropped wrongly in {sum(one.wrong for one in results) / len(results):.1%}")
        for search in results[0].regrets:
            regrets = sorted(one.regrets[search] for one in results)
            near = sum(regret <= 0.02 for regret in regrets) / len(regrets)
            late = regrets[int(0.95 * len(regrets))]
            print(
                f"  {search:14} regret {sum(regrets) / len(regrets):6.2%} on average, {late:6.2%} at p95, "
                f"2 % or less in {near:.1%}"
            )


if __name__ == "__main__":
    main()
