"""A model built on the GPU leaves the allocator in the state of a model built on the host and moved."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys, torch
from tputfind.record.spec import read_spec
from tputfind.worker.placing import build
from tputfind.worker.conversion import arrange_module, move_module
from tputfind.worker.models import find_model
from tputfind.worker.settings import seed_all

model, dtype, layout, way = sys.argv[1:]
spec, device = read_spec(model, {"dtype": dtype, "layout": layout}), torch.device("cuda", 0)
wanted = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
source = find_model(spec)
seed_all(0)
if way == "host":
    module, _ = source.build()
    source.finish(module)
else:
    module, _ = build(source, spec, wanted, device)
    assert all(parameter.is_cuda for parameter in module.parameters())
module = move_module(arrange_module(module, wanted, layout), device)
peak = torch.cuda.max_memory_allocated()
assert all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters())
torch.cuda.synchronize()
torch.cuda.empty_cache()
segments = torch.cuda.memory_snapshot()
blocks = sorted([(block["size"], block["state"]) for block in segment["blocks"]] for segment in segments)
print(json.dumps([blocks, torch.cuda.memory_allocated(), peak]))
"""
SCRATCH_BYTES = 24 * 2**20


def built(*case):
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *case]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(("dtype", "layout"), [("fp16", "nhwc"), ("bf16", "nchw"), ("fp32", "nchw")])
@pytest.mark.parametrize("model", ["resnet50", "vit_b_16", "densenet121", "hf:bert"])
def test_allocator_blocks_equal_those_of_a_moved_module(model, dtype, layout):
    blocks, allocated, peak = built(model, dtype, layout, "device")
    of_host, allocated_of_host, _ = built(model, dtype, layout, "host")

    assert blocks == of_host
    assert allocated == allocated_of_host
    assert peak <= allocated + SCRATCH_BYTES
