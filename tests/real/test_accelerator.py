"""The accelerator backend on a real torch device that computes on the CPU of this machine: see tests/backend."""

import os
import shutil
import subprocess
import sys

import msgspec
import pytest
from support import backend, contract
from support.command import ENVIRONMENT, QUICK, Kept, measured, run
from support.folders import MODELS

from tputfind.record.clocks import Methods, Pipeline, figures_of, stage_figures
from tputfind.record.files import load_records

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="building a backend needs a C++ compiler")
MIB = 2**20
ONE_ROW = ("--batch-sizes", 2, "--image-size", 64, *QUICK)


@pytest.fixture(scope="module")
def installed():
    """Return the environment of a process that can import the backend by name."""
    searched = os.pathsep.join([str(backend.built()), ENVIRONMENT["PYTHONPATH"]])
    return ENVIRONMENT | {"PYTHONPATH": searched, "HOSTDEV_MEMORY_MIB": "1024"}


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Run the command in this process, with one server that can import the backend by name; ``lie`` names a defect."""
    variables = {"HOSTDEV_MEMORY_MIB": "1024"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(backend.built()), *sys.path])
        kept = Kept(tmp_path_factory.mktemp("server") / "place.json")

        def found(folder, *arguments, lie=""):
            return kept.run(folder, *arguments, variables=variables | {"HOSTDEV_LIE": lie})

        yield found
    kept.end()


@pytest.fixture(scope="module")
def autoloaded(installed, tmp_path_factory):
    """Return the environment of a process in which torch autoloads the backend by its entry point."""
    folder = tmp_path_factory.mktemp("metadata")
    metadata = folder / "torch_hostdev-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-hostdev\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\ntorch_hostdev = torch_hostdev:autoload\n")
    return installed | {"PYTHONPATH": os.pathsep.join([str(folder), installed["PYTHONPATH"]])}


def test_lengths_stay_on_the_host_if_the_model_needs_them_there(tmp_path, ask):
    asked = (f"{MODELS}/other_fields.py:lengths_on_the_host", "--device", "hostdev", "--max-batch", 100, *QUICK)
    ran = ask(tmp_path, *asked)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.spec.host_lengths, record.spec.lengths_input) == (True, 2)
    assert record.edge.largest_batch == 100
    (notice,) = [notice for notice in record.notices if notice.kind == "host_lengths"]
    assert "1D CPU int64 tensor" in notice.cause


@pytest.mark.parametrize(
    ("name", "lie", "finds"),
    [
        ("hostdev", "", ""),
        ("hostdev:0", "counters", "its allocator does not count a tensor that is there"),
        ("hostdev:0", "no_events", "it has no events with times (RuntimeError)"),
    ],
)
def test_hostdev_fulfils_the_device_contract_with_the_capabilities_that_it_has(installed, name, lie, finds):
    contract.check(name, 896, installed | {"HOSTDEV_LIE": lie}, finds)


@pytest.mark.parametrize(
    ("options", "memory_mib", "largest"),
    [((), 1024, 255), (("--memory-limit", "100MiB"), 100, 24)],
)
def test_edge_is_at_the_end_of_memory(tmp_path, ask, options, memory_mib, largest):
    asked = (f"{MODELS}/plain.py:four_mebibytes", "--device", "hostdev", *options, *QUICK)
    ran = ask(tmp_path, *asked)
    assert ran.status == 0, ran.err
    record = ran.record()

    assert (record.edge.largest_batch, record.edge.fails_at) == (largest, largest + 1)
    assert record.edge.limited_by == "memory"
    last = record.rows[-1]
    assert last.batch_size == largest
    assert 4 * MIB * largest <= last.peak_allocated_bytes <= memory_mib * MIB
    refused = next(trial.failure for trial in record.trials if trial.batch_size == largest + 1)
    assert refused.kind == "out_of_memory"
    assert "HOSTDEV out of memory" in refused.message


def test_peak_of_a_compiled_step_under_a_limit_is_that_of_its_steps(tmp_path, ask):
    asked = (f"{MODELS}/plain.py:four_mebibytes", "--device", "hostdev", "--memory-limit", "100MiB")
    ran = ask(tmp_path, *asked, "--mode", "compile:eager", "--batch-sizes", 8, *QUICK)

    assert ran.status == 0, ran.err
    assert ran.record().rows[0].peak_allocated_bytes >= 8 * 4 * MIB


def test_inputs_too_large_for_the_host_are_host_memory_limit(tmp_path, ask):
    asked = (f"{MODELS}/plain.py:inputs_fill_the_host_above_4", "--device", "hostdev", *QUICK)
    ran = ask(tmp_path, *asked)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.edge.largest_batch, record.edge.fails_at, record.edge.limited_by) == (4, 5, "host_memory")
    assert "4, the host's memory ran out at batch 5" in " ".join(ran.out.split())
    refused = next(trial.failure for trial in record.trials if trial.batch_size == 5)
    assert refused.message.startswith("the host's memory ran out (RuntimeError: ")
    assert "in small_inputs" in refused.traceback


def test_whole_model_runs_and_its_record_names_device_and_clock(tmp_path, ask):
    ran = ask(tmp_path, "resnet18", "--device", "hostdev:1", *ONE_ROW)
    assert ran.status == 0, ran.err
    record = ran.record()
    environment = record.environment

    assert (environment.device, environment.device_name) == ("hostdev:1", "CPU behind a backend of its own")
    assert (environment.memory_total_bytes, environment.memory_free_bytes) == (1024 * MIB, 1024 * MIB)
    assert (environment.clock, environment.can.events, environment.clock_test.findings) == ("events", True, ())
    assert 0 < environment.clock_test.events_ms <= 1.02 * environment.clock_test.host_ms + 0.05
    (row,) = record.rows
    assert row.output.result in ("right", "small")  # of random weights
    assert row.peak_allocated_bytes > 40 * MIB  # its parameters
    assert len(row.device_ms) == 10


@pytest.mark.parametrize("name", ["four_mebibytes_a_sample", "step_of_its_own_model"])
def test_memory_of_a_row_is_without_that_of_rows_before_it(tmp_path, ask, name):
    asked = (f"{MODELS}/plain.py:{name}", "--device", "hostdev", *QUICK, "--overwrite", "--save", "rows.json")
    peaks = []
    for sizes in ("1,2,4,8", "8"):
        ran = ask(tmp_path, *asked, "--batch-sizes", sizes)
        assert ran.status == 0, ran.err
        (record,) = load_records(tmp_path / "rows.json")
        peaks.append(record.row(8).peak_allocated_bytes)

    assert peaks[0] == pytest.approx(peaks[1], abs=MIB)


@pytest.mark.parametrize("device", ["hostdev", "cpu"])
def test_row_of_few_batches_holds_last_output_during_the_next(tmp_path, ask, device):
    """Like a loop of ``output = model(inputs)``, and like a trial."""
    few = ("--batch-sizes", 1, "--batches", 1, "--warmup", 1, "--processes", 1, "--max-seconds", 1)
    (row,) = ask(tmp_path, f"{MODELS}/plain.py:answers", "--device", device, *few).record().rows

    assert len(row.device_ms) < 3
    # A step also maps some 13 MiB of torch's code, which a CPU counts.
    assert 2 * 64 * MIB <= row.peak_allocated_bytes < 2.4 * 64 * MIB


def test_training_runs_too(tmp_path, ask):
    asked = ("resnet18", "--device", "hostdev", "--phase", "train", *ONE_ROW)
    ran = ask(tmp_path, *asked)

    assert ran.status == 0, ran.err
    assert ran.record().rows[0].output.result == "loss"


@pytest.mark.parametrize(
    ("lie", "clock", "told"),
    [
        ("no_events", "host", "it has no events with times"),
        ("host_events", "host", "its events read"),
        ("negative", "host", "spans between its events are negative"),
        ("constant", "host", "its events read 1 ms of what takes"),
        ("memory", "events", "its allocator goes on counting a tensor that is gone"),
        ("counters", "events", "its allocator does not count a tensor that is there"),
    ],
)
def test_device_defects_are_detected_avoided_and_reported(tmp_path, ask, lie, clock, told):
    ran = ask(tmp_path, f"{MODELS}/plain.py:mebibytes", "--device", "hostdev", *ONE_ROW[:2], *QUICK, lie=lie)
    assert ran.status == 0, ran.err
    record = ran.record()
    environment = record.environment

    assert environment.clock == clock
    assert len(environment.clock_test.findings) == 1
    assert environment.clock_test.findings[0].startswith(told)
    assert environment.can.events == (clock == "events")
    assert environment.can.memory_peaks == (lie not in ("memory", "counters"))
    (row,) = record.rows
    assert all(span_ms > 0 for span_ms in row.device_ms)
    assert (row.peak_allocated_bytes is None) == (lie in ("memory", "counters"))
    assert told in " ".join(ran.out.split())


def test_a_device_that_does_not_wait_is_not_measured(tmp_path, ask):
    ran = ask(tmp_path, "resnet18", "--device", "hostdev", "--quiet", *ONE_ROW, lie="synchronize")

    ran.check_refused(3, "hostdev:0 cannot be timed: synchronize returns before the device has done its work")


def test_by_the_host_clock_a_row_takes_as_long_as_its_work(tmp_path, ask):
    """10 ms a sample, and 4 samples."""
    asked = (f"{MODELS}/plain.py:sleeps", "--device", "hostdev", "--batch-sizes", 4, *QUICK)
    record = ask(tmp_path, *asked, lie="no_events").record()

    (row,) = record.rows
    assert row.timings[0].one_window
    assert min(row.device_ms) == pytest.approx(40, rel=0.1)


def test_device_without_counters_refuses_a_memory_limit(tmp_path, ask):
    ran = ask(tmp_path, "resnet18", "--device", "hostdev", "--memory-limit", "100MiB", "--quiet", lie="counters")

    assert ran.status == 2
    assert "--memory-limit: hostdev:0 cannot be held to less memory than it has" in ran.err


@pytest.mark.parametrize(
    ("options", "status", "told"),
    [
        (("--device", "npu"), 3, "there is no npu here: torch_npu is not installed"),
        (("--device", "hpu"), 3, "there is no hpu here: habana_frameworks.torch is not installed"),
        (("--device", "hostdev:3"), 3, "there is no hostdev:3 here: torch sees 2 HOSTDEV device(s), counted from 0"),
        (("--device", "xpu:3"), 3, "there is no xpu:3 here"),
        (("--device", "hostdev", "--mode", "cudagraph"), 3, "--mode cudagraph: hostdev:0 has no CUDA graphs"),
        (("--device", "hostdev", "--dtype", "tf32"), 3, "TF32 is a format of NVIDIA GPUs"),
        (("--device", "hostdev", "--transfer", "h2d"), 2, "no copies between host and device are timed"),
        (("--device", "hostdev", "--allocator", "native"), 2, "only --device cuda has segments to choose"),
        (("--device", "hostdev", "--memory-limit", "3GiB"), 2, "is more than the 1.0 GiB that hostdev:0 has"),
        (("--device", "nodev"), 2, "'nodev' is not one of auto, cpu, cpu:0-3, cuda"),
    ],
)
def test_impossible_device_request_is_refused_in_one_line(tmp_path, ask, options, status, told):
    ask(tmp_path, "resnet18", *options, "--quiet").check_refused(status, told)


def test_broken_device_package_is_reported_in_one_line(tmp_path, installed):
    (tmp_path / "torch_broken.py").write_text("raise OSError('libbroken.so: cannot open shared object file')\n")
    searched = os.pathsep.join([str(tmp_path), installed["PYTHONPATH"]])
    ran = run(tmp_path, "resnet18", "--device", "broken", "--quiet", environment=installed | {"PYTHONPATH": searched})

    ran.check_refused(3, "there is no broken here: torch_broken does not import: libbroken.so")


def test_autoloaded_device_is_listed_and_chosen_by_auto(tmp_path, autoloaded):
    listed = run(tmp_path, "devices", environment=autoloaded)
    record = measured(tmp_path, f"{MODELS}/plain.py:mebibytes", *ONE_ROW[:2], *QUICK, environment=autoloaded)

    lines = [line.split() for line in listed.out.splitlines()]
    name = ["CPU", "behind", "a", "backend", "of", "its", "own"]
    memory = ["1.0", "GiB", "1.0", "GiB"]
    assert lines[1:3] == [["hostdev:0", *name, *memory], ["hostdev:1", *name, *memory]]
    assert record.environment.device == "hostdev:0"


@pytest.mark.parametrize("lie", ["", "no_events"])
def test_clocks_times_a_batch_by_whatever_clocks_it_has(tmp_path, ask, lie):
    asked = ("clocks", f"{MODELS}/plain.py:sleeps", "--device", "hostdev", "--batch-size", 2, "--repeats", 6)
    few = ("--drop", 1, "--warmup", 1, "--save", "all.json")
    ran = ask(tmp_path, *asked, *few, lie=lie)
    assert ran.status == 0, ran.err
    found = msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Methods)

    for way in ("host_clock_synchronised", "submission_and_device", "device_span"):
        assert figures_of(found.cells, way).median_ms == pytest.approx(20, rel=0.25), way
    assert (figures_of(found.cells, "events_at_end") is None) == (lie == "no_events")
    assert "On the CPU" not in ran.out


def test_clocks_times_a_pipeline_on_it(tmp_path, ask):
    model = f"{MODELS}/plain.py:sleeps"
    few = ("--batch-size", 2, "--repeats", 6, "--drop", 1, "--warmup", 1, "--save", "all.json")
    ran = ask(tmp_path, "clocks", model, model, "--device", "hostdev", *few)
    assert ran.status == 0, ran.err
    found = msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Pipeline)

    for way in ("synchronised", "events"):
        assert stage_figures(found.cells, "first", way).median_ms == pytest.approx(20, rel=0.25), way


def test_a_stage_timer_marks_its_stream(installed):
    script = (
        "import torch, torch_hostdev\n"
        "from tputfind.stages.timer import StageTimer\n"
        "timer = StageTimer()\n"
        "x = torch.ones(2**20, device='hostdev')\n"
        "for _ in range(3):\n"
        "    with timer.stage('adds'):\n"
        "        for _ in range(100):\n"
        "            x.add_(1)\n"
        "timer.finish()\n"
        "(line,) = timer.stages()\n"
        "assert (line.count, line.unresolved) == (3, 0), line\n"
        "assert line.device_ms > line.enqueue_ms > 0, line\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, env=installed)

    assert ended.returncode == 0, ended.stderr
