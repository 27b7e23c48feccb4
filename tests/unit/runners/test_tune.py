"""Requests that ``tune`` refuses before the race, and the batch sizes among which it chooses."""

import pytest

import tputfind
from tputfind.errors import BadRequest
from tputfind.processes.children import Children
from tputfind.record.record import Row
from tputfind.record.spec import Spec
from tputfind.runners import tune
from tputfind.session.turns import Duel, Variant


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


def test_every_batch_size_is_scanned_and_timed_if_there_is_an_slo():
    spec = Spec(model="resnet18", max_batch=64, slo_ms=20.0)

    assert tune._sizes_to_scan(spec, "throughput") == [1, 2, 4, 8, 16, 32, 64]
    assert tune._first_sizes(spec, 16) == (16, 32, 8, 4, 2)
    assert tune._first_sizes(spec, 64) == (64, 32, 16, 8)
    assert tune._first_sizes(Spec(model="resnet18"), 16) == (16, 8, 4, 2)


def test_scan_goes_on_in_further_processes_after_one_that_ends_early():
    class Runner:
        def time_batches(self, sizes, *_):
            asked.append(list(sizes))
            yield Row(batch_size=sizes[0])

    asked = []
    rows = list(tune._rows_of_scan(Runner(), [1, 4, 16]))

    assert [row.batch_size for row in rows] == [1, 4, 16]
    assert asked == [[1, 4, 16], [4, 16], [16]]


@pytest.mark.parametrize("modes", ["compile,eager", "eager,compile"])
def test_simplest_variant_is_the_first_in_any_order_of_the_options(modes):
    asked = tune.read_request("resnet18", {"mode": modes, "dtype": "bf16,fp32"}, "throughput", None, "")

    assert (asked.plain.mode, asked.plain.dtype) == ("eager", "fp32")


def test_variant_goes_on_in_the_server_that_compiled_it():
    class TakesNone(Duel):
        def take_round(self, _):
            met.append([variant.children for variant in self.variants])

    met = []
    plain, compiled, frozen = (Spec(model="resnet18", mode=mode) for mode in ("eager", "compile", "compile:freezing"))
    sides = Children(), Children()
    lane = tune._Lane("", sides, None, {})
    for pair in ((plain, compiled), (compiled, frozen), (plain, frozen)):
        lane.take_round(TakesNone(*(Variant(spec, 8, sides[0], None) for spec in pair)), None)

    assert met == [[sides[0], sides[1]], [sides[1], sides[0]], [sides[0], sides[1]]]
