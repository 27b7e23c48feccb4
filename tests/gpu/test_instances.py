"""Several instances of a model on one GPU, under CUDA's multi-process service."""

import os
import shutil
import subprocess

import pytest
from support.command import EDGE, ENVIRONMENT, measured, run
from support.folders import MODELS

from tputfind.record.files import load_records

DAEMON = "nvidia-cuda-mps-control"
FEW = ("--batch-sizes", 1, "--processes", 1, "--dtype", "fp16", "--no-save")


@pytest.fixture(scope="module")
def mps(tmp_path_factory):
    """Start the daemon, and yield the environment of its clients."""
    if shutil.which(DAEMON) is None:
        pytest.skip(f"no {DAEMON} here")
    folder = tmp_path_factory.mktemp("mps")
    theirs = ENVIRONMENT | {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    subprocess.run([DAEMON, "-d"], env=theirs, check=True)
    yield theirs
    subprocess.run([DAEMON], env=theirs, input="quit\n", text=True, check=True)


@pytest.mark.skipif("CUDA_MPS_PIPE_DIRECTORY" in os.environ, reason="a daemon runs here")
def test_instances_without_the_service_are_refused_in_one_line(tmp_path):
    refused = run(tmp_path, "resnet18", "--instances", 2, *FEW, "--quiet")

    refused.check_refused(3, "--instances 2: processes take turns on cuda:0 unless the daemon of ")


def test_memory_limit_of_instances_is_refused_in_one_line(tmp_path, mps):
    refused = run(tmp_path, "resnet18", "--instances", 2, "--memory-limit", "8GiB", "--quiet", environment=mps)

    refused.check_refused(2, "--instances 2: only those of a CPU can be held to a part of its memory")


@pytest.mark.parametrize("mode", ["eager", "cudagraph"])
def test_instances_fill_a_gpu_that_one_leaves_idle(tmp_path, mps, mode):
    ran = run(tmp_path, "resnet18", "--instances", "1,2", "--mode", mode, *FEW, "--save", "rows.json", environment=mps)

    assert ran.status == 0, ran.err
    one, two = (record.rows[0] for record in load_records(tmp_path / "rows.json"))
    assert two.samples_per_s > 1.2 * one.samples_per_s
    assert two.samples == 2


def test_largest_batch_of_two_instances_is_half_of_one_and_proven(tmp_path, mps):
    asked = (f"{MODELS}/instances.py:grows", "--granularity", 1024, *EDGE)
    one, two = (measured(tmp_path / f"{n}", *asked, "--instances", n, environment=mps).edge for n in (1, 2))

    assert (one.limited_by, two.limited_by) == ("memory", "memory")
    assert two.fails_at == two.largest_batch + 1024
    assert 2 * two.largest_batch == pytest.approx(one.largest_batch, rel=0.02)
