"""22 plans of ``tputfind size`` and the second simulator: batchers, routings, burstiness, percentiles, overheads."""

from dataclasses import dataclass, replace
from math import hypot
from typing import Final

from support.folders import record_path
from support.second import Answer, Question, Times, answer
from tputfind.record.files import load_record
from tputfind.sizing.planner.plan import Plan, plan
from tputfind.sizing.planner.question import read_demand

NEAR: Final = 0.03
"""Fraction by which both may differ, in addition to chance."""
_SURE: Final = 3.0
"""Standard errors within which both agree."""
_T_QUANTILE: Final = 2.2
"""Standard errors of eight replications or more that hold 95 %."""

PLANS: Final[list[tuple[str, str]]] = [
    ("nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-1", "rate=100000 slo=4.2ms"),
    ("nvidia-h200-x2/serving/vit_l_16-fp32-cuda-0-all-busy", "rate=3000 slo=60ms"),
    ("nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-0", "rate=200000 slo=8ms"),
    ("nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-0", "rate=60000 slo=14ms routing=random burstiness=4"),
    (
        "nvidia-h200/kinds/timm-convnext_tiny-fp16",
        "rate=20000 slo=20ms routing=least-loaded burstiness=0.5 percentile=99.9",
    ),
    ("nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-1", "rate=60000 slo=6ms routing=two-choices burstiness=2"),
    ("nvidia-h200/serving/vit_l_16-fp32", "rate=700 slo=60ms burstiness=4 percentile=95"),
    ("nvidia-h200/kinds/r3d_18-fp16", "rate=30000 slo=16ms batcher=triton delay=5ms"),
    ("nvidia-h200/kinds/hf-gpt2-bf16", "rate=8000 slo=60ms batcher=triton delay=10ms routing=random percentile=97.5"),
    (
        "nvidia-h200/kinds/deeplabv3_resnet50-fp16",
        "rate=1200 slo=120ms batcher=triton delay=8ms routing=least-loaded burstiness=2 percentile=95",
    ),
    (
        "nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-0",
        "rate=15000 slo=30ms batcher=triton delay=2ms routing=two-choices overhead=1ms",
    ),
    (
        "nvidia-h200/serving/vit_l_16-fp32",
        "rate=600 slo=150ms batcher=mosec delay=5ms overhead=2ms+0.1ms",
    ),
    ("nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-1", "rate=24000 slo=12ms batcher=mosec delay=1ms"),
    ("nvidia-h200/kinds/r3d_18-fp16", "rate=8000 slo=50ms batcher=mosec routing=random burstiness=0"),
    (
        "nvidia-h200/kinds/timm-convnext_tiny-fp16",
        "rate=20000 slo=30ms batcher=mosec delay=3ms routing=least-loaded overhead=0+0.02ms",
    ),
    (
        "nvidia-h200/kinds/deeplabv3_resnet50-fp16",
        "rate=4000 slo=60ms batcher=mosec delay=2ms routing=two-choices burstiness=0",
    ),
    ("nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-1", "rate=100000 slo=14ms batcher=litserve delay=1ms"),
    (
        "nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-0",
        "rate=40000 slo=20ms batcher=litserve delay=0ms overhead=0.5ms",
    ),
    ("nvidia-h200/kinds/r3d_18-fp16", "rate=6000 slo=60ms batcher=litserve delay=10ms routing=random burstiness=2"),
    (
        "nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-0",
        "rate=15000 slo=20ms batcher=ray max_ongoing=1000 delay=5ms burstiness=2",
    ),
    (
        "nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-0",
        "rate=18000 slo=60ms batcher=ray max_ongoing=1000 delay=5ms routing=least-loaded burstiness=3",
    ),
    (
        "nvidia-h200/kinds/deeplabv3_resnet50-fp16",
        ("rate=1200 slo=150ms batcher=ray max_ongoing=1000 delay=40ms routing=random burstiness=0 percentile=95"),
    ),
]
"""A record's name under ``results``, and options of ``tputfind size``."""


@dataclass(frozen=True)
class Compared:
    """A plan, and the second simulator's answers for its devices and for one fewer with its best cap."""

    plan: Plan
    second: Answer
    fewer: Answer | None

    @property
    def apart(self) -> float:
        return self.second.tail_ms / self.plan.outcome.tail_ms - 1

    @property
    def by_chance(self) -> float:
        """Fraction by which they may differ by chance alone."""
        outcome = self.plan.outcome
        planned_ms = (outcome.tail_high_ms - outcome.tail_low_ms) / 2 / _T_QUANTILE
        return _SURE * hypot(planned_ms, self.second.error_ms) / outcome.tail_ms

    @property
    def agrees(self) -> bool:
        return abs(self.apart) <= NEAR + self.by_chance

    @property
    def holds(self) -> bool:
        """Whether the devices meet the target in the second simulator, or the plan's range allows more devices."""
        within = self.second.tail_ms - _SURE * self.second.error_ms <= self.plan.demand.target_ms
        return within or self.plan.most != self.plan.outcome.devices

    @property
    def fewer_fail(self) -> bool:
        """Whether one device fewer misses the target in the second simulator, or may meet it by the plan's range."""
        if self.fewer is None or self.plan.fewest != self.plan.outcome.devices:
            return True
        return self.fewer.tail_ms + _SURE * self.fewer.error_ms > self.plan.demand.target_ms


def planned(name: str, options: str) -> Plan:
    """Return the plan for a record and options, ``rate=1000 slo=50ms``."""
    given = dict(option.split("=") for option in options.split())
    return plan(load_record(record_path(f"{name}.json")), read_demand(given))


def compared(name: str, found: Plan, *, requests: int, batches: int, streams: int, every_cap: bool = False) -> Compared:
    """Return a plan with the answers of the second simulator.

    Args:
        name: name of the record.
        found: the plan.
        requests: least requests in each stream of the second simulator.
        batches: least full batches of each device in each stream.
        streams: streams of the second simulator.
        every_cap: try one device fewer with each measured batch size as cap; else only with the plan's cap.
    """
    times = Times(record_path(f"{name}.json"))
    demand, outcome = found.demand, found.outcome
    question = Question(
        batcher=demand.batcher,
        routing=demand.routing,
        devices=outcome.devices,
        cap=outcome.batch_cap,
        rate_per_s=demand.rate_per_s,
        percentile=demand.percentile,
        burstiness=demand.burstiness,
        wait_ms=demand.wait_ms,
        per_batch_ms=demand.overhead_per_batch_ms,
        per_request_ms=demand.overhead_per_request_ms,
    )
    requests = max(requests, batches * outcome.devices * outcome.batch_cap)
    second = answer(question, times, requests=requests, streams=streams)
    if found.fewer is None:
        return Compared(found, second, None)
    caps = {found.fewer.batch_cap, *(times.sizes if every_cap else ())}
    fewer = [
        answer(replace(question, devices=outcome.devices - 1, cap=cap), times, requests=requests // 2, streams=2)
        for cap in sorted(caps)
    ]
    return Compared(found, second, min(fewer, key=lambda each: each.tail_ms))
