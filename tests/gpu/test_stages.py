"""The stage timer on a real GPU is accurate and does not slow the work."""

import statistics
import subprocess
import sys
import threading
import time

import pytest
from support.gpu import spin_kernel

MS = 1_000_000


def by_name(timer):
    return {line.stage: line for line in timer.stages()}


def synchronised_ms(work, times: int) -> float:
    """Return the milliseconds per call of back-to-back calls, by the host clock between two synchronisations."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1000 / times


@pytest.mark.opens_gpu
@pytest.mark.parametrize("kind", ["spin", "matmul"])
def test_stage_times_agree_with_synchronised_ones_within_2_percent(kind):
    """Alternate both methods five times and compare the medians, because clocks drift."""
    import torch

    from tputfind.stages.timer import StageTimer

    spin = spin_kernel()
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    work = {"spin": lambda: spin(1 * MS), "matmul": lambda: x @ x}[kind]
    timer = StageTimer()
    synchronised_ms(work, 50)

    staged_ms, plain_ms = [], []
    for _ in range(5):
        plain_ms.append(synchronised_ms(work, 100))
        timer.reset()
        for _ in range(100):
            with timer.stage(kind):
                work()
        timer.finish()
        (line,) = timer.stages()
        staged_ms.append(line.device_ms)
        assert (line.count, line.failed, line.unresolved) == (100, 0, 0)
        assert line.device_ms_p50 == pytest.approx(line.device_ms, rel=0.1)
        assert line.device_ms_p99 >= line.device_ms_p50

    print(f"{kind}: stages {staged_ms}, synchronised {plain_ms}")
    assert statistics.median(staged_ms) == pytest.approx(statistics.median(plain_ms), rel=0.02)
    if kind == "spin":
        assert statistics.median(staged_ms) == pytest.approx(1, rel=0.02)


@pytest.mark.opens_gpu
def test_consecutive_and_nested_stages_are_each_timed_right():
    from tputfind.stages.timer import StageTimer

    spin, timer = spin_kernel(), StageTimer("cuda")
    for _ in range(20):
        with timer.stage("detect"):
            spin(3 * MS)
        with timer.stage("nms", device=False):
            pass
        with timer.stage("classify"):
            spin(1 * MS)
            with timer.stage("classify/embed"):
                spin(2 * MS)

    table = timer.frame().set_index("stage")

    print(table.to_string())
    assert table.index.tolist() == ["detect", "nms", "classify", "classify/embed"]
    assert table["count"].tolist() == [20] * 4
    assert table["unresolved"].tolist() == [0] * 4
    for stage, known_ms in {"detect": 3, "classify": 3, "classify/embed": 2}.items():
        assert table["device_ms"][stage] == pytest.approx(known_ms, rel=0.02)
        assert table["share"][stage] == pytest.approx(known_ms / 6, rel=0.05)
    nms = table.loc["nms"]
    assert nms[["device_ms", "device_ms_p50", "device_ms_p99", "enqueue_ms"]].isna().all()
    assert nms["host_ms"] < 1
    assert table["device_ms_p99"].isna().all()  # with fewer than 100 samples


@pytest.mark.opens_gpu
def test_the_host_never_waits_within_the_loop():
    import torch

    from tputfind.stages.timer import StageTimer

    spin, timer = spin_kernel(), StageTimer()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(50):
        with timer.stage("spin"):
            spin(20 * MS)
    (running,) = timer.stages()
    submitted_s = time.perf_counter() - start

    assert running.count == 50
    assert running.unresolved >= 45
    timer.finish()
    finished_s = time.perf_counter() - start
    (line,) = timer.stages()
    print(f"submitted in {submitted_s * 1000:.2f} ms, finished in {finished_s * 1000:.0f} ms; {line}")
    assert finished_s > 0.99
    assert submitted_s < 0.1 * finished_s
    assert line.unresolved == 0
    assert line.device_ms == pytest.approx(20, rel=0.02)
    assert line.enqueue_ms < 2


@pytest.mark.opens_gpu
def test_share_does_not_depend_on_time_of_reading():
    from tputfind.stages.timer import StageTimer

    spin, timer = spin_kernel(), StageTimer()
    for _ in range(50):
        with timer.stage("spin"):
            spin(5 * MS)
    time.sleep(2)

    (line,) = timer.stages()

    assert line.unresolved == 0
    assert line.share == pytest.approx(1, rel=0.05)


@pytest.mark.opens_gpu
def test_streams_are_timed_each_by_its_own_marks():
    import torch

    from tputfind.stages.timer import StageTimer

    spin, timer = spin_kernel(), StageTimer()
    streams = {"slow": torch.cuda.Stream(), "fast": torch.cuda.Stream()}
    known_ms = {"slow": 10, "fast": 2}
    torch.cuda.synchronize()
    for _ in range(30):
        for stage, stream in streams.items():
            with torch.cuda.stream(stream), timer.stage(stage):
                spin(known_ms[stage] * MS)

    timer.finish()

    lines = by_name(timer)
    print(lines)
    for stage, line in lines.items():
        assert (line.count, line.unresolved) == (30, 0)
        assert line.device_ms == pytest.approx(known_ms[stage], rel=0.05)
    assert lines["slow"].share == pytest.approx(1, abs=0.1)
    assert lines["fast"].share == pytest.approx(0.2, abs=0.05)


@pytest.mark.opens_gpu
def test_a_busy_stream_does_not_hold_up_the_spans_of_another():
    import torch

    from tputfind.stages.timer import StageTimer

    spin, timer = spin_kernel(), StageTimer()
    busy, quick = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(busy), timer.stage("busy"):
        spin(1000 * MS)
    with torch.cuda.stream(quick):
        for _ in range(100):
            with timer.stage("quick"):
                spin(1 * MS)
        quick.synchronize()

    lines = by_name(timer)

    assert lines["busy"].unresolved == 1
    assert lines["quick"].unresolved == 0
    timer.finish()
    assert by_name(timer)["busy"].device_ms == pytest.approx(1000, rel=0.02)


@pytest.mark.opens_gpu
def test_stage_across_two_streams_is_timed_from_first_to_second():
    import torch

    from tputfind.stages.timer import StageTimer

    spin, timer = spin_kernel(), StageTimer()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(first):
            block = timer.stage("both")
            block.__enter__()
            spin(4 * MS)
        with torch.cuda.stream(second):
            second.wait_stream(first)
            spin(4 * MS)
            block.__exit__(None, None, None)
        first.wait_stream(second)

    timer.finish()

    (line,) = timer.stages()
    assert line.unresolved == 0
    assert line.device_ms == pytest.approx(8, rel=0.05)


@pytest.mark.opens_gpu
def test_events_are_reused_and_bounded_by_the_launch_queue():
    import torch

    from tputfind.stages.timer import MOST_OUTSTANDING, StageTimer

    spin, timer = spin_kernel(), StageTimer()
    x = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    for number in range(20_000):
        if number == 100:  # from here on the launch queue fills up
            spin(300 * MS)
        with timer.stage("tiny"):
            x.add_(1)
    timer.finish()

    (line,) = timer.stages()
    (device,) = timer._marks._devices.values()
    print(f"{len(device.free)} events for 20000 blocks; {line}")
    assert (line.count, line.unresolved) == (20_000, 0)
    assert line.device_ms < 1
    assert not any(device.pairs.values())
    assert len(device.free) < 2 * MOST_OUTSTANDING
    assert timer._marks._outstanding == 0


@pytest.mark.opens_gpu
def test_blocks_beyond_the_cap_are_unresolved_without_waiting(monkeypatch):
    import torch

    from tputfind.stages import timer as stages

    monkeypatch.setattr(stages, "MOST_OUTSTANDING", 4)
    spin, timer = spin_kernel(), stages.StageTimer()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        with timer.stage("spin"):
            spin(20 * MS)
    assert time.perf_counter() - start < 0.1
    timer.finish()
    (line,) = timer.stages()
    assert (line.count, line.unresolved) == (20, 16)
    assert line.device_ms == pytest.approx(20, rel=0.02)

    torch.cuda.synchronize()
    with timer.stage("spin"):
        spin(20 * MS)
    timer.finish()
    (line,) = timer.stages()
    assert (line.count, line.unresolved) == (21, 16)


@pytest.mark.opens_gpu
def test_an_exception_goes_through_and_leaves_the_events_for_others():
    import torch

    from tputfind.stages.timer import StageTimer

    spin, timer = spin_kernel(), StageTimer()
    error = ValueError("no such box")

    def fails() -> None:
        with timer.stage("outer"), timer.stage("inner"):
            spin(50 * MS)
            raise error

    with pytest.raises(ValueError) as raised:
        fails()
    for _ in range(10):
        with timer.stage("outer"), timer.stage("inner"):
            spin(1 * MS)
    timer.finish()

    assert raised.value is error
    for line in timer.stages():
        assert (line.count, line.failed, line.unresolved) == (10, 1, 0)
        assert line.device_ms == pytest.approx(1, rel=0.1)
    torch.cuda.synchronize()


@pytest.mark.opens_gpu
def test_out_of_memory_inside_a_stage_propagates():
    import torch

    from tputfind.stages.timer import StageTimer

    timer = StageTimer()
    with pytest.raises(torch.OutOfMemoryError), timer.stage("huge"):
        torch.empty(2**60, dtype=torch.uint8, device="cuda")

    timer.finish()
    (line,) = timer.stages()
    assert (line.count, line.failed) == (0, 1)


@pytest.mark.opens_gpu
def test_a_capture_is_left_alone_and_its_replays_are_timed():
    import torch

    from tputfind.stages.timer import StageTimer

    spin, timer = spin_kernel(), StageTimer()
    x = torch.ones(8, device="cuda")
    for _ in range(3):  # pairs not yet queried when the capture begins: a query would break it
        with timer.stage("step"):
            y = x * 2
    graph = torch.cuda.CUDAGraph()
    with timer.stage("capture"), torch.cuda.graph(graph):
        for _ in range(3):
            with timer.stage("step"), timer.stage("step/host", device=False):
                spin(2 * MS)
                y = x * 3
        captured = by_name(timer)
        timer.finish()

    assert captured["step"].count == 6
    x.fill_(2)
    for _ in range(10):
        with timer.stage("replay"):
            graph.replay()
    timer.finish()

    lines = by_name(timer)
    print(lines)
    assert y.tolist() == [6.0] * 8
    assert lines["step"].unresolved == 3
    assert lines["capture"].unresolved == 0
    assert lines["replay"].unresolved == 0
    assert lines["replay"].device_ms == pytest.approx(6, rel=0.05)


@pytest.mark.opens_gpu
def test_threads_with_streams_of_their_own_share_a_timer():
    import torch

    from tputfind.stages.timer import StageTimer

    spin, timer = spin_kernel(), StageTimer()
    torch.cuda.synchronize()

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.ones(8, device="cuda")  # makes the context current here, as the bare kernel requires
            for _ in range(200):
                with timer.stage("all"), timer.stage(f"thread {number}"):
                    spin(MS // 10)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timer.finish()

    lines = by_name(timer)
    assert {stage: line.count for stage, line in lines.items()} == {"all": 800} | dict.fromkeys(
        [f"thread {number}" for number in range(4)], 200
    )
    assert all(line.unresolved == 0 for line in lines.values())
    assert lines["all"].device_ms > 0.09


@pytest.mark.opens_gpu
def test_inference_mode_may_be_inside_or_outside_of_device_stages():
    import torch

    from tputfind.stages.timer import StageTimer

    timer, x = StageTimer(), torch.ones(8, device="cuda")
    for _ in range(3):  # events made in inference mode are reused outside of it
        with torch.inference_mode(), timer.stage("outside"):
            x * 2
        with timer.stage("inside"), torch.inference_mode():
            x * 2
    timer.finish()

    assert [(line.count, line.unresolved) for line in timer.stages()] == [(3, 0), (3, 0)]


@pytest.mark.opens_gpu
def test_reset_discards_pending_device_times():
    from tputfind.stages.timer import StageTimer

    spin, timer = spin_kernel(), StageTimer()
    for _ in range(5):
        with timer.stage("spin"):
            spin(20 * MS)
    timer.reset()
    for _ in range(5):
        with timer.stage("spin"):
            spin(2 * MS)
    timer.finish()

    (line,) = timer.stages()
    assert (line.count, line.unresolved) == (5, 0)
    assert line.device_ms == pytest.approx(2, rel=0.05)


@pytest.mark.opens_gpu
def test_a_timer_of_the_cpu_sets_no_marks():
    import torch

    from tputfind.stages.timer import StageTimer

    timer, x = StageTimer("cpu"), torch.ones(8, device="cuda")
    with timer.stage("work"):
        x * 2

    (line,) = timer.stages()
    assert (line.device_ms, line.enqueue_ms, line.unresolved) == (None, None, 0)
    assert line.host_ms > 0


@pytest.mark.opens_gpu
def test_a_device_that_is_not_there_is_refused():
    import torch

    from tputfind.errors import BadRequest
    from tputfind.stages.timer import StageTimer

    with pytest.raises(BadRequest, match="there is no device cuda:99") as raised:
        StageTimer("cuda:99")

    assert raised.value.hint == f"torch sees {torch.cuda.device_count()}"


@pytest.mark.opens_gpu
def test_a_device_other_than_the_current_one_is_timed():
    import torch

    from tputfind.stages.timer import StageTimer

    if torch.cuda.device_count() < 2:
        pytest.skip("one device only")
    timer, following = StageTimer("cuda:1"), StageTimer()
    with torch.cuda.device(1):
        spin = spin_kernel()
    for _ in range(10):
        with timer.stage("spin"), following.stage("current"), torch.cuda.device(1):
            spin(5 * MS)
        with torch.cuda.device(1), following.stage("other"):
            spin(1 * MS)
    timer.finish()
    following.finish()

    assert torch.cuda.current_device() == 0
    assert by_name(timer)["spin"].device_ms == pytest.approx(5, rel=0.05)
    lines = by_name(following)
    assert lines["current"].device_ms < 1
    assert lines["other"].device_ms == pytest.approx(1, rel=0.1)


def test_timer_does_not_open_the_gpu_and_survives_its_death():
    """The test runs in its own process, because its last stage makes the process unusable."""
    script = (
        "import torch\n"
        "from tputfind.stages.timer import StageTimer\n"
        "timer = StageTimer()\n"
        "with timer.stage('early'):\n"
        "    torch.ones(8) * 2\n"
        "assert not torch.cuda.is_initialized()\n"
        "for number in range(3):\n"
        "    with timer.stage('work'):\n"
        "        x = torch.ones(8, device='cuda') * 2\n"
        "timer.finish()\n"
        "early, work = timer.stages()\n"
        "assert early.device_ms is None and early.unresolved == 0, early\n"
        "assert work.count == 3 and work.unresolved == 1 and work.device_ms > 0, work\n"
        "try:\n"
        "    with timer.stage('dies'):\n"
        "        x[torch.full((1,), 99, device='cuda')]\n"
        "        torch.cuda.synchronize()\n"
        "except RuntimeError as error:\n"
        "    assert 'assert' in str(error), error\n"
        "    print('died of its own')\n"
    )

    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=300)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "died of its own"
