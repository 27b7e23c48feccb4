"""What differs between the vendors of accelerators, where torch offers no way to ask."""

from __future__ import annotations

from typing import Final

VISIBLE_DEVICES: Final = {
    "nvidia": "CUDA_VISIBLE_DEVICES",
    "amd": "HIP_VISIBLE_DEVICES",
    "intel": "ZE_AFFINITY_MASK",
    "huawei": "ASCEND_RT_VISIBLE_DEVICES",
}
"""By vendor, the variable that says which devices a process may see."""
VENDORS: Final = {"cuda": "nvidia", "xpu": "intel", "npu": "huawei"}
"""By torch's name of a kind of device. Under ROCm ``cuda`` is AMD's."""
MODULES: Final = {"hpu": "habana_frameworks.torch"}
"""The package that adds a kind of device to torch; of any other kind it is ``torch_KIND``."""


def module_of(kind: str) -> str:
    """Return the package that adds a kind of device to torch."""
    return MODULES.get(kind, f"torch_{kind}")
