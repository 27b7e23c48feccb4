import contextlib
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

NO_DEVICE = "no CUDA device here"
NO_BROWSER = "no browser here"
TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"

BY_DEFAULT = {"test_command", "test_contract", "test_size", "test_page"}
"""The tests of real processes that pytest runs by default; the other ones take many minutes together."""

# The duration of an example depends on the machine: a brief stall is not a failure.
settings.register_profile("any machine", deadline=None, print_blob=True)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what is printed now over the golden files")


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Return a function that compares bytes with the golden file of a name."""

    def check(name: str, actual: bytes) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_bytes(actual)
        assert path.read_bytes().decode() == actual.decode()

    return check


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """Return one server that forks a process for every question of all tests; see support.command."""
    from support.command import Kept

    folder = tmp_path_factory.mktemp("server")
    with contextlib.chdir(folder):
        kept = Kept(folder / "place.json")
    yield kept
    kept.end()


@pytest.fixture(scope="session")
def children(kept):
    """Return the same server, for tests that ask it directly."""
    return kept


@pytest.fixture(scope="session")
def ask(kept):
    """Run the command in this process, with the server of all tests."""
    return kept.run


@pytest.fixture(scope="module")  # while it is open, an event loop runs here, which tests elsewhere would find
def browser():
    """Return the system's Chromium, shared by a module's tests; each test opens its own pages. See support.browser."""
    from support.browser import missing, started

    reason = missing()
    if reason:
        pytest.skip(f"{NO_BROWSER}: {reason}")
    with started() as browser:
        yield browser


@pytest.fixture(scope="session")
def drawings():
    """Return functions that draw each plot once; shared by the modules that use ``plots_drawn_once``."""
    from tputfind.report.charts import draw

    return {name: cache(getattr(draw, name)) for name in ("inline", "image")}


@pytest.fixture(scope="module")
def plots_drawn_once(drawings):
    """Draw equal plots once: records that differ in one value change few of them. Return a function that forgets all.

    A test that compares drawings with each other must forget the first.
    """
    from tputfind.report.charts import draw

    with pytest.MonkeyPatch.context() as patch:
        for name, drawing in drawings.items():
            patch.setattr(draw, name, drawing)
        yield lambda: [drawing.cache_clear() for drawing in drawings.values()]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests under tests/gpu, run fast tests first, and tests that open the GPU in this process last.

    After a test opens the GPU, the tool sees this process as another one that holds device memory. If several
    processes run the tests, the fast tests follow the slow ones and fill the wait for the last slow test.
    """
    shared = any(hasattr(item.config, "workerinput") for item in items[:1])
    order = {"unit": 1 if shared else 0, "real": 0 if shared else 1, "gpu": 2}
    kinds = {item: item.path.relative_to(TESTS).parts[0] for item in items}
    for item, kind in kinds.items():
        if kind == "gpu":
            item.add_marker(pytest.mark.gpu)
        if kind == "real" and item.path.stem not in BY_DEFAULT:
            item.add_marker(pytest.mark.long)
    items.sort(key=lambda item: (order[kinds[item]], item.get_closest_marker("opens_gpu") is not None))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "gpu" in item.keywords:
        import torch

        if not torch.cuda.is_available():
            pytest.skip(NO_DEVICE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    skipped = sum("gpu" in report.keywords and NO_DEVICE in str(report.longrepr) for report in reports)
    left_out = [item for item in terminalreporter.stats.get("deselected", []) if "long" in item.keywords]
    if left_out:
        terminalreporter.write_line(f"{len(left_out)} long tests were left out: pytest -m long, or .ci/run, runs them")
    if skipped:
        terminalreporter.write_line(f"{skipped} gpu tests were skipped: there is no CUDA device here", yellow=True)
    unseen = [str(report.longrepr[2]) for report in reports if NO_BROWSER in str(report.longrepr)]
    if unseen:
        reason = unseen[0].partition(NO_BROWSER)[2].removeprefix(": ")
        message = f"{len(unseen)} TESTS OF THE PAGE WERE SKIPPED, so nothing opened it in a browser: {reason}"
        terminalreporter.write_line(message, yellow=True, bold=True)
