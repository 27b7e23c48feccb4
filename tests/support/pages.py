"""Reads an HTML page strictly."""

from html.parser import HTMLParser
from typing import NamedTuple

VOID = {"meta", "link", "br", "img", "input", "hr", "base", "embed", "source", "wbr"}


class Element(NamedTuple):
    tag: str
    attributes: dict[str, str | None]
    within: tuple[str, ...]


class Page(HTMLParser):
    """The elements and the text of a page; every element must be closed, in order."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(page.decode())
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, attrs)
        self.elements.append(Element(tag, dict(attrs), tuple(self._open)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append(Element(tag, dict(attrs), tuple(self._open)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, (tag, self._open)

    def handle_data(self, data):
        self.texts.append((self._open[-1] if self._open else "", data))

    def all(self, tag: str) -> list[Element]:
        return [element for element in self.elements if element.tag == tag]

    def text(self) -> str:
        """Return the visible text, without scripts and styles."""
        return " ".join(text for tag, text in self.texts if tag not in ("script", "style"))
