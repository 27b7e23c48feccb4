"""What a shell offers when Tab is pressed: models, choices, files. It imports nothing of what commands do."""

from typing import Final

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, add_completion_class

from tputfind.record.types import SOURCES

_FILES: Final = ("FILE", "RECORD", "MODEL", "NAME|FILE")
_FOLDERS: Final = ("FOLDER",)
_MODELS: Final = ("MODEL", "PATTERN")


def offered(takes: str | tuple[str, ...] | None, incomplete: str, *, lists: bool = False) -> list[CompletionItem]:
    """Return what may follow where an option or an argument takes this.

    Args:
        takes: choices, or the word that help has for a value.
        incomplete: what is typed of it.
        lists: whether several choices may be given, with commas between them.
    """
    if isinstance(takes, tuple):
        return [CompletionItem(choice) for choice in _choices(takes, incomplete, lists)]
    words = models() if takes in _MODELS else ["DEFAULT"] if takes == "NAME|FILE" else []
    kind = "file" if takes in _FILES else "dir" if takes in _FOLDERS else None
    # An empty file beside words is lost in zsh's script, and the words with it.
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


def of_arguments(ctx: click.Context, takes: str, incomplete: str, name: str) -> list[CompletionItem]:
    """Return what may follow as an argument; nothing after a colon, at which bash begins a new word."""
    given = ctx.params.get(name)
    return [] if isinstance(given, tuple) and given[-1:] == (":",) else offered(takes, incomplete)


class _Bash(BashComplete):
    """Bash takes ``--dtype=fp16`` apart, and puts a blank after a word: not after ``timm:``."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == *: ]] && compopt -o nospace"
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        return args[:-1] if args[-1:] == ["="] else args, incomplete


class _Fish(FishComplete):
    """Choices with commas between them are one word."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


add_completion_class(_Bash)
add_completion_class(_Fish)
