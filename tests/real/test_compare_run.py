"""Two models timed in interleaved rounds: ``tputfind compare --run``."""

import json
import os
import signal
import time

import psutil
import pytest
import torch
from support.command import start_command
from support.folders import MODELS, record_path

import tputfind

FILE = MODELS / "in_turn.py"
OLD, SLOWER = f"{FILE}:old", f"{FILE}:slower"
RUN = ("compare", "--run", "--device", "cpu", "--quiet")
ENDS_EARLY = ("--tolerance", "30%", "--budget", "30s")
"""A wide tolerance, within which equal models are soon known to be the same."""


def test_slower_model_is_reported_with_interval_and_fails_the_gate(tmp_path, ask):
    ran = ask(tmp_path, *RUN, OLD, SLOWER, "--fail-slower", "5%", "--save", "all.json", "--save", "pr.md")

    (saved,) = json.loads((tmp_path / "all.json").read_text())
    (row,) = saved["rows"]
    assert ran.status == 1, ran.err
    assert "slower by more than 5 %: in_turn.py:old and in_turn.py:slower" in ran.err
    assert row["verdict"] == "slower"
    assert row["ratio"] == pytest.approx(10.1 / 12.1, rel=0.05)
    assert row["low"] < row["ratio"] < row["high"] < 0.95
    assert (row["old_batch"], row["new_batch"]) == (32, 32)
    assert "SLOWER" in (tmp_path / "pr.md").read_text()
    assert [spec["model"] for spec in saved["variants"]] == [OLD, SLOWER]
    loaded = tputfind.load(tmp_path / "all.json")
    assert 3 <= len(loaded.turns[0].rounds) < 28
    assert loaded.seconds < 60
    assert "in turn: " in ran.out


def test_equal_model_passes_the_gate_early(tmp_path, ask):
    ran = ask(tmp_path, *RUN, OLD, OLD, "--fail-slower", "10%", "--batch-sizes", 8, "--save", "all.json")

    (saved,) = json.loads((tmp_path / "all.json").read_text())
    assert ran.status == 0, ran.err
    assert [row["low"] > 0.9 for row in saved["rows"]] == [True]
    assert saved["seconds"] < 55


def test_two_recipes_of_one_model_are_compared(tmp_path, ask):
    ran = ask(tmp_path, *RUN, f"{FILE}:by_layout", "--layout", "nchw,nhwc", "--batch-sizes", 4, *ENDS_EARLY)

    assert ran.status == 0, ran.err
    assert "in_turn.py:by_layout fp32 nchw eager and fp32 nhwc eager on " in ran.out


def test_models_too_large_together_take_turns(tmp_path, ask):
    variables = {"HELD": str(tmp_path / "held")}
    ran = ask(tmp_path, *RUN, f"{FILE}:large", f"{FILE}:large", *ENDS_EARLY, variables=variables)

    assert ran.status == 0, ran.err
    assert "ambiguous" in ran.out or "same" in ran.out


def test_batch_failing_in_new_is_regression_and_other_batches_are_judged(tmp_path, ask):
    arguments = (OLD, f"{FILE}:fails", "--batch-sizes", "8,16", "--save", "all.json", "--budget", "30s")
    ran = ask(tmp_path, *RUN, *arguments, "--fail-slower", "10%")

    (saved,) = json.loads((tmp_path / "all.json").read_text())
    assert ran.status == 1, ran.err
    assert [row["verdict"] == "not_comparable" for row in saved["rows"]] == [False, True]
    assert "error in NEW" in ran.out


def test_a_model_that_fails_is_named_with_its_own_traceback(tmp_path, ask):
    ran = ask(tmp_path, *RUN, OLD, f"{FILE}:fails_always", "--batch-sizes", "16")

    assert ran.status == 5
    assert "in_turn.py:fails_always fails at batch 16: ValueError: no more than 0, please" in ran.err
    assert "in forward" in ran.err


def test_steps_of_the_user_are_compared(tmp_path, ask):
    ran = ask(tmp_path, *RUN, f"{FILE}:step", f"{FILE}:step", *ENDS_EARLY)

    assert ran.status == 0, ran.err


def test_models_that_take_no_repeated_samples_are_compared(tmp_path, ask):
    model = f"{MODELS}/other_fields.py:unique_ids"

    ran = ask(tmp_path, *RUN, model, model, "--batch-sizes", 200, *ENDS_EARLY)

    assert ran.status == 0, ran.err
    assert "not comparable" not in ran.out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((OLD,), "--run compares two, and 1 are asked for"),
        ((OLD, OLD, "--mode", "eager,compile"), "--run compares two, and 4 are asked for"),
        ((OLD, OLD, "--force"), "--force is for records"),
        ((OLD, OLD, "--budget", "10ms"), "--budget ended before a batch was timed (give it more time)"),
        ((OLD, OLD, "--tolerance", "0.1%"), "a tolerance of 0.001 is not above"),
        ((OLD, "no/such.py:make"), "no/such.py"),
        (
            (OLD, f"{FILE}:fails", "--batch-sizes", 16),
            "fails fails at batch 16, and runs at 2 and 4: no more than 8, please",
        ),
    ],
)
def test_impossible_comparison_in_turn_is_refused_in_one_line(tmp_path, ask, arguments, line):
    ask(tmp_path, *RUN, *arguments).check_refused(2, line)


def test_measurement_options_with_records_are_refused(tmp_path, ask):
    ran = ask(tmp_path, "compare", "old.json", "new.json", "--dtype", "fp16", "--budget", "1min")

    assert ran.status == 2
    assert "--dtype, --budget: records hold what was measured; --run measures anew" in ran.err


def test_an_interruption_keeps_the_rounds_until_then(tmp_path):
    process = start_command(tmp_path, *RUN[:-1], OLD, OLD, "--budget", "10min", "--save", "all.json")
    while (line := process.stderr.readline()) and "round 1: NEW is" not in line:
        pass
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)

    assert (process.returncode, "the rounds until then are saved" in said) == (130, True), said
    assert len(tputfind.load(tmp_path / "all.json").turns[0].rounds) == 1


def test_an_interruption_leaves_no_process(tmp_path):
    process = start_command(tmp_path, *RUN, OLD, OLD)
    parent = psutil.Process(process.pid)
    until_s = time.monotonic() + 60
    while len(parent.children(recursive=True)) < 4 and time.monotonic() < until_s:  # two servers, and a child of each
        time.sleep(0.05)
    started = parent.children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)

    assert len(started) >= 4
    assert process.returncode == 130, said
    _, alive = psutil.wait_procs(started, timeout=5)
    assert not alive


def test_checkouts_of_a_package_import_their_own_modules(tmp_path, ask):
    for checkout, width in (("old", 16), ("new", 1024)):
        package = tmp_path / checkout / "package"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "layers.py").write_text(f"from torch import nn\n\nlayer = nn.Linear({width}, {width})\n")
        makes = "from package.layers import layer\n\n\ndef net():\n    return layer, lambda batch: torch.randn(batch, "
        (package / "net.py").write_text(f"import torch\n{makes}{width})\n")

    ran = ask(tmp_path, *RUN, "old/package/net.py:net", "new/package/net.py:net", *ENDS_EARLY)

    assert ran.status == 0, ran.err
    assert "parameters 272 and 1049600" in ran.out


def test_batch_size_that_nobody_named_is_one_that_both_models_take(tmp_path, ask):
    (tmp_path / "triplets.py").write_text(
        "import torch\n\n\nclass Triplets(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x.view(-1, 3, 64).sum(1)\n\n\ndef net():\n    return Triplets(), lambda n: torch.randn(n, 64)\n"
    )

    ran = ask(tmp_path, *RUN, "triplets.py:net", "triplets.py:net", *ENDS_EARLY)

    assert ran.status == 0, ran.err
    assert "(batch 30)" in ran.out


def test_modules_of_a_notebook_are_compared_in_turn(kept):
    class Slow(torch.nn.Module):
        def __init__(self, ms):
            super().__init__()
            self.ms = ms

        def forward(self, x):
            time.sleep(self.ms / 1000)
            return 2 * x

    def rows(batch):
        return torch.randn(batch, 4)

    with kept.in_use():
        compared = tputfind.compare(Slow(10), Slow(13), inputs=rows, device="cpu", fail_slower=0.1, batch_sizes=[4])

    assert compared.verdict == "slower"
    assert compared.model == "Slow (live)"
    with pytest.raises(tputfind.errors.BadRequest, match=r"old: .* is a Slow, not a Record"):
        tputfind.compare(Slow(1), tputfind.load_record(record_path("nvidia-h200/default/resnet50-fp16.json")))
