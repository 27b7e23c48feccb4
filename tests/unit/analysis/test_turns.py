"""Ratios of variants timed in interleaved rounds."""

from random import Random
from statistics import median
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import example
from support.turns import taken

from tputfind import load
from tputfind.analysis.compare import (
    Tried,
    compare,
    compare_turns,
    decode_comparisons,
    gate,
    is_certain,
    judged_in_turn,
)
from tputfind.analysis.race import Contender, outcome_of
from tputfind.analysis.turns import (
    ASSUMED,
    ASSUMED_DEVICE_BOUND,
    FEWEST_ROUNDS,
    LOOKS,
    Round,
    Speed,
    Turns,
    is_steady,
    order_of_block,
    scatter_of,
)
from tputfind.errors import TooNoisy
from tputfind.record.record import Failure
from tputfind.record.spec import Spec
from tputfind.report.views.compare import answers


def until_certain(random, fail_slower=None, **noise):
    """Return the judgement at which a comparison stops, and its rounds; it checks after some of the rounds only."""
    rounds = ()
    for look in LOOKS:
        rounds += taken(random, number=look - len(rounds), **noise)
        judgement = judged_in_turn(Tried(Turns(batch_sizes=(8, 8), rounds=rounds)), 0.01, 1)
        if is_certain(judgement, fail_slower):
            break
    return judgement, len(rounds)


def test_equal_models_differ_in_at_most_5_percent_with_early_stopping():
    random = Random(1)

    told_apart = sum(until_certain(random)[0].verdict in ("faster", "slower") for _ in range(1000))

    assert told_apart <= 50


def test_five_percent_are_found_through_a_load_of_thirty_that_both_share():
    random = Random(2)

    found = [until_certain(random, new=0.95) for _ in range(200)]

    verdicts = [one.verdict for one, _ in found]
    assert verdicts.count("slower") >= 195
    assert verdicts.count("faster") == 0
    assert median(rounds for _, rounds in found) < LOOKS[-1]


def test_gate_ends_rounds_once_pass_or_failure_is_certain():
    random = Random(3)

    passed = [until_certain(random, fail_slower=0.05) for _ in range(100)]
    failed = [until_certain(random, fail_slower=0.05, new=0.85) for _ in range(100)]

    assert sum(one.is_regression(0.05) for one, _ in passed) == 0
    assert sum(one.low >= 0.95 for one, _ in passed) >= 95
    assert all(one.is_regression(0.05) for one, _ in failed)
    assert all(median(rounds for _, rounds in found) < LOOKS[-1] / 2 for found in (passed, failed))


@given(st.floats(0.2, 5.0), st.lists(st.floats(0.01, 1.0), min_size=3, max_size=6))
def test_slowdown_of_a_block_leaves_the_ratio_unchanged(ratio, loads):
    old = tuple(1000 * load for load in loads for _ in range(2))
    turns = Turns(batch_sizes=(1, 1), rounds=(Round((old, tuple(ratio * rate for rate in old))),) * 3)

    interval = turns.interval(1, 0)

    assert turns.ratio(1, 0) == pytest.approx(ratio)
    assert interval.low < ratio < interval.high
    assert interval.high / interval.low == pytest.approx(1, abs=0.01)  # at most the repeatability


def test_one_window_that_was_disturbed_does_not_count():
    even = (1000.0,) * 6
    disturbed = (1000.0, 100.0, *even[2:])
    turns = Turns(batch_sizes=(1, 1), rounds=(Round((even, disturbed)), Round((even, even)), Round((disturbed, even))))

    assert turns.ratio(1, 0) == pytest.approx(1)
    assert turns.rate_per_s(1) == pytest.approx(1000)
    assert Turns(batch_sizes=(1, 1)).rate_per_s(1) is None


@given(st.integers(2, 9), st.integers(0, 99))
def test_each_variant_has_same_mean_position_in_a_block(variants, seed):
    order = list(order_of_block(range(variants), Random(seed)))

    places = [sum(place for place, one in enumerate(order) if one == variant) for variant in range(variants)]

    assert len(order) == 2 * variants
    assert len(set(places)) == 1


@pytest.mark.parametrize("count", range(FEWEST_ROUNDS))
def test_too_few_rounds_are_ambiguous(count):
    judgement = judged_in_turn(Tried(Turns(batch_sizes=(8, 8), rounds=taken(Random(4), number=count))), 0.01, 1)

    assert (judgement.verdict, judgement.low, is_certain(judgement, None)) == ("ambiguous", None, False)
    assert f"timed in {count} round{'' if count == 1 else 's'}: a verdict needs 3" == judgement.reason


def test_one_or_two_rounds_distinguish_differences_beyond_assumed_scatter():
    random = Random(8)
    far, near = (
        [
            Turns(batch_sizes=(8, 8), rounds=taken(random, number=count, new=new)).interval(1, 0, 6, ASSUMED)
            for count in (1, 2) * 100
        ]
        for new in (1.4, 1.0)
    )

    assert all(1 < one.low < 1.4 < one.high for one in far)
    assert sum(not one.low <= 1 <= one.high for one in near) <= 10


def test_single_block_gives_no_interval():
    (one,) = taken(Random(9), new=2.0)
    turns = Turns(batch_sizes=(8, 8), rounds=(Round(tuple(rates[:2] for rates in one.per_s)),))

    assert turns.interval(1, 0, 1, ASSUMED) is None


def test_round_is_steady_if_its_ratio_is_precise_and_not_by_chance():
    quiet, noisy = (taken(Random(10), within=noise, shared=0.0)[0] for noise in (0.0005, 0.05))

    assert is_steady(quiet)
    assert not is_steady(noisy)
    assert is_steady(noisy, 0.05)
    assert not is_steady(Round(tuple(rates[:8] for rates in quiet.per_s)))


@pytest.mark.parametrize("host_bound", [True, False, None])
def test_round_of_host_bound_processes_ends_at_a_fraction_of_their_scatter(host_bound):
    (noisy,) = taken(Random(10), within=0.01, shared=0.0)
    speed = Speed(batch_size=8, samples_per_s=1.0, latency_ms=1.0, host_bound=host_bound)

    assert is_steady(Round(noisy.per_s, (speed, speed))) == (host_bound is True)


def test_scatter_is_pooled_over_pairs_once_rounds_are_repeated():
    random = Random(11)
    pairs = [
        Turns(batch_sizes=(8, 8), rounds=taken(random, number=3, new=new, between=0.01)) for new in (1.0, 2.0, 0.5)
    ]

    assert scatter_of(pairs[:1]) == ASSUMED
    assert scatter_of([]) == ASSUMED
    found = scatter_of(pairs)
    assert found.freedom == 6
    assert 0.005 < found.deviation < 0.03


def test_assumed_scatter_of_device_bound_pairs_counts_beside_estimate():
    random = Random(13)
    quiet, loud = (
        [Turns(batch_sizes=(8, 8), rounds=taken(random, number=4, between=between))] for between in (0.0005, 0.1)
    )
    assumed = ASSUMED_DEVICE_BOUND

    assert scatter_of([], assumed) == (assumed.deviation, 0)
    assert scatter_of(quiet, assumed).freedom == assumed.freedom + 3
    assert 0.5 * assumed.deviation < scatter_of(quiet, assumed).deviation < assumed.deviation
    assert scatter_of(loud, assumed).deviation > 2 * assumed.deviation


@pytest.mark.parametrize(("seen", "bound"), [((False, False), True), ((False, True), False), ((False, None), False)])
def test_pair_is_device_bound_if_neither_variant_waits_for_the_host(seen, bound):
    (one,) = taken(Random(14))
    speeds = tuple(Speed(batch_size=8, samples_per_s=100, latency_ms=80, host_bound=waits) for waits in seen)

    assert Turns(batch_sizes=(8, 8), rounds=(Round(one.per_s, speeds),)).device_bound == bound
    assert not Turns(batch_sizes=(8, 8), rounds=(one,)).device_bound


def test_interval_by_pooled_scatter_holds_true_ratio():
    random = Random(12)
    missed = 0
    for _ in range(200):
        pairs = [Turns(batch_sizes=(8, 8), rounds=taken(random, number=2, new=1.1, between=0.01)) for _ in range(4)]
        found = pairs[0].interval(1, 0, 6, scatter_of(pairs))
        missed += not found.low <= 1.1 <= found.high

    assert missed <= 2


def in_turn(*tried, other=MappingProxyType({"layout": "nhwc"}), images=True):
    """Return the comparison of two recipes, by default layouts, that were timed in turn at some batch sizes."""
    variants = Spec(model="resnet18"), Spec(model="resnet18", **other)
    return compare_turns(variants, "a CPU", "today", tried, tolerance=0.01, seconds=9.0, images=images)


def test_rounds_that_differ_too_much_have_no_interval_and_are_read_back():
    rounds = tuple(Round(per_s=((100.0,) * 2, (100.0 * ratio,) * 2)) for ratio in (1, 8, 1 / 8))
    tried = [Tried(Turns(batch_sizes=(size, size), rounds=rounds)) for size in range(1, 21)]
    found = in_turn(*tried)

    assert {(one.verdict, one.low, one.reason) for one in found.rows} == {
        ("ambiguous", None, "rounds differ too much to tell")
    }
    assert decode_comparisons(msgspec.json.encode([found]), "it") == found
    wild = Contender(spec=found.variants[1], outcome=outcome_of(found.rows[0]), judgement=found.rows[0])
    assert (wild.outcome, wild.may_be_faster) == ("undecided", True)


def at(batch_size, *, rounds=3, failed=None, **noise):
    turns = Turns(batch_sizes=(batch_size, 2 * batch_size), rounds=taken(Random(15), number=rounds, **noise))
    return Tried(turns, failed, None if failed is None else Failure(kind="out_of_memory", message="it is full"))


@pytest.mark.parametrize(
    ("images", "recipes"), [(True, ("fp32 nchw eager", "bf16 nchw eager")), (False, ("fp32 eager", "bf16 eager"))]
)
def test_comparison_in_turn_without_images_names_no_layout(images, recipes):
    found = in_turn(at(8), other={"dtype": "bf16"}, images=images)

    assert found.recipe == " and ".join(recipes)
    assert "resnet18 {} and resnet18 {}, in turn".format(*recipes) in dict(answers(found))["OLD and NEW"]


def test_comparison_in_turn_judges_each_batch_and_the_fastest(tmp_path):
    found = in_turn(at(8, shared=1.0), at(32, new=0.8), at(64, failed=1, rounds=0), at(128, failed=0, rounds=0))
    found.save(tmp_path / "one.json")

    assert (found.model, found.recipe) == ("resnet18", "fp32 nchw eager and fp32 nhwc eager")
    assert found.best == found.rows[1]
    assert (found.best.old_batch, found.best.new_batch) == (32, 64)
    assert found.best.low < 0.8 < found.best.high < 0.9
    assert [row.verdict for row in found.rows] == ["ambiguous", "slower", "not_comparable", "not_comparable"]
    assert [(row.lost, row.reason) for row in found.rows[1:]] == [
        (False, ""),
        (True, "out of memory in NEW"),
        (False, "out of memory in OLD"),
    ]
    assert found.slower_than(0.05) == [*found.rows[1:3]]
    assert load(tmp_path / "one.json") == found
    assert in_turn(at(8, failed=1, rounds=0)).best is None


def test_gate_on_rounds_too_noisy_to_judge_advises_more_time():
    problems = []

    assert gate([in_turn(at(8, between=0.3))], 0.03, problems) == TooNoisy.exit_code
    assert "--budget" in problems[0].hint
    gate([in_turn(at(8, rounds=1))], 0.03, problems)
    assert problems[-1].message.startswith("fewer than 3 rounds, too few to exclude that it is 3 % slower")
    gate([compare(example(), example())], 0.03, problems)
    assert "--budget" not in problems[-1].hint
