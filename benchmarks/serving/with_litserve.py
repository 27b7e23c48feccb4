"""Serves with LitServe: python with_litserve.py WAIT_MS DEVICES PORT."""

from __future__ import annotations

import gc
import os
import sys

import litserve
from serving.step import CAP, Step


class Model(litserve.LitAPI):
    """A batch consists of the requests that arrived together; their content is ignored."""

    def setup(self, device: str) -> None:
        """Make and warm the model."""
        self._step = Step(device)

    def batch(self, inputs: list[object]) -> list[object]:
        """Return the requests as they are."""
        return inputs

    def predict(self, requests: list[object]) -> list[object]:
        """Return an answer for each request."""
        return [self._step(len(requests))] * len(requests)

    def unbatch(self, output: list[object]) -> list[object]:
        """Return the answers one by one."""
        return output


if __name__ == "__main__":
    gc.freeze()  # garbage collection of torch's objects would stop answers for some 100 ms every 1 500 requests
    wait_ms, devices, port = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    api = Model(max_batch_size=int(os.environ[CAP]), batch_timeout=wait_ms / 1000, api_path="/inference")
    server = litserve.LitServer(api, accelerator="auto", devices=devices, workers_per_device=1, timeout=600)
    server.run(
        host="127.0.0.1",
        port=port,
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
        timeout_keep_alive=600,  # otherwise idle connections of the client are closed
    )
