"""A device that torch counts, but that does not open."""

import pytest
import torch

from tputfind.errors import NoSuchDevice
from tputfind.worker.devices.cuda import Cuda


@pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU opens here")
def test_device_that_does_not_open_is_named_with_what_torch_says():
    with pytest.raises(NoSuchDevice, match="cuda:0 does not open: Found no NVIDIA driver"):
        Cuda(0).test_clocks()
