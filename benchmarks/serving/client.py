"""Open-loop load on a server: requests are sent when they are due, however long other answers take."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE
from typing import NamedTuple

_BODY = b"1"
_AHEAD_S = 1.0


class Answer(NamedTuple):
    """The latency of a request since it was due, the size of its batch, the duration of the step and its begin.

    All times are in ms; ``begun_ms`` is on the same clock as the due times.
    """

    latency_ms: float
    batch_size: int
    step_ms: float
    begun_ms: float


def drive(port: int, due_ms: list[float], clients: int = 1) -> list[Answer]:
    """Send a request at each time, in ms from now, and return the answers in that order.

    The requests are distributed over ``clients`` processes, so that none of them is late.

    Raises:
        RuntimeError: the server refuses a request, or is gone.
    """
    start_s = time.perf_counter() + _AHEAD_S  # all processes of a machine share this clock
    senders = [
        subprocess.Popen(
            [sys.executable, __file__, str(port), repr(start_s)], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
        )
        for _ in range(clients)
    ]
    with ThreadPoolExecutor(clients) as pool:
        shares = [json.dumps(due_ms[client::clients]) for client in range(clients)]
        told = list(pool.map(lambda sender, share: sender.communicate(share), senders, shares))
    answers: list[Answer] = [Answer(0.0, 0, 0.0, 0.0)] * len(due_ms)
    for client, (sender, (out, err)) in enumerate(zip(senders, told, strict=True)):
        if sender.returncode != 0:
            raise RuntimeError(err)
        answers[client::clients] = [Answer(*answer) for answer in json.loads(out)]
    return answers


async def _drive(port: int, due_ms: list[float], start_s: float) -> list[Answer]:
    idle: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()
    answers: dict[int, Answer] = {}

    async def ask(number: int, due_s: float) -> None:
        reader, writer = idle.popleft() if idle else await asyncio.open_connection("127.0.0.1", port)
        writer.write(_request(port))
        size, step_ms, begun_s = await _answer(reader)
        latency_ms = (time.perf_counter() - start_s - due_s) * 1000
        answers[number] = Answer(latency_ms, int(size), step_ms, (begun_s - start_s) * 1000)
        idle.append((reader, writer))

    tasks = set()
    for number, due in enumerate(due_ms):
        wait_s = start_s + due / 1000 - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        tasks.add(asyncio.create_task(ask(number, due / 1000)))
    await asyncio.gather(*tasks)
    for _, writer in idle:
        writer.close()
    return [answers[number] for number in range(len(due_ms))]


def _request(port: int) -> bytes:
    head = f"POST /inference HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(_BODY)}\r\n\r\n".encode() + _BODY


async def _answer(reader: asyncio.StreamReader) -> list[float]:
    status = await reader.readline()
    length = 0
    while (line := await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        if name.lower() == "content-length":
            length = int(value)
    body = await reader.readexactly(length)
    if b" 200 " not in status:
        raise RuntimeError(f"the server answered {status.decode().strip()}: {body.decode()[:200]}")
    found: list[float] = json.loads(body)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_drive(int(sys.argv[1]), json.load(sys.stdin), float(sys.argv[2])))))
