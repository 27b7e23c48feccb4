"""Output and exit of commands: errors in one line, exit codes, signals, streams."""

from __future__ import annotations

import errno
import io
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import click

from tputfind.errors import BadRequest, Interrupted, TputfindError
from tputfind.options import did_you_mean
from tputfind.processes import signals
from tputfind.units import echo, printable, shorten_text

if TYPE_CHECKING:
    from tputfind.report.document import Document
    from tputfind.report.outputs import Outputs

Given = dict[str, Any]
"""Arguments and options of a command by name; None, False or () if not given."""


def options_of(given: Given, names: Iterable[str]) -> Given:
    """Return some options by name; None for a flag that is not given. An empty text stays, and is refused later."""
    return {name: None if given[name] is False else given[name] for name in names}


_LONGEST: Final = 10_000
"""Maximum characters of an error: enough to name every row, without filling the screen with foreign text."""
_OF_PRINTING: Final = (errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def finish(
    document: Document | None,
    outputs: Outputs,
    problems: list[TputfindError] | None = None,
    records: Sequence[str] = (),
    *,
    show_traceback: bool,
) -> int:
    """Show a result, name the saved files, report problems, and return the exit code.

    Every command ends with this call, after all files are written, so that a problem with one file affects neither the
    others nor the result. The problems are by default those of the outputs. ``records`` are the paths of records that
    were saved in addition.
    """
    from rich.console import Console

    from tputfind.report.document import Defect, attempt
    from tputfind.report.renderers.terminal import print_document

    problems = [*(outputs.problems if problems is None else problems)]
    problems += [defect.make_error() for defect in document.defects] if document is not None else []
    with terminal_that_may_be_gone(problems):
        if document is not None and not outputs.uses_stdout:
            shown = attempt("what is printed", lambda: print_document(document, Console()))
            problems += [shown.make_error()] if isinstance(shown, Defect) else []
    with terminal_that_may_be_gone(problems, stream=2):
        if saved := [*records, *outputs.saved]:
            tell(f"saved {', '.join(saved)}")
        for problem in problems:
            say(problem, show_traceback=show_traceback)
    return problems[0].exit_code if problems else 0


def say(error: TputfindError, *, show_traceback: bool) -> None:
    """Print one of our errors in one line, after the traceback of the user's own code if that is the cause."""
    if show_traceback:
        import traceback

        tell("".join(traceback.format_exception(error)).rstrip())
    if error.traceback:
        tell(error.traceback.rstrip())
    hint = f" ({error.hint})" if error.hint else ""
    tell(printable(f"tputfind: {shorten_text(error.message, _LONGEST)}{hint}"))


def tell(text: str) -> None:
    sys.stderr.write(f"{printable(text, lines=True)}\n")


def open_closed_streams() -> None:
    """Open /dev/null on closed standard streams, so that no file of ours gets descriptor 0, 1 or 2."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  # open to the end
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal's encoding lacks is no reason to stop


@contextmanager
def errors(show_traceback: bool) -> Iterator[None]:
    """Print one of our errors in one line and exit with its code."""
    try:
        yield
    except TputfindError as error:
        _leave(error, show_traceback)


@contextmanager
def replace_click_messages() -> Iterator[None]:
    """Replace click's messages and exit codes for interrupts, wrong usage and failures to print by ours."""
    try:
        yield
    except KeyboardInterrupt:
        _leave(Interrupted("interrupted"))
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click 8.1 lacks this class
            _exit_saying(error.show, error.exit_code)
        _leave(_usage_error(error))
    except OSError as error:
        if error.filename is not None or error.errno not in _OF_PRINTING:
            raise
        problem = unheard(error)
        if problem is not None:
            with suppress(OSError):
                say(problem, show_traceback=False)
        print_nowhere(1, 2)
        sys.exit(0 if problem is None else problem.exit_code)


def _usage_error(error: click.ClickException) -> BadRequest:
    """Convert an error of click into ours; it names the nearest option, or the command that has the option."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    see = f"see {context.command_path} --help" if context is not None else ""
    if context is None or not isinstance(error, click.NoSuchOption):
        message = error.format_message().rstrip(".")
        return BadRequest(message[:1].lower() + message[1:], see)
    name, root = error.option_name, context.find_root()
    own = _options_of(context.command, context) + _options_of(root.command, root)
    if not name.startswith("--"):
        near = did_you_mean(f"-{name}", own) or ": names of options begin with two dashes"
        return BadRequest(f"there is no option {echo(name)}{near}", see)
    named = [parameter for parameter in context.command.get_params(context) if isinstance(parameter, click.Argument)]
    if name in ("--model", "--models") and any(each.name in ("model", "models") for each in named):
        command = context.command_path.removesuffix(" run")  # `run` may be left out
        return BadRequest(f"there is no option {name}: the model is the first word, as in {command} resnet50", see)
    others = root.command.commands.values() if isinstance(root.command, click.Group) else ()
    having = [f"tputfind {other.name}" for other in others if name in _options_of(other, context)]
    if having:
        alike = [own for own in _options_of(context.command, context) if own.startswith(name) or name.startswith(own)]
        near = f": did you mean {' or '.join(alike)}?" if alike else did_you_mean(name, own)
        return BadRequest(f"{name} is an option of {' and '.join(having)}, not of {context.command_path}{near}", see)
    return BadRequest(f"there is no option {shorten_text(name)}{did_you_mean(name, own)}", see)


def _options_of(command: click.Command, context: click.Context) -> list[str]:
    names = [name for parameter in command.get_params(context) for name in parameter.opts]
    return [name for name in names if name.startswith("--")]


def _leave(error: TputfindError, show_traceback: bool = False) -> NoReturn:
    _exit_saying(lambda: say(error, show_traceback=show_traceback), error.exit_code)


def _exit_saying(say: Callable[[], None], code: int) -> NoReturn:
    try:
        say()
        sys.stderr.flush()
    except OSError:
        print_nowhere(1, 2)
    sys.exit(code)


def command_line() -> str:
    return shlex.join(["tputfind", *sys.argv[1:]])


@contextmanager
def stop_signals() -> Iterator[Callable[[], None]]:
    """Make SIGTERM and SIGHUP interrupt like Ctrl-C, once; yield a function that ignores all of them from then on."""

    def ignore() -> None:
        signals.set_handlers(dict.fromkeys(before, signal.SIG_IGN))

    def interrupt(*_: object) -> None:
        ignore()
        raise KeyboardInterrupt

    with signals.handled_by(interrupt) as before:
        yield ignore


@contextmanager
def terminal_that_may_be_gone(problems: list[TputfindError], stream: Literal[1, 2] = 1) -> Iterator[None]:
    """Ignore that a standard stream has no reader: the result is in files. Add other failures to the problems."""
    try:
        yield
        (sys.stdout if stream == 1 else sys.stderr).flush()
    except (OSError, SystemExit) as error:  # rich exits by SystemExit if a pipe is closed
        problem = unheard(error) if isinstance(error, OSError) else None
        if problem is not None:
            problems.append(problem)
        print_nowhere(stream)


def unheard(error: OSError) -> BadRequest | None:
    """Return the problem behind a failure to print; None if the stream has no reader any more."""
    nobody = error.errno in (errno.EPIPE, errno.EIO)
    return None if nobody else BadRequest(f"cannot print: {error.strerror}")


def print_nowhere(*streams: int) -> None:
    """Redirect streams to /dev/null, to discard further output and Python's buffers, which it would write at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream)
    os.close(nowhere)


def print_columns(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns as wide as their cells, so that a pipe gets whole names."""
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        sys.stdout.write(f"{line}\n")
