"""Models of other fields are measured as their owners run them, or refused for the true reason."""

import time

import pytest
import torch
from support.command import QUICK, measured
from support.folders import MODELS

from tputfind.record.spec import read_spec
from tputfind.worker import batch as batches
from tputfind.worker.output_check import check_output
from tputfind.worker.structures import copy_containers
from tputfind.worker.workload import Workload

PIECES, PIECE_S = 10, 0.002
"""Pieces and seconds per piece of a lazy output, as in the model file."""
FIELDS = f"{MODELS}/other_fields.py"
SETS = f"{MODELS}/sets_torch.py"
FEW = ("--max-batch", 8, *QUICK)


def kinds(record):
    return {notice.kind for notice in record.notices}


def passed(ask, folder, factory, *options):
    folder.mkdir(exist_ok=True)
    ran = ask(folder, f"{FIELDS}:{factory}", *options)
    assert ran.status == 0, ran.err
    record = ran.record()
    assert [row.batch_size for row in record.rows if row.failure is not None] == []
    return record


def workload_of(factory, **options):
    return Workload(read_spec(f"{FIELDS}:{factory}", options), torch.device("cpu"))


@pytest.mark.parametrize(
    ("factory", "dtype", "expected"),
    [
        ("complex_weights", "fp32", {"complex64", "float32"}),
        ("complex_weights", "bf16", {"complex64", "bfloat16"}),
        ("double_complex_weights", "fp32", {"complex128", "float32"}),
        ("fp8_weights", "bf16", {"float8_e4m3fn", "bfloat16"}),
        ("int8_weights", "fp32", {"int8", "float32"}),
        ("subclass_weights", "fp32", {"Subclassed"}),
        ("works_in_double", "own", {"float64"}),
    ],
)
def test_weights_that_no_conversion_is_for_stay_as_they_were_made(factory, dtype, expected):
    workload = workload_of(factory, dtype=dtype)
    with torch.no_grad():
        workload.batch(4)()  # raises if the weights were converted

    assert set(workload.parameter_bytes) == expected
    assert sum(workload.parameter_bytes.values()) > 0


def test_breaking_conversion_is_refused_with_a_working_dtype(tmp_path, ask):
    ran = ask(tmp_path, f"{FIELDS}:works_in_double", *FEW)

    assert ran.status == 3
    assert "--dtype fp32" in ran.err
    assert "--dtype own measures it as it was made" in ran.err
    assert "must have the same dtype" in ran.err or "expected m1 and m2" in ran.err


SEARCHED, NAMED = ("--max-batch", 4), ("--batch-sizes", "2,4")


@pytest.mark.parametrize(
    ("factory", "mode", "seen", "sizes"),
    [
        ("forces", "no_grad", ["measured under torch.no_grad"], SEARCHED),
        ("needs_grad", "enabled", ["measured under torch.enable_grad"], SEARCHED),
        ("needs_grad", "enabled", ["measured under torch.enable_grad"], NAMED),
        ("jacobian", "inference", [], NAMED),
    ],
)
def test_a_model_runs_in_the_strictest_grad_mode_that_it_passes_under(tmp_path, ask, *, factory, mode, seen, sizes):
    record = passed(ask, tmp_path, factory, *sizes, *QUICK)

    assert record.spec.grad_mode == mode
    assert [notice.seen for notice in record.notices if notice.kind == "grad_mode"] == seen


@pytest.mark.parametrize(
    ("factory", "by_word", "shape"),
    [
        ("graphs", True, "5x4+2x7+5"),
        ("graph_objects", True, "Held"),
        ("bytes_and_times", True, "bytes+float+int"),
        ("caches", False, "16+Cache"),
        ("generators", False, "16+Generator+Generator"),
        ("texts", False, "str"),
        ("arrays", True, "ndarray"),
        ("whole_numbers", True, "int"),
        ("jagged", True, "?x8"),
        ("strided", True, "?x?"),
        ("dataclasses_in_and_out", False, "16"),
        ("slotted_objects", True, "Slotted"),
        ("one_dict", False, "16"),
        ("one_tuple", False, "16+16"),
        ("lazy", False, "16"),
        ("lazy_in_training", False, "16"),
        ("refuses_to_move", False, "16"),
    ],
)
def test_inputs_of_any_form_run_with_counting_notice(factory, by_word, shape):
    workload = workload_of(factory)
    with torch.no_grad():
        for size in (1, 8):
            batch = workload.batch(size)
            batch(), batch()
            workload.check_samples(batch)

    assert workload.input_shape() == shape
    notices = {notice.kind: notice.seen for notice in workload.caveats()}
    assert notices.get("samples_by_word") == ("samples counted by the input function" if by_word else None)
    assert "random_sizes" not in notices


@pytest.mark.parametrize("factory", ["graph_objects", "bytes_and_times", "caches"])
def test_search_and_rows_take_inputs_that_are_no_tensors(tmp_path, ask, factory):
    record = passed(ask, tmp_path, factory, *FEW)

    assert record.edge.largest_batch == 8
    assert "random_sizes" not in kinds(record)


def test_inputs_that_do_not_grow_with_the_batch_are_refused(tmp_path, ask):
    ran = ask(tmp_path, f"{FIELDS}:graphs_that_end", "--batch-sizes", "2,32", *QUICK)

    assert ran.status == 5
    assert "its batch is of the same size at batch sizes 16 and 32" in ran.err
    assert "as many samples as it is called with" in ran.err


def test_lazy_output_is_computed_within_the_timed_step(tmp_path, ask):
    lazy = passed(ask, tmp_path, "generator", "--batch-sizes", 64, *QUICK)

    assert min(lazy.rows[0].device_ms) >= 1000 * PIECES * PIECE_S  # a call without computation takes far less
    assert lazy.rows[0].seen == ("drained",)
    assert "output_drained" in kinds(lazy)


@pytest.mark.parametrize("factory", ["mapped", "coroutine", "async_generator", "future"])
def test_lazy_outputs_of_any_kind_are_computed_within_the_step(factory):
    with torch.no_grad():
        batch = workload_of(factory).batch(64)
        batch()
        begin_s = time.perf_counter()
        batch()

    assert time.perf_counter() - begin_s >= PIECES * PIECE_S
    assert batch.seen == ("drained",)


def test_inputs_that_a_step_writes_into_are_restored_before_the_next(tmp_path, ask):
    record = passed(ask, tmp_path, "halves_its_input", *FEW)  # the model raises if it receives its own modified input

    assert all("inputs_restored" in row.seen for row in record.rows)
    assert "inputs_restored" in kinds(record)
    assert not any(row.output is not None and row.output.result == "not_finite" for row in record.rows)


@pytest.mark.parametrize("phase", ["infer", "train"])
def test_input_reshaped_by_a_step_has_its_first_shape_in_the_next(phase):
    workload = workload_of("unsqueezes_its_input", phase=phase)
    with torch.set_grad_enabled(phase == "train"):
        batch = workload.batch(4)
        for _ in range(3):
            batch()

    assert batch.shapes == ((4, 16),)


def test_containers_are_copied_before_a_step_outside_its_time(monkeypatch):
    made = []
    monkeypatch.setattr(
        batches, "copy_containers", lambda *call, **how: made.append(1) or copy_containers(*call, **how)
    )
    with torch.no_grad():
        batch = workload_of("pops_from_dict").batch(4)
        batch()
        batch.restore()
        made.clear()
        batch()
        timed = len(made)
        batch()

    assert (timed, len(made)) == (0, 1)


@pytest.mark.parametrize("phase", ["infer", "train"])
@pytest.mark.parametrize(
    ("factory", "checked"),
    [("pops_from_dict", True), ("pops_from_list", True), ("replaces_in_object", False), ("caches", False)],
)
def test_each_step_gets_containers_that_no_step_has_changed(factory, phase, *, checked):
    workload = workload_of(factory, phase=phase)
    with torch.set_grad_enabled(phase == "train"):
        batch = workload.batch(128)
        for _ in range(3):
            batch()  # raises if a step before has taken its inputs away
        assert phase == "train" or (check_output(batch, "fp32", 2).result == "right") == checked


@pytest.mark.parametrize(
    ("factory", "status", "why"),
    [
        ("inputs_that_end", 5, "its input function raised StopIteration: its data have ended"),
        ("generator_of_inputs", 2, "its inputs hold a generator, an iterator or a coroutine, which one step uses up"),
        ("inputs_by_keyword", 2, "its input function takes (size), and is called with one argument, the batch size"),
    ],
)
def test_input_function_that_cannot_serve_is_refused_in_one_line(tmp_path, ask, factory, status, why):
    ran = ask(tmp_path, f"{FIELDS}:{factory}", *FEW)

    assert ran.status == status
    assert why in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("factory", "options", "largest"),
    [
        ("unique_ids", ("--max-batch", 200), 200),
        ("unique_ids", ("--batch-sizes", "4,200"), None),
        ("sorted_sequences", ("--max-batch", 512), 300),
        ("hundred_sorted_sequences", ("--max-batch", 512), 100),
    ],
)
def test_samples_are_not_repeated_if_the_model_fails_then(tmp_path, ask, *, factory, options, largest):
    record = passed(ask, tmp_path, factory, *options, *QUICK)

    assert record.spec.fresh_inputs
    assert largest is None or record.edge.largest_batch == largest
    (notice,) = [notice for notice in record.notices if notice.kind == "fresh_inputs"]
    assert "fails if samples are repeated" in notice.cause
    assert "inputs_repeated" not in kinds(record)


@pytest.mark.parametrize(
    ("model", "cached"),
    [("remembers", True), ("remembers_a_slice", True), ("remembers_texts", True), ("forgets_a_slice", False)],
)
def test_only_a_caching_model_is_named(tmp_path, ask, model, *, cached):
    assert ("cached" in kinds(passed(ask, tmp_path, model, "--batch-sizes", "8,16", *QUICK))) == cached


def test_model_that_keeps_more_with_each_step_is_named(tmp_path, ask):
    grows = passed(ask, tmp_path / "grows", "bank_that_grows", "--batch-sizes", "8,16", *QUICK)
    drops = passed(ask, tmp_path / "drops", "bank_of_one_batch", "--batch-sizes", "8,16", *QUICK)

    assert all("grows" in row.seen for row in grows.rows)
    assert "memory_grows" in kinds(grows)
    assert "memory_grows" not in kinds(drops)


def test_a_model_that_compiles_itself_is_compiled_at_every_batch_size(tmp_path, ask):
    sizes = ",".join(map(str, range(16, 27)))  # torch gives up at the ninth shape in a process

    record = passed(ask, tmp_path, "compiles_itself", "--batch-sizes", sizes, *QUICK)  # raises if it runs uncompiled

    assert all(row.timings[0].compiled is not None for row in record.rows)
    assert "fell_back" not in kinds(record)


def test_a_model_that_torch_gives_up_compiling_is_named(tmp_path, ask):
    record = passed(ask, tmp_path, "gives_up_compiling", "--batch-sizes", 4, *QUICK)

    assert "fell_back" in record.rows[0].seen
    assert "fell_back" in kinds(record)


@pytest.mark.parametrize(
    ("factory", "options", "sizes"),
    [
        ("triplets", (), [3, 6, 12]),
        ("triplets", ("--granularity", 6), [6, 12]),
        ("fours", (), [4, 8, 12]),
        ("normalised", ("--phase", "train"), [2, 4, 8, 12]),
    ],
)
def test_batch_sizes_are_multiples_accepted_by_the_model(tmp_path, ask, factory, options, sizes):
    granularity = sizes[0]
    record = passed(ask, tmp_path, factory, *options, "--max-batch", 12, *QUICK)

    assert [row.batch_size for row in record.rows] == sizes
    assert record.spec.granularity == granularity
    advice = [notice.advice for notice in record.notices if notice.kind == "granularity"]
    assert advice == ([] if "--granularity" in options else [f"--granularity {granularity} says so beforehand"])
    assert options or record.rows[-1].output.result == "right"  # compared with batches of such sizes


def test_multiples_are_found_above_small_batches_of_any_size(tmp_path, ask):
    record = passed(ask, tmp_path, "groups_of_four", "--max-batch", 62, *QUICK)

    assert (record.spec.granularity, record.edge.largest_batch) == (4, 60)


@pytest.mark.parametrize(("factory", "size"), [("eights", 8), ("sixteen", 16), ("traced_with_eleven", 11)])
def test_model_of_one_batch_size_is_measured_at_that(tmp_path, ask, factory, size):
    record = passed(ask, tmp_path, factory, *QUICK)

    assert [row.batch_size for row in record.rows] == [size]
    assert (record.edge.largest_batch, record.edge.fails_at, record.edge.limited_by) == (size, 2 * size, "error")


def test_other_batch_sizes_of_a_model_of_one_are_refused_with_it(tmp_path, ask):
    ran = ask(tmp_path, f"{FIELDS}:eights", "--batch-sizes", "1,2", *QUICK)

    assert ran.status == 2
    assert "fails at batch 1, and runs at 8: shape '[8, 16]' is invalid" in ran.err
    assert "--batch-sizes 8 leaves the others out" in ran.err


def test_batch_sizes_that_are_no_multiples_of_the_granularity_are_refused(tmp_path, ask):
    ran = ask(tmp_path, f"{FIELDS}:triplets", "--granularity", 3, "--batch-sizes", "3,4")

    assert ran.status == 2
    assert "--batch-sizes must be multiples of --granularity 3" in ran.err


def test_breaking_layout_is_refused_alone_and_skipped_with_another(tmp_path, ask):
    both = ask(tmp_path, f"{FIELDS}:viewed", "--layout", "nchw,nhwc", "--max-batch", 2, *QUICK)
    alone = ask(tmp_path, f"{FIELDS}:viewed", "--layout", "nhwc", "--max-batch", 2, *QUICK)

    assert alone.status == 3
    assert "--layout nhwc: view size is not compatible" in alone.err
    assert "Traceback" not in alone.err
    assert "Best recipe    fp32 nchw eager" in both.out


@pytest.mark.parametrize(
    ("factory", "what"),
    [("images_channels_last", "weights and inputs are"), ("clips_channels_last", "inputs are"), ("viewed", "")],
)
def test_layout_of_the_factory_is_kept_with_a_notice(tmp_path, ask, factory, what):
    record = passed(ask, tmp_path, factory, "--batch-sizes", "4,128", *QUICK)  # raises if the layout was changed

    assert [notice.seen for notice in record.notices if notice.kind == "channels_last"] == (
        [f"{what} channels last"] if what else []
    )


def test_largest_divisor_is_found_for_model_that_takes_divisors_alone(tmp_path, ask):
    edge = passed(ask, tmp_path, "queue_of_64", *QUICK).edge

    assert (edge.largest_batch, edge.fails_at, edge.limited_by) == (64, 65, "error")


@pytest.mark.parametrize("factory", ["complex_output", "own_threads"])
def test_complex_outputs_and_those_of_threads_are_checked(tmp_path, ask, factory):
    (row,) = passed(ask, tmp_path, factory, "--batch-sizes", 32, *QUICK).rows

    assert row.output.result == "right"


def test_module_refusing_eval_is_measured_with_a_notice(tmp_path, ask):
    for phase in ("infer", "train"):
        folder = tmp_path / phase
        folder.mkdir()
        assert "eval_left_out" in kinds(passed(ask, folder, "refuses_eval", "--phase", phase, *FEW))


def test_a_model_that_fails_in_eval_mode_alone_is_refused_for_that(tmp_path, ask):
    ran = ask(tmp_path, f"{FIELDS}:only_trains", *FEW)

    assert ran.status == 2
    assert "fails in eval mode" in ran.err
    assert "call post_process() before inference" in ran.err


def test_model_error_is_shown_whole_without_frames_of_the_tool(tmp_path, ask):
    ran = ask(tmp_path, f"{FIELDS}:wrong", *FEW)

    assert ran.status == 5
    assert "ValueError: the model's own mistake" in ran.err
    assert "other_fields.py" in ran.err
    assert "/tputfind/" not in ran.err


def test_random_lengths_are_redrawn_by_each_process_and_reported(tmp_path, ask):
    record = passed(ask, tmp_path, "random_lengths", "--batch-sizes", 2, "--batches", 6, "--warmup", 1)
    again = passed(ask, tmp_path / "eager", "random_lengths", "--batch-sizes", 2, "--batches", 6, "--warmup", 1)

    assert "random_sizes" in kinds(record)
    assert record.input_shape == again.input_shape  # the generators of Python and numpy are seeded
    assert "-" in record.input_shape


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("own_loss", "the optimizer (sgd) is a stand-in: the model's own is not known"),
        ("two_networks", "the loss and the optimizer (sgd) are stand-ins: the model's own are not known"),
    ],
)
def test_training_reports_stand_in_loss_and_optimizer(tmp_path, ask, factory, expected):
    record = passed(ask, tmp_path, factory, "--phase", "train", "--batch-sizes", 4, *QUICK)

    (notice,) = [notice for notice in record.notices if notice.kind == "stand_ins"]
    assert f"{notice.seen}: {notice.cause}" == expected


@pytest.mark.parametrize("factory", ["net", "newer_switch"])
def test_settings_of_the_users_file_are_kept_or_overridden_and_recorded(tmp_path, factory):
    # Use the installed command, whose server imports the file before any thread starts.
    record = measured(tmp_path / "new", f"{SETS}:{factory}", "--batch-sizes", 4, *QUICK)

    assert [row.failure for row in record.rows] == [None]  # the model raises if a setting is wrong
    settings = {setting.name: setting.kept for setting in record.settings}
    assert settings["torch.backends.cuda.matmul.allow_tf32"] is False
    assert settings["torch.backends.cudnn.benchmark"] is True
    assert settings["torch.get_num_interop_threads()"] is True
    assert {"settings_kept", "settings_overridden"} <= kinds(record)


def test_settings_as_they_are_measured_are_not_called_overridden(tmp_path, ask):
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "torch.backends.cudnn.allow_tf32 = False\n"
        "make = lambda: (torch.nn.Linear(4, 4), lambda batch: torch.randn(batch, 4))\n"
    )
    ran = ask(tmp_path, "net.py:make", "--device", "cpu", "--batch-sizes", 4, *QUICK)

    assert ran.status == 0, ran.err
    assert "settings_overridden" not in kinds(ran.record())


def test_the_generators_of_torch_python_and_numpy_are_seeded_alike():
    def first(seed):
        workload = Workload(read_spec(f"{SETS}:seeded", {"seed": seed}), torch.device("cpu"))
        return float(workload.batch(2)()[0])

    assert first(1) == first(1)
    assert first(1) != first(2)
