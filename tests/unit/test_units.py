import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tputfind.units import (
    echo,
    format_about,
    format_amount,
    format_bytes,
    format_estimate,
    format_figure,
    format_seconds,
    format_share_up,
    format_sizes,
    format_watts,
    parse_bytes,
    parse_ms,
    shorten_text,
)

READ = {
    parse_bytes: [
        ("8GiB", 2**33),
        ("512 MiB", 2**29),
        ("1.5gib", 3 * 2**29),
        ("24GB", 24 * 10**9),
        ("10B", 10),
        (".5KiB", 512),
        ("4.1GB", 4_100_000_000),
    ],
    parse_ms: [("50ms", 50.0), ("1s", 1e3), ("1.5 s", 1500.0), ("2min", 120_000.0), ("250us", 0.25), ("1.1s", 1100.0)],
}
PRINTED = {
    format_figure: [  # at a power of ten, the digits are counted after rounding
        (0, "0"),
        (-0.0, "0"),
        (999.94, "999.9"),
        (999.96, "1000"),
        (9999.6, "10000"),
        (0.99996, "1.000"),
        (0.0521, "0.05210"),
        (0.0000123, "0.00001230"),
        (math.inf, "inf"),
    ],
    format_amount: [(50.0, "50"), (0.25, "0.25"), (1e6, "1000000"), (1e-5, "0.00001"), (1.1 * 1000, "1100")],
    format_seconds: [(7.6, "8 s"), (125, "2 min 05 s"), (4200, "1 h 10 min")],
    format_bytes: [
        (int(113.9 * 2**30), "113.9 GiB"),
        (870 * 2**20, "870 MiB"),
        (2**30 - 1, "1.0 GiB"),
        (1023 * 2**20, "1023 MiB"),
        (2**20 - 1, "1 MiB"),
        (300 * 2**10, "300 KiB"),
        (0, "0 MiB"),
    ],
    format_about: [
        (5376.4, "~5380"),
        (12, "~12.0"),
        (0.05214, "~0.0521"),
        (999.7, "~1000"),
        (99.96, "~100"),
        (9.996, "~10.0"),
        (0, "~0"),
    ],
    format_share_up: [(0.07, "7.0 %"), (0.0701, "7.1 %"), (0.29, "29 %"), (0.291, "30 %"), (0.0, "0.1 %")],
    format_sizes: [((1, 2), "1, 2"), ((3, 2, 1), "1-3"), ((1, 2, 8, *range(30, 41)), "1, 2, 8, 30-40")],
    format_watts: [
        (0.5, "0.500 W"),
        (89.94, "89.9 W"),
        (508, "508 W"),
        (999.6, "1.00 kW"),
        (1240, "1.24 kW"),
        (1.24e6, "1240 kW"),
        (99.97, "100 W"),
    ],
}


@pytest.mark.parametrize(("read", "text", "value"), [(read, *row) for read, rows in READ.items() for row in rows])
def test_quantities_are_read_with_their_unit(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(("form", "value", "text"), [(form, *row) for form, rows in PRINTED.items() for row in rows])
def test_values_are_printed_with_the_digits_and_the_unit_they_need(form, value, text):
    assert form(value) == text


@pytest.mark.parametrize("text", ["", "8", "GiB", "-1GiB", "8 GiBs", "1e3MiB", "8GiB 4MiB", "nan", "9" * 400 + "GiB"])
def test_a_size_without_number_or_unit_is_refused(text):
    with pytest.raises(ValueError, match="such as 8GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("read", "text", "near"),
    [
        (parse_bytes, "24", "24MiB or 24GiB"),
        (parse_bytes, "24g", "24GiB or 24GB"),
        (parse_bytes, "1.5 M", "1.5MiB or 1.5MB"),
        (parse_ms, "50", "50ms or 50s"),
        (parse_ms, "1m", "1min or 1ms"),
        (parse_ms, "10 seconds", "10s"),
        (parse_ms, "5\u00b5s", "5us"),
        (parse_ms, "5\u03bcs", "5us"),
        (parse_ms, "2 mins", "2min"),
    ],
)
def test_a_wrong_unit_is_refused_with_the_right_one(read, text, near):
    with pytest.raises(ValueError, match=rf"did you mean {near}\?$"):
        read(text)


@pytest.mark.parametrize("text", ["", "x", "5 parsecs", "1e3", "9" * 70])
def test_unknown_unit_is_refused_without_a_suggestion(text):
    for read in (parse_bytes, parse_ms):
        with pytest.raises(ValueError, match="such as") as refused:
            read(text)
        assert "did you mean" not in str(refused.value)


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_value_error(text):
    try:
        assert parse_ms(text) >= 0
    except ValueError as error:
        assert "such as 50ms" in str(error)


@given(st.floats(1e-9, 1e12), st.sampled_from([1, -1]))
def test_format_figure_of_any_size_has_four_significant_digits_and_no_exponent(size, sign):
    printed = format_figure(sign * size)
    digits = printed.removeprefix("-").replace(".", "").lstrip("0")
    last = 10.0 ** -len(printed.partition(".")[2])

    assert re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", printed)
    assert len(digits) == 4 or (len(digits) > 4 and "." not in printed)
    assert abs(float(printed) - sign * size) <= last / 2 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("value", "share", "text"),
    [
        (10845, 0.003, "10845"),
        (5376, 0.43, "5400"),
        (5376, 0.93, "~5000"),
        (24310.7, 1.16, "~20000"),
        (250, 0.002, "250.0"),
        (380.21, 0.05, "380"),
        (0.0521, 0.2, "0.052"),
        (0.0521, 0.7, "~0.05"),
        (300, 3.355, "~300"),
        (4, 30, "~4"),
    ],
)
def test_figure_has_its_significant_digits(value, share, text):
    assert format_estimate(value, share) == text
    assert format_estimate(value, None) == format_figure(value)


@given(st.floats(1e-2, 1e7), st.floats(0.51, 20))
def test_figure_with_wide_interval_has_one_digit(value, share):
    text = format_estimate(value, share)

    assert text.startswith("~")
    assert len(text.strip("~0.")) == 1
    assert float(text[1:]) == pytest.approx(value, rel=0.51)


@given(st.floats(1e-2, 1e7), st.floats(1e-4, 0.5))
def test_figure_is_rounded_to_two_digits_of_its_uncertainty(value, share):
    text, full = format_estimate(value, share), format_figure(value)
    last = 10.0 ** -len(full.partition(".")[2])

    assert abs(float(text) - value) <= max(0.05 * share * value, 0.5 * last) * (1 + 1e-9)
    assert len(text) <= len(full) + 1
    assert float(text) > 0


@given(st.sets(st.integers(1, 60)))
def test_printed_batch_sizes_round_trip(sizes):
    runs = [run.split("-") for run in filter(None, format_sizes(sizes).split(", "))]

    assert [size for run in runs for size in range(int(run[0]), int(run[-1]) + 1)] == sorted(sizes)


@given(st.text(max_size=200) | st.lists(st.text(max_size=200)) | st.floats() | st.binary(max_size=500) | st.integers())
def test_a_value_is_echoed_on_one_short_line(value):
    shown = echo(value)

    assert shown.isprintable()
    assert len(shown) <= 700
    if isinstance(value, str) and len(value) <= 60:
        assert shown == repr(value)


def test_values_that_cannot_be_shown_are_echoed_all_the_same():
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    assert "Odd" in echo(Odd())
    assert echo(10**5000) == "a very long int"
    assert echo("a" * 100) == f"'{'a' * 30}...{'a' * 30}'"


@given(st.text(max_size=200))
def test_shortened_text_keeps_both_ends(text):
    quoted = shorten_text(text)

    assert len(quoted) <= 63
    assert quoted == text or (text.startswith(quoted[:30]) and text.endswith(quoted[-30:]) and quoted[30:33] == "...")
