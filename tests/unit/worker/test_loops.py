"""The timed work, and the lifetime of its outputs."""

import weakref
from functools import partial

from tputfind.worker.loops import Work


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
