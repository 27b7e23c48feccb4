"""Prices of devices: read from a table or given by Python code, and refused with a message."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import example

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
        ([1], "prices: number 0: 1 is a int, not a Price"),
        (5, "prices: 5 is a int, not a list of Price"),
        ([PRICE, Price(device="a", price_per_hour=2.0, currency="EUR")], "prices: number 1: 'a' has a price already"),
        ([Price(device="B", price_per_hour=float("nan"), currency="EUR")], "prices: number 0: price_per_hour: nan"),
        ([Price(device=None, price_per_hour=1.0, currency="EUR")], "prices: number 0: device: None"),
    ],
)
def test_prices_of_python_code_are_checked_alike(prices, message):
    with pytest.raises(BadRequest) as refused:
        tputfind.size(example(), rate=5, slo=50.0, prices=prices)

    assert message in refused.value.message


def test_a_table_may_hold_so_many_prices_and_no_more(monkeypatch):
    monkeypatch.setattr("tputfind.sizing.planner.costs._MOST_PRICES", 2)
    rows = [["A", "1", "EUR"], ["B", "2", "EUR"], ["C", "3", "EUR"]]

    assert [price.device for price in read_prices(table(*rows[:2]))] == ["A", "B"]
    with pytest.raises(ValueError, match=r"^there are more than 2 prices$"):
        read_prices(table(*rows))


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        ((), None),
        (("A100",), None),
        (("L4",), None),
        (("l40s",), "l40s"),
        (("NVIDIA", "L40S-48GB", "L40S"), "L40S-48GB"),
        (("NVIDIA  L40S", "L40S-48GB"), "NVIDIA  L40S"),
    ],
)
def test_price_of_device_is_longest_match_in_whole_words(devices, found):
    prices = [Price(device=device, price_per_hour=1.0, currency="EUR") for device in devices]
    one = example()
    environment = msgspec.structs.replace(one.environment, device_name="NVIDIA L40S 48GB")

    price = price_of(msgspec.structs.replace(one, environment=environment), prices)

    assert (price and price.device) == found


@pytest.mark.parametrize(("name", "found"), [("NVIDIA A100-SXM4-80GB", 3.5), ("NVIDIA A100-SXM4-40GB", 2.0)])
def test_words_of_the_device_may_have_others_between_them(name, found):
    prices = [
        Price(device=device, price_per_hour=price, currency="EUR")
        for device, price in (("A100", 2.0), ("A100 80GB", 3.5))
    ]
    one = example()

    price = price_of(
        msgspec.structs.replace(one, environment=msgspec.structs.replace(one.environment, device_name=name)), prices
    )

    assert price.price_per_hour == found
