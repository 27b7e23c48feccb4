"""Models that remember their inputs are distinguished from models that compute every step."""

import time

import torch

from tputfind.worker.batch import Batch
from tputfind.worker.devices.cpu import Cpu
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
