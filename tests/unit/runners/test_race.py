"""The course of a race, in simulated spaces of recipes: which variants meet, and which leads."""

import contextlib
import threading
from collections import Counter
from functools import partial
from math import exp
from random import Random

import msgspec
import pytest
from support.turns import taken

from tputfind.analysis.compare import Tried
from tputfind.analysis.turns import COSTS, LOOKS, Turns
from tputfind.errors import ModelFailed, NoSuchDevice, NothingFits, OutOfTime
from tputfind.record.record import Failure
from tputfind.record.spec import Spec
from tputfind.record.types import is_compile_mode
from tputfind.runners.race import Course, log_rates
from tputfind.session.progress import Silent
from tputfind.session.turns import Duel, UnknownCost

PLAIN = Spec(model="simulated")
LEVELS = {"layout": ("nchw", "nhwc"), "mode": ("eager", "compile", "compile:freezing")}
SECONDS = {"eager": 10.0, "compile": 40.0, "compile:freezing": 40.0}


class Space:
    """Throughputs of recipes as products of factors, and a clock on which simulated rounds pass."""

    def __init__(self, factors, *, seed=0, broken=(), noise=1.0):
        self.factors = {"nchw": 1.0, "eager": 1.0} | factors
        self.random = Random(seed)
        self.broken = broken
        self.noise = noise
        self.failure = Failure(kind="error", message="had enough")
        self.refusal = NoSuchDevice("cannot compile here")
        self.fails_from = None  # rounds after which a layout fails
        self.fails_later = "nhwc"
        self.now_s = 0.0
        self.met = []

    def level(self, spec):
        return self.factors[spec.layout] * self.factors[spec.mode]

    def duel(self, old, new):
        if "refused" in self.factors and new.mode == self.factors["refused"]:
            raise self.refusal
        return Simulated(self, old, new)

    def race(self, seconds, **options):
        options = {"progress": Silent(), "clock": partial(getattr, self, "now_s")} | options
        course = Course(PLAIN, LEVELS, self.duel, seconds, **options)
        course.run()
        return course


class Simulated(Duel):
    """Two recipes of a space."""

    def __init__(self, space, old, new):
        self.space, self.pair, self.took_s = space, (old, new), 0.0
        self.tried = Tried(Turns(batch_sizes=(8, 4)))

    def take_round(self, random):
        space = self.space
        space.met.append(self.pair)
        space.now_s += max(SECONDS[spec.mode] for spec in self.pair)
        failed = [number for number, spec in enumerate(self.pair) if spec.mode in space.broken]
        if space.fails_from is not None and len(space.met) >= space.fails_from:
            failed = [number for number, spec in enumerate(self.pair) if spec.layout == space.fails_later][:1] or failed
        if failed:
            self.tried = self.tried._replace(failed=failed[-1], failure=space.failure)
            return
        old, new = map(space.level, self.pair)
        rounds = (
            *self.tried.turns.rounds,
            *taken(space.random, new=new / old, between=0.01 * space.noise, within=0.02 * space.noise),
        )
        self.tried = self.tried._replace(turns=msgspec.structs.replace(self.tried.turns, rounds=rounds))


def outcomes(course):
    return {(one.spec.layout, one.spec.mode): one.outcome for one in course.contenders}


def test_answer_is_within_two_percent_of_best_in_most_spaces():
    near = 0
    for seed in range(100):
        draw = Random(1000 + seed)
        names = ("nhwc", "compile", "compile:freezing")
        space = Space({name: exp(draw.uniform(-0.2, 0.6)) for name in names}, seed=seed)
        best = max(space.level(spec) for spec in recipes())
        near += space.level(space.race(600.0).leader) >= 0.98 * best

    assert near >= 95


def recipes():
    return [Spec(model="simulated", layout=layout, mode=mode) for layout in LEVELS["layout"] for mode in LEVELS["mode"]]


def test_every_level_meets_leader_once_before_rounds_are_repeated():
    space = Space({"nhwc": 1.01, "compile": 1.02, "compile:freezing": 1.01})
    space.race(600.0)

    first = [new for _, new in space.met[:3]]
    assert first[0].layout == "nhwc"
    assert [new.mode for new in first[1:]] == ["compile", "compile:freezing"]
    assert len(space.met) > len(set(space.met))


def test_layout_is_decided_before_a_variant_that_takes_long(monkeypatch):
    monkeypatch.setitem(SECONDS, "compile:max-autotune", 200.0)
    monkeypatch.setitem(LEVELS, "mode", ("eager", "compile", "compile:max-autotune"))
    space = Space({"nhwc": 1.5, "compile": 2.0, "compile:max-autotune": 2.2})
    space.level = lambda spec: (
        space.factors[spec.mode] * (1 if is_compile_mode(spec.mode) else space.factors[spec.layout])
    )
    space.race(600.0)

    met = [(new.layout, new.mode) for _, new in space.met[:4]]
    assert met[:3] == [("nhwc", "eager"), ("nhwc", "compile"), ("nchw", "compile")]
    assert met[3][1] == "compile:max-autotune"


def test_variants_without_time_are_untried_with_expected_seconds():
    course = Space({"nhwc": 1.5, "compile": 2.0, "compile:freezing": 2.1}).race(35.0)

    assert outcomes(course)["nhwc", "compile"] == "untried"
    assert "takes about 40 s" in [one.reason for one in course.contenders]
    assert course.leader.layout == "nhwc"
    just_enough = Space({"nhwc": 1.5, "compile": 2.0, "compile:freezing": 2.1}).race(50.0)
    assert outcomes(just_enough)["nhwc", "compile"] != "untried"


def test_round_that_fails_does_not_set_the_expected_time_of_its_mode(monkeypatch):
    monkeypatch.setitem(LEVELS, "layout", ("nchw", "nhwc"))
    monkeypatch.setitem(LEVELS, "dtype", ("fp32", "bf16"))

    class Hangs(Simulated):
        def take_round(self, random):
            super().take_round(random)
            if self.pair[1].dtype == "bf16":
                self.space.now_s += 250.0
                self.tried = self.tried._replace(failed=1, failure=self.space.failure)

    space = Space({"nhwc": 1.5, "compile": 1.2, "compile:freezing": 1.2})
    space.duel = partial(Hangs, space)
    course = space.race(300.0)

    assert {one.spec.dtype: one.outcome for one in course.contenders[1:3]} == {"bf16": "failed", "fp32": "faster"}


def test_round_of_two_is_expected_to_take_as_long_as_the_slower(monkeypatch):
    monkeypatch.setitem(SECONDS, "compile:max-autotune", 238.0)
    monkeypatch.setitem(LEVELS, "mode", ("eager", "compile:max-autotune"))
    space = Space({"nhwc": 0.99, "compile:max-autotune": 1.02}, noise=0.1)
    course = space.race(400.0)

    assert course.leader.mode == "compile:max-autotune"
    assert space.now_s == 10.0 + 238.0  # the round beside nhwc eager would end too late


def test_rival_that_seems_fastest_gets_the_next_round():
    space = Space({"nhwc": 0.97, "compile": 0.99, "compile:freezing": 0.5}, noise=0.1)
    space.race(600.0)

    assert [new.mode for _, new in space.met[:4]] == ["eager", "compile", "compile:freezing", "compile"]


def test_rounds_between_the_fastest_leave_time_and_end_at_the_last_look():
    factors = {"nhwc": 1.0, "compile": 1.0, "compile:freezing": 1.0}
    hurried, patient = Space(factors, noise=9.0), Space(factors, noise=9.0)
    hurried.race(300.0)
    patient.race(100_000.0)

    assert 0.7 * 300 < hurried.now_s < 0.86 * 300
    assert max(Counter(map(frozenset, patient.met)).values()) == LOOKS[-1]


def test_variant_that_fails_loses_with_its_reason():
    course = Space({"nhwc": 1.5, "compile": 9.0, "compile:freezing": 1.2}, broken=("compile",)).race(600.0)

    (failed,) = [one for one in course.contenders if one.spec.mode == "compile" and one.spec.layout == "nhwc"]
    assert (failed.outcome, failed.reason, failed.seconds) == ("failed", "error: had enough", 40.0)
    assert course.leader.mode == "compile:freezing"


@pytest.mark.parametrize(("refusal", "outcome"), [(NoSuchDevice("not here"), "failed"), (OutOfTime("late"), "untried")])
def test_variant_that_does_not_begin_to_run_has_its_refusal_as_reason(refusal, outcome):
    space = Space({"nhwc": 1.5, "compile": 9.0, "compile:freezing": 1.2, "refused": "compile"})
    space.refusal = refusal
    course = space.race(600.0)

    assert [one.reason for one in course.contenders if one.outcome == outcome] == [refusal.message]
    assert course.leader.mode == "compile:freezing"


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [("error", ModelFailed, "simulated fails at batch 8"), ("out_of_memory", NothingFits, "simulated: batch 8 does")],
)
def test_first_variant_that_never_runs_ends_the_race(kind, error, says):
    space = Space({"nhwc": 1.5, "compile": 1.2, "compile:freezing": 1.2}, broken=("eager",))
    space.failure = Failure(kind=kind, message="had enough")

    with pytest.raises(error, match=says):
        space.race(600.0)


def test_cost_that_the_device_does_not_report_ends_the_race():
    space = Space({"nhwc": 1.5, "compile": 1.2, "compile:freezing": 1.2, "refused": "eager"})
    space.refusal = UnknownCost(COSTS["energy"], "the device")

    with pytest.raises(UnknownCost, match="does not report the energy"):
        space.race(600.0)


def test_simplest_of_nearly_equal_variants_leads():
    course = Space({"nhwc": 1.0, "compile": 1.003, "compile:freezing": 1.003}, noise=0.1).race(10_000.0)

    assert course.leader == PLAIN
    assert Space({"nhwc": 1.0, "compile": 1.01, "compile:freezing": 1.003}, noise=0.1).race(10_000.0).leader != PLAIN


def test_race_of_figures_without_noise_is_decided():
    space = Space({"nhwc": 1.01, "compile": 1.05, "compile:freezing": 1.05}, noise=0.0)
    course = space.race(10_000.0)

    assert (course.leader.layout, course.leader.mode) == ("nhwc", "compile")
    assert "undecided" not in outcomes(course).values()
    assert len(space.met) < 20


class Lane:
    """A device of several, which take their first rounds at once, and the others one at a time."""

    def __init__(self, first, lock):
        self.first, self.lock = first, lock
        self.free = threading.Lock()
        self.pairs = []
        self.interrupted = threading.Event()

    def take_round(self, duel, random):
        assert self.free.acquire(blocking=False)
        self.pairs.append(duel.pair)
        if len(self.pairs) == 1:
            self.first.wait(timeout=10)  # fails unless the other lanes come too
        with self.lock:
            duel.take_round(random)
        self.free.release()

    def interrupt(self):
        self.interrupted.set()


def lanes_of(count):
    first, lock = threading.Barrier(count), threading.Lock()
    return [Lane(first, lock) for _ in range(count)]


@pytest.mark.parametrize("count", [2, 3])
def test_lanes_take_rounds_of_different_pairs_at_once_and_find_the_same_winner(count):
    lanes = lanes_of(count)
    space = Space({"nhwc": 1.5, "compile": 2.0, "compile:freezing": 1.2}, noise=0.1)
    course = space.race(10_000.0, lanes=lanes)

    assert len({lane.pairs[0] for lane in lanes}) == count
    assert (course.leader.layout, course.leader.mode) == ("nhwc", "compile")
    assert "undecided" not in outcomes(course).values()
    assert sorted(space.met, key=str) == sorted((pair for lane in lanes for pair in lane.pairs), key=str)


def test_challenger_of_a_leader_that_fails_on_another_lane_meets_the_next_leader(monkeypatch):
    class Told(Silent):
        round_ended = threading.Event()

        def did(self, *_):
            self.round_ended.set()

    class Fails(Simulated):
        def take_round(self, random):
            if self.pair[1].mode == "compile" and self.pair[0] == PLAIN:
                assert Told.round_ended.wait(timeout=10)  # that of the other lane
                failure = Failure(kind="error", message="had enough")
                self.tried = self.tried._replace(failed=0, failure=failure)
            else:
                super().take_round(random)

    lanes = lanes_of(2)
    for lane in lanes:
        lane.lock = contextlib.nullcontext()
    space = Space({"nhwc": 1.5, "compile": 1.2, "compile:freezing": 1.2}, noise=0.1)
    space.duel = partial(Fails, space)
    monkeypatch.setattr(Course, "_is_broken", lambda *_: False)  # as if both had taken rounds before
    course = space.race(10_000.0, lanes=lanes, progress=Told())

    assert outcomes(course)["nchw", "eager"] == "failed"
    assert {new.mode for old, new in space.met if old.layout == "nhwc"} == {"compile", "compile:freezing"}


class OnDevice:
    """A device on which rounds end in order, the broken ones first; a broken one runs nothing."""

    def __init__(self, broken, failed):
        self.broken, self.failed = broken, failed

    def take_round(self, duel, random):
        if self.broken:
            failure = Failure(kind="died", message="killed by SIGABRT")
            duel.tried = duel.tried._replace(failed=0, failure=failure)
            self.failed.release()
        else:
            assert self.failed.acquire(timeout=10)
            self.failed.release()
            duel.take_round(random)

    def interrupt(self):
        """Do nothing."""


def test_device_on_which_the_leader_fails_is_left_out_of_the_race():
    failed = threading.Semaphore(0)
    lanes = [OnDevice(True, failed), OnDevice(False, failed)]
    course = Space({"nhwc": 1.5, "compile": 1.2, "compile:freezing": 1.1}).race(10_000.0, lanes=lanes)

    assert course.lanes == lanes[1:]
    assert (course.leader.layout, course.leader.mode) == ("nhwc", "compile")
    assert not {"failed", "untried"} & set(outcomes(course).values())


def test_leader_that_fails_on_every_device_ends_the_race():
    failed = threading.Semaphore(0)

    with pytest.raises(ModelFailed):
        Space({"nhwc": 1.5}).race(10_000.0, lanes=[OnDevice(True, failed) for _ in range(2)])


def test_error_on_one_lane_interrupts_the_others():
    lanes = lanes_of(2)

    class Waits(Simulated):
        def take_round(self, random):
            if self.pair[1].layout == "nhwc":
                raise RuntimeError("a fault of the tool")
            lanes[1].interrupted.wait(timeout=10)
            raise KeyboardInterrupt

    for lane in lanes:
        lane.lock = contextlib.nullcontext()
    space = Space({})
    space.duel = partial(Waits, space)

    with pytest.raises(RuntimeError, match="a fault of the tool"):
        space.race(600.0, lanes=lanes)
    assert all(lane.interrupted.is_set() for lane in lanes)


def test_every_variant_is_set_beside_the_winner():
    course = Space({"nhwc": 1.5, "compile": 2.0, "compile:freezing": 1.0}).race(10_000.0)

    of_winner = {(one.spec.layout, one.spec.mode): one.of_winner for one in course.contenders}
    assert of_winner["nhwc", "compile"] == 1
    assert of_winner["nchw", "eager"] == pytest.approx(1 / 3, rel=0.05)
    assert {one.spec for one in course.contenders if one.may_be_faster} <= {course.leader}


def test_resumed_race_takes_no_round_again_and_tries_what_was_left_out():
    space = Space({"nhwc": 1.5, "compile": 2.0, "compile:freezing": 2.5})
    begun = space.race(25.0)
    met = space.met.copy()
    course = space.race(600.0, before=begun.contenders)

    assert "untried" in outcomes(begun).values()
    assert "untried" not in outcomes(course).values()
    assert course.leader == msgspec.structs.replace(PLAIN, layout="nhwc", mode="compile:freezing")
    layouts = [one for one in course.contenders if one.spec.mode == "eager"]
    assert [one.spec.layout for one in layouts] == ["nchw", "nhwc"]
    rounds = [pair for pair in space.met if {spec.mode for spec in pair} == {"eager"}]
    assert len(layouts[1].turns.rounds) == len(rounds)
    assert space.met[: len(met)] == met


def test_resumed_race_adds_rounds_to_the_pairs_that_met():
    space = Space({"nhwc": 1.0, "compile": 1.0, "compile:freezing": 1.0}, noise=9.0)
    begun = space.race(300.0)
    before = {(one.against, one.spec): len(one.turns.rounds) for one in begun.contenders[1:]}
    course = space.race(3000.0, before=begun.contenders)

    rounds = {(one.against, one.spec): len(one.turns.rounds) for one in course.contenders[1:]}
    assert rounds == {pair: space.met.count(pair) for pair in rounds}
    assert any(count > before.get(pair, count) for pair, count in rounds.items())


def test_resumed_race_that_was_decided_takes_no_round():
    space = Space({"nhwc": 1.5, "compile": 2.0, "compile:freezing": 2.5})
    course = space.race(10_000.0)
    count = len(space.met)
    again = space.race(10_000.0, before=course.contenders)

    assert len(space.met) == count
    assert (again.leader, outcomes(again)) == (course.leader, outcomes(course))
    of_winner = [one.of_winner for one in course.contenders]
    assert [one.of_winner for one in again.contenders] == pytest.approx(of_winner)


def test_race_without_a_round_leaves_the_first_variant_ahead():
    course = Space({"nhwc": 1.5, "compile": 2.0, "compile:freezing": 1.0}).race(1.0)

    assert course.leader == PLAIN
    assert {one.outcome for one in course.contenders} == {"first", "untried"}


@pytest.mark.parametrize(("factor", "rounds", "fails", "leads"), [(1.5, 2, "nhwc", "nchw"), (1.03, 4, "nchw", "nhwc")])
def test_variant_that_fails_later_gives_way_to_the_other(factor, rounds, fails, leads):
    space = Space({"nhwc": factor, "compile": 2.0, "compile:freezing": 1.0}, broken=("compile", "compile:freezing"))
    space.fails_from, space.fails_later = rounds, fails
    course = space.race(600.0)

    assert (course.leader.layout, course.leader.mode) == (leads, "eager")
    assert outcomes(course)[fails, "eager"] == "failed"


class FailsTogether(Simulated):
    """A pair of compiled variants, of which the plainly compiled one fails."""

    def take_round(self, random):
        if is_compile_mode(self.pair[0].mode) and is_compile_mode(self.pair[1].mode) and self.space.fails_later:
            self.space.now_s += 40.0
            failed = [spec.mode for spec in self.pair].index("compile")
            self.tried = self.tried._replace(failed=failed, failure=self.space.failure)
        else:
            super().take_round(random)


def test_leader_that_fails_in_a_rematch_gives_way_to_the_next_fastest():
    space = Space({"nhwc": 0.5, "compile": 1.5, "compile:freezing": 1.49}, noise=0.1)
    space.duel = partial(FailsTogether, space)
    space.fails_later = False  # in the first rounds
    begun = space.race(135.0)
    space.fails_later = True
    course = space.race(10_000.0, before=begun.contenders)

    assert begun.leader.mode == "compile"
    assert (course.leader.mode, outcomes(course)["nchw", "compile"]) == ("compile:freezing", "failed")
    of_winner = {one.spec.mode: one.of_winner for one in course.contenders if one.spec.layout == "nchw"}
    assert of_winner["eager"] == pytest.approx(1 / 1.49, rel=0.02)
    assert of_winner["compile"] is None


def test_resumed_race_keeps_estimates_that_no_pair_connects():
    space = Space({"nhwc": 0.5, "compile": 1.5, "compile:freezing": 1.49}, noise=0.1)
    begun = space.race(10_000.0).contenders
    failed = {"outcome": "failed", "turns": None, "of_winner": None}
    apart = [msgspec.structs.replace(one, **failed) if one.spec.mode == "compile" else one for one in begun]
    course = space.race(1.0, before=apart)

    assert course.leader.mode == "compile:freezing"
    assert course.contenders[0].of_winner == pytest.approx(1 / 1.49, rel=0.02)


def test_former_leader_that_is_tried_again_can_win():
    space = Space({"nhwc": 0.5, "compile": 1.6, "compile:freezing": 1.5}, noise=0.1)
    begun = space.race(10_000.0).contenders
    again = {"outcome": "untried", "turns": None, "of_winner": None}
    before = [msgspec.structs.replace(one, **again) if one.spec.mode == "compile" else one for one in begun]
    course = space.race(10_000.0, before=before)

    assert before[3].against == before[2].spec
    assert course.leader == before[2].spec
    assert outcomes(course)["nchw", "compile"] != "untried"


def test_levels_are_products_of_ratios_along_duels():
    space = Space({})
    one, two, three = recipes()[:3]
    duels = {}
    for old, new, ratio in ((one, two, 1.2), (two, three, 1.5)):
        duel = Simulated(space, old, new)
        duel.tried = Tried(Turns(batch_sizes=(8, 8), rounds=taken(Random(1), new=ratio, between=0, within=0)))
        duels[old, new] = duel.tried.turns

    levels = log_rates(duels, {})

    assert exp(levels[two] - levels[one]) == pytest.approx(1.2, rel=1e-3)
    assert exp(levels[three] - levels[one]) == pytest.approx(1.8, rel=1e-3)
