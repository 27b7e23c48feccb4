"""Shell completion of models, choices and files. It imports no module that does a command's work."""

from typing import Final

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, add_completion_class

from tputfind.record.types import SOURCES

_FILES: Final = ("FILE", "RECORD", "MODEL", "NAME|FILE")
_FOLDERS: Final = ("FOLDER",)
_MODELS: Final = ("MODEL", "PATTERN")


def complete_value(
    takes: str | tuple[str, ...] | None, incomplete: str, *, lists: bool = False
) -> list[CompletionItem]:
    """Return completions of a value; with ``lists``, of the last one. ``takes`` are its choices, or its placeholder."""
    if isinstance(takes, tuple):
        return [CompletionItem(choice) for choice in _choices(takes, incomplete, lists)]
    words = models() if takes in _MODELS else ["DEFAULT"] if takes == "NAME|FILE" else []
    kind = "file" if takes in _FILES else "dir" if takes in _FOLDERS else None
    # zsh's script loses an empty file entry together with the words next to it.
    paths = [CompletionItem(incomplete, type=kind)] if kind and (incomplete or not words) else []
    return paths + [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _choices(choices: tuple[str, ...], incomplete: str, lists: bool) -> list[str]:
    before, comma, begun = incomplete.rpartition(",") if lists else ("", "", incomplete)
    taken = before.lower().split(",")
    return [
        f"{before}{comma}{choice}"
        for choice in choices
        if choice.startswith(begun.lower()) and choice not in taken and ":" not in choice
    ]


def models() -> list[str]:
    """Return the names of torchvision's models, and the prefixes of other sources."""
    import json
    from importlib import resources

    kept = json.loads(resources.files("tputfind.session").joinpath("torchvision.json").read_bytes())
    return [*(model["name"] for model in kept["models"]), *(f"{name}:" for name, one in SOURCES.items() if one.prefix)]


def complete_argument(ctx: click.Context, takes: str, incomplete: str, name: str) -> list[CompletionItem]:
    """Return the completions of an argument; none after a colon, at which bash begins a new word."""
    given = ctx.params.get(name)
    return [] if isinstance(given, tuple) and given[-1:] == (":",) else complete_value(takes, incomplete)


class _Bash(BashComplete):
    """Completion for bash, which splits ``--dtype=fp16`` and would add a blank after ``timm:``."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == *: ]] && compopt -o nospace"
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        return args[:-1] if args[-1:] == ["="] else args, incomplete


class _Fish(FishComplete):
    """Completion for fish: choices that are separated by commas stay one word."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


add_completion_class(_Bash)
add_completion_class(_Fish)
