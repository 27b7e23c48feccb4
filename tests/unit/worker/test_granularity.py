"""The granularity of tried batch sizes."""

from hypothesis import given
from hypothesis import strategies as st

from tputfind.worker.inspect import candidates, smallest_that_works


@given(st.text() | st.lists(st.integers(0, 10**6)).map(str))
def test_candidates_of_any_text_are_a_few_distinct_rising_numbers_above_one(text):
    found = candidates(text)

    assert found == sorted(set(found))
    assert {2, 4, 8, 16} <= set(found)
    assert len(found) <= 10
    assert all(1 < number <= 512 for number in found)


def test_candidates_hold_the_numbers_that_an_error_names():
    assert candidates("shape '[-1, 3, 32]' is invalid for input of size 96") == [2, 3, 4, 8, 16, 32, 96]


@given(st.integers(2, 40))
def test_the_least_multiple_that_works_is_found_if_the_error_names_it(number):
    def make(batch):
        if batch % number:
            raise ValueError(f"{batch} is no multiple of {number}")

    found = smallest_that_works(make, ValueError(f"1 is no multiple of {number}"))

    assert found is not None
    assert found % number == 0


def test_no_multiple_is_found_of_a_function_that_always_fails():
    def make(batch):
        raise RuntimeError(batch)

    assert smallest_that_works(make, RuntimeError("1")) is None
