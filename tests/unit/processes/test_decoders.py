"""Answers are decoded in several threads: those of ranks, and of devices that work at once."""

import subprocess
import sys

IN_THREADS = """
import sys
from threading import Barrier, Thread

import msgspec

from tputfind.processes.children import decoder_of

sys.setswitchinterval(1e-6)
fields = [(f"field_{number}", "int | None", None) for number in range(60)]
for _ in range(100):
    part = msgspec.defstruct("Part", fields)
    kind = msgspec.defstruct("Kind", [("part", part), *fields])
    barrier, found = Barrier(4), []

    def decode():
        barrier.wait()
        found.append(decoder_of(kind).decode(b'{"part": {"field_7": 7}}').part.field_7)

    threads = [Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7] * 4, found
"""


def test_threads_that_need_a_new_decoder_at_once_all_decode():
    ran = subprocess.run([sys.executable, "-c", IN_THREADS], capture_output=True, text=True, check=False, timeout=60)

    assert ran.returncode == 0, ran.stderr
