"""The advice for a model that fails at its smallest batch."""

import pytest

from tputfind.errors import BadRequest
from tputfind.processes.messages import Diagnose
from tputfind.record.spec import read_spec
from tputfind.worker.diagnosis import diagnose

EIGHTS = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x.view(-1, 8, 3).sum(1)

def make():
    return Net()
"""


def test_diagnosis_names_max_batch_below_granularity_of_model(tmp_path):
    path = tmp_path / "eights_of_samples.py"
    path.write_text(EIGHTS)
    spec = read_spec(f"{path}:make", {"max_batch": 4, "device": "cpu", "input_size": "3"})

    with pytest.raises(
        BadRequest, match=r"eights_of_samples.py:make fails at batch 1, and runs at 8: .*invalid"
    ) as told:
        diagnose(Diagnose(spec, 1))
    assert told.value.hint == "--max-batch 8 or more"
