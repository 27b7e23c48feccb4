"""Files of torch.save are classified by their opcodes, without executing them."""

import os
import pickle
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tputfind.errors import UnknownModel
from tputfind.worker.models.pickles import Pickled, pickled_in, refuse_pickle

NET = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
FORMATS = ({}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4})
WHOLE = Pickled("object", "torch.nn.modules.container.Sequential")


class Hostile:
    """Runs code when unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("how", FORMATS, ids=str)
def test_pickled_in_a_whole_module_names_its_class(tmp_path, how):
    torch.save(NET, tmp_path / "whole.pt", **how)

    assert pickled_in(tmp_path / "whole.pt") == WHOLE


@pytest.mark.parametrize("how", FORMATS, ids=str)
def test_pickled_in_a_state_dict_names_its_weights(tmp_path, how):
    torch.save(NET.state_dict(), tmp_path / "state.pt", **how)

    found = pickled_in(tmp_path / "state.pt")

    assert found.holds == "state dict"
    assert found.keys[:2] == ("0.weight", "0.bias")


@pytest.mark.parametrize(
    ("held", "name"),
    [
        ({"model": NET}, "a dict with an object of the class torch.nn.modules.container.Sequential"),
        (torch.zeros(3), "a tensor"),
        ({"a": 1}, "a dict without tensors (a)"),
        ([1, 2], "neither a module nor a dict"),
    ],
)
def test_pickled_in_other_object_names_its_content(tmp_path, held, name):
    torch.save(held, tmp_path / "odd.pt")

    assert pickled_in(tmp_path / "odd.pt") == Pickled("other", name)
    with pytest.raises(UnknownModel, match="not a module"):
        refuse_pickle(tmp_path / "odd.pt")


def test_pickled_in_a_hostile_file_executes_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, how in enumerate(FORMATS):
        torch.save(Hostile(), f"{number}.pt", **how)
        assert pickled_in(tmp_path / f"{number}.pt") == Pickled("object", "posix.mkdir")

    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_pickled_in_torchscript_and_other_files_is_none(tmp_path):
    torch.jit.save(torch.jit.script(NET), tmp_path / "script.pt")
    (tmp_path / "text.pt").write_text("no model")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "cut.pt").write_bytes(pickle.dumps(list(range(1000)))[:500])
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("a/b.txt", "no model")

    for name in ("script", "text", "empty", "cut", "zip", "missing"):
        assert pickled_in(tmp_path / f"{name}.pt") is None
        refuse_pickle(tmp_path / f"{name}.pt")


@given(st.binary(max_size=200))
def test_pickled_in_any_bytes_returns_pickled_or_none(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "any.pt"
    path.write_bytes(b"\x80\x02" + data)

    assert isinstance(pickled_in(path), Pickled | None)


def lines_of(refused: UnknownModel) -> str:
    """Return the lines of the factory that an error suggests."""
    return refused.hint.partition(": ")[2].partition("; or give")[0]


def test_the_lines_of_a_whole_module_make_a_factory_that_loads_it(tmp_path):
    torch.save(NET, tmp_path / "whole.pt")
    with pytest.raises(UnknownModel, match="runs code of whoever made it") as refused:
        refuse_pickle(tmp_path / "whole.pt")

    made: dict[str, object] = {}
    exec(lines_of(refused.value), made)  # like a file with these lines

    assert isinstance(made["model"](), nn.Sequential)


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {"epoch": 3, "state_dict": state}])
def test_the_lines_of_a_state_dict_make_a_factory_that_loads_it(tmp_path, monkeypatch, wrap):
    trained = nn.Linear(8, 8)
    torch.save(wrap(trained.state_dict()), tmp_path / "state.pt")
    with pytest.raises(UnknownModel, match="weights, without the module") as refused:
        refuse_pickle(tmp_path / "state.pt")
    (tmp_path / "YOUR_FILE.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(8, 8)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    made: dict[str, object] = {}
    exec(lines_of(refused.value), made)  # like a file with these lines

    assert torch.equal(made["model"]().weight, trained.weight)


def test_a_module_of_a_script_is_to_be_saved_as_weights(tmp_path):
    path = tmp_path / "own.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("own/data.pkl", b"\x80\x02c__main__\nNet\n)\x81.")

    with pytest.raises(UnknownModel, match="of the class Net of a script") as refused:
        refuse_pickle(path)

    assert "state_dict()" in refused.value.hint
