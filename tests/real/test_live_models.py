"""Modules, and functions that build them, passed to ``find`` from a script, a notebook or a test."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from functools import partial

import cloudpickle
import pytest
import torch
from models import plain
from support.command import ENVIRONMENT, run_program
from torch import nn

import tputfind
from tputfind.errors import BadRequest, ModelFailed

QUICK = {"device": "cpu", "batches": 10, "warmup": 1, "processes": 1}
ONE = QUICK | {"batch_sizes": [1, 8]}

# Other processes cannot import a test file by name: its classes travel by value, like those of a script.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Provide a folder for temporary files, and check that it is empty at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))  # of this process, whose tests compile
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def script(folder, program):
    """Return the output of a program that Python reads from standard input, so its functions have no file."""
    environment = {**ENVIRONMENT, "TMPDIR": os.environ["TMPDIR"]}
    done = run_program([sys.executable, "-"], folder, environment, input=program)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Knows(nn.Module):
    """Fails if its weights differ from those in the user's process."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.known = self.layers[0].weight.sum().item()

    def forward(self, x):
        assert self.layers[0].weight.sum().item() == self.known
        return self.layers(x)


def test_live_module_is_measured_with_its_weights_and_unchanged(kept):
    module = Knows().train()
    module(torch.randn(4, 8)).sum().backward()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    gradients = [parameter.grad for parameter in module.parameters()]

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # without a GPU, no warning about its memory
        record = kept.find(module, inputs=lambda batch: torch.randn(batch, 8), **ONE)

    assert (record.spec.model, record.input_shape, record.parameters) == ("Knows (live)", "8", 88)
    assert [row.output.result for row in record.rows] == ["small", "right"]
    assert len(record.source_sha256) == 64
    assert record.command.startswith("find Knows (live) ")
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(one.grad is kept for one, kept in zip(module.parameters(), gradients, strict=True))


def keywords(batch):
    return {"left": torch.randn(batch, 3), "right": torch.ones(batch, 3)}


class Adds(nn.Module):
    def forward(self, left, right):
        return left + right


@pytest.mark.parametrize(
    ("model", "given", "name"),
    [
        (Adds, {"inputs": keywords}, "Adds (live)"),
        (partial(nn.Embedding, 9, embedding_dim=2), {"input": [":int64:Bx5:9"]}, "Embedding (live)"),
    ],
    ids=["a class", "a partial"],
)
def test_module_builder_is_called_in_the_measuring_processes(model, given, name, kept):
    record = kept.find(model, **given, **ONE)

    assert record.spec.model == name
    assert [row.status for row in record.rows] == ["ok", "ok"]


def test_closure_travels_with_its_variables(kept):
    width, table = 5, torch.arange(5.0)

    def build():
        layer = nn.Linear(width, 2)
        layer.register_buffer("table", table)
        return layer

    record = kept.find(build, inputs=lambda batch: table.expand(batch, width).clone(), phase="train", **ONE)

    assert record.spec.model.endswith("build (live)")
    assert record.parameters == 12
    assert [row.output.result for row in record.rows] == ["loss", "loss"]


CELL = """
import torch
from torch import nn
WIDTH = 6
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
    def forward(self, x):
        return self.inner(x)
class Inner(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, 2)
def inputs(batch):
    return {"x": torch.randn(batch, WIDTH)}
"""
FIND = "record = tputfind.find(%s, inputs=inputs, device='cpu', batch_sizes=[1, 2], batches=10, processes=1)\n"
SAY = "print(record.spec.model, record.input_shape, [row.status for row in record.rows], module.training)\n"


def test_objects_of_scripts_and_notebook_cells_travel_by_value(tmp_path):
    program = (
        f"import tputfind, __main__\n{CELL}module = Net()\n{FIND % 'module'}{SAY}"
        f"exec(compile({CELL!r}, '<ipython-input-1-5f2b>', 'exec'), vars(__main__))\n"
        f"module = Net()\n{FIND % 'lambda: Net()'}{SAY}"
    )

    ran = " (live) 6 ['ok', 'ok'] True\n"
    assert script(tmp_path, program) == f"Net{ran}<lambda>{ran}"


def test_a_function_that_imports_torch_itself_leaves_this_process_without_it(tmp_path):
    program = (
        "import sys, tputfind\n"
        "def build():\n"
        "    from torch import nn\n"
        "    return nn.Linear(3, 2)\n"
        "record = tputfind.find(build, input_size=(3,), device='cpu', batch_sizes=[1], batches=10, processes=1)\n"
        "print(record.parameters, 'torch' in sys.modules)\n"
    )

    assert script(tmp_path, program) == "8 False\n"


def test_it_has_the_edge_that_a_factory_has(kept):
    limited = QUICK | {"memory_limit": "304MiB", "max_latency": "none"}
    module, inputs = plain.blocks_of_their_own()

    of_a_module = kept.find(module, inputs=inputs, **limited)
    of_a_function = kept.find(plain.blocks_of_their_own, **limited)

    edge = of_a_module.edge
    assert (edge.largest_batch, edge.fails_at, edge.limited_by) == (9, 10, "memory")  # blocks of 32 MiB
    assert edge == of_a_function.edge
    checked = [[row.output.result for row in one.rows] for one in (of_a_module, of_a_function)]
    assert checked[0] == checked[1]


class Holds(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.inner = nn.Sequential(nn.Identity())
        self.inner.held = held

    def forward(self, x):
        return self.inner(x)


def test_unpicklable_part_is_named_in_one_line(tmp_path, kept):
    lock = threading.Lock()
    with (tmp_path / "log").open("w") as file:
        cases = {
            "model._modules['inner'].held is a TextIOWrapper": Holds(file),
            "model's lock is a lock": lambda: Holds(lock),
            "model(0) is a generator": partial(Holds, (i for i in range(3))),
        }
        for named, model in cases.items():
            with pytest.raises(BadRequest, match="cannot travel to another process") as refusal:
                kept.find(model, input_size=(2,), **ONE)

            assert named in refusal.value.message
            assert "\n" not in refusal.value.message
            assert "inside" in refusal.value.hint


def test_full_disk_is_reported_as_such(temporary, kept):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        with pytest.raises(BadRequest, match=rf"cannot write Linear \(live\) in {temporary}: File too large"):
            kept.find(nn.Linear(1000, 1000), input_size=(1000,), device="cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_unimportable_module_is_named(monkeypatch, kept):
    made = types.ModuleType("made_here")
    monkeypatch.setitem(sys.modules, "made_here", made)
    exec(CELL, vars(made))

    with pytest.raises(BadRequest, match="No module named 'made_here'") as refused:
        kept.find(made.Net(), input_size=(6,), device="cpu")

    assert "register_pickle_by_value" in refused.value.hint


@pytest.mark.parametrize(
    ("model", "given", "says"),
    [
        (nn.Identity(), {}, "Identity \\(live\\) does not say what it takes"),
        (nn.Identity(), {"inputs": torch.ones(3)}, "inputs: .* is a Tensor, not a callable"),
        (plain.mebibytes, {"inputs": plain.small_inputs}, "makes its own inputs: leave inputs out"),
        ("resnet18", {"inputs": plain.small_inputs}, "inputs goes with a module or a function"),
        (3, {}, "model: 3 is a int, not a name, module or function"),
    ],
)
def test_missing_or_duplicate_input_is_refused_in_one_line(model, given, says, kept):
    with pytest.raises(BadRequest, match=says):
        kept.find(model, **given, **QUICK)


def test_module_that_was_compiled_is_refused(kept):
    with pytest.raises(BadRequest, match="was compiled already"):
        kept.find(torch.compile(nn.Identity()), input_size=(3,), **QUICK)


def test_failing_function_is_reported_with_its_own_traceback(kept):
    with pytest.raises(ModelFailed, match="ZeroDivisionError") as failure:
        kept.find(lambda: 1 / 0, input_size=(3,), **QUICK)

    assert "<lambda>" in failure.value.traceback
    assert "tputfind/worker" not in failure.value.traceback


def test_find_on_a_model_that_fails_shows_its_traceback_below_the_error(kept):
    class Odd(nn.Module):
        def forward(self, x):
            return self.missing(x)

    with pytest.raises(ModelFailed) as failure:
        kept.find(Odd(), input_size=(3,), **QUICK)

    shown = "".join(traceback.format_exception(failure.value))
    assert "The model's own traceback:" in shown
    assert "in forward" in shown.partition("The model's own traceback:")[2]
    assert shown.rstrip().endswith("'Odd' object has no attribute 'missing'")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, kept):
    """Provide the record of a live module, as a file."""
    folder = tmp_path_factory.mktemp("saved")
    kept.find(nn.Linear(3, 2), input_size=(3,), output=folder, **ONE)
    (path,) = folder.glob("*.json")
    return path


def test_its_record_is_shown_and_compared_and_never_gone_on_with(tmp_path, ask, saved):
    cut_short = tmp_path / "cut.json"
    held = tputfind.load_record(saved)
    cut_short.write_bytes(held.to_json().replace(b'"finished": "' + held.finished.encode() + b'"', b'"finished": null'))

    shown, compared = ask(tmp_path, "report", saved), ask(tmp_path, "compare", saved, saved)
    resumed, named = ask(tmp_path, "--resume", cut_short), ask(tmp_path, "Linear (live)", "--input-size", "3")

    assert saved.name.startswith("linear-live-fp32")
    assert (shown.status, compared.status) == (0, 0), shown.err + compared.err
    assert "Linear (live) fp32" in shown.out
    assert (resumed.status, named.status) == (2, 2)
    assert "cannot be resumed: Linear (live) was an object of a Python process" in resumed.err
    assert "was an object of a Python process" in named.err


def test_no_name_and_no_environment_lead_to_unpickling(tmp_path):
    pickled = tmp_path / "pickled"
    pickled.write_bytes(b"cposix\nsystem\n(S'touch ran'\ntR.")
    with pickled.open("rb") as file:
        done = run_program(
            [sys.executable, "-m", "tputfind", "Linear (live)", "--device", "cpu", "--input-size", "3"],
            tmp_path,
            {**ENVIRONMENT, "TPUTFIND_LIVE_OBJECT": str(file.fileno()), "TMPDIR": os.environ["TMPDIR"]},
            pass_fds=[file.fileno()],
        )

    assert done.returncode == 2
    assert "was an object of a Python process" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_killed_run_leaves_no_weights(tmp_path, temporary):
    program = (
        "import tputfind, torch\n"
        "module = torch.nn.Linear(1000, 1000)\n"
        "class Tells:\n"
        "    def doing(self, what, seconds_left): print(what, flush=True)\n"
        "    def did(self, what): pass\n"
        "    def measured(self, record): pass\n"
        "tputfind.find(module, input_size=(1000,), device='cpu', progress=Tells())\n"
    )
    environment = {**ENVIRONMENT, "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as it:
        it.stdout.readline()
        held = [path for path in temporary.iterdir() if not path.name.startswith("tputfind-")]
        it.send_signal(signal.SIGKILL)
    end_s = time.monotonic() + 30
    while any(temporary.iterdir()) and time.monotonic() < end_s:  # the server ends slightly later
        time.sleep(0.05)

    assert held == []
