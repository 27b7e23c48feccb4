"""A process that aborts, exits, is killed, hangs or writes rubbish costs one trial; none outlives the run."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time

import psutil
import pytest
import torch
from support.command import ENVIRONMENT, QUICK, command, run
from support.folders import MODELS

from tputfind.errors import OutOfTime
from tputfind.processes.children import Children
from tputfind.processes.messages import TryBatch
from tputfind.record.record import Trial
from tputfind.record.spec import read_spec
from tputfind.session import trials
from tputfind.session.inspect import inspect


def processes(*words: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if list(words) == _command_line(process)]


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize(
    ("factory", "limited_by", "message"),
    [
        ("aborts_above_5", "died", "killed by SIGABRT: the last words of this process"),
        ("exits_above_4", "died", "exited with status 3 before it had answered: three"),
        ("closes_every_file_above_4", "died", "it closed the pipe for its answers"),
        ("writes_rubbish_above_4", "died", "or wrote something else into it"),
        ("says_done_above_4", "died", "gave 0 answers to one question"),
        ("hangs_above_4", "timeout", "no answer within 2 s"),
        ("forks_and_waits", "died", "exited with status 4 before it had answered"),
        ("asks_for_an_exbibyte_above_4", "index", "you tried to allocate 1152921504606846976 bytes"),
    ],
)
def test_end_of_a_process_bounds_the_search_and_is_named(tmp_path, ask, factory, limited_by, message):
    asked = (f"{MODELS}/plain.py:{factory}", "--trial-timeout", "2s", "--granularity", 4)
    ran = ask(tmp_path, *asked, *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.edge.largest_batch, record.edge.fails_at) == (4, 8)
    assert record.edge.limited_by == limited_by
    failures = {trial.batch_size: trial.failure for trial in record.trials}
    assert message in failures[8].message
    assert [(row.batch_size, row.status) for row in record.rows] == [(4, "ok")]
    assert 8 in {size for notice in record.notices for size in notice.batch_sizes}
    assert not processes("sleep", "86397")


def test_cublas_error_at_one_batch_size_is_a_kernel_limit(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:fails_in_cublas_above_4", *QUICK)

    assert ran.status == 0, ran.err
    assert "4, kernel limit at batch 5: cuBLAS: execution failed" in " ".join(ran.out.split())
    edge, failed = ran.record().edge, [trial for trial in ran.record().trials if trial.failure is not None]
    assert (edge.largest_batch, edge.fails_at, edge.limited_by) == (4, 5, "kernel")
    assert {trial.failure.kind for trial in failed} == {"kernel_limit"}
    assert "execution failed (RuntimeError: CUDA error: CUBLAS_STATUS_EXEC" in failed[0].failure.message
    assert "num_batches)`" in failed[0].failure.traceback


def test_an_error_of_cublas_that_does_not_come_back_is_no_limit(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:fails_in_cublas_once_above_4", "--max-batch", 16, *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.edge.largest_batch, record.edge.limited_by) == (16, "cap")
    assert [trial.failure for trial in record.trials if trial.failure is not None] == []
    assert (tmp_path / "failures").read_text().split()[:2] == ["16", "16"]


def test_an_error_of_cublas_at_the_smallest_batch_is_the_models_own(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:fails_in_cublas", "--quiet", *QUICK)

    assert ran.status == 5
    assert "fails at batch 1: cuBLAS: execution failed" in ran.err
    assert "in fail_in_cublas" in ran.err


def test_inputs_filling_host_memory_are_reported(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:inputs_are_killed_above_4", *QUICK)

    shown = " ".join(ran.out.split())
    assert "4, the host's memory ran out at batch 5" in shown
    assert "failed in a trial: killed by SIGKILL while it" in shown
    assert "make the inputs in less host memory" in shown
    failed = [trial for trial in ran.record().trials if trial.failure is not None]
    assert {trial.failure.message for trial in failed} == {
        f"killed by SIGKILL while it made the inputs of batch {trial.batch_size} on the host" for trial in failed
    }
    assert {trial.failure.kind for trial in failed} == {"host_memory"}


def test_process_finishing_too_early_has_died(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:says_done_later", "--batch-sizes", "2", "--quiet", *QUICK)

    assert ran.status == 5
    assert "or wrote something else into it" in ran.err
    assert "Traceback" not in ran.err


def test_a_process_that_is_killed_from_outside_costs_one_trial(tmp_path, ask):
    """The kernel kills a process the same way if the machine runs out of memory."""
    killed = []

    def kill_all_who_wait():
        while not over.wait(0.02):
            try:
                pid = int((tmp_path / "victim").read_text())
                (tmp_path / "victim").unlink()
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            except (OSError, ValueError):
                continue

    over = threading.Event()
    killer = threading.Thread(target=kill_all_who_wait)
    killer.start()
    try:
        ran = ask(tmp_path, f"{MODELS}/plain.py:waits_to_be_killed_above_4", *QUICK)
    finally:
        over.set()
        killer.join()

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.edge.largest_batch, record.edge.limited_by) == (4, "died")
    died = [trial.batch_size for trial in record.trials if trial.failure is not None]
    assert len(killed) == len(died) == len(set(died)) >= 1


@pytest.mark.parametrize("factory", ["hangs", "hangs_when_it_is_made"])
def test_hanging_model_ends_after_one_trial_with_advice(tmp_path, ask, factory):
    ran = ask(tmp_path, f"{MODELS}/plain.py:{factory}", "--trial-timeout", "1s", "--quiet")

    assert ran.status == 5
    assert "no answer within 1 s" in ran.err
    assert "raise --trial-timeout" in ran.err


def test_a_row_may_take_longer_than_a_trial_may(tmp_path, ask):
    """The timeout limits silence: a child announces how long its next stage will take."""
    ran = ask(tmp_path, f"{MODELS}/plain.py:sleeps", "--trial-timeout", "2s", "--batch-sizes", 40, *QUICK)

    (row,) = ran.record().rows
    assert row.status == "ok"
    assert row.seconds > 2


def test_subprocesses_of_a_model_end_with_its_trial(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:leaves_processes", "--max-batch", 2, *QUICK)

    assert ran.status == 0, ran.err
    assert not processes("sleep", "86398")


def test_an_operator_without_a_kernel_is_named_so_after_one_trial(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:has_no_kernel", "--dtype", "fp16", "--quiet")

    assert ran.status == 3
    assert "Low precision dtypes not supported" in ran.err
    assert "try --dtype amp-fp16" in ran.err


def test_timeout_of_larger_batch_follows_step_time_instead_of_start(tmp_path, children, monkeypatch):
    (tmp_path / "model.py").write_text(
        "import time, torch\n"
        "class Sleeps(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        time.sleep(600 if len(x) > 1000 else 0)\n"
        "        return x\n"
        "def make():\n"
        "    time.sleep(0.5)\n"
        "    return Sleeps(), lambda n: torch.randn(n, 2)\n"
    )
    monkeypatch.setattr(trials, "LEAST_TIMEOUT_S", 1.0)
    spec = read_spec(f"{tmp_path / 'model.py'}:make", {"device": "cpu"})
    asked = trials.TrialRunner(children, spec, inspect(spec, children).environment)
    small = asked.try_batch(61, None, memory_limit_bytes=None, taken=[])
    large = asked.try_batch(3050, None, memory_limit_bytes=None, taken=[small])

    assert small.failure is None
    assert large.failure.kind == "timeout"
    assert large.seconds < 20 * small.seconds  # for 50 times the samples, each of which takes hardly any time


def test_slow_import_of_a_model_happens_once_for_all_processes(tmp_path):
    (tmp_path / "model.py").write_text(
        "import sys\n"
        "with open('imported.txt', 'a') as file: file.write(f\"{'torchvision' in sys.modules} \")\n"
        "import torchvision\n"
        "from torch import nn\n"
        "def make(): return nn.Identity()\n"
    )

    ran = run(tmp_path, "model.py:make", "--input-size", 4, "--max-batch", 4, "--device", "cpu", *QUICK)

    assert ran.status == 0, ran.err
    first, *others = (tmp_path / "imported.txt").read_text().split()
    assert first == "False"
    assert len(others) == 3  # one for each batch size, which continues as its row
    assert set(others) == {"True"}


def test_garbage_collections_leave_out_what_the_server_imported(tmp_path, ask):
    (tmp_path / "model.py").write_text(
        "import gc\n"
        "from torch import nn\n"
        f"with open('{tmp_path}/frozen.txt', 'w') as file: print(gc.get_freeze_count(), file=file)\n"
        "def make(): return nn.Identity()\n"
    )

    ran = ask(tmp_path, f"{tmp_path}/model.py:make", "--input-size", 4, "--batch-sizes", 1, "--device", "cpu", *QUICK)

    assert ran.status == 0, ran.err
    assert int((tmp_path / "frozen.txt").read_text()) > 10**5  # torch's own


@pytest.fixture
def clone(tmp_path):
    """Write a model with a package of its own that has the name of an installed one; return its name."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "torchvision.py").write_text("from torch import nn\nMINE = nn.Identity\n")
    (tmp_path / "mine" / "model.py").write_text("import torchvision\ndef make(): return torchvision.MINE()\n")
    return "mine/model.py:make"


def test_compared_models_have_the_packages_of_their_own(tmp_path, clone):
    (tmp_path / "theirs.py").write_text("import torchvision\ndef make(): return torchvision.ops.Permute([0, 1])\n")
    asked = (clone, "theirs.py:make", "--input-size", 4, "--device", "cpu", "--budget", "30s")
    ran = run(tmp_path, "compare", "--run", *asked)

    assert ran.status == 0, ran.err


def test_package_of_an_earlier_model_instead_of_the_own_is_refused(tmp_path, clone):
    ran = run(tmp_path, "resnet18", clone, "--max-batch", 1, "--input-size", "3x32x32", "--device", "cpu", *QUICK)

    assert "mine/model.py:make has its own torchvision, and an earlier model of this run imported" in ran.err


def test_a_process_start_costs_less_than_a_second(tmp_path, ask):
    """A trial is one fork without imports; this model does no work."""
    record = ask(tmp_path, f"{MODELS}/plain.py:keyword_inputs", "--max-batch", 64, *QUICK).record()

    seconds = sorted(trial.seconds for trial in record.trials)
    print(f"a trial of a model that does nothing: {[round(s, 3) for s in seconds]} s")
    assert seconds[len(seconds) // 2] < 1
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", record.tputfind)


def folders_of(temporary) -> list[str]:
    return [path.name for path in temporary.glob("tputfind-*")]


def test_run_killed_at_any_moment_leaves_no_process_or_folder(tmp_path):
    """From the first import until the server is up, which removes the folder after the parent's end."""
    environment = ENVIRONMENT | {"TMPDIR": str(tmp_path)}
    for tenths in (0, 2, 7, 16):
        asked = [*command(), f"{MODELS}/plain.py:sleeps", "--no-save", "--quiet"]
        process = subprocess.Popen(asked, cwd=tmp_path, env=environment)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(tenths / 10)
        process.kill()
        process.wait()
    servers = [one for one in psutil.process_iter() if "tputfind.worker.server" in " ".join(_command_line(one))]
    _, alive = psutil.wait_procs([one for one in servers if _has(one, "TMPDIR", str(tmp_path))], timeout=60)

    assert not alive
    assert folders_of(tmp_path) == []


def _has(process: psutil.Process, name: str, value: str) -> bool:
    try:
        return process.environ().get(name) == value
    except psutil.Error:
        return False


def test_folder_of_killed_server_is_removed_by_its_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Children() as children:
        children.preload("json")
        children._server.kill()
        children._server.wait()
        assert folders_of(tmp_path) == [children._cache.name]

    assert folders_of(tmp_path) == []


@pytest.mark.parametrize("made", ["tputfind.Step(run, make)", "(run, make)", "(torch.nn.Linear(4, 4), make)"])
def test_inspection_calls_a_factory_once(tmp_path, children, made):
    (tmp_path / "own.py").write_text(
        "from pathlib import Path\n"
        "import torch, tputfind\n"
        "run = lambda batch: batch.sum()\n"
        "make = lambda size: torch.ones(size, 4)\n"
        "def factory():\n"
        "    with Path(__file__).with_name('calls').open('a') as file: file.write('.')\n"
        "    torch.backends.mkldnn.enabled = False\n"
        f"    return {made}\n"
    )
    found = inspect(read_spec(f"{tmp_path}/own.py:factory", {"device": "cpu"}), children)

    assert (tmp_path / "calls").read_text() == "."
    assert found.own_step == ("run" in made)
    assert found.input_shape == "4"
    assert [setting.name for setting in found.settings] == ["torch.backends.mkldnn.enabled"]


def test_slow_imports_of_a_step_are_there_for_later_processes(tmp_path):
    ran = run(tmp_path, f"{MODELS}/plain.py:imports_once", "--batch-sizes", "1,2", "--device", "cpu", *QUICK)

    first, second = ran.record().rows
    assert first.failure is None
    assert "imported before" in second.failure.message


def test_import_in_the_server_ends_with_the_budget(tmp_path, monkeypatch):
    (tmp_path / "takes_a_minute.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Children() as children:
        children.preload("json")
        children.end_within(1)
        begin_s = time.monotonic()
        with pytest.raises(OutOfTime):
            children.preload("takes_a_minute")
        assert time.monotonic() - begin_s < 20


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch has no CUDA, whose driver no fork survives")
def test_children_open_the_device_although_an_import_has_opened_it(tmp_path, monkeypatch):
    (tmp_path / "opens").mkdir()
    (tmp_path / "opens" / "__init__.py").write_text("")
    (tmp_path / "opens" / "early.py").write_text("import torch\ntorch._C._cuda_getDeviceCount()\n")
    (tmp_path / "own.py").write_text(
        "import torch, opens.early\n"
        "class Own(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        if torch.cuda._is_in_bad_fork(): raise RuntimeError('cannot open the device')\n"
        "        return x\n"
        "factory = lambda: (Own(), lambda size: torch.ones(size, 4))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with Children() as children:
        assert children.preload("opens") == ""
        assert children.preload("opens.early") == ""
        spec = read_spec(f"{tmp_path}/own.py:factory", {"device": "cpu"})
        assert children.ask_one(TryBatch(spec, 4), Trial, 60.0).failure is None
