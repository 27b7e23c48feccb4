"""Prices of devices: read from a table or given by Python code, and refused with a message."""

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import example, timed_record

import tputfind
from tputfind.errors import BadRequest
from tputfind.sizing.planner.costs import Price, price_of, read_prices

HEADER = ["device", "price_per_hour", "currency"]


def table(*rows):
    return list(enumerate(([*HEADER], *rows), start=1))


def test_prices_are_read_by_the_names_of_their_columns():
    names = ["currency", "date", "device", "price_per_hour", "source"]
    price = Price(device="NVIDIA H200", price_per_hour=3.5, currency="EUR", date="2026-01-01", source="a list")

    assert read_prices([(1, names), (3, ["EUR", "2026-01-01", "NVIDIA H200", "3.5", "a list"])]) == [price]
    assert read_prices(table(["A", "1", "EUR"])) == [Price(device="A", price_per_hour=1.0, currency="EUR")]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "it holds no price"),
        (table(), "it holds no price"),
        (table(["A", "1", "EUR"], ["B", "2"]), "line 3: 2 cells, and the header has 3: device,price_per_hour,currency"),
        (table(["AMD EPYC", "1", "EUR"], ["amd  epyc", "2", "EUR"]), "line 3: 'amd  epyc' has a price already: line 2"),
        (table(["--", "1", "EUR"]), "line 2: device: '--' is not a name"),
        (table(["A", "1", ""]), "line 2: currency: it is empty"),
        (table(["A\x1b[31m", "1", "EUR"]), "line 2: device: 'A\\x1b[31m' cannot be shown as text"),
        ([(1, [*HEADER, "colour"])], "line 1: the header is 'device,price_per_hour,currency,colour'; it has device"),
        ([(1, ["device;price_per_hour;currency"])], "line 1: the header is 'device;price_per_hour;currency'; it has"),
        ([(1, [*HEADER, "currency"])], "it has device, price_per_hour, currency once, and may have source and date"),
        ([(1, ["device", "source"])], "line 1: the header is 'device,source'; it has device, price_per_hour, currency"),
    ],
)
def test_malformed_price_table_is_refused_with_its_line(rows, message):
    with pytest.raises(ValueError) as refused:
        read_prices(rows)

    assert message in str(refused.value)


@given(st.sampled_from(["0", "-1", "inf", "-inf", "nan", "1e400", "1e13", "cheap", "", "1,5"]) | st.text(max_size=5))
def test_a_price_is_a_number_above_0_or_is_refused(cell):
    try:
        (price,) = read_prices(table(["A", cell, "EUR"]))
    except ValueError as refused:
        assert "line 2: price_per_hour:" in str(refused)
    else:
        assert 0 < price.price_per_hour <= 1e12


PRICE = Price(device="A", price_per_hour=1.0, currency="EUR")


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ({"a": 1}, "prices: {'a': 1} is a dict, not a list of Price"),
        ((PRICE, "B"), "prices: number 1: 'B' is a str, not a Price"),
        ([PRICE, replace(PRICE, device="B", price_per_hour=nan)], "prices: number 1: price_per_hour: nan"),
        ([PRICE, replace(PRICE, device="B", price_per_hour=0.0)], "prices: number 1: price_per_hour: 0.0 is not from"),
        ([PRICE, replace(PRICE, device="a")], "prices: number 1: 'a' has a price already: number 0"),
        ([replace(PRICE, device=None)], "prices: number 0: device: None"),
    ],
)
def test_prices_of_python_code_are_checked_alike(prices, message):
    with pytest.raises(BadRequest) as refused:
        tputfind.size(example(), rate=5, slo=50.0, prices=prices)

    assert refused.value.message.startswith(message)


def test_a_table_may_hold_so_many_prices_and_no_more(monkeypatch):
    monkeypatch.setattr("tputfind.sizing.planner.costs._MOST_PRICES", 2)
    rows = [["A", "1", "EUR"], ["B", "2", "EUR"], ["C", "3", "EUR"]]

    assert [price.device for price in read_prices(table(*rows[:2]))] == ["A", "B"]
    with pytest.raises(ValueError, match=r"^there are more than 2 prices$"):
        read_prices(table(*rows))


L40S, A100 = "NVIDIA L40S 48GB", ("A100", "A100 80GB")


@pytest.mark.parametrize(
    ("name", "devices", "found"),
    [
        (L40S, (), None),
        (L40S, A100, None),
        (L40S, ("L4",), None),
        (L40S, ("l40s",), "l40s"),
        (L40S, ("NVIDIA", "L40S-48GB", "L40S"), "L40S-48GB"),
        (L40S, ("NVIDIA  L40S", "L40S-48GB"), "NVIDIA  L40S"),
        ("NVIDIA A100-SXM4-80GB", A100, "A100 80GB"),  # other words may stand between
        ("NVIDIA A100-SXM4-40GB", A100, "A100"),
    ],
)
def test_price_of_device_is_longest_match_in_whole_words(name, devices, found):
    prices = [replace(PRICE, device=device) for device in devices]

    price = price_of(timed_record({1: [5.0]}, device_name=name), prices)

    assert (price and price.device) == found


@pytest.mark.parametrize(
    ("device", "name", "is_found"),
    [("cpu", "EPYC 9554", True), ("cpu:0-3", "EPYC 9554", False), ("cpu:0-3", "EPYC 9554 cpu:0-3", True)],
)
def test_set_of_cores_does_not_cost_as_much_as_its_cpu(device, name, is_found):
    can = replace(timed_record({1: [5.0]}).environment.can, own_memory=False)
    record = timed_record({1: [5.0]}, device_name="AMD EPYC 9554", device=device, can=can)

    assert (price_of(record, [replace(PRICE, device=name)]) is not None) == is_found
