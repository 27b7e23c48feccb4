"""The device contract, on a GPU."""

from support import contract


def test_gpu_fulfils_the_device_contract():
    contract.check("cuda:0")
