"""Training on two GPUs of one host: edges and throughputs equal those of a bare loop under torchrun."""

import re
import subprocess
import sys

import pytest
import torch
from support.command import ENVIRONMENT, measured
from support.folders import MODELS, ROOT

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
TRAIN = ("--phase", "train", "--dtype", "amp-bf16", "--optimizer", "adamw", "--gpus", 2)


def bare_loop(*asked) -> str:
    """Return the output of the bare loop for a model, a kind, a batch size and a number of steps."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = [f"{ROOT}/benchmarks/ranks.py", *map(str, asked)]
    done = subprocess.run([*launcher, *program], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.stdout


def test_ddp_edge_runs_in_a_bare_loop_and_one_more_fails(tmp_path):
    edge = measured(tmp_path, "resnet50", *TRAIN, "--parallel", "ddp", "--budget", "150s").edge

    print(f"largest batch {edge.largest_batch}, fails at {edge.fails_at}")
    assert (edge.closed, edge.limited_by) == (True, "memory")
    assert "samples/s" in bare_loop("resnet50", "ddp", edge.largest_batch, 3)
    assert "is out of memory" in bare_loop("resnet50", "ddp", edge.fails_at, 3)


@pytest.mark.parametrize(("model", "parallel"), [("resnet50", "ddp"), ("vit_b_16", "fsdp")])
def test_rate_of_two_devices_is_that_of_a_bare_loop(tmp_path, model, parallel):
    record = measured(tmp_path, model, *TRAIN, "--parallel", parallel, "--batch-sizes", 256, "--max-seconds", 4)
    (bare_rate,) = map(float, re.findall(r"([\d.]+) samples/s", bare_loop(model, parallel, 256)))

    print(f"{model} {parallel}: {record.rows[0].samples_per_s:.1f} samples/s, {bare_rate} in the bare loop")
    assert record.rows[0].samples_per_s == pytest.approx(bare_rate, rel=0.02)
    assert record.scaling_efficiency(record.rows[0]) == pytest.approx(1, abs=0.25)


def test_sharded_model_may_be_larger_than_memory_of_each_device(tmp_path):
    limit = ("--memory-limit", "5888MiB", "--batch-sizes", 8, "--max-seconds", 2)
    asked = (*TRAIN[:2], "--optimizer", "sgd", "--gpus", 2, "--parallel", "fsdp", *limit)
    row = measured(tmp_path, f"{MODELS}/ranks.py:mostly_frozen", *asked).rows[0]

    print(f"6 GiB of weights: {row.peak_reserved_bytes / 2**30:.2f} GiB on each device")
    assert row.failure is None
    assert row.peak_reserved_bytes < 5 * 2**30
