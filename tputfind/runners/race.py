"""The course of a race: which variants meet in which order, and which of them leads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from math import exp, inf, log
from random import Random
from time import monotonic
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from tputfind.analysis.compare import Tried, judged_in_turn
from tputfind.analysis.race import OUTCOMES, REGRET, Contender, Levels, Outcome, challengers, outcome_of, recipe_of
from tputfind.analysis.turns import ASSUMED, ASSUMED_DEVICE_BOUND, LOOKS, Turns, scatter_of
from tputfind.errors import TputfindError
from tputfind.record.record import Failure
from tputfind.record.spec import Spec
from tputfind.record.types import is_compile_mode
from tputfind.session.outcome import NOT_OF_THE_MODEL, no_answer
from tputfind.session.progress import Progress
from tputfind.session.turns import AGAIN, Duel, UnknownCost

_COMPILES_S: Final = 40.0
"""Expected seconds of a round of a compiled variant, until one was timed."""
_TUNES_S: Final = 240.0
"""The same for a variant whose compiler times kernels to choose among them."""
_STARTS_S: Final = 5.0
_LONG_S: Final = 100.0
"""Longer rounds, in seconds, wait until shorter ones have decided the layout."""
_CLOSE: Final = 0.05
"""Variants that are estimated to be slower than a new leader by more than this fraction do not meet it."""
_TIE: Final = 0.005
"""A variant leads only if it is estimated to be faster by more than this fraction than one that is simpler."""
_CERTAINLY: Final = 0.8
"""Fraction of its expected time that a round takes at least: earlier ones read files for the first time."""
_NO_REMATCH: Final = 0.86
"""Fraction of the time of a race after which only variants that never ran get a round."""
_SWEEPS: Final = 200


class Lane(Protocol):
    """A device on which rounds are taken, one at a time."""

    def take_round(self, duel: Duel, random: Random) -> None:
        """Take one more round of a duel; errors as for ``Duel.take_round``."""

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the thread that takes a round. Another thread calls it."""


class ThisThread:
    """A lane for duels that need no device of their own."""

    def take_round(self, duel: Duel, random: Random) -> None:
        duel.take_round(random)

    def interrupt(self) -> None:
        """Do nothing: a round ends by itself."""


class _Round(NamedTuple):
    """A round that a lane takes: the rival that it is about, and the pair, of which new is judged by old."""

    lane: Lane
    rival: Spec
    old: Spec
    new: Spec


class Course:
    """A race under way: the leader, and the outcomes of its challengers."""

    def __init__(
        self,
        plain: Spec,
        levels: Levels,
        as_duel: Callable[[Spec, Spec], Duel],
        seconds: float,
        *,
        progress: Progress,
        clock: Callable[[], float] = monotonic,
        before: Sequence[Contender] = (),
        lanes: Sequence[Lane] = (ThisThread(),),
    ) -> None:
        """Take the first leader, the levels of each factor, and the time of the race.

        ``as_duel`` makes the duel of a leader and a challenger. Its first round raises TputfindError if the challenger
        does not run.
        ``clock`` returns the seconds now. ``before`` are the contenders of a race that goes on. ``lanes`` are equal
        devices, which take rounds at the same time; one on which not even the leader runs is taken out.
        """
        self.leader = plain
        self._levels = levels
        self._as_duel = as_duel
        self._until_s, self._rounds_until_s = (clock() + share * seconds for share in (1.0, _NO_REMATCH))
        self._progress = progress
        self._clock = clock
        self._random = Random(plain.seed)  # noqa: S311  # the order of windows is no secret
        self._recipe_of = partial(recipe_of, images=len(levels.get("layout", ())) > 1)
        self._comparisons = max(1, sum(len(values) - 1 for values in levels.values() if values))
        self._took_s: dict[tuple[str, bool], float] = {("compile:max-autotune", False): _TUNES_S}
        self._contenders = {plain: Contender(spec=plain, outcome="first")}
        self._duels: dict[tuple[Spec, Spec], Duel] = {}
        self._settled: set[frozenset[Spec]] = set()
        self.lanes = list(lanes)
        self._working: list[Lane] = []  # those that took a round without a failure
        self._running: dict[Future[tuple[Duel, float]], _Round] = {}
        for one in before:
            if one.outcome != "untried":
                self._contenders[one.spec] = one
            if one.turns is not None and one.against is not None:
                self._duels[one.against, one.spec] = duel = as_duel(one.against, one.spec)
                duel.tried = Tried(one.turns)
                rounds = len(one.turns.rounds)
                self._note_seconds((one.against, one.spec), one.seconds / rounds, again=rounds > 1)
        self._rates_before = {one.spec: log(one.of_winner) for one in before if one.of_winner}
        self._met = set(self._contenders)
        self._all_met = False
        if self._turns:
            self._judge()

    @property
    def _turns(self) -> dict[tuple[Spec, Spec], Turns]:
        """The timings of each pair that took a round, the leader first."""
        return {pair: duel.tried.turns for pair, duel in self._duels.items() if duel.tried.turns.rounds}

    @property
    def _left(self) -> list[Spec]:
        """The variants that did not fail, in the order of ``contenders``."""
        return [spec for spec, one in self._contenders.items() if one.outcome != "failed"]

    @property
    def _rates(self) -> dict[Spec, float]:
        """The estimated log throughputs, also of variants that failed later: their rounds connect the others."""
        return log_rates(self._turns, self._rates_before)

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """All variants, in the order in which they first met a leader."""
        rates = self._rates
        of_winner = {spec: exp(rates[spec] - rates.get(self.leader, 0.0)) for spec in self._left if spec in rates}
        return tuple(replace(one, of_winner=of_winner.get(spec)) for spec, one in self._contenders.items())

    def run(self) -> None:
        """Let every variant that differs from the leader in one factor meet it in one round.

        The variant that is estimated to be the fastest leads. The remaining time goes to rounds between it and those
        that may be faster, the fastest first. TputfindError if the leader does not run.
        """
        with ThreadPoolExecutor(len(self.lanes)) as pool:
            try:
                self._begin_rounds(pool)
                while self._running:
                    done, _ = wait(self._running, return_when=FIRST_COMPLETED)
                    for future in [one for one in self._running if one in done]:
                        self._end_round(self._running.pop(future), future)
                    self._begin_rounds(pool)
            except BaseException:
                for lane in self.lanes:
                    lane.interrupt()
                raise

    def _begin_rounds(self, pool: Executor) -> None:
        """Let every free lane take a round, as long as there are variants to meet."""
        busy = [one.lane for one in self._running.values()]
        for lane in (one for one in self.lanes if one not in busy):
            rival = self._next_in_time() or self._next_rival()
            if rival is None:
                return
            has_led = rival in self._contenders and (rival, self.leader) in self._duels
            old, new = (rival, self.leader) if has_led else (self.leader, rival)
            self._progress.doing(f"{self._recipe_of(new)} beside {self._recipe_of(old)}", self._until_s - self._clock())
            self._running[pool.submit(self._take_round, lane, old, new)] = _Round(lane, rival, old, new)

    def _next_in_time(self) -> Spec | None:
        """Return the next variant that has not met a leader, and for which there is time; list the others as untried.

        Return None once all have met a leader. While a round runs, more may come, since the leader may change.
        """
        while not self._all_met and (challenger := self._next_challenger()) is not None:
            self._met.add(challenger)
            needs_s = self._expected_s(self.leader, challenger)
            if self._clock() + _CERTAINLY * needs_s <= self._until_s:
                return challenger
            reason = f"takes about {needs_s:.0f} s"
            self._contenders[challenger] = Contender(spec=challenger, outcome="untried", reason=reason)
        self._all_met = self._all_met or not self._running
        return None

    def _next_challenger(self) -> Spec | None:
        """Return the next variant that has not met a leader yet.

        One that takes long waits for the leader in other layouts: a compiler may prefer another than plain code does.
        """
        waiting = list(challengers(self.leader, self._levels, self._met))
        if not waiting or self._expected_s(waiting[0]) < _LONG_S:
            return waiting[0] if waiting else None
        in_layouts = (one for one in waiting if replace(one, layout=self.leader.layout) == self.leader)
        return next(in_layouts, waiting[0])

    def _expected_s(self, *specs: Spec, again: bool = False) -> float:
        """Return the expected seconds of a round, which are those of the slowest to start."""

        def expected_of(mode: str) -> float:
            first_s = self._took_s.get((mode, False), _COMPILES_S if is_compile_mode(mode) else _STARTS_S)
            return self._took_s.get((mode, True), AGAIN * first_s) if again else first_s

        return max(expected_of(spec.mode) for spec in specs)

    def _note_seconds(self, pair: tuple[Spec, Spec], seconds: float, *, again: bool) -> None:
        """Keep the seconds of a round as those of the variant that is the slowest to start."""
        self._took_s[max(pair, key=self._expected_s).mode, again] = seconds

    def _next_rival(self) -> Spec | None:
        timed, running = self._turns, {frozenset((one.old, one.new)) for one in self._running.values()}
        left, rates = self._left, self._rates
        for rival in sorted((spec for spec in left if spec in rates), key=lambda spec: -rates[spec]):
            turns = timed.get((self.leader, rival)) or timed.get((rival, self.leader))
            if rival == self.leader or frozenset((self.leader, rival)) in self._settled | running:
                continue
            if turns is None and rates[rival] < rates[self.leader] - _CLOSE:
                continue
            if turns is not None and len(turns.rounds) >= LOOKS[-1]:
                continue
            expected_s = self._expected_s(self.leader, rival, again=turns is not None)
            if self._clock() + expected_s < self._rounds_until_s:
                return rival
        return None

    def _take_round(self, lane: Lane, old: Spec, new: Spec) -> tuple[Duel, float]:
        """Take one more round in the thread of a lane; return the duel and the seconds that it took."""
        begin_s = self._clock()
        duel = self._duels.get((old, new)) or self._as_duel(old, new)
        count = len(duel.tried.turns.rounds)
        while len(duel.tried.turns.rounds) == count and duel.tried.failure is None:
            lane.take_round(duel, self._random)  # again if it only adapted to a failure
        return duel, self._clock() - begin_s

    def _end_round(self, taken: _Round, future: Future[tuple[Duel, float]]) -> None:
        """Update the outcomes and the leader by a round that was taken; errors as for ``_drop``."""
        lane, rival, old, new = taken
        before = self._contenders.get(new)
        try:
            duel, seconds = future.result()
        except TputfindError as error:
            if isinstance(error, UnknownCost) and not self._working:
                raise
            self._settled.add(frozenset((old, new)))
            if before is None or before.turns is None:
                outcome: Outcome = "untried" if isinstance(error, NOT_OF_THE_MODEL) else "failed"
                self._contenders[new] = Contender(spec=new, outcome=outcome, reason=error.message)
            return
        took_s, seconds = seconds, seconds + (before.seconds if before else 0.0)
        failure = duel.tried.failure
        if failure is None:
            self._working.append(lane)
        elif self._is_broken(lane, (old, new)[duel.tried.failed or 0]):
            self.lanes.remove(lane)
            self._met -= {rival}  # it meets the leader on another device
            self._progress.did(f"one device is left out: {failure.plain}")
            duel.tried = duel.tried._replace(failed=None, failure=None)
            return
        else:
            self._drop((old, new)[duel.tried.failed or 0], failure, duel, seconds)
        failed = {spec for spec, one in self._contenders.items() if one.outcome == "failed"}
        if failed & {old, new}:  # in this round or on another lane
            self._met -= {rival} - failed  # a challenger meets the next leader
            return
        self._note_seconds((old, new), took_s, again=len(duel.tried.turns.rounds) > 1)
        self._allow_again()
        self._duels[old, new] = duel
        self._contenders[new] = Contender(spec=new, outcome="undecided", against=old, seconds=seconds)
        self._judge()
        judged = self._contenders[new]
        ratio = 0.0 if judged.judgement is None else judged.judgement.ratio
        self._progress.did(
            f"{self._recipe_of(new)}: {ratio:.3f} times {self._recipe_of(old)}, {OUTCOMES[judged.outcome]}"
        )

    def _allow_again(self) -> None:
        """Let variants that seemed to take too long meet a leader if rounds are shorter than expected."""
        left_s = self._until_s - self._clock()
        untried = [spec for spec, one in self._contenders.items() if one.outcome == "untried"]
        untried = [spec for spec in untried if frozenset((self.leader, spec)) not in self._settled]  # by an accident
        in_time = {spec for spec in untried if _CERTAINLY * self._expected_s(self.leader, spec) <= left_s}
        self._met -= in_time
        self._all_met = self._all_met and not in_time

    def _is_broken(self, lane: Lane, failed: Spec) -> bool:
        """Whether a lane has taken no round, others are left, and a variant fails that leads or ran elsewhere."""
        return lane not in self._working and len(self.lanes) > 1 and (failed == self.leader or failed in self._rates)

    def _drop(self, spec: Spec, failure: Failure, duel: Duel, seconds: float) -> None:
        """Drop a variant that failed; its rounds still count for the estimates of the others.

        TputfindError if it is the first one, and has never run, or all others failed before.
        """
        if spec == self.leader and not any(one in self._rates for one in self._left if one != spec):
            raise duel.refusal or no_answer(spec, duel.tried.turns.batch_sizes[0], failure, smallest=False)
        reason = f"{failure.kind.replace('_', ' ')}: {failure.plain}"
        self._contenders[spec] = Contender(spec=spec, outcome="failed", reason=reason, seconds=seconds)
        if self._turns:
            self._judge()

    def _judge(self) -> None:
        """Judge every duel by the scatter of all of its kind; the variant that is estimated to be the fastest leads."""
        timed = self._turns
        scatters = {
            bound: scatter_of((turns for turns in timed.values() if turns.device_bound == bound), assumed)
            for bound, assumed in ((True, ASSUMED_DEVICE_BOUND), (False, ASSUMED))
        }
        for (old, new), turns in timed.items():
            judgement = judged_in_turn(Tried(turns), REGRET, self._comparisons, scatters[turns.device_bound])
            one = self._contenders[new]
            if (outcome := outcome_of(judgement)) != "undecided":
                self._settled.add(frozenset((old, new)))
            if one.against == old:
                fields = {"outcome": outcome, "judgement": judgement, "turns": turns}
                self._contenders[new] = replace(one, **fields)
        left, rates = self._left, self._rates
        fastest = max(rates.get(spec, -inf) for spec in left)
        self.leader = next(spec for spec in left if rates.get(spec, -inf) >= fastest - _TIE)


def log_rates(timed: Mapping[tuple[Spec, Spec], Turns], before: Mapping[Spec, float]) -> dict[Spec, float]:
    """Return the estimated log throughput of each variant, by weighted least squares over the ratios of all pairs.

    A ratio weighs as much as it has rounds. ``before`` are earlier estimates: variants that no pairs connect keep their
    distance in them. The first of these stays as it is; without any, the first variant is 0. The normal equations are
    solved by the method of Gauss and Seidel.
    """
    specs = list(dict.fromkeys(spec for pair in timed for spec in pair))
    known = {spec: rate for spec, rate in before.items() if spec in specs} or dict.fromkeys(specs[:1], 0.0)
    rates = dict.fromkeys(specs, 0.0) | known
    free = sorted((spec for spec in specs if spec != next(iter(known))), key=known.__contains__)
    beside: dict[Spec, list[tuple[Spec, float, int]]] = {spec: [] for spec in rates}
    for (old, new), turns in timed.items():
        ratio, count = log(turns.ratio(1, 0) or 1.0), len(turns.rounds)
        beside[new].append((old, ratio, count))
        beside[old].append((new, -ratio, count))
    for _ in range(_SWEEPS):
        for spec in free:
            rounds = sum(count for _, _, count in beside[spec])
            rates[spec] = sum(count * (rates[other] + ratio) for other, ratio, count in beside[spec]) / rounds
    return rates
