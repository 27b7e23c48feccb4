"""What a user types: the only room that knows click.

A command stands in ``COMMANDS``, its options in ``options``, and what it does in the module of its name, which is
imported when it is asked for: ``--help`` needs none of them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final, NamedTuple

import click

from tputfind.commands import options
from tputfind.commands.console import errors, in_our_words, open_closed_streams
from tputfind.commands.options import TRACEBACK, Option
from tputfind.version import __version__


class Argument(NamedTuple):
    """What a command is given without a name: how help calls it, whether it may be several, and what it is if none."""

    name: str
    metavar: str | None = None
    several: bool = False
    default: str | None = None


class Command(NamedTuple):
    """A command: its help, what it takes, and its options."""

    help: str
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()


_RECORDS: Final = Argument("records", "RECORD [RECORD ...]", several=True)
COMMANDS: Final = {
    "run": Command(
        """Measure one or several models (`tputfind MODEL` does the same).

        Lists for --dtype, --layout and --mode (fp16,bf16) measure each model in every combination, and name the best.
        """,
        (Argument("models", "MODEL [MODEL ...]", several=True),),
        options.RUN,
    ),
    "clocks": Command(
        "Time one batch in every way side by side, and say what each gets wrong; with two models, a pipeline.",
        (Argument("models", "MODEL [MODEL]", several=True),),
        options.CLOCKS,
    ),
    "forecast": Command(
        "Forecast the largest batch on devices with other memory, from a few trials on the one that is here.",
        (Argument("model"),),
        options.FORECAST,
    ),
    "size": Command(
        "Say how many devices answer a stream of requests in time, from records of what one of them does.",
        (_RECORDS,),
        options.SIZE,
    ),
    "report": Command("Show saved records again, together where they are several.", (_RECORDS,), options.REPORT),
    "compare": Command(
        "Say what became faster or slower from OLD to NEW: two records, or two folders of records.",
        (Argument("old"), Argument("new")),
        options.COMPARE,
    ),
    "models": Command(
        "List what can be named, with input and parameters; PATTERN is a glob ('resnet*', 'timm:vit*') or a family.",
        (Argument("pattern", default="*"),),
    ),
    "devices": Command("List the devices that are here."),
}
"""Each has a module of its name here, whose ``main`` takes all that was given and returns the exit code."""


class _ModelFirst(click.Group):
    """A group where anything but the name of a command is a model to measure, with options before or after it."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Do what the arguments ask, and exit: however it ends, with an exit code and at most a line about it."""
        open_closed_streams()
        with in_our_words():
            return super().main(*args, **extra)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with in_our_words():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with in_our_words():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write_usage("tputfind", "MODEL [MODEL ...] [OPTIONS]")
        formatter.write_usage("tputfind", "COMMAND [OPTIONS]", prefix="       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        measure = self.commands["run"]
        measure.format_options(click.Context(measure), formatter)
        self.format_commands(ctx, formatter)


@click.group(cls=_ModelFirst, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tputfind")
def main() -> None:
    """Find the largest batch that a PyTorch model can take on a device, and how fast every batch size is.

    MODEL is a torchvision name (resnet50), file.py:factory or package.module:factory. A factory returns a module, or
    a module and a callable that makes the inputs of a batch size.
    """


def _click_command(name: str, command: Command) -> click.Command:
    def call(traceback: bool, **given: Any) -> None:
        with errors(traceback):
            module = import_module(f"tputfind.commands.{name}")
            sys.exit(module.main(given, show_traceback=traceback))

    arguments = [_click_argument(argument) for argument in command.arguments]
    listed = [_click_option(option) for option in (*command.options, TRACEBACK)]
    return click.Command(name, params=[*arguments, *listed], callback=call, help=command.help)


def _click_argument(argument: Argument) -> click.Argument:
    more: dict[str, Any] = {} if argument.default is None else {"default": argument.default}
    return click.Argument([argument.name], metavar=argument.metavar, nargs=-1 if argument.several else 1, **more)


def _click_option(option: Option) -> click.Option:
    if option.metavar is None:
        return click.Option([option.flag], is_flag=True, help=option.help)
    more: dict[str, Any] = {"multiple": True, "callback": _none_for_nothing} if option.repeats else {}
    return click.Option([option.flag], metavar=option.metavar, help=option.help, **more)


def _none_for_nothing(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> object:
    """Return None for an option that may be given several times and was not: not given, as for any other."""
    return value or None


for _name, _command in COMMANDS.items():
    main.add_command(_click_command(_name, _command))
