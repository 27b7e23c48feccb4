"""README and docs are true: their commands run, their outputs and links are right, their figures name their file."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
import yaml
from click.testing import CliRunner
from support import docs
from support.folders import BENCHMARKS, RESULTS, ROOT, record_paths
from support.records import FORECASTS, example

import tputfind
from tputfind import errors
from tputfind.analysis.compare import compare
from tputfind.commands import COMMANDS, main
from tputfind.record.files import load_records
from tputfind.report.columns import COLUMNS
from tputfind.report.outputs import forms
from tputfind.report.views import compare as comparison
from tputfind.report.views import forecast, size
from tputfind.session.catalogue import stored_models
from tputfind.sizing.planner.plan import answers
from tputfind.sizing.planner.question import read_demand

README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "throughput.svg"
INSTALLED = Path(tputfind.__file__).parent
EXAMPLE = "results/nvidia-h200/default/resnet50-fp16.json"


@pytest.fixture
def update(request):
    return request.config.getoption("--update-golden")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


GENERATED = docs.generator().PAGES


def is_generated(page: Path) -> bool:
    return page in [ROOT / "docs" / name for name in GENERATED]


by_page = pytest.mark.parametrize("page", docs.PAGES, ids=relative)


def run_in_shell(command: str, folder: Path) -> str:
    return docs.run(["bash", "-c", command], folder)


def run_blocks(page: Path, needs: str, folder: Path, update: bool, run=run_in_shell) -> None:
    """Run the blocks of a page with exactly this need; command lines of a generated page are examples only."""
    if is_generated(page):
        return
    docs.furnish(folder, page)
    for block in docs.blocks(page):
        if block.needs != needs:
            continue
        if block.language == "python" and not block.file:
            docs.run([sys.executable, "-c", block.body], folder)
        printed = [run(command, folder) for command, _ in block.steps]
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
def test_commands_of_a_page_print_its_output(page, tmp_path, update):
    run_blocks(page, "", tmp_path, update)


@pytest.mark.long
@pytest.mark.parametrize(
    "page", [page for page in docs.PAGES if any(block.needs == "seconds" for block in docs.blocks(page))], ids=relative
)
def test_measurements_of_a_page_print_its_output_except_figures(page, tmp_path, update, ask):
    def run(command: str, folder: Path) -> str:
        """Run a command; if it needs no shell, with the server of all tests, which has imported torch."""
        words = shlex.split(command)
        if words[0] != "tputfind" or set(command) & set("|&;<>$*"):
            return run_in_shell(command, folder)
        ran = ask(folder, *words[1:], columns=docs.ENVIRONMENT["COLUMNS"])
        assert ran.status == 0, f"{command}\n{ran.out}\n{ran.err}"
        return docs.trim(ran.out)

    run_blocks(page, "seconds", tmp_path, update, run)


PLACEHOLDERS = {"..."}
NAMES = {model.name for model in stored_models() or []}


def known_model(name: str) -> bool:
    return name in NAMES or name.isupper() or name in PLACEHOLDERS or ":" in name or name.endswith((".pt", ".pt2"))


@by_page
def test_every_command_of_a_page_is_valid(page):
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
    "95 % interval",
    "95 % confidence interval",
    "at least 95 % of the best",
    "jointly with 95 % confidence",
    "with 99 % confidence",
    "in 90 % of cases",
    "20 % more traffic",
    "20% more",
    "throughput is known within 1 %",
    "by one step and 2 s",
    "at least 80 % of its time",
    "at least 80 % of a batch's time",
    "exceeds 3 %",
    "change the mean by at least 1 %",
    "by at least 2 %",
    "by more than 5 %",
    "for at least 1 % of the time",
    "at least 15 % of the cores",
    "differ by 0.5 % at most",
    "with 0.2 % added",
    "Batches of 100 ms or more",
    "may be 5 % apart",
    "more than 16 times the largest",
    "expected to end within 150 s",
    "within 300 s of all trials",
    "(at least 30 s; 10 s under",
    "known only to ± 25 % or worse",
    "At ± 50 % or worse",
    "works for 3 s",
    "for 1 s before",
    "the first 0.15 s of a window below 2 s",
    "exact to 0.4 %",
    "up to 65 % of the device's highest rate",
    "must reach 25 %",
    "is 10 ms for mosec (whole ms) and Ray Serve",
    "a limit for 99 % of requests",
    "adds 0.5 ms to a batch and 0.05 ms",
    "The last 30 % of",
)
"""Phrases with a figure that is not a measurement: a rule of the tool, or the definition of a word."""


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


HABITS = {
    "a sentence begins with Of, Where, Behind": r"(?:^|(?<=[.!?:] ))(?:Of (?!course)|Where |So it is|Behind )",
    "where for if": r"\bwhere (?:there|it|they|that|a|an|the|one|none|nothing|no|others|this|its|each)\b",
    "what as a noun": r"\b(?:of|with|by|to|and|for|is|in|on|takes?|says?|beside|than) what\b",
    "tell, told": r"\b(?:told|tells?)\b",
    "beside, anew, behind": r"\b(?:beside|anew|at the (?:most|least)|for want of|apart by|behind)\b",
    "none, nothing or nobody as a subject": r"\b(?:[Nn]one|[Nn]othing|[Nn]obody) (?:is|are|was|has|holds?|takes?|of)\b",
}
"""Habits that make a reader stop."""


@by_page
def test_page_has_no_habit_of_the_word_list(page):
    if is_generated(page):  # texts of the program
        return
    said = " ".join(re.sub(r"`[^`]*`|\]\([^)]*\)", "", docs.prose(page.read_text())).split())

    assert {habit: found for habit, pattern in HABITS.items() if (found := re.findall(pattern, said))} == {}


def test_page_has_at_most_250_lines_and_the_readme_170():
    lengths = {relative(page): len(page.read_text().splitlines()) for page in docs.PAGES}

    assert {page: lines for page, lines in lengths.items() if lines > (170 if page == "README.md" else 250)} == {}


def test_the_readme_shows_the_picture_of_its_example(tmp_path, update):
    path = PICTURE if update else tmp_path / "throughput.svg"
    docs.run(["tputfind", "report", EXAMPLE, "--save", str(path), "--overwrite"], ROOT)

    def words(drawn: Path) -> list[str]:
        return [text for text in ElementTree.parse(drawn).getroot().itertext() if text.strip()]

    assert "docs/images/throughput.svg" in docs.links(README.read_text())
    assert words(PICTURE) == words(path)


@pytest.mark.parametrize("name", GENERATED)
def test_generated_page_matches_its_script(name, update):
    path, text = ROOT / "docs" / name, f"{GENERATED[name]().rstrip()}\n"
    if update:
        path.write_text(text)

    assert path.read_text() == text, "run docs/generate.py"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_on_the_page_of_options(command):
    shown = CliRunner().invoke(main, [command, "--help"]).output
    options = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", shown, re.MULTILINE)) - {"--help"}
    page = (ROOT / "docs" / "reference" / "options.md").read_text()
    rows = re.findall(r"^\| `(--[a-z-]+)` \|.*\| ([a-z, ]+) \|$", page, re.MULTILINE)

    assert options
    assert options == {option for option, commands in rows if commands == "all" or command in commands.split(", ")}


def test_every_notice_is_in_a_table_of_notices():
    rooms = ("analysis/notices", "worker", "runners", "sizing")
    sources = [path for room in rooms for path in INSTALLED.glob(f"{room}/**/*.py")]
    made = [kind for path in sources for kind in re.findall(r'Notice\(\s*kind="(\w+)"', path.read_text())]
    page = (ROOT / "docs" / "reference" / "notices.md").read_text()
    told = {name for cell in re.findall(r"^\| ([a-z ,]+) \|", page, re.MULTILINE) for name in cell.split(", ")}

    assert len(made) > 20
    assert [kind for kind in made if kind.replace("_", " ") not in told] == []


def test_every_exit_code_is_on_its_page():
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    codes = {0, *(kind.exit_code for kind in errors.BY_NAME.values())}

    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == codes


def test_every_column_of_the_csv_has_a_meaning():
    assert list(docs.generator().MEANINGS) == [column.name for column in COLUMNS if column.in_csv]


def test_every_column_of_other_files_has_a_meaning():
    record = example()
    documents = {
        "plans": size.document(answers([record], read_demand({"rate": 10, "slo": "1s"}))),
        "forecasts": forecast.document(FORECASTS),
        "comparisons": comparison.document([compare(record, record)]),
    }
    above, others = docs.generator().MEANINGS, docs.generator().OTHER_FILES

    for file, document in documents.items():
        header = forms(document)["csv"]().decode().splitlines()[0].split(",")
        explained = " ".join(others[file]).split()
        assert sorted({*header} - {*explained} - {*above, "recipe"}) == []
        assert sorted({*explained} - {*header}) == []


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
            if "compare" in command:  # briefly, and a shared machine may be slower
                command = command.replace(" --save", " --budget 30s --save") + " || test $? = 1"
            line = f"export GITHUB_STEP_SUMMARY={tmp_path / 'summary.md'}; {command}"
            docs.run(["bash", "-c", line], tmp_path / step.get("working-directory", "."))

    assert "model.py:model" in (tmp_path / "summary.md").read_text()


RECORDS = [path for path in record_paths("*/*/*.json") if path.parent.name not in ("clocks", "training", "tune")]


@pytest.mark.parametrize("path", RECORDS, ids=relative)
def test_every_record_that_is_kept_loads_and_is_whole(path):
    for record in load_records(path):
        assert record.finished is not None
        assert len(record.frame()) == len(record.rows)
        if record.edge is not None:
            assert any(row.batch_size == record.edge.largest_batch and row.status == "ok" for row in record.rows)


def test_index_of_results_matches_its_script(tmp_path):
    subprocess.run([sys.executable, BENCHMARKS / "index.py", "--to", tmp_path / "index.md"], check=True, cwd=ROOT)

    assert (tmp_path / "index.md").read_text() == (RESULTS / "README.md").read_text(), "run benchmarks/index.py"


def test_the_index_names_every_file_of_results():
    index = (RESULTS / "README.md").read_text()
    files = subprocess.run(
        ["git", "ls-files", "results/*/*"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()

    assert all(f"({file.removeprefix('results/')})" in index for file in files)
