"""The command line: flags to one call each, errors to one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tputfind import __version__
from tputfind.errors import BadRequest, Interrupted, TputfindError

if TYPE_CHECKING:
    from tputfind.files import Keeper
    from tputfind.measure.children import Children
    from tputfind.spec import Spec

_OPTIONS: Final = {
    "device": ("NAME", "auto, cpu, cuda or cuda:1; auto takes the accelerator if there is one  [auto]"),
    "dtype": ("NAME", "fp32, tf32, fp16, bf16, amp-fp16 or amp-bf16  [fp32]"),
    "layout": ("NAME", "nchw or nhwc (channels last)  [nchw]"),
    "image_size": ("PIXELS", "height and width of the input  [the model's own]"),
    "input_size": ("SHAPE", "shape of one sample, such as 3x640x480 or 16  [the model's own]"),
    "batch_sizes": ("LIST", "time just these batch sizes, such as 1,8,32, and search nothing"),
    "max_batch": ("N", "try no batch above this"),
    "granularity": ("N", "step of the answer: 8 finds multiples of 8  [1]"),
    "memory_limit": ("SIZE", "act as if the device had this much memory, such as 24GiB  [the device's]"),
    "max_latency": ("TIME", "go no further where a step takes longer, such as 50ms, or none  [none; 1s on the CPU]"),
    "batches": ("N", "timed batches a row  [100]"),
    "warmup": ("N", "untimed batches before them  [10]"),
    "latency_batches": ("N", "batches of the latency window  [100]"),
    "max_seconds": ("S", "cut a row's windows short past this, but not under 10 batches  [60]"),
    "slo": ("TIME", "also name the best batch under this latency, such as 20ms"),
    "percentile": ("P", "which percentile of the latency the SLO is about  [99]"),
    "search": ("NAME", "bisect, or linear: count up one at a time  [bisect]"),
    "seed": ("N", "of weights and inputs  [0]"),
}


class _ModelFirst(click.Group):
    """A group where anything but the name of a command is a model to measure, with options before or after it."""

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


def _measuring_options(command: Callable[..., None]) -> Callable[..., None]:
    for name, (metavar, text) in reversed(_OPTIONS.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, metavar=metavar, help=text)(command)
    return command


@click.group(cls=_ModelFirst, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tputfind")
def main() -> None:
    """Find the largest batch that a PyTorch model can take on a device, and how fast every batch size is.

    MODEL is a torchvision name (resnet50), file.py:factory or package.module:factory. A factory returns a module, or
    a module and a callable that makes the inputs of a batch size.
    """


@main.command()
@click.argument("models", metavar="MODEL [MODEL ...]", nargs=-1, required=True)
@_measuring_options
@click.option("--output", metavar="FOLDER", default="results", help="for the record and its CSV  [results]")
@click.option("--no-save", is_flag=True, help="write nothing into that folder")
@click.option("--csv", "csv_file", metavar="FILE", help="also write the table of all models as CSV")
@click.option("--json", "json_file", metavar="FILE", help="also write the record (one model)")
@click.option("--md", "md_file", metavar="FILE", help="also write table and summary as Markdown")
@click.option("--quiet", is_flag=True, help="show no progress")
@click.option("--traceback", is_flag=True, help="show the traceback of an error")
def run(models: tuple[str, ...], **options: Any) -> None:
    """Measure one or several models (`tputfind MODEL` does the same)."""
    with _errors(options["traceback"]):
        _measure(models, options)


@main.command()
@click.argument("pattern", default="*")
@click.option("--traceback", is_flag=True, help="show the traceback of an error")
def models(pattern: str, traceback: bool) -> None:
    """List the models that can be named, with input and parameters; PATTERN is a glob such as 'resnet*'."""
    from fnmatch import fnmatchcase

    from tputfind.measure.messages import ListModels, NamedModel
    from tputfind.run import check_torchvision

    with _errors(traceback), _children() as children:
        check_torchvision(children)
        matching = [model for model in children.ask(ListModels(), NamedModel) if fnmatchcase(model.name, pattern)]
        if not matching:
            raise BadRequest(f"no model's name matches {pattern!r}", "tputfind models lists all of them")
        rows = [(model.name, model.input_shape, f"{model.parameters / 1e6:.1f} M") for model in matching]
        _print_columns(("model", "input", "parameters"), rows)


@main.command()
@click.option("--traceback", is_flag=True, help="show the traceback of an error")
def devices(traceback: bool) -> None:
    """List the devices that are here."""
    from tputfind.measure.messages import ListDevices
    from tputfind.record import Environment
    from tputfind.units import format_bytes

    def size(count: int | None) -> str:
        return "" if count is None else format_bytes(count)

    with _errors(traceback), _children() as children:
        rows = [
            (found.device, found.device_name, size(found.memory_total_bytes), size(found.memory_free_bytes))
            for found in children.ask(ListDevices(), Environment)
        ]
        _print_columns(("device", "name", "memory", "free"), rows)


def _measure(models: tuple[str, ...], options: dict[str, Any]) -> None:
    from tputfind.spec import read_spec

    asked = {name: options[name] for name in _OPTIONS}
    specs = [read_spec(model, asked) for model in models]
    folder = None if options["no_save"] else Path(options["output"])
    _check_places(folder, options, len(specs))
    keepers, failures, interrupted = _measure_all(specs, folder, quiet=options["quiet"])
    saved, problems = _report([keeper for keeper in keepers if keeper.record is not None], options)
    if saved:
        click.echo(f"saved {', '.join(saved)}", err=True)
    failures += problems
    if interrupted:
        kept = "what was measured until then is saved" if saved else "nothing was saved"
        failures.insert(0, Interrupted(f"interrupted; {kept}"))
    for failure in failures:
        _say(failure, options["traceback"])
    if failures:
        sys.exit(failures[0].exit_code)


def _measure_all(
    specs: Sequence[Spec], folder: Path | None, *, quiet: bool
) -> tuple[list[Keeper], list[TputfindError], bool]:
    """Look at every model before measuring any; then measure each, whatever becomes of the others.

    Returns what was kept of each model, what went wrong, and whether the user interrupted it.
    """
    import shlex

    from rich.console import Console

    from tputfind import run
    from tputfind.report.progress import ShownProgress

    command = shlex.join(["tputfind", *sys.argv[1:]])
    keepers: list[Keeper] = []
    failures: list[TputfindError] = []
    with _children() as children, ShownProgress(Console(stderr=True, quiet=quiet)) as progress:
        try:
            inspections = []
            for spec in specs:
                progress.about(spec.model)
                progress.doing("looking at the model and the device", None)
                inspections.append(run.inspect(spec, children))
            for spec, inspection in zip(specs, inspections, strict=True):
                progress.about(spec.model)
                keeper = run.keeper_of(folder, spec, inspection)
                keepers.append(keeper)
                try:
                    run.measure(spec, inspection, children, command=command, keeper=keeper, progress=progress)
                except TputfindError as failure:
                    failures.append(failure)
        except KeyboardInterrupt:
            return keepers, failures, True
    return keepers, failures, False


def _report(keepers: Sequence[Keeper], options: dict[str, Any]) -> tuple[list[str], list[TputfindError]]:
    """Print the table, then write every file that was asked for; return what was written and what could not be."""
    from rich.console import Console

    from tputfind.files import write_whole
    from tputfind.report import table, terminal

    records = [keeper.record for keeper in keepers if keeper.record is not None]
    if not records:
        return [], []
    if any(record.rows for record in records):
        terminal.print_report(records, Console())
    problems = [keeper.problem for keeper in keepers if keeper.problem is not None]
    stems = [keeper.stem for keeper in keepers if keeper.stem is not None and keeper.problem is None]
    saved = [f"{stem}.json" for stem in stems]
    wanted: list[tuple[str | Path, Callable[[], bytes]]] = [
        (keeper.stem.with_name(f"{keeper.stem.name}.csv"), partial(table.to_csv, [keeper.record]))
        for keeper in keepers
        if keeper.stem is not None and keeper.record is not None
    ]
    wanted += [
        (options["csv_file"], partial(table.to_csv, records)),
        (options["json_file"], records[0].to_json),
        (options["md_file"], partial(terminal.to_markdown, records)),
    ]
    for path, content in wanted:
        if path:
            try:
                write_whole(Path(path), content())
                saved.append(str(path))
            except TputfindError as problem:
                problems.append(problem)
    return saved, problems


def _check_places(folder: Path | None, options: dict[str, Any], count: int) -> None:
    """Refuse places that cannot be written to before anything is measured for them."""
    from tputfind import files

    if options["json_file"] and count > 1:
        raise BadRequest("--json holds one record, and several models were named", "--output keeps one file for each")
    if folder is not None:
        files.check_folder(folder)
    places = [options[name] for name in ("csv_file", "json_file", "md_file") if options[name]]
    for place in places:
        if place.endswith("/"):
            raise BadRequest(f"cannot write {place}: it is a folder")
        files.check_writable(Path(place))
    if len({Path(place).resolve() for place in places}) < len(places):
        raise BadRequest("two of --csv, --json and --md name the same file")


@contextmanager
def _children() -> Iterator[Children]:
    from tputfind.measure.children import Children

    with Children() as children:
        yield children


@contextmanager
def _errors(show_traceback: bool) -> Iterator[None]:
    """Turn an error of ours into its one line and its exit code."""
    try:
        yield
    except TputfindError as error:
        _say(error, show_traceback)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say(Interrupted("interrupted"), show_traceback)
        sys.exit(Interrupted.exit_code)


def _say(error: TputfindError, show_traceback: bool) -> None:
    if show_traceback:
        import traceback

        traceback.print_exception(error)
    if error.traceback:
        click.echo(error.traceback.rstrip(), err=True)
    hint = f" ({error.hint})" if error.hint else ""
    click.echo(f"tputfind: {error.message}{hint}", err=True)


def _print_columns(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns as wide as they need, so that a pipe gets whole names."""
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
