"""Models of other fields on a real GPU are measured with their own weights, grad mode and settings."""

import pytest
from support.command import QUICK, run
from support.folders import MODELS

FIELDS, PRODUCTS = f"{MODELS}/other_fields.py", f"{MODELS}/fp32_products.py"
REPEATED = f"{MODELS}/repeated.py"


def passed(folder, model, *options):
    ran = run(folder, model, "--device", "cuda", *options, *QUICK)
    assert ran.status == 0, ran.err
    record = ran.record()
    assert [row.failure for row in record.rows if row.failure is not None] == []
    print(model, [(row.batch_size, round(row.samples_per_s), row.seen) for row in record.rows], record.settings)
    return record


@pytest.mark.parametrize(
    "switched",
    ["by_the_old_switches", "by_precision", "by_the_new_switch", "by_the_new_switches_of_parts", "in_the_inputs"],
)
def test_fp32_is_ieee_fp32_however_the_file_enables_tf32(tmp_path, switched):
    record = passed(tmp_path, f"{PRODUCTS}:{switched}", "--batch-sizes", 64)  # raises otherwise

    assert any(not setting.kept for setting in record.settings) == (switched != "in_the_inputs")


def test_tf32_inside_fp32_model_is_refused_with_dtype_advice(tmp_path):
    ran = run(tmp_path, f"{PRODUCTS}:in_the_inputs", "--device", "cuda", "--dtype", "tf32", "--batch-sizes", 64, *QUICK)

    assert ran.status == 3
    assert "not IEEE fp32" in ran.err
    assert "--dtype fp32 measures it" in ran.err


@pytest.mark.parametrize(
    ("factory", "dtype", "kept"),
    [
        ("complex_weights", "fp32", "complex64"),
        ("fp8_weights", "bf16", "float8_e4m3fn"),
        ("int8_weights", "fp16", "int8"),
    ],
)
def test_unconvertible_weights_keep_their_dtype_on_a_gpu(tmp_path, factory, dtype, kept):
    record = passed(tmp_path, f"{FIELDS}:{factory}", "--dtype", dtype, "--batch-sizes", 64)

    assert kept in record.rows[0].parameter_bytes


def test_lengths_of_packed_sequences_stay_on_the_host(tmp_path):
    record = passed(tmp_path, f"{FIELDS}:sorted_sequences", "--max-batch", 512)

    assert record.spec.host_lengths
    assert record.spec.fresh_inputs
    assert record.edge.largest_batch == 300


@pytest.mark.parametrize(("dtype", "stored"), [("int8", "int8"), ("fp8", "float8_e4m3fn")])
def test_linear_layers_are_quantised_on_a_gpu(tmp_path, dtype, stored):
    pytest.importorskip("torchao")
    record = passed(tmp_path, f"{FIELDS}:linear_layers", "--dtype", dtype, "--batch-sizes", 64)

    assert record.rows[0].parameter_bytes[stored] >= 2 * 64 * 64


@pytest.mark.parametrize(
    ("factory", "seen"),
    [
        ("halves_its_input", "inputs_restored"),
        ("remembers", "cached"),
        ("generator", "drained"),
        ("forgets", None),
        ("graph_objects", None),
        ("jagged", None),
    ],
)
def test_habits_of_models_are_seen_on_a_gpu_and_no_others(tmp_path, factory, seen):
    record = passed(tmp_path, f"{FIELDS}:{factory}", "--batch-sizes", "8,64")

    assert {sight for row in record.rows for sight in row.seen} == ({seen} if seen else set())


def test_model_taking_gradients_is_measured_under_no_grad_on_a_gpu(tmp_path):
    assert passed(tmp_path, f"{FIELDS}:forces", "--max-batch", 256).spec.grad_mode == "no_grad"


def test_self_compiling_model_is_compiled_at_every_batch_size_on_a_gpu(tmp_path):
    record = passed(tmp_path, f"{FIELDS}:compiles_itself", "--batch-sizes", "16,17,18,19,20,21,22,23,24,25")

    assert all(row.timings[0].compiled is not None for row in record.rows)


def test_smallest_batch_is_omitted_if_model_trains_only_on_larger_ones(tmp_path):
    record = passed(tmp_path, f"{FIELDS}:normalised", "--phase", "train", "--max-batch", 64)

    assert [row.batch_size for row in record.rows] == [2, 4, 8, 16, 32, 64]


def test_repeated_inputs_have_edge_and_peaks_of_fresh_ones_on_gpu(tmp_path):
    (tmp_path / "few").mkdir()
    (tmp_path / "all").mkdir()
    options = ("--dtype", "fp16", "--memory-limit", "4GiB")

    repeated = passed(tmp_path / "few", f"{REPEATED}:widens", *options)
    fresh = passed(tmp_path / "all", f"{REPEATED}:widens", *options, "--fresh-inputs")

    assert repeated.edge == fresh.edge
    peaks = [{one.batch_size: one.peak_allocated_bytes for one in record.trials} for record in (repeated, fresh)]
    assert peaks[0] == peaks[1]
