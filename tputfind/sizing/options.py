"""The options of a demand, read as a command line writes them, or as Python code would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from tputfind import options as values
from tputfind.errors import BadRequest
from tputfind.sizing.batchers import SERVERS
from tputfind.sizing.demand import BATCHERS, HANDLERS, HANDLINGS, MOST_DEVICES, ROUTINGS, Demand
from tputfind.sizing.gaps import read_gaps
from tputfind.sizing.samples import read_counts, read_shares, shares_of

LOWEST_RATE: Final = 1e-9
HIGHEST_RATE: Final = 1e12
"""Requests per second: from one in thirty years on."""
_AUTO: Final = "auto"


def read_demand(options: Mapping[str, object]) -> Demand:
    """Return the demand that options describe, by name with underscores; None means: not given.

    They are as a command line writes them (text), or as Python code would: numbers per second, and milliseconds.

    Raises:
        BadRequest: one or more are wrong, or missing; its message names them all.
    """
    missing = [name for name in _ASKED if options.get(name) is None]
    fields, wrong = values.fields_of(options, _READERS)
    problems = ([_lacking(missing)] if len(missing) > 1 else []) + wrong
    if {"counts", "samples_per_request"} <= fields.keys():
        problems.append("--samples-per-request has nothing to add where recorded requests have their own samples")
    if not problems:
        fields.setdefault("routing", SERVERS[fields.get("batcher", "greedy")].routing)  # type: ignore[index]
        if "counts" in fields:
            fields["samples_per_request"] = shares_of(fields["counts"])  # type: ignore[arg-type]  # as its reader returns
        fields["solve"] = missing[0] if missing else "nothing"
        if fields.get("delay_ms") == _AUTO:
            fields["search_delay"], fields["delay_ms"] = True, None
        fields = _UNKNOWN | fields
        try:
            return Demand(**fields)  # type: ignore[arg-type]  # each reader returns its field's type
        except ValueError as conflict:
            problems.append(str(conflict))
    raise BadRequest("; ".join(problems), "see tputfind size --help")


def _load(value: object) -> float:
    """Read a load up to all that a device can do: ``70%``, ``0.7``, ``100%`` or 1."""
    return 1.0 if value in ("100%", "1", 1) else values.share(value)


def _delay(value: object) -> float | str:
    """Read a duration, or the word that asks for the best one."""
    return _AUTO if isinstance(value, str) and value.strip().lower() == _AUTO else values.ms(value)


def _preferred(value: object) -> tuple[int, ...]:
    """Read batch sizes, and sort them."""
    return tuple(sorted(set(values.wholes(value, ","))))


def _lacking(missing: Sequence[str]) -> str:
    """Say which options a question lacks: it names two of three, and is answered with the third."""
    if missing[:2] == ["rate", "slo"]:
        return "name two of --rate, --slo and --devices: the third is the answer"
    return f"--{missing[0]} is needed, or --devices"


_ASKED: Final = "rate", "slo", "devices"
_UNKNOWN: Final[dict[str, object]] = {"rate_per_s": 1.0, "slo_ms": 1e12}
"""Stand for the answer until it is known."""
_READERS: Final[dict[str, tuple[str, values.Reader]]] = {
    "rate": ("rate_per_s", values.number_within(LOWEST_RATE, HIGHEST_RATE, values.rate)),
    "slo": ("slo_ms", values.positive_ms),
    "percentile": ("percentile", values.number_within(50, 99.99, values.percentile)),
    "burstiness": ("burstiness", values.number_within(0, 20)),
    "gaps": ("gaps", read_gaps),
    "samples_per_request": ("samples_per_request", read_shares),
    "samples": ("counts", read_counts),
    "requests": ("requests", values.one_of(HANDLINGS)),
    "batcher": ("batcher", values.one_of(BATCHERS)),
    "delay": ("delay_ms", _delay),
    "routing": ("routing", values.one_of(ROUTINGS)),
    "overhead_per_batch": ("overhead_per_batch_ms", values.ms),
    "overhead_per_request": ("overhead_per_request_ms", values.ms),
    "overhead_per_get": ("overhead_per_get_ms", values.ms),
    "overhead_per_answer": ("overhead_per_answer_ms", values.ms),
    "network": ("network_ms", values.ms),
    "max_batch": ("max_batch", values.whole),
    "seed": ("seed", values.count_from_zero),
    "devices": ("devices", partial(values.whole, most=MOST_DEVICES)),
    "spare": ("spare", partial(values.whole, least=0, most=MOST_DEVICES)),
    "most_load": ("most_load", _load),
    "max_queue": ("max_queue", values.whole),
    "preferred_batches": ("preferred_batches", _preferred),
    "handler": ("handler", values.one_of(HANDLERS)),
    "max_ongoing": ("max_ongoing", values.whole),
    "max_latency": ("max_latency_ms", values.positive_ms),
    "rack": ("rack_w", values.watts),
    "idle_power": ("idle_w", values.watts),
}
