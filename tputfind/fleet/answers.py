"""What nodes of a cluster answer, and what must be known of how it came about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tputfind.errors import BadRecord
from tputfind.fleet.on_node import Word
from tputfind.fleet.places import ClusterPlace
from tputfind.record.environment import Environment
from tputfind.record.record import Notice, Record
from tputfind.record.untrusted import printable_json, wrong_json


def word_of(data: bytes) -> Word:
    """Return the answer of a node; BadRecord where it is none."""
    try:
        return msgspec.json.decode(printable_json(data), type=Word)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRecord(f"the answer of a node is none: {wrong_json(data, error)}") from None


def ran_again(starts: Sequence[str]) -> Iterator[Notice]:
    """Yield a notice where a job was started more than once, at these addresses."""
    if len(starts) > 1:
        yield Notice(
            kind="ran_again",
            seen=f"the job was started {len(starts)} times: on {', '.join(starts)}",
            cause="a node of the cluster was lost, or Ray ended a process there",
            advice="look at the logs of that node before buying more like it",
        )


def unlike(record: Record, first: Record | None) -> Iterator[Notice]:
    """Yield a notice where a node has other software than the one whose record came first."""
    if first is None:
        return
    pairs = [("tputfind", record.tputfind, first.tputfind), ("method", record.method, first.method)]
    names = ("torch", "driver", "cuda", "cudnn", "python")
    pairs += [(name, getattr(record.environment, name), getattr(first.environment, name)) for name in names]
    differing = [
        f"{name} {mine or 'unknown'} here, {other or 'unknown'} there" for name, mine, other in pairs if mine != other
    ]
    if differing:
        yield Notice(
            kind="unlike_nodes",
            seen=f"this node and {first.environment.host}, measured first, differ: {'; '.join(differing)}",
            cause="the nodes of the cluster were not installed alike",
            advice="install the same on all nodes: else a difference of devices may be one of software",
        )


def unknown_environment(place: ClusterPlace, address: str) -> Environment:
    """Return what is known of a node that did not say: where it is, and which kind of device it was asked for."""
    name = place.kind or place.resource
    return Environment(
        device=place.device,
        device_name=name,
        torch="",
        python="",
        host=address,
        cpu_name="",
        cpu_count=0,
        torch_threads=0,
    )
