"""The command line. Only this package imports click.

``COMMANDS`` declares each command and ``options`` its options. The work of a command is in the module of its name,
which is imported when the command runs: ``--help`` imports none of them.
"""

import os
import sys
from importlib import import_module
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from tputfind.commands import completion, options
from tputfind.commands.console import errors, open_closed_streams, replace_click_messages
from tputfind.commands.help import Sectioned, row_of, write_examples, write_section
from tputfind.declaration import Option
from tputfind.errors import BadRequest
from tputfind.options import nearest
from tputfind.record.types import source_of
from tputfind.units import echo
from tputfind.version import __version__


class Argument(NamedTuple):
    """A positional argument: its kind of value, whether it repeats, and its default."""

    name: str
    takes: str
    metavar: str | None = None
    several: bool = False
    default: str | None = None


class Command(NamedTuple):
    """A command: its line of help, further help, arguments, options, and examples."""

    help: str
    more: str = ""
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    examples: tuple[str, ...] = ()


_RECORDS: Final = Argument("records", "RECORD", "RECORD [RECORD ...]", several=True)
COMMANDS: Final = {
    "run": Command(
        "Find the largest batch, and time the powers of two up to it.",
        """
        `tputfind MODEL` is short for it. MODEL is a torchvision name (resnet50), timm:NAME, hf:NAME, a saved model
        (model.pt2, model.pt), file.py:FACTORY or package.module:FACTORY. A factory returns a module, or a module and a
        callable that makes the inputs of a batch size.

        --dtype, --layout, --mode, --allocator and --instances take lists, such as fp16,bf16: every model is measured in
        every combination.""",
        (Argument("models", "MODEL", "MODEL [MODEL ...]", several=True),),
        options.RUN,
        (
            "tputfind resnet50 --dtype fp16 --slo 20ms",
            "tputfind resnet50 vit_b_16 --dtype fp16,bf16 --layout nchw,nhwc --budget 20min",
            "tputfind model.py:make_model --input-size 3x640x480 --max-batch 64",
            "tputfind resnet50 --phase train --dtype amp-bf16 --batch-sizes 32,64,128",
            "tputfind resnet50 vit_b_16 --ray --kinds --output fleet",
        ),
    ),
    "tune": Command(
        "Find the best way to run a model, by racing.",
        """
        It varies the layout, the mode and, on a CPU, the numbers of instances and cores; lists choose others, and
        dtypes. Each variant is timed in turn with the leader. The winner is measured in full.""",
        (Argument("model", "MODEL"),),
        options.TUNE,
        ("tputfind tune resnet50 --dtype fp16 --budget 5min", "tputfind tune net.py:make --for latency --device cpu"),
    ),
    "clocks": Command(
        "Time one batch in several ways and say what each gets wrong.",
        "With two models, time a pipeline: the first model, work of the CPU, the second model.",
        (Argument("models", "MODEL", "MODEL [MODEL]", several=True),),
        options.CLOCKS,
        ("tputfind clocks resnet50 --dtype fp16", "tputfind clocks resnet50 vgg16 --host-work 5ms --save clocks.md"),
    ),
    "forecast": Command(
        "Forecast the largest batch on devices with other memory.",
        "It runs a few trials on the device here, or uses fake tensors if there is no device.",
        (Argument("model", "MODEL"),),
        options.FORECAST,
        (
            "tputfind forecast resnet50 --memory 16GiB,24GiB,80GiB --dtype fp16",
            "tputfind forecast vit_b_16 --phase train --optimizer adamw --memory 24GiB",
        ),
    ),
    "size": Command(
        "Say how many devices answer a stream of requests in time.",
        "The records say how fast one device is.",
        (_RECORDS,),
        options.SIZE,
        (
            "tputfind size results/resnet50-*.json --rate 5000 --slo 50ms",
            "tputfind size a.json b.json --rate 5k --slo 50ms --price prices.csv",
        ),
    ),
    "report": Command(
        "Show saved records again; several make one table.",
        "",
        (_RECORDS,),
        options.REPORT,
        (
            "tputfind report results/resnet50-*.json --save report.html",
            "tputfind report results/*.json --slo 20ms --save all.csv",
        ),
    ),
    "compare": Command(
        "Say what became faster or slower from OLD to NEW.",
        """
        OLD and NEW are two records, or files or folders of several.

        With --run they are two models, or one model in two recipes. Both are timed in turn, so that a
        disturbance slows both alike.""",
        (Argument("compared", "RECORD", "OLD NEW", several=True),),
        options.COMPARE,
        (
            "tputfind compare before.json after.json",
            "tputfind compare main/ branch/ --fail-slower 3%",
            "tputfind compare --run old/model.py:make new/model.py:make --fail-slower 3%",
            "tputfind compare --run resnet18 --mode eager,compile --batch-sizes 1,32",
        ),
    ),
    "models": Command(
        "List the models that can be named.",
        "PATTERN is a glob ('resnet*', 'timm:vit*') or a family (detection).",
        (Argument("pattern", "PATTERN", default="*"),),
        examples=("tputfind models 'resnet*'", "tputfind models detection"),
    ),
    "devices": Command(
        "List the devices that are here, or in a Ray cluster.",
        options=(options.RAY,),
        examples=("tputfind devices", "tputfind devices --ray"),
    ),
    "schema": Command("Print the JSON Schema of a record.", examples=("tputfind schema > record.schema.json",)),
}
"""Every command has a module of its name here. Its ``main`` takes all arguments, writes and shows the result, and
returns the exit code; it raises TputfindError if a request is wrong or cannot be answered."""
_EXAMPLES: Final = (
    "tputfind resnet50 --dtype fp16",
    "tputfind resnet50 --dtype fp16,bf16 --mode eager,compile --budget 10min",
    "tputfind size results/resnet50-*.json --rate 5000 --slo 50ms",
)


class _ModelFirst(click.Group):
    """A group that treats any first word but a command as a model to measure, with options before or after it."""

    def main(self, *args: Any, **extra: Any) -> Any:
        open_closed_streams()
        with replace_click_messages():
            if os.environ.get("_TPUTFIND_COMPLETE", "").endswith("_complete") and "COMP_WORDS" not in os.environ:
                raise click.UsageError("completion is for the shell to call: write _source in the place of _complete")
            return super().main(*args, **extra)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with replace_click_messages():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with replace_click_messages():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h", "--version"):
            if not ctx.resilient_parsing:
                with errors(show_traceback=False):
                    _check_no_command_was_meant(args[0])
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write_usage("tputfind", "MODEL [MODEL ...] [OPTIONS]")
        formatter.write_usage("tputfind", "COMMAND [OPTIONS]", prefix="       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        title = "Options that most runs need (tputfind run --help shows every option)"
        write_section(formatter, title, [*map(row_of, options.FIRST), ("--version", "show the version")])
        rows = [(name, command.help) for name, command in COMMANDS.items()]
        write_section(formatter, "Commands (tputfind COMMAND --help)", rows, width=max(map(len, COMMANDS)))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        write_examples(formatter, _EXAMPLES)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        run = self.commands["run"]
        if incomplete.startswith("-"):
            offered = [*run.shell_complete(click.Context(run), incomplete), *super().shell_complete(ctx, incomplete)]
            return list({item.value: item for item in offered}.values())
        named = [CompletionItem(name, help=COMMANDS[name].help) for name in COMMANDS if name.startswith(incomplete)]
        models = completion.complete_value("MODEL", incomplete) if incomplete else []
        return sorted([*named, *models], key=lambda item: item.type == "plain")  # bash drops all items before a file


def _check_no_command_was_meant(word: str) -> None:
    """Refuse a first word that is a record, or that is not a model and resembles a command."""
    if source_of(word) == "torchvision" and word.endswith(".json"):
        raise BadRequest(f"{echo(word)} is not a model", "did you mean tputfind report?")
    near = nearest(word, (*COMMANDS, "--help", "--version")) if word.isidentifier() else []
    if near and word not in completion.models():
        raise BadRequest(f"there is no command or model {echo(word)}", f"did you mean tputfind {near[0]}?")


@click.group(cls=_ModelFirst, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tputfind")
def main() -> None:
    """Find the largest batch of a PyTorch model, and how fast each size is. MODEL is
    a torchvision name (resnet50), timm:NAME, hf:NAME or file.py:FACTORY.
    """


def _click_command(name: str, command: Command) -> click.Command:
    def call(traceback: bool, **given: Any) -> None:
        with errors(traceback):
            module = import_module(f"tputfind.commands.{name}")
            sys.exit(module.main(given, show_traceback=traceback))

    listed = options.command_options(command.options)
    params = [*map(_click_argument, command.arguments), *map(_click_option, listed)]
    text = f"{command.help}\n\n{command.more}"
    return Sectioned(name, listed=listed, examples=command.examples, params=params, callback=call, help=text)


def _click_argument(argument: Argument) -> click.Argument:
    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return completion.complete_argument(ctx, argument.takes, incomplete, argument.name)

    more: dict[str, Any] = {} if argument.default is None else {"default": argument.default}
    nargs = -1 if argument.several else 1
    return click.Argument([argument.name], metavar=argument.metavar, nargs=nargs, shell_complete=complete, **more)


def _click_option(option: Option) -> click.Option:
    if option.takes is None:
        return click.Option([option.flag], is_flag=True, help=option.help)

    def complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return completion.complete_value(option.takes, incomplete, lists=option.lists)

    repeats = option.repeats or option.takes == "FILE"
    # An option that was not given is None, not an empty tuple.
    callback = (lambda _context, _parameter, value: value or None) if option.repeats else _single_file
    more: dict[str, Any] = {"multiple": True, "callback": callback} if repeats else {}
    if option.bare:
        more = {"is_flag": False, "flag_value": option.bare}
    return click.Option([option.flag], metavar=option.metavar, help=option.help, shell_complete=complete, **more)


def _single_file(_context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> str | None:
    """Return the one file of an option; raise UsageError if several are named: click would silently use the last."""
    if len(value) > 1:
        raise click.UsageError(f"{parameter.opts[0]} takes one file, and {len(value)} are named: {', '.join(value)}")
    return value[0] if value else None


for _name, _command in COMMANDS.items():
    main.add_command(_click_command(_name, _command))
