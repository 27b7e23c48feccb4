"""Print the addresses of driver allocations: reads MiB to allocate and, negative, the number of one to free.

    echo '[100, 40, -1, 64]' | python tests/support/driver.py

Allocations are numbered from 1 in their order. The script calls the driver directly, and the process holds only a
context.
"""

import ctypes
import json
import sys
from collections.abc import Callable, Iterable

MIB = 2**20
CHUNK_MIB = 32


def main() -> None:
    """Fill the chunks in which the context left room, then run the steps, and print every address in MiB."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    for status in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)):
        assert status == 0
    assert cuda.cuCtxSetCurrent(context) == 0

    def take(size: int) -> int:
        address = ctypes.c_uint64()
        assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        return address.value

    def give_back(address: int, _: int) -> None:
        assert cuda.cuMemFree_v2(ctypes.c_uint64(address)) == 0

    fill(take)
    print(json.dumps(addresses_mib(json.load(sys.stdin), take, give_back)))


def addresses_mib(
    steps: Iterable[int], take: Callable[[int], int], give_back: Callable[[int, int], object]
) -> list[int]:
    """Return the address of every allocation in MiB; steps are in MiB, ``take`` and ``give_back`` in bytes."""
    taken: list[tuple[int, int]] = []
    for step in steps:
        if step > 0:
            taken.append((take(step * MIB), step * MIB))
        else:
            give_back(*taken[-step - 1])
    return [address // MIB for address, _ in taken]


def fill(take: Callable[[int], int]) -> None:
    """Allocate the smallest amounts until a new chunk is full."""
    taken: dict[int, int] = {}
    for count in range(1000):
        chunk = take(2 * MIB) // (CHUNK_MIB * MIB)
        taken[chunk] = taken.get(chunk, 0) + 2
        if count >= 100 and taken[chunk] == CHUNK_MIB:
            return
    raise AssertionError("no chunk was ever full")


if __name__ == "__main__":
    main()
