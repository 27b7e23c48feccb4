"""Lists of dtypes, layouts and modes, through the installed command."""

import pandas as pd
import pytest
import torch
from support.command import QUICK
from support.folders import MODELS

import tputfind
from tputfind.report import snippet
from tputfind.worker.workload import Workload, inference


def test_every_combination_is_measured_and_unsupported_ones_are_rows(tmp_path, ask):
    asked = ("--dtype", "fp32,tf32,bf16", "--layout", "nchw,nhwc", "--device", "cpu", "--batch-sizes", "2,4")

    ran = ask(tmp_path, "mobilenet_v3_small", "--image-size", 32, *asked, "--save", "all.csv", *QUICK)

    assert ran.status == 3
    assert "cpu cannot do --dtype tf32" in ran.err
    table = pd.read_csv(tmp_path / "all.csv")
    found = {(dtype, layout): list(rows["status"]) for (dtype, layout), rows in table.groupby(["dtype", "layout"])}
    assert found == {
        (dtype, layout): ["unsupported"] if dtype == "tf32" else ["ok", "ok"]
        for dtype in ("fp32", "tf32", "bf16")
        for layout in ("nchw", "nhwc")
    }
    assert [len(list((tmp_path / "results").glob(name))) for name in ("*.json", "*-nhwc-*.json")] == [6, 3]
    assert "mobilenet_v3_small in 6 recipes" in ran.out
    assert "Best recipe" in ran.out


def test_unsupported_dtype_of_model_does_not_end_the_list(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:has_no_kernel_in_fp16", "--dtype", "fp16,fp32", "--device", "cpu",
              "--batch-sizes", 1, "--save", "all.csv", "--no-save", *QUICK)  # fmt: skip

    assert ran.status == 3, ran.err
    assert "has_no_kernel_in_fp16 cannot do --dtype fp16" in ran.err
    table = pd.read_csv(tmp_path / "all.csv")
    assert dict(zip(table["dtype"], table["status"], strict=True)) == {"fp16": "unsupported", "fp32": "ok"}


def test_one_file_holds_the_records_of_all_recipes_and_each_command_reads_it(tmp_path, ask):
    once = ("--device", "cpu", "--batch-sizes", 2, "--no-save", "--save", "all.json", *QUICK)
    recipes = (f"{MODELS}/plain.py:keyword_inputs", "--dtype", "fp32,bf16", *once)

    assert ask(tmp_path, *recipes).status == 0
    again = ask(tmp_path, *recipes)
    other = ask(tmp_path, f"{MODELS}/plain.py:keyword_inputs", "--dtype", "fp32", *once)
    shown = ask(tmp_path, "report", "all.json")
    compared = ask(tmp_path, "compare", "all.json", "all.json")
    planned = ask(tmp_path, "size", "all.json", "--rate", 1, "--slo", "10s")
    resumed = ask(tmp_path, "--resume", "all.json")

    assert (again.status, again.out) == (0, shown.out)
    assert "y = model(**x)" in shown.out
    assert other.status == 2
    assert "--save all.json holds another measurement: runs (2 there, 1 here)" in other.err
    assert (compared.status, compared.out.count("NEW over OLD")) == (0, 2)
    assert planned.status == 0, planned.err
    assert all(recipe in planned.out for recipe in ("fp32 nchw eager", "bf16 nchw eager"))
    assert resumed.status == 2
    assert "all.json holds a list of results" in resumed.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--dtype", "fp32,fp23"], "'fp23' is not one of fp32, tf32"),
        (["--dtype", "fp32,"], "'' is not one of fp32, tf32"),
    ],
)
def test_a_wrong_list_is_one_line_before_anything_is_measured(tmp_path, ask, arguments, expected):
    ask(tmp_path, f"{MODELS}/compiled.py:small", "--device", "cpu", *arguments).check_refused(2, expected)


@pytest.mark.parametrize(
    "model", [("vit_b_16", "--image-size", 32), ("timm:vit_tiny_patch16_224", "--phase", "train", "--grad-checkpoint")]
)
def test_the_lines_of_python_build_models_of_other_sizes_and_options(tmp_path, ask, model):
    ran = ask(tmp_path, *model, "--device", "cpu", "--batch-sizes", 2, *QUICK)
    record = tputfind.load_record(next((tmp_path / "results").glob("*.json")))
    lines = "\n".join(snippet.lines(record, 2)).replace("pretrained=True", "pretrained=False")  # not downloaded

    exec(lines, names := {"labels": torch.tensor([0, 1])})

    assert ran.status == 0, ran.err
    assert names["y"].shape == (2, 1000)


@pytest.mark.parametrize("more", [(), ("--layout", "nhwc", "--dtype", "amp-bf16"), ("--phase", "train")])
def test_the_lines_of_python_run_as_they_stand_and_compute_the_same(tmp_path, ask, more):
    ran = ask(tmp_path, "mobilenet_v3_small", "--image-size", 32, "--device", "cpu", "--batch-sizes", 2, *more, *QUICK)
    record = tputfind.load_record(next((tmp_path / "results").glob("*.json")))
    lines = "\n".join(snippet.lines(record, 2)).replace('weights="DEFAULT"', "weights=None")  # not downloaded

    names = {"labels": torch.tensor([0, 1])}
    exec(lines, names)

    assert ran.status == 0, ran.err
    assert names["y"].shape == (2, 1000)
    if record.spec.phase == "infer":
        workload = Workload(record.spec, torch.device("cpu"))
        with inference():
            batch = workload.batch(2)
            expected = batch()
            names["model"].load_state_dict(workload._module.state_dict())
            exec("x = given\n" + lines[lines.index("with ") :], names | {"given": batch._inputs[0][0]}, again := {})
        assert torch.equal(again["y"], expected)
