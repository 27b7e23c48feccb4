"""What was measured: frozen values, and their JSON. Every table, page and plan is a function of these."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from tputfind.errors import BadRecord
from tputfind.spec import Spec

SCHEMA: Final = 1
"""Raised when a field is added or changes its meaning."""
METHOD: Final = 1
"""Raised when measuring changes, so that numbers taken before and after are not compared unawares."""

Status = Literal["ok", "out_of_memory", "index_limit", "unsupported", "died", "timeout", "wrong_output", "error"]
LimitedBy = Literal["memory", "index", "latency", "cap", "unsupported", "died", "error"]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a trial or a row did not pass: a kind, one line, and the traceback of the model where it has one."""

    kind: Status
    message: str
    traceback: str = ""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One fresh process that took a few steps at one batch size.

    ``step_ms`` is the fastest step after the first (host clock, synchronised). Peaks are of the device's memory; on the
    CPU they are resident memory and address space beyond the idle process. ``seconds`` is the whole process, as the
    parent saw it.
    """

    batch_size: int
    failure: Failure | None = None
    step_ms: float | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    seconds: float = 0.0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One batch size, timed.

    ``device_ms`` are the spans between consecutive marks of the throughput window, one a batch: they add up to it.
    ``latency_ms`` and ``enqueue_ms`` are of the latency window, one a batch: from the call to synchronised output, and
    from the call to its return. ``allocator_retries`` is how often, warm-up included, the allocator found no room, gave
    all unused memory back to the device and asked again. ``seconds`` is what the child spent on the row, 0 if it died.
    """

    batch_size: int
    failure: Failure | None = None
    device_ms: tuple[float, ...] = ()
    latency_ms: tuple[float, ...] = ()
    enqueue_ms: tuple[float, ...] = ()
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    allocator_retries: int | None = None
    seconds: float = 0.0

    @property
    def status(self) -> Status:
        """``ok``, or the kind of the failure."""
        return self.failure.kind if self.failure else "ok"

    @property
    def samples_per_s(self) -> float | None:
        """Throughput: batches times batch size over the whole window; None where nothing was timed."""
        window_ms = sum(self.device_ms)
        return len(self.device_ms) * self.batch_size * 1000 / window_ms if window_ms > 0 else None


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the search: ``largest_batch`` ran in full, ``fails_at`` was tried and did not pass.

    ``largest_batch`` is 0 where not even the smallest batch passed. ``fails_at`` is None where a cap ended the search.
    """

    largest_batch: int
    limited_by: LimitedBy
    fails_at: int | None = None


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something a reader must know to use a number: what was seen, the likely cause, what to try.

    ``batch_sizes`` are the rows it is about; none where it is about the whole run.
    """

    kind: str
    seen: str
    cause: str
    advice: str
    batch_sizes: tuple[int, ...] = ()


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What the numbers were taken on. Unknown is None."""

    device: str
    device_name: str
    device_uuid: str | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    compute_capability: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    torch: str
    torchvision: str | None = None
    allocator_conf: str | None = None
    python: str
    host: str
    cpu_name: str
    cpu_count: int
    torch_threads: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The saved result of one run: the request, where it ran, every trial, the edge, the rows, the notices.

    ``finished`` is None while the run goes on, and for ever if it was cut short. Times are ISO 8601, UTC.
    """

    schema: int = SCHEMA
    method: int = METHOD
    tputfind: str
    command: str
    started: str
    finished: str | None = None
    wall_s: float = 0.0
    spec: Spec
    environment: Environment
    input_shape: str
    parameters: int | None = None
    trials: tuple[Trial, ...] = ()
    edge: Edge | None = None
    rows: tuple[Row, ...] = ()
    notices: tuple[Notice, ...] = ()

    def to_json(self) -> bytes:
        """Return the record as indented JSON, for a file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


class _Header(msgspec.Struct):
    schema: int


def from_json(data: bytes, name: str) -> Record:
    """Return the record that ``Record.to_json`` wrote; ``name`` says in errors whose bytes they are.

    Raises:
        BadRecord: the bytes are cut short, edited out of shape, or of a newer schema.
    """
    try:
        header = msgspec.json.decode(data, type=_Header)
        if header.schema > SCHEMA:
            raise BadRecord(
                f"{name} has schema {header.schema}, and this version reads up to {SCHEMA}",
                "it was written by a newer tputfind: pip install --upgrade tputfind",
            )
        return msgspec.json.decode(data, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRecord(f"{name} is not a tputfind record: {error}") from None
