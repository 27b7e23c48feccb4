"""The page of records, opened in a real browser."""

import msgspec
import pytest
from support.browser import DESKTOP, PHONE
from support.folders import RESULTS
from support.records import FORECASTS, example
from support.shown import page_of

import tputfind
from tputfind.analysis.compare import compare
from tputfind.record import files
from tputfind.record.record import Notice
from tputfind.report.renderers.html import render_html
from tputfind.report.views import clocks, forecast, size
from tputfind.report.views import compare as compared
from tputfind.sizing.planner.plan import answers
from tputfind.sizing.planner.question import read_demand

HOSTILE = "<img src=x onerror=alert(1)>"


def saved(path, *records):
    path.write_bytes(page_of(records))
    return path


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Provide the page of a whole search on a GPU."""
    return saved(
        tmp_path_factory.mktemp("pages") / "one.html",
        tputfind.load_record(RESULTS / "nvidia-h200/default/resnet50-fp16.json"),
    )


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Provide the page of a model in six recipes."""
    records = files.load_records(RESULTS / "nvidia-h200/recipes/resnet50-fp16.json")
    return saved(tmp_path_factory.mktemp("pages") / "several.html", *records)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_page_has_no_errors_or_requests_and_is_accessible(browser, one, several, width, dark):
    for path in (one, several):
        with browser.open(path, width, dark=dark) as page:
            assert page.errors == []
            assert page.requests == []
            assert page.violations() == []
            assert page.too_wide_px() <= 0


def documents_of_other_results():
    """Yield a document of each kind of result except records, including plans of one and of two models."""
    read = {
        name: tputfind.load_record(RESULTS / f"nvidia-h200/default/{name}-fp16.json")
        for name in ("resnet50", "vit_b_16")
    }
    demand = read_demand({"rate": 2000, "slo": 200.0, "batcher": "triton"})
    yield "plans", size.document(answers(list(read.values()), demand))
    yield "plan", size.document(answers([read["resnet50"]], demand))
    yield "comparison", compared.document([compare(read["resnet50"], read["vit_b_16"], force=True)])
    yield "clocks", clocks.document(files.load(RESULTS / "nvidia-h200/clocks/resnet50-fp16-batch-1.json"))
    yield "forecast", forecast.document(FORECASTS)


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_page_of_every_result_is_accessible_without_requests(browser, tmp_path, width):
    for name, document in documents_of_other_results():
        path = tmp_path / f"{name}.html"
        path.write_bytes(render_html(document))
        with browser.open(path, width) as opened:
            assert opened.errors == []
            assert opened.requests == []
            assert opened.violations() == [], name
            assert opened.too_wide_px() <= 0, name


def rates(page):
    texts = page.texts("section[aria-labelledby=rows] tbody td:nth-child(2)")
    return [float(text.removeprefix("~")) for text in texts if text]


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


def test_failed_row_sorts_last_in_both_directions(browser, tmp_path):
    button = "section[aria-labelledby=rows] th:nth-child(2) button"
    with browser.open(saved(tmp_path / "page.html", example())) as page:
        for _ in range(2):
            page.click(button)
            assert page.texts("section[aria-labelledby=rows] tbody td:nth-child(2)")[-1] == ""


def test_text_of_a_record_is_never_executed(browser, tmp_path):
    notice = Notice(kind=HOSTILE, seen=HOSTILE, cause="<script>alert(1)</script>", advice="</svg>")
    environment = msgspec.structs.replace(example().environment, device_name=HOSTILE)
    spec = msgspec.structs.replace(example().spec, model=HOSTILE)
    record = msgspec.structs.replace(example(), spec=spec, environment=environment, notices=(notice,))
    other = msgspec.structs.replace(record, spec=msgspec.structs.replace(spec, model=f"{HOSTILE} again"))
    with browser.open(saved(tmp_path / "page.html", record, other)) as page:
        assert HOSTILE in page.text("h1")
        page.point_at(reader(1), 0.5, 0.5)
        assert "<img src=x onerror=" in page.text("figure:nth-of-type(1) .tip")
        assert page.errors == []
        assert page.requests == []
        assert page.page.locator("img").count() == 0


def test_dark_page_has_light_plot_text_and_prints_on_white(browser, one, tmp_path):
    with browser.open(one, dark=True) as page:
        dark = page.style("figure svg text", "fill")
        assert page.pdf(tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    with browser.open(one) as page:
        assert page.style("figure svg text", "fill") != dark


def test_plot_words_summarize_each_plot(browser, several):
    with browser.open(several) as page:
        drawings = page.page.get_by_role("img").all()
        words = [page.page.locator("figure svg > desc").nth(number).text_content() for number in range(len(drawings))]

        assert len(drawings) >= 4
        assert all(len(told) > 20 for told in words)
        assert "samples/s" in words[0]


def reader(number):
    return f"figure:nth-of-type({number}) .reader"


def by_keyboard(page, number):
    """Return the words of a plot for its values, from the first to the last."""
    page.tab_to(reader(number))
    page.press("Home")
    said = [page.attribute(reader(number), "aria-valuetext")]
    for _ in range(int(page.attribute(reader(number), "aria-valuemax")) - 1):
        page.press("ArrowRight")
        said.append(page.attribute(reader(number), "aria-valuetext"))
        assert page.text(f"figure:nth-of-type({number}) .tip") == said[-1]
    return said


def by_pointer(page, number):
    """Return all words that a plot shows while the pointer moves over it."""
    shares = [place / 36 for place in range(1, 36)]
    places = [*zip(shares, shares, strict=True), *zip(shares, reversed(shares), strict=True)]
    said = set()
    for place in places:
        page.point_at(reader(number), *place)
        said.add(page.text(f"figure:nth-of-type({number}) .tip"))
    return said


def test_the_keyboard_reaches_every_value_that_the_pointer_shows(browser, one, several):
    for path in (one, several):
        with browser.open(path) as page:
            for number in (1, 2):
                said = by_keyboard(page, number)
                pointed = by_pointer(page, number)

                assert len(set(said)) == len(said) > 1
                assert len(pointed) > len(said) / 2
                assert pointed <= set(said)
            assert page.errors == []


def test_pointer_reads_the_value_of_each_batch(browser, one):
    with browser.open(one) as page:
        shown = page.page.eval_on_selector(
            ".plot",
            "plot => [JSON.parse(plot.dataset.stops), plot.querySelector('svg').viewBox.baseVal.width,"
            " JSON.parse(plot.dataset.box)]",
        )
        stops, width, (left, _, across, _) = shown
        for text, ((x, _), *_) in stops:
            page.point_at(reader(1), (100 * x / width - left) / across, 0.5)
            assert page.text("figure:nth-of-type(1) .tip") == text


def test_a_tip_goes_when_the_pointer_or_the_focus_does(browser, one):
    tip = "figure:nth-of-type(1) .tip"
    with browser.open(one) as page:
        page.point_at(reader(1), 0.5, 0.5)
        assert page.page.locator(tip).is_visible()
        page.point_at("h1", 0.5, 0.5)
        assert not page.page.locator(tip).is_visible()
        page.tab_to(reader(1))
        assert page.page.locator(tip).is_visible()
        page.press("Escape")
        assert not page.page.locator(tip).is_visible()
        page.press("End")
        assert page.attribute(reader(1), "aria-valuetext").startswith("batch ")
        page.press("Tab")
        assert not page.page.locator(tip).is_visible()


def test_a_tip_stays_within_its_plot(browser, one):
    for width in (DESKTOP, PHONE):
        with browser.open(one, width) as page:
            for across in (0.01, 0.5, 0.99):
                page.point_at(reader(1), across, 0.5)
                plot, tip = (
                    page.page.locator(f"figure:nth-of-type(1) {name}").bounding_box() for name in (".plot", ".tip")
                )
                assert plot["x"] - 1 <= tip["x"]
                assert tip["x"] + tip["width"] <= plot["x"] + plot["width"] + 1
                assert page.too_wide_px() <= 0


def test_page_without_scripts_is_complete_without_readers(browser, one):
    with browser.open(one, scripts=False) as page:
        assert page.page.locator("figure svg").first.is_visible()
        assert page.page.locator("[role=slider]").count() == 0
        assert "Batch to deploy" in page.text("section[aria-labelledby=answers]")


def test_folded_sections_open_by_keyboard_and_on_paper(browser, several):
    folded = "section[aria-labelledby=measured] details"
    with browser.open(several) as page:
        inside = page.page.locator(f"{folded} table").last
        assert not inside.is_visible()
        page.page.emulate_media(media="print")
        assert inside.bounding_box()["height"] > 50
        page.page.emulate_media(media="screen")
        page.tab_to(f"{folded}:last-child summary")
        page.press("Enter")
        assert inside.is_visible()


def test_tables_are_the_only_thing_that_scrolls_sideways(browser, several):
    with browser.open(several, PHONE) as page:
        wide = page.page.eval_on_selector_all(
            "body *:not(.box):not(pre)",
            "all => all.filter(one => !one.closest('.box, svg, details:not([open])') && one.clientWidth"
            " && one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 80))",
        )
        assert wide == []
