"""One job on several devices at once, with answers in the place of processes."""

from __future__ import annotations

import msgspec
import pytest
from support.records import example, row

from tputfind.errors import DeviceInUse, OutOfTime
from tputfind.fleet.devices import Place
from tputfind.fleet.stations import Done
from tputfind.fleet.together import Alone, Together
from tputfind.record.files import RecordFile
from tputfind.record.record import Failure, Row
from tputfind.session.run import Measured

SIZES = (1, 2, 4, 8, 16)
PACES_MS = {1: 5.0, 2: 6.0, 4: 8.0, 8: 12.0, 16: 40.0}
"""The fastest is batch 8, and the knee too."""


def together(count=2):
    alone = []
    for number in range(count):
        name = f"cuda:{number}"
        spec = msgspec.structs.replace(
            example().spec, device=name, batches=None, processes=3, slo_ms=None, budget_s=60.0
        )
        rows = tuple(row(size, PACES_MS[size]) for size in SIZES)
        record = msgspec.structs.replace(example(), spec=spec, rows=rows, edge=None, safe=None)
        alone.append(Alone(Place(name), Measured(record, RecordFile.at(None))))
    return Together(alone, "tputfind ... --all-busy")


class Crew:
    """Devices that answer by what a function says of the device and the batch size; errors are errors of theirs."""

    def __init__(self, answer):
        self.asked = []
        self._answer = answer

    def all_done(self, works, _meeting):
        done = {}
        for name, (place, work) in works.items():
            size = work.keywords["batch_size"]
            self.asked.append((name, size))
            came = self._answer(name, size)
            if came is None:
                came = msgspec.structs.replace(row(size, PACES_MS[size]), ended_by=None, seconds=0.5)
            error = came if isinstance(came, BaseException) else None
            done[name] = Done(place, None if error else came, error)
        return done

    def did(self, what):
        pass


def sizes_asked(crew):
    return list(dict.fromkeys(size for _, size in crew.asked))


def test_the_batch_sizes_that_the_answers_rest_on_come_first():
    all_busy, crew = together(), Crew(lambda *_: None)
    all_busy.time_all(crew)

    assert sizes_asked(crew) == [8, 1, 2, 4, 16]
    assert all_busy.records["cuda:0"].spec.batch_sizes == SIZES
    assert [one.batch_size for one in all_busy.records["cuda:1"].rows] == list(SIZES)


def test_a_batch_size_that_works_on_one_device_only_is_not_timed_any_more():
    failed = Row(batch_size=8, failure=Failure(kind="error", message="no"))
    all_busy, crew = together(), Crew(lambda name, size: failed if (name, size) == ("cuda:0", 8) else None)
    all_busy.time_all(crew)

    assert crew.asked.count(("cuda:1", 8)) == 1
    assert crew.asked.count(("cuda:1", 4)) == 3


def test_where_the_budget_is_over_it_ended_the_rows_that_are_not_known_by_then():
    all_busy, crew = together(), Crew(lambda name, size: OutOfTime("--budget") if size == 16 else None)
    all_busy.time_all(crew)
    all_busy.finish()

    assert [one.ended_by for one in all_busy.records["cuda:0"].rows] == ["full"] * 4
    late = Crew(lambda *_: OutOfTime("--budget") if len(late.asked) > 4 else None)
    all_busy = together()
    all_busy.time_all(late)
    all_busy.finish()
    assert [one.ended_by for one in all_busy.records["cuda:0"].rows] == ["budget"]


def test_an_error_of_one_device_costs_no_row_of_the_others():
    all_busy, crew = together(3), Crew(lambda name, _: DeviceInUse("others") if name == "cuda:0" else None)

    with pytest.raises(DeviceInUse):
        all_busy.time_all(crew)

    assert [len(all_busy.records[name].rows) for name in ("cuda:0", "cuda:1", "cuda:2")] == [0, 1, 1]
