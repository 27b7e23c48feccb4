"""User-written steps on a real GPU: their largest batches and times equal those of the bare loop."""

from statistics import median

import pytest
from support import bare
from support.command import QUICK, measured
from support.folders import MODELS

CUDA = ("cuda",)


@pytest.mark.parametrize("script", ["train_gan", "train_ema"])
def test_bare_loop_takes_the_largest_batch_of_a_step_and_no_more(tmp_path, script):
    path = f"{MODELS}/{script}.py"
    edge = measured(tmp_path, f"{path}:step", *QUICK, "--device", "cuda").edge

    print(f"{script}: largest batch {edge.largest_batch}, fails at {edge.fails_at}")
    assert (edge.closed, edge.limited_by) == (True, "memory")
    assert bare.step_seconds(path, edge.largest_batch, steps=4, where=CUDA) != [None]
    assert bare.step_seconds(path, edge.fails_at, steps=4, where=CUDA) == [None]


@pytest.mark.parametrize("script", ["train_gan", "train_ema"])
def test_step_takes_as_long_as_in_the_bare_loop(tmp_path, script):
    path = f"{MODELS}/{script}.py"
    record = measured(tmp_path, f"{path}:step", "--batch-sizes", 512, "--max-seconds", 3, "--device", "cuda")
    timed_ms = median(span for timing in record.rows[0].timings for span in timing.latency_ms)
    (seconds,) = bare.step_seconds(path, 512, steps=30, where=CUDA)
    loop_ms = 1000 * median(seconds[10:])

    print(f"{script}: {timed_ms:.3f} ms a step, {loop_ms:.3f} in the bare loop")
    assert timed_ms == pytest.approx(loop_ms, rel=0.02)
