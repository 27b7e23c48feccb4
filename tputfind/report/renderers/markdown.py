"""Convert a document to Markdown, in which no text becomes HTML, a link, an image or code."""

import re
from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len

from tputfind.report.document import Answers, Code, Defect, Document, Notices, Section, Sentences, Table, notice_line

_FENCE: Final = "```"
_ACTIVE: Final = re.compile(r"(\\*)([`\[\]])")
"""Characters that begin links, images and code, after backslashes: each backslash would undo the next."""


def render_markdown(document: Document) -> bytes:
    """Return a document as a Markdown file, without the title of a collection, which is for pages alone."""
    title = "" if document.is_collection else _bold(document.title)
    blocks = [block for block in (title, document.lead, *_blocks(document)) if block]
    passive = (
        block if block.startswith(_FENCE) else _ACTIVE.sub(r"\1\1\\\2", block.replace("<", "&lt;")) for block in blocks
    )
    return ("\n\n".join(passive) + "\n").encode()


def _bold(text: str) -> str:
    return f"**{text}**" if text else ""


def _blocks(document: Document) -> Iterator[str]:
    for section in document.sections:
        if isinstance(section, Document):
            has_parts = any(isinstance(part, Document) for part in section.sections)
            yield f"## {section.title}" if has_parts and section.title else _bold(section.title)
            yield section.lead
            yield from _blocks(section)
        else:
            yield from _block(section)


def _block(section: Section) -> Iterator[str]:
    match section:
        case Table():
            yield _bold(section.title)
            yield "\n".join(_table(section))
            yield _numbered_list(section.remarks)
            yield section.legend
        case Answers():
            yield "\n".join(f"- {label}: {text}" for label, text in section.lines)
        case Sentences():
            yield "\n".join(f"- {line}" for line in section.lines)
        case Code():
            yield "\n".join((f"{_FENCE}{section.language}", *section.lines, _FENCE))
        case Defect():
            yield section.line
        case Notices():
            yield "Notices:"
            yield _numbered_list(tuple(map(notice_line, section.entries)))


def _numbered_list(lines: tuple[str, ...]) -> str:
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


def _table(table: Table) -> Iterator[str]:
    kept = [place for place, column in enumerate(table.columns) if column.kind != "bar"]
    lines = [[table.columns[place].heading for place in kept]]
    lines += [[row[place].text for place in kept] for row in table.rows]
    widths = [max(map(cell_len, texts)) for texts in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        cells = []
        for place, text, width in zip(kept, line, widths, strict=True):
            blanks = " " * (width - cell_len(text))
            bar_free = re.sub(r"(\\*)\|", r"\1\1\\|", text)
            cells.append(f"{bar_free}{blanks}" if table.columns[place].kind == "text" else f"{blanks}{bar_free}")
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"
