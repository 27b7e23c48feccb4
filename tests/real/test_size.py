"""How many devices, asked through the command."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from support.command import run

RECORDS = Path(__file__).parents[2] / "results"


@pytest.fixture
def folder(tmp_path):
    for name in ("resnet50", "vit_b_16"):
        shutil.copy(RECORDS / f"{name}-fp16-nvidia-h200.json", tmp_path / f"{name}.json")
    return tmp_path


def test_a_record_a_rate_and_a_target_come_to_a_plan(folder):
    ran = run(folder, "size", "vit_b_16.json", "--rate", 40000, "--slo", "50ms")

    assert ran.status == 0, ran.err
    assert "40000 requests/s, 99 % within 50 ms" in ran.out
    assert "Devices        5, each with batches of up to" in ran.out
    assert "One fewer      4 " in ran.out
    assert "Nexus" in ran.out
    assert not (folder / "results").exists()


def test_several_records_are_ranked_and_written_in_three_forms(folder):
    (folder / "prices.csv").write_text(
        "device,price_per_hour,currency,source,date\nNVIDIA H200,3.5,EUR,my offer,2026-01-01\n"
    )
    files = ("--csv", "plans.csv", "--json", "plans.json", "--md", "plans.md")
    ran = run(
        folder,
        "size",
        "vit_b_16.json",
        "resnet50.json",
        "--rate",
        40000,
        "--slo",
        "50ms",
        "--price",
        "prices.csv",
        *files,
    )

    assert ran.status == 0, ran.err
    lines = list(csv.DictReader((folder / "plans.csv").open()))
    assert [line["model"] for line in lines] == ["resnet50", "vit_b_16"]
    assert float(lines[0]["cost_per_hour"]) == 3.5 * int(lines[0]["devices"])
    assert [plan["model"] for plan in json.loads((folder / "plans.json").read_text())["plans"]] == [
        "resnet50",
        "vit_b_16",
    ]
    assert "my offer 2026-01-01" in (folder / "plans.md").read_text()
    assert "17.50 EUR an hour" in ran.out


def test_a_curve_is_csv_on_the_standard_output(folder):
    ran = run(folder, "size", "resnet50.json", "--rate", 40000, "--slo", "50ms", "--curve")

    lines = list(csv.DictReader(io.StringIO(ran.out)))
    assert [float(line["rate_per_s"]) for line in lines] == [4000.0 * tenth for tenth in range(1, 13)]
    assert ran.err == ""


def test_recorded_arrivals_give_the_stream_its_shape(folder):
    times = [second for second in range(10) for _ in range(1000)]
    (folder / "times.csv").write_text("time_s\n" + "\n".join(map(str, times)) + "\n")
    options = ("size", "resnet50.json", "--rate", 20000, "--slo", "20ms", "--json", "plan.json")
    smooth = run(folder, *options)
    devices = json.loads((folder / "plan.json").read_text())["plans"][0]["outcome"]["devices"]
    bursty = run(folder, *options, "--arrivals", "times.csv")

    assert (smooth.status, bursty.status) == (0, 0), bursty.err
    assert json.loads((folder / "plan.json").read_text())["plans"][0]["outcome"]["devices"] > devices


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "no record to size from"),
        (("resnet50.json",), 2, "--rate is needed; --slo is needed"),
        (("resnet50.json", "--rate", 100, "--slo", "1ms"), 6, "no device is fast enough"),
        (("nothing.json", "--rate", 100, "--slo", "1s"), 2, "nothing.json"),
        (("times.csv", "--rate", 100, "--slo", "1s"), 2, "times.csv"),
        (("resnet50.json", "--rate", 100, "--slo", "1s", "--arrivals", "times.csv"), 2, "2 requests show no stream"),
        (
            ("resnet50.json", "--rate", 100, "--slo", "1s", "--arrivals", "prices.csv"),
            2,
            "--arrivals prices.csv: line 2: 'NVIDIA H200' is not a number",
        ),
        (
            ("resnet50.json", "--rate", 100, "--slo", "1s", "--price", "prices.csv"),
            2,
            "--price prices.csv: line 2: price_per_hour: 'cheap'",
        ),
        (
            ("resnet50.json", "--rate", 100, "--slo", "1s", "--price", "nothing.csv"),
            2,
            "nothing.csv: cannot be read: No such file",
        ),
        (("resnet50.json", "vit_b_16.json", "--rate", 100, "--slo", "1s", "--curve"), 2, "--curve follows one record"),
        (("resnet50.json", "--rate", 100, "--slo", "1s", "--csv", "times.csv/plan.csv"), 2, "times.csv"),
    ],
)
def test_what_cannot_be_sized_is_one_line(folder, arguments, status, message):
    (folder / "times.csv").write_text("1.0\n2.0\n")
    (folder / "prices.csv").write_text("device,price_per_hour,currency\nNVIDIA H200,cheap,EUR\nx,2,EUR\n")

    ran = run(folder, "size", *arguments)

    assert ran.status == status, ran.err
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""
