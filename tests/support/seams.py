"""The lists of docs/design.md that name the files needed for a new column, option or result."""

import re

from support.folders import ROOT

LISTS = re.findall(r"### (.+)\n((?:\d\. .*\n)+)", (ROOT / "docs" / "design.md").read_text())


def files_for(what: str, name: str) -> set[str]:
    """Return the files that a list names, with NAME replaced."""
    lines = dict(LISTS)[what].splitlines()
    return {path.replace("NAME", name) for line in lines for path in re.findall(r"`([\w/.-]+\.\w+)`", line)}
