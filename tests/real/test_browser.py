"""What looks at pages in a real browser sees what it is there to see, on small pages written for it."""

from __future__ import annotations

import re
import struct

import pytest
from support.browser import DESKTOP, PHONE, missing, program

NOWHERE = "http://127.0.0.1:9/x.js"  # Chromium refuses this port by itself: nothing is sent

CLEAN = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; script-src 'unsafe-inline'; style-src 'unsafe-inline'">
<title>Fruit</title>
<style>
:root { color-scheme: light dark; }
body { background: #fff; color: #111; font: 16px sans-serif; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #eee; } }
.tall { height: 2000px; }
@media print { .tall { display: none; } }
</style>
</head>
<body>
<main>
<h1>Fruit</h1>
<img alt="A red dot" src="data:image/gif;base64,R0lGODlhAQABAIAAAP8AAAAAACH5BAAAAAAALAAAAAABAAEAAAICRAEAOw==">
<table>
<thead><tr>
<th scope="col" aria-sort="none"><button id="by-name">Name</button></th>
<th scope="col" aria-sort="none"><button id="by-grams">Grams</button></th>
</tr></thead>
<tbody><tr><td>Pear</td><td>170</td></tr><tr><td>Apple</td><td>90</td></tr><tr><td>Fig</td><td>1000</td></tr></tbody>
</table>
<div class="tall"></div>
</main>
<script>
document.querySelectorAll("th button").forEach((button, column) => button.addEventListener("click", () => {
    const body = document.querySelector("tbody"), head = button.parentElement;
    const direction = head.ariaSort === "ascending" ? -1 : 1;
    const key = row => row.cells[column].textContent;
    const rows = [...body.rows];
    rows.sort((a, b) => direction * key(a).localeCompare(key(b), "en", { numeric: true }));
    body.append(...rows);
    document.querySelectorAll("th").forEach(other => other.ariaSort = "none");
    head.ariaSort = direction > 0 ? "ascending" : "descending";
}));
</script>
</body>
</html>
"""


@pytest.fixture
def page_of(tmp_path):
    """Write a page: a whole one, or what stands in its body."""

    def write(content: str):
        path = tmp_path / "page.html"
        whole = content.startswith("<!doctype")
        path.write_text(
            content if whole else f'<!doctype html><html lang="en"><title>Page</title><main><h1>Page</h1>{content}'
        )
        return path

    return write


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_a_clean_page_has_nothing_to_report(browser, page_of, width, dark):
    with browser.open(page_of(CLEAN), width, dark=dark) as page:
        assert page.text("h1") == "Fruit"
        assert page.style("body", "background-color") == ("rgb(17, 17, 17)" if dark else "rgb(255, 255, 255)")
        assert page.violations(("minor", "moderate", "serious", "critical")) == []
        assert page.too_wide_px() == 0
        assert page.requests == []
        assert page.errors == []


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("console.error('it', 'broke')", "console: it broke"),
        ("console.assert(1 > 2, 'not so')", "console: not so"),
        ("no_such_name()", "uncaught: no_such_name is not defined"),
        ("Promise.reject(new Error('nobody waited'))", "uncaught: nobody waited"),
        ("addEventListener('load', () => { throw new Error('late') })", "uncaught: late"),
    ],
)
def test_an_error_is_seen(browser, page_of, script, error):
    with browser.open(page_of(f"<script>{script}</script>")) as page:
        assert page.errors == [error]


def test_an_error_after_a_click_is_seen(browser, page_of):
    with browser.open(page_of("""<button onclick="console.error('clicked')">Go</button>""")) as page:
        assert page.errors == []
        page.click("button")
        assert page.errors == ["console: clicked"]


def test_other_words_on_the_console_are_no_errors(browser, page_of):
    with browser.open(page_of("<script>console.log('log'); console.warn('warn')</script>")) as page:
        assert page.errors == []


@pytest.mark.parametrize(
    "content",
    [
        f'<script src="{NOWHERE}"></script>',
        f'<img alt="" src="{NOWHERE}">',
        f'<iframe title="Frame" src="{NOWHERE}"></iframe>',
        f'<link rel="icon" href="{NOWHERE}">',
        f'<link rel="prefetch" href="{NOWHERE}">',
        f'<link rel="preconnect" href="{NOWHERE}">',
        f'<style>@import "{NOWHERE}";</style>',
        f"<style>@font-face {{ font-family: X; src: url({NOWHERE}) }} p {{ font-family: X }}</style><p>Text",
        f"<script>fetch('{NOWHERE}').catch(() => 0)</script>",
        f"<script>navigator.sendBeacon('{NOWHERE}', '')</script>",
        f"<script>new EventSource('{NOWHERE}')</script>",
        f"<script>new WebSocket('{NOWHERE.replace('http', 'ws')}')</script>",
        f"<script>new Worker(URL.createObjectURL(new Blob([`fetch('{NOWHERE}').catch(() => 0)`])))</script>",
        f"<script>window.open('{NOWHERE}')</script>",
    ],
)
def test_a_request_is_seen_though_nothing_answers(browser, page_of, content):
    with browser.open(page_of(content)) as page:
        assert [url.replace("ws:", "http:") for url in page.requests] == [NOWHERE]


def test_a_file_beside_the_page_is_a_request_too(browser, page_of, tmp_path):
    (tmp_path / "beside.css").write_text("h1 { color: red }")
    with browser.open(page_of('<link rel="stylesheet" href="beside.css">')) as page:
        assert page.requests == [(tmp_path / "beside.css").as_uri()]
        assert page.errors == []


def test_axe_finds_a_missing_alternative_text(browser, page_of):
    with browser.open(page_of('<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">')) as page:
        (violation,) = page.violations()

    assert violation.startswith("image-alt (critical): Images must have alternative text: <img ")


def test_axe_finds_grey_on_grey_in_the_dark_only(browser, page_of):
    content = page_of("<style>@media (prefers-color-scheme: dark) { main { background: #333 } }</style><p>Text")
    with browser.open(content) as page:
        assert page.violations() == []
    with browser.open(content, dark=True) as page:
        assert {violation.split(":")[0] for violation in page.violations()} == {"color-contrast (serious)"}


def test_a_table_is_sorted_by_click(browser, page_of):
    with browser.open(page_of(CLEAN)) as page:
        page.click("#by-name")
        assert page.texts("tbody td:first-child") == ["Apple", "Fig", "Pear"]
        assert page.attribute("th:first-child", "aria-sort") == "ascending"
        page.click("#by-name")
        assert page.texts("tbody td:first-child") == ["Pear", "Fig", "Apple"]
        assert page.attribute("th:first-child", "aria-sort") == "descending"


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_table_is_sorted_by_keyboard(browser, page_of, key):
    with browser.open(page_of(CLEAN)) as page:
        page.press("Tab", "Tab", key)
        assert page.texts("tbody td:last-child") == ["90", "170", "1000"]
        assert page.attribute("th:last-child", "aria-sort") == "ascending"
        page.press("Shift+Tab", key)
        assert page.texts("tbody td:first-child") == ["Apple", "Fig", "Pear"]


def test_what_takes_the_mouse_alone_is_out_of_the_keyboards_reach(browser, page_of):
    with browser.open(page_of('<button>One</button><span onclick="1">Two</span>')) as page:
        page.tab_to("button")
        with pytest.raises(AssertionError, match="5 times Tab did not reach span"):
            page.tab_to("span", presses=5)


def test_a_page_too_wide_for_a_phone_is_seen(browser, page_of):
    content = '<meta name="viewport" content="width=device-width"><div style="width: 700px">Wide</div>'
    with browser.open(page_of(content)) as page:
        assert page.too_wide_px() == 0
    with browser.open(page_of(content), PHONE) as page:
        assert page.too_wide_px() > 300


def test_a_page_that_forgets_the_viewport_is_laid_out_for_a_desktop_on_a_phone(browser, page_of):
    with browser.open(page_of("<p>Text"), PHONE) as page:
        assert page.page.evaluate("document.documentElement.clientWidth") == 980


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_a_screenshot_shows_the_whole_page(browser, page_of, tmp_path, width):
    with browser.open(page_of(CLEAN), width) as page:
        png = page.screenshot(tmp_path / "page.png").read_bytes()

    assert png.startswith(b"\x89PNG")
    across, down = struct.unpack(">II", png[16:24])
    assert across == width
    assert down > 2000


def test_a_page_is_printed(browser, page_of, tmp_path):
    with browser.open(page_of(CLEAN), dark=True) as page:
        pdf = page.pdf(tmp_path / "page.pdf").read_bytes()

    assert pdf.startswith(b"%PDF-")
    # What print leaves out would take two pages more.
    assert len(re.findall(rb"/Type /Page\b", pdf)) == 1


def test_without_a_browser_it_is_said_how_to_get_one(monkeypatch):
    pytest.importorskip("axe_playwright_python", reason="no browser here: pip install 'tputfind[test]'")
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", "")

    assert program() is None
    assert "apt-get install chromium" in missing()
