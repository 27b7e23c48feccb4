"""The timed work, and the lifetime of its outputs."""

import time
import weakref
from functools import partial

import pytest

from tputfind.worker.loops import Work
from tputfind.worker.warm_up import warm_up


class Output:
    """An object that weak references can point to."""


def test_holding_work_keeps_exactly_its_last_output():
    made: list[weakref.ref[Output]] = []

    def run() -> Output:
        output = Output()
        made.append(weakref.ref(output))
        return output

    work = Work(step=run, single=partial(run), lead_in=0).holding()
    alive = []
    for call in (work.step, work.step, work.single, work.step):
        call()
        alive.append([output() is not None for output in made])

    assert work.lead_in == 0
    assert alive == [[True], [False, True], [False, False, True], [False, False, False, True]]
    del work, call
    assert [output() for output in made] == [None] * 4


def test_work_that_is_single_batches_anyway_stays_so():
    work = Work(step=Output, single=Output).holding()

    assert work.single is work.step


class Idle:
    """A device whose work is done when its call returns."""

    def synchronize(self):
        pass

    def first_step(self, step):
        return step()


@pytest.mark.parametrize(("seconds", "steps"), [(0.2, 1), (0.0, 30)])
def test_warm_up_takes_its_seconds_and_its_steps(seconds, steps):
    taken, announced = [], []

    def step():
        time.sleep(0.01)
        taken.append(time.perf_counter())

    step_ms = warm_up(Idle(), Work(step, step), announced.append, seconds=seconds, steps=steps)

    assert taken[-1] - taken[0] >= seconds
    assert len(taken) > steps
    assert 10 <= step_ms < 1000 * (taken[-1] - taken[0])
    assert announced[0] >= max(seconds, 0.01 * steps)
