"""The Python lines of a snippet run a model as it was measured."""

import pytest
from msgspec.structs import replace
from support.records import example

from tputfind.report import snippet


def lines_of(parameters=None, seen=(), **fields):
    record = example()
    rows = tuple(replace(row, parameter_bytes=parameters or {}, seen=seen) for row in record.rows)
    record = replace(record, spec=replace(record.spec, **fields), rows=rows)
    return "\n".join(snippet.lines(record, 4))


@pytest.mark.parametrize(
    ("mode", "line"),
    [
        ("inference", "with torch.inference_mode():"),
        ("no_grad", "with torch.no_grad():"),
        ("enabled", "with torch.enable_grad():"),
    ],
)
def test_snippet_uses_grad_mode_of_the_measurement(mode, line):
    assert line in lines_of(grad_mode=mode)


@pytest.mark.parametrize(
    ("mode", "argument"),
    [("compile:max-autotune", 'mode="max-autotune"'), ("compile:openvino", 'backend="openvino"')],
)
def test_snippet_of_a_compiled_model_names_torch_mode_or_backend(mode, argument):
    assert f"model = torch.compile(model, dynamic=False, {argument})" in lines_of(mode=mode)


def test_snippet_keeps_dtype_of_model_measured_as_made():
    assert 'model = model.to("cuda")\n' in lines_of(dtype="own")


def test_snippet_keeps_complex_weights_and_explains_conversion():
    text = lines_of({"complex64": 8, "float16": 8}, dtype="fp16")

    assert 'model = model.to("cuda")  # and its real floating-point parameters to torch.float16' in text
    assert 'model = model.to("cuda", torch.float16)' in lines_of({"float16": 8}, dtype="fp16")


def test_a_snippet_accumulates_as_it_was_measured():
    text = lines_of(seen=("loss_stand_in",), phase="train", dtype="bf16", accumulate=4)

    assert "for x, labels in batches:  # 4 of them\n    with torch" in text
    assert "labels) / 4\n    loss.backward()\noptimizer.step()" in text


@pytest.mark.parametrize(("model", "loss"), [("net.py:make", "..."), ("hf:bert-base-uncased", "y.loss")])
def test_snippet_of_a_model_with_a_loss_takes_that_loss(model, loss):
    text = lines_of(model=model, phase="train", dtype="bf16")

    assert f"loss = {loss}  # the loss that the model returns\nloss.backward()" in text
    assert "cross_entropy" not in text


def test_snippet_of_a_lightning_module_trains_by_its_own_optimizers():
    text = lines_of(seen=("own_optimizers",), phase="train", dtype="amp-bf16", accumulate=4, clip=0.5)

    asked = 'accelerator="cuda", precision="bf16-mixed", accumulate_grad_batches=4, gradient_clip_val=0.5, devices=1'
    assert text.endswith(f"import lightning\nlightning.Trainer({asked}).fit(model, [x])")
    assert "torch.optim" not in text


@pytest.mark.parametrize(("seen", "inputs"), [((), "x"), (("several_inputs",), "*x"), (("named_inputs",), "**x")])
def test_snippet_gives_inputs_to_the_model_as_it_takes_them(seen, inputs):
    assert f"    y = model({inputs})" in lines_of(seen=seen)
