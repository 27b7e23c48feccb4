"""Jobs on the devices of this host, with answers instead of processes: their time, and the loss of a device."""

import pytest
from msgspec.structs import replace
from support.records import example, row

from tputfind.errors import OutOfTime
from tputfind.record.files import RecordFile
from tputfind.runners import host
from tputfind.runners.devices import HostPlace
from tputfind.runners.host import Devices, Host, Outcome
from tputfind.runners.stations import Done
from tputfind.runners.sweep import Job
from tputfind.session.progress import Silent
from tputfind.session.run import Measured

PLACES = [HostPlace("cuda:0"), HostPlace("cuda:1")]


class LateChildren:
    """Children whose time is over at their first question; records the time that they get."""

    server_pid = None

    def __init__(self):
        self.seconds = []

    def end_within(self, seconds):
        self.seconds.append(seconds)

    def ask(self, *_):
        raise OutOfTime("--budget ended before a batch was timed")


class AtOnce:
    """Stations that do work at once, and return it in its order."""

    interrupted = False

    def __init__(self):
        self._done = []
        self._children = {place.name: LateChildren() for place in PLACES}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def children(self, place):
        return self._children[place.name]

    def give(self, place, work):
        try:
            self._done.append(Done(place, work()))
        except Exception as error:
            self._done.append(Done(place, None, error))

    def next_done(self, *_):
        return self._done.pop(0)


class Heard(Silent):
    def __init__(self):
        self.lines = []

    def did(self, what):
        self.lines.append(what)


@pytest.fixture
def measure(monkeypatch, tmp_path):
    """Return a function that runs a job of equal specs: it takes how a task ends, and how many specs there are."""

    def run(end, count, **devices):
        spec = replace(example().spec, budget_s=60.0, batches=None, slo_ms=None)
        listener = Heard()
        here = Host(
            Job([spec] * count, tmp_path, "tputfind"),
            Devices("all", **devices),
            lambda _: listener,
            trust_model_file=False,
        )
        here._stations = AtOnce()
        inspections = [None] * count
        monkeypatch.setattr(Host, "_looked_at", lambda _: (PLACES, inspections))
        monkeypatch.setattr(host, "_measure", end)
        return list(here.measured()), here, listener.lines

    return run


def passed(task, place, file):
    spec = replace(task.spec, device=place.name)
    return Measured(replace(example(), spec=spec, rows=(row(1, 5.0),), edge=None, safe=None), file)


def test_budget_is_divided_among_devices_that_are_left(measure):
    given = []

    def end(_, task, place, *, seconds, **__):
        given.append((place.name, round(seconds)))
        measured = passed(task, place, RecordFile.at(None))
        return Outcome(measured, "it fails" if place.name == "cuda:0" else "")

    found, _, _ = measure(end, 4)

    assert len(found) == 4
    assert given == [("cuda:0", 30), ("cuda:1", 30), ("cuda:1", 20), ("cuda:1", 30), ("cuda:1", 60)]


def test_record_of_a_job_begun_on_a_lost_device_is_removed(measure, tmp_path):
    def end(_, task, place, **__):
        file = RecordFile(tmp_path, place.name)
        measured = passed(task, place, file)
        file.save(measured.record)
        return Outcome(measured, "it fails" if place.name == "cuda:0" else "")

    found, here, _ = measure(end, 2)

    assert [lost.place.name for lost in here.lost] == ["cuda:0"]
    assert {path.name for path in tmp_path.iterdir()} == {one.file.path.name for one in found}
    assert len(found) == 2


def test_rows_of_a_lost_device_are_kept_without_others(measure, tmp_path):
    def end(_, task, place, **__):
        measured = passed(task, place, RecordFile(tmp_path, place.name))
        if place.name == "cuda:1":
            measured = measured._replace(record=replace(measured.record, rows=()))
        measured.file.save(measured.record)
        return Outcome(measured, "it fails" if place.name == "cuda:0" else "")

    found, _, _ = measure(end, 1)

    assert [one.record.spec.device for one in found] == ["cuda:0"]
    assert len(list(tmp_path.iterdir())) == 1


def test_job_is_handed_on_while_a_device_is_left(measure):
    found, here, _ = measure(
        lambda _, task, place, **__: Outcome(passed(task, place, RecordFile.at(None)), "it fails"), 1
    )

    assert len(found) == 1
    assert [lost.handed_on for lost in here.lost] == [True, False]
    assert ["given to another" in f"{one}" for one in here.problems] == [True, False]


def test_models_of_busy_devices_share_the_budget_and_leave_no_empty_records(measure, tmp_path):
    def end(_, task, place, **__):
        return Outcome(passed(task, place, RecordFile.at(tmp_path / "alone.json")))

    found, here, lines = measure(end, 2, each=True, all_busy=True)

    assert len(found) == 4
    assert [round(seconds) for seconds in here._stations.children(PLACES[0]).seconds] == [30, 60]
    assert list(tmp_path.iterdir()) == []
    assert lines == ["all busy: resnet50 was not measured, since --budget ended"] * 2
