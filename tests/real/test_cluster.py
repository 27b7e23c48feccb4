"""Measuring on a Ray cluster: real nodes of this machine, real processes, small models."""

import os
import shutil
import signal
import sys
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from support.command import ENVIRONMENT, run, run_program, start_command
from support.ray_cluster import ray_nodes

import tputfind
from tputfind.errors import OutOfTime
from tputfind.record.spec import read_spec
from tputfind.runners import cluster, jobs, on_node
from tputfind.runners.cluster import Cluster, RayExecutor
from tputfind.runners.sweep import Job
from tputfind.session.progress import Silent

pytestmark = pytest.mark.cluster

MODEL = """
from layers import block

def make():
    return block()

def waits():
    import os, time
    for _ in range(200):
        if not os.path.exists({go!r}):
            time.sleep(0.1)
    return block()

def stops_its_task():
    import psutil
    psutil.Process().parent().parent().suspend()
    return block()
"""
LAYERS = """
import os
from torch import nn

assert {folder!r} not in os.path.abspath(__file__), "it was to travel"

def block():
    return nn.Linear(16, 16)
"""
QUICK = ("--input-size", 16, "--device", "cpu", "--batch-sizes", "1,2", "--batches", 4, "--warmup", 1, "--processes", 1)


@pytest.fixture(scope="module")
def nodes():
    with ray_nodes("SMALL", "LARGE") as nodes:
        yield nodes


@pytest.fixture
def folder(tmp_path):
    """Provide a folder with a model that no other folder has; ``waits`` waits for the file ``go``, for 20 s."""
    (tmp_path / "net.py").write_text(MODEL.format(go=str(tmp_path / "go")))
    (tmp_path / "layers.py").write_text(LAYERS.format(folder=tmp_path.name))
    return tmp_path


def records(folder, name="results"):
    return [tputfind.load_record(path) for path in sorted((folder / name).glob("*.json"))]


def nodes_of(found):
    return sorted(record.command.rpartition(" node ")[2] for record in found)


def test_no_cluster_here_is_one_line(folder):
    """Run this test first: Ray finds any cluster of this machine, including the cluster of the other tests."""
    ran = run(folder, "net.py:make", "--ray")

    assert ran.status == 2
    assert ran.err.startswith("tputfind: --ray: there is no Ray cluster here: ")
    assert len(ran.err.splitlines()) == 1


def test_a_cluster_that_was_killed_is_one_line_at_once(folder):
    """Ray keeps the address and would try to join for minutes; no process listens on port 1."""
    kept = folder / "ray"
    kept.mkdir()
    (kept / "ray_current_cluster").write_text("127.0.0.1:1")

    ran = run(folder, "net.py:make", "--ray", environment=ENVIRONMENT | {"RAY_TMPDIR": str(folder)}, timeout_s=60)

    assert ran.status == 2
    assert ran.err.startswith("tputfind: --ray: there is no Ray cluster at 127.0.0.1:1: ")
    assert len(ran.err.splitlines()) == 1


def test_kinds_run_one_job_per_device_kind_with_local_model(nodes, folder):
    ran = run(
        folder, "net.py:make", *QUICK, "--ray", nodes.address, "--kinds", "--output", "fleet", "--save", "all.csv"
    )

    assert ran.status == 0, ran.err
    found = records(folder, "fleet")
    assert sorted(record.command.rpartition("  # ")[2] for record in found) == [
        "kind LARGE, node 127.0.0.4",
        "kind SMALL, node 127.0.0.3",
    ]
    assert all(record.spec.model == "net.py:make" and record.finished and not record.caveats for record in found)
    assert len((folder / "all.csv").read_text().splitlines()) == 5
    assert "LARGE 127.0.0.4" in ran.out, "the merged table tells them apart"
    assert "on 127.0.0.4: starts" in ran.err

    again = run(folder, "net.py:make", *QUICK, "--ray", nodes.address, "--kinds", "--resume", "fleet")
    assert again.status == 0, again.err
    assert again.err.count("is finished") == 2
    assert "starts" not in again.err
    assert [record.started for record in records(folder, "fleet")] == [record.started for record in found]


def test_devices_lists_the_nodes_and_the_driver_never_imports_torch(nodes, folder):
    ran = run(folder, "devices", "--ray", nodes.address)
    assert ran.status == 0, ran.err
    assert [line.split()[:4] for line in ran.out.splitlines()[2:]] == [
        ["127.0.0.3", "SMALL", "1", "CPU"],
        ["127.0.0.4", "LARGE", "1", "CPU"],
    ]

    arguments = ["net.py:make", *map(str, QUICK), "--ray", nodes.address, "--no-save"]
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('loaded:', 'torch' in sys.modules, 'ray' in sys.modules))\n"
        f"sys.argv[1:] = {arguments!r}\n"
        "from tputfind.commands import main\n"
        "main(prog_name='tputfind')\n"
    )
    done = run_program([sys.executable, "-c", program], folder)
    assert done.returncode == 0, done.stderr
    assert "loaded: False True" in done.stdout


def test_node_does_one_job_at_a_time_on_threads_of_torch(nodes, folder):
    """Ray releases the cores of a waiting task, so the records would wrongly claim that the node was idle."""
    dtypes = ("--dtype", "fp32,bf16,fp16,amp-bf16")
    ran = run(folder, "net.py:make", *QUICK, *dtypes, "--ray", nodes.address, "--output", "queue")

    assert ran.status == 0, ran.err
    at_work = {}
    for record in records(folder, "queue"):
        begun, ended = (datetime.fromisoformat(at) for at in (record.started, record.finished))
        at_work.setdefault(record.command.rpartition(" node ")[2], []).append((begun, ended))
    assert sum(map(len, at_work.values())) == 4
    for spans in at_work.values():
        for (_, ended), (begun, _) in pairwise(sorted(spans)):
            assert begun >= ended, "two at once"
    counts = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    here = int(run_program(counts).stdout)
    assert {record.environment.torch_threads for record in records(folder, "queue")} == {here}


def test_each_device_of_each_node_is_measured(nodes, folder):
    ran = run(folder, "net.py:make", *QUICK, "--ray", nodes.address, "--each", "--output", "each")

    assert nodes_of(records(folder, "each")) == ["127.0.0.3", "127.0.0.4"], ran.err


def test_killed_node_reruns_its_job_and_loses_no_result(nodes, folder):
    arguments = ("net.py:waits", "net.py:make", *QUICK, "--ray", nodes.address, "--output", "any")
    process = start_command(folder, *arguments)
    lost = None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if "net.py:waits" in line and "starts" in line and lost is None:
            lost = int(line.partition(" on 127.0.0.")[2].partition(":")[0])
            time.sleep(3)
            nodes.lose(lost)  # the job of the other node has ended by then, or keeps running
        if f"node 127.0.0.{lost}: was lost" in line:  # a run that ends before does not say so
            (folder / "go").touch()
    status = process.wait()

    out = process.stdout.read()
    assert status == 0, seen
    waited, quick = sorted(records(folder, "any"), key=lambda record: record.spec.model, reverse=True)
    (notice,) = [one for one in waited.notices if one.kind == "ran_again"]
    assert f"127.0.0.{lost}, 127.0.0." in notice.seen
    assert f"127.0.0.{lost}" in out, "the report names it"
    assert nodes_of([waited]) != [f"127.0.0.{lost}"]
    assert any(f"node 127.0.0.{lost}: was lost" in line for line in seen), seen
    assert quick.finished
    for number, kind in ((3, "SMALL"), (4, "LARGE")):
        if number == lost:
            nodes.add(number, kind)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_driver_keeps_results_and_resumes_the_rest(nodes, folder, number):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell would inherit it ignored
    arguments = ["net.py:make", "net.py:waits", *QUICK, "--ray", nodes.address]
    process = start_command(folder, *arguments, "--output", "fleet")
    said = ""
    for line in process.stderr:
        said += line
        if "is done" in line:
            process.send_signal(number)
    assert process.wait() == 130, said
    assert "--resume fleet" in said.splitlines()[-1]
    (kept,) = [record for record in records(folder, "fleet") if record.finished]
    assert kept.spec.model == "net.py:make"
    until_s = time.monotonic() + 20
    while any(_tasks(nodes)):
        assert time.monotonic() < until_s, "it went on on the nodes"
        time.sleep(0.2)

    if number == signal.SIGTERM:  # one signal is enough
        (folder / "go").touch()
        again = run(folder, *arguments, "--resume", "fleet")
        assert again.status == 0, again.err
        assert sorted(record.spec.model for record in records(folder, "fleet")) == ["net.py:make", "net.py:waits"]
        assert kept in records(folder, "fleet")


def _tasks(nodes):
    """Return the measuring processes on the nodes."""
    for process in (one for number in (3, 4) for one in nodes.running(number)):
        try:
            if "tputfind.worker.server" in " ".join(process.cmdline()):
                yield process
        except psutil.Error:
            continue


def test_node_of_another_version_is_reported(nodes, folder):
    package = Path(tputfind.__file__).parent
    shutil.copytree(package, folder / "older" / "tputfind", ignore=shutil.ignore_patterns("__pycache__"))
    version = folder / "older" / "tputfind" / "version.py"
    version.write_text(version.read_text().replace(tputfind.__version__, "0.0.1"))
    path = os.pathsep.join([str(folder / "older"), ENVIRONMENT["PYTHONPATH"]])
    nodes.add(6, "OLDER", env_vars={"PYTHONPATH": path})
    try:
        ran = run(folder, "net.py:make", *QUICK, "--ray", nodes.address, "--kinds", "--output", "fleet")
    finally:
        nodes.lose(6)

    assert ran.status == 0, ran.err
    assert sorted({record.tputfind for record in records(folder, "fleet")}) == ["0.0.1", tputfind.__version__]
    told = " ".join(ran.out.split())
    assert f"tputfind {tputfind.__version__} here, 0.0.1 there" in told or "tputfind 0.0.1 here" in told


def test_a_task_that_never_comes_back_is_given_up(nodes, folder, monkeypatch):
    monkeypatch.setattr(jobs, "GRACE_S", 3.0)
    monkeypatch.setattr(jobs, "SILENT_S", 2 * on_node.ALIVE_S)
    monkeypatch.chdir(folder)
    nodes.add(7, "STUCK")
    options = {"device": "cpu", "input_size": (16,), "batch_sizes": (1,), "batches": 4, "warmup": 1}
    specs = [read_spec(f"net.py:{name}", options) for name in ("stops_its_task", "make")]
    try:
        came = list(cluster.sweep(Job(specs, folder / "out", "here"), Cluster(nodes.address), Silent()))
    finally:
        for process in nodes.started():
            if process.status() == psutil.STATUS_STOPPED:
                process.kill()  # it would not end otherwise
        nodes.lose(7)

    late = next(one for one in came if one.record.spec == specs[0])
    assert isinstance(late.ended_by, OutOfTime), late
    assert "no word from 127.0.0." in str(late.ended_by)
    assert late.record.rows[0].failure is not None
    assert late.file.path is None
    other = next(one for one in came if one.record.spec == specs[1])
    assert other.ended_by is None
    assert other.record.rows[0].samples_per_s


class Pickled:
    def __reduce__(self):
        return os.abort, ()


def _returns_an_object(*_):
    return Pickled()


def _raises_an_object(*_):
    error = ValueError("x")
    error.payload = Pickled()
    raise error


@pytest.mark.parametrize("hostile", [_returns_an_object, _raises_an_object])
def test_pickles_from_a_node_are_never_unpickled_here(nodes, hostile, monkeypatch):
    monkeypatch.setattr(cluster.task, "task", hostile)
    with cluster._connect_ray(nodes.address, None) as ray:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        executor = RayExecutor(ray)
        executor.start(0, cluster.places_of(executor.nodes(), "cpu", "next")[0], b"")
        ends = []
        while not ends:
            ends = list(executor.poll_ends(1.0))

    assert ends[0].answer is None
    assert ends[0].why in ("its answer is not text", "Ray says TASK_EXECUTION_EXCEPTION")


def test_bad_input_is_one_line_and_its_exit_code(nodes, folder):
    here = ("--ray", nodes.address)
    for arguments, status, said in [
        (("net.py:make", "--ray", "127.0.0.2:1"), 2, "there is no Ray cluster at 127.0.0.2:1: "),
        (("net.py:make", "--ray", "[::1]:1"), 2, "there is no Ray cluster at [::1]:1: "),
        (("net.py:make", "--ray", "ray://127.0.0.2:10001"), 2, "Ray Client cannot do it"),
        (("--ray", "net.py:make"), 2, "no MODEL was named"),
        (("net.py:make", "--ray", "resnet18"), 2, "put --ray behind the models"),
        (("net.py:make", *here, "--device", "cuda"), 3, "nodes of the cluster has a GPU for --device cuda"),
        (("net.py:make", *here, "--device", "cuda:1"), 2, "with --ray, Ray chooses the device"),
        (("net.py:make", *here, "--each", "--kinds"), 2, "give one"),
        (("net.py:make", *here, "--resume", "net.py"), 2, "it names the folder"),
        (("net.py:make", "--kinds"), 2, "needs --ray"),
        (("devices", "--ray", "127.0.0.2:1"), 2, "there is no Ray cluster at 127.0.0.2:1: "),
    ]:
        ran = run(folder, *arguments)
        assert ran.status == status, (arguments, ran.err)
        assert said in ran.err.splitlines()[-1], (arguments, ran.err)
        assert "Traceback" not in ran.err


def test_refusal_of_a_node_is_one_line_with_its_exit_code(nodes, folder):
    ran = run(folder, "net.py:nothing", *QUICK, "--ray", nodes.address)

    assert ran.status == 2, ran.err
    assert ran.err.splitlines()[-1].startswith("tputfind: net.py has no 'nothing'")
    assert not list((folder / "results").glob("*"))


def test_ray_that_is_not_installed_is_named_with_its_extra(folder):
    (folder / "no" / "ray").mkdir(parents=True)
    (folder / "no" / "ray" / "__init__.py").write_text("raise ModuleNotFoundError('no ray', name='ray')")
    path = os.pathsep.join([str(folder / "no"), ENVIRONMENT["PYTHONPATH"]])
    ran = run(folder, "net.py:make", "--ray", environment=ENVIRONMENT | {"PYTHONPATH": path})

    assert ran.status == 2
    assert ran.err == "tputfind: --ray needs Ray, which is not installed (pip install 'tputfind[ray]')\n"
