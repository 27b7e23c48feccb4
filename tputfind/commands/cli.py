"""The command line: flags to one call each, errors to one line and an exit code."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from tputfind import __version__
from tputfind.errors import BadRequest, Interrupted, TputfindError
from tputfind.units import echoed

if TYPE_CHECKING:
    from tputfind.processes.children import Children
    from tputfind.processes.messages import NamedModel

_OPTIONS: Final = {
    "device": ("NAME", "auto, cpu, cuda or cuda:1; auto takes the accelerator if there is one  [auto]"),
    "dtype": ("NAME", "fp32, tf32, fp16, bf16, amp-fp16 or amp-bf16  [fp32]"),
    "layout": ("NAME", "nchw or nhwc (channels last)  [nchw]"),
    "mode": ("NAME", "eager, compile (torch.compile, for each batch size) or cudagraph  [eager]"),
    "phase": ("NAME", "infer or train: forward, loss, backward and the optimizer's step  [infer]"),
    "optimizer": ("NAME", "of --phase train: sgd (with momentum) or adamw  [sgd]"),
    "weights": ("NAME", "DEFAULT or another name of published weights, or a file of them  [random]"),
    "image_size": ("PIXELS", "height and width of the input  [the model's own]"),
    "input_size": ("SHAPE", "shape of one sample, such as 3x640x480 or 16  [the model's own]"),
    "input": ("NAME:DTYPE:SHAPE", "an input of a model that does not say what it takes, such as ids:int64:Bx128"),
    "sequence_length": ("N", "tokens of a sample, of hf: models  [512, or the most that the model takes]"),
    "batch_sizes": ("LIST", "time just these batch sizes, such as 1,8,32, and search nothing"),
    "max_batch": ("N", "try no batch above this"),
    "granularity": ("N", "step of the answer: 8 finds multiples of 8  [1]"),
    "memory_limit": ("SIZE", "act as if the device had this much memory, such as 24GiB  [the device's]"),
    "headroom": ("SIZE", "also find the largest batch that keeps this much free, such as 5% or 2GiB"),
    "transfer": ("NAME", "h2d or both: count copies from (and to) pinned host memory, overlapped  [none]"),
    "soak": ("N", "run the answer N more batches, and step down if it fails  [0]"),
    "max_latency": ("TIME", "go no further where a step takes longer, such as 50ms, or none  [none; 1s on the CPU]"),
    "batches": ("N", "time at least so many batches a row, in all its processes  [100]"),
    "min_seconds": ("S", "and at least so long; warm-up goes on until batch times are steady  [3]"),
    "processes": ("N", "fresh processes that a row's batches and seconds are spread over  [3]"),
    "max_noise": ("SHARE", "go on until the throughput is known to within this, such as 1%, or --max-seconds end it"),
    "warmup": ("N", "untimed batches at the least, in each process  [10]"),
    "latency_batches": ("N", "batches of the latency window  [100]"),
    "max_seconds": ("S", "cut a row's windows short past this, but not under 10 batches  [60]"),
    "slo": ("TIME", "also name the best batch under this latency, such as 20ms"),
    "percentile": ("P", "which percentile of the latency the SLO is about  [99]"),
    "search": ("NAME", "forecast, bisect, or linear: count up one at a time; all find the same  [forecast]"),
    "allocator": ("NAME", "native or expandable segments, of PyTorch's CUDA memory  [as the environment says]"),
    "trial_timeout": ("TIME", "end a process that is silent for longer  [10min, then 10 times what is to be expected]"),
    "seed": ("N", "of weights and inputs  [0]"),
}


class _ModelFirst(click.Group):
    """A group where anything but the name of a command is a model to measure, with options before or after it."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Do what the arguments ask, and exit: however it ends, with an exit code and at most a line about it."""
        _open_what_is_closed()
        with _in_our_words():
            return super().main(*args, **extra)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _in_our_words():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _in_our_words():
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


def _none_for_nothing(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> object:
    """Return None for an option that may be given several times and was not: not given, as for any other."""
    return value or None


def _same_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what gives a command these of the options that measure."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for name in reversed(names):
            metavar, text = _OPTIONS[name]
            more: dict[str, Any] = {"multiple": True, "callback": _none_for_nothing} if name == "input" else {}
            command = click.option(f"--{name.replace('_', '-')}", name, metavar=metavar, help=text, **more)(command)
        return command

    return add


_OF_MODELS: Final = (
    "dtype",
    "device",
    "layout",
    "weights",
    "image_size",
    "input_size",
    "input",
    "sequence_length",
    "seed",
)
_FLAGS: Final = "grad_checkpoint", "strict"
_measuring_options = _same_options(*_OPTIONS)
_trust_option = click.option(
    "--trust-model-file", is_flag=True, help="load a file of a model or of weights even where it can run code"
)
_overwrite_option = click.option(
    "--overwrite", is_flag=True, help="let these files replace others than this tool's reports"
)


@click.group(cls=_ModelFirst, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tputfind")
def main() -> None:
    """Find the largest batch that a PyTorch model can take on a device, and how fast every batch size is.

    MODEL is a torchvision name (resnet50), file.py:factory or package.module:factory. A factory returns a module, or
    a module and a callable that makes the inputs of a batch size.
    """


@main.command()
@click.argument("models", metavar="MODEL [MODEL ...]", nargs=-1)
@_measuring_options
@click.option("--grad-checkpoint", is_flag=True, help="of --phase train: save memory, compute activations twice")
@click.option("--strict", is_flag=True, help="refuse where other processes hold memory of the device")
@_trust_option
@click.option("--resume", metavar="RECORD", help="go on with a record that was cut short, repeating nothing")
@click.option("--output", metavar="FOLDER", help="for the record and its CSV  [results]")
@click.option("--no-save", is_flag=True, help="write nothing into that folder")
@click.option("--csv", "csv_file", metavar="FILE", help="also write the table of all models as CSV")
@click.option("--json", "json_file", metavar="FILE", help="also write the record (one model)")
@click.option("--md", "md_file", metavar="FILE", help="also write table and summary as Markdown")
@click.option("--html", "html_file", metavar="FILE", help="also write a page with plots (needs tputfind[plot])")
@_overwrite_option
@click.option("--quiet", is_flag=True, help="show no progress")
@click.option("--traceback", is_flag=True, help="show the traceback of an error")
def run(models: tuple[str, ...], **options: Any) -> None:
    """Measure one or several models (`tputfind MODEL` does the same).

    Lists for --dtype, --layout and --mode (fp16,bf16) measure each model in every combination, and name the best.
    """
    with _errors(options["traceback"]):
        from tputfind.commands import run as job
        from tputfind.commands.outputs import Places
        from tputfind.record.files import path_of

        output = None if options["output"] is None else path_of("--output", options["output"])
        if options["resume"] is not None and output is not None:
            raise BadRequest("--resume goes on in the record's own folder, so --output has nothing to say")
        folder = None if options["no_save"] else output or Path("results")
        named = {kind: options[f"{kind}_file"] for kind in ("csv", "json", "md", "html")}
        places = Places(folder, **named, overwrite=options["overwrite"])
        asked = {name: options[name] for name in _OPTIONS} | {name: options[name] or None for name in _FLAGS}
        how = {name: options[name] for name in ("quiet", "trust_model_file")}
        read = job.read_job(models, asked, places, options["resume"], **how)
        sys.exit(job.do(read, show_traceback=options["traceback"]))


@main.command()
@click.argument("models", metavar="MODEL [MODEL]", nargs=-1)
@_same_options(*_OF_MODELS, "warmup", "trial_timeout")
@_trust_option
@click.option("--batch-size", metavar="N", help="samples of a batch  [32]")
@click.option("--repeats", metavar="N", help="timings of each way  [50; 200 of two models]")
@click.option("--drop", metavar="N", help="first timings that do not count  [5]")
@click.option("--host-work", metavar="TIME", help="CPU work between two models  [10ms]")
@click.option("--json", "json_file", metavar="FILE", help="also write all samples")
@click.option("--md", "md_file", metavar="FILE", help="also write the tables as Markdown")
@_overwrite_option
@click.option("--quiet", is_flag=True, help="show no progress")
@click.option("--traceback", is_flag=True, help="show the traceback of an error")
def clocks(
    models: tuple[str, ...], json_file: str | None, md_file: str | None, traceback: bool, **options: Any
) -> None:
    """Time one batch in every way side by side, and say what each gets wrong; with two models, a pipeline."""
    how = {name: options.pop(name) for name in ("quiet", "trust_model_file")}
    with _errors(traceback):
        from tputfind.commands import clocks as clocks_job
        from tputfind.commands.outputs import Places

        places = Places(None, json=json_file, md=md_file, overwrite=options.pop("overwrite"))
        request = clocks_job.read_request(models, options, places, **how)
        sys.exit(clocks_job.do(request, show_traceback=traceback))


@main.command()
@click.argument("model")
@click.option("--memory", metavar="LIST", help="of the devices to forecast for, such as 16GiB,24GiB,80GiB")
@click.option("--on-fake", is_flag=True, help="do without a device: coarser, from fake tensors")
@_same_options(*_OF_MODELS, "allocator", "trial_timeout")
@_trust_option
@click.option("--csv", "csv_file", metavar="FILE", help="also write the forecasts as CSV")
@_overwrite_option
@click.option("--quiet", is_flag=True, help="show no progress")
@click.option("--traceback", is_flag=True, help="show the traceback of an error")
def forecast(model: str, memory: str | None, csv_file: str | None, **options: Any) -> None:
    """Forecast the largest batch on devices with other memory, from a few trials on the one that is here."""
    how = {name: options.pop(name) for name in ("on_fake", "quiet", "trust_model_file")}
    traceback = options.pop("traceback")
    with _errors(traceback):
        from tputfind.commands import forecast as forecast_job
        from tputfind.commands.outputs import Places

        places = Places(None, csv=csv_file, overwrite=options.pop("overwrite"))
        request = forecast_job.read_request(model, options, memory, places, **how)
        sys.exit(forecast_job.do(request, show_traceback=traceback))


@main.command()
@click.argument("records", metavar="RECORD [RECORD ...]", nargs=-1)
@click.option("--rate", metavar="N", help="requests per second, one sample each, from 1e-9 to 1e12")
@click.option("--slo", metavar="TIME", help="the latency within which they must be answered, such as 50ms")
@click.option("--percentile", metavar="P", help="and how many of them, in percent  [99]")
@click.option("--batcher", metavar="NAME", help="greedy, triton, mosec, litserve or ray  [greedy]")
@click.option("--delay", metavar="TIME", help="how long the batcher waits for more requests  [the server's default]")
@click.option(
    "--routing", metavar="NAME", help="shared queue, random, least-loaded or two-choices  [shared; ray: two-choices]"
)
@click.option("--burstiness", metavar="CV", help="of the time between requests: 0 even, 1 Poisson, 2 bursty  [1]")
@click.option("--arrivals", metavar="FILE", help="times of recorded requests, as CSV: the stream has their shape")
@click.option("--overhead-per-batch", metavar="TIME", help="that the server adds to a batch  [0]")
@click.option("--overhead-per-request", metavar="TIME", help="and for each request in it, copies included  [0]")
@click.option("--overhead-per-get", metavar="TIME", help="for LitServe to get each request from its queue  [0]")
@click.option(
    "--overhead-per-answer", metavar="TIME", help="for each answer, one after the other, while the device goes on  [0]"
)
@click.option("--network", metavar="TIME", help="of the latency target  [0]")
@click.option("--max-batch", metavar="N", help="no batch above this")
@click.option("--price", "price_file", metavar="FILE", help="CSV of device, price_per_hour, currency, source, date")
@click.option("--seed", metavar="N", help="of the streams  [0]")
@click.option("--curve", is_flag=True, help="print rate against devices and latency as CSV (one record)")
@click.option("--csv", "csv_file", metavar="FILE", help="also write the plans as CSV")
@click.option("--json", "json_file", metavar="FILE", help="also write the plans in full")
@click.option("--md", "md_file", metavar="FILE", help="also write them as Markdown")
@_overwrite_option
@click.option("--traceback", is_flag=True, help="show the traceback of an error")
def size(records: tuple[str, ...], traceback: bool, **options: Any) -> None:
    """Say how many devices answer a stream of requests in time, from records of what one of them does."""
    places = {kind: options.pop(f"{kind}_file") for kind in ("csv", "json", "md")}
    places["overwrite"] = options.pop("overwrite")
    files = {name: options.pop(name) for name in ("arrivals", "price_file")}
    curve = options.pop("curve")
    with _errors(traceback):
        from tputfind.commands import size as size_job
        from tputfind.commands.outputs import Places

        request = size_job.read_request(records, options, Places(None, **places), **files, curve=curve)
        sys.exit(size_job.do(request, show_traceback=traceback))


@main.command()
@click.argument("records", metavar="RECORD [RECORD ...]", nargs=-1)
@click.option("--slo", metavar="TIME", help="name the best batch under this latency  [as the record was asked]")
@click.option("--percentile", metavar="P", help="which percentile of the latency the SLO is about  [the record's]")
@click.option("--csv", "csv_file", metavar="FILE", help="also write one table of all records as CSV")
@click.option("--md", "md_file", metavar="FILE", help="also write tables and summaries as Markdown")
@click.option("--html", "html_file", metavar="FILE", help="also write a page with plots (needs tputfind[plot])")
@click.option("--plot", "plot_file", metavar="FILE", help="draw throughput against batch size: .png, .svg or .pdf")
@_overwrite_option
@click.option("--traceback", is_flag=True, help="show the traceback of an error")
def report(records: tuple[str, ...], traceback: bool, overwrite: bool, **asked: str | None) -> None:
    """Show saved records again, together where they are several."""
    with _errors(traceback):
        from tputfind.commands import report as report_job
        from tputfind.commands.outputs import Places

        named = {kind: asked.pop(f"{kind}_file") for kind in ("csv", "md", "html", "plot")}
        places = Places(None, **named, overwrite=overwrite)
        request = report_job.read_request(records, places, slo=asked["slo"], percentile=asked["percentile"])
        sys.exit(report_job.do(request, show_traceback=traceback))


@main.command()
@click.argument("old")
@click.argument("new")
@click.option("--fail-slower", metavar="SHARE", help="exit with 1 where a row is slower by more than this, such as 3%")
@click.option(
    "--tolerance", metavar="SHARE", help="call rates the same whose ratio certainly lies within this of 1  [1%]"
)
@click.option("--force", is_flag=True, help="compare unlike things too, and say so")
@click.option("--json", "json_file", metavar="FILE", help="also write the comparisons in full")
@click.option("--md", "md_file", metavar="FILE", help="also write them as Markdown")
@_overwrite_option
@click.option("--traceback", is_flag=True, help="show the traceback of an error")
def compare(old: str, new: str, json_file: str | None, md_file: str | None, traceback: bool, **how: Any) -> None:
    """Say what became faster or slower from OLD to NEW: two records, or two folders of records."""
    with _errors(traceback):
        from tputfind.commands import compare as compare_job
        from tputfind.commands.outputs import Places

        places = Places(None, json=json_file, md=md_file, overwrite=how.pop("overwrite"))
        request = compare_job.read_request(old, new, places, **how)
        sys.exit(compare_job.do(request, show_traceback=traceback))


@main.command()
@click.argument("pattern", default="*")
@click.option("--traceback", is_flag=True, help="show the traceback of an error")
def models(pattern: str, traceback: bool) -> None:
    """List what can be named, with input and parameters; PATTERN is a glob ('resnet*', 'timm:vit*') or a family."""
    from tputfind.session import catalogue

    with _errors(traceback):
        listed = catalogue.at_hand(pattern)
        if listed is None:
            with _children() as children:
                listed = catalogue.asked(pattern, children)
        if not listed:
            raise BadRequest(f"no model's name matches {echoed(pattern)}", "tputfind models lists all of them")
        _print_columns(("model", "input", "parameters", "family"), [_cells(model) for model in listed])
        for line in catalogue.elsewhere() if pattern == "*" else ():
            click.echo(line)


def _cells(model: NamedModel) -> tuple[str, ...]:
    parameters = "" if model.parameters is None else f"{model.parameters / 1e6:.1f} M"
    return model.name, model.input_shape, parameters, model.family


@main.command()
@click.option("--traceback", is_flag=True, help="show the traceback of an error")
def devices(traceback: bool) -> None:
    """List the devices that are here."""
    from tputfind.processes.messages import ListDevices
    from tputfind.record.record import Environment
    from tputfind.units import format_bytes

    def size(count: int | None) -> str:
        return "" if count is None else format_bytes(count)

    with _errors(traceback), _children() as children:
        rows = [
            (found.device, found.device_name, size(found.memory_total_bytes), size(found.memory_free_bytes))
            for found in children.ask(ListDevices(), Environment)
        ]
        _print_columns(("device", "name", "memory", "free"), rows)


def _open_what_is_closed() -> None:
    """Put nothing in the place of a standard stream that was closed, so that no file of ours takes its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  # open to the end
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a sign that the terminal's encoding lacks is no reason to end


@contextmanager
def _children() -> Iterator[Children]:
    from tputfind.processes.children import Children

    with Children() as children:
        yield children


@contextmanager
def _errors(show_traceback: bool) -> Iterator[None]:
    """Turn an error of ours into its one line and its exit code."""
    try:
        yield
    except TputfindError as error:
        _leave(error, show_traceback)


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Have an interruption and a failure to print end as they do everywhere: click has words and codes of its own."""
    try:
        yield
    except KeyboardInterrupt:
        _leave(Interrupted("interrupted"))
    except click.ClickException as error:
        _exit_saying(error.show, error.exit_code)
    except OSError as error:
        from tputfind.commands.run import print_nowhere, say, unheard

        if error.filename is not None or error.errno not in _OF_PRINTING:
            raise
        problem = unheard(error)
        if problem is not None:
            with suppress(OSError):
                say(problem, show_traceback=False)
        print_nowhere(1, 2)
        sys.exit(0 if problem is None else problem.exit_code)


_OF_PRINTING: Final = (errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _leave(error: TputfindError, show_traceback: bool = False) -> NoReturn:
    from tputfind.commands.run import say

    _exit_saying(lambda: say(error, show_traceback=show_traceback), error.exit_code)


def _exit_saying(say: Callable[[], None], code: int) -> NoReturn:
    """Exit with a code, which is the same where nobody can be told why."""
    try:
        say()
        sys.stderr.flush()
    except OSError:
        from tputfind.commands.run import print_nowhere

        print_nowhere(1, 2)
    sys.exit(code)


def _print_columns(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns as wide as they need, so that a pipe gets whole names."""
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
