"""README and docs are true: their commands run, their outputs and links are right, their figures name their file."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
import yaml
from click.testing import CliRunner
from support import docs
from support.folders import BENCHMARKS, RESULTS, ROOT

import tputfind
from tputfind.commands import COMMANDS, main
from tputfind.report.columns import COLUMNS
from tputfind.session.catalogue import at_hand

README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "throughput.svg"
INSTALLED = Path(tputfind.__file__).parent
EXAMPLE = "results/nvidia-h100/default/resnet50-fp16.json"


@pytest.fixture
def update(request):
    return request.config.getoption("--update-golden")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATED = generate().PAGES


def is_generated(page: Path) -> bool:
    return page in [ROOT / "docs" / name for name in GENERATED]


by_page = pytest.mark.parametrize("page", docs.PAGES, ids=relative)


def run_blocks(page: Path, needs: str, folder: Path, update: bool) -> None:
    """Run the blocks of a page that need just that; of a generated page they are command lines to learn from."""
    if is_generated(page):
        return
    docs.furnish(folder, page)
    for block in docs.blocks(page):
        if block.needs != needs:
            continue
        if block.language == "python" and not block.file:
            docs.run([sys.executable, "-c", block.body], folder)
        printed = [docs.run(["bash", "-c", command], folder) for command, _ in block.steps]
        if block.language != "console":
            continue
        if update:
            body = "".join(f"$ {command}\n{output}" for (command, _), output in zip(block.steps, printed, strict=True))
            page.write_text(page.read_text().replace(f"```console\n{block.body}```", f"```console\n{body}```"))
            continue
        for (command, shown), output in zip(block.steps, printed, strict=True):
            alike = docs.without_figures if needs else str
            assert alike(output) == alike(shown), f"{command}: pytest --update-golden writes it anew"


@by_page
def test_the_commands_of_a_page_print_what_it_shows(page, tmp_path, update):
    run_blocks(page, "", tmp_path, update)


@pytest.mark.long
@pytest.mark.parametrize(
    "page", [page for page in docs.PAGES if any(block.needs == "seconds" for block in docs.blocks(page))], ids=relative
)
def test_the_measurements_of_a_page_run_and_print_what_it_shows_up_to_figures(page, tmp_path, update):
    run_blocks(page, "seconds", tmp_path, update)


PLACEHOLDERS = {"..."}
NAMES = {model.name for model in at_hand() or []}


def known_model(name: str) -> bool:
    return name in NAMES or name.isupper() or name in PLACEHOLDERS or ":" in name or name.endswith((".pt", ".pt2"))


@by_page
def test_every_command_of_a_page_is_one_that_the_tool_takes(page):
    for shown in docs.commands_shown(page):
        for arguments in docs.calls(shown):
            name = arguments[0] if arguments[0] in main.commands else "run"
            given = arguments[1:] if name == arguments[0] else arguments
            if not given or {"--help", "--version"} & set(given):
                continue
            command = main.commands[name]
            try:
                context = command.make_context(name, list(given))
            except click.ClickException as problem:
                raise AssertionError(f"{shown}: {problem.message}") from problem
            models = [*(context.params.get("models") or ()), *filter(None, [context.params.get("model")])]
            assert [model for model in models if not known_model(model)] == [], shown


@by_page
def test_every_script_that_a_page_names_is_there(page):
    named = re.findall(r"(?:python|pytest(?: -[ms] \S+)*) ((?:benchmarks|docs|tests)/[\w/.]+)", page.read_text())

    assert [script for script in named if not (ROOT / script).exists()] == []


@pytest.mark.parametrize("page", [*docs.PAGES, RESULTS / "README.md"], ids=relative)
def test_every_link_of_a_page_leads_somewhere(page):
    for link in docs.links(page.read_text()):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target.is_relative_to(ROOT / "tputfind"):
            target = INSTALLED / target.relative_to(ROOT / "tputfind")
        assert target.exists(), link
        assert not anchor or anchor in docs.anchors(target), link


def test_every_page_of_docs_is_in_its_index():
    folder = ROOT / "docs"
    listed = docs.links((folder / "README.md").read_text())
    pages = [str(page.relative_to(folder)) for page in docs.PAGES if page.is_relative_to(folder)]

    assert [page for page in pages if page not in listed] == ["README.md"]


MEASURED = re.compile(
    r"\d(?:[\d.,]*\d)? ?(?:%|(?:samples/s|requests/s|times|s|ms|µs|min|hours?|[kMG]B|[MG]iB|MHz|W)\b)"
)
DEFINED = (
    "95 % confidence interval",
    "at least 95 % of the best",
    "holds with 95 %",
    "hold together with 95 %",
    "with 99 % confidence",
    "20% more",
    "80 % of its time or more",
    "80 % of a batch's time or more",
    "no better than 3 %",
    "1 % of the time or more",
    "move the mean by 1 % or more",
    "by 2 % or more",
    "by more than 5 %",
    "differ by 0.5 % at most",
    "its 4 seconds",
    "up to 60 seconds",
    "up to four times as long",
    "with 0.2 % added",
    "Batches of 100 ms or more",
    "agrees with the device time within 5 %",
    "five times a second",
    "may lie 5 % apart",
    "to no better than 50 %",
    "to no better than 25 %",
    "Above 50 % it is not known",
    "kept 15 % of the cores busy or more",
)
"""Phrases with a figure that was not measured: a rule of the tool, or the definition of a word."""


@by_page
def test_every_measured_figure_of_a_page_names_its_file(page):
    unproven = {}
    for passage in docs.passages(page.read_text()) if not is_generated(page) else ():
        said = re.sub(r"`[^`]*`|\]\([^)]*\)", "", " ".join(passage.split()))
        for phrase in DEFINED:
            said = said.replace(phrase, "")
        figures = MEASURED.findall(said)
        if figures and "results/" not in passage:
            unproven[passage] = figures

    assert unproven == {}


def test_every_phrase_with_a_defined_figure_is_in_use():
    said = " ".join(" ".join(page.read_text().split()) for page in docs.PAGES if not is_generated(page))

    assert [phrase for phrase in DEFINED if phrase not in said] == []


@by_page
def test_no_sentence_of_a_page_has_more_than_25_words(page):
    said = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", "word", docs.prose(page.read_text()))
    sentences = re.split(r"[.!?:;]\s|\n\s*\n|\n[-*|] |\||\n#|\n\d\. ", said)

    assert [" ".join(one.split()) for one in sentences if len(one.split()) > 25] == []


def test_the_readme_is_read_in_three_minutes():
    assert len(README.read_text().splitlines()) <= 200


def test_the_readme_shows_the_picture_of_its_example(tmp_path, update):
    path = PICTURE if update else tmp_path / "throughput.svg"
    docs.run(["tputfind", "report", EXAMPLE, "--save", str(path), "--overwrite"], ROOT)

    def words(drawn: Path) -> list[str]:
        return [text for text in ElementTree.parse(drawn).getroot().itertext() if text.strip()]

    assert "docs/images/throughput.svg" in docs.links(README.read_text())
    assert words(PICTURE) == words(path)


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_what_its_script_writes(name, update):
    path, text = ROOT / "docs" / name, f"{GENERATED[name]().rstrip()}\n"
    if update:
        path.write_text(text)

    assert path.read_text() == text, "run docs/generate.py"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_on_the_page_of_options(command):
    shown = CliRunner().invoke(main, [command, "--help"]).output
    options = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", shown, re.MULTILINE)) - {"--help"}
    _, *parts = re.split(
        r"^## tputfind (\w+)\n", (ROOT / "docs" / "reference" / "options.md").read_text(), flags=re.MULTILINE
    )
    page = dict(zip(parts[::2], parts[1::2], strict=True))[command]

    assert options
    assert options == set(re.findall(r"^\| `(--[a-z-]+)`", page, re.MULTILINE))


def test_every_notice_of_a_run_is_in_the_table_of_notices():
    sources = [
        *INSTALLED.glob("analysis/notices/*.py"),
        *INSTALLED.glob("worker/**/*.py"),
        *INSTALLED.glob("fleet/*.py"),
    ]
    made = [kind for path in sources for kind in re.findall(r'Notice\(\s*kind="(\w+)"', path.read_text())]
    page = (ROOT / "docs" / "reference" / "numbers.md").read_text()
    told = {name for cell in re.findall(r"^\| ([a-z ,]+) \|", page, re.MULTILINE) for name in cell.split(", ")}

    assert len(made) > 20
    assert [kind for kind in made if kind.replace("_", " ") not in told] == []


def test_every_column_of_the_csv_has_a_meaning():
    assert list(generate().MEANINGS) == [column.name for column in COLUMNS if column.in_csv]


def workflow() -> dict:
    (text,) = [block.body for block in docs.blocks(ROOT / "docs" / "guide" / "compare.md") if block.language == "yaml"]
    return yaml.safe_load(text)


def test_the_workflow_of_the_docs_has_the_form_of_one():
    found = workflow()

    assert set(found) == {"name", True, "jobs"}  # YAML reads the key "on" as true
    for job in found["jobs"].values():
        assert {"runs-on", "steps"} <= set(job)
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])


@pytest.mark.long
def test_the_workflow_of_the_docs_compares_two_checkouts(tmp_path):
    for checkout in ("old", "new"):
        (tmp_path / checkout).mkdir()
        (tmp_path / checkout / "model.py").write_text(
            "import torch\n\ndef model():\n    return torch.nn.Linear(64, 64), lambda batch: torch.randn(batch, 64)\n"
        )
    for step in workflow()["jobs"]["compare"]["steps"]:
        command = step.get("run", "")
        if "pip install" not in command:
            may_fail = " || test $? = 1" if "compare" in command else ""  # a shared machine may well be slower
            line = f"export GITHUB_STEP_SUMMARY={tmp_path / 'summary.md'}; {command}{may_fail}"
            docs.run(["bash", "-c", line], tmp_path / step.get("working-directory", "."))

    assert "model.py:model" in (tmp_path / "summary.md").read_text()


# Those in results/ itself are not kept: a run in this folder saves there.
RECORDS = [
    str(path.relative_to(RESULTS).with_suffix(""))
    for path in sorted(RESULTS.glob("*/*/*.json"))
    if path.parent.name != "clocks"
]


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_that_is_kept_in_results_loads_and_is_whole(name):
    path = RESULTS / f"{name}.json"
    record = tputfind.load_record(path)

    assert record.finished is not None
    assert path.with_suffix(".csv").read_bytes().count(b"\n") == len(record.rows) + 1
    if record.edge is not None:
        assert any(row.batch_size == record.edge.largest_batch and row.status == "ok" for row in record.rows)


def test_the_index_of_results_is_what_its_script_writes(tmp_path):
    subprocess.run([sys.executable, BENCHMARKS / "index.py", "--to", tmp_path / "index.md"], check=True, cwd=ROOT)

    assert (tmp_path / "index.md").read_text() == (RESULTS / "README.md").read_text(), "run benchmarks/index.py"


def test_the_index_names_every_file_of_results():
    index = (RESULTS / "README.md").read_text()
    files = subprocess.run(
        ["git", "ls-files", "results/*/*"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()

    assert all(f"({file.removeprefix('results/')})" in index for file in files)
