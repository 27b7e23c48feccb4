"""A record with round numbers, like the record of a run."""

import base64
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, Literal

import msgspec

from tputfind.analysis import notices
from tputfind.analysis.notices.words import MOST_SIGNS, MOST_SIGNS_QUOTING
from tputfind.record.environment import Capabilities, Environment
from tputfind.record.forecast import CardForecast, Forecasts
from tputfind.record.record import Edge, Failure, Health, Notice, OutputCheck, Record, Row, Timing, Trial
from tputfind.record.spec import Spec
from tputfind.record.trace import Trace
from tputfind.report.document import notice_line, notices_of
from tputfind.report.renderers.terminal import broken

HEALTH = Health(readings=5, sm_clock_mhz=1700.0, sm_clock_max_mhz=1980.0, power_w=400.0, temperature_c=50.0)

PACKED = "eNpjZmCoZQCCCYwMUOAAJjWgPFYoDQAs+AF/"
TRACE = Trace(
    batch_size=5,
    fixed=1,
    memory_bytes=24 * 2**30,
    capped=False,
    expandable=False,
    complete=True,
    packed=base64.b64decode(PACKED),
)
"""Trace of weights of 100 bytes, an input of 1 MiB and an output of 10 bytes, which is released."""


def row(batch_size: int, device_ms: float, *, enqueue_ms: float = 1.0, batches: int = 100) -> Row:
    """Return a row whose batches all take the same time; its latencies rise by 0.01 ms each.

    The plan is 100 batches: with fewer, the row was ended by time.
    """
    end: Literal["full", "time"] = "full" if batches >= 100 else "time"
    return Row(
        batch_size=batch_size,
        timings=(
            Timing(
                device_ms=(device_ms,) * batches,
                latency_ms=tuple(device_ms + 0.01 * count for count in range(batches)),
                enqueue_ms=(enqueue_ms,) * batches,
                first_step_ms=500.0,
                warmup_steps=40,
                warmup_s=0.75,
                steady=True,
                ended_by=end,
                health=HEALTH,
            ),
        ),
        peak_allocated_bytes=batch_size * 2**20,
        peak_reserved_bytes=batch_size * 2**21,
        output=OutputCheck(result="right", difference=0.0),
        memory_of_others_bytes=0,
        seconds=1.5,
        ended_by=end,
    )


CUDA_CAN: Final = Capabilities(
    events=True, own_memory=True, memory_limit=True, allocator_trace=True, graphs=True, pinned_copies=True, health=True
)
CPU_CAN: Final = Capabilities(
    events=False,
    own_memory=False,
    memory_limit=True,
    allocator_trace=False,
    graphs=False,
    pinned_copies=False,
    health=False,
)


def can_of(device: str) -> Capabilities:
    """Return the capabilities of a CPU or of a CUDA device."""
    return CPU_CAN if device.startswith("cpu") else CUDA_CAN


@cache  # frozen, and hundreds of tests begin with it
def example() -> Record:
    """Return a GPU run with largest batch 5, one failed row and one host-bound row."""
    too_large = Failure(kind="out_of_memory", message="OutOfMemoryError: CUDA out of memory.")
    record = Record(
        tputfind="0.1.0",
        command="tputfind resnet50 --dtype fp16 --slo 10ms",
        started="2026-11-20T12:00:00+00:00",
        finished="2026-11-20T12:01:00+00:00",
        wall_s=60.0,
        spec=Spec(model="resnet50", dtype="fp16", slo_ms=10.0, headroom=0.2, soak=50, processes=1, batches=100),
        environment=Environment(
            device="cuda:0",
            device_name="NVIDIA Example",
            device_uuid="GPU-00000000-0000-0000-0000-000000000000",
            memory_total_bytes=24 * 2**30,
            memory_free_bytes=23 * 2**30,
            memory_of_others_bytes=0,
            compute_capability="9.0",
            driver="580.1",
            cuda="13.0",
            cudnn="91900",
            torch="2.11.0",
            torchvision="0.26.0",
            python="3.12.3",
            host="Linux 6.18 x86_64",
            cpu_name="Example CPU",
            cpu_count=16,
            torch_threads=16,
            can=CUDA_CAN,
        ),
        input_shape="3x224x224",
        parameters=25557032,
        trials=(
            *(Trial(batch_size=b, step_ms=b * 1.5, peak_allocated_bytes=b * 2**20, seconds=1.0) for b in (1, 2, 4)),
            Trial(batch_size=8, failure=too_large, seconds=1.0),
            Trial(batch_size=6, failure=too_large, seconds=1.0),
            Trial(batch_size=5, step_ms=9.0, peak_allocated_bytes=5 * 2**20, seconds=1.0, trace=TRACE),
        ),
        edge=Edge(largest_batch=5, limited_by="memory", fails_at=6, soaked_batches=50),
        safe=Edge(largest_batch=4, limited_by="memory", fails_at=5, memory_limit_bytes=18 * 2**30, soaked_batches=50),
        rows=(
            row(1, 4.0, enqueue_ms=3.9),
            Row(batch_size=2, failure=Failure(kind="died", message="killed by SIGKILL")),
            row(4, 5.0),
            row(5, 10.0, batches=20),
        ),
    )
    return msgspec.structs.replace(record, notices=notices.of(record))


def timed_record(spans_ms: Mapping[int, Sequence[float]], **environment: object) -> Record:
    """Return a record of one process whose batches take these times by size, back to back and alone."""
    rows = tuple(
        msgspec.structs.replace(row(size, 1.0), timings=(Timing(device_ms=tuple(spans), latency_ms=tuple(spans)),))
        for size, spans in spans_ms.items()
    )
    made = example()
    here = msgspec.structs.replace(made.environment, **environment)
    return msgspec.structs.replace(made, rows=rows, notices=(), environment=here)


def steady_record(*batches_ms: float) -> Record:
    """Return a record with batches of 1, 2, 4 and so on with these times, within 1 %."""
    steps = [1 + 0.0001 * number for number in range(100)]
    return timed_record({2**power: [batch_ms * step for step in steps] for power, batch_ms in enumerate(batches_ms)})


QUOTING = ("trial_", "row_", "failed_when_", "output_unchecked")
"""Prefixes of notice kinds that quote foreign text."""


def whole(found: Sequence[Notice]) -> Sequence[Notice]:
    """Check that each notice has a printable sign, cause and advice without unknowns, and return the notices."""
    for notice in found:
        for text in (notice.seen, notice.cause, notice.advice):
            assert isinstance(text, str)
            assert text
            assert text.isprintable()
            assert not re.search(r"\bNone\b", text)
        (section,) = notices_of([notice])
        line, quotes = notice_line(section.entries[0]), notice.kind.startswith(QUOTING)
        assert len(line) <= (MOST_SIGNS_QUOTING if quotes else MOST_SIGNS), line
        # After its number on a terminal of 80 columns; long foreign words leave line ends empty.
        assert len(broken(line, 77)) <= (4 if quotes else 2), line
    return found


FORECASTS = Forecasts(
    method=3,
    tputfind="0.1.0",
    command="tputfind forecast resnet50 --memory 16GiB",
    started="2026-11-20T12:00:00+00:00",
    spec=Spec(model="resnet50"),
    device_name="NVIDIA Example",
    tried=(1, 8),
    cards=(CardForecast(memory_bytes=2**34, largest_batch=100, error=0.03),),
)
