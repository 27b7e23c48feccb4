"""The contract of a device, on the one that is everywhere."""

from support import contract


def test_the_cpu_does_what_every_device_must():
    contract.check("cpu")
