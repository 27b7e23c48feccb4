"""The contract of a device, on a GPU."""

from support import contract


def test_a_gpu_does_what_every_device_must():
    contract.check("cuda:0")
