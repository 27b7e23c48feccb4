"""Every option that can be typed: its name, what it takes, its section of the help, and its line there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple, get_args

from tputfind.record.choices import (
    ALLOCATORS,
    DEVICES,
    DTYPES,
    LAYOUTS,
    MODES,
    OPTIMIZERS,
    PHASES,
    SEARCHES,
    TRANSFERS,
)
from tputfind.sizing.engine.events import Routing
from tputfind.sizing.engine.servers import Batcher

WHAT, HOW, FAR = "What to measure", "How to run it", "How far to search"
LONG, WRITE, OTHER = "How long to measure", "What to write", "Other"
FORECASTS, TIMINGS = "What to forecast", "How to time it"
REQUESTS, SERVER, PLAN = "What the requests are", "How the server works", "What to plan"
VERDICT, SHOW = "When to call rows different", "What to show"
SECTIONS: Final = (FORECASTS, WHAT, REQUESTS, SERVER, PLAN, VERDICT, SHOW, HOW, TIMINGS, FAR, LONG, WRITE, OTHER)
"""In the order in which help shows them."""


class Option(NamedTuple):
    """An option: the name under which its command gets it, what it takes, and its help.

    ``takes`` is the word that help has for a value, or the choices; None for a flag. An option that ``repeats`` may be
    given several times, and is then a tuple. One that ``lists`` takes several choices, with commas between them.
    ``bare`` is its value where none follows; empty where one must.
    """

    name: str
    takes: str | tuple[str, ...] | None
    section: str
    help: str
    default: str = ""
    repeats: bool = False
    lists: bool = False
    bare: str = ""

    @property
    def flag(self) -> str:
        """As it is typed: ``--batch-sizes``."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def metavar(self) -> str | None:
        """What it takes, as help shows it."""
        if self.takes is None or isinstance(self.takes, str):
            return f"[{self.takes}]" if self.bare else self.takes
        return f"[{'|'.join(self.takes)}]{'[,...]' if self.lists else ''}"


MEASURING: Final = (
    Option("slo", "TIME", WHAT, "also name the best batch whose latency is below this, such as 20ms"),
    Option("percentile", "P", WHAT, "compare this percentile of the latency with --slo", "99"),
    Option("phase", PHASES, WHAT, "measure inference, or training: forward, loss, backward, optimizer step", "infer"),
    Option("image_size", "PIXELS", WHAT, "use square images of this height and width", "the model's own"),
    Option("input_size", "SHAPE", WHAT, "use samples of this shape, such as 3x640x480 or 16", "the model's own"),
    Option("sequence_length", "N", WHAT, "give hf: models N tokens a sample", "512, or the model's most"),
    Option(
        "input",
        "NAME:DTYPE:SHAPE",
        WHAT,
        "describe one input of a model that does not say what it takes, such as ids:int64:Bx128; repeat for each input",
        repeats=True,
    ),
    Option(
        "fresh_inputs",
        None,
        WHAT,
        "have an input function make all samples of every batch; else a large batch repeats the samples of a small one",
    ),
    Option("weights", "NAME|FILE", WHAT, "load published weights (DEFAULT or a name), or a file of weights", "random"),
    Option("optimizer", OPTIMIZERS, WHAT, "train with SGD (with momentum) or AdamW", "sgd"),
    Option("grad_checkpoint", None, WHAT, "train in less memory, and compute activations twice"),
    Option("dtype", DTYPES, HOW, "compute in this number format", "fp32", lists=True),
    Option("mode", MODES, HOW, "run eager, through torch.compile, or as a CUDA graph", "eager", lists=True),
    Option("layout", LAYOUTS, HOW, "store images channels first or channels last (nhwc)", "nchw", lists=True),
    Option(
        "device",
        DEVICES,
        HOW,
        "run here; auto takes an accelerator if there is one; a list, or all, shares the work",
        "auto",
        lists=True,
    ),
    Option(
        "transfer",
        TRANSFERS,
        HOW,
        "count copies of inputs from pinned memory (h2d), or also of outputs to it (both); copies overlap compute",
        "none",
    ),
    Option("allocator", ALLOCATORS, HOW, "use native or expandable CUDA memory segments", "the environment's"),
    Option("max_batch", "N", FAR, "try no batch above N"),
    Option("batch_sizes", "LIST", FAR, "time only these batch sizes, such as 1,8,32; search nothing"),
    Option("granularity", "N", FAR, "find the largest batch among multiples of N", "1"),
    Option("memory_limit", "SIZE", FAR, "act as if the device had this much memory, such as 24GiB", "the device's"),
    Option("headroom", "SIZE", FAR, "also find the largest batch that keeps this much free, such as 5% or 2GiB"),
    Option(
        "max_latency",
        "TIME",
        FAR,
        "stop the search where a step takes longer, such as 50ms; none sets no limit",
        "none; 1s on the CPU",
    ),
    Option("search", SEARCHES, FAR, "forecast, bisect, or count up (linear)", "forecast"),
    Option("soak", "N", FAR, "run the largest batch N more times; take a smaller one if that fails", "0"),
    Option("budget", "TIME", LONG, "end the whole run within this, such as 60s; time the rows that decide first"),
    Option("thorough", None, LONG, "time every row for 100 batches and 3 seconds"),
    Option(
        "max_noise",
        "SHARE",
        LONG,
        "time a row until its throughput is known to within this, such as 1%, or --max-seconds is over",
    ),
    Option("max_seconds", "S", LONG, "stop timing a row after S seconds", "4; 60 with --thorough or --batches"),
    Option("batches", "N", LONG, "time N batches of every row, over all its processes, or until --max-seconds is over"),
    Option(
        "processes",
        "N",
        LONG,
        "time every row in N fresh processes, in more with --max-noise",
        "2 or 3 if an answer rests on it, else 1",
    ),
    Option("warmup", "N", LONG, "leave out at least the first N batches of each process", "until times settle"),
    Option(
        "trial_timeout",
        "TIME",
        OTHER,
        "end a process that is silent for longer",
        "10min, then 10 times what is expected",
    ),
    Option("seed", "N", OTHER, "draw weights and inputs from this seed", "0"),
    Option("strict", None, OTHER, "refuse to run where other processes hold memory of the device"),
)
"""What a measurement is asked with: the fields of ``Spec``."""
_NAMED: Final = {option.name: option for option in MEASURING}
FIRST: Final = tuple(_NAMED[name] for name in ("dtype", "mode", "device", "image_size", "max_batch", "slo", "budget"))
"""What most runs need; ``tputfind --help`` shows no others."""
_TRUST: Final = Option("trust_model_file", None, OTHER, "load a file of a model or of weights even if it can run code")
_OVERWRITE: Final = Option("overwrite", None, WRITE, "let these files replace files that tputfind did not write")
_QUIET: Final = Option("quiet", None, OTHER, "show no progress")
TRACEBACK: Final = Option("traceback", None, OTHER, "show the traceback of an error")
_SAVE: Final = Option(
    "save",
    "FILE",
    WRITE,
    "also write the result in the form of the ending: .json, .csv, .md, .html, of records .svg and .png "
    "(their plots need tputfind[plot]); repeat for other files",
    repeats=True,
)


def _measuring(*names: str) -> tuple[Option, ...]:
    """Return the options of a model, which take no lists here, and others of a measurement."""
    of_models = (
        *("dtype", "layout", "device", "image_size", "input_size", "sequence_length", "input", "fresh_inputs"),
        *("weights", "seed"),
    )
    one_device = _NAMED["device"]._replace(help="run here; auto takes an accelerator if there is one")
    options = _NAMED | {"device": one_device}
    return tuple(options[name]._replace(lists=False) for name in (*of_models, *names))


RAY: Final = Option(
    "ray", "ADDRESS", HOW, "use the Ray cluster here, or the one at HOST:PORT (needs tputfind[ray])", bare="auto"
)
RUN: Final = (
    *MEASURING,
    Option("each", None, HOW, "do the same on each device of a list, or of a cluster, and compare them"),
    Option("all_busy", None, HOW, "then do it on all of them at once, and say how much they slow each other down"),
    RAY,
    Option("kinds", None, HOW, "with --ray, measure on one device of each kind of accelerator"),
    Option("output", "FOLDER", WRITE, "write the record and its CSV into this folder", "results"),
    Option("no_save", None, WRITE, "write no record and no CSV into that folder"),
    _SAVE,
    _OVERWRITE,
    Option(
        "resume",
        "RECORD",
        OTHER,
        "go on with a record that was cut short, or with --ray, with a folder; nothing is measured twice",
    ),
    _TRUST,
    _QUIET,
)
CLOCKS: Final = (
    Option("batch_size", "N", WHAT, "time batches of N samples", "32"),
    Option("host_work", "TIME", WHAT, "let the CPU work this long between two models", "10ms"),
    *_measuring("trial_timeout"),
    Option("repeats", "N", TIMINGS, "take N timings of each way", "50; 200 of two models"),
    Option("drop", "N", TIMINGS, "leave out the first N timings", "5"),
    _NAMED["warmup"]._replace(section=TIMINGS),
    _SAVE,
    _OVERWRITE,
    _TRUST,
    _QUIET,
)
FORECAST: Final = (
    Option("memory", "LIST", FORECASTS, "forecast for devices with this much memory, such as 16GiB,24GiB,80GiB"),
    Option("on_fake", None, FORECASTS, "use no device: fake tensors give a coarser forecast"),
    *_measuring("allocator", "trial_timeout"),
    _SAVE,
    _OVERWRITE,
    _TRUST,
    _QUIET,
)
SIZE: Final = (
    Option("rate", "N", REQUESTS, "plan for N requests per second, such as 5000 or 5k"),
    Option("slo", "TIME", REQUESTS, "answer requests within this, such as 50ms"),
    Option("devices", "N", REQUESTS, "use N devices; with one of --rate and --slo, find the other"),
    Option("percentile", "P", REQUESTS, "answer P percent of the requests in time", "99"),
    Option("burstiness", "CV", REQUESTS, "vary the time between requests: 0 even, 1 Poisson, 2 bursty", "1"),
    Option(
        "arrivals",
        "FILE",
        REQUESTS,
        "give the stream the shape of recorded times of requests (CSV; also their samples)",
    ),
    Option(
        "samples_per_request",
        "N|SHARES",
        REQUESTS,
        "give each request N samples, or several numbers with their shares, such as 1:0.8,4:0.2",
        "1",
    ),
    Option("network", "TIME", REQUESTS, "leave this much of --slo to the network", "0"),
    Option("batcher", get_args(Batcher), SERVER, "batch requests as this server does", "greedy"),
    Option("delay", "TIME", SERVER, "let the batcher wait this long for more requests; auto: find out", "the server's"),
    Option(
        "overhead",
        "TIME+TIME",
        SERVER,
        "add what the server takes for a batch and for a request, such as 0.5ms+0.05ms; mosec or litserve: as measured",
        "0",
    ),
    Option("max_queue", "N", SERVER, "refuse requests while N wait in a queue"),
    Option(
        "routing",
        get_args(Routing),
        SERVER,
        "keep requests in one shared queue, or pick a device for each one in this way",
        "shared; ray: two-choices",
    ),
    Option("max_ongoing", "N", SERVER, "give no device more than N requests at a time, and no larger batch", "ray: 5"),
    Option("max_batch_size", "N", SERVER, "let the server make no batch above N"),
    Option(
        "observed",
        "FILE",
        SERVER,
        "take overheads from a log of the server (CSV: sent, answered); repeat for a light and a middling load",
        repeats=True,
    ),
    Option("spare", "N", PLAN, "meet the target with N devices gone", "0"),
    Option("max_utilization", "SHARE", PLAN, "keep the utilization of the devices to this, such as 70%", "100%"),
    Option("price", "FILE", PLAN, "read prices from a CSV: device, price_per_hour, currency, source, date"),
    _SAVE,
    _OVERWRITE,
    Option("seed", "N", OTHER, "draw the streams from this seed", "0"),
)
REPORT: Final = (
    Option("slo", "TIME", SHOW, "name the best batch whose latency is below this, such as 20ms", "the record's"),
    Option("percentile", "P", SHOW, "compare this percentile of the latency with --slo", "the record's"),
    _SAVE,
    _OVERWRITE,
    Option("traceback", None, OTHER, "also show the tracebacks of models that the records keep, and that of an error"),
)
COMPARE: Final = (
    Option(
        "fail_slower",
        "SHARE",
        VERDICT,
        "exit with 1 if a row is slower by more than this, such as 3%; with 7 if too noisy to judge",
    ),
    Option("tolerance", "SHARE", VERDICT, "call two rates the same if they certainly differ by less than this", "1%"),
    Option("force", None, VERDICT, "compare unlike things too, and say so"),
    _SAVE,
    _OVERWRITE,
)


def of_command(own: tuple[Option, ...]) -> tuple[Option, ...]:
    """Return the options of a command: its own, and ``--traceback``, which every command has."""
    return own if any(option.name == TRACEBACK.name for option in own) else (*own, TRACEBACK)


def in_sections(options: Sequence[Option]) -> list[tuple[str, list[Option]]]:
    """Return the options by section, in the order of the sections; in a section they keep theirs."""
    ordered = sorted(options, key=lambda option: SECTIONS.index(option.section))
    return [(section, list(listed)) for section, listed in groupby(ordered, key=lambda option: option.section)]
