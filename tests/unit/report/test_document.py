"""One document in every form: terminal, Markdown, page and CSV from the same sections."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len
from support.pages import Page
from support.records import FORECASTS, example
from support.shown import printed

from tputfind.record.record import Notice
from tputfind.record.untrusted import indent_json
from tputfind.report.document import (
    Answers,
    Cell,
    Code,
    Column,
    Document,
    Sentences,
    count,
    data_table,
    figure,
    notices_of,
    percent,
    table,
    without_blanks,
)
from tputfind.report.outputs import ENDINGS, forms
from tputfind.report.renderers.csv import render_csv
from tputfind.report.renderers.html import render_html
from tputfind.report.renderers.markdown import render_markdown
from tputfind.report.views import forecast, records

HOSTILE = "=a|b`c[d](e)<script>"
NOTICE = Notice(kind="host_bound", seen="it waits", cause="Python", advice="use a graph", batch_sizes=(1,))


def sample(name: str = "resnet50", rows: int = 2) -> Document:
    columns = (
        Column("model", "text", shrinks=True),
        Column("p99 ms", drop=2),
        Column("", "bar"),
        Column("samples/s"),
    )
    lines = [(name, figure(1.5 + number), Cell(number=0.5), figure(1000.0)) for number in range(rows)]
    return Document(
        title="a result",
        lead="in ms",
        sections=(
            table(columns, lines, title="rows", legend="F fastest", remarks=("too noisy",), strong=(0,)),
            Answers((("Deploy", "batch 8"),)),
            Document(title="how", sections=(Sentences(("it was timed",)), Code(("print(1)",), "python"))),
            *notices_of([NOTICE]),
        ),
    )


def test_terminal_separates_sections_by_one_blank_line_and_ends_without_one():
    assert printed(sample(), 60) == (
        "a result\nin ms\n\nrows\n\n"
        "model      p99 ms           samples/s\n"
        "─────────────────────────────────────\n"
        "resnet50    1.500   █████        1000\n"
        "resnet50    2.500   █████        1000\n"
        " 1 too noisy\nF fastest\n\n"
        "Deploy         batch 8\n\nhow\n\n- it was timed\n\nprint(1)\n\n"
        "Notices\n 1 it waits: Python; use a graph\n"
    )


def test_terminal_that_is_too_narrow_drops_columns_and_then_shortens_names():
    assert "p99 ms" in printed(sample(), 50)
    assert "█" not in printed(sample(), 30)
    assert "p99 ms" not in printed(sample(), 25)
    assert "a-very-long-...-whose-model       1000" in printed(sample("a-very-long-name-of-some-or-of-whose-model"), 38)


def test_terminal_without_unicode_draws_bars_and_lines_in_ascii():
    printed(sample(), 60, "ascii").encode("ascii")
    assert "#####" in printed(sample(), 60, "ascii")


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=8, max_size=90), st.integers(40, 90))
def test_terminal_of_any_width_keeps_each_row_on_one_line(name, width):
    lines = printed(sample(name, 3), width).splitlines()
    head = next(place for place, line in enumerate(lines) if line.startswith("model"))

    assert all(line.endswith("1000") for line in lines[head + 2 : head + 5])
    assert max(map(cell_len, lines[head : head + 5])) <= width


def test_markdown_has_the_same_blocks_without_bars():
    assert render_markdown(sample()).decode() == (
        "in ms\n\n**rows**\n\n"
        "| model    | p99 ms | samples/s |\n"
        "|----------|--------|-----------|\n"
        "| resnet50 |  1.500 |      1000 |\n"
        "| resnet50 |  2.500 |      1000 |\n\n"
        "1. too noisy\n\nF fastest\n\n- Deploy: batch 8\n\n**how**\n\n- it was timed\n\n```python\nprint(1)\n```\n\n"
        "Notices:\n\n1. it waits: Python; use a graph\n"
    ).replace("in ms", "**a result**\n\nin ms", 1)


def test_markdown_makes_no_html_link_or_code_of_a_name():
    (line,) = [line for line in render_markdown(sample(HOSTILE, 1)).decode().splitlines() if "script" in line]

    assert line.startswith(r"| =a\|b\`c\[d\](e)&lt;script>")


@pytest.mark.parametrize("make", [printed, lambda document: render_markdown(document).decode()])
def test_title_of_a_collection_is_left_to_the_page(make):
    both = Document(title="two results", sections=(sample(), sample()))

    assert "two results" not in make(both)
    assert make(both).count("a result") == 2
    assert b"<h1>two results</h1>" in render_html(both)


def test_page_nests_its_headings_and_escapes_names():
    page = render_html(Document(title=HOSTILE, sections=(sample(HOSTILE), sample())))
    headings = [one.tag for one in Page(page).elements if re.fullmatch(r"h\d", one.tag)]

    assert headings[:3] == ["h1", "h2", "h3"]
    assert b"d](e)<script>" not in page
    assert page.count(b"<script>") == 1


def test_untitled_table_region_is_named_by_title_and_first_heading():
    page = render_html(forecast.document(FORECASTS)).decode()

    assert 'aria-label="resnet50 fp32 nchw: forecast, not measured, device memory"' in page
    assert "<caption>" not in page


@pytest.mark.parametrize(
    ("largest_batch", "error", "cells"),
    [(100, 0.03, ["100", "3 %", "97"]), (1, 0.2, ["1", "20 %", "1"]), (0, 0.2, ["none fits", "", ""])],
)
def test_forecast_names_a_batch_to_start_with(largest_batch, error, cells):
    card = replace(FORECASTS.cards[0], largest_batch=largest_batch, error=error)
    made = render_markdown(forecast.document(replace(FORECASTS, cards=(card,)))).decode()

    row = next(line for line in made.splitlines() if "GiB" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == cells


def test_page_has_row_headings_under_a_first_column_without_name():
    page = render_html(Document(title="t", sections=(table((Column("", "text"), Column("x")), [("plan", count(3))]),)))

    assert b'<th scope="row">plan</th><td class="n">3</td>' in page
    assert b'<button type="button"></button>' not in page


def test_csv_has_six_digits_keeps_whole_numbers_and_leaves_the_unknown_empty():
    lines = [{"name": HOSTILE, "rate": 1 / 3, "size": 123456789, "late": float("inf"), "ok": True}, {}]

    assert render_csv(data_table(("name", "rate", "size", "late", "ok"), lines)).decode() == (
        f"name,rate,size,late,ok\n'{HOSTILE},0.333333,123456789,,True\n,,,,\n"
    )


def test_forms_are_the_forms_of_the_document():
    assert list(forms(sample())) == ["md", "html"]
    assert list(forms(forecast.document(FORECASTS))) == ["json", "csv", "md", "html"]
    assert list(forms(records.document([example()]))) == list(ENDINGS)
    assert list(forms(records.document([example(), example()]))) == list(ENDINGS)
    assert "svg" not in forms(records.document([replace(example(), rows=())]))
    assert forms(forecast.document(FORECASTS))["json"]() == indent_json(FORECASTS)


def test_columns_without_content_are_left_out_unless_they_are_to_be_kept():
    full = table(map(Column, "abc"), [("1", "", ""), ("2", "", "")])

    assert [column.heading for column in without_blanks(full, keep=("c",)).columns] == ["a", "c"]
    assert [len(row) for row in without_blanks(full).rows] == [1, 1]


def test_cells_have_the_text_and_the_number_that_they_are_sorted_by():
    assert (figure(None), count(None)) == (Cell(), Cell())
    assert figure(999.96) == Cell("1000", 999.96)
    assert percent(0.125, 1) == Cell("12.5", 12.5)
    assert [cell.key for cell in (figure(4.118), Cell("1.2 GiB", 1.2e9), Cell("none"))] == ["", "1.2e+09", ""]
