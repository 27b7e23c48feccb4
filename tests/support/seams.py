"""The table of docs/design.md that names the files needed for a new column, option or result."""

import re

from support.folders import ROOT

ROWS = re.findall(r"^\| (an? .+?) \| (.+) \|$", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE)


def files_for(what: str, name: str) -> set[str]:
    """Return the files that a row names, with NAME replaced."""
    return {path.replace("NAME", name) for path in re.findall(r"`([\w/.-]+\.\w+)`", dict(ROWS)[what])}
