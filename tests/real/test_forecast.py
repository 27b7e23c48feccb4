"""`tputfind forecast` on a machine without a GPU."""

import csv

import pytest
import torch
from support.command import run
from support.folders import MODELS

import tputfind
from tputfind.errors import BadRequest

ON_FAKE = ("--on-fake", "--device", "cpu")


def test_forecasts_on_fake_tensors_are_marked_as_such_and_written(tmp_path, ask):
    asked = ("resnet18", "--dtype", "fp16", "--memory", "2GiB,1GiB,4GiB,800MiB")
    ran = ask(tmp_path, "forecast", *asked, *ON_FAKE, "--save", "cards.csv")

    assert ran.status == 0, ran.err
    assert "forecast, not measured" in ran.out
    assert "from fake tensors, batch 61" in ran.out
    lines = [*csv.DictReader((tmp_path / "cards.csv").open())]
    assert [line["memory_gib"] for line in lines] == ["0.78125", "1", "2", "4"]
    batches = [int(line["largest_batch_forecast"]) for line in lines]
    assert batches == sorted(batches)
    assert batches[0] > 0
    assert all(float(line["error_percent"]) >= 10 for line in lines)


def test_forecast_that_looks_at_the_device_says_so_first(tmp_path, ask):
    ran = ask(tmp_path, "forecast", "resnet18", "--image-size", "32", "--memory", "1GiB")

    assert ran.status == 0, ran.err
    assert ran.err.splitlines()[0].endswith("looking at the model and the device")


def test_forecast_of_a_computable_model_matches_arithmetic(tmp_path, ask):
    """A sample is 4 MiB and its output 4 bytes; context and libraries count for 692 MiB."""
    factory = f"{MODELS}/plain.py:four_mebibytes"
    ran = ask(tmp_path, "forecast", factory, "--memory", "64MiB,1208MiB", *ON_FAKE, "--save", "cards.csv")

    assert ran.status == 0, ran.err
    assert "none fits" in ran.out
    _, line = csv.DictReader((tmp_path / "cards.csv").open())
    # After a segment of 2 MiB for inputs and outputs, 514 MiB are left.
    assert int(line["largest_batch_forecast"]) == 128


def test_forecast_keeps_to_the_multiples_that_the_inputs_need(tmp_path, ask):
    factory = f"{MODELS}/other_fields.py:fours"
    ran = ask(tmp_path, "forecast", factory, "--memory", "1GiB", *ON_FAKE, "--save", "cards.json")

    assert ran.status == 0, ran.err
    found = tputfind.load(tmp_path / "cards.json")
    assert found.tried == (4 * 61,)
    assert found.cards[0].largest_batch % 4 == 0
    assert found.cards[0].largest_batch > 0
    assert "3119512" in ran.out, "to start with: a multiple, too"


def test_model_that_ends_the_process_of_a_forecast_is_named(tmp_path, ask):
    factory = f"{MODELS}/plain.py:exits_while_built"
    asked = ("--memory", "1GiB", *ON_FAKE, "--quiet")
    ask(tmp_path, "forecast", factory, *asked).check_refused(
        5, "exits_while_built does not run on fake tensors: exited"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("resnet18",), "--memory says for which"),
        (("resnet18", "--memory", "16"), "'16' is not a size"),
        (("resnet18", "--memory", "16GiB,,8GiB"), "'' is not a size"),
        (("resnet18", "--memory", "16GiB", "--dtype", "fp17"), "--dtype"),
        (
            ("resnet18", "--memory", "16GiB", "--save", "a.svg"),
            "this result has no plot (it can be .json, .csv, .md or .html)",
        ),
        (("resnet19", "--memory", "16GiB"), "there is no model 'resnet19'"),
        ((f"{MODELS}/plain.py:fails", "--memory", "16GiB"), "does not run on fake tensors"),
        (
            (f"{MODELS}/compiled.py:nothing_to_train", "--phase", "train", "--memory", "1GiB"),
            "has nothing to train",
        ),
    ],
)
def test_wrong_forecast_request_is_refused_in_one_line(tmp_path, ask, arguments, said):
    ask(tmp_path, "forecast", *arguments, *ON_FAKE, "--quiet").check_refused(2, said)


def test_saved_forecast_on_fake_tensors_is_shown_and_replaced(tmp_path, ask):
    asked = ("forecast", "resnet18", "--memory", "8GiB", "--on-fake", "--quiet", "--save", "f.json")
    runs = [ask(tmp_path, *asked), ask(tmp_path, *asked), ask(tmp_path, "report", "f.json")]

    assert [ran.status for ran in runs] == [0, 0, 0], runs[-1].err


def test_without_a_gpu_a_forecast_points_to_fake_tensors(tmp_path, ask):
    ran = ask(tmp_path, "forecast", "resnet18", "--memory", "16GiB", "--device", "cpu", "--quiet")

    assert ran.status == 2
    assert "--on-fake" in ran.err


def test_training_forecast_splits_memory_and_lists_larger_variants(tmp_path, ask):
    saved = ("--save", "cards.csv", "--save", "cards.json")
    asked = ("timm:test_vit", "--phase", "train", "--optimizer", "adamw", "--memory", "1GiB,2GiB")
    ran = ask(tmp_path, "forecast", *asked, "--on-fake", *saved, "--quiet")

    assert ran.status == 0, ran.err
    assert "timm:test_vit train adamw fp32 nchw: forecast, not measured" in ran.out
    lines = [*csv.DictReader((tmp_path / "cards.csv").open())]
    assert [(line["dtype"], line["grad_checkpoint"]) for line in lines[::2]] == [
        *(("fp32", "False"), ("amp-bf16", "False"), ("fp32", "True"), ("amp-bf16", "True"))
    ]
    assert "--dtype amp-bf16 --grad-checkpoint" in ran.out
    one, two = lines[:2]
    parts = [f"{kind}_gib" for kind in ("weights", "gradients", "optimizer", "activations", "overhead")]
    # At the forecast batch the parts add up to the memory, less at most one segment of the allocator.
    assert 0.9 < sum(float(one[part]) for part in parts) <= 1
    assert 1.9 < sum(float(two[part]) for part in parts) <= 2
    assert float(one["optimizer_gib"]) == pytest.approx(2 * float(one["weights_gib"]), rel=0.2)
    batches = [int(line["largest_batch_forecast"]) for line in lines]
    assert batches[0] < batches[1]
    assert batches[0] < batches[4]  # checkpointing fits more
    found = tputfind.load(tmp_path / "cards.json")
    assert [variant.largest_batches for variant in found.variants] == [
        tuple(batches[2:4]),
        tuple(batches[4:6]),
        tuple(batches[6:]),
    ]


def test_training_forecast_imports_the_compiler_once_for_all_traces(tmp_path):
    (tmp_path / "net.py").write_text(
        "import sys, torch\n"
        "print('torch._dynamo' in sys.modules, file=open('seen.txt', 'a'))\n"
        "def make():\n"
        "    return torch.nn.Linear(16, 4), lambda batch: torch.zeros(batch, 16)\n"
    )

    ran = run(tmp_path, "forecast", "net.py:make", "--phase", "train", "--memory", "1GiB", "--on-fake", "--quiet")

    assert ran.status == 0, ran.err
    seen = (tmp_path / "seen.txt").read_text().split()
    assert len(seen) >= 2
    assert set(seen) == {"True"}


def test_without_a_device_fake_tensors_are_used_unasked(tmp_path, ask, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ran = ask(tmp_path, "forecast", f"{MODELS}/plain.py:four_mebibytes", "--memory", "1208MiB", "--quiet")

    assert ran.status == 0, ran.err
    assert "from fake tensors, batch 61" in ran.out


def test_python_forecasts_a_live_module_that_trains(kept):
    module = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10))

    with kept.in_use():
        found = tputfind.forecast(
            module, memory=["2GiB", 2**30], phase="train", optimizer="adamw", input_size=(1024,), on_fake=True
        )

    small, large = found.cards
    assert small.memory_bytes == 2**30
    assert small.largest_batch < large.largest_batch
    # A sample keeps its input, the hidden layer before and after ReLU, and the gradients of both meanwhile.
    assert (large.largest_batch - small.largest_batch) * 4 * 4096 < 2**30
    assert "forecast, not measured" in repr(found)
    assert found.frame().shape[0] == 2 * (1 + len(found.variants))


@pytest.mark.parametrize(
    ("memory", "said"),
    [("16", "'16' is not a size"), ([], "--memory says for which"), (0, "is not between 1 and"), (None, "None")],
)
def test_forecast_in_python_refuses_invalid_memory(memory, said):
    with pytest.raises(BadRequest, match=said):
        tputfind.forecast("resnet18", memory=memory)


@pytest.mark.parametrize("options", [{"transfer": "h2d"}, {"mode": "compile"}, {"max_batch": 64}])
def test_forecast_in_python_refuses_options_that_it_would_ignore(options):
    with pytest.raises(BadRequest, match="does not take that into account"):
        tputfind.forecast("resnet18", memory="8GiB", on_fake=True, **options)


@pytest.mark.parametrize("options", [{"parallel": "ddp", "gpus": 2}, {"parallel": "fsdp", "device": "cuda:0,cuda:1"}])
def test_python_forecast_of_several_devices_is_refused(options):
    with pytest.raises(BadRequest, match="a forecast is of one device"):
        tputfind.forecast("resnet18", memory="8GiB", phase="train", on_fake=True, **options)
