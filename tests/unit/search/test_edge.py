import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tputfind.record.record import Edge
from tputfind.search.edge import bracket, find_edge

EDGES = st.integers(0, 100_000)
GRANULARITIES = st.integers(1, 100_000)
NO_CAP = 2**31 - 1


class Oracle:
    """Answers by arithmetic, and records the questions."""

    def __init__(self, edge: int, obstacle: str = "memory") -> None:
        self.edge = edge
        self.obstacle = obstacle
        self.asked: list[int] = []

    def __call__(self, batch_size: int):
        self.asked.append(batch_size)
        return None if batch_size <= self.edge else self.obstacle


@given(edge=EDGES, granularity=GRANULARITIES)
@example(edge=0, granularity=1)
@example(edge=100_000, granularity=1)
@example(edge=65_536, granularity=1)
def test_the_answer_is_the_edge_and_both_sides_were_tried(edge, granularity):
    ask, prove = Oracle(edge), Oracle(edge)

    found = find_edge(ask, prove, granularity=granularity, max_batch=NO_CAP)

    expected = edge // granularity * granularity
    assert found == Edge(largest_batch=expected, limited_by="memory", fails_at=expected + granularity)
    assert found.fails_at in ask.asked
    assert prove.asked == ([expected] if expected else [])


@given(edge=EDGES, granularity=GRANULARITIES)
def test_climbing_and_bisection_take_at_most_two_logarithms_and_four_questions(edge, granularity):
    ask = Oracle(edge)

    find_edge(ask, Oracle(edge), granularity=granularity, max_batch=NO_CAP)

    steps = max(1, edge // granularity)
    assert len(ask.asked) <= 2 * math.ceil(math.log2(steps)) + 4


@given(edge=EDGES, first=st.integers(-5, 200_000), granularity=st.integers(1, 64), max_batch=st.integers(64, 200_000))
def test_a_guess_changes_the_questions_and_never_the_answer(edge, first, granularity, max_batch):
    options = {"granularity": granularity, "max_batch": max_batch}
    ask = Oracle(edge)

    guessed = find_edge(ask, Oracle(edge), first=first, **options)

    assert guessed == find_edge(Oracle(edge), Oracle(edge), **options)
    assert len(ask.asked) == len(set(ask.asked))
    assert max(ask.asked) <= max_batch


@given(edge=st.integers(1_000, 100_000))
def test_a_good_guess_saves_questions(edge):
    ask, unguessed = Oracle(edge), Oracle(edge)

    find_edge(ask, Oracle(edge), granularity=1, max_batch=edge, first=edge)
    find_edge(unguessed, Oracle(edge), granularity=1, max_batch=edge)

    assert ask.asked == [edge]
    assert len(unguessed.asked) > 5


@given(edge=EDGES, max_batch=st.integers(1, 100_000), granularity=st.integers(1, 64))
def test_search_never_exceeds_maximum_batch_and_names_it_as_limit(edge, max_batch, granularity):
    ask = Oracle(edge)
    max_batch = max(max_batch, granularity)

    found = find_edge(ask, Oracle(edge), granularity=granularity, max_batch=max_batch)

    assert max(ask.asked) <= max_batch
    assert len(ask.asked) == len(set(ask.asked))
    cap = max_batch // granularity * granularity
    if edge >= cap:
        assert found == Edge(largest_batch=cap, limited_by="cap", fails_at=None)
    else:
        assert found.limited_by == "memory"


@pytest.mark.parametrize(
    ("edge", "options", "asked"),
    [
        (20, {}, "1 4 16 64 40 28 22 19 20 21"),
        (100, {"max_batch": 120}, "1 4 16 64 120 92 106 99 102 100 101"),
        (20, {"first": 61}, "61 15 30 22 18 20 21"),
        (20, {"first": 20}, "20 80 50 35 27 23 21"),
        (60, {"first": 30, "granularity": 8}, "24 96 56 72 64"),
        (1000, {"first": 61}, "61 244 976 3904 2440 1708 1342 1159 1067 1021 998 1009 1003 1000 1001"),
        (61, {"first": 61}, "61 244 152 106 83 72 66 63 62"),
    ],
)
def test_search_tries_batch_sizes_in_expected_order(edge, options, asked):
    oracle = Oracle(edge)

    find_edge(oracle, Oracle(edge), **{"granularity": 1, "max_batch": NO_CAP, **options})

    assert " ".join(map(str, oracle.asked)) == asked


@given(edge=st.integers(0, 300), granularity=st.integers(1, 20))
def test_counting_up_finds_the_same_edge(edge, granularity):
    options = {"granularity": granularity, "max_batch": NO_CAP}
    ask = Oracle(edge)

    counted = find_edge(ask, Oracle(edge), linear=True, **options)

    assert counted == find_edge(Oracle(edge), Oracle(edge), **options)
    assert ask.asked == list(range(granularity, edge + granularity + 1, granularity))[: len(ask.asked)]


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


@given(fitting=st.sets(st.integers(1, 200)), granularity=st.integers(1, 5))
def test_non_monotone_answers_give_edge_tried_on_both_sides(fitting, granularity):
    asked: list[int] = []

    def ask(batch_size):
        asked.append(batch_size)
        return None if batch_size in fitting else "memory"

    found = find_edge(ask, ask, granularity=granularity, max_batch=NO_CAP)

    assert found.largest_batch in {0, *fitting}
    assert found.largest_batch == 0 or found.largest_batch in asked
    assert found.fails_at == found.largest_batch + granularity
    assert found.fails_at in asked


@given(edge=EDGES, obstacle=st.sampled_from(["memory", "index", "latency", "unsupported", "died", "error"]))
def test_limit_just_above_the_edge_is_named(edge, obstacle):
    found = find_edge(Oracle(edge, obstacle), Oracle(edge), granularity=1, max_batch=NO_CAP)

    assert found.limited_by == obstacle


@given(edge=st.integers(40, 100_000), granularity=st.integers(1, 4), first=st.none() | st.integers(1, 200_000))
def test_latency_edge_is_bracketed_to_a_twentieth_in_few_trials(edge, granularity, first):
    ask, exact = Oracle(edge, "latency"), Oracle(edge, "memory")

    found = find_edge(ask, Oracle(edge), granularity=granularity, max_batch=NO_CAP, first=first)
    find_edge(exact, Oracle(edge), granularity=granularity, max_batch=NO_CAP, first=first)

    assert found.limited_by == "latency"
    assert found.largest_batch <= edge < found.fails_at
    assert {found.largest_batch, found.fails_at} <= set(ask.asked)
    assert found.fails_at - found.largest_batch <= max(granularity, 0.05 * found.fails_at)
    assert len(ask.asked) <= len(exact.asked)


def test_latency_edge_is_not_bisected_to_an_exact_number():
    ask = Oracle(1900, "latency")

    find_edge(ask, Oracle(1900), granularity=1, max_batch=NO_CAP)

    assert ask.asked[-4:] == [1792, 2176, 1984, 1888]


def test_memory_below_a_batch_that_takes_too_long_is_found_exactly():
    def ask(batch_size):
        return "latency" if batch_size > 1900 else "memory" if batch_size > 1850 else None

    found = find_edge(ask, ask, granularity=1, max_batch=NO_CAP)

    assert found == Edge(largest_batch=1850, limited_by="memory", fails_at=1851)


@given(edge=st.integers(1, 100_000), obstacle=st.sampled_from(["index", "kernel", "error", "died", "unsupported"]))
def test_limits_other_than_memory_are_sought_at_round_numbers(edge, obstacle):
    ask, round_edge = Oracle(edge, obstacle), Oracle(2 ** math.ceil(math.log2(edge)), obstacle)

    find_edge(ask, Oracle(edge), granularity=1, max_batch=NO_CAP, first=61)
    find_edge(round_edge, Oracle(round_edge.edge), granularity=1, max_batch=NO_CAP, first=61)

    assert len(ask.asked) <= 2 * math.ceil(math.log2(edge)) + 6
    assert len(round_edge.asked) <= math.ceil(math.log2(edge)) / 2 + 7


def test_kernel_limit_at_power_of_two_takes_one_trial_per_side():
    ask = Oracle(4096, "kernel")

    find_edge(ask, Oracle(4096), granularity=1, max_batch=NO_CAP, first=976)

    assert ask.asked == [976, 3904, 15616, 8192, 4096, 4097]


def test_index_limit_takes_few_trials_with_tensor_sizes():
    ask, limits = Oracle(10_699, "index"), [1783, 2674, 3566, 5349, 7133, 9510, 10_699, 14_266, 19_021]

    def asked_first(passes, fails):
        return {61: 976, 976: 15_026}.get(passes)

    find_edge(
        ask,
        Oracle(10_699),
        granularity=1,
        max_batch=NO_CAP,
        first=61,
        forecast=asked_first,
        index_limits=lambda: limits,
    )

    assert ask.asked == [61, 976, 15_026, 7133, 10_699, 10_700]


@given(
    edge=EDGES,
    obstacle=st.sampled_from(["index", "kernel"]),
    limits=st.lists(st.integers(1, 100_000), max_size=30),
    granularity=st.integers(1, 5),
)
def test_sizes_of_tensors_that_set_no_limit_do_not_change_the_answer(edge, obstacle, limits, granularity):
    ask = Oracle(edge, obstacle)

    found = find_edge(
        ask, Oracle(edge), granularity=granularity, max_batch=NO_CAP, first=61, index_limits=lambda: sorted(limits)
    )

    assert found.largest_batch == edge // granularity * granularity
    assert {found.largest_batch, found.fails_at} - {0} <= set(ask.asked)
    assert len(set(ask.asked)) == len(ask.asked)


def test_kernel_limit_at_power_of_two_is_tried_below_without_creeping():
    ask = Oracle(511, "kernel")

    find_edge(ask, Oracle(511), granularity=1, max_batch=NO_CAP, first=488, forecast=lambda passes, fails: 521)

    assert ask.asked == [488, 522, 512, 511]


def test_model_that_takes_divisors_alone_is_searched_up_to_the_number():
    asked = []

    def ask(size):
        asked.append(size)
        return None if 512 % size == 0 else "error"

    edge = find_edge(ask, ask, granularity=1, max_batch=10**6)

    assert (edge.largest_batch, edge.fails_at, edge.limited_by) == (512, 513, "error")
    assert len(asked) <= 20


def test_timeout_is_bracketed_to_a_third_and_edge_stays_open():
    ask = Oracle(1000, "timeout")

    found = find_edge(ask, Oracle(1000), granularity=1, max_batch=NO_CAP, first=61)

    assert ask.asked == [61, 244, 976, 3904, 2440, 1708, 1342]
    assert found == Edge(largest_batch=976, limited_by="timeout", fails_at=1342, closed=False)


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


def test_unlimited_search_ends_before_a_trial_not_worth_its_time():
    ask, prove = Oracle(NO_CAP), Oracle(NO_CAP)

    found = find_edge(ask, prove, granularity=1, max_batch=NO_CAP, first=61, worth=lambda batch_size: batch_size < 5000)

    assert found == Edge(largest_batch=3904, limited_by="timeout", closed=False)
    assert ask.asked == [61, 244, 976, 3904]
    assert prove.asked == [3904]


def test_forecast_batch_not_worth_its_time_is_halved():
    ask = Oracle(NO_CAP)

    found = find_edge(
        ask,
        Oracle(NO_CAP),
        granularity=1,
        max_batch=NO_CAP,
        first=61,
        forecast=lambda *_: NO_CAP,
        worth=lambda batch_size: batch_size < 2000,
    )

    assert found == Edge(largest_batch=1952, limited_by="timeout", closed=False)
    assert ask.asked == [61, 976, 1952]


@pytest.mark.parametrize("proven", [0, 1, 60, 975, 976, 3903])
def test_search_ended_by_worth_goes_on_below_batch_that_fails_full_run(proven):
    prove = Oracle(proven, "died")

    found = find_edge(
        Oracle(NO_CAP), prove, granularity=1, max_batch=NO_CAP, first=61, worth=lambda batch_size: batch_size < 5000
    )

    assert found == Edge(largest_batch=proven, limited_by="died", fails_at=proven + 1)


def test_batch_inside_a_bracket_is_always_worth_a_trial():
    found = find_edge(Oracle(90), Oracle(90), granularity=1, max_batch=NO_CAP, first=61, worth=lambda size: size > 99)

    assert found == Edge(largest_batch=90, limited_by="memory", fails_at=91)
