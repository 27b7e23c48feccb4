"""Python access to every kind of result: files, a table and text."""

import io
import json
from typing import get_args

import msgspec
import pandas
import pytest
from msgspec.structs import replace
from support.folders import RESULTS, record_path
from support.records import FORECASTS, can_of, example
from support.shown import csv_of, frame

import tputfind
from tputfind.analysis.answers import fastest_within_slo
from tputfind.analysis.race import Contender, pareto_front, speeds
from tputfind.commands import report
from tputfind.errors import BadRecord, BadRequest
from tputfind.record import files
from tputfind.record.record import Edge, LimitedBy, Records, Row
from tputfind.report.document import Answers, Charts
from tputfind.report.views import tune

pytestmark = pytest.mark.usefixtures("plots_drawn_once")
MAKERS = {
    "record": example,
    "records": lambda: Records([example(), replace(example(), spec=replace(example().spec, dtype="bf16"))]),
    "comparison": lambda: tputfind.compare(example(), example(), force=True),
    "plans": lambda: tputfind.size(example(), rate=50, slo="1s"),
    "plans_of_a_full_device": lambda: tputfind.size(example(), rate=3000, slo="1s"),
    "plan": lambda: tputfind.size(example(), rate=50, slo="1s")[0],
    "methods": lambda: files.load(record_path("nvidia-h200/clocks/resnet50-fp16-batch-1.json")),
    "pipeline": lambda: files.load(record_path("nvidia-h200/clocks/mobilenet_v3_large-resnet50-fp32.json")),
    "forecasts": lambda: FORECASTS,
    "forecasts_on_fake": lambda: replace(FORECASTS, device_name=None),
    "race": lambda: tputfind.load(RESULTS / "nvidia-h200" / "tune" / "resnet50-fp16.json"),
}
each_result = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@each_result
def test_result_saves_itself_in_every_form_and_replaces_only_its_own(make, tmp_path):
    result, names = make(), [tmp_path / f"a.{ending}" for ending in ("json", "csv", "md", "html")]

    for _ in range(2):
        result.save(*names)

    assert json.loads(names[0].read_bytes())
    assert [path.stat().st_size > 100 for path in names] == [True] * 4
    (tmp_path / "mine.csv").write_text("mine")
    with pytest.raises(BadRequest, match=r"save .*mine.csv exists, and is not a CSV of tputfind's"):
        result.save(tmp_path / "mine.csv", tmp_path / "new.md")
    assert not (tmp_path / "new.md").exists()
    result.save(tmp_path / "mine.csv", overwrite=True)
    assert (tmp_path / "mine.csv").read_bytes() == names[1].read_bytes()


@each_result
def test_saved_result_is_loaded_as_the_same_result_and_shown_by_report(make, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")  # as wide as a repr
    result = make()
    result.save(tmp_path / "a.json")

    loaded = tputfind.load(tmp_path / "a.json")
    loaded.save(tmp_path / "b.json")

    saved = json.loads((tmp_path / "a.json").read_bytes())
    assert json.loads((tmp_path / "b.json").read_bytes()) == saved
    assert repr(loaded) == repr(result)
    assert loaded.frame().equals(result.frame())
    given = {"records": [tmp_path / "a.json"], "slo": None, "percentile": None, "effective_batch": None}
    given["overwrite"] = False
    assert report.main({**given, "save": (tmp_path / "c.json", tmp_path / "c.html")}, show_traceback=False) == 0
    assert capsys.readouterr().out.split() == repr(result).split()
    assert json.loads((tmp_path / "c.json").read_bytes()) == saved


def test_plans_of_several_models_round_trip_with_unplanned_models(tmp_path):
    other = replace(example(), spec=replace(example().spec, weights="DEFAULT"))
    slow = replace(example(), spec=replace(example().spec, model="slow"), rows=())
    for records in ((example(), other), (example(), other, slow)):
        plans = tputfind.size(*records, rate=50, slo="1s")
        plans.save(tmp_path / "plans.json", overwrite=True)

        loaded = tputfind.load(tmp_path / "plans.json")

        assert repr(loaded) == repr(plans)
        assert [record.spec.model for record, _ in loaded.answers.unplanned] == ["slow"] * (len(records) == 3)
        assert ("Together" in repr(plans)) == (len(records) == 2)
        assert loaded.frame().equals(plans.frame())


def test_comparisons_are_loaded_as_a_list_that_shows_itself(tmp_path):
    both = [tputfind.compare(example(), example(), force=True)] * 2
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(both))

    loaded = tputfind.load(tmp_path / "a.json")

    assert (loaded, len(loaded.frame())) == (both, 2 * len(both[0].frame()))
    assert "2 comparisons" not in repr(loaded)
    assert repr(loaded).count("NEW over OLD") == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "Expected array of length >= 1"),
        ('[{"schema": 1}]', "a.json[0] is not a tputfind record: Object missing required field"),
        ('[{"model": 1}]', "is not a tputfind record: [0].model: Expected str"),
        ('{"plans": []}', "plans: Expected array"),
        ('{"plans": [{"model": "a"}]}', "plans[0]: Object missing required field recipe"),
        ("{}", "Object missing required field schema"),
        ("", "cut short"),
    ],
)
def test_json_that_is_no_result_is_refused_in_one_line(text, why, tmp_path):
    (tmp_path / "a.json").write_text(text)

    with pytest.raises(BadRecord) as refused:
        tputfind.load(tmp_path / "a.json")

    assert why in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("limited_by", get_args(LimitedBy))
@pytest.mark.parametrize("closed", [True, False])
def test_record_is_shown_for_every_end_of_its_search(limited_by, closed, tmp_path):
    edge = Edge(largest_batch=5, limited_by=limited_by, fails_at=6 if closed else 8, closed=closed)
    record = replace(example(), edge=edge)

    record.save(tmp_path / "a.json", tmp_path / "a.html")

    (answer,) = (line for line in repr(record).splitlines() if line.startswith("Largest batch"))
    assert "5" in answer
    assert not closed or answer.split()[2] == "5,"


def test_plot_of_record_is_figure_and_other_results_raise():
    figure = example().plot()

    assert figure.axes[0].get_xlabel() == "batch size"
    with pytest.raises(BadRequest, match="no plot of this comparison"):
        MAKERS["comparison"]().plot()


def test_plot_of_race_shows_timings_and_is_absent_without():
    race = MAKERS["race"]()
    figure = race.plot()

    (axes,) = figure.axes
    assert axes.get_xlabel() == "p50 latency, ms"
    assert list(axes.lines[0].get_ydata()) == [one.samples_per_s for _, one in pareto_front(speeds(race))]
    untimed = tuple(replace(one, turns=None) for one in race.contenders)
    empty = replace(race, record=None, timed=(), contenders=untimed)
    drawn, blank = (tune.document(one).sections for one in (race, empty))
    assert [any(isinstance(one, Charts) for one in sections) for sections in (drawn, blank)] == [True, False]


def test_race_without_a_round_shows_no_empty_columns():
    race = MAKERS["race"]()
    first, *others = race.contenders
    untried = (Contender(spec=one.spec, outcome="untried", reason="takes 9 s") for one in others)
    unraced = replace(race, contenders=(replace(first, of_winner=None), *untried), record=None)

    def headings(race):
        return [column.heading for column in tune.document(race).sections[0].columns]

    measured = ["of winner", "ratio", "95 %", "against", "samples/s", "seconds"]
    assert headings(race) == ["variant", *measured, "outcome"]
    assert headings(unraced) == ["variant", "outcome"]


def told(race):
    return dict(next(one for one in tune.document(race).sections if isinstance(one, Answers)).lines)


def test_winner_and_its_row_have_a_short_repr():
    race = MAKERS["race"]()
    row = tputfind.to_deploy(race.record)

    assert repr(race.winner).startswith("Spec(model='resnet50', ")
    assert "mode='compile:freezing'" in repr(race.winner)
    assert "max_batch" not in repr(race.winner)
    assert repr(row).startswith(f"Row(batch_size={row.batch_size}, status='ok', samples_per_s=")
    assert max(len(repr(race.winner)), len(repr(row))) < 200
    assert repr(Row(batch_size=8)) == "Row(batch_size=8, status='ok', processes=0)"


def test_race_of_one_layout_does_not_name_it():
    race = MAKERS["race"]()
    kept = [one for one in race.contenders if one.spec.layout == "nchw"]
    plain = replace(kept[0], spec=replace(kept[0].spec, mode="compile"), outcome="faster", against=kept[0].spec)

    def named(*contenders):
        raced = replace(race, contenders=contenders, winner=kept[0].spec, record=None)
        return [row[0].text for row in tune.document(raced).sections[0].rows]

    assert named(kept[0], plain) == ["fp16 eager", "fp16 compile"]
    assert named(kept[0], race.contenders[1]) == ["fp16 nchw eager", "fp16 nhwc eager"]


def test_race_takes_its_seconds_with_its_budget():
    race = replace(MAKERS["race"](), seconds=31.0, budget_s=30.0, batch_size=8)

    assert told(race)["Took"] == "31 s with a budget of 30 s, raced at batch 8"


def test_winner_of_a_race_in_instances_has_the_batch_of_all():
    race = MAKERS["race"]()
    two = replace(race.winner, instances=2)
    size = fastest_within_slo(race.record).batch_size

    assert told(race)["Winner"].endswith(f" at batch {size}")
    assert told(replace(race, winner=two))["Winner"].endswith(
        f" at batch {2 * size}: 2 instances with {size} samples each"
    )


def test_undecided_winner_of_a_race_is_a_guess():
    race = MAKERS["race"]()
    (ahead,) = (one for one in race.contenders if one.spec == race.winner)
    undecided = tuple(replace(one, outcome="undecided") if one is ahead else one for one in race.contenders)

    assert ahead.outcome == "faster"
    assert told(race)["Winner"].startswith("fp16 ")
    assert told(replace(race, contenders=undecided))["Winner"].startswith("none yet; best guess fp16 ")


@each_result
def test_result_has_the_table_of_its_csv_as_a_frame(make, tmp_path):
    result = make()
    result.save(tmp_path / "a.csv")

    read = pandas.read_csv(tmp_path / "a.csv", dtype_backend="numpy_nullable")
    made = result.frame()

    assert list(made.columns) == list(read.columns)
    assert len(made) == len(read) > 0
    numbers = made.select_dtypes("number").columns
    known = [name for name in numbers if made[name].notna().any()]
    assert len(known) >= 2
    for name in known:
        assert made[name].astype(float).to_list() == pytest.approx(
            read[name].astype(float).to_list(), 1e-5, nan_ok=True
        )


def test_frame_of_a_record_has_the_types_of_its_columns():
    made, read = example().frame(), frame([example()])

    assert made.dtypes.astype(str).to_dict() == read.dtypes.astype(str).to_dict()
    assert io.BytesIO(csv_of([example()])).readline().decode().strip().split(",") == list(made.columns)


@each_result
def test_repr_of_result_is_terminal_text_without_samples(make):
    shown = repr(make())

    assert "\n\n" in shown
    assert "\x1b" not in shown
    assert len(shown) < 8000
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize(("name", "why"), [("a.svg", "has no plot"), ("a.pdf", "the ending says"), ("", "is empty")])
def test_result_refuses_a_form_that_it_has_not(name, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(BadRequest, match=why):
        FORECASTS.save("a.md", name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["to_deploy", "compare", "size"])
def test_function_of_the_package_that_is_called_as_a_method_is_named(name):
    with pytest.raises(AttributeError, match=f"a Record has no '{name}': call tputfind.{name}\\(record\\)"):
        getattr(example(), name)
    assert not hasattr(example(), "colour")


def test_plans_are_a_list_and_a_plan_alone_is_a_result():
    plans = tputfind.size(example(), example(), rate=50, slo="1s")

    best, other = plans
    assert isinstance(plans, list)
    assert (len(plans.frame()), len(best.frame()), plans[1:]) == (2, 1, [other])
    assert repr(best) in repr(plans).replace("by devices", "")


@pytest.mark.parametrize(
    ("device", "hosts"), [("cuda:1", ", on 1 host of 8"), ("cpu", ", on 2 hosts"), ("cpu:0-3", "")]
)
def test_plan_counts_hosts_filled_by_its_devices_if_possible(device, hosts):
    environment = replace(example().environment, device=device, can=can_of(device))

    (plan,) = tputfind.size(replace(example(), environment=environment), rate=50, slo="1s", devices=2)

    assert f"\nDevices        2{hosts}: batches" in repr(plan)
