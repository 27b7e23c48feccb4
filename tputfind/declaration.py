"""The declaration of an option: once, as the annotation of the field that it fills."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from inspect import Parameter, signature
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from tputfind.options import Reader, flag, one_of

WHAT, HOW, FAR = "What to measure", "How to run it", "How far to search"
LONG, WRITE, OTHER = "How long to measure", "What to write", "Other"
FORECASTS, TIMINGS = "What to forecast", "How to time it"
REQUESTS, SERVER, PLAN = "What the requests are", "How the server works", "What to plan"
VERDICT, SHOW = "When to call rows different", "What to show"
SECTIONS: Final = (FORECASTS, WHAT, REQUESTS, SERVER, PLAN, VERDICT, SHOW, HOW, TIMINGS, FAR, LONG, WRITE, OTHER)
"""The sections of help, in the order in which it shows them."""

_Function = TypeVar("_Function", bound=Callable[..., object])


class Option(NamedTuple):
    """An option: its help, its values, and its name.

    ``takes`` is the placeholder of the value in help, or the choices; None for a flag. ``read`` converts text or a
    Python value to the field's value. An option that ``repeats`` may be given several times; its value is then a tuple.
    An option that ``lists`` takes several choices, separated by commas. ``bare`` is the value if the option is given
    without one; if it is empty, a value is required.

    In the annotation of a field, ``name``, ``default``, the choices and their reader may be left out: they follow from
    the field, and an empty ``takes`` of a field without choices makes a flag.
    """

    section: str
    help: str
    takes: str | tuple[str, ...] | None = None
    read: Reader | None = None
    name: str = ""
    default: str = ""
    repeats: bool = False
    lists: bool = False
    bare: str = ""

    @property
    def flag(self) -> str:
        """Return the option as it is typed: ``--batch-sizes``."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def metavar(self) -> str | None:
        """Return the placeholder in help. Choices that begin alike up to a colon become one with ``[:HOW]``."""
        if self.takes is None or isinstance(self.takes, str):
            return f"[{self.takes}]" if self.bare else f"{self.takes}[,...]" if self.lists else self.takes
        begins = Counter(choice.partition(":")[0] for choice in self.takes if ":" in choice)
        several = {begin for begin, count in begins.items() if count > 1}
        shown = [
            f"{one}[:HOW]" if one in several else one
            for one in self.takes
            if one.partition(":")[0] not in several or one in several
        ]
        return f"[{'|'.join(shown)}]{'[,...]' if self.lists else ''}"


@cache
def options_by_field(struct: type[msgspec.Struct]) -> Mapping[str, Option]:
    """Return the options that fill fields of a struct, by field."""
    hints = get_type_hints(struct, include_extras=True)
    return {
        field.name: _complete_option(option, field, hints[field.name])
        for field in msgspec.structs.fields(struct)
        for option in getattr(hints[field.name], "__metadata__", ())
        if isinstance(option, Option)
    }


def readers_of(struct: type[msgspec.Struct]) -> dict[str, tuple[str, Reader]]:
    """Map each option's name to the field of the struct that it fills and the function that reads its value."""
    return {
        option.name: (field, option.read)
        for field, option in options_by_field(struct).items()
        if option.read is not None
    }


def add_options_of(struct: type[msgspec.Struct]) -> Callable[[_Function], _Function]:
    """Return a decorator that adds the options to a function's signature, for help and editors.

    The options, which the function takes as ``**options``, appear with name, type and default.
    """

    def show(function: _Function) -> _Function:
        own = [one for one in signature(function).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        hints, fields = get_type_hints(struct), {field.name: field for field in msgspec.structs.fields(struct)}
        keywords = [
            Parameter(
                option.name,
                Parameter.KEYWORD_ONLY,
                default=fields[field].default,
                annotation=hints[field] if not isinstance(option.takes, str) else hints[field] | str,
            )
            for field, option in options_by_field(struct).items()
        ]
        function.__signature__ = signature(function).replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return function

    return show


def _complete_option(option: Option, field: msgspec.structs.FieldInfo, hint: Any) -> Option:
    choices = option.takes or tuple(_choices(hint)) or None
    read = option.read or (one_of(choices) if isinstance(choices, tuple) else flag)
    none = field.default is None or field.default is False or field.default is msgspec.NODEFAULT
    default = option.default or ("" if none else str(field.default).removesuffix(".0"))
    return option._replace(takes=choices, read=read, name=option.name or field.name, default=default)


def _choices(hint: Any) -> Iterator[str]:
    """Yield the words of a ``Literal``, also inside ``Annotated`` and unions."""
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    elif get_origin(hint) is Annotated:
        yield from _choices(get_args(hint)[0])
    else:
        for part in get_args(hint):
            yield from _choices(part)
