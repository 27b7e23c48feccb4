"""The page of records, opened in a real browser."""

from __future__ import annotations

import msgspec
import pytest
from support.browser import DESKTOP, PHONE
from support.folders import RESULTS
from support.records import example

import tputfind
from tputfind.record.record import Notice
from tputfind.report.page.page import to_html

HOSTILE = "<img src=x onerror=alert(1)>"


def saved(path, *records):
    path.write_bytes(to_html(records))
    return path


@pytest.fixture
def one(tmp_path):
    """The page of a whole search on a GPU."""
    return saved(tmp_path / "one.html", tputfind.load_record(RESULTS / "nvidia-h200/models/vit_b_16-fp16.json"))


@pytest.fixture
def several(tmp_path):
    """The page of a model in six recipes."""
    paths = sorted(RESULTS.glob("nvidia-h200/recipes/resnet50-*.json"))
    return saved(tmp_path / "several.html", *map(tputfind.load_record, paths))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_a_page_makes_no_error_asks_for_nothing_and_is_accessible(browser, one, several, width, dark):
    for path in (one, several):
        with browser.open(path, width, dark=dark) as page:
            assert page.errors == []
            assert page.requests == []
            assert page.violations() == []
            assert page.too_wide_px() <= 0


def rates(page):
    return [float(text) for text in page.texts("section[aria-labelledby=rows] tbody td:nth-child(2)") if text]


def test_the_table_sorts_by_mouse_and_by_keyboard(browser, one):
    button = "section[aria-labelledby=rows] th:nth-child(2) button"
    with browser.open(one) as page:
        before = rates(page)
        page.click(button)
        upwards = rates(page)
        page.tab_to(button)
        page.press("Enter")
        downwards = rates(page)

        assert upwards == sorted(before) != before
        assert downwards == sorted(before, reverse=True)
        assert page.attribute("section[aria-labelledby=rows] th:nth-child(2)", "aria-sort") == "descending"
        assert page.errors == []


def test_a_failed_row_sorts_last_whichever_way(browser, tmp_path):
    button = "section[aria-labelledby=rows] th:nth-child(2) button"
    with browser.open(saved(tmp_path / "page.html", example())) as page:
        for _ in range(2):
            page.click(button)
            assert page.texts("section[aria-labelledby=rows] tbody td:nth-child(2)")[-1] == ""


def test_what_a_record_says_is_text_and_never_runs(browser, tmp_path):
    notice = Notice(kind=HOSTILE, seen=HOSTILE, cause="<script>alert(1)</script>", advice="</svg>")
    environment = msgspec.structs.replace(example().environment, device_name=HOSTILE)
    spec = msgspec.structs.replace(example().spec, model=HOSTILE)
    record = msgspec.structs.replace(example(), spec=spec, environment=environment, notices=(notice,))
    with browser.open(saved(tmp_path / "page.html", record)) as page:
        assert HOSTILE in page.text("h1")
        assert page.errors == []
        assert page.requests == []
        assert page.page.locator("img").count() == 0


def test_a_dark_page_has_light_ink_in_its_plots_and_prints_on_white(browser, one, tmp_path):
    with browser.open(one, dark=True) as page:
        dark = page.style("figure svg text", "fill")
        assert page.pdf(tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    with browser.open(one) as page:
        assert page.style("figure svg text", "fill") != dark


def test_every_plot_says_in_words_what_it_shows(browser, several):
    with browser.open(several) as page:
        drawings = page.page.get_by_role("img").all()
        words = [page.page.locator("figure svg > desc").nth(number).text_content() for number in range(len(drawings))]

        assert len(drawings) >= 4
        assert all(len(told) > 20 for told in words)
        assert "samples/s" in words[0]
