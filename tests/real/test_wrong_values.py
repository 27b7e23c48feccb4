"""Invalid option values are refused by the command in one line, before any measurement."""

import json

import pytest
from support.command import TINY
from support.folders import record_path

LONG = "x" * 100_000


RECORD = record_path("nvidia-h200/earlier/resnet50-fp16.json")


THEIRS = {
    "-b 8": "--batch-sizes",
    "--bs 8": "--batch-sizes",
    "--half": "--dtype fp16",
    "--fp16": "--dtype fp16",
    "--amp": "--dtype amp-fp16",
    "--precision fp16": "--dtype",
    "--channels-last": "--layout nhwc",
    "--gpu 0": "--device",
    "--cpu": "--device cpu",
    "--compile": "--mode compile",
    "--train": "--phase train",
    "--size 224": "--image-size",
    "--shape 3x224x224": "--input-size",
    "--iters 10": "--batches",
    "--pretrained": "--weights DEFAULT",
    "--seq-len 128": "--sequence-length",
    "--timeout 60": "--budget",
    "--threads 2": "OMP_NUM_THREADS before the command",
    "--list": "tputfind models",
}
"""Options of other tools, and their names here."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet18", "--memory-limit", "8EiB"), "--memory-limit: '8EiB' is more than 1 EiB"),
        (("resnet18", "--headroom", "8EiB"), "--headroom: '8EiB' is more than 1 EiB"),
        (("resnet18", "--max-seconds", "1e300"), "--max-seconds: '1e300' is more than 360000 seconds"),
        (("resnet18", "--trial-timeout", "1e20s"), "--trial-timeout: '1e20s' is not a duration"),
        (("resnet18", "--input-size", "99999999999"), "--input-size: 99999999999 is not between 1 and 2147483647"),
        (("resnet18", "--input", f"x:float:Bx{'9x' * 9999}9"), "--input: 10000 dimensions are more than 24"),
        (("resnet18", "--batch-sizes", ",".join(map(str, range(1, 12_000)))), "11999 numbers are more than 10000"),
        (("resnet18", "--batch-sizes", LONG), "'xxx"),
        (("clocks", "resnet18", "--repeats", LONG), "--repeats: 'xxx"),
        (("clocks", "resnet18", "vgg11", "--host-work", LONG), "--host-work: 'xxx"),
        (("forecast", "resnet18", "--memory", "16GiB,8EiB"), "--memory: '8EiB' is more than 1 EiB"),
        (("compare", "old.json", "new.json", "--tolerance", LONG), "--tolerance: 'xxx"),
        (("models", LONG), "no model's name matches 'xxx"),
    ],
)
def test_a_value_that_no_option_takes_is_one_short_line(tmp_path, ask, arguments, message):
    ran = ask(tmp_path, *arguments)

    ran.check_refused(2, message)
    assert len(ran.err) < 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet18", "--dtype", "half"), "did you mean fp16?"),
        (("resnet18", "--dtype", "float16"), "did you mean fp16?"),
        (("resnet18", "--dtype", "amp"), "did you mean amp-fp16 or amp-bf16?"),
        (("resnet18", "--mode", "graph"), "did you mean cudagraph?"),
        (("resnet18", "--layout", "channels_last"), "did you mean nhwc?"),
        (("resnet18", "--device", "gpu"), "did you mean cuda?"),
        (("resnet18", "--percentile", "0.99"), "did you mean 99?"),
        (("size", RECORD, "--rate", "5", "--slo", "1s", "--percentile", "0.95"), "did you mean 95?"),
        (("size", RECORD, "--rate", "5", "--slo", "1s", "--batcher", "tritn"), "did you mean triton?"),
        (("report", RECORD, "--slo", "50"), "did you mean 50ms or 50s? (see tputfind report --help)"),
        (("resnet18", "--memory-limit", "24g"), "did you mean 24GiB or 24GB?"),
        (("resnet18", "--headroom", "0.05"), "did you mean 5%?"),
        (("resnet18", "--max-batch", "4k"), "did you mean 4000 or 4096?"),
        (("resnet18", "--max-batch", "128,256"), "did you mean 128256?"),
        (("resnet18", "--image-size", "224,224"), "--input-size takes shapes, such as 3x640x480"),
        (("resnet18", "--input-size", "3,224,224"), "put x between numbers"),
        (("resnet18", "--batch-sizes", "1,024"), "write 1000 for 1,000"),
        (("resnet18", "--batchsize", "8"), "there is no option --batchsize: did you mean --batch-sizes?"),
        (("resnet18", "--batch-size", "8"), "not of tputfind run: did you mean --batch-sizes?"),
        (
            ("resnet18", "--devices", "all"),
            "--devices is an option of tputfind size, not of tputfind run: did you mean --device?",
        ),
        (("size", RECORD, "--max-batch", "8"), "not of tputfind size: did you mean --max-batch-size?"),
        (("forecast", "resnet18", "--memory-limit", "8GiB"), "not of tputfind forecast: did you mean --memory?"),
        (("--model", "resnet18"), "the model is the first word, as in tputfind resnet50 (see"),
        (("clocks", "--model", "resnet18"), "as in tputfind clocks resnet50 (see"),
        (
            ("size", RECORD, "--rate", 5, "--slo", "1s", "--price", "a.csv", "--price", "b.csv"),
            "--price takes one file, and 2 are named: a.csv, b.csv",
        ),
        (("report", RECORD, "--csv", "a.csv"), "there is no option --csv: did you mean --save FILE.csv? (see"),
        (("resnet18", "--plot", "a.svg"), "there is no option --plot: did you mean --save FILE? (see"),
        (("compare", "a.json", "b.json", "--md", "a.md"), "did you mean --save FILE.md? (see tputfind compare --help)"),
        *((("resnet18", *theirs.split()), f"did you mean {ours}?") for theirs, ours in THEIRS.items()),
        (("size", RECORD, "--qps", "100"), "did you mean --rate?"),
        (("size", RECORD, "--gpus", "2"), "did you mean --devices?"),
        (("size", RECORD, "--sla", "50ms"), "did you mean --slo?"),
        (("forecast", "resnet18", "--vram", "24GiB"), "did you mean --memory?"),
        (("resnet18", "--ddp"), "did you mean --parallel ddp?"),
        (("resnet18", "--batch-sizes", "1-32"), "'1-32' has no commas: put them between numbers, such as 1,32"),
        (("--quiet", "resnet18", "--batch-sizes", "1", "2", "--no-save", "--device", "cpu"), "--batch-sizes 1,2,4)"),
        (("--versoin",), "there is no option --versoin: did you mean --version?"),
        (("resnet18", "--rate", "5k"), "--rate is an option of tputfind size, not of tputfind run"),
        (("resnet18", "-d", "cpu"), "names of options begin with two dashes"),
        (("reprot", RECORD), "there is no command or model 'reprot' (did you mean tputfind report?)"),
        (("help",), "did you mean tputfind --help?"),
        ((RECORD.name,), "is not a model (did you mean tputfind report?)"),
        (("models", "rsnet50"), "did you mean resnet50?"),
        (("compare", "old.json"), "name OLD and NEW: 1 are given (see tputfind compare --help)"),
    ],
)
def test_the_message_names_the_nearest_right_one(tmp_path, ask, arguments, message):
    ran = ask(tmp_path, *arguments)

    ran.check_refused(2, message)
    assert ran.err.startswith("tputfind: ")


@pytest.mark.parametrize("rate", ["5k QPS", "5000rps"])
def test_a_rate_is_understood_as_people_write_it(tmp_path, ask, rate):
    asked = ("size", RECORD, "--slo", "50 ms", "--percentile", "p99", "--batcher", "Triton", "--save", "plans.json")
    ran = ask(tmp_path, *asked, "--rate", rate)

    assert ran.status == 0, ran.err
    demand = json.loads((tmp_path / "plans.json").read_bytes())["plans"][0]["demand"]
    assert (demand["rate_per_s"], demand["percentile"], demand["batcher"]) == (5000, 99, "triton")


def test_two_spellings_of_a_dtype_are_measured_once(tmp_path, ask):
    ran = ask(tmp_path, "shufflenet_v2_x0_5", *TINY, "--dtype", "FP32,fp32", "--save", "all.csv", "--no-save")

    assert ran.status == 0, ran.err
    assert (tmp_path / "all.csv").read_text().count("\n") == 2
