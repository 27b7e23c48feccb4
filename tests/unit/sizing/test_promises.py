"""Promises of plans about each other hold on real records with noisy rows, and for tight targets.

``benchmarks/promises.py`` tries all records.
"""

import pytest
from support.folders import record_path
from support.promises import LOOSE, MIDDLING, TIGHT, Case, records, told

from tputfind.record.files import load_record
from tputfind.sizing.planner.question import read_demand
from tputfind.sizing.planner.search import Search

CASES = [
    Case("nvidia-h200/kinds/deeplabv3_resnet50-fp16", TIGHT, 1.6),
    Case("nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-0", TIGHT, 4.6),
    Case("nvidia-h200/kinds/timm-convnext_tiny-fp16", MIDDLING, 2.6),
    Case("nvidia-h100/default/resnet50-fp16", LOOSE, 3.6),
]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.target:g}")
def test_plans_keep_their_promises_about_each_other(case):
    assert [f"{each.promise}: {each.seen}" for each in told(case) if not each.kept] == []


def test_there_are_records_of_many_models_to_try():
    assert len(records()) > 30


@pytest.mark.long
def test_least_finds_best_batch_limit_with_flat_late_fraction():
    """1 % of the large batches are too slow: most batch limits take 45 to 70 devices, and the best takes 42."""
    record = load_record(record_path("nvidia-h200/earlier/efficientnet_b0-fp16.json"))

    found = Search(record, read_demand({"rate": 75_000, "slo": 7.02, "seed": 2})).least()

    assert 41 <= found.devices <= 43
