"""Compiled models: one program per batch size, compared with eager mode, and never silently uncompiled."""

import shutil

import pandas as pd
import pytest
from support.command import QUICK
from support.folders import MODELS

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
COMPILED = ("--device", "cpu", "--mode", "compile", *QUICK)
CAPTURED = ("--device", "cpu", "--mode", "compile:aot_eager", *QUICK)
"""Capture and checks of ``compile``, without a C++ compiler, which takes seconds a program."""


@needs_compiler
def test_compiled_model_is_checked_against_eager_with_compile_times(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/compiled.py:small", "--batch-sizes", 2, "--save", "table.csv", *COMPILED)

    assert ran.status == 0, ran.err
    (row,) = ran.record().rows
    assert row.output.result == "right"
    (line,) = pd.read_csv(tmp_path / "table.csv").to_dict("records")
    assert (line["mode"], line["graphs"]) == ("compile", 1)
    assert line["compile_s"] == pytest.approx(row.timings[0].compiled.seconds, rel=1e-4)
    assert row.timings[0].compiled.seconds > 0.2  # compiled from scratch
    assert "compile s" in ran.out


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("way", ["freezing", "reduce-overhead", "max-autotune", "aot_eager"])
def test_each_compile_variant_computes_like_eager(tmp_path, ask, way):
    asked = (f"{MODELS}/compiled.py:small", "--device", "cpu", "--batch-sizes", 2, "--mode", f"compile:{way}", *QUICK)
    ran = ask(tmp_path, *asked)

    assert ran.status == 0, ran.err
    (row,) = ran.record().rows
    assert row.output.result == "right"
    assert row.timings[0].compiled.graphs == 1


def test_backend_that_torch_lacks_is_refused_with_those_that_it_lists(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/compiled.py:small", "--device", "cpu", "--mode", "compile:frezing", "--quiet")

    assert ran.status == 3
    assert "--mode compile:frezing: cpu has no backend frezing of torch.compile: installed are " in ran.err
    assert "inductor" in ran.err


def test_weights_that_are_constants_cannot_be_trained(tmp_path, ask):
    ran = ask(tmp_path, "resnet18", "--phase", "train", "--mode", "compile:freezing", "--quiet")

    assert ran.status == 2
    assert "--mode compile:freezing makes constants of weights, which --phase train changes" in ran.err


@pytest.mark.slow
@needs_compiler
def test_search_compiles_every_batch_and_reports_graph_breaks(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/compiled.py:in_pieces", "--max-batch", 2, *COMPILED)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.edge.largest_batch, record.edge.limited_by) == (2, "cap")
    assert [trial.compiled.graphs for trial in record.trials] == [2] * len(record.trials)
    assert "torch.compile left parts of batch 1, 2 to Python, graphs made: 2" in " ".join(ran.out.split())


@pytest.mark.slow
@needs_compiler
def test_single_graph_break_is_reported(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/compiled.py:in_part", "--batch-sizes", 2, *COMPILED)

    assert ran.status == 0, ran.err
    assert "torch.compile left parts of batch 2 to Python" in " ".join(ran.out.split())


@pytest.mark.slow
@needs_compiler
def test_failing_model_under_compile_shows_its_own_error(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/compiled.py:wrong", "--batch-sizes", 2, "--quiet", *COMPILED)

    assert ran.status == 5
    assert "mat1 and mat2 shapes cannot be multiplied (2x3 and 8x16)" in ran.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (
            "for_ever",
            (
                "cannot do --dtype fp32 --layout nchw --mode compile:aot_eager on cpu: "
                "more than 8 versions of one function are compiled; TORCH_LOGS=recompiles says why"
            ),
        ),
        ("compiled_something_else", "torch.compile compiles nothing of it (--mode eager runs the model as it is)"),
    ],
)
def test_uncompiled_run_is_refused_in_one_line(tmp_path, ask, factory, expected):
    ask(tmp_path, f"{MODELS}/compiled.py:{factory}", "--batch-sizes", 2, "--quiet", *CAPTURED).check_refused(
        3, expected
    )


def test_each_batch_size_is_compiled_and_compared_with_eager(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/compiled.py:otherwise", "--batch-sizes", "1,2,4", *CAPTURED)

    assert ran.status == 0, ran.err
    *right, wrong = ran.record().rows
    assert [row.output.result for row in right] == ["right", "right"]
    assert [row.timings[0].compiled.graphs for row in right] == [1, 1]
    assert wrong.status == "wrong_output"
    assert "(relative)" in wrong.failure.message
    assert "--mode eager runs the model as it is" in ran.out


def test_a_cuda_graph_takes_a_cuda_device(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/compiled.py:small", "--device", "cpu", "--mode", "cudagraph", "--quiet")

    assert ran.status == 3
    assert "--mode cudagraph: cpu has no CUDA graphs" in ran.err
