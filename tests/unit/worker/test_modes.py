"""The table of the worker's modes."""

from tputfind.record import types
from tputfind.worker.modes import MODES


def test_worker_has_a_class_for_each_mode_of_the_options():
    assert tuple(sorted(MODES)) == tuple(sorted(types.MODES))
