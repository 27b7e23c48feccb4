import math
from itertools import cycle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.oracle import NO_CAP, Oracle, searched

from tputfind.record.record import Edge
from tputfind.search.edge import bracket, find_edge

EDGES = st.integers(0, 100_000)
GRANULARITIES = st.integers(1, 100_000)


@given(edge=EDGES, granularity=GRANULARITIES)
@example(edge=0, granularity=1)
@example(edge=100_000, granularity=1)
@example(edge=65_536, granularity=1)
def test_the_answer_is_the_edge_tried_on_both_sides_in_few_questions(edge, granularity):
    """Climbing and bisection take at most two logarithms and four questions."""
    ask, prove = Oracle(edge), Oracle(edge)

    found = find_edge(ask, prove, granularity=granularity, max_batch=NO_CAP)

    expected = edge // granularity * granularity
    assert found == Edge(largest_batch=expected, limited_by="memory", fails_at=expected + granularity)
    assert found.fails_at in ask.asked
    assert prove.asked == ([expected] if expected else [])
    assert len(ask.asked) <= 2 * math.ceil(math.log2(max(1, edge // granularity))) + 4


@given(edge=EDGES, first=st.integers(-5, 200_000), granularity=st.integers(1, 64), max_batch=st.integers(64, 200_000))
def test_a_guess_changes_the_questions_and_never_the_answer(edge, first, granularity, max_batch):
    options = {"granularity": granularity, "max_batch": max_batch}

    found, asked = searched(edge, first=first, **options)

    assert found == searched(edge, **options)[0]
    assert len(asked) == len(set(asked))
    assert max(asked) <= max_batch


@given(edge=st.integers(1_000, 100_000))
def test_a_good_guess_saves_questions(edge):
    assert searched(edge, max_batch=edge, first=edge)[1] == [edge]
    assert len(searched(edge, max_batch=edge)[1]) > 5


@given(edge=EDGES, max_batch=st.integers(1, 100_000), granularity=st.integers(1, 64))
def test_search_never_exceeds_maximum_batch_and_names_it_as_limit(edge, max_batch, granularity):
    max_batch = max(max_batch, granularity)

    found, asked = searched(edge, granularity=granularity, max_batch=max_batch)

    assert max(asked) <= max_batch
    assert len(asked) == len(set(asked))
    cap = max_batch // granularity * granularity
    if edge >= cap:
        assert found == Edge(largest_batch=cap, limited_by="cap", fails_at=None)
    else:
        assert found.limited_by == "memory"


INDEX_LIMITS = [1783, 2674, 3566, 5349, 7133, 9510, 10_699, 14_266, 19_021]


@pytest.mark.parametrize(
    ("edge", "obstacle", "options", "asked"),
    [
        (20, "memory", {}, "1 4 16 64 40 28 22 19 20 21"),
        (100, "memory", {"max_batch": 120}, "1 4 16 64 120 92 106 99 102 100 101"),
        (20, "memory", {"first": 61}, "61 15 30 22 18 20 21"),
        (20, "memory", {"first": 20}, "20 80 50 35 27 23 21"),
        (60, "memory", {"first": 30, "granularity": 8}, "24 96 56 72 64"),
        (1000, "memory", {"first": 61}, "61 244 976 3904 2440 1708 1342 1159 1067 1021 998 1009 1003 1000 1001"),
        (61, "memory", {"first": 61}, "61 244 152 106 83 72 66 63 62"),
        # A kernel limit at a power of two takes one trial on each side, and is tried below without creeping.
        (4096, "kernel", {"first": 976}, "976 3904 15616 8192 4096 4097"),
        (511, "kernel", {"first": 488, "forecast": lambda passes, fails: 521}, "488 522 512 511"),
        # An index limit takes few trials with tensor sizes.
        (
            10_699,
            "index",
            {
                "first": 61,
                "forecast": lambda passes, fails: {61: 976, 976: 15_026}.get(passes),
                "index_limits": lambda: INDEX_LIMITS,
            },
            "61 976 15026 7133 10699 10700",
        ),
    ],
)
def test_search_tries_batch_sizes_in_expected_order(edge, obstacle, options, asked):
    assert " ".join(map(str, searched(edge, obstacle, **options)[1])) == asked


@given(edge=st.integers(0, 300), granularity=st.integers(1, 20))
def test_counting_up_finds_the_same_edge(edge, granularity):
    counted, asked = searched(edge, linear=True, granularity=granularity)

    assert counted == searched(edge, granularity=granularity)[0]
    assert asked == list(range(granularity, edge + granularity + 1, granularity))[: len(asked)]


@given(edge=st.integers(1, 5_000), proven=st.integers(0, 5_000), linear=st.booleans())
def test_a_batch_that_fails_the_full_run_is_never_the_answer(edge, proven, linear):
    edge = min(edge, 300) if linear else edge
    ask, prove = Oracle(edge), Oracle(min(proven, edge), "died")

    found = find_edge(ask, prove, granularity=1, max_batch=NO_CAP, linear=linear)

    assert found.largest_batch == prove.edge
    assert len(prove.asked) == len(set(prove.asked))
    if found.largest_batch:
        assert found.largest_batch in prove.asked
    if prove.edge < edge:
        assert found.limited_by == "died"


@given(
    fitting=st.sets(st.integers(1, 300)),
    guesses=st.none() | st.lists(st.integers(0, 400), min_size=1),
    granularity=st.integers(1, 5),
)
def test_non_monotone_answers_give_edge_tried_on_both_sides(fitting, guesses, granularity):
    asked: list[int] = []
    turns = cycle(guesses or [])

    def ask(batch_size):
        asked.append(batch_size)
        return None if batch_size in fitting else "memory"

    forecast = guesses and (lambda passes, fails: next(turns))
    found = find_edge(ask, ask, granularity=granularity, max_batch=NO_CAP, forecast=forecast)

    assert found.largest_batch in {0, *fitting}
    assert found.largest_batch == 0 or found.largest_batch in asked
    assert found.fails_at == found.largest_batch + granularity
    assert found.fails_at in asked


@given(edge=EDGES, obstacle=st.sampled_from(["memory", "index", "latency", "unsupported", "died", "error"]))
def test_limit_just_above_the_edge_is_named(edge, obstacle):
    assert searched(edge, obstacle)[0].limited_by == obstacle


@given(edge=st.integers(40, 100_000), granularity=st.integers(1, 4), first=st.none() | st.integers(1, 200_000))
def test_latency_edge_is_bracketed_to_a_twentieth_in_few_trials(edge, granularity, first):
    found, asked = searched(edge, "latency", granularity=granularity, first=first)

    assert found.limited_by == "latency"
    assert found.largest_batch <= edge < found.fails_at
    assert {found.largest_batch, found.fails_at} <= set(asked)
    assert found.fails_at - found.largest_batch <= max(granularity, 0.05 * found.fails_at)
    assert len(asked) <= len(searched(edge, granularity=granularity, first=first)[1])


def test_latency_edge_is_not_bisected_to_an_exact_number():
    assert searched(1900, "latency")[1][-4:] == [1792, 2176, 1984, 1888]


def test_memory_below_a_batch_that_takes_too_long_is_found_exactly():
    def ask(batch_size):
        return "latency" if batch_size > 1900 else "memory" if batch_size > 1850 else None

    found = find_edge(ask, ask, granularity=1, max_batch=NO_CAP)

    assert found == Edge(largest_batch=1850, limited_by="memory", fails_at=1851)


@given(edge=st.integers(1, 100_000), obstacle=st.sampled_from(["index", "kernel", "error", "died", "unsupported"]))
def test_limits_other_than_memory_are_sought_at_round_numbers(edge, obstacle):
    steps = math.ceil(math.log2(edge))

    assert len(searched(edge, obstacle, first=61)[1]) <= 2 * steps + 6
    assert len(searched(2**steps, obstacle, first=61)[1]) <= steps / 2 + 7


@given(
    edge=EDGES,
    obstacle=st.sampled_from(["index", "kernel"]),
    limits=st.lists(st.integers(1, 100_000), max_size=30),
    granularity=st.integers(1, 5),
)
def test_sizes_of_tensors_that_set_no_limit_do_not_change_the_answer(edge, obstacle, limits, granularity):
    found, asked = searched(edge, obstacle, granularity=granularity, first=61, index_limits=lambda: sorted(limits))

    assert found.largest_batch == edge // granularity * granularity
    assert {found.largest_batch, found.fails_at} - {0} <= set(asked)
    assert len(set(asked)) == len(asked)


def test_model_that_takes_divisors_alone_is_searched_up_to_the_number():
    asked = []

    def ask(size):
        asked.append(size)
        return None if 512 % size == 0 else "error"

    edge = find_edge(ask, ask, granularity=1, max_batch=10**6)

    assert (edge.largest_batch, edge.fails_at, edge.limited_by) == (512, 513, "error")
    assert len(asked) <= 20


@given(st.dictionaries(st.integers(1, 100), st.sampled_from([None, "memory", "index", "timeout"])), st.integers(1, 3))
def test_bracket_matches_answers_and_is_closed_without_gap(answers, granularity):
    found = bracket(answers, granularity)

    passed = {size for size, obstacle in answers.items() if obstacle is None}
    assert (found is None) == (not passed)
    if found is not None:
        assert found.largest_batch == max(passed)
        assert found.closed == (
            found.largest_batch + 1 in answers or found.fails_at in range(max(passed) + granularity + 1)
        )
        assert found.limited_by == ("cut_short" if found.fails_at is None else answers[found.fails_at])


HALVED = {"forecast": lambda *_: NO_CAP, "worth": lambda size: size < 2000}
"""A batch that is forecast, but not worth its time, is halved."""


@pytest.mark.parametrize(
    ("edge", "obstacle", "options", "largest", "fails_at", "asked"),
    [
        (1000, "timeout", {}, 976, 1342, [61, 244, 976, 3904, 2440, 1708, 1342]),  # to a third
        (NO_CAP, "memory", {"worth": lambda size: size < 5000}, 3904, None, [61, 244, 976, 3904]),
        (NO_CAP, "memory", HALVED, 1952, None, [61, 976, 1952]),
    ],
)
def test_search_limited_by_time_leaves_the_edge_open(edge, obstacle, *, options, largest, fails_at, asked):
    found = searched(edge, obstacle, first=61, **options)

    assert found == (Edge(largest_batch=largest, limited_by="timeout", fails_at=fails_at, closed=False), asked)


@pytest.mark.parametrize("proven", [0, 1, 60, 975, 976, 3903])
def test_search_ended_by_worth_goes_on_below_batch_that_fails_full_run(proven):
    prove = Oracle(proven, "died")

    found = find_edge(
        Oracle(NO_CAP), prove, granularity=1, max_batch=NO_CAP, first=61, worth=lambda batch_size: batch_size < 5000
    )

    assert found == Edge(largest_batch=proven, limited_by="died", fails_at=proven + 1)


def test_batch_inside_a_bracket_is_always_worth_a_trial():
    found, _ = searched(90, first=61, worth=lambda size: size > 99)

    assert found == Edge(largest_batch=90, limited_by="memory", fails_at=91)
