"""Every option that can be typed: its name, what it takes, and its line of help."""

from __future__ import annotations

from typing import Final, NamedTuple


class Option(NamedTuple):
    """An option: the name under which its command gets it, what it takes, its help.

    ``metavar`` is None for a flag. An option that ``repeats`` may be given several times, and is then a tuple.
    """

    name: str
    metavar: str | None
    help: str
    repeats: bool = False

    @property
    def flag(self) -> str:
        """As it is typed: ``--batch-sizes``."""
        return f"--{self.name.replace('_', '-')}"


MEASURING: Final = (
    Option("device", "NAME", "auto, cpu, cuda or cuda:1; auto takes the accelerator if there is one  [auto]"),
    Option("dtype", "NAME", "fp32, tf32, fp16, bf16, amp-fp16 or amp-bf16  [fp32]"),
    Option("layout", "NAME", "nchw or nhwc (channels last)  [nchw]"),
    Option("mode", "NAME", "eager, compile (torch.compile, for each batch size) or cudagraph  [eager]"),
    Option("phase", "NAME", "infer or train: forward, loss, backward and the optimizer's step  [infer]"),
    Option("optimizer", "NAME", "of --phase train: sgd (with momentum) or adamw  [sgd]"),
    Option("weights", "NAME", "DEFAULT or another name of published weights, or a file of them  [random]"),
    Option("image_size", "PIXELS", "height and width of the input  [the model's own]"),
    Option("input_size", "SHAPE", "shape of one sample, such as 3x640x480 or 16  [the model's own]"),
    Option(
        "input",
        "NAME:DTYPE:SHAPE",
        "an input of a model that does not say what it takes, such as ids:int64:Bx128",
        repeats=True,
    ),
    Option("sequence_length", "N", "tokens of a sample, of hf: models  [512, or the most that the model takes]"),
    Option("batch_sizes", "LIST", "time just these batch sizes, such as 1,8,32, and search nothing"),
    Option("max_batch", "N", "try no batch above this"),
    Option("granularity", "N", "step of the answer: 8 finds multiples of 8  [1]"),
    Option("memory_limit", "SIZE", "act as if the device had this much memory, such as 24GiB  [the device's]"),
    Option("headroom", "SIZE", "also find the largest batch that keeps this much free, such as 5% or 2GiB"),
    Option("transfer", "NAME", "h2d or both: count copies from (and to) pinned host memory, overlapped  [none]"),
    Option("soak", "N", "run the answer N more batches, and step down if it fails  [0]"),
    Option(
        "max_latency", "TIME", "go no further where a step takes longer, such as 50ms, or none  [none; 1s on the CPU]"
    ),
    Option("budget", "TIME", "end the whole run within this, such as 60s: the rows that decide come first"),
    Option(
        "max_noise",
        "SHARE",
        "time a row until its throughput is known to within this  [0.5% where the device sets the pace, else 3%]",
    ),
    Option(
        "max_seconds",
        "S",
        "time no row for longer, but a batch in each process  [6; 60 with --thorough or --batches]",
    ),
    Option("thorough", None, "time 100 batches and 3 seconds of every row, however well it is known"),
    Option("batches", "N", "time just as many batches of every row, in all its processes"),
    Option("processes", "N", "time every row in as many fresh processes at the least  [3]"),
    Option("warmup", "N", "leave out as many batches at the least, in each process  [what has not settled]"),
    Option("slo", "TIME", "also name the best batch under this latency, such as 20ms"),
    Option("percentile", "P", "which percentile of the latency the SLO is about  [99]"),
    Option("search", "NAME", "forecast, bisect, or linear: count up one at a time; all find the same  [forecast]"),
    Option(
        "allocator",
        "NAME",
        "native or expandable segments, of PyTorch's CUDA memory  [as the environment says]",
    ),
    Option(
        "trial_timeout",
        "TIME",
        "end a process that is silent for longer  [10min, then 10 times what is to be expected]",
    ),
    Option("seed", "N", "of weights and inputs  [0]"),
    Option("grad_checkpoint", None, "of --phase train: save memory, compute activations twice"),
    Option("strict", None, "refuse where other processes hold memory of the device"),
)
"""What a measurement is asked with: the fields of ``Spec``."""
_NAMED: Final = {option.name: option for option in MEASURING}
_TRUST: Final = Option("trust_model_file", None, "load a file of a model or of weights even where it can run code")
_OVERWRITE: Final = Option("overwrite", None, "let these files replace others than this tool's reports")
_QUIET: Final = Option("quiet", None, "show no progress")
TRACEBACK: Final = Option("traceback", None, "show the traceback of an error")
_PAGE: Final = Option("html", "FILE", "also write a page with plots (needs tputfind[plot])")


def _measuring(*names: str) -> tuple[Option, ...]:
    of_models = "dtype", "device", "layout", "weights", "image_size", "input_size", "input", "sequence_length", "seed"
    return tuple(_NAMED[name] for name in (*of_models, *names))


RUN: Final = (
    *MEASURING,
    _TRUST,
    Option("resume", "RECORD", "go on with a record that was cut short, repeating nothing"),
    Option("output", "FOLDER", "for the record and its CSV  [results]"),
    Option("no_save", None, "write nothing into that folder"),
    Option("csv", "FILE", "also write the table of all models as CSV"),
    Option("json", "FILE", "also write the record (one model)"),
    Option("md", "FILE", "also write table and summary as Markdown"),
    _PAGE,
    _OVERWRITE,
    _QUIET,
)
CLOCKS: Final = (
    *_measuring("warmup", "trial_timeout"),
    _TRUST,
    Option("batch_size", "N", "samples of a batch  [32]"),
    Option("repeats", "N", "timings of each way  [50; 200 of two models]"),
    Option("drop", "N", "first timings that do not count  [5]"),
    Option("host_work", "TIME", "CPU work between two models  [10ms]"),
    Option("json", "FILE", "also write all samples"),
    Option("md", "FILE", "also write the tables as Markdown"),
    _OVERWRITE,
    _QUIET,
)
FORECAST: Final = (
    Option("memory", "LIST", "of the devices to forecast for, such as 16GiB,24GiB,80GiB"),
    Option("on_fake", None, "do without a device: coarser, from fake tensors"),
    *_measuring("allocator", "trial_timeout"),
    _TRUST,
    Option("csv", "FILE", "also write the forecasts as CSV"),
    Option("json", "FILE", "also write them in full"),
    Option("md", "FILE", "also write them as Markdown"),
    _OVERWRITE,
    _QUIET,
)
SIZE: Final = (
    Option("rate", "N", "requests per second, one sample each, from 1e-9 to 1e12"),
    Option("slo", "TIME", "the latency within which they must be answered, such as 50ms"),
    Option("percentile", "P", "and how many of them, in percent  [99]"),
    Option("batcher", "NAME", "greedy, triton, mosec, litserve or ray  [greedy]"),
    Option("delay", "TIME", "how long the batcher waits for more requests  [the server's default]"),
    Option("routing", "NAME", "shared queue, random, least-loaded or two-choices  [shared; ray: two-choices]"),
    Option("burstiness", "CV", "of the time between requests: 0 even, 1 Poisson, 2 bursty  [1]"),
    Option("arrivals", "FILE", "times of recorded requests, as CSV: the stream has their shape"),
    Option("overhead_per_batch", "TIME", "that the server adds to a batch  [0]"),
    Option("overhead_per_request", "TIME", "and for each request in it, copies included  [0]"),
    Option("overhead_per_get", "TIME", "for LitServe to get each request from its queue  [0]"),
    Option("overhead_per_answer", "TIME", "for each answer, one after the other, while the device goes on  [0]"),
    Option("network", "TIME", "of the latency target  [0]"),
    Option("max_batch", "N", "no batch above this"),
    Option("price", "FILE", "CSV of device, price_per_hour, currency, source, date"),
    Option("seed", "N", "of the streams  [0]"),
    Option("curve", None, "print rate against devices and latency as CSV (one record)"),
    Option("csv", "FILE", "also write the plans as CSV"),
    Option("json", "FILE", "also write the plans in full"),
    Option("md", "FILE", "also write them as Markdown"),
    _OVERWRITE,
)
REPORT: Final = (
    Option("slo", "TIME", "name the best batch under this latency  [as the record was asked]"),
    Option("percentile", "P", "which percentile of the latency the SLO is about  [the record's]"),
    Option("csv", "FILE", "also write one table of all records as CSV"),
    Option("md", "FILE", "also write tables and summaries as Markdown"),
    _PAGE,
    Option("plot", "FILE", "draw throughput against batch size: .png, .svg or .pdf"),
    _OVERWRITE,
)
COMPARE: Final = (
    Option("fail_slower", "SHARE", "exit with 1 where a row is slower by more than this, such as 3%"),
    Option("tolerance", "SHARE", "call rates the same whose ratio certainly lies within this of 1  [1%]"),
    Option("force", None, "compare unlike things too, and say so"),
    Option("json", "FILE", "also write the comparisons in full"),
    Option("md", "FILE", "also write them as Markdown"),
    _OVERWRITE,
)
