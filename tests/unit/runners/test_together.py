"""One job on several devices at once, with answers instead of processes."""

import msgspec
import pytest
from support.records import example, row

from tputfind.errors import DeviceInUse, OutOfTime
from tputfind.record.files import RecordFile
from tputfind.record.record import Failure, Row
from tputfind.runners.devices import HostPlace
from tputfind.runners.stations import Done
from tputfind.runners.together import Alone, Together, busy_device, common_batch_sizes
from tputfind.session.progress import Silent
from tputfind.session.run import Measured
from tputfind.session.session import Session

SIZES = (1, 2, 4, 8, 16)
PACES_MS = {1: 5.0, 2: 6.0, 4: 8.0, 8: 12.0, 16: 40.0}
"""Step times in ms; batch 8 is the fastest and the knee."""


class Runner:
    """Answers by a function of the device and the batch size, without processes; a returned exception is raised."""

    memory_limit_bytes = None

    def __init__(self, name, answer, asked):
        self._name, self._answer, self._asked = name, answer, asked

    def time_batches(self, batch_sizes, number, planned, passed, taken, *, seat):
        (size,) = batch_sizes
        self._asked.append((self._name, size))
        came = self._answer(self._name, size)
        if isinstance(came, BaseException):
            raise came
        yield came or msgspec.structs.replace(row(size, PACES_MS[size]), ended_by=None, seconds=0.5)


class AtOnce:
    """Stations that do work at once."""

    def __init__(self):
        self._done = []

    def give(self, place, work):
        try:
            self._done.append(Done(place, work()))
        except Exception as error:
            self._done.append(Done(place, None, error))

    def next_done(self, _meeting):
        return self._done.pop()


class AllBusy:
    """A job on several devices at once, and the questions to each."""

    def __init__(self, answer=lambda *_: None, count=2):
        self.asked = []
        alone = [self._alone(f"cuda:{number}") for number in range(count)]
        sizes = common_batch_sizes(alone)
        fields = {"busy_devices": count, "batch_sizes": tuple(sorted(sizes))}
        self.devices = [self._busy(one, fields, answer) for one in alone]
        self.together = Together(self.devices, AtOnce(), lambda _: None)
        self.time_all = lambda: self.together.time_all(sizes)

    @staticmethod
    def _alone(name):
        spec = msgspec.structs.replace(
            example().spec, device=name, batches=None, processes=3, slo_ms=None, budget_s=60.0
        )
        rows = tuple(row(size, PACES_MS[size]) for size in SIZES)
        record = msgspec.structs.replace(example(), spec=spec, rows=rows, edge=None, safe=None)
        return Alone(HostPlace(name), Measured(record, RecordFile.at(None)))

    def _busy(self, alone, fields, answer):
        made = busy_device(alone, fields, "tputfind ... --all-busy", None, Silent())
        runner = Runner(alone.place.name, answer, self.asked)
        return made._replace(session=Session(made.session.record, runner, made.file, Silent()))

    def record(self, number):
        return self.devices[number].session.record


def test_the_batch_sizes_that_the_answers_rest_on_come_first():
    all_busy = AllBusy()
    all_busy.time_all()

    assert list(dict.fromkeys(size for _, size in all_busy.asked)) == [8, 1, 2, 4, 16]
    assert all_busy.record(0).spec.batch_sizes == SIZES
    assert [one.batch_size for one in all_busy.record(1).rows] == list(SIZES)


def test_batch_size_failing_on_one_device_is_not_timed_again():
    failed = Row(batch_size=8, failure=Failure(kind="error", message="no"))
    all_busy = AllBusy(lambda name, size: failed if (name, size) == ("cuda:0", 8) else None)
    all_busy.time_all()

    assert all_busy.asked.count(("cuda:1", 8)) == 1
    assert all_busy.asked.count(("cuda:1", 4)) == 3


def test_exhausted_budget_ends_rows_not_yet_known():
    all_busy = AllBusy(lambda name, size: OutOfTime("--budget") if size == 16 else None)
    all_busy.time_all()
    all_busy.together.finish()

    assert [one.ended_by for one in all_busy.record(0).rows] == ["full"] * 4
    late = AllBusy(lambda *_: OutOfTime("--budget") if len(late.asked) > 4 else None)
    late.time_all()
    late.together.finish()
    assert [one.ended_by for one in late.record(0).rows] == ["budget"]


def test_an_error_of_one_device_costs_no_row_of_the_others():
    all_busy = AllBusy(lambda name, _: DeviceInUse("others") if name == "cuda:0" else None, count=3)

    with pytest.raises(DeviceInUse):
        all_busy.time_all()

    assert [len(all_busy.record(number).rows) for number in range(3)] == [0, 1, 1]
