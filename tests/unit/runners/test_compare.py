"""The batch size at which two models are compared by default."""

import pytest

from tputfind.record.spec import Spec
from tputfind.runners.compare import _default_batch_size


@pytest.mark.parametrize(("old", "new", "size"), [(1, 1, 32), (1, 3, 30), (4, 6, 24), (8, 8, 32), (16, 3, 48)])
def test_default_batch_size_is_a_multiple_of_both_granularities(old, new, size):
    specs = (Spec(model="resnet18", granularity=one) for one in (old, new))

    assert _default_batch_size(*specs) == size
