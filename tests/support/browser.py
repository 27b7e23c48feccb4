"""Opens a page in a real Chromium that shows no window, and tells what it said, what it asked for and what it shows.

Playwright drives whatever Chromium the system has; it brings none of its own, and nothing is downloaded here.
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
    """The Chromium to start: what ``CHROMIUM`` names, else the first that the path has."""
    named = os.environ.get("CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else PROGRAMS)), None)


def missing() -> str | None:
    """What keeps pages from being opened here, or None."""
    absent = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if absent:
        return f"there is no {' and no '.join(absent)}: pip install 'tputfind[test]'"
    if program() is None:
        return "there is no Chromium: apt-get install chromium, or name one in CHROMIUM"
    return None


class Page:
    """One open page. Elements are named by CSS selectors; clicks and keys are those of a real mouse and keyboard."""

    def __init__(self, page) -> None:
        self.page = page
        self._errors: list[str] = []
        self._requests: list[str] = []
        self._own = ""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._errors.append(f"uncaught: {error}"))
        page.on("crash", lambda _: self._errors.append("the page crashed"))
        page.on("websocket", lambda socket: self._requests.append(socket.url))
        # The context's requests are also those of windows that the page opens.
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
        """Whether that is another's address: what is written out within the page is asked of nobody."""
        return url.partition("#")[0] != self._own and not url.startswith(("data:", "blob:", "about:"))

    def settle(self) -> None:
        """Wait until two frames were drawn: what the page did before is heard of by then."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    @property
    def errors(self) -> list[str]:
        """Every error on the console and every one that nothing caught, from the start."""
        self.settle()
        return list(self._errors)

    @property
    def requests(self) -> list[str]:
        """Every address the page asked for beside its own, from the start; whether it got it does not matter."""
        # Half a second without a request: workers and icons take their time.
        self.page.wait_for_load_state("networkidle")
        self.settle()
        # Of a connection opened ahead of requests no event tells, and of an icon not always.
        quiet = "[rel~=preconnect], [rel~=dns-prefetch], [rel~=icon]"
        named = self.page.eval_on_selector_all(quiet, "links => links.map(link => link.href)")
        return list(dict.fromkeys(self._requests + list(filter(self._leaves, named))))

    def point_at(self, selector: str, across: float, down: float) -> None:
        """Move the mouse over the one such element: how far across and down, as shares of its size."""
        self.page.locator(selector).scroll_into_view_if_needed()
        box = self.page.locator(selector).bounding_box()
        self.page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])

    def click(self, selector: str) -> None:
        self.page.click(selector)

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as ``Tab``, ``Shift+Tab``, ``Enter`` or ``Space``."""
        for key in keys:
            self.page.keyboard.press(key)

    def tab_to(self, selector: str, presses: int = 100) -> None:
        """Press Tab until that element has the focus; a keyboard reaches it no other way."""
        for _ in range(presses):
            self.press("Tab")
            if self.page.eval_on_selector(selector, "element => element === document.activeElement"):
                return
        raise AssertionError(f"{presses} times Tab did not reach {selector}")

    def text(self, selector: str) -> str:
        """The text of the one such element, as it is shown."""
        return self.page.locator(selector).inner_text()

    def texts(self, selector: str) -> list[str]:
        """The text of every such element, in the page's order."""
        return self.page.locator(selector).all_inner_texts()

    def attribute(self, selector: str, name: str) -> str | None:
        return self.page.locator(selector).get_attribute(name)

    def style(self, selector: str, name: str) -> str:
        """What that property of the element comes to, as ``background-color``."""
        return self.page.eval_on_selector(
            selector, "(element, name) => getComputedStyle(element).getPropertyValue(name)", name
        )

    def too_wide_px(self) -> int:
        """By how many pixels the page is wider than its window: a reader would have to scroll sideways."""
        return self.page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def pdf(self, path: Path) -> Path:
        """Print the page, in the paper size that it asks for."""
        self.page.pdf(path=path, prefer_css_page_size=True, print_background=True)
        return path

    def violations(self, impacts: tuple[str, ...] = ("serious", "critical")) -> list[str]:
        """What axe-core holds against the page as it is now, a line for each element."""
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
        """Open a local file in a fresh profile; a narrow window is a phone's, which heeds the page's viewport."""
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
    """Start the system's Chromium; ``missing`` says beforehand whether there is one.

    Until it ends, this thread runs an event loop of Playwright's, and ``asyncio.run`` fails: keep it short.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program(),
            # The pages are our own, and neither root nor many a container can have the sandbox.
            chromium_sandbox=False,
            # A container's /dev/shm is often too small, or not there.
            args=["--disable-dev-shm-usage"],
            timeout=60_000,
        )
        try:
            yield Browser(browser)
        finally:
            browser.close()
