"""Mistakes in a Python call are reported like a wrong option."""

import inspect

import pytest
import torch
from support.folders import RESULTS
from support.records import example

import tputfind
from tputfind.commands import options
from tputfind.errors import BadRequest
from tputfind.record.spec import read_spec
from tputfind.runners.compare import NOT_IN_TURN
from tputfind.runners.tune import read_request
from tputfind.sizing.planner.costs import Price

RECORD = example()
ASKED = {"rate": 5, "slo": 50.0}


class Listens:
    """A progress listener without the ``measured`` method, which was added later."""

    def doing(self, what, seconds_left):
        """Do nothing."""

    def did(self, what):
        """Do nothing."""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tputfind.size(1, **ASKED), "record 1: 1 is a int, not a Record"),
        (lambda: tputfind.size(RECORD, "file.json", **ASKED), "record 2: 'file.json' is a str, not a Record"),
        (lambda: tputfind.size(RECORD, prices=[1], **ASKED), "prices: number 0: 1 is a int, not a Price"),
        (lambda: tputfind.size(RECORD, prices=Price, **ASKED), "is a StructMeta, not a list of Price"),
        (lambda: tputfind.size(RECORD, **ASKED, colour="red"), "there is no option 'colour'"),
        (lambda: tputfind.size(RECORD, **ASKED, batchr="ray"), "there is no option 'batchr': did you mean batcher?"),
        (lambda: tputfind.size(RECORD, **ASKED, save="a.csv"), "there is no option 'save'"),
        (lambda: tputfind.find("resnet18", half=True), "there is no option 'half': did you mean dtype?"),
        (lambda: tputfind.find("resnet18", batch_size=5), "there is no option 'batch_size': did you mean batch_sizes?"),
        (lambda: tputfind.find("resnet18", max_batches=5), "'max_batches': did you mean max_batch"),
        (lambda: tputfind.find("resnet18", save="a.csv"), "there is no option 'save'"),
        (lambda: tputfind.compare(RECORD, None), "new: None is a NoneType, not a Record"),
        (lambda: tputfind.compare("a", RECORD), "old: 'a' is a str, not a Record"),
        (lambda: tputfind.compare("a", "b", slo="1ms", processes=5), "slo, processes: two models are timed in turn"),
        (lambda: tputfind.to_deploy("b.json"), "record: 'b.json' is a str, not a Record"),
        (lambda: tputfind.compare(RECORD, RECORD, tolerance="much"), "tolerance: 'much' is not a number"),
        (lambda: tputfind.compare(RECORD, RECORD, tolerance=None), "tolerance: None is not a number"),
        (lambda: tputfind.load_record(None), "path: None is a NoneType, not a str or Path"),
        (lambda: tputfind.load_record(5), "path: 5 is a int, not a str or Path"),
        (lambda: tputfind.find(5), "model: 5 is a int, not a name, module or function"),
        (lambda: tputfind.find("resnet18", batches=object()), "--batches: <object object at"),
        (lambda: tputfind.find("resnet18", progress=1), "progress: 1 is a int, without methods doing"),
        (lambda: tputfind.find("resnet18", progress=Listens()), "did(what), measured(record)"),
        (lambda: tputfind.find("resnet18", memory_limit=2**62), "--memory-limit: 4611686018427387904 is not between"),
    ],
)
def test_a_wrong_value_is_a_bad_request_in_one_line(call, message):
    with pytest.raises(BadRequest) as refused:
        call()

    assert message in refused.value.message
    assert "\n" not in refused.value.message
    assert isinstance(refused.value, ValueError)


def test_uncaught_error_shows_message_and_hint():
    with pytest.raises(BadRequest) as refused:
        tputfind.find("resnet18", max_batch="many")

    assert refused.value.hint
    assert str(refused.value) == f"{refused.value.message} ({refused.value.hint})"
    assert str(BadRequest("a message alone")) == "a message alone"


def test_find_shows_every_option_of_a_measurement_with_its_default():
    shown = inspect.signature(tputfind.find).parameters

    assert {option.name for option in options.MEASURING} < set(shown)
    assert (shown["dtype"].default, shown["batch_sizes"].default) == ("fp32", None)
    assert "fp16" in str(shown["dtype"].annotation)


def test_compare_refuses_from_python_what_its_command_lacks():
    of_models = {option.name for option in options.MEASURING} & set(inspect.signature(tputfind.find).parameters)
    have_an_effect = {"granularity", "transfer", "gpus", "parallel"}

    assert set(NOT_IN_TURN) == of_models - {option.name for option in options.IN_TURN} - have_an_effect


def test_a_notebook_completes_the_public_names():
    assert set(tputfind.__all__) == set(dir(tputfind))
    assert all(getattr(tputfind, name) is not None for name in dir(tputfind))


def test_the_batch_to_deploy_is_a_row_of_the_record():
    record = tputfind.load_record(RESULTS / "nvidia-h200/default/resnet50-fp16.json")

    assert tputfind.to_deploy(record).batch_size == 1024


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("dtype", torch.float16, "fp16"),
        ("dtype", torch.bfloat16, "bf16"),
        ("dtype", torch.float32, "fp32"),
        ("layout", torch.channels_last, "nhwc"),
        ("layout", torch.contiguous_format, "nchw"),
        ("device", torch.device("cuda", 1), "cuda:1"),
        ("device", ["cpu"], "cpu"),
        ("optimizer", torch.optim.AdamW, "adamw"),
        ("optimizer", torch.optim.Adafactor, "adafactor"),
    ],
)
def test_values_of_torch_are_taken_as_words_of_the_command_line(option, value, text):
    options = {option: value} | ({"phase": "train"} if option == "optimizer" else {})

    assert getattr(read_spec("resnet18", options), option) == text


@pytest.mark.parametrize("value", [torch.float64, torch.zeros(2), torch.nn.Linear, 1.5, ["fp16", 3]])
def test_other_values_are_refused_by_themselves(value):
    with pytest.raises(BadRequest) as refused:
        read_spec("resnet18", {"dtype": value})

    assert "is not one of fp32" in refused.value.message
    assert "''" not in refused.value.message


def test_race_takes_a_list_of_devices_as_their_text():
    devices = ["cpu:0", torch.device("cuda", 1)]

    asked = read_request("resnet18", {"device": devices}, "throughput", None, "")

    assert asked.devices == "cpu:0,cuda:1"
