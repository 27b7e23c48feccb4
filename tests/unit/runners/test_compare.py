"""Two models that are timed in turns: their default batch size, and their differences."""

import pytest
from support.records import example

from tputfind.processes.messages import Inspection
from tputfind.record.record import Notice
from tputfind.record.spec import Spec
from tputfind.runners.compare import _default_batch_size, _differing


@pytest.mark.parametrize(("old", "new", "size"), [(1, 1, 32), (1, 3, 30), (4, 6, 24), (8, 8, 32), (16, 3, 48)])
def test_default_batch_size_is_a_multiple_of_both_granularities(old, new, size):
    specs = (Spec(model="resnet18", granularity=one) for one in (old, new))

    assert _default_batch_size(*specs) == size


def inspection(*seen, shape="16", parameters=272):
    notices = tuple(Notice(kind="stand_ins", seen=each, cause="", advice="") for each in seen)
    return Inspection(environment=example().environment, input_shape=shape, parameters=parameters, caveats=notices)


def test_sizes_are_differences_unless_those_of_a_step_are_unknown():
    changed = ["parameters 272 and 0", "input 16 and 8"]

    assert list(_differing(inspection(), inspection(shape="8", parameters=0))) == changed
    assert not list(_differing(inspection(), inspection(shape="", parameters=None)))


def test_notices_of_one_model_alone_are_differences():
    old, new = inspection("the loss is a stand-in", "lengths are drawn"), inspection("lengths are drawn")

    assert list(_differing(old, new)) == ["in OLD, the loss is a stand-in"]
    assert list(_differing(new, old)) == ["in NEW, the loss is a stand-in"]
