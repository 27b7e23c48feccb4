"""Linear layers in 8 bits, by torchao: `--dtype int8` and `fp8`."""

import pytest
import torch
from support.folders import MODELS
from torch import nn

import tputfind
from tputfind.report import snippet
from tputfind.worker.conversion import plain_tensors, quantize

QUICK = ("--device", "cpu", "--batch-sizes", 4, "--max-seconds", 0.2, "--processes", 1)
PLAIN = MODELS / "other_fields.py"


def kinds(record):
    return {notice.kind for notice in record.notices}


def test_linear_layers_are_measured_in_int8_and_said_to_be(tmp_path, ask):
    ran = ask(tmp_path, f"{PLAIN}:linear_layers", "--dtype", "int8", *QUICK)
    assert ran.status == 0, ran.err
    record = ran.record()

    bytes_by_dtype = record.rows[0].parameter_bytes
    assert 2 * 64 * 64 <= bytes_by_dtype["int8"] <= 1.1 * 2 * 64 * 64
    assert 2 * 2 * 64 <= bytes_by_dtype["bfloat16"] <= 4 * 2 * 64
    assert "quantized" in kinds(record)
    assert "dtypes" not in kinds(record)
    assert "quantize_(model, Int8DynamicActivationInt8WeightConfig())" in list(snippet.lines(record, 4))
    assert record.environment.torchao is not None


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (
            ("squeezenet1_1", "--image-size", 64, "--dtype", "int8"),
            2,
            "--dtype int8 quantises linear layers, and sq",
        ),
        (("resnet18", "--dtype", "fp8"), 3, "cpu cannot do --dtype fp8"),
        (("forecast", "vit_b_16", "--dtype", "int8", "--on-fake", "--memory", "24GiB"), 2, "torchao quantises no fake"),
        (("resnet18", "--dtype", "int8", "--phase", "train"), 2, "--dtype int8 quantises weights for inference"),
    ],
)
def test_quantisation_that_cannot_be_is_refused_in_one_line(tmp_path, ask, arguments, status, said):
    ran = ask(tmp_path, *arguments, *(() if "forecast" in arguments else QUICK))

    assert ran.status == status
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_race_of_dtypes_says_that_accuracy_is_not_judged(tmp_path, ask):
    ran = ask(
        tmp_path,
        *("tune", f"{PLAIN}:linear_layers", "--dtype", "bf16,int8", "--mode", "eager", "--device", "cpu:0"),
        *("--batch-sizes", 4, "--budget", "20s", "--save", "race.json"),
    )

    assert ran.status == 0, ran.err
    race = tputfind.load(tmp_path / "race.json")
    assert {one.spec.dtype for one in race.contenders} == {"bf16", "int8"}
    assert "check the accuracy on your data, which is not judged here" in " ".join(ran.out.split())


def test_quantised_model_computes_nearly_the_same():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(torch.bfloat16).eval()
    inputs = torch.randn(16, 64, dtype=torch.bfloat16)
    with torch.inference_mode():
        before = model(inputs).float()
        quantize(model, "int8", "model")
        after = model(inputs).float()

    assert not torch.equal(before, after)
    assert float((after - before).norm() / before.norm()) < 0.05
    assert {part.dtype for weight in model.parameters() for part in plain_tensors(weight)} >= {
        torch.int8,
        torch.bfloat16,
    }
