"""Model and weight files that try to run code: each runs it if trusted, and is refused otherwise."""

import hashlib
import io
import json
import os
import pickle
import shutil
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from support.command import QUICK
from torch import nn
from torch.export import Dim

from tputfind.errors import BadRequest
from tputfind.processes.children import TRUSTED
from tputfind.worker.models.checked import load_program, load_script

RUN = "__import__('os').system('touch ran')"
PICKLED_TENSOR = {"path_name": "weight_0", "is_param": True, "use_pickle": True, "tensor_meta": None}
SAVED = {"name": "item", "arg": {"as_tensor": {"name": "given"}}, "kind": 1}
ARGUMENT = {"name": "", "arg": {"as_string": "touch ran"}, "kind": 1}


class Hostile:
    """Touches a file when unpickled."""

    def __reduce__(self):
        return os.system, ("touch ran",)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.shift = nn.Linear(4, 3), torch.arange(3.0)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.linear(given) + self.shift


def exported(path, module=None, **given):
    given = given or {"given": torch.randn(4, 4)}
    shapes = {name: {0: Dim.DYNAMIC} for name in given}
    torch.export.save(torch.export.export(module or Small(), (), given, dynamic_shapes=shapes), path)


def rewritten(path, changes):
    """Change entries of an archive; each function maps the old bytes (empty for a new entry) to new ones."""
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].partition("/")[0]
        entries = {name.removeprefix(f"{root}/"): archive.read(name) for name in archive.namelist()}
    for name, change in changes.items():
        entries[name] = change(entries.get(name, b""))
    with zipfile.ZipFile(path, "w") as archive:
        for name, held in entries.items():
            archive.writestr(f"{root}/{name}", held)


def pickled(_=b""):
    buffer = io.BytesIO()
    torch.save(Hostile(), buffer)
    return buffer.getvalue()


def in_graph(change):
    """Return a change of a program's graph, given as a function of its JSON dictionary."""

    def changed(held):
        program = json.loads(held)
        change(program)
        return json.dumps(program).encode()

    return {"models/model.json": changed}


def config(name, held):
    def changed(before):
        known = json.loads(before)
        known["config"] |= held
        return json.dumps(known).encode()

    return {name: changed}


def extra_call(target, *inputs):
    """Return a change that adds a call to a program."""

    def change(program):
        graph = program["graph_module"]["graph"]
        graph["tensor_values"]["called"] = graph["tensor_values"]["linear"]
        named = {"outputs": [{"as_tensor": {"name": "called"}}], "name": "called"}
        graph["nodes"].insert(0, {"target": target, "inputs": list(inputs), "metadata": {}, **named})

    return in_graph(change)


def expression(program):
    sizes = program["graph_module"]["graph"]["tensor_values"]["given"]["sizes"]
    sizes[0]["as_expr"]["expr_str"] = RUN


def guard(program):
    program["guards_code"] = [f"{RUN} == 0"]


def argument_name(program):
    name = f"given):\n    pass\n{RUN}\ndef rest():\n    '''#"  # the name is written twice: the string ends here
    program["graph_module"]["module_call_graph"][0]["signature"]["forward_arg_names"] = [name]


def keyword(program):
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    signature["forward_arg_names"] = []
    signature["in_spec"] = signature["in_spec"].replace("given", f"given={RUN}")


def import_by_structure(program):
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    context = {"default_factory_module": "hostile", "default_factory_name": "x", "dict_context": []}
    structure = {"type": "collections.defaultdict", "context": context, "children_spec": []}
    signature["out_spec"] = json.dumps([1, structure])


def import_by_enum(program):
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    context = json.dumps({"__enum__": True, "fqn": "hostile:x", "name": "x"})
    structure = {"type": "builtins.list", "context": context, "children_spec": []}
    signature["out_spec"] = json.dumps([1, structure])


def renamed(held):
    return held.replace(b'"given"', json.dumps(f"given={RUN}").encode())


TRICKS = {
    "example inputs": ({"data/sample_inputs/model.pt": pickled}, "data/sample_inputs/model.pt holds more"),
    "a pickled weight": (
        config("data/weights/model_weights_config.json", {"linear.weight": PICKLED_TENSOR})
        | {"data/weights/weight_0": pickled},
        "data/weights/weight_0 holds more",
    ),
    "a pickled constant": (
        config("data/constants/model_constants_config.json", {"shift": PICKLED_TENSOR | {"path_name": "tensor_0"}})
        | {"data/constants/tensor_0": pickled},
        "data/constants/tensor_0 holds more",
    ),
    "an opaque object": (
        config("data/constants/model_constants_config.json", {"x": PICKLED_TENSOR | {"path_name": "opaque_obj_0"}})
        | {"data/constants/opaque_obj_0": lambda _: pickle.dumps(Hostile())},
        "data/constants/opaque_obj_0 is an object",
    ),
    "weights as they were once": ({"data/weights/model.pt": pickled}, "data/weights/model.pt holds more"),
    "constants as they were once": ({"data/constants/model.pt": pickled}, "data/constants/model.pt holds more"),
    "an expression": (in_graph(expression), "for expr str"),
    "a guard": (in_graph(guard), "for guards code"),
    "the name of an argument": (in_graph(argument_name), "for forward arg names"),
    "the name of a keyword": (in_graph(keyword), "for in spec"),
    "a module to import": (in_graph(import_by_structure), "for out spec"),
    "an enumeration to import": (in_graph(import_by_enum), "for out spec"),
    "the name of a value": ({"models/model.json": renamed}, "for name"),
    "a function of Python": (extra_call("torch.os.system", ARGUMENT), "'torch.os.system' for target"),
    "a class to import": (
        extra_call(
            "torch.export.custom_ops._call_custom_autograd_function_in_pre_dispatch",
            {"name": "function_cls_name", "arg": {"as_string": "hostile.x"}, "kind": 1},
            SAVED,
        ),
        "for target",
    ),
    "a file to write": (
        extra_call("torch.ops.aten.save.default", SAVED, {"name": "filename", "arg": {"as_string": "ran"}, "kind": 1}),
        "'torch.ops.aten.save.default' for target",
    ),
    "a file to make": (
        extra_call(
            "torch.ops.aten.from_file.default",
            {"name": "filename", "arg": {"as_string": "ran"}, "kind": 1},
            {"name": "shared", "arg": {"as_bool": True}, "kind": 1},
            {"name": "size", "arg": {"as_int": 4}, "kind": 1},
        ),
        "'torch.ops.aten.from_file.default' for target",
    ),
    "a function through an operator": (
        extra_call("torch.ops.aten.add.__class__.__init__.__globals__.x", ARGUMENT),
        "for target",
    ),
}
NEVER_RUN = {"the name of a keyword", "a function of Python", "a file to write", "a function through an operator"}
"""Torch does not execute these today; a future version may."""
NEWER = {"an opaque object", "a class to import"}
"""Torch 2.9 does not execute these, and torch 2.15 does."""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Provide the path of an exported program."""
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    exported(path)
    return path


@pytest.mark.parametrize("trick", TRICKS)
def test_a_program_that_runs_code_is_refused_before_it_does_so(tmp_path, monkeypatch, program, trick):
    changes, expected = TRICKS[trick]
    rewritten(shutil.copy(program, tmp_path), changes)
    (tmp_path / "hostile.py").write_text("open('ran', 'w'); x = 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hostile", raising=False)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(BadRequest, match="is not loaded") as refused:
        load_program(Path("model.pt2"))

    assert expected in refused.value.message
    assert "--trust-model-file" in refused.value.hint
    assert not Path("ran").exists()

    monkeypatch.setenv(TRUSTED, "1")
    with suppress(Exception):
        load_program(Path("model.pt2")).module()(given=torch.randn(4, 4))
    assert Path("ran").exists() == (trick not in NEVER_RUN) or trick in NEWER


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("data/aotinductor/model/model.so", "data/aotinductor/model/model.so is compiled code"),
        ("data/SAMPLE_INPUTS/model.pt", "is there twice"),
    ],
)
def test_compiled_code_or_duplicate_entries_are_refused(tmp_path, program, entry, expected):
    rewritten(shutil.copy(program, tmp_path), {entry: lambda _: b"anything"})

    with pytest.raises(BadRequest) as refused:
        load_program(tmp_path / "model.pt2")

    assert expected in refused.value.message


def test_the_layout_of_an_older_torch_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("old.pt2", "w") as archive:
        for name in ("version", "serialized_exported_program.json", "serialized_state_dict.pt"):
            archive.writestr(f"old/{name}", "8.8")

    with pytest.raises(BadRequest, match="its layout is that of an older torch"):
        load_program(Path("old.pt2"))


class Writes(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        torch.save(given, "ran")
        return given


def test_torchscript_that_writes_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.jit.save(torch.jit.script(Writes()), "writes.pt")

    with pytest.raises(BadRequest, match="can write files: save"):
        load_script(Path("writes.pt"))

    monkeypatch.setenv(TRUSTED, "1")
    load_script(Path("writes.pt"))(torch.ones(1))
    assert Path("ran").exists()


class Nested(nn.Module):
    """Takes nested inputs, whole numbers and dependent lengths, and branches."""

    def forward(self, ids: torch.Tensor, *, parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        assert ids.shape[0] > 3
        half = parts["first"][: ids.shape[0] // 2]
        turned = torch.cond(half.sum() > 0, lambda x: x + 1, lambda x: x - 1, (half,))
        return {"turned": turned, "product": torch.einsum("bi,bj->bij", parts["first"], parts["first"])}


def test_programs_of_pure_data_are_loaded(tmp_path):
    inputs = {"ids": torch.randint(0, 9, (8, 2)), "parts": {"first": torch.randn(8, 3)}}
    free = {0: Dim.AUTO}
    shapes = {"ids": free, "parts": {"first": free}}
    program = torch.export.export(Nested(), (), inputs, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "nested.pt2")

    found = load_program(tmp_path / "nested.pt2").module()(**inputs)

    assert found["product"].shape == (8, 3, 3)
    assert found["turned"].shape == (4, 3)


def test_only_the_flag_of_this_command_line_trusts_a_file(tmp_path, ask, program):
    rewritten(shutil.copy(program, tmp_path), TRICKS["example inputs"][0])
    asked = ("model.pt2", "--device", "cpu", "--batch-sizes", "1", "--quiet", *QUICK)

    refused = ask(tmp_path, *asked)

    assert refused.status == 2, refused.err
    assert "data/sample_inputs/model.pt holds more than tensors and plain values" in refused.err
    assert len(refused.err.splitlines()) == 1
    assert not (tmp_path / "ran").exists()
    ask(tmp_path, *asked, "--trust-model-file")
    assert (tmp_path / "ran").exists()


def test_record_claiming_trust_is_not_believed(tmp_path, ask, program):
    shutil.copy(program, tmp_path)
    ask(tmp_path, tmp_path / "model.pt2", "--device", "cpu", "--batch-sizes", "1", *QUICK, "--trust-model-file")
    (record,) = (tmp_path / "results").glob("*.json")
    held = json.loads(record.read_text())
    held["finished"], held["spec"]["trust_model_file"] = None, True
    rewritten(tmp_path / "model.pt2", TRICKS["example inputs"][0])
    held["source_sha256"] = hashlib.sha256((tmp_path / "model.pt2").read_bytes()).hexdigest()
    record.write_text(json.dumps(held))

    resumed = ask(tmp_path, "--resume", record)

    assert resumed.status == 2
    assert "holds more than tensors and plain values" in resumed.err
    assert not (tmp_path / "ran").exists()


def test_weights_that_run_code_are_refused_and_the_flag_loads_them(tmp_path, ask):
    held = {"state_dict": {}, "by": Hostile()}
    torch.save(held, tmp_path / "mine.pth")
    asked = ("resnet18", "--weights", "mine.pth", "--device", "cpu", "--image-size", 64, "--batch-sizes", "1", *QUICK)

    refused = ask(tmp_path, *asked)

    assert refused.status == 2, refused.err
    assert "--weights: mine.pth is not loaded: it holds more than tensors" in refused.err
    assert "--trust-model-file" in refused.err
    assert not (tmp_path / "ran").exists()
    ask(tmp_path, *asked, "--trust-model-file")
    assert (tmp_path / "ran").exists()


FACTORY = "import torch; from pathlib import Path; Path({!r}).touch(); small = lambda: torch.nn.Linear(4, 3)"


def test_a_factory_that_was_changed_since_is_not_imported_by_its_record(tmp_path, ask):
    factory = FACTORY.format(f"{tmp_path}/ran")
    (tmp_path / "mine.py").write_text(factory)
    asked = (f"{tmp_path}/mine.py:small", "--input-size", "4", "--device", "cpu", "--batch-sizes", "1", *QUICK)
    first = ask(tmp_path, *asked)
    (record,) = (tmp_path / "results").glob("*.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"finished": None}))

    resumed = ask(tmp_path, "--resume", record)

    assert first.status == resumed.status == 0, first.err + resumed.err
    assert f"{record} goes on with {tmp_path}/mine.py:small, which is imported and called" in resumed.err

    record.write_text(json.dumps(json.loads(record.read_text()) | {"finished": None}))
    (tmp_path / "mine.py").write_text(f"{factory}  # changed")
    (tmp_path / "ran").unlink()

    refused = ask(tmp_path, "--resume", record)

    assert refused.status == 2
    assert "the file that the model is made by was changed" in refused.err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ({"model_type": "other", "auto_map": {"AutoConfig": "code.C"}}, "contains custom code"),
        ({"model_type": "bert", "attn_implementation": "someone/kernel"}, "names a kernel on the hub"),
    ],
)
def test_a_configuration_that_names_code_is_refused(tmp_path, ask, says, expected):
    pytest.importorskip("transformers")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/config.json").write_text(json.dumps(says))
    (tmp_path / "folder/code.py").write_text(f"open('{tmp_path}/ran', 'w')")

    refused = ask(tmp_path, f"hf:{tmp_path}/folder", "--device", "cpu", "--batch-sizes", "1", *QUICK)

    assert refused.status == 2, refused.err
    assert expected in refused.err
    assert not (tmp_path / "ran").exists()
