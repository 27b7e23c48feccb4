"""Rows with wrong outputs are never recommended, and unchecked outputs are reported."""

import pytest
from support.command import QUICK
from support.folders import MODELS


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("forgets_the_last_sample_above_4", "sample 4 of batch 5 differs by "),
        ("overflows_once_above_4", "sample 2 of batch 5 holds NaN or infinity, but not in a batch of 4"),
    ],
)
def test_rubbish_is_a_wrong_output_and_bounds_the_answer(tmp_path, ask, factory, message):
    ran = ask(tmp_path, f"{MODELS}/plain.py:{factory}", "--max-batch", 16, *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.edge.largest_batch, record.edge.limited_by, record.edge.fails_at) == (4, "wrong_output", 5)
    rows = {row.batch_size: row for row in record.rows}
    assert {1, 2, 4} <= {size for size, row in rows.items() if row.status == "ok"} <= {1, 2, 3, 4}
    assert rows[5].status == "wrong_output"
    assert message in rows[5].failure.message
    assert rows[5].samples_per_s is None
    assert "computes wrong outputs" in ran.out
    assert ran.out.split("Fastest batch  ")[1].split(",")[0] in ("1", "2", "3", "4")


def test_rows_of_the_search_that_may_be_the_fastest_are_timed_to_the_end(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:forgets_the_last_sample_above_1000", "--max-batch", 3000)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.edge.largest_batch, record.edge.fails_at) == (1000, 1001)
    assert "unfinished" not in {notice.kind for notice in record.notices}


def test_named_batch_with_wrong_output_is_kept_and_not_recommended(tmp_path, ask):
    factory = "forgets_the_last_sample_above_4"
    ran = ask(tmp_path, f"{MODELS}/plain.py:{factory}", "--batch-sizes", "2,16", *QUICK)

    assert [row.status for row in ran.record().rows] == ["ok", "wrong_output"]
    assert "do not deploy this batch" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("factory", "result", "remark"),
    [
        ("nan_for_some", "not_finite", ""),
        ("by_count", "unchecked", "or with the batch that it is in"),
    ],
)
def test_output_check_result_is_recorded_with_its_reason(tmp_path, ask, factory, result, remark):
    ran = ask(tmp_path, f"{MODELS}/plain.py:{factory}", "--batch-sizes", "16", *QUICK)

    assert ran.status == 0, ran.err
    (row,) = ran.record().rows
    assert (row.status, row.output.result) == ("ok", result)
    assert remark in row.output.remark
    kinds = [notice.kind for notice in ran.record().notices]
    assert ("output_unchecked" in kinds) == (result == "unchecked")
    assert ("output_not_finite" in kinds) == (result == "not_finite")


def test_a_model_that_scales_by_its_batch_is_not_called_wrong(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:quantised", "--batch-sizes", "5,6,7,8,9,10,12,14,16,20,24,28,32", *QUICK)

    assert {row.status for row in ran.record().rows} == {"ok"}


@pytest.mark.parametrize("sizes", [("--batch-sizes", 64), ("--max-batch", 64)])
def test_row_is_kept_if_the_check_of_its_output_ends_the_process(tmp_path, ask, sizes):
    ran = ask(tmp_path, f"{MODELS}/plain.py:dies_in_small_batches", *sizes, *QUICK)

    assert ran.status == 0, ran.err
    row = ran.record().row(64)
    assert (row.status, row.output.result) == ("ok", "unchecked")
    assert "the check ended the process: exited with status 9" in row.output.remark
    assert row.samples_per_s


def test_a_real_model_in_bf16_is_right(tmp_path, ask):
    ran = ask(tmp_path, "mobilenet_v3_small", "--dtype", "bf16", "--image-size", 64, "--batch-sizes", 8, *QUICK)

    (row,) = ran.record().rows
    assert row.output.result == "right"


def test_the_outputs_of_a_vit_with_random_weights_can_be_checked(tmp_path, ask):
    ran = ask(tmp_path, "vit_b_16", "--device", "cpu", "--image-size", 32, "--batch-sizes", "8", *QUICK)

    assert ran.status == 0, ran.err
    assert [row.output.result for row in ran.record().rows] == ["right"]
