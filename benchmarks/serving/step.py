"""The model that a server runs for a batch: the same step that the tool times, with inputs on the device."""

from __future__ import annotations

import json
import os
from time import perf_counter

from tputfind.record.spec import read_spec
from tputfind.worker.devices import open_device
from tputfind.worker.workload import Workload, gradients, inference

MODEL, OPTIONS, CAP = "SERVING_MODEL", "SERVING_OPTIONS", "SERVING_CAP"
"""Names of the environment variables that describe the served model."""
_WARM_STEPS = 3


class Step:
    """Runs a batch of a size through the model, and waits for its output. Every size is made and warmed beforehand."""

    def __init__(self, device: str | None = None) -> None:
        options = json.loads(os.environ[OPTIONS])
        spec = read_spec(os.environ[MODEL], options if device is None else {**options, "device": device})
        self._device, self._mode = open_device(spec.device), gradients(spec)
        workload = Workload(spec, self._device.torch_device)
        with self._mode:
            self._batches = {size: workload.batch(size) for size in range(1, int(os.environ[CAP]) + 1)}
            for size in self._batches:
                for _ in range(_WARM_STEPS):
                    self._run(size)

    def __call__(self, size: int) -> list[float]:
        """Return the size, the duration of the batch in ms, and its begin in s on the clock of this machine."""
        begun_s = perf_counter()
        with inference():
            self._run(size)
        return [size, (perf_counter() - begun_s) * 1000, begun_s]

    def _run(self, size: int) -> None:
        self._batches[size]()
        self._device.synchronize()
