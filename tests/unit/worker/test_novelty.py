"""Models that remember their inputs are distinguished from models that compute every step."""

import os
import subprocess
import sys
import time

import pytest
import torch

from tputfind.worker import output_check
from tputfind.worker.batch import Batch
from tputfind.worker.devices.cpu import Cpu
from tputfind.worker.devices.host import core_wait_s
from tputfind.worker.output_check import remembers_inputs

STEP_S = 0.05
STEPS_OF_ONE_DRAW = 3
DRAWS = 6


class Model:
    """Takes 50 ms per step, or 0 ms for a remembered input; it counts its steps."""

    def __init__(self, *, remembers: bool) -> None:
        self.steps = 0
        self._remembers = remembers
        self._seen: set[float] = set()

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        key = float(inputs[0])
        if not self._remembers or key not in self._seen:
            time.sleep(STEP_S)
        self._seen.add(key)
        return inputs


def judge(model: Model) -> bool:
    """Return whether a model is judged to remember its inputs after one step of its batch."""

    def make_batch(draw: int) -> Batch:
        return Batch(model, 1, ((torch.full((1,), float(draw)),), {}), lambda: None)

    timed = make_batch(0)
    timed()
    start_s = time.perf_counter()
    timed()
    seen_ms = 1000 * (time.perf_counter() - start_s)
    model.steps = 0
    return remembers_inputs(Cpu(), timed, make_batch, seen_ms)


def test_a_model_that_forgets_is_acquitted_by_one_step():
    model = Model(remembers=False)

    assert not judge(model)
    assert model.steps == 1


def test_a_model_that_remembers_is_named_after_all_draws():
    model = Model(remembers=True)

    assert judge(model)
    assert model.steps == 1 + DRAWS * STEPS_OF_ONE_DRAW


def test_a_model_that_waits_for_a_core_is_acquitted(monkeypatch):
    waits_s = [0.0]

    class Preempted(Model):
        """Works for 20 ms in each step, and waits for a core when its input is new."""

        def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
            start_s = time.perf_counter()
            output = super().__call__(inputs)
            waits_s[0] += time.perf_counter() - start_s
            time.sleep(0.02)
            return output

    monkeypatch.setattr(output_check, "core_wait_s", lambda: waits_s[0], raising=False)

    assert not judge(Preempted(remembers=True))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="pins two processes to one core")
def test_core_wait_is_the_time_that_another_process_has_the_core():
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        start_s, cpu_s, waited_s = time.perf_counter(), time.thread_time(), core_wait_s()
        while time.thread_time() - cpu_s < 0.3:
            pass
        away_s = time.perf_counter() - start_s - (time.thread_time() - cpu_s)
        waited_s = core_wait_s() - waited_s
    finally:
        rival.kill()
        rival.wait()
        os.sched_setaffinity(0, cores)

    assert away_s > 0.05
    assert waited_s == pytest.approx(away_s, rel=0.1)
