"""Plans in words and cells: the mix of kinds, separate models, and power."""

import csv
import io
import json
import math
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from support.records import CPU_CAN, example, row
from support.shown import printed

from tputfind.commands.size import main
from tputfind.record.record import Record
from tputfind.report.outputs import forms, is_report
from tputfind.report.views import size
from tputfind.report.views.size import line_of
from tputfind.report.views.size_answers import configuration, details, mix, summary
from tputfind.sizing.calibration import Observed, Overhead, Percentiles, Run
from tputfind.sizing.planner.costs import Price
from tputfind.sizing.planner.mixes import Mix, Part
from tputfind.sizing.planner.plan import Answers, answers
from tputfind.sizing.planner.question import read_demand
from tputfind.units import format_span, format_watts


def record(device_name: str, model: str = "resnet50") -> Record:
    made = example()
    spec = replace(made.spec, model=model)
    environment = replace(made.environment, device_name=device_name)
    return replace(made, rows=(row(1, 5.0), row(8, 9.0)), notices=(), environment=environment, spec=spec)


@pytest.fixture(scope="module")
def two_kinds() -> Answers:
    prices = [
        Price(device=name, price_per_hour=each, currency="EUR") for name, each in (("Large", 2.0), ("Small", 1.9))
    ]
    return answers([record("Large"), record("Small")], read_demand({"rate": 1000, "slo": 50.0}), prices)


def with_mix(found: Answers) -> Answers:
    """Return the answers with a mix added to the best plan, as a search would find it."""
    best = found.plans[0]
    parts = [
        Part(recipe=best.recipe, device_name=name, devices=count, batch_cap=8, share=share, cost_per_hour=cost)
        for name, count, share, cost in (("Large", 1, 0.75, 1.0), ("Small", 2, 0.25, 0.5))
    ]
    cheapest = Mix(parts=tuple(parts), outcome=best.outcome, cost_per_hour=1.5, cost_per_million=0.4)
    mixed = replace(best, mix=cheapest, no_mix="")
    return found._replace(plans=[mixed, *found.plans[1:]], models=[[mixed, *found.plans[1:]]])


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_mix_stands_below_the_plans_with_its_parts_and_its_cost(two_kinds, width):
    text = printed(size.document(with_mix(two_kinds)), width)

    below = text[text.index("resnet50: the cheapest mix of kinds that was found") :]
    assert "fp16 nchw eager, Large" in below
    assert "75.0" in below
    flat = " ".join(below.split())
    assert "1.500 EUR an hour, 0.4000 EUR a million requests" in flat
    assert f"below {two_kinds.plans[0].outcome.devices} x {two_kinds.plans[0].device_name}" in flat
    assert "are taken by the device that has been idle for the longest" in flat
    assert max(map(len, below.splitlines())) <= width


def test_utilization_of_a_mix_just_below_all_is_not_100_percent(two_kinds):
    best = with_mix(two_kinds).plans[0]
    busy = replace(best, mix=replace(best.mix, outcome=replace(best.outcome, utilization=0.996)))

    assert dict(mix(busy))["Meets"].endswith(", utilization 99.6 %")


def test_mix_line_reports_that_no_mix_is_cheaper(two_kinds):
    best = two_kinds.plans[0]
    lines = [line for line in printed(size.document(two_kinds)).splitlines() if line.startswith("Mix")]

    assert lines == [f"Mix            none is cheaper than {best.outcome.devices} x {best.device_name}"]


def test_files_hold_the_mix(two_kinds):
    found = with_mix(two_kinds)
    made = {word: make().decode() for word, make in forms(size.document(found)).items()}
    lines = list(csv.DictReader(io.StringIO(made["csv"])))
    written = json.loads(made["json"])

    assert [line["mix"] for line in lines] == ["1 x Large cap 8 + 2 x Small cap 8", ""]
    assert [line["mix_cost_per_hour"] for line in lines] == ["1.5", ""]
    assert list(lines[0]) == list(line_of(found.plans[0])) == list(line_of(found.plans[1]))
    assert [part["devices"] for part in written["plans"][0]["mix"]["parts"]] == [1, 2]
    assert written["plans"][1]["mix"] is None
    assert "- Mix: 1.500 EUR an hour" in made["md"]
    assert "**resnet50: the cheapest mix" in made["md"]
    assert "<h2>resnet50: the cheapest mix" in made["html"]


def test_plans_of_two_models_have_a_heading_each_and_a_sum():
    found = answers([record("Large"), record("Large", "vit_b_16")], read_demand({"rate": 100, "slo": 50.0}))
    made = {word: make().decode() for word, make in forms(size.document(found)).items() if word != "csv"}
    text, markdown = printed(size.document(found)), made["md"]

    for heading in ("resnet50, samples of 3x224x224", "vit_b_16, samples of 3x224x224"):
        assert f"\n{heading}\n" in f"\n{text}"
        assert f"## {heading}\n" in markdown
    assert "the best first" not in text
    assert "Together       2 devices: each of 2 models with its own, at the whole rate" in text
    assert "- Together: 2 devices" in markdown
    assert json.loads(made["json"])["together"] == {"devices": 2, "cost_per_hour": None, "currency": ""}


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (500, 500.2, "500 W"),
        (500, 620, "500 to 620 W"),
        (980, 1100, "980 W to 1.10 kW"),
        (1200, 1400, "1.20 to 1.40 kW"),
    ],
)
def test_span_bounds_share_one_unit_if_possible(low, high, text):
    assert format_span(format_watts(low), format_watts(high)) == text


@pytest.mark.parametrize(("gap_s", "seen"), [(0.02, "3.980 s, 50.00/s"), (432.0, "85968 s, 0.002315/s")])
def test_recorded_requests_are_shown_with_span_and_both_rates(gap_s, seen):
    (plan,) = answers([record("Large")], read_demand({"rate": 100, "slo": 50.0, "gaps": (gap_s,) * 199})).plans

    told = dict(details(plan))["Arrivals"]
    assert told == f"200 in {seen}, replayed at 100.0/s; times of batches are drawn"
    not_replayed = replace(plan, outcome=replace(plan.outcome, simulated=0))
    assert dict(details(not_replayed))["Arrivals"] == f"200 in {seen}, too many to be replayed"


def test_refusals_near_the_target_are_undecided_and_not_a_miss():
    (plan,) = answers([record("Large")], read_demand({"rate": 100, "slo": 50.0})).plans
    refuses = replace(plan.outcome, tail_ms=math.inf, refused=0.1, verdict="undecided")
    told = dict(details(replace(plan, outcome=refuses, fewer=refuses)))

    assert "undecided: too near the target to tell, 10.00% of the requests refused" in str(told)


@pytest.mark.parametrize(
    ("p95_ms", "p99_ms", "doubt"),
    [(20.0, 30.0, ""), (21.0, 30.0, ""), (15.0, 28.0, "; unreliable, as its logs are predicted -25% off")],
)
def test_plan_whose_logs_are_badly_predicted_says_so_beside_its_devices(p95_ms, p99_ms, doubt):
    (plan,) = answers([record("Large")], read_demand({"rate": 100, "slo": 50.0})).plans
    none = Overhead(value_ms=0.0, low_ms=0.0, high_ms=0.0)
    run = Run(
        name="half.csv",
        requests=500,
        rate_per_s=50.0,
        load=0.5,
        fitted=True,
        observed=Percentiles(p50_ms=10.0, p95_ms=20.0, p99_ms=30.0),
        predicted=Percentiles(p50_ms=5.0, p95_ms=p95_ms, p99_ms=p99_ms),
    )
    observed = Observed(
        per_batch=none, per_request=none, per_answer=none, beside=none, found_by="latencies", runs=(run,)
    )

    line = dict(summary(replace(plan, observed=observed)))["Devices"]

    assert line.partition(" batches of up to 8")[2] == doubt


def test_given_devices_that_miss_the_target_come_without_a_configuration():
    demand = {"rate": 1000, "slo": 50.0, "batcher": "mosec"}
    (few,), (enough,) = (
        answers([record("Large")], read_demand({**demand, "devices": devices})).plans for devices in (1, 4)
    )

    assert next(iter(summary(few))) == ("Verdict", "1 device: target missed, 119 % utilization: the queue grows")
    assert next(iter(summary(enough)))[1].startswith("4 devices: target met, p99")
    assert configuration(few) == []
    assert configuration(enough)


def test_devices_without_a_verdict_are_undecided_in_table_and_error(tmp_path, capsys):
    """At 99.9 % utilization no simulation is long enough."""
    one = replace(record("Large"), rows=(row(1, 10.0),))
    (tmp_path / "one.json").write_bytes(one.to_json())
    demand = {"rate": 95.2, "slo": 3000.0, "devices": 1}
    paths = {"records": [str(tmp_path / "one.json")], "save": None, "overwrite": False}

    code = main({**demand, **paths, "observed": None, "arrivals": None, "price": None}, show_traceback=False)

    (plan,) = answers([one], read_demand(demand)).plans
    assert line_of(plan)["status"] == line_of(plan)["verdict"] == "undecided"
    assert code == 6
    assert "it is undecided whether the devices meet the target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("devices", "routing", "num", "more"),
    [
        (4, "shared", 4, []),
        (9, "shared", 8, ["# on one host; the plan has more, with one queue for all"]),
        (4, "random", 1, ["# one server on each of 4 devices, behind a router (random)"]),
    ],
)
def test_mosec_configuration_runs_with_one_worker_per_gpu_of_a_host(devices, routing, num, more):
    demand = {"rate": 1000, "slo": 80.0, "batcher": "mosec", "devices": devices, "routing": routing}
    (plan,) = answers([record("Large")], read_demand(demand)).plans
    lines, given = configuration(plan), {}

    server = SimpleNamespace(append_worker=lambda worker, **options: given.update(options))
    exec("\n".join(lines), {"server": server, "Model": None})

    assert (given["num"], given["max_wait_time"]) == (num, 10)
    gpus = [each["CUDA_VISIBLE_DEVICES"] for each in given.get("env", [{"CUDA_VISIBLE_DEVICES": "0"}])]
    assert gpus == [str(gpu) for gpu in range(num)]
    assert lines[-len(more) :] == more or not more


@pytest.mark.parametrize(
    ("batcher", "devices", "line"),
    [
        ("ray", 1, "# the limit of 99 requests in a queue has no setting here"),
        ("litserve", 1, "# the limit of 99 requests in a queue has no setting here"),
        ("triton", 9, "# on one host; the plan has more, with one queue for all"),
    ],
)
def test_configuration_says_which_part_of_the_plan_it_leaves_out(batcher, devices, line):
    demand = {"rate": 300, "slo": 80.0, "percentile": 90, "batcher": batcher, "devices": devices}
    limited, without = (
        answers([record("Large")], read_demand({**demand, **more})).plans[0] for more in ({"max_queue": 99}, {})
    )

    assert configuration(limited)[-1] == line
    assert (line in configuration(without)) == (batcher == "triton")
    assert "max_queued_requests" not in dict(details(limited))["Refused"]


@pytest.mark.parametrize(
    ("batcher", "said"),
    [("triton", "KIND_CPU"), ("mosec", "num=2"), ("litserve", 'accelerator="cpu"'), ("ray", '{"num_cpus": 16}')],
)
def test_configuration_for_a_cpu_asks_for_no_gpu(batcher, said):
    on_gpu = record("Large")
    environment = replace(on_gpu.environment, device="cpu:0-15", can=CPU_CAN)
    demand = read_demand({"rate": 100, "slo": 80.0, "percentile": 90, "batcher": batcher, "devices": 2})

    (plan,) = answers([replace(on_gpu, environment=environment)], demand).plans
    text = "\n".join(configuration(plan)).lower()

    assert said.lower() in text
    assert "gpu" not in text
    assert "cuda" not in text


def test_no_device_is_left_without_the_spare_ones_and_the_last():
    (plan,) = answers([record("Large")], read_demand({"rate": 100, "slo": 50.0, "percentile": 90, "spare": 2})).plans

    assert {"None gone", "2 gone", "3 gone"} < set(dict(details(plan)))
    assert dict(details(plan))["3 gone"] == "there is none"


@pytest.mark.parametrize("cell", [49, 256])
def test_simulated_devices_are_named_if_they_stand_for_more(cell):
    (plan,) = answers([record("Large")], read_demand({"rate": 100, "slo": 50.0, "percentile": 90})).plans
    large = replace(plan, outcome=replace(plan.outcome, devices=300, simulated=cell))

    assert dict(details(large))["Simulated"].startswith(f"{cell} of the devices")
    assert "Simulated" not in dict(details(plan))


def test_limit_of_ray_is_that_of_a_batch_not_of_ongoing_requests():
    """The configuration lets a replica have twice the batch."""
    demand = read_demand({"rate": 100, "slo": 80.0, "percentile": 90, "batcher": "ray", "devices": 1})
    (plan,) = answers([record("Large")], demand).plans
    plan = replace(plan, outcome=replace(plan.outcome, batch_cap=4))

    assert dict(details(plan))["Limit"].startswith("no batch above 5")
    assert "max_ongoing_requests=8)" in configuration(plan)[0]


@pytest.mark.parametrize("more", [{}, {"rate": 100}, {"slo": 80.0}, {"devices": None, "rate": 100, "slo": 80.0}])
def test_markdown_of_any_question_is_recognised_as_a_report(tmp_path, more):
    demand = {"rate": 1000, "slo": 50.0, "devices": 1} if not more else {"devices": 1, **more}
    found = answers([record("Large")], read_demand(demand))
    path = tmp_path / "plan.md"
    path.write_bytes(forms(size.document(found))["md"]())

    assert is_report(path, "md")
