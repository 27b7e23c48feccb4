"""Races of variants: the challengers, and their outcomes."""

from random import Random

from support.turns import taken

from tputfind.analysis.compare import Tried, judged_in_turn
from tputfind.analysis.race import REGRET, challengers, outcome_of, settles_race
from tputfind.analysis.turns import ASSUMED, LOOKS, Turns
from tputfind.record.spec import Spec

PLAIN = Spec(model="resnet18")
LEVELS = {"dtype": ("fp32", "bf16"), "layout": ("nchw", "nhwc"), "mode": ("eager", "compile")}


def raced(random, new):
    """Return the outcome of a challenger that is ``new`` times as fast as the leader, and its rounds."""
    rounds = ()
    for look in LOOKS:
        rounds += taken(random, number=look - len(rounds), new=new)
        judgement = judged_in_turn(Tried(Turns(batch_sizes=(8, 8), rounds=rounds)), REGRET, 5, ASSUMED)
        if settles_race(judgement):
            break
    return outcome_of(judgement), len(rounds)


def test_challengers_vary_one_factor_of_leader_and_compile_last():
    met = {PLAIN}

    first = [(one.dtype, one.layout, one.mode) for one in challengers(PLAIN, LEVELS, met)]
    leader = Spec(model="resnet18", dtype="bf16")
    compiled = Spec(model="resnet18", dtype="bf16", mode="compile")
    later = [(one.dtype, one.layout, one.mode) for one in challengers(leader, LEVELS, met | {leader})]

    assert first == [("bf16", "nchw", "eager"), ("fp32", "nhwc", "eager"), ("fp32", "nchw", "compile")]
    assert next(challengers(compiled, LEVELS, met | {leader, compiled})).layout == "nhwc"
    assert later == [("bf16", "nhwc", "eager"), ("bf16", "nchw", "compile")]


def test_challengers_not_yet_run_come_before_levels_run_with_another_leader():
    modes = {**LEVELS, "mode": ("eager", "compile", "compile:freezing")}
    met = {PLAIN, Spec(model="resnet18", layout="nhwc"), leader := Spec(model="resnet18", mode="compile")}

    found = [(one.dtype, one.layout, one.mode) for one in challengers(leader, modes, met)]

    assert found == [("bf16", "nchw", "compile"), ("fp32", "nchw", "compile:freezing"), ("fp32", "nhwc", "compile")]


def test_variants_that_do_not_go_together_do_not_race():
    train = Spec(model="resnet18", phase="train")

    assert [one.mode for one in challengers(train, {"mode": ("eager", "cudagraph", "compile")}, {train})] == ["compile"]


def test_variant_better_by_3_percent_is_dropped_in_at_most_5_percent():
    random = Random(5)

    outcomes = [raced(random, 1.03 + random.random() / 10)[0] for _ in range(300)]

    assert sum(outcome != "faster" for outcome in outcomes) <= 15


def test_variant_far_slower_is_dropped_at_first_look():
    random = Random(6)

    races = [raced(random, 0.7) for _ in range(100)]

    assert {outcome for outcome, _ in races} <= {"behind", "not_faster"}
    assert sum(rounds for _, rounds in races) <= 1.2 * len(races)


def test_a_variant_that_is_slower_never_leads():
    random = Random(7)

    assert sum(raced(random, 0.99)[0] == "faster" for _ in range(300)) <= 3


def test_a_variant_that_is_far_ahead_leads_after_one_round():
    random = Random(8)

    assert [raced(random, 1.4) for _ in range(100)] == [("faster", 1)] * 100


def test_a_variant_that_may_be_faster_is_undecided():
    rounds = taken(Random(9), number=1, new=1.05)
    judgement = judged_in_turn(Tried(Turns(batch_sizes=(8, 8), rounds=rounds)), REGRET, 5, ASSUMED)

    assert outcome_of(judgement) == "undecided"
    assert outcome_of(judged_in_turn(Tried(Turns(batch_sizes=(8, 8))), REGRET, 5, ASSUMED)) == "undecided"
