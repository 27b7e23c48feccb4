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


FIXED = """
import torch

class Rays(torch.nn.Module):
    def forward(self, x):
        return x + torch.ones(1024, 1)

class Pairs(torch.nn.Linear):
    def forward(self, x):
        x, (first, second) = super().forward(x), torch.triu_indices(len(x), len(x), 1)
        return (x[first] - x[second]).square().mean() if len(first) else torch.tensor(0.0)

def rays():
    return Rays()

def pairs():
    return Pairs(3, 3)
"""


@pytest.mark.parametrize(
    ("model", "phase", "size", "granularity"), [("rays", "infer", 2, 1024), ("pairs", "train", 1, 2)]
)
def test_batch_size_that_a_model_needs_is_found(tmp_path, model, phase, size, granularity):
    path = tmp_path / "of_fixed_batches.py"
    path.write_text(FIXED)
    spec = read_spec(f"{path}:{model}", {"device": "cpu", "input_size": "3", "phase": phase})

    assert diagnose(Diagnose(spec, size)).granularity == granularity
