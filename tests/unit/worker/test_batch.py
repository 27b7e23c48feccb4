"""A batch on the device: its inputs go with it, and are copied into."""

import gc
import weakref

import pytest
import torch

from tputfind.worker.batch import Batch


@pytest.mark.parametrize(
    "model", [lambda x: x * 2, lambda x: iter([x * 2]), lambda x: x.mul_(2)], ids=["tensor", "lazy", "in place"]
)
def test_inputs_go_with_their_batch_without_garbage_collection(model):
    inputs = torch.ones(4)
    batch = Batch(model, 4, ((inputs,), {}), lambda: "whole")
    held = weakref.ref(inputs)
    gc.disable()
    try:
        for _ in range(3):
            batch()
        del batch, inputs
        assert held() is None
    finally:
        gc.enable()


def test_inputs_that_require_gradients_are_copied_into():
    inputs = torch.ones(4, requires_grad=True)
    copy_inputs = Batch(lambda x: x * 2, 4, ((inputs,), {}), lambda: "whole").feed_from_host(pinned=False)
    with torch.no_grad():
        inputs.zero_()

    with torch.enable_grad():
        copy_inputs()

    assert torch.equal(inputs, torch.ones(4))
