"""Files of torch.save are refused without running code; the message names their content."""

import os
import pickle
import re
import sys
import zipfile
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel

from tputfind.errors import BadRequest, UnknownModel
from tputfind.worker.models.saved import load, refuse_pickle

NET = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
FORMATS = ({}, {"_use_new_zipfile_serialization": False})


class Hostile:
    """Runs code when unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (NET, "is a pickled object of the class torch.nn.modules.container.Sequential"),
        ({"model": NET}, "is a pickled object of the class torch.nn.modules.container.Sequential"),
        (NET.state_dict(), "is a state dict (0.weight, 0.bias, 1.weight, ...): weights"),
        (torch.zeros(3), "holds a Tensor, not a module"),
        ({"a": 1}, "holds a dict, not a module"),
        ([1, 2], "holds a list, not a module"),
    ],
)
@pytest.mark.parametrize("how", FORMATS, ids=str)
def test_refuse_pickle_names_what_a_file_holds(tmp_path, held, said, how):
    torch.save(held, tmp_path / "held.pt", **how)

    with pytest.raises(UnknownModel, match=re.escape(said)):
        refuse_pickle(tmp_path / "held.pt")


def test_refuse_pickle_of_a_hostile_file_executes_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, how in enumerate(FORMATS):
        torch.save(Hostile(), f"{number}.pt", **how)
        with pytest.raises(UnknownModel, match=r"of the class posix\.mkdir"):
            refuse_pickle(tmp_path / f"{number}.pt")

    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_refuse_pickle_ignores_torchscript_and_other_files(tmp_path):
    torch.jit.save(torch.jit.script(NET), tmp_path / "script.pt")
    torch.export.save(torch.export.export(NET, (torch.ones(2, 8),)), tmp_path / "program.pt2")
    (tmp_path / "text.pt").write_text("no model")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "cut.pt").write_bytes(pickle.dumps(list(range(1000)))[:500])
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("a/b.txt", "no model")

    for name in ("script.pt", "program.pt2", "text.pt", "empty.pt", "cut.pt", "zip.pt", "missing.pt"):
        refuse_pickle(tmp_path / name)


@given(st.binary(max_size=200))
def test_refuse_pickle_of_any_bytes_raises_nothing_else(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "any.pt"
    path.write_bytes(b"\x80\x02" + data)

    with suppress(UnknownModel):
        refuse_pickle(path)


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


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {"model": "linear", "state_dict": state}])
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


def test_a_module_of_a_script_is_to_be_saved_as_weights(tmp_path, monkeypatch):
    class Net(nn.Linear):
        __module__, __qualname__ = "__main__", "Net"

    monkeypatch.setattr(sys.modules["__main__"], "Net", Net, raising=False)
    torch.save(Net(3, 2), tmp_path / "own.pt")

    with pytest.raises(UnknownModel, match="is a pickled object of the class Net of a script") as refused:
        refuse_pickle(tmp_path / "own.pt")

    assert "state_dict()" in refused.value.hint


def with_prefix(prefix):
    return {f"{prefix}{name}": tensor for name, tensor in NET.state_dict().items()}


@pytest.mark.parametrize(
    "held",
    [
        NET.state_dict(),
        *({key: NET.state_dict(), "epoch": 3} for key in ("state_dict", "model_state_dict", "model")),
        with_prefix("module."),
        {"model_state_dict": with_prefix("module._orig_mod.")},
        with_prefix("_orig_mod.module."),
        AveragedModel(NET).state_dict(),
        {"state_dict": with_prefix("net._orig_mod.") | {"criterion.weight": torch.ones(2)}},
        {"model": "linear", "state_dict": NET.state_dict()},
    ],
)
def test_weights_are_found_in_each_usual_form_of_a_checkpoint(held, tmp_path):
    torch.save(held, tmp_path / "weights.pth")
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    load(module, tmp_path / "weights.pth", "net")

    assert all(map(torch.equal, module.state_dict().values(), NET.state_dict().values()))


def test_weights_of_one_of_two_networks_are_not_guessed(tmp_path):
    torch.save(with_prefix("first.") | with_prefix("second."), tmp_path / "weights.pth")

    with pytest.raises(BadRequest, match="holds no weights of net"):
        load(NET, tmp_path / "weights.pth", "net")


def test_shared_weight_need_not_be_in_the_file_twice(tmp_path):
    module = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    module[1].weight = module[0].weight
    torch.save({"0.weight": torch.ones(8, 8)}, tmp_path / "tied.pth")

    load(module, tmp_path / "tied.pth", "net")

    assert bool((module[1].weight == 1).all())


def test_weights_of_another_model_are_refused_in_a_short_line(tmp_path):
    torch.save({f"layer{number}": torch.ones(1) for number in range(999)}, tmp_path / "weights.pth")

    with pytest.raises(BadRequest, match="holds no weights of net: Error") as refused:
        load(NET, tmp_path / "weights.pth", "net")
    assert len(refused.value.message) < 400
