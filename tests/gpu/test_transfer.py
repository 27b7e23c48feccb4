"""Copies are counted, overlapped if the device can, and reported."""

from statistics import median

import pytest
from support.command import run
from support.folders import MODELS

SHORT = ("--dtype", "fp16", "--processes", 1)


def row_of(folder, *arguments):
    folder.mkdir()
    ran = run(folder, *arguments, *SHORT)
    assert ran.status == 0, ran.err
    record = ran.record()
    return record.rows[0], [notice.kind for notice in record.notices], ran.out


def test_copies_hide_under_longer_compute_and_show_in_latency(tmp_path):
    rows = {}
    for way in ("none", "h2d", "both"):
        row, kinds, out = row_of(tmp_path / way, "resnet50", "--batch-sizes", 256, "--transfer", way)
        rows[way] = row
        assert row.output.result == "right"
        assert "copy_bound" not in kinds
        assert ("inputs copied in" in out) == (way != "none")
    copy_in_ms = rows["h2d"].timings[0].copy_in_ms
    p50 = {way: median(row.latency_ms) for way, row in rows.items()}
    print({way: (row.samples_per_s, p50[way], row.timings[0].copy_in_ms) for way, row in rows.items()})

    assert rows["h2d"].samples_per_s == pytest.approx(rows["none"].samples_per_s, rel=0.05)
    assert rows["both"].samples_per_s == pytest.approx(rows["none"].samples_per_s, rel=0.05)
    assert p50["h2d"] - p50["none"] == pytest.approx(copy_in_ms, rel=0.3)
    assert rows["none"].timings[0].copy_in_ms is None
    assert rows["h2d"].timings[0].copy_out_ms is None
    assert rows["both"].timings[0].copy_out_ms > 0


def test_copy_bound_model_runs_at_copy_speed(tmp_path):
    asked = (f"{MODELS}/plain.py:returns_its_input", "--input-size", "3x224x224", "--batch-sizes", 128)
    row, kinds, _ = row_of(tmp_path / "in", *asked, "--transfer", "h2d")
    both, _, _ = row_of(tmp_path / "both", *asked, "--transfer", "both")
    timing = row.timings[0]
    print(median(row.device_ms), timing.copy_in_ms, median(both.device_ms), both.timings[0])

    assert median(row.device_ms) == pytest.approx(timing.copy_in_ms, rel=0.2)
    assert "copy_bound" in kinds
    # Copies in and out overlap: together they take less than one after the other.
    assert median(both.device_ms) < 0.9 * (both.timings[0].copy_in_ms + both.timings[0].copy_out_ms)


def test_copies_into_the_inputs_are_not_taken_for_the_models_own_writes(tmp_path):
    row, kinds, _ = row_of(tmp_path / "in", "resnet18", "--batch-sizes", 16, "--transfer", "h2d")

    assert row.seen == ()
    assert not {"inputs_restored", "inputs_written"} & set(kinds)
