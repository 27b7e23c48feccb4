"""Answers from several records for one demand, with simulations in which every fleet meets the target."""

import pytest
from msgspec.structs import replace
from support.records import example, row

import tputfind
from tputfind.errors import BadRequest, NoPlan
from tputfind.record.record import Record
from tputfind.sizing.engine.replications import Effort, simulate
from tputfind.sizing.planner.costs import Price
from tputfind.sizing.planner.plan import answers, together
from tputfind.sizing.planner.question import read_demand


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Simulate one short stream, as if no request were late."""

    def simulated(fleet, goal, effort, seed):
        found = simulate(fleet, goal, Effort(50, 50), seed)
        if fleet.utilization >= 1:
            return found
        met = {"verdict": "meets", "late": 0.0, "tail_ms": 1.0, "tail_low_ms": 1.0, "tail_high_ms": 1.0}
        return found._replace(outcome=replace(found.outcome, **met))

    monkeypatch.setattr("tputfind.sizing.planner.search.simulate", simulated)


def record(batch_ms: float = 5.0, device_name: str = "NVIDIA Example") -> Record:
    made = example()
    environment = replace(made.environment, device_name=device_name)
    return replace(made, rows=(row(1, batch_ms),), notices=(), environment=environment)


def price(device: str, per_hour: float, currency: str = "EUR") -> Price:
    return Price(device=device, price_per_hour=per_hour, currency=currency)


FAST, SLOW, LATE = record(5.0, "Fast"), record(20.0, "Slow"), record(90.0, "Late")
DEMAND = read_demand({"rate": 1000, "slo": 50.0})


def names(found):
    return [each.device_name for each in found.plans]


@pytest.mark.parametrize(
    ("prices", "ranked", "ranked_by"),
    [
        ([], ["Fast", "Slow"], "devices"),
        ([price("fast", 9.0), price("slow", 1.0)], ["Slow", "Fast"], "cost"),
        ([price("fast", 1.0), price("slow", 1.0)], ["Fast", "Slow"], "cost"),
        ([price("slow", 0.01)], ["Fast", "Slow"], "devices"),
        ([price("fast", 9.0), price("slow", 0.01, "USD")], ["Fast", "Slow"], "devices"),
    ],
)
def test_plans_are_ranked_by_cost_if_all_share_a_currency(prices, ranked, ranked_by):
    found = answers([SLOW, FAST], DEMAND, prices)

    assert (names(found), found.ranked_by) == (ranked, ranked_by)


def test_records_without_a_plan_are_listed_with_the_reason():
    trained = replace(FAST, spec=replace(FAST.spec, phase="train", dtype="bf16"))
    told: list[str] = []

    found = answers([LATE, FAST, trained], DEMAND, tell=told.append)

    assert names(found) == ["Fast"]
    assert [(one, type(error)) for one, error in found.without] == [(LATE, NoPlan), (trained, BadRequest)]
    assert told


def other(model: str = "vit_b_16", **fields: object) -> Record:
    made = record(7.0, "Fast")
    return replace(made, spec=replace(made.spec, model=model), **fields)


def test_plans_of_different_models_keep_record_order_and_add_up():
    found = answers([SLOW, other(), FAST], DEMAND)

    assert [[plan.device_name for plan in plans] for plans in found.models] == [["Fast", "Slow"], ["Fast"]]
    assert [plan.model for plan in found.plans] == ["resnet50", "resnet50", "vit_b_16"]
    both = together(found)
    assert both.devices == found.plans[0].outcome.devices + found.plans[2].outcome.devices
    assert both.cost_per_hour is None


def test_another_shape_of_samples_is_other_work():
    found = answers([FAST, other("resnet50", input_shape="3x640x640")], DEMAND)

    assert len(found.models) == 2


def test_recipes_of_a_model_are_alternatives():
    half = replace(SLOW, spec=replace(SLOW.spec, dtype="bf16", mode="compile"))
    found = answers([half, FAST], DEMAND)

    assert [len(plans) for plans in found.models] == [2]
    assert together(found) is None


def test_costs_of_different_models_add_up_in_one_currency():
    found = answers([FAST, other()], DEMAND, [price("fast", 2.0)])
    both = together(found)

    assert both.cost_per_hour == pytest.approx(2.0 * both.devices)
    assert both.currency == "EUR"


def test_model_without_any_plan_is_listed_separately():
    found = answers([FAST, LATE, other(), replace(other("late"), rows=LATE.rows)], DEMAND)

    assert [one.spec.model for one, _ in found.without] == ["resnet50", "late"]
    assert [one.spec.model for one, _ in found.unplanned] == ["late"]
    assert together(found) is None


def test_mix_is_sought_only_if_all_device_kinds_have_prices():
    prices = [price("fast", 2.0), price("slow", 1.0)]

    assert answers([FAST, SLOW], DEMAND, prices).plans[0].no_mix != ""
    assert answers([FAST, SLOW], DEMAND).plans[0].no_mix == ""
    assert answers([FAST, FAST], DEMAND, prices).plans[0].no_mix == ""
    assert answers([FAST, SLOW], DEMAND, prices[:1]).plans[0].no_mix == ""


def test_size_raises_reason_of_first_record_without_any_plan():
    with pytest.raises(NoPlan, match="take up to 90"):
        tputfind.size(LATE, record(80.0), rate=1000, slo=50.0)


def test_non_record_is_refused_by_its_position():
    with pytest.raises(BadRequest, match=r"^record 2: 5 is a int, not a Record \("):
        tputfind.size(FAST, 5, rate=1000, slo=50.0)
    with pytest.raises(BadRequest, match=r"^no record to size from$"):
        tputfind.size(rate=5, slo=50.0)


def test_prices_may_be_a_tuple():
    (found,) = tputfind.size(FAST, rate=1000, slo=50.0, prices=(price("fast", 2.0),))

    assert found.cost_per_hour == 2.0 * found.outcome.devices
