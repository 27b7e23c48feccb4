"""A library model is built on its device and equals the result of its own constructor, converted and moved."""

import gc
import subprocess
import sys

import pytest
import torch
from support.configs import save_config
from support.folders import MODELS
from torch import nn

from tputfind.record.spec import read_spec
from tputfind.worker.conversion import arrange_module
from tputfind.worker.models import find_model
from tputfind.worker.models.source import Source
from tputfind.worker.output_check import values_of_outputs
from tputfind.worker.placing import build
from tputfind.worker.settings import seed_all
from tputfind.worker.workload import Workload

HOST = torch.device("cpu")
LAYER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}
CONFIGS = {
    "bert": LAYER,
    "llama": LAYER,
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 99},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 1, "state_size": 4, "vocab_size": 99},
    "hubert": LAYER
    | {"conv_dim": [8, 8], "conv_stride": [5, 4], "conv_kernel": [10, 8], "num_conv_pos_embeddings": 16},
}
NAMED = (
    "resnet18",
    "swin_v2_t",
    "raft_small",
    "deeplabv3_mobilenet_v3_large",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "r3d_18",
    "timm:test_vit",
    "timm:test_convnext",
    "timm:swinv2_cr_tiny_ns_224",
    "timm:levit_128s",
    *(f"hf:{name}" for name in CONFIGS),
)


@pytest.fixture
def source(tmp_path):
    """Return a function that finds a model's source; transformers models get a small configuration."""

    def find(name):
        kind = name.removeprefix("hf:")
        if kind in CONFIGS:
            name = save_config(tmp_path / kind, kind, **CONFIGS[kind])
        return find_model(read_spec(name, {}))

    return find


class Counted:
    """A source that counts its builds in ``times``."""

    def __init__(self, source):
        self.times = 0
        self._build = source.build
        self.source = source._replace(build=self._count_build)

    def _count_build(self):
        self.times += 1
        return self._build()


def described(module):
    tensors = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    return {
        name: (type(each), each.dtype, each.device, tuple(each.shape), each.stride(), each.requires_grad)
        for name, each in tensors
    }


def built_on_host(source, dtype, layout):
    seed_all(0)
    module, _ = source.build()
    source.finish(module)
    return arrange_module(module, dtype, layout)


@pytest.mark.parametrize(
    ("name", "dtype", "layout"),
    [
        *((name, "bf16", "nchw") for name in NAMED),
        *((name, "fp16", "nhwc") for name in ("resnet18", "r3d_18", "timm:test_convnext", "hf:hubert")),
        ("resnet18", "fp32", "nchw"),
    ],
)
def test_model_built_in_place_equals_its_conversion_but_for_random_numbers(source, name, dtype, layout):
    counted, wanted = Counted(source(name)), {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    spec = read_spec("any", {"dtype": dtype, "layout": layout})
    seed_all(0)
    ours, _ = build(counted.source, spec, wanted[dtype], HOST)
    theirs = built_on_host(counted.source, wanted[dtype], layout)

    assert counted.times == 2  # ours in place, and theirs
    assert described(ours) == described(theirs)
    for (key, one), (_, other) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, msg=key)
    for (key, one), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        means, spreads = zip(
            *((each.double().mean(), each.double().std(correction=0)) for each in (one, other)), strict=True
        )
        slack = 8 * max(spreads).item() / one.numel() ** 0.5
        assert torch.isfinite(one).all(), key
        assert abs(means[0] - means[1]) <= slack + 1e-6, key
        assert abs(spreads[0] - spreads[1]) <= slack + 1e-6, key


def test_two_processes_of_one_seed_build_the_same_numbers(source):
    found, spec = source("hf:llama"), read_spec("any", {"dtype": "bf16", "seed": 3})
    seed_all(3)
    first, _ = build(found, spec, torch.bfloat16, HOST)
    seed_all(3)
    second, _ = build(found, spec, torch.bfloat16, HOST)

    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))


@pytest.mark.parametrize("name", ["resnet18", "r3d_18", "timm:test_convnext"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_weights_of_both_layouts_have_equal_values(source, name, dtype):
    built = []
    for layout in ("nchw", "nhwc"):
        seed_all(0)
        built.append(build(source(name), read_spec("any", {"layout": layout}), dtype, HOST)[0])

    first, weights = built[0], dict(built[1].named_parameters())
    assert any(not weight.is_contiguous() for weight in weights.values())
    assert all(torch.equal(weight, weights[name]) for name, weight in first.named_parameters())


@pytest.mark.parametrize("name", ["resnet18", "r3d_18", "timm:test_convnext"])
def test_outputs_of_the_batch_to_compare_are_equal_in_both_layouts(name):
    specs = (read_spec(name, {"layout": layout, "device": "cpu"}) for layout in ("nchw", "nhwc"))
    with torch.inference_mode():
        first, second = (values_of_outputs(Workload(spec, HOST).batch_to_compare()[0], "fp32") for spec in specs)

    assert len(first) > 1
    assert first == pytest.approx(second, rel=1e-3, abs=1e-4)


def test_tied_weights_stay_one_parameter(source):
    module, _ = build(source("hf:gpt2"), read_spec("any", {}), torch.bfloat16, HOST)

    assert module.lm_head.weight is module.transformer.wte.weight


class Norm(nn.Module):
    """Reads a weight, which has no memory yet."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = self.layer.weight.sum().item()


class Keeps(nn.Module):
    """Keeps a tensor that is not a weight of the module."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.table = torch.empty(4).normal_()


class Unwritten(nn.Module):
    """Leaves a weight uninitialized."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4))


class Replaces(nn.Module):
    """Replaces its weights when it is moved."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self.layer.weight = nn.Parameter(self.layer.weight.detach().clone())
        return self


@pytest.mark.parametrize("kind", [Norm, Keeps, Unwritten, Replaces, lambda: nn.LSTM(4, 4)])
def test_constructor_that_cannot_be_repeated_is_built_on_the_host(kind):
    def make():
        return kind(), ((), {})

    counted = Counted(Source(make, deferrable=True))
    seed_all(0)
    ours, _ = build(counted.source, read_spec("any", {}), torch.bfloat16, HOST)
    seed_all(0)
    theirs, _ = make()

    assert counted.times == 2
    assert described(ours) == described(theirs)
    if kind is not Unwritten:
        assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))


def test_want_of_memory_is_not_tried_again_on_the_host():
    counted = Counted(Source(lambda: (nn.Embedding(2**32, 2**10), ((), {})), deferrable=True))

    with pytest.raises(RuntimeError, match="allocate"):
        build(counted.source, read_spec("any", {}), torch.bfloat16, HOST)

    assert counted.times == 1


def test_constructor_drawing_on_views_and_replaced_layers_is_repeated():
    def make():
        module = nn.Sequential(nn.Embedding(8, 4, padding_idx=2), nn.Linear(4, 4))
        module[1] = nn.Linear(4, 2)
        module[1].weight.data = torch.empty(2, 4).fill_(3).mul_(2)
        module.append(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
        nn.init.orthogonal_(module[2].parametrizations.weight.original1)
        return module, ((), {})

    counted = Counted(Source(make, deferrable=True))
    module, _ = build(counted.source, read_spec("any", {}), torch.float16, HOST)

    assert counted.times == 1
    assert module[0].weight[2].tolist() == [0] * 4
    assert module[0].weight[3].any()
    assert module[1].weight.unique().tolist() == [6]
    product = (
        module[2].parametrizations.weight.original1.float() @ module[2].parametrizations.weight.original1.float().T
    )
    torch.testing.assert_close(product, torch.eye(4), rtol=0, atol=1e-2)


def test_inspection_gives_no_weight_memory_and_counts_it(source, tmp_path):
    source("hf:llama")
    spec = read_spec(f"hf:{tmp_path / 'llama'}", {"phase": "train", "dtype": "bf16"})
    looked_at = Workload(spec, HOST, filled=False)
    whole = Workload(spec, HOST)

    weights = [each.weight for each in looked_at._module.modules() if isinstance(each, (nn.Linear, nn.Embedding))]
    assert weights
    assert all(weight.is_meta for weight in weights)
    assert looked_at.parameters == whole.parameters
    assert looked_at.input_shape() == whole.input_shape()


PINNED = """
from torch import nn


class Pinned(nn.Linear):
    def to(self, *places, **named):
        raise ValueError("this model stays on its device")


def make():
    return Pinned(4, 2, device="meta")
"""


def test_inspection_leaves_a_module_on_the_device_of_its_factory(tmp_path):
    (tmp_path / "pinned.py").write_text(PINNED)
    spec = read_spec(f"{tmp_path / 'pinned.py'}:make", {"input_size": "4"})
    workload = Workload(spec, HOST, filled=False)

    assert workload.parameters == 10
    assert workload._module.weight.is_meta


def test_channels_last_takes_every_tensor_by_its_own_rank():
    workload = Workload(read_spec(f"{MODELS}/plain.py:mixed_ranks", {"layout": "nhwc", "image_size": 8}), HOST)

    with torch.inference_mode():
        workload.batch(2)()


def test_sample_shape_omits_the_batch_axis_at_any_position():
    workload = Workload(read_spec(f"{MODELS}/plain.py:batch_on_the_second_axis", {}), HOST)

    assert workload.input_shape() == "7x16"


PEAK = """
import re, sys, torch
from pathlib import Path
from tputfind.record.spec import read_spec
from tputfind.worker.workload import Workload
from tputfind.worker.models import find_model

def status(field):
    return 1024 * int(re.search(rf"{field}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

spec = read_spec(sys.argv[1], {"dtype": "bf16"})
find_model(spec.__class__(model=f"hf:{sys.argv[2]}")).build()  # imports what building imports
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
workload = Workload(spec, torch.device("cpu"))
model = sum(parameter.nbytes for parameter in workload._module.parameters())
print(model, status("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_model_in_bf16_is_built_on_the_cpu_within_its_own_memory(tmp_path):
    save_config(tmp_path / "small", "llama", **LAYER)
    wide = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "vocab_size": 20000}
    save_config(tmp_path / "large", "llama", **LAYER | wide)
    gc.collect()
    command = [sys.executable, "-c", PEAK, f"hf:{tmp_path / 'large'}", f"{tmp_path / 'small'}"]
    model, peak = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    assert model > 400 * 2**20
    assert peak < 1.15 * model
