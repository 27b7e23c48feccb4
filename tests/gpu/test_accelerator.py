"""The accelerator backend gives the same results on a GPU as the CUDA backend."""

import json
import subprocess
import sys

import msgspec
import pytest
from support import contract
from support.command import QUICK, measured, run

from tputfind.record.clocks import Methods, figures_of

BOTH = ("cuda", "accelerator")


def test_gpu_as_accelerator_fulfils_the_device_contract():
    contract.check("accelerator")


@pytest.mark.parametrize("model", ["resnet18", "vit_b_16"])
def test_the_edge_under_a_limit_is_the_same_to_the_sample(tmp_path, model):
    """Both runs use the same search: if fitting and failing sizes alternate, another search may find another edge."""
    asked = (model, "--dtype", "fp16", "--memory-limit", "4GiB", "--search", "bisect", *QUICK)
    records = [measured(tmp_path / name, *asked, "--device", name) for name in BOTH]
    print([record.edge for record in records], records[1].environment)

    edges = {record.edge.largest_batch for record in records}
    assert len(edges) == 1, edges
    assert {record.edge.limited_by for record in records} == {"memory"}


@pytest.mark.parametrize("model", ["resnet18", "resnet50", "mobilenet_v3_large"])
def test_the_rates_are_the_same_within_half_a_percent(tmp_path, model):
    """CUDA is timed before and after, because clocks drift. No model here is limited by the power of the card."""
    asked = (model, "--dtype", "fp16", "--batch-sizes", 256, "--device")
    before, of_any, after = (
        measured(tmp_path / str(number), *asked, name).rows[0].samples_per_s
        for number, name in enumerate(("cuda", "accelerator", "cuda"))
    )
    print(model, before, of_any, after)

    assert of_any == pytest.approx((before + after) / 2, rel=0.005)


def test_record_shows_events_agreeing_with_host_clock(tmp_path):
    record = measured(tmp_path / "one", "resnet18", "--batch-sizes", 8, *QUICK, "--device", "accelerator")
    environment = record.environment
    print(environment.clock_test)

    assert environment.clock == "events"
    assert environment.can.events
    assert environment.can.memory_peaks
    assert environment.clock_test.findings == ()
    assert environment.clock_test.events_ms == pytest.approx(environment.clock_test.host_ms, rel=0.15)
    assert environment.clock_test.mark_ms < 0.05
    assert environment.memory_total_bytes > 2**30
    (row,) = record.rows
    assert row.peak_reserved_bytes >= row.peak_allocated_bytes > 0


def test_the_self_test_takes_less_than_a_twentieth_of_a_second():
    """The time counts once the device is open and its first kernels are loaded: every run pays for that."""
    script = (
        "import json, time\n"
        "from tputfind.worker.devices import open_device\n"
        "seconds = []\n"
        "for _ in range(5):\n"
        "    device = open_device('accelerator')\n"
        "    start = time.perf_counter()\n"
        "    device.test_clocks()\n"
        "    seconds.append(time.perf_counter() - start)\n"
        "print(json.dumps(seconds))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    seconds = json.loads(ended.stdout)
    print("self-test, seconds:", seconds)

    assert sorted(seconds[1:])[1] < 0.05


def test_clocks_on_accelerator_uses_events_and_host_clock(tmp_path):
    asked = ("resnet18", "--dtype", "fp16", "--batch-size", 512, "--repeats", 12, "--drop", 2)
    ran = run(tmp_path, "clocks", *asked, "--device", "accelerator", "--save", "all.json")
    print(ran.out)
    assert ran.status == 0, ran.err
    found = msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Methods)

    whole_ms = figures_of(found.cells, "host_clock_synchronised").mean_ms
    for way in ("events_waited", "events_at_end"):
        assert figures_of(found.cells, way).mean_ms == pytest.approx(whole_ms, rel=0.1), way


@pytest.mark.parametrize(
    ("options", "status", "told"),
    [
        (("--mode", "cudagraph"), 3, "has no CUDA graphs"),
        (("--device", "accelerator:99"), 3, "there is no accelerator:99 here"),
        (("--device", "npu"), 3, "torch_npu is not installed"),
    ],
)
def test_unsupported_accelerator_request_is_refused_in_one_line(tmp_path, options, status, told):
    ran = run(tmp_path, "resnet18", "--device", "accelerator", *options, "--quiet")

    assert ran.status == status
    assert told in ran.err
    assert len(ran.err.splitlines()) == 1
