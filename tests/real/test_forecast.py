"""`tputfind forecast` on a machine without a GPU."""

from __future__ import annotations

import csv

import pytest
from support.command import run
from support.folders import MODELS

ON_FAKE = ("--on-fake", "--device", "cpu")


def test_forecasts_on_fake_tensors_are_marked_as_such_and_written(tmp_path):
    asked = ("resnet18", "--dtype", "fp16", "--memory", "2GiB,1GiB,4GiB,800MiB")
    ran = run(tmp_path, "forecast", *asked, *ON_FAKE, "--save", "cards.csv")

    assert ran.status == 0, ran.err
    assert "forecast, not measured" in ran.out
    assert "from fake tensors, batch 61" in ran.out
    lines = [*csv.DictReader((tmp_path / "cards.csv").open())]
    assert [line["memory_gib"] for line in lines] == ["0.78125", "1", "2", "4"]
    batches = [int(line["largest_batch_forecast"]) for line in lines]
    assert batches == sorted(batches)
    assert batches[0] > 0
    assert all(float(line["error_percent"]) >= 10 for line in lines)


def test_the_forecast_of_a_known_model_is_the_one_that_arithmetic_gives(tmp_path, ask):
    """A sample is 4 MiB and its output 4 bytes; context and libraries count for 692 MiB."""
    factory = f"{MODELS}/plain.py:four_mebibytes"
    ran = ask(tmp_path, "forecast", factory, "--memory", "1208MiB", *ON_FAKE, "--save", "cards.csv")

    assert ran.status == 0, ran.err
    (line,) = csv.DictReader((tmp_path / "cards.csv").open())
    # Beside a segment of 2 MiB for inputs and outputs, 514 MiB are left.
    assert int(line["largest_batch_forecast"]) == 128


def test_memory_in_which_nothing_fits_is_said_to_be_so(tmp_path, ask):
    ran = ask(tmp_path, "forecast", "resnet18", "--memory", "64MiB", *ON_FAKE)

    assert ran.status == 0, ran.err
    assert "none fits" in ran.out


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
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, ask, arguments, said):
    ran = ask(tmp_path, "forecast", *arguments, *ON_FAKE, "--quiet")

    assert ran.status == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""


def test_without_a_gpu_a_forecast_points_to_fake_tensors(tmp_path, ask):
    ran = ask(tmp_path, "forecast", "resnet18", "--memory", "16GiB", "--device", "cpu", "--quiet")

    assert ran.status == 2
    assert "--on-fake" in ran.err
