"""Bare loops of training scripts in fresh processes, under the memory limit of a trial."""

import json
import signal
import subprocess
import sys
import tempfile

from support import command

ENVIRONMENT = command.ENVIRONMENT | {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""Map each memory block separately: the gaps that a heap keeps differ between processes."""

_LOOP = """
import importlib.util, json, os, signal, sys
import torch, torch._dynamo
from tputfind.worker.devices.cpu import Cpu
from tputfind.worker.devices import failure_of
about = importlib.util.spec_from_file_location("script", sys.argv[1])
script = importlib.util.module_from_spec(about)
about.loader.exec_module(script)
limit_bytes = int(sys.argv[4])
*others, last = json.loads(sys.argv[2])
for size in others:
    pid = os.fork()
    if not pid:
        last = size
        break
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if limit_bytes and status == -signal.SIGSEGV:
        print("null", flush=True)
    elif status:
        sys.exit(status)
device = Cpu()
if limit_bytes:
    device.limit_memory(limit_bytes)
try:
    seconds = script.loop(last, int(sys.argv[3]), *sys.argv[5:])
except (RuntimeError, MemoryError) as error:
    failure = failure_of(error, device, last)
    assert failure.kind == "out_of_memory", failure
    seconds = None
device.lift_limit()
print(json.dumps(seconds), flush=True)
"""


def ranks_take(script: str, batch_size: int, limit_bytes: int = 0, ranks: int = 2) -> bool:
    """Return whether a script's own loop takes three steps in several processes under torch's launcher.

    Each has a memory limit, and its own core of the host.
    """
    own_cores = "import os; os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ['RANK'])]})"
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(f"{own_cores}\n{_LOOP}\nif seconds is None: os._exit(3)\nos._exit(0)")
        program.flush()
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", f"{ranks}"]
        arguments = [*launcher, program.name, script, *map(str, ([batch_size], 3, limit_bytes))]
        done = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "exitcode  : 3" in done.stderr, done.stderr
    return done.returncode == 0


def step_seconds(
    script: str, *batch_sizes: int, steps: int = 3, limit_bytes: int = 0, where: tuple[str, ...] = ()
) -> list[list[float] | None]:
    """Return the seconds of each step of a script's own loop at each batch size; None if it runs out of memory.

    Each batch size has a process, all forked from the one that imported the script. On the CPU, a crash under a limit
    counts as out of memory: not every library checks its allocations. ``where`` may name another device.
    """
    arguments = [sys.executable, "-c", _LOOP, script, *map(str, (list(batch_sizes), steps, limit_bytes)), *where]
    done = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if limit_bytes and done.returncode == -signal.SIGSEGV:
        return [*found, None]
    assert done.returncode == 0, done.stderr
    return found
