"""The number of devices, through the command."""

import csv
import json
import re
import shutil

import msgspec
import numpy as np
import pytest
from support.command import run
from support.folders import record_path

from tputfind import load_record
from tputfind.record.record import Record

PROGRESS = re.compile(r"resnet50: simulating \d+ devices? with batches of up to \d+\n")
"""Progress lines of a plan that takes longer than two seconds."""


@pytest.fixture
def folder(tmp_path):
    for name in ("resnet50", "vit_b_16"):
        shutil.copy(record_path(f"nvidia-h100/default/{name}-fp16.json"), tmp_path / f"{name}.json")
    return tmp_path


def test_a_record_a_rate_and_a_target_come_to_a_plan(folder):
    ran = run(folder, "size", "vit_b_16.json", "--rate", 40000, "--slo", "50ms")

    assert ran.status == 0, ran.err
    assert "40000 requests/s, 99 % within 50 ms" in ran.out
    assert "Devices        5, on 1 host of 8: batches of up to" in ran.out
    assert "One fewer      4, with batches" in ran.out
    assert "Rules of thumb 4 to 5 devices, by formulas instead of simulation" in ran.out
    assert not (folder / "results").exists()


def test_plans_of_two_models_stand_apart_and_are_written_in_three_forms(folder, ask):
    (folder / "prices.csv").write_text(
        "device,price_per_hour,currency,source,date\nNVIDIA H100 80GB HBM3,3.5,EUR,my offer,2026-01-01\n"
    )
    files = ("--save", "plans.csv", "--save", "plans.json", "--save", "plans.md")
    ran = ask(
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
    assert [line["model"] for line in lines] == ["vit_b_16", "resnet50"]
    assert float(lines[0]["cost_per_hour"]) == 3.5 * int(lines[0]["devices"])
    written = json.loads((folder / "plans.json").read_text())
    assert [plan["model"] for plan in written["plans"]] == ["vit_b_16", "resnet50"]
    assert written["together"]["devices"] == sum(int(line["devices"]) for line in lines)
    assert "by cost" not in ran.out
    assert f"Together       {written['together']['devices']} devices" in ran.out
    assert "my offer 2026-01-01" in (folder / "plans.md").read_text()
    assert "17.50 EUR an hour" in ran.out


def test_missing_price_lists_the_devices_of_the_file(folder):
    (folder / "prices.csv").write_text("device,price_per_hour,currency\nH200,4,EUR\nL4,1.5,EUR\n")
    ran = run(folder, "size", "resnet50.json", "--rate", 100, "--slo", "50ms", "--price", "prices.csv")

    assert ran.status == 0
    assert "--price has none of NVIDIA H100 80GB HBM3 (it names H200, L4)" in ran.err


def other_kind(name: str, times: float = 3.0) -> Record:
    """Return a record with power readings, as a device that is ``times`` times as slow would make it."""
    made = load_record(record_path("nvidia-h200/kinds/hf-gpt2-bf16.json"))
    rows = [
        msgspec.structs.replace(
            row,
            timings=tuple(
                msgspec.structs.replace(
                    timing,
                    device_ms=tuple(times * span_ms for span_ms in timing.device_ms),
                    latency_ms=tuple(times * span_ms for span_ms in timing.latency_ms),
                )
                for timing in row.timings
            ),
        )
        for row in made.rows
        if row.batch_size <= 16
    ]
    environment = msgspec.structs.replace(made.environment, device_name=name)
    return msgspec.structs.replace(made, rows=tuple(rows), environment=environment)


def test_two_kinds_of_devices_come_to_a_mix_and_to_their_power(folder, ask):
    (folder / "large.json").write_bytes(other_kind("Large", 1.0).to_json())
    (folder / "small.json").write_bytes(other_kind("Small").to_json())
    (folder / "prices.csv").write_text("device,price_per_hour,currency\nLarge,4,EUR\nSmall,1.5,EUR\n")
    demand = ("--rate", 250, "--slo", "400ms", "--percentile", 90)
    ran = ask(folder, "size", "large.json", "small.json", *demand, "--price", "prices.csv")

    assert ran.status == 0, ran.err
    assert len(re.findall(r"^Mix  ", ran.out, re.MULTILINE)) == 1
    assert len(re.findall(r"^Power  .* W for all devices", ran.out, re.MULTILINE)) == 2


def test_model_too_slow_for_target_exits_with_6_after_other_plans(folder, ask):
    """99 % of single samples take up to 4.9 ms for ResNet-50, and up to 5.1 ms for ViT-B/16."""
    ran = ask(folder, "size", "resnet50.json", "vit_b_16.json", "--rate", 1, "--slo", "5ms")

    assert ran.status == 6
    assert "no device is fast enough" in ran.err
    assert "resnet50 fp16 nchw eager on NVIDIA H100 80GB HBM3: 1" in ran.out
    assert "Together" not in ran.out


def test_size_of_records_without_an_answer_names_their_files(folder, ask):
    record = load_record(folder / "resnet50.json")
    rows = tuple(msgspec.structs.replace(row, timings=()) for row in record.rows)
    for name in ("one.json", "two.json"):
        (folder / name).write_bytes(msgspec.structs.replace(record, rows=rows).to_json())

    beside = ask(folder, "size", "one.json", "resnet50.json", "--rate", 1, "--slo", "1s")
    alone = ask(folder, "size", "one.json", "two.json", "--rate", 1, "--slo", "1s")

    assert beside.status == 0
    assert PROGRESS.sub("", beside.err).startswith("tputfind: one.json: the record of resnet50 has no row with")
    assert alone.status == 2
    assert sorted(line.split(": ")[1] for line in alone.err.splitlines()) == ["one.json", "two.json"]


def test_devices_too_few_for_one_model_exit_with_6(folder, ask):
    """Plans of different models are not alternatives: ResNet-50 does not serve the requests of ViT-B/16."""
    ran = ask(folder, "size", "resnet50.json", "vit_b_16.json", "--devices", 4, "--rate", 40000, "--slo", "200ms")

    assert ran.status == 6
    assert "vit_b_16: the devices do not meet the target" in ran.err
    assert "resnet50: the devices" not in ran.err


def test_long_simulation_shows_progress_separately_from_the_plan(folder):
    """The simulation follows each request of a fleet, and takes some seconds."""
    ran = run(folder, "size", "resnet50.json", "--rate", "5e4", "--slo", "100ms", "--routing", "least-loaded")

    assert ran.status == 0, ran.err
    assert PROGRESS.search(ran.err)
    assert PROGRESS.sub("", ran.err) == ""
    assert "simulating" not in ran.out


def test_rare_requests_take_as_long_as_a_lone_one(folder, ask):
    alone_ms = load_record(folder / "resnet50.json").row(1).latency_ms

    for rate in ("0.5", "1e-9"):
        ran = ask(folder, "size", "resnet50.json", "--rate", rate, "--slo", "50ms", "--save", "plan.json")
        assert ran.status == 0, ran.err
        assert PROGRESS.sub("", ran.err) == "saved plan.json\n"
        outcome = json.loads((folder / "plan.json").read_text())["plans"][0]["outcome"]

        assert outcome["devices"] == 1
        assert outcome["mean_ms"] == pytest.approx(np.mean(alone_ms), rel=0.01)
        for percent in (50, 95, 99):
            # With 100 latencies a percentile lies between two, and chance decides between neighbours.
            least_ms, most_ms = np.percentile(alone_ms, (percent - 2, min(percent + 2, 100)))
            assert least_ms <= outcome[f"p{percent}_ms"] <= most_ms


def test_recorded_arrivals_give_the_stream_its_shape(folder, ask):
    times = [second for second in range(10) for _ in range(1000)]
    (folder / "times.csv").write_text("time_s\n" + "\n".join(map(str, times)) + "\n")
    options = ("size", "resnet50.json", "--rate", 20000, "--slo", "20ms", "--save", "plan.json")
    smooth = ask(folder, *options)
    devices = json.loads((folder / "plan.json").read_text())["plans"][0]["outcome"]["devices"]
    bursty = ask(folder, *options, "--arrivals", "times.csv")

    assert (smooth.status, bursty.status) == (0, 0), bursty.err
    assert json.loads((folder / "plan.json").read_text())["plans"][0]["outcome"]["devices"] > devices


def test_recorded_requests_have_their_own_samples(folder, ask):
    lines = [f"{0.01 * number},{8 if number % 4 == 1 else 1}" for number in range(4001)]
    (folder / "times.csv").write_text("time_s,samples\n" + "\n".join(lines) + "\n")
    options = ("size", "resnet50.json", "--rate", 2000, "--slo", "50ms", "--batcher", "triton", "--save", "plan.json")
    ran = ask(folder, *options, "--arrivals", "times.csv")

    assert ran.status == 0, ran.err
    assert PROGRESS.sub("", ran.err) == "saved plan.json\n"
    assert "1 (75 %), 8 (25 %) samples, 2.75 on average: 5500 samples/s; each stays in one batch" in " ".join(
        ran.out.split()
    )
    plan = json.loads((folder / "plan.json").read_text())["plans"][0]
    assert plan["samples_per_s"] == 5500
    assert plan["demand"]["counts"] is None


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "no record to size from"),
        (("resnet50.json",), 2, "name two of --rate, --slo and --devices"),
        (("resnet50.json", "--rate", 100, "--slo", "1ms"), 6, "no device is fast enough"),
        (("nothing.json", "--rate", 100, "--slo", "1s"), 2, "nothing.json"),
        (("times.csv", "--rate", 100, "--slo", "1s"), 2, "times.csv"),
        (("resnet50.json", "--rate", 100, "--slo", "1s", "--arrivals", "times.csv"), 2, "2 requests are not from 100"),
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
        (("resnet50.json", "--rate", 100, "--slo", "1s", "--arrivals", "/dev/zero"), 2, "is larger than 128 MiB"),
        (("resnet50.json", "--rate", 100, "--slo", "1s", "--curve"), 2, "there is no option --curve"),
        (("resnet50.json", "--rate", 100, "--slo", "1s", "--save", "times.csv/plan.csv"), 2, "times.csv"),
    ],
)
def test_wrong_size_request_is_refused_in_one_line(folder, ask, arguments, status, message):
    (folder / "times.csv").write_text("1.0\n2.0\n")
    (folder / "prices.csv").write_text("device,price_per_hour,currency\nNVIDIA H200,cheap,EUR\nx,2,EUR\n")

    ask(folder, "size", *arguments).check_refused(status, message)


def test_server_logs_give_overheads_and_prediction_error(folder, ask):
    shutil.copy(record_path("nvidia-h200/serving/vit_l_16-fp32.json"), folder / "vit_l_16.json")
    with np.load(record_path("nvidia-h200/serving/mosec-vit_l_16-fp32.npz")) as file:
        for load, name in (("0.1", "light"), ("0.5", "half")):
            sent_ms, latency_ms, _, step_ms, begun_ms = file[load].T
            columns = (sent_ms, sent_ms + latency_ms, begun_ms, begun_ms + step_ms)
            with (folder / f"{name}.csv").open("w", newline="") as log:
                csv.writer(log).writerows(
                    [("sent", "answered", "begun", "ended"), *np.column_stack(columns).round(3) / 1000]
                )
    asked = ("size", "vit_l_16.json", "--rate", 500, "--slo", "200ms", "--batcher", "mosec", "--delay", "5ms")
    asked += ("--max-batch-size", 32)
    files = ("--save", "plans.csv", "--save", "plans.json", "--save", "plans.md")
    ran = ask(folder, *asked, "--observed", "light.csv", "--observed", "half.csv", *files)

    assert ran.status == 0, ran.err
    assert "off, fitted" in ran.out
    assert "by batches" in ran.out
    (plan,) = json.loads((folder / "plans.json").read_text())["plans"]
    assert [one["name"] for one in plan["observed"]["runs"]] == ["light.csv", "half.csv"]
    overhead = plan["observed"]["per_batch"]
    assert overhead["low_ms"] < overhead["value_ms"] == plan["demand"]["overhead_per_batch_ms"] < overhead["high_ms"]
    (line,) = csv.DictReader((folder / "plans.csv").open())
    assert float(line["overhead_per_batch_ms"]) == pytest.approx(overhead["value_ms"], rel=1e-5)
    assert "| half.csv" in (folder / "plans.md").read_text()
    light = ask(folder, *asked, "--observed", "light.csv")
    assert light.status == 2
    assert light.err.count("\n") == 1
    assert "too light a load" in light.err
    two = ask(folder, *asked, "vit_b_16.json", "--observed", "light.csv")
    assert two.status == 2
    assert "takes one record" in two.err
