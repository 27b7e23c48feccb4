"""Open a page in a real Chromium without a window; report its console, its requests and its content.

Playwright drives the Chromium of the system and downloads no browser.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable")
DESKTOP, PHONE = 1280, 390
_HEIGHTS = {DESKTOP: 800, PHONE: 844}
_WIDEST_PHONE = 600
_LIBRARIES = ("playwright", "axe_playwright_python")


def program() -> str | None:
    """Return the Chromium to start: the one named by ``CHROMIUM``, else the first on the path."""
    named = os.environ.get("CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else PROGRAMS)), None)


def missing() -> str | None:
    """Return the reason why pages cannot be opened here, or None."""
    absent = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if absent:
        return f"there is no {' and no '.join(absent)}: pip install 'tputfind[test]'"
    if program() is None:
        return "there is no Chromium: apt-get install chromium, or name one in CHROMIUM"
    return None


class Page:
    """An open page. CSS selectors name elements; clicks and keys are those of a real mouse and keyboard."""

    def __init__(self, page) -> None:
        self.page = page
        self._errors: list[str] = []
        self._requests: list[str] = []
        self._own = ""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._errors.append(f"uncaught: {error}"))
        page.on("crash", lambda _: self._errors.append("the page crashed"))
        page.on("websocket", lambda socket: self._requests.append(socket.url))
        # The context's requests include those of windows that the page opens.
        page.context.on("request", self._request)

    def load(self, path: Path) -> None:
        self._own = path.resolve().as_uri()
        self.page.goto(self._own)

    def _console(self, message) -> None:
        if message.type in ("error", "assert"):
            self._errors.append(f"console: {message.text}")

    def _request(self, request) -> None:
        if self._leaves(request.url):
            self._requests.append(request.url)

    def _leaves(self, url: str) -> bool:
        """Return whether a URL leaves the page; data written inside the page is never requested."""
        return url.partition("#")[0] != self._own and not url.startswith(("data:", "blob:", "about:"))

    def settle(self) -> None:
        """Wait until two frames were drawn: earlier actions of the page are then reported."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    @property
    def errors(self) -> list[str]:
        """Return all console errors and uncaught exceptions since the start."""
        self.settle()
        return list(self._errors)

    @property
    def requests(self) -> list[str]:
        """Return every URL that the page requested besides its own since the start, even if the request failed."""
        # Half a second without a request: workers and icons take their time.
        self.page.wait_for_load_state("networkidle")
        self.settle()
        # No event reports a preconnection, and not always an icon.
        quiet = "[rel~=preconnect], [rel~=dns-prefetch], [rel~=icon]"
        named = self.page.eval_on_selector_all(quiet, "links => links.map(link => link.href)")
        return list(dict.fromkeys(self._requests + list(filter(self._leaves, named))))

    def point_at(self, selector: str, across: float, down: float) -> None:
        """Move the mouse over the only matching element, to fractions of its width and height."""
        self.page.locator(selector).scroll_into_view_if_needed()
        box = self.page.locator(selector).bounding_box()
        self.page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])

    def click(self, selector: str) -> None:
        self.page.click(selector)

    def press(self, *keys: str) -> None:
        """Press keys in order, such as ``Tab``, ``Shift+Tab``, ``Enter`` or ``Space``."""
        for key in keys:
            self.page.keyboard.press(key)

    def tab_to(self, selector: str, presses: int = 100) -> None:
        """Press Tab until the element has the focus; raise AssertionError after ``presses`` times."""
        for _ in range(presses):
            self.press("Tab")
            if self.page.eval_on_selector(selector, "element => element === document.activeElement"):
                return
        raise AssertionError(f"{presses} times Tab did not reach {selector}")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def attribute(self, selector: str, name: str) -> str | None:
        return self.page.locator(selector).get_attribute(name)

    def style(self, selector: str, name: str) -> str:
        """Return the computed value of a CSS property of the element, such as ``background-color``."""
        return self.page.eval_on_selector(
            selector, "(element, name) => getComputedStyle(element).getPropertyValue(name)", name
        )

    def too_wide_px(self) -> int:
        """Return by how many pixels the page is wider than its window, so that it must scroll sideways."""
        return self.page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def pdf(self, path: Path) -> Path:
        """Print the page in its own paper size; return the path."""
        self.page.pdf(path=path, prefer_css_page_size=True, print_background=True)
        return path

    def violations(self, impacts: tuple[str, ...] = ("serious", "critical")) -> list[str]:
        """Return the violations found by axe-core on the current page, one line per element."""
        from axe_playwright_python.sync_playwright import Axe

        return [
            f"{violation['id']} ({violation['impact']}): {violation['help']}: {node['html']}"
            for violation in Axe().run(self.page).response["violations"]
            for node in violation["nodes"]
            if violation["impact"] in impacts
        ]


class Browser:
    """A running Chromium."""

    def __init__(self, browser) -> None:
        self.browser = browser

    @contextmanager
    def open(self, path: Path, width: int = DESKTOP, *, dark: bool = False, scripts: bool = True) -> Iterator[Page]:
        """Open a local file in a fresh profile; a narrow window is a phone, which applies the page's viewport."""
        context = self.browser.new_context(
            viewport={"width": width, "height": _HEIGHTS.get(width, 800)},
            java_script_enabled=scripts,
            color_scheme="dark" if dark else "light",
            is_mobile=width < _WIDEST_PHONE,
            has_touch=width < _WIDEST_PHONE,
            reduced_motion="reduce",
            locale="en-US",
            timezone_id="UTC",
        )
        context.set_default_timeout(15_000)
        try:
            page = Page(context.new_page())
            page.load(path)
            yield page
        finally:
            context.close()


@contextmanager
def started() -> Iterator[Browser]:
    """Start the system's Chromium; ``missing`` checks beforehand whether it exists.

    Until it ends, this thread runs an event loop of Playwright's, and ``asyncio.run`` fails: keep it short.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program(),
            # The pages are trusted, and root and many containers lack the sandbox.
            chromium_sandbox=False,
            # A container's /dev/shm is often too small or missing.
            args=["--disable-dev-shm-usage"],
            timeout=60_000,
        )
        try:
            yield Browser(browser)
        finally:
            browser.close()
