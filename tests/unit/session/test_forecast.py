"""Forecasts for devices of other memory, from trials on this one."""

from math import inf

import pytest
from msgspec.structs import replace
from support.records import example
from support.searches import SEARCHES

from tputfind.record.files import RecordFile
from tputfind.session import forecast
from tputfind.session.progress import Silent
from tputfind.session.session import Session

SEARCHED = SEARCHES["densenet121 fp32 24GiB"]


class Here:
    """A device of which other processes hold this much memory now; it refuses further trials."""

    memory_limit_bytes = None

    def __init__(self, others_bytes):
        self._others_bytes = others_bytes

    def memory_of_others_bytes(self):
        return self._others_bytes

    def seconds_left(self):
        return inf


def forecast_beside(others_bytes):
    trials = tuple(replace(one, memory_limit_bytes=None, memory_of_others_bytes=0) for one in SEARCHED.taken())
    spec = replace(example().spec, memory_limit_bytes=None)
    session = Session(
        replace(example(), spec=spec, trials=trials, rows=()), Here(others_bytes), RecordFile(None, ""), Silent()
    )
    return forecast._forecast(session, SEARCHED.limit_bytes)


@pytest.mark.parametrize("others_bytes", [2**20, 5 * 2**30])
def test_forecast_for_another_device_is_the_same_whatever_others_hold_here(others_bytes):
    alone = forecast_beside(0)

    assert alone.largest_batch == pytest.approx(SEARCHED.edge, rel=0.1)
    assert forecast_beside(others_bytes) == alone
