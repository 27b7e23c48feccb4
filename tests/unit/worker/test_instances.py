"""Instances take their steps one after the other's signal, and hardly ahead of the slowest."""

import os
import time
from threading import Thread

import pytest
import torch

from tputfind.processes.messages import Group
from tputfind.worker.ranks import _Member, _TurnsOver


def member(folder, rank):
    return _Member(Group(rank=rank, size=2, device="cpu", folder=f"{folder}", instances=True))


@pytest.mark.parametrize(("step_s", "most_ahead"), [(0.1, 1), (0.002, 8)])
def test_instance_takes_few_steps_at_once_after_the_other_caught_up(tmp_path, step_s, most_ahead):
    for name in ("1", "1-back"):
        os.mkfifo(tmp_path / name)
    first, other = member(tmp_path, 0), member(tmp_path, 1)

    def follow():
        other.join(torch.device("cpu"))
        try:
            while True:
                other.take_turn()
                time.sleep(step_s)
        except _TurnsOver:
            return

    following = Thread(target=follow)
    following.start()
    first.join(torch.device("cpu"))
    for _ in range(12):
        first.take_turn()
        time.sleep(0.6 * step_s)
    time.sleep(10 * step_s)  # the other one catches up
    spans_s = []
    for _ in range(12):
        begin_s = time.monotonic()
        first.take_turn()
        spans_s.append(time.monotonic() - begin_s)
    first.tell(b"e")
    following.join(timeout=10)

    waits = [span_s > step_s / 2 for span_s in spans_s]
    assert waits.index(True) <= most_ahead + 1, spans_s
    assert sum(spans_s) >= (12 - most_ahead - 2) * step_s
