"""Another process on the GPU."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HOLDS_MEMORY = """
import sys, torch
leave, later = map(int, sys.argv[1:])
spare = torch.empty(later, dtype=torch.uint8, device="cuda")
held, step = [], 2**30
while step >= 2**21:
    if torch.cuda.mem_get_info()[0] - step < leave:
        step //= 2
    else:
        held.append(torch.empty(step, dtype=torch.uint8, device="cuda"))
print(torch.cuda.mem_get_info()[0], flush=True)
sys.stdin.readline()
del spare
print(torch.cuda.mem_get_info()[0], flush=True)
sys.stdin.read()
"""


@contextmanager
def taking_all_but(count: int, freeing_later: int = 0) -> Iterator[Callable[[], int]]:
    """Run a process that holds all but ``count`` bytes of the card; yield a function that frees some more."""
    program = [sys.executable, "-c", HOLDS_MEMORY, str(count), str(freeing_later)]
    plain = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # every tensor its own cudaMalloc, in steps of 2 MiB
    with subprocess.Popen(program, env=plain, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        free = int(process.stdout.readline())
        print(f"asked to leave {count} bytes free, {free} are")
        assert count <= free < count + 2**22

        def free_some() -> int:
            process.stdin.write("now\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield free_some
        process.communicate("")
