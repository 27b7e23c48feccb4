"""The device contract on the CPU, which every machine has."""

from support import contract


def test_cpu_fulfils_the_device_contract():
    contract.check("cpu")
