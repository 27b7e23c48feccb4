"""The browser harness detects the faults that the tests of the report page exclude."""

import pytest
from support.browser import PHONE, missing, program

NOWHERE = "http://127.0.0.1:9/x.js"  # Chromium blocks this port itself, so no packet is sent


@pytest.fixture
def page_of(tmp_path):
    """Return a function that writes a page with a given body."""

    def write(content: str):
        path = tmp_path / "page.html"
        path.write_text(f'<!doctype html><html lang="en"><title>Page</title><main><h1>Page</h1>{content}')
        return path

    return write


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("console.error('it', 'broke')", "console: it broke"),
        ("no_such_name()", "uncaught: no_such_name is not defined"),
        ("Promise.reject(new Error('nobody waited'))", "uncaught: nobody waited"),
    ],
)
def test_an_error_is_seen(browser, page_of, script, error):
    with browser.open(page_of(f"<script>{script}</script>")) as page:
        assert page.errors == [error]


@pytest.mark.parametrize(
    "content",
    [
        f'<script src="{NOWHERE}"></script>',
        f'<link rel="icon" href="{NOWHERE}">',
        f'<link rel="preconnect" href="{NOWHERE}">',
        f"<script>fetch('{NOWHERE}').catch(() => 0)</script>",
        f"<script>new WebSocket('{NOWHERE.replace('http', 'ws')}')</script>",
        f"<script>new Worker(URL.createObjectURL(new Blob([`fetch('{NOWHERE}').catch(() => 0)`])))</script>",
    ],
)
def test_request_is_recorded_though_unanswered(browser, page_of, content):
    with browser.open(page_of(content)) as page:
        assert [url.replace("ws:", "http:") for url in page.requests] == [NOWHERE]


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


def test_mouse_only_element_is_not_reachable_by_keyboard(browser, page_of):
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


def test_missing_browser_is_reported_with_installation_advice(monkeypatch):
    pytest.importorskip("axe_playwright_python", reason="no browser here: pip install 'tputfind[test]'")
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", "")

    assert program() is None
    assert "apt-get install chromium" in missing()
