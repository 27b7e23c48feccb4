"""Event times on a real GPU are right."""

import statistics
import time

import pytest
from support.command import measured, run
from support.gpu import loop_per_s, spin_kernel
from support.listener import Heard
from support.rows import time_rows

from tputfind.analysis.answers import health, throughput_interval
from tputfind.processes.children import Children
from tputfind.record.spec import read_spec

GIB = 2**30


@pytest.mark.opens_gpu
@pytest.mark.parametrize("known_ms", [1, 5, 20])
def test_a_kernel_of_known_duration_is_timed_right_within_2_percent(known_ms):
    from tputfind.processes.messages import Plan
    from tputfind.worker.devices.cuda import Cuda
    from tputfind.worker.loops import Work
    from tputfind.worker.timing import time_windows
    from tputfind.worker.warm_up import Load

    device, spin = Cuda(0), spin_kernel()

    def step():
        spin(known_ms * 1_000_000)

    windows = time_windows(
        device,
        Work(step, step),
        device.stopwatch(2001),
        Plan(
            batches=50, least_batches=10, window_s=0, latency_batches=20, every_latency=True, warmup=3, max_seconds=60
        ),
        Heard(),
        load=Load(),
    )
    device_ms = windows.throughput.device_ms

    samples = (device_ms, windows.latency_ms, windows.enqueue_ms)
    print(f"{known_ms} ms: {[statistics.median(samples_ms) for samples_ms in samples]}")
    assert len(device_ms) == 50
    assert statistics.median(device_ms) == pytest.approx(known_ms, rel=0.02)
    assert sum(device_ms) == pytest.approx(50 * known_ms, rel=0.02)
    enqueue_ms = statistics.median(windows.enqueue_ms)  # the host's part of the latency, which varies between hosts
    assert known_ms <= statistics.median(windows.latency_ms) <= 1.02 * known_ms + enqueue_ms + 0.1
    assert enqueue_ms < 0.5


@pytest.mark.opens_gpu
def test_the_host_does_not_wait_within_the_throughput_window():
    from tputfind.worker.devices.cuda import Cuda
    from tputfind.worker.loops import back_to_back

    spin = spin_kernel()
    submitted = []

    def step():
        submitted.append(time.perf_counter())
        spin(20_000_000)

    spans_ms = back_to_back(step, Cuda(0).stopwatch(51), 50, 1)

    assert submitted[-1] - submitted[0] < 0.5 * sum(spans_ms) / 1000


@pytest.mark.opens_gpu
def test_the_spans_add_up_to_the_window():
    import torch

    from tputfind.worker.devices.cuda import Cuda

    watch = Cuda(0).stopwatch(101)
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    for _ in range(101):
        watch.mark()
        x @ x
    spans_ms = watch.spans_ms()

    whole_ms = watch._events[0].elapsed_time(watch._events[100])
    assert sum(spans_ms) == pytest.approx(whole_ms, rel=1e-4)


@pytest.mark.opens_gpu
@pytest.mark.parametrize(("model", "batch_size"), [("resnet50", 256), ("mobilenet_v3_large", 512), ("vit_b_16", 256)])
def test_throughput_agrees_with_a_plain_loop_under_the_host_clock(tmp_path, model, batch_size):
    """Run the loop before and after the tool, because clocks drift. benchmarks/agreement.py compares more of both.

    The batches are large enough for the device, rather than Python, to be timed. The loop works for five seconds
    before its time counts: ViT-B/16 reaches the power limit of an H200, which takes some seconds to slow it.
    """
    import torch
    import torchvision

    module = torchvision.models.get_model(model, weights=None).eval().half().cuda()
    inputs = torch.randn(batch_size, 3, 224, 224, dtype=torch.float16, device="cuda")

    def plain_loop() -> float:
        with torch.inference_mode():
            loop_per_s(lambda: module(inputs), 5)
            return loop_per_s(lambda: module(inputs), 5) * batch_size

    before = plain_loop()
    ran = run(tmp_path, model, "--dtype", "fp16", "--batch-sizes", batch_size)
    after = plain_loop()

    assert ran.status == 0, ran.err
    (row,) = ran.record().rows
    print(f"{model} batch {batch_size}: {row.samples_per_s} {throughput_interval(row)}, loop {before} and {after}")
    assert row.samples_per_s == pytest.approx((before + after) / 2, rel=0.01)


def test_power_limited_row_after_other_rows_has_its_own_rate(tmp_path):
    """Time the row before and after, because clocks drift. A card with spare power passes too, and proves little.

    The first run only heats the card: a cold one draws less power, and is faster at its limit.
    """

    asked = {"cold": "256", "before": "256", "among": "64,128,256", "after": "256"}
    rows = [
        measured(tmp_path / name, "vit_b_16", "--dtype", "fp16", "--batch-sizes", batch_sizes).rows[-1]
        for name, batch_sizes in asked.items()
    ]
    cold, before, among, after = (row.samples_per_s for row in rows)
    print(cold, before, among, after, [[round(timing.warmup_s, 2) for timing in row.timings] for row in rows])

    assert among == pytest.approx((before + after) / 2, rel=0.005)


@pytest.mark.parametrize(("model", "batch_sizes"), [("resnet50", "128,256"), ("efficientnet_b0", "1024,2048")])
def test_the_power_of_a_short_window_is_that_of_a_long_one(tmp_path, model, batch_sizes):
    """An H100 updates its energy counter and its power reading every 0.1 s.

    At batch 2048 the windows of EfficientNet begin after the first step compiles, during which the device idles.
    """
    asked = (model, "--dtype", "fp16", "--batch-sizes", batch_sizes)

    def watts(name, *more):
        return [health(row).power_w for row in measured(tmp_path / name, *asked, *more).rows]

    long, short, again = watts("long", "--thorough"), watts("short"), watts("again")
    print(f"W with windows of 1 s {long}, of a third of a second {short} and {again}")

    for number in range(2):
        assert (short[number] + again[number]) / 2 == pytest.approx(long[number], rel=0.05)


def test_a_row_of_few_batches_takes_as_much_memory_as_one_of_many(tmp_path):
    """A loop keeps its last output. An output of 16 MiB makes the allocator reserve 12 GiB more here."""

    def row_of(name, batches):
        asked = ("--dtype", "fp16", "--batch-sizes", 8192, "--processes", 1, "--batches", batches)
        (row,) = measured(tmp_path / name, "mobilenet_v3_large", *asked).rows
        return row

    few, many = row_of("few", 1), row_of("many", 20)
    print([(len(row.device_ms), row.peak_allocated_bytes, row.peak_reserved_bytes) for row in (few, many)])

    assert few.peak_allocated_bytes == many.peak_allocated_bytes
    assert few.peak_reserved_bytes == many.peak_reserved_bytes


@pytest.mark.opens_gpu
def test_the_marks_do_not_slow_down_a_host_that_is_the_limit():
    """Alternate the window and a plain loop in one process, because such a row varies more between processes.

    They alternate often, so that load from other processes on the host slows both equally.
    """
    import torch
    import torchvision

    from tputfind.worker.devices.cuda import Cuda
    from tputfind.worker.loops import back_to_back

    module = torchvision.models.get_model("mobilenet_v3_large", weights=None).eval().half().cuda()
    inputs = torch.randn(1, 3, 224, 224, dtype=torch.float16, device="cuda")

    def step() -> object:
        return module(inputs)

    ratios = []
    with torch.inference_mode():
        loop_per_s(step, 2)
        for _ in range(100):
            spans_ms = back_to_back(step, Cuda(0).stopwatch(31), 30, 1)
            ratios.append(len(spans_ms) / (sum(spans_ms) / 1000) / loop_per_s(step, 0.1))

    print(f"window against loop: {statistics.median(ratios):.4f} of {sorted(ratios)}")
    assert statistics.median(ratios) == pytest.approx(1, abs=0.03)


def test_fp32_is_ieee_and_tf32_is_faster():
    """On Ampere and later TF32 is several times as fast as IEEE fp32: the two cannot be the same arithmetic."""
    rates = {}
    with Children() as children:
        for dtype in ("fp32", "tf32"):
            spec = read_spec("resnet50", {"device": "cuda", "dtype": dtype, "batches": 20})
            (row,) = time_rows(children, spec, 64)
            rates[dtype] = row.samples_per_s

    assert rates["tf32"] > 1.5 * rates["fp32"]


def test_small_batches_are_host_bound_and_large_ones_are_not(tmp_path):
    from tputfind.record.record import host_bound

    ran = run(tmp_path, "resnet50", "--dtype", "fp16", "--batch-sizes", "1,512", "--batches", 30)

    small, large = ran.record().rows
    assert host_bound(small) is True
    assert host_bound(large) is False
    told = {notice.kind: notice.batch_sizes for notice in ran.record().notices}
    assert told["host_bound"] == (1,)
