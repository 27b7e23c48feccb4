"""Writes the pages of this folder that follow from tables of the program: ``python docs/generate.py``.

A page stands in ``PAGES``. A test says when a page is not what this writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tputfind.commands import COMMANDS, Command
from tputfind.commands.options import TRACEBACK, Option, in_sections

_OPTIONS: Final = """\
# Options

`python docs/generate.py` writes this page. `tputfind --help` shows the first options and all commands,
`tputfind COMMAND --help` those of one command. Options may stand before or after a model.

| value | how it is written |
|---|---|
| `N` | a whole number: `1000` or `1,000`; `--rate` also takes `0.5`, `5k`, `1M` and `5000/s` |
| `SIZE` | a number and a unit: `24GiB`, `512 MiB`, `24GB` (1 GiB is 2^30 bytes, 1 GB is 10^9; `24G` is refused) |
| `TIME` | a number and a unit: `250us`, `50ms`, `1.5 s`, `2min`, `1h` |
| `S` | seconds: `6`, `0.5`; a unit is also understood, such as `1min` |
| `SHARE` | `5%` or `0.05` |
| `P` | a percentile: `99`, `99%` or `p99` |
| `LIST` | values with commas between them: `1,8,32`, `16GiB,24GiB` |
| `SHAPE` | lengths with an `x` between them: `3x640x480` |

Upper and lower case are the same in choices: `FP16` is `fp16`. A wrong value, option or command ends the command with
exit code 2, and the message names the nearest right one.

## Completion

One of these lines makes Tab complete commands, models, options and choices:

| shell | line | file |
|---|---|---|
| bash 4.4 or later | `eval "$(_TPUTFIND_COMPLETE=bash_source tputfind)"` | `~/.bashrc` |
| zsh | `eval "$(_TPUTFIND_COMPLETE=zsh_source tputfind)"` | `~/.zshrc`, after `compinit` |
| fish | `_TPUTFIND_COMPLETE=fish_source tputfind \\| source` | `~/.config/fish/config.fish` |
"""


def options_page() -> str:
    """Return the page of all options: a section for each command, and in it a table for each section of its help."""
    return "\n".join([_OPTIONS, *(line for name, command in COMMANDS.items() for line in _command(name, command))])


def _command(name: str, command: Command) -> Iterator[str]:
    yield f"## tputfind {name}\n"
    yield f"{command.help}\n"
    yield "\n".join(("```sh", *command.examples, "```", ""))
    for section, options in in_sections((*command.options, TRACEBACK)):
        yield f"### {section}\n"
        yield f"{_table(('option', 'values', 'default', 'meaning'), map(_cells, options))}\n"


def _cells(option: Option) -> tuple[str, ...]:
    if isinstance(option.takes, tuple):
        several = ", or several with commas between them" if option.lists else ""
        values = ", ".join(f"`{choice}`" for choice in option.takes) + several
    else:
        values = "" if option.takes is None else f"`{option.takes}`"
    return f"`{option.flag}`", values, option.default, option.help


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [list(header), ["---"] * len(header), *lines])


PAGES: Final[dict[str, Callable[[], str]]] = {"options.md": options_page}
"""What makes each page, by the name of its file."""


def main() -> None:
    """Write every page into the folder of this file, or another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    folder = parser.parse_args().to
    for name, make in PAGES.items():
        (folder / name).write_text(f"{make().rstrip()}\n")


if __name__ == "__main__":
    main()
