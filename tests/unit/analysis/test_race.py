"""Races of variants: the challengers, and their outcomes."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import example, row
from support.turns import taken

from tputfind.analysis.compare import Tried, judged_in_turn
from tputfind.analysis.race import (
    REGRET,
    Contender,
    Race,
    batch_of,
    challengers,
    decode_race,
    outcome_of,
    pareto_front,
    recipe_of,
    speeds,
)
from tputfind.analysis.turns import ASSUMED, LOOKS, Round, Speed, Turns
from tputfind.errors import BadRecord
from tputfind.record.record import Row
from tputfind.record.spec import Spec

PLAIN = Spec(model="resnet18")
LEVELS = {"dtype": ("fp32", "bf16"), "layout": ("nchw", "nhwc"), "mode": ("eager", "compile")}


def raced(random, new):
    """Return the outcome of a challenger that is ``new`` times as fast as the leader, and its rounds."""
    rounds = ()
    for look in LOOKS:
        rounds += taken(random, number=look - len(rounds), new=new)
        judgement = judged_in_turn(Tried(Turns(batch_sizes=(8, 8), rounds=rounds)), REGRET, 5, ASSUMED)
        if outcome_of(judgement) != "undecided":
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
    assert leader not in challengers(leader, LEVELS, met)  # it failed on another device, and may run again


def test_challengers_vary_given_allocators_after_layouts():
    leader = Spec(model="resnet18", allocator="native")
    levels = LEVELS | {"allocator": ("native", "expandable")}

    names = [recipe_of(one) for one in challengers(leader, levels, {leader})]

    assert names[2] == "fp32 nchw eager allocator=expandable"
    assert names[-1] == "fp32 nchw compile allocator=native"


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

    assert {outcome for outcome, _ in races} == {"behind"}
    assert sum(rounds for _, rounds in races) <= 1.2 * len(races)


def test_a_variant_that_is_slower_never_leads():
    random = Random(7)

    outcomes = [raced(random, 0.99)[0] for _ in range(300)]

    assert outcomes.count("faster") <= 3
    assert outcomes.count("not_faster") >= 30


def test_a_variant_that_is_far_ahead_leads_after_one_round():
    random = Random(8)

    assert [raced(random, 1.4) for _ in range(100)] == [("faster", 1)] * 100


def test_a_variant_that_may_be_faster_is_undecided():
    rounds = taken(Random(9), number=1, new=1.05)
    judgement = judged_in_turn(Tried(Turns(batch_sizes=(8, 8), rounds=rounds)), REGRET, 5, ASSUMED)

    assert outcome_of(judgement) == "undecided"
    assert outcome_of(judged_in_turn(Tried(Turns(batch_sizes=(8, 8))), REGRET, 5, ASSUMED)) == "undecided"


SPEEDS = st.builds(Speed, batch_size=st.just(1), samples_per_s=st.integers(1, 9), latency_ms=st.integers(1, 9))


@given(st.lists(SPEEDS))
def test_pareto_front_holds_what_no_other_beats_and_all_else_is_beaten(known):
    front = [one for _, one in pareto_front([(PLAIN, one) for one in known])]

    def beaten_by(one, other):
        as_good = other.samples_per_s >= one.samples_per_s and other.latency_ms <= one.latency_ms
        return as_good and (other.samples_per_s, other.latency_ms) != (one.samples_per_s, one.latency_ms)

    assert not any(beaten_by(one, other) for one in front for other in known)
    for one in known:
        same = any((one.samples_per_s, one.latency_ms) == (two.samples_per_s, two.latency_ms) for two in front)
        assert same or any(beaten_by(one, other) for other in front)
    assert front == sorted(front, key=lambda one: one.latency_ms)


def test_speeds_are_of_batch_sizes_timed_before_and_of_variants_that_raced():
    two = Spec(model="resnet18", instances=2)
    first = Speed(batch_size=8, samples_per_s=100, latency_ms=10)
    speeds_of_two = [Speed(batch_size=4, samples_per_s=200, latency_ms=latency_ms) for latency_ms in (4.0, 5.0, 9.0)]
    rounds = [Round(((100.0,) * 2, (200.0,) * 2), (first, one)) for one in speeds_of_two]
    turns = Turns(batch_sizes=(8, 4), rounds=(*rounds, Round(((100.0,) * 2, (200.0,) * 2))))
    raced = Contender(spec=two, outcome="faster", against=PLAIN, turns=turns)
    timed = tuple(Speed(batch_size=size, samples_per_s=90, latency_ms=11) for size in (4, 8))
    fields = {"goal": "throughput", "device_name": "a CPU", "started": "", "budget_s": 60.0, "seconds": 1.0}
    contenders = Contender(spec=PLAIN, outcome="first"), raced
    race = Race(**fields, batch_size=8, contenders=contenders, winner=two, timed=timed)

    def known(race):
        return [(one.instances, speed.batch_size, speed.samples_per_s, speed.latency_ms) for one, speed in speeds(race)]

    assert known(race) == [(1, 4, 90, 11), (1, 8, 100, 10), (2, 4, 200, 5)]
    assert known(replace(race, contenders=(contenders[0], replace(raced, outcome="failed")))) == known(race)[:2]
    recorded = replace(race, record=replace(example(), rows=(row(4, 8.0), Row(batch_size=8))))
    assert known(recorded) == [*known(race)[:2], (2, 4, 500, pytest.approx(8.5, abs=0.1))]


@given(st.integers(1, 999), st.integers(1, 9), st.integers(1, 9))
def test_instances_share_the_batch_in_whole_granules(batch_size, instances, granularity):
    size = batch_of(Spec(model="resnet18", instances=instances, granularity=granularity), batch_size)

    assert size % granularity == 0
    assert batch_size < instances * (size + granularity)
    assert size == granularity or instances * size <= batch_size


@pytest.mark.parametrize(
    ("device", "name"),
    [("auto", "fp32 nchw eager"), ("cpu:0+2", "fp32 nchw eager cpu:0+2"), ("cuda:1", "fp32 nchw eager")],
)
def test_variants_are_named_by_cores_and_not_by_accelerator_of_their_race(device, name):
    assert recipe_of(replace(PLAIN, device=device)) == name


def test_file_that_holds_no_race_is_named():
    with pytest.raises(BadRecord, match=r"old\.json holds no race"):
        decode_race(b"{}", "old.json")
