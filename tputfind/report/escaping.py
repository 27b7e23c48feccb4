"""Text that others wrote, in files that other programs read: harmless there, and ordinary names as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_FORMULA: Final = re.compile(r"[\s]*[=+\-@\t\r＝＋－＠]")  # spreadsheets take the wide forms too
_ACTIVE: Final = re.compile(r"(\\*)([`\[\]])")
"""What makes links, images and code, after backslashes: each would undo the next."""
_FENCE: Final = "```"


def spreadsheet_text(text: str) -> str:
    """Return text of a CSV cell that no spreadsheet takes for a formula: with an apostrophe before what begins as one.

    OWASP, "CSV Injection": the signs that begin a formula.
    """
    return f"'{text}" if _FORMULA.match(text) else text


def markdown_bytes(lines: Iterable[str]) -> bytes:
    """Return lines of Markdown as a file, in which no text makes HTML, a link, an image or code.

    What stands between fences is code of ours, and stays.
    """
    fenced, written = False, []
    for line in lines:
        fence = line.startswith(_FENCE)
        fenced ^= fence
        written.append(line if fenced or fence else _ACTIVE.sub(r"\1\1\\\2", line.replace("<", "&lt;")))
    return ("\n".join(written).strip() + "\n").encode()
