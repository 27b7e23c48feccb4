"""Layout of help: options in sections, their values as choices, and examples at the end."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from tputfind.commands.options import group_by_section
from tputfind.declaration import OTHER, Option

_WIDTH: Final = 20
"""Width of the column of names, in characters; the help of a wider name starts on the next line."""
_KEPT: Final = str.maketrans(" -", "\xa0\u2011")
_BROUGHT_BACK: Final = str.maketrans("\xa0\u2011", " -")
"""Non-breaking characters, which keep a default on one line."""


class Sectioned(click.Command):
    """A command whose help shows its options in sections, and examples at the end."""

    def __init__(self, name: str, *, listed: Sequence[Option], examples: Sequence[str], **more: Any) -> None:
        super().__init__(name, **more)
        self._listed = listed
        self._examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        sections = group_by_section(self._listed)
        for section, options in sections:
            rows = [row_of(option) for option in options]
            rows += [("-h, --help", "show this help")] if section == OTHER else []
            write_section(formatter, section if len(sections) > 1 else "Options", rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        write_examples(formatter, self._examples)


def row_of(option: Option) -> tuple[str, str]:
    typed = option.flag if option.metavar is None else f"{option.flag} {option.metavar}"
    default = f"[default: {option.default}]".translate(_KEPT)
    return typed, f"{option.help}  {default}" if option.default else option.help


def write_section(
    formatter: click.HelpFormatter, title: str, rows: Iterable[tuple[str, str]], width: int = _WIDTH
) -> None:
    written = len(formatter.buffer)
    with formatter.section(title):
        formatter.write_dl([(f"{name:<{width}}", text) for name, text in rows], col_max=width)
    formatter.buffer[written:] = [text.translate(_BROUGHT_BACK) for text in formatter.buffer[written:]]


def write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    if examples:
        with formatter.section("Examples"):
            for example in examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
