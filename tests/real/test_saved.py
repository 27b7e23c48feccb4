"""Models in files, and inputs described by the user."""

import pytest
import torch
from support.command import QUICK
from support.folders import MODELS
from torch import nn
from torch.export import Dim

from tputfind.record.spec import read_spec
from tputfind.worker.workload import Workload


class Tokens(nn.Module):
    """Takes token ids and a mask, and creates a tensor in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor, *, mask: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.linear(self.embedding(ids) * mask[..., None] + places[None, :, None]) * scale


class Pooled(nn.Module):
    """Takes two inputs of different lengths."""

    def forward(self, words: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return words.mean(0) + items.mean(0)


class Eights(nn.Module):
    """Takes multiples of eight samples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.view(-1, 8, 4)).flatten(0, 1)


def exported(path, axes):
    """Export the model to a file, with free axes of its inputs."""
    inputs = (torch.randint(0, 50, (4, 7)),), {"mask": torch.ones(4, 7)}
    program = torch.export.export(Tokens().eval(), *inputs, dynamic_shapes={"ids": axes, "mask": axes})
    torch.export.save(program, path)


class Spectrum(nn.Module):
    """Takes complex numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft(x * 2).abs()


def test_exported_program_of_complex_inputs_is_measured(tmp_path, ask):
    inputs = (torch.randn(4, 8, dtype=torch.complex64),)
    torch.export.save(
        torch.export.export(Spectrum().eval(), inputs, dynamic_shapes=({0: Dim.DYNAMIC},)), tmp_path / "spectrum.pt2"
    )

    ran = ask(tmp_path, tmp_path / "spectrum.pt2", "--device", "cpu", "--batch-sizes", 2, *QUICK)

    assert ran.status == 0, ran.err
    assert ran.record().input_shape == "8"


def scripted(path):
    torch.jit.save(torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()).eval()), path)


def test_frozen_script_runs_with_its_constants(tmp_path, ask):
    script = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()).eval())
    torch.jit.save(torch.jit.freeze(script), tmp_path / "frozen.pt")

    asked = ("--input-size", "3x8x8", "--device", "cpu", "--batch-sizes", 2, *QUICK)
    ran = ask(tmp_path, tmp_path / "frozen.pt", *asked)

    assert ran.status == 0, ran.err
    assert ran.record().rows[0].status == "ok"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_exported_program_is_measured_with_its_exported_inputs(tmp_path, ask, dtype):
    exported(tmp_path / "tokens.pt2", {0: Dim.DYNAMIC})

    ran = ask(tmp_path, tmp_path / "tokens.pt2", "--device", "cpu", "--batch-sizes", "1,2,16", "--dtype", dtype, *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.input_shape, record.parameters) == ("7+7", 50 * 8 + 8 * 3 + 3)
    assert [row.output.result for row in record.rows] == ["small", "small", "right"]


@pytest.mark.parametrize(
    ("training", "kinds"), [(True, {"training_mode"}), (False, set())], ids=["in training", "evaluated"]
)
def test_program_exported_in_training_mode_is_reported(tmp_path, ask, training, kinds):
    layers = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
    module = nn.Sequential(*layers).train(training)
    program = torch.export.export(module, (torch.randn(4, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))
    torch.export.save(program, tmp_path / "trained.pt2")

    ran = ask(tmp_path, tmp_path / "trained.pt2", "--device", "cpu", "--batch-sizes", "2", *QUICK)

    assert ran.status == 0, ran.err
    assert {notice.kind for notice in ran.record().notices} & {"training_mode", "batch_axis"} == kinds


def test_batch_on_another_axis_than_the_first_is_reported(tmp_path, ask):
    exported(tmp_path / "second.pt2", {1: Dim.DYNAMIC})

    ran = ask(tmp_path, tmp_path / "second.pt2", "--device", "cpu", "--batch-sizes", "2,16", *QUICK)

    assert ran.status == 0, ran.err
    assert ran.record().input_shape == "4+4"
    assert "the batch was taken to be axis 1 of samples of 4" in ran.out


def test_first_axis_is_the_batch_if_several_lengths_are_free(tmp_path, ask):
    exported(tmp_path / "texts.pt2", {0: Dim.DYNAMIC, 1: Dim.DYNAMIC})

    ran = ask(tmp_path, tmp_path / "texts.pt2", "--device", "cpu", "--batch-sizes", "2,16", *QUICK)

    assert ran.status == 0, ran.err
    assert ran.record().input_shape == "7+7"
    assert "the batch was taken to be axis 0" in ran.out


def test_program_with_a_derived_batch_axis_is_measured_at_multiples(tmp_path, ask):
    eighths = Dim("eighths", min=1, max=512)
    program = torch.export.export(Eights().eval(), (torch.randn(16, 4),), dynamic_shapes=({0: 8 * eighths},))
    torch.export.save(program, tmp_path / "eights.pt2")

    ran = ask(tmp_path, tmp_path / "eights.pt2", "--device", "cpu", "--max-batch", 32, *QUICK)

    assert ran.status == 0, ran.err
    assert [row.batch_size for row in ran.record().rows] == [16, 32]


def test_a_torchscript_file_is_measured_with_the_input_that_it_is_given(tmp_path, ask):
    scripted(tmp_path / "small.pt")

    ran = ask(tmp_path, "small.pt", "--device", "cpu", "--input-size", "3x8x8", "--batch-sizes", "1,16", *QUICK)

    assert ran.status == 0, ran.err
    assert ran.record().parameters == 4 * 3 * 9 + 4
    assert ran.record().rows[1].output.result == "right"


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        (["ids:int64:Bx7:50", "mask:float:Bx7"], "7+7"),
        (["ids:int32:Bx7:50", "mask:bool:Bx7"], "7+7"),
        ([":int64:Bx7:50", "mask:fp32:7"], "7+7"),
    ],
)
def test_described_inputs_reach_the_model(asked, shape):
    workload = Workload(read_spec(f"{MODELS}/nested.py:tokens", {"input": asked}), torch.device("cpu"))
    with torch.no_grad():
        output = workload.batch(16)()

    assert workload.input_shape() == shape
    assert output.shape == (16, 7, 3)


QUIET = ("--device", "cpu", "--quiet")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Create model files that cannot be measured, and weights without a model."""
    folder = tmp_path_factory.mktemp("files")
    exported(folder / "fixed.pt2", {})
    exported(folder / "free.pt2", {0: Dim.DYNAMIC})
    apart = torch.export.export(Pooled(), (torch.randn(3, 8), torch.randn(5, 8)), dynamic_shapes=[{0: Dim.DYNAMIC}] * 2)
    torch.export.save(apart, folder / "several.pt2")
    scripted(folder / "small.pt")
    (folder / "empty.pt2").touch()
    torch.save({"weight": torch.ones(3)}, folder / "weights.pth")
    for name in ("whole.pt", "whole.pt2"):
        torch.save(nn.Linear(3, 2), folder / name)
    return folder


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["none.pt2"], "there is no file none.pt2"),
        (["empty.pt2"], "empty.pt2 holds no exported program"),
        (["fixed.pt2"], "fixed.pt2 takes no batch but the one that it was exported with (4x7, 4x7)"),
        (["several.pt2"], "several.pt2 leaves several lengths free, and does not say which is the batch"),
        (["free.pt2", "--input-size", "7"], "free.pt2 says itself what it takes"),
        (["free.pt2", "--weights", "mine.pth"], "--weights: free.pt2 holds its own"),
        (["small.pt"], "small.pt does not say what it takes"),
        (["small.pt", "--mode", "compile"], "--mode compile: small.pt is TorchScript"),
        (["weights.pth", "--input-size", "3"], "weights.pth is a state dict (weight): weights, without the module"),
        (["weights.pth", "--input-size", "3"], "or give --weights weights.pth beside the name of its model"),
        (["whole.pt"], "whole.pt is a pickled object of the class torch.nn.modules.linear.Linear"),
        (["whole.pt", "--phase", "train"], "whole.pt is a pickled object"),
        (["whole.pt2"], "whole.pt2 is a pickled object"),
        (
            ["resnet18", "--weights", "whole.pt"],
            "--weights: whole.pt is not loaded: it holds more than tensors and plain values: torch.nn.modules",
        ),
        (["resnet18", "--input", "x:float:Bx3x64x64"], "--input: resnet18 knows what it takes"),
        ([f"{MODELS}/nested.py:tokens", "--input", "ids:int64:8x7"], "no shape has a B"),
        ([f"{MODELS}/nested.py:tokens", "--input", "ids:int64"], "is not NAME:DTYPE:SHAPE"),
        ([f"{MODELS}/nested.py:tokens", "--input", "ids:int:Bx7"], "'int' is not one of float, fp32, int64"),
        ([f"{MODELS}/nested.py:tokens", "--input", "i d:int64:B"], "'i d' cannot be the name of an argument"),
        ([f"{MODELS}/nested.py:tokens", "--input", "a:int64:B", "--input", "a:int64:B"], "the same name"),
        ([f"{MODELS}/nested.py:tokens", "--input", "a:int64:B", "--input-size", "3"], "cannot be combined with it"),
        ([f"{MODELS}/nested.py:nested", "--input", "a:int64:B"], "makes its own inputs"),
        ([f"{MODELS}/nested.py:tokens", "--input", "a:uint8:B:257"], "257 is not between 1 and 256"),
        ([f"{MODELS}/nested.py:tokens", "--input", "a:float:B:2"], "float takes no bound"),
        (["hf:bert", "--input", "a:int64:B", "--sequence-length", "8"], "--sequence-length cannot be combined with it"),
    ],
)
def test_unmeasurable_saved_model_is_refused_in_one_line(files, ask, arguments, expected):
    # Full paths, since the server keeps its first working folder.
    ran = ask(files, *(files / each if (files / each).is_file() else each for each in arguments), *QUIET)

    assert ran.status == 2, ran.err
    assert expected in ran.err.replace(f"{files}/", "")
    assert len(ran.err.splitlines()) == 1
