from __future__ import annotations

from html.parser import HTMLParser

import msgspec
from support.records import example

from tputfind.report.renderers import notebook
from tputfind.report.views.records import of_record

HOSTILE = "<script>alert(1)</script>&'\""


def to_html(record):
    return notebook.to_html(of_record(record))


class Seen(HTMLParser):
    """The tags of a page, how deep they nest, and the texts of its cells."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.cells = set(), [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        assert attrs == []
        self.tags.add(tag)
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data


def test_a_record_shows_itself_as_a_table_with_its_answers():
    seen = Seen(to_html(example()))

    assert seen.open == []
    assert seen.cells[:2] == ["batch", "samples/s"]
    assert {"1", "2", "4", "5", "died"} <= set(seen.cells)
    assert any("F" in cell for cell in seen.cells)
    assert "F fastest" in to_html(example())
    assert "<td><b>4</b></td>" in to_html(example())
    assert "<td>1</td>" in to_html(example())


def test_it_holds_no_sample_and_no_script_whatever_the_model_is_called():
    record = example()
    record = msgspec.structs.replace(record, spec=msgspec.structs.replace(record.spec, model=HOSTILE))

    page = to_html(record)

    assert Seen(page).tags <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "ul", "ol", "li"}
    assert "&lt;script&gt;" in page
    assert len(page) < 5000


def test_a_record_without_rows_is_shown_too():
    assert Seen(to_html(msgspec.structs.replace(example(), rows=(), notices=()))).open == []
