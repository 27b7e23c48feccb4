"""Requests that ``tune`` refuses before the race, and the batch sizes among which it chooses."""

import pytest

import tputfind
from tputfind.errors import BadRequest
from tputfind.record.spec import Spec
from tputfind.runners import tune


def test_folder_that_cannot_be_written_is_refused_before_the_race(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(tune, "measure", None)

    with pytest.raises(BadRequest, match="cannot write in"):
        tputfind.tune("resnet18", output=tmp_path / "file" / "folder")


@pytest.mark.parametrize(
    ("fields", "goal", "sizes"),
    [
        ({"granularity": 20_000}, "throughput", [20_000]),
        ({"granularity": 3, "max_batch": 9}, "throughput", [3, 6]),
        ({"granularity": 3}, "latency", [3]),
        ({"max_batch": 40}, "throughput", [1, 4, 16, 32]),
    ],
)
def test_every_second_batch_size_and_the_last_are_scanned(fields, goal, sizes):
    assert tune._sizes_to_scan(Spec(model="resnet18", **fields), goal) == sizes
