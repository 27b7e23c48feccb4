"""A document as a small piece of HTML for a notebook, without script or style sheet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from tputfind.report.document import Answers, Code, Document, Notices, Section, Sentences, Table, notice_line


def to_html(document: Document) -> str:
    """Return the title and the sections of a document; plots are left out."""
    return "\n".join(["<div>", *_lines(document), "</div>"])


def _lines(document: Document) -> Iterator[str]:
    if document.title:
        yield f"<p><b>{escape(document.title)}</b></p>"
    if document.lead:
        yield f"<p>{escape(document.lead)}</p>"
    for section in document.sections:
        yield from _lines(section) if isinstance(section, Document) else _section(section)


def _section(section: Section) -> Iterator[str]:
    match section:
        case Table():
            yield from _table(section)
            yield from _list("ol", section.remarks)
            if section.legend:
                yield f"<p>{escape(section.legend)}</p>"
        case Answers():
            lines = "".join(f"<li><b>{escape(label)}</b>: {escape(text)}</li>\n" for label, text in section.lines)
            yield f"<ul>\n{lines}</ul>"
        case Sentences():
            yield from _list("ul", section.lines)
        case Code():
            yield f"<pre>{escape(chr(10).join(section.lines))}</pre>"
        case Notices():
            yield from _list("ol", map(notice_line, section.entries))


def _table(table: Table) -> Iterator[str]:
    """Yield the lines of a table; a row that answers something is bold."""
    kept = [place for place, column in enumerate(table.columns) if column.kind != "bar"]
    yield f"<table><thead><tr>{''.join(f'<th>{escape(table.columns[place].heading)}</th>' for place in kept)}"
    yield "</tr></thead><tbody>"
    for number, row in enumerate(table.rows):
        left, right = ("<td><b>", "</b></td>") if number in table.strong else ("<td>", "</td>")
        yield f"<tr>{''.join(f'{left}{escape(row[place].text)}{right}' for place in kept)}</tr>"
    yield "</tbody></table>"


def _list(tag: str, items: Iterable[str]) -> Iterator[str]:
    lines = [f"<li>{escape(item)}</li>" for item in items]
    yield from [f"<{tag}>", *lines, f"</{tag}>"] if lines else ()
