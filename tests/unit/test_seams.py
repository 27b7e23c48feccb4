"""A column, an option, a result and a command are added to a copy of the package by the table of docs/design.md."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import ENVIRONMENT
from support.folders import MODELS, RESULTS, ROOT
from support.seams import files_for

import tputfind

RECORD = RESULTS / "nvidia-h200" / "default" / "resnet50-fp16.json"
OWN = """\
import msgspec

from tputfind.record.result import Result
from tputfind.record.untrusted import indent_json


class Toy(Result, msgspec.Struct, frozen=True, kw_only=True):
    KIND = "toy"
    toy: str
    parts: tuple[int, ...]
"""
VIEW = """\
from functools import partial

from tputfind.report.document import Answers, Column, Document, count, data_table, sections_of, table, whole


def document(found):
    rows = [(count(part),) for part in found.parts]
    sections = (
        *sections_of("the table", lambda: [table([Column("parts")], rows)]),
        Answers((("Whole", str(sum(found.parts))),)),
    )
    data = partial(data_table, ("toy", "part"), [{"toy": found.toy, "part": part} for part in found.parts])
    return whole(lambda: Document(title=f"toy {found.toy}", sections=sections), source=found, data=data)
"""
COMMAND = """\
from tputfind.analysis.toy import Toy
from tputfind.commands.console import finish
from tputfind.commands.outputs import read_places
from tputfind.report.outputs import check_places
from tputfind.report.outputs import forms
from tputfind.report.views import toy


def main(given, *, show_traceback):
    places = read_places(given)
    outputs = check_places(places, json="toy")
    document = toy.document(Toy(toy=given["name"], parts=tuple(map(int, given["parts"].split("+")))))
    outputs.write(forms(document))
    return finish(document, outputs, show_traceback=show_traceback)
"""


class Copy:
    """A copy of the package and its docs, in which only the listed files change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listed: set[str] = set()
        self._own = str(folder / "tputfind" / "__init__.py")
        shutil.copytree(
            Path(tputfind.__file__).parent, folder / "tputfind", ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("images", "__pycache__"))
        (folder / "results").symlink_to(RESULTS)

    def follow(self, what: str, name: str = "toy") -> None:
        self._listed |= files_for(what, name)

    def write(self, path: str, text: str) -> None:
        assert path in self._listed, f"{path} is not among {sorted(self._listed)}"
        (self._folder / path).write_text(text)

    def insert(self, path: str, *pairs: tuple[str, str]) -> None:
        """Insert texts into a file, each before an anchor that occurs once."""
        text = (self._folder / path).read_text()
        for before, new in pairs:
            assert text.count(before) == 1, (path, before, text.count(before))
            text = text.replace(before, f"{new}{before}")
        self.write(path, text)

    def run(self, *arguments: object) -> str:
        """Run Python on the copy, and return its output."""
        environment = {**ENVIRONMENT, "PYTHONPATH": str(self._folder), "COLUMNS": "200"}
        words = [sys.executable, *map(str, arguments)]
        done = subprocess.run(words, cwd=self._folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tputfind(self, *arguments: object) -> str:
        return self.run("-m", "tputfind", *arguments)

    def python(self, program: str) -> str:
        return self.run("-c", f"import tputfind\nassert tputfind.__file__ == {self._own!r}\n{program}")

    def text(self, path: str) -> str:
        return (self._folder / path).read_text()


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path)


def test_column_is_added_by_its_list(copy):
    copy.follow("a column")
    column = '    Column("toy_ms", "Float64", lambda _, row: 0.5 + row.batch_size, shown=Shown(1, "toy ms")),\n'
    copy.insert("tputfind/report/columns.py", (')\n"""In the order of the CSV.', column))
    copy.insert("docs/generate.py", ('    "cores": "cores of', '    "toy_ms": "a toy",\n'))

    shown = copy.tputfind("report", RECORD, "--save", "a.csv", "--save", "a.md", "--save", "a.html")
    again = copy.tputfind("report", RECORD, "--save", "a.csv", "--save", "a.md", "--save", "a.html")
    copy.run("docs/generate.py")

    header, first, *_ = copy.text("a.csv").splitlines()
    assert (header.split(",")[-1], first.split(",")[-1]) == ("toy_ms", "1.5")
    assert "toy ms" in shown
    assert "256.5" in shown
    assert again == shown
    assert "toy ms" in copy.text("a.md")
    assert "toy ms</button>" in copy.text("a.html")
    assert "| `toy_ms` | ms | number | a toy |" in copy.text("docs/reference/columns.md")
    frame = copy.python(f"print(tputfind.load_record({str(RECORD)!r}).frame()['toy_ms'].dtype)")
    assert frame == "Float64\n"


def test_option_of_a_measurement_is_added_by_its_list(copy):
    copy.follow("an option of a measurement")
    toy = '    toy: Annotated[Count, TOLD, Option(OTHER, "play with N toys", "N", values.whole)] = 3\n'
    copy.insert("tputfind/record/spec.py", ("    seed: Annotated[\n", toy))
    model, quick = f"{MODELS}/plain.py:keyword_inputs", ("--batch-sizes", "1", "--batches", "10", "--processes", "1")

    copy.tputfind(model, *quick, "--toy", "5", "--quiet", "--no-save", "--save", "a.json", "--save", "a.html")
    copy.run("docs/generate.py")

    assert json.loads(copy.text("a.json"))["spec"]["toy"] == 5
    assert re.search(r">toy</t[hd]><td[^>]*>5</td>", copy.text("a.html"))
    assert "--toy N" in copy.tputfind("run", "--help")
    assert "| `--toy` | `N` | 3 | play with N toys |" in copy.text("docs/reference/options.md")
    assert copy.python(
        "import inspect\n"
        "print(inspect.signature(tputfind.find).parameters['toy'].default)\n"
        "from tputfind.errors import BadRequest\n"
        "try: tputfind.find('resnet18', toy='many')\n"
        "except BadRequest as refused: print(refused.message)\n"
        "import msgspec\n"
        "new = tputfind.load_record('a.json')\n"
        "old = msgspec.structs.replace(new, spec=msgspec.structs.replace(new.spec, toy=4))\n"
        "print(tputfind.compare(old, new).differs)\n"
        "try: old.save('a.json')\n"
        "except BadRequest as refused: print(refused.message)\n"
    ).splitlines() == [
        "3",
        "--toy: 'many' is not a whole number",
        "('toy 4 and 5',)",
        "save a.json holds another measurement: toy (5 there, 4 here)",
    ]


def test_result_and_its_command_are_added_by_their_lists(copy):
    copy.follow("a result")
    copy.write("tputfind/analysis/toy.py", OWN)
    copy.write("tputfind/report/views/toy.py", VIEW)
    copy.insert("tputfind/report/results.py", ('    "clocks": "clocks"', '    "toy": "toy",\n'))
    copy.insert(
        "tputfind/report/outputs.py",
        ('"csv", "record", "clocks"', '"toy", '),
        ('    "csv": "CSV",\n', '    "toy": "JSON of toys",\n'),
        ('    "csv": (\n', '    "toy": (r\'\\{\\s*"toy":\',),\n'),
        ('        r"model,phase,device,', '        r"toy,part",\n'),
        ('        rf"{_TITLE}ms an? ', '        rf"{_TITLE}\\| *parts",\n'),
    )
    copy.insert(
        "tputfind/readers/results.py",
        ("    if _COMPARISONS", "    if b'toy' in data[:9]:\n        return msgspec.json.decode(data, type=Toy)\n"),
        ("from tputfind.errors import", "from tputfind.analysis.toy import Toy\n"),
    )

    shown = copy.python(
        "from tputfind.analysis.toy import Toy\n"
        "toy = Toy(toy='bear', parts=(2, 3))\n"
        "for _ in range(2): toy.save('a.json', 'a.csv', 'a.md', 'a.html')\n"
        "assert tputfind.load('a.json') == toy\n"
        "assert toy.frame()['part'].to_list() == [2, 3]\n"
        "print(repr(toy))\n"
    )

    assert "toy bear" in shown
    assert "Whole          5" in shown
    assert copy.tputfind("report", "a.json", "--save", "b.html") == shown
    assert copy.text("a.html") == copy.text("b.html")
    assert "<h1>toy bear</h1>" in copy.text("a.html")
    copy.tputfind("report", RECORD, "a.json", "--save", "c.html")
    assert "<h2>toy bear</h2>" in copy.text("c.html")

    copy.follow("a command")
    copy.write("tputfind/commands/toy.py", COMMAND)
    parts = 'TOY: Final = (Option(WHAT, "its parts", "N+N", name="parts"), *_FILES)\n'
    copy.insert("tputfind/commands/options.py", ("FORECAST: Final", parts))
    toy = '    "toy": Command("Make a toy.", "", (Argument("name", "NAME"),), options.TOY, ("tputfind toy bear",)),\n'
    copy.insert("tputfind/commands/__init__.py", ('    "forecast": Command(\n', toy))

    assert copy.tputfind("toy", "bear", "--parts", "2+3", "--save", "a.json", "--save", "a.csv") == shown
    assert "Make a toy." in copy.tputfind("--help")
    copy.run("docs/generate.py")
    assert "| `tputfind toy` | Make a toy. | `tputfind toy bear` |" in copy.text("docs/reference/options.md")
