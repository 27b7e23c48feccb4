"""Models of odd interfaces compute what plain PyTorch computes under no_grad, or are refused in one true line."""

from contextlib import contextmanager
from typing import NamedTuple

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rows import time_rows

from tputfind.errors import TputfindError
from tputfind.processes.messages import Inspect, Inspection
from tputfind.record.spec import read_spec
from tputfind.worker.structures import drain_value, tensors_of
from tputfind.worker.workload import Workload, gradients

INPUTS = {
    "tensor": "torch.randn(batch, 4)",
    "list": "[torch.randn(4) for _ in range(batch)]",
    "tuple": "(torch.randn(batch, 4),)",
    "dict": "{'x': torch.randn(batch, 4)}",
    "pair": "(torch.randn(batch, 4), torch.randn(batch, 4))",
    "rows": "torch.randn(3 * batch, 4)",
    "last": "torch.randn(4, batch)",
    "dataclass": "Sample(torch.randn(batch, 4), 'name')",
    "object": "Held(torch.randn(batch, 4))",
    "array": "np.random.rand(batch, 4).astype('float32')",
    "texts": "([f'text {number}' for number in range(batch)],)",
    "number": "batch",
    "nested": "torch.nested.nested_tensor([torch.randn(1 + n % 3, 4) for n in range(batch)], layout=torch.jagged)",
    "mixed": "({'a': [torch.randn(batch, 4)], 'b': None}, 3)",
    "integers": "torch.randint(0, 9, (batch, 4))",
    "constant": "torch.ones(2, 4)",
    "random length": "torch.randn(batch, random.randint(1, 9), 4)",
}
READS = {
    "object": "inputs[0].x",
    "dataclass": "inputs[0].x",
    "array": "torch.as_tensor(inputs[0])",
    "texts": "torch.tensor([[float(len(text))] * 4 for text in inputs[0]])",
    "number": "torch.ones(inputs[0], 4)",
    "nested": "torch.nested.to_padded_tensor(inputs[0], 0.0).sum(1)",
    "mixed": "inputs[0]['a'][0] + inputs[1]",
    "list": "torch.stack(inputs[0])",
    "pair": "inputs[0] - inputs[1]",
    "last": "inputs[0].T",
    "integers": "inputs[0].float()",
}
SEVERAL = {"dict", "mixed", "pair"}
"""Inputs of several arguments or of a name, which nn.Sequential does not take."""
HABITS = {
    "none": "y",
    "writes": "y + x.mul_(0.5) if x.is_floating_point() and torch.is_tensor(x) else y",
    "counts": "y * (self.calls > 0)",
    "grad": "torch.autograd.grad(self.lin((z := x.detach().requires_grad_())).sum(), z)[0]",
    "grad inside": "self.forces(x)",
    "in no inference": "self.lin(x.requires_grad_(False)).detach()",
    "threes": "y.view(-1, 3, 4).flatten(0, 1)",
    "fails": "self.missing",
}
OUTPUTS = {
    "tensor": "out",
    "tuple": "(out, None, 'text')",
    "dict": "{'logits': out, 'n': 3}",
    "dataclass": "Sample(out, 'name')",
    "object": "Held(out)",
    "generator": "(out * number for number in (1, 2))",
    "iterator": "iter([out, out + 1])",
    "map": "{'pieces': map(torch.neg, [out])}",
    "coroutine": "self.later(out)",
    "nothing": "None",
    "sparse": "out.to_sparse()",
}
KINDS = {
    "module": "Net(), inputs",
    "lambda": "Net(), lambda batch: inputs(batch)",
    "partial": "Net(), functools.partial(inputs)",
    "method": "Net(), Maker().make",
    "callable": "Net(), Maker()",
    "sequential": "nn.Sequential(Net()), inputs",
    "double": "Net().double(), inputs",
    "training": "Net().train(), inputs",
    "frozen": "Net().requires_grad_(False), inputs",
}
SETTINGS = {
    "none": "",
    "tf32": "torch.backends.cuda.matmul.allow_tf32 = True",
    "precision": "torch.set_float32_matmul_precision('medium')",
    "threads": "torch.set_num_threads(1)",
    "no grad": "torch.set_grad_enabled(False)",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "benchmark": "torch.backends.cudnn.benchmark = True",
}
FILE = """\
import dataclasses, functools, random
import numpy as np
from typing import NamedTuple

import torch
from torch import nn
{setting}


@dataclasses.dataclass
class Sample:
    x: object
    name: str


class Held:
    def __init__(self, x):
        self.x = x

    def to(self, device):
        return Held(self.x.to(device))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.calls = nn.Linear(4, 4), 0

    def forces(self, x):
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            return torch.autograd.grad(self.lin(z).tanh().sum(), z)[0]

    async def later(self, out):
        return out

    def forward(self, *inputs, **named):
        inputs = (*inputs, *named.values())
        self.calls += 1
        x = {reads}
        x = x.to(self.lin.weight.dtype)
        y = self.lin(x)
        out = {habit}
        return {output}


def inputs(batch):
    return {inputs}


class Maker:
    def make(self, batch):
        return inputs(batch)

    __call__ = make


def make():
    torch.manual_seed(7)
    return {kind}
"""


def close(one, other):
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-5)


@contextmanager
def settings_of_its_own():
    """Restore the settings that a model file changes, which would affect later tests."""
    grad, threads, precise = torch.is_grad_enabled(), torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precise)
        torch.use_deterministic_algorithms(mode=False)
        torch.backends.cudnn.benchmark = False


def in_plain_torch(spec, size):
    """Return the output in eval mode under no_grad, using only the inputs of the tool."""
    workload = Workload(spec, torch.device("cpu"))
    call = workload._inputs(size).call
    module = workload._module
    with torch.no_grad():
        return drain_value(module(*call[0], **call[1]))


class Odd(NamedTuple):
    inputs: str
    habit: str
    output: str
    kind: str
    setting: str

    def text(self) -> str:
        """Return the file text of a factory with this interface."""
        return FILE.format(
            setting=SETTINGS[self.setting],
            reads=READS.get(self.inputs, "inputs[0]"),
            habit=HABITS[self.habit],
            output=OUTPUTS[self.output],
            inputs=INPUTS[self.inputs],
            kind=KINDS[self.kind],
        )


ODD = st.builds(
    Odd,
    st.sampled_from(sorted(INPUTS)),
    st.sampled_from(sorted(HABITS)) | st.just("none"),
    st.sampled_from(sorted(OUTPUTS)) | st.just("tensor"),
    st.sampled_from(sorted(KINDS)) | st.just("module"),
    st.sampled_from(sorted(SETTINGS)) | st.just("none"),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(odd=ODD)
def test_odd_interface_computes_like_torch_or_is_refused(tmp_path, children, odd):
    path = tmp_path / f"odd_{len(list(tmp_path.iterdir()))}.py"
    path.write_text(odd.text())
    spec = read_spec(f"{path}:make", {"batches": 6, "warmup": 1, "processes": 1, "device": "cpu", "granularity": 3})

    try:
        children.ask_one(Inspect(spec), Inspection, 60)
        (row,) = time_rows(children, spec, 6, timeout_s=60)
    except TputfindError as refusal:
        assert type(refusal).__name__ != "ChildFailed"
        assert "/tputfind/" not in refusal.traceback
        assert (odd.inputs, refusal.exit_code) == ("constant", 5), refusal
        assert "its inputs are the same" in refusal.message
        return
    if row.failure is not None:
        if odd.habit not in {"fails", "grad", "grad inside"}:
            assert odd.kind == "sequential", (row.failure.message, row.failure.traceback)
            assert odd.inputs in SEVERAL, (row.failure.message, row.failure.traceback)
        assert "/tputfind/" not in row.failure.traceback
        return
    assert odd.habit != "fails"
    assert odd.kind != "sequential" or odd.inputs not in SEVERAL
    assert row.samples_per_s is not None
    if odd.habit == "none" and odd.output != "nothing":
        with settings_of_its_own():
            with_ours = Workload(spec, torch.device("cpu"))
            with gradients(spec):
                ours = with_ours.batch(6)()
            pairs = zip(tensors_of(ours), tensors_of(in_plain_torch(spec, 6)), strict=True)
        assert all(close(one.to_dense(), other.to_dense()) for one, other in pairs)


def test_settings_of_a_model_file_are_restored():
    """The tests of this process depend on it: with gradients disabled, a training test would fail."""
    with settings_of_its_own():
        torch.set_grad_enabled(False)

    assert torch.is_grad_enabled()
