"""Core sets by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tputfind.errors import BadRequest, NoSuchDevice
from tputfind.processes import cores

SETS = st.frozensets(st.integers(0, 300), min_size=1)


@given(SETS)
def test_a_set_is_read_as_it_is_named(some):
    assert cores.read(cores.text(some)) == some


def test_runs_of_cores_are_named_by_their_ends():
    assert cores.text({0, 1, 2, 3, 8, 10, 11}) == "0-3+8+10-11"
    assert cores.read("0-1,4", ",") == {0, 1, 4}


@given(SETS, st.integers(1, 8))
def test_cores_are_split_among_all_parts_and_disjoint_if_enough(some, parts):
    shares = cores.split(some, parts)

    assert len(shares) == parts
    assert all(share and share <= some for share in shares)
    if len(set(shares)) == parts > 1:
        assert frozenset().union(*shares) == some
        assert sum(map(len, shares)) == len(some)


def test_cores_of_device_without_core_list_are_none():
    assert cores.device_cores("cpu") is None
    assert cores.device_cores("cuda:0") is None
    assert cores.device_cores(f"cpu:{min(cores.here())}") == {min(cores.here())}


@pytest.mark.parametrize("name", ["cpu:4095", "cpu:0-4095", "cpu:node999"])
def test_cores_that_are_not_here_are_refused(name):
    with pytest.raises(NoSuchDevice, match=f"there is no {name} here"):
        cores.device_cores(name)


def test_a_range_that_counts_down_is_refused():
    with pytest.raises(BadRequest, match="--device cpu:0\\+3-1: 3-1 counts down"):
        cores.device_cores("cpu:0+3-1")


def test_cores_beyond_those_of_any_host_are_no_set():
    with pytest.raises(ValueError, match="no host has so many"):
        cores.read("0-99999999999")
