"""README and docs as tests read them: blocks of code, the commands in them, links, and passages of prose.

A ``console`` block holds commands, each after ``$ ``, and what they print. An ``sh`` block holds commands alone. Both
run as they stand, block after block, in one folder a page, where ``results`` holds what the checkout's holds. A
``python`` block runs too; where its first line is ``# NAME.py`` it is that file for the commands of its page.
``<!-- needs: seconds -->`` before a block says that it measures: it is run among the long tests, and its figures may
differ. Any other need (``gpu``, ``network``, ``minutes``) is not met here: its commands are checked, not run.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from support.folders import RESULTS, ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(
    r"(?:^<!-- needs: (?P<needs>\w+) -->\n+)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
ENVIRONMENT = os.environ | {
    "COLUMNS": "80",
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path),
}


class Block(NamedTuple):
    """A fenced block of a page: its language, what it needs ('' where nothing), and its lines."""

    language: str
    needs: str
    body: str

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, where it is one."""
        named = re.match(r"# ([\w.-]+\.\w+)\n", self.body)
        return named[1] if named else None

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Each command, and what the page says that it prints."""
        if self.language == "console":
            parts = re.split(r"^\$ ", self.body, flags=re.MULTILINE)[1:]
            return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]
        if self.language == "sh":
            joined = self.body.replace("\\\n", " ").splitlines()
            return [(line, "") for line in joined if line and not line.startswith("#")]
        return []


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    return [Block(one["language"], one["needs"] or "", one["body"]) for one in FENCED.finditer(page.read_text())]


def prose(text: str) -> str:
    """Return a page without its fenced blocks and comments."""
    return re.sub(r"<!--.*?-->", "", FENCED.sub("", text), flags=re.DOTALL)


def passages(text: str) -> Iterator[str]:
    """Yield each paragraph, list item, and table of a page; a table together with the paragraphs beside it."""
    parts = [part for part in re.split(r"\n\s*\n", prose(text)) if part.strip()]
    tables = [part.lstrip().startswith("|") for part in parts]
    for number, part in enumerate(parts):
        if tables[number]:
            yield "\n".join(parts[max(number - 1, 0) : number + 2])
        elif not any(tables[max(number - 1, 0) : number + 2]):
            yield from re.split(r"\n(?=[-*] |\d+\. )", part)


def links(text: str) -> list[str]:
    """Return the targets of the links and pictures of a page."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(text))


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def calls(text: str) -> list[list[str]]:
    """Return the arguments of each call of ``tputfind`` in a line of shell."""
    split = shlex.shlex(re.sub(r"\b\d>", ">", text), posix=True, punctuation_chars=True)
    split.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in split:
        if set(word) <= set("|&;<>()"):
            found.append([])
        else:
            found[-1].append(word)
    return [words[1:] for words in found if words and words[0] == "tputfind"]


def commands_shown(page: Path) -> list[str]:
    """Return every line of shell of a page that names the tool, those within its sentences too."""
    spans = re.findall(r"`(tputfind [^`]+)`", prose(page.read_text()))
    whole = [command for block in blocks(page) for command, _ in block.steps]
    return [one for one in (*whole, *map(" ".join, map(str.split, spans))) if "tputfind " in one]


def furnish(folder: Path, page: Path) -> None:
    """Put into a folder what the commands of a page find in it: records, and the page's own files."""
    (folder / "results").mkdir()
    for inside in RESULTS.iterdir():
        if inside.is_dir():
            (folder / "results" / inside.name).symlink_to(inside)
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.body)


def run(command: list[str], folder: Path) -> str:
    """Run a command in a folder and return what it prints, without spaces at the ends of lines."""
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\nended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.rstrip().splitlines())


def without_figures(text: str) -> str:
    """Return what is left of an output where each figure, bar and run of spaces is the same."""
    text = re.sub(r"[\u2580-\u259f]+", " ", text)
    text = re.sub(r"[\d.,:+-]*\d[\d.,:+-]*", "0", text)
    return re.sub(r"[ \u2500]+", " ", text)


def generator() -> ModuleType:
    """Return the script that writes the generated pages, as a module."""
    folder = str(ROOT / "docs")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("generate")
