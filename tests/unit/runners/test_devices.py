"""Typed lists of devices."""

import pytest

from tputfind.errors import BadRequest
from tputfind.runners.devices import is_list, names


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("cuda:0,cuda:2-5", ["cuda:0", "cuda:2", "cuda:3", "cuda:4", "cuda:5"]),
        ("CUDA:0-1, cuda:1", ["cuda:0", "cuda:1"]),
        ("cuda,cpu", ["cuda:0", "cpu"]),
        ("cpu:0-3,cpu:4-7+12", ["cpu:0-3", "cpu:4-7+12"]),
        ("cpu:node0,cpu:node1", ["cpu:node0", "cpu:node1"]),
        ("cuda:0-cuda:2", ["cuda:0", "cuda:1", "cuda:2"]),
        ("all", []),
    ],
)
def test_a_list_names_each_device_once_in_its_order(typed, named):
    assert is_list(typed)
    assert names(typed) == named


@pytest.mark.parametrize("typed", [None, "auto", "cpu", "cuda", "cuda:3", "cpu:0-3", "cpu:node0"])
def test_one_device_is_no_list(typed):
    assert not is_list(typed)


@pytest.mark.parametrize("typed", ["cuda:3-1,cpu", "auto,cpu", "all,cpu"])
def test_invalid_device_list_is_refused(typed):
    with pytest.raises(BadRequest):
        names(typed)
