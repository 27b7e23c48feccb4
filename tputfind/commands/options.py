"""Every option of the command line: its name, its value, its section in help, and its line there."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, get_args

from tputfind.analysis.turns import COSTS
from tputfind.declaration import (
    FORECASTS,
    HOW,
    LONG,
    OTHER,
    PLAN,
    REQUESTS,
    SECTIONS,
    SERVER,
    SHOW,
    TIMINGS,
    VERDICT,
    WHAT,
    WRITE,
    Option,
    options_by_field,
)
from tputfind.record.spec import Spec
from tputfind.sizing.engine.events import Routing
from tputfind.sizing.engine.servers import Batcher

MEASURING: Final = tuple(options_by_field(Spec).values())
_NAMED: Final = {option.name: option for option in MEASURING}
FIRST: Final = tuple(_NAMED[name] for name in ("dtype", "mode", "device", "image_size", "max_batch", "slo", "budget"))
"""Options that most runs need; ``tputfind --help`` shows only these."""
_RUN: Final = (
    Option(OTHER, "load a file of a model or of weights even if that can run code", name="trust_model_file"),
    Option(OTHER, "show no progress", name="quiet"),
)
TRACEBACK: Final = Option(OTHER, "show the traceback of an error", name="traceback")
_FILES: Final = (
    Option(
        WRITE,
        "also write the result as .json, .csv, .md or .html, or a record's plots as .svg or .png (tputfind[plot]); "
        "repeat for several files",
        "FILE",
        name="save",
        repeats=True,
    ),
    Option(WRITE, "let --save replace any file that this command does not read", name="overwrite"),
)


def _measuring(*names: str) -> tuple[Option, ...]:
    """Return the options of a model, which take no lists here, and others of a measurement by name."""
    of_models = (
        *("dtype", "layout", "device", "image_size", "input_size", "sequence_length", "input", "fresh_inputs"),
        *("weights", "seed"),
    )
    one_device = _NAMED["device"]._replace(help="run on this device; auto is an accelerator if there is one")
    options = _NAMED | {"device": one_device}
    return tuple(options[name]._replace(lists=False) for name in (*of_models, *names))


RAY: Final = Option(
    HOW, "use the Ray cluster here, or the one at HOST:PORT (needs tputfind[ray])", "ADDRESS", name="ray", bare="auto"
)
RUN: Final = (
    *MEASURING,
    Option(HOW, "measure on each device of a list or of a cluster, and compare them", name="each"),
    Option(HOW, "also measure on all of the devices at once, and show how they slow each other down", name="all_busy"),
    RAY,
    Option(HOW, "with --ray, measure on one device of each kind of accelerator", name="kinds"),
    Option(WRITE, "write the record and its CSV into this folder", "FOLDER", name="output", default="results"),
    Option(WRITE, "write no record and no CSV", name="no_save"),
    *_FILES,
    Option(
        OTHER,
        "continue an interrupted record, and measure nothing twice; with --ray, the unfinished jobs of a folder",
        "RECORD",
        name="resume",
    ),
    *_RUN,
)
CLOCKS: Final = (
    Option(WHAT, "time batches of N samples", "N", name="batch_size", default="32"),
    Option(WHAT, "let the CPU work this long between two models", "TIME", name="host_work", default="10ms"),
    *_measuring("trial_timeout"),
    Option(TIMINGS, "time N batches by each method", "N", name="repeats", default="50; 200 with two models"),
    Option(TIMINGS, "leave out the first N timings", "N", name="drop", default="5"),
    _NAMED["warmup"]._replace(section=TIMINGS),
    *_FILES,
    *_RUN,
)
FORECAST: Final = (
    Option(FORECASTS, "forecast for devices with this much memory, such as 16GiB,24GiB,80GiB", "LIST", name="memory"),
    Option(FORECASTS, "forecast from fake tensors, without a device", name="on_fake"),
    *_measuring("phase", "optimizer", "clip", "accumulate", "grad_checkpoint", "allocator", "trial_timeout"),
    *_FILES,
    *_RUN,
)
SIZE: Final = (
    Option(REQUESTS, "plan for N requests per second, such as 5000 or 5k", "N", name="rate"),
    Option(REQUESTS, "answer requests within this, such as 50ms", "TIME", name="slo"),
    Option(
        REQUESTS,
        "plan with N devices: find the highest rate for --slo, or the shortest SLO for --rate",
        "N",
        name="devices",
    ),
    Option(REQUESTS, "answer P percent of the requests in time", "P", name="percentile", default="99"),
    Option(
        REQUESTS,
        "coefficient of variation of interarrival times: 0 even, 1 Poisson, 2 bursty",
        "CV",
        name="burstiness",
        default="1",
    ),
    Option(
        REQUESTS,
        "replay recorded request times (CSV; a column named samples is optional), at their own rate or at --rate",
        "FILE",
        name="arrivals",
    ),
    Option(
        REQUESTS,
        "give each request N samples, or a mix of numbers and their fractions, such as 1:0.8,4:0.2",
        "N|SHARES",
        name="samples_per_request",
        default="1",
    ),
    Option(REQUESTS, "subtract this time of the network from --slo", "TIME", name="network", default="0"),
    Option(SERVER, "batch requests as this server does", get_args(Batcher), name="batcher", default="greedy"),
    Option(SERVER, "let the batcher wait this long for more requests", "TIME", name="delay", default="the server's"),
    Option(
        SERVER,
        "add the server's time per batch and per request, such as 0.5ms+0.05ms; mosec or litserve: as measured",
        "TIME+TIME",
        name="overhead",
        default="0",
    ),
    Option(SERVER, "refuse requests while N wait in a queue", "N", name="max_queue"),
    Option(
        SERVER,
        "keep requests in one shared queue, or send each to a device by this rule",
        get_args(Routing),
        name="routing",
        default="shared; ray: two-choices",
    ),
    Option(
        SERVER,
        "give each replica at most N requests at a time, which also limits its batches",
        "N",
        name="max_ongoing",
        default="ray: 5",
    ),
    Option(SERVER, "limit the server's batches to N samples", "N", name="max_batch_size"),
    Option(
        SERVER,
        "fit the overheads to a log of the server (CSV: sent, answered); repeat for a light and a medium load",
        "FILE",
        name="observed",
        repeats=True,
    ),
    Option(PLAN, "meet the target even if N devices fail", "N", name="spare", default="0"),
    Option(
        PLAN,
        "keep the utilization of the devices to this, such as 70%",
        "SHARE",
        name="max_utilization",
        default="100%",
    ),
    Option(PLAN, "read prices from a CSV: device, price_per_hour, currency, source, date", "FILE", name="price"),
    *_FILES,
    Option(OTHER, "draw the streams from this seed", "N", name="seed", default="0"),
)
REPORT: Final = (
    *(
        option._replace(section=SHOW, help=option.help.removeprefix("also "), default="the record's")
        for option in (_NAMED["slo"], _NAMED["percentile"], _NAMED["effective_batch"])
    ),
    *_FILES,
    Option(OTHER, "also show the tracebacks in the records, and that of an error", name="traceback"),
)
_VARIANTS: Final = tuple(
    option._replace(lists=_NAMED[option.name].lists and option.name != "device")
    for option in _measuring(
        *("mode", "instances", "phase", "optimizer", "clip", "accumulate", "grad_checkpoint"),
        *("allocator", "memory_limit", "trial_timeout"),
    )
)
"""Options of the variants of a model on one device, which include lists of recipes."""
IN_TURN: Final = (
    *_VARIANTS,
    _NAMED["batch_sizes"]._replace(section=LONG, help="time these batch sizes", default="32"),
    _NAMED["budget"]._replace(help="end within this time, with the verdict reached by then", default="1min"),
    *_RUN,
)
_IN_RACES: Final[dict[str, dict[str, Any]]] = {
    "device": {"help": "race on this device; a list, or all, races on equal devices in parallel"},
    "layout": {"default": "all"},
    "mode": {"default": "all"},
    "instances": {"default": "several on a CPU", "help": "divide the batch among N copies of the model at once"},
}
TUNE: Final = (
    Option(
        WHAT,
        "race for samples per second, GiB of memory or joule, or for the latency of the smallest batch",
        tuple(COSTS),
        name="for",
        default="throughput",
    ),
    *(option._replace(**_IN_RACES.get(option.name, {})) for option in _VARIANTS),
    *(_NAMED[name] for name in ("max_batch", "slo", "percentile")),
    _NAMED["batch_sizes"]._replace(help="race at this batch size", takes="N", default="found first"),
    _NAMED["budget"]._replace(default="10min"),
    *(option for option in RUN if option.name in ("output", "no_save")),
    *_FILES,
    Option(
        OTHER,
        "continue a saved race of this model with the same options; a longer --budget decides more",
        "RACE",
        name="resume",
    ),
    *_RUN,
)
COMPARE: Final = (
    Option(
        VERDICT,
        "exit with 1 if a row is slower by more than this, such as 3%; with 7 if too noisy to judge",
        "SHARE",
        name="fail_slower",
    ),
    Option(
        VERDICT,
        "call two throughputs the same if they certainly differ by less than this",
        "SHARE",
        name="tolerance",
        default="1%",
    ),
    Option(VERDICT, "compare even if models or recipes differ; the result lists the differences", name="force"),
    Option(VERDICT, "OLD and NEW are models: time both in turn, until the verdict is certain", name="run"),
    *IN_TURN,
    *_FILES,
)


def command_options(own: tuple[Option, ...]) -> tuple[Option, ...]:
    """Return the options of a command: its own, and ``--traceback``, which every command has."""
    return own if any(option.name == TRACEBACK.name for option in own) else (*own, TRACEBACK)


def group_by_section(options: Sequence[Option]) -> list[tuple[str, list[Option]]]:
    """Group the options by section, in the order of the sections; within a section they keep their order."""
    ordered = sorted(options, key=lambda option: SECTIONS.index(option.section))
    return [(section, list(listed)) for section, listed in groupby(ordered, key=lambda option: option.section)]
