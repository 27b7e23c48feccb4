"""User-written steps: their edges and times equal those of the bare loop, and invalid steps are refused."""

import itertools
import subprocess
import sys
from io import BytesIO
from statistics import median
from time import perf_counter
from typing import NamedTuple

import cloudpickle
import pytest
import torch
from models import train_contrastive, train_ema, train_gan
from support import bare
from support.command import EDGE, QUICK, run
from support.folders import MODELS
from torch import nn

import tputfind
from tputfind.errors import BadRequest
from tputfind.record.spec import own_step, read_spec
from tputfind.worker.own_step import OwnStep, _is_used_up

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")
CPU = torch.device("cpu")
SEARCH = ("--device", "cpu", *EDGE)
ONE = ("--device", "cpu", "--batch-sizes", 4, *QUICK)
MIB = 2**20

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@linux_only
@pytest.mark.parametrize(
    ("script", "limit", "granularity"),
    [("train_gan", 400, 1), ("train_ema", 136, 1), ("train_contrastive", 147, 256)],
)
def test_edge_of_a_training_script_equals_that_of_its_bare_loop(tmp_path, script, limit, granularity):
    path = f"{MODELS}/{script}.py"
    asked = (f"{path}:step", "--memory-limit", f"{limit}MiB", "--granularity", granularity, *SEARCH)
    ran = run(tmp_path, *asked, environment=bare.ENVIRONMENT)

    assert ran.status == 0, ran.err
    edge = ran.record().edge
    assert (edge.closed, edge.limited_by, edge.fails_at) == (True, "memory", edge.largest_batch + granularity)
    largest, more = bare.step_seconds(path, edge.largest_batch, edge.fails_at, limit_bytes=limit * MIB)
    assert largest is not None
    assert more is None


@pytest.mark.alone
@pytest.mark.parametrize("script", [train_gan, train_ema])
def test_step_takes_as_long_as_in_the_bare_loop(script):
    step = OwnStep(own_step(read_spec(f"{MODELS}/{script.__name__.rpartition('.')[2]}.py:step", {})), CPU)
    measured_s, loop_s = [], []
    batch = step.batch(1)
    for _ in range(2):
        batch()
    for _ in range(10):  # in turn: other work of the machine slows both
        for _ in range(4):  # the first step after a loop has to get its memory again
            start_s = perf_counter()
            batch()
            measured_s.append(perf_counter() - start_s)
        loop_s.extend(script.loop(1, 4))

    # Either scatters by 15 % now and then; a step that does more work than the loop raises both.
    ratios = [of(measured_s) / of(loop_s) for of in (min, median)]
    assert any(ratio == pytest.approx(1, rel=0.15) for ratio in ratios), ratios


def test_record_of_step_has_phase_step_and_counts_all_samples(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/train_ema.py:step", *ONE)

    assert ran.status == 0, ran.err
    record = ran.record("*-own-step-*")
    (row,) = record.rows
    assert (record.spec.phase, record.spec.dtype, record.spec.grad_mode) == ("step", "own", "enabled")
    assert "own nchw step" not in ran.out
    assert row.samples == 4 * train_ema.TIMES
    assert row.samples_per_s == pytest.approx(16 * len(row.device_ms) * 1000 / sum(row.device_ms))
    assert row.output.result == "loss"
    assert record.parameters == sum(weight.numel() for weight in train_ema.Trainer(CPU).model.parameters())
    assert "samples_per_step" in [notice.kind for notice in record.notices]


@pytest.mark.parametrize(("factory", "keeps"), [("infers", True), ("trains_by_hand", False)])
def test_step_whose_output_awaits_a_backward_pass_is_named(tmp_path, ask, factory, keeps):
    ran = ask(tmp_path, f"{MODELS}/steps.py:{factory}", *ONE)

    assert ran.status == 0, ran.err
    assert ("keeps_graph" in [notice.kind for notice in ran.record().notices]) == keeps


def test_lazy_layers_of_a_step_are_counted_once_they_have_weights(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/steps.py:measures_lazy_layers", *ONE)

    assert ran.status == 0, ran.err
    assert ran.record().parameters == 8 * 16 + 16 + 16 * 4 + 4


def test_rows_a_sample_of_the_first_batches_are_no_rule_for_larger_ones(tmp_path, ask):
    ran = ask(
        tmp_path,
        f"{MODELS}/steps.py:first_graphs_are_of_one_size",
        "--batch-sizes",
        "3,8,64",
        "--device",
        "cpu",
        *QUICK,
    )

    assert ran.status == 0, ran.err


def test_read_files_and_loaders_that_begin_again_are_not_used_up():
    file, loader = BytesIO(b"1"), Loader()
    read = file.read(), list(loader)

    assert read == (b"1", [0, 1])
    assert not any(map(_is_used_up, (file, loader)))
    assert _is_used_up(iter([]))


class Loader:
    """Begins again when it is iterated."""

    def __iter__(self):
        self.left = iter(range(2))
        return self

    def __next__(self):
        return next(self.left)


def test_step_of_a_file_that_turns_autograd_off_runs_without_it(tmp_path, ask):
    path = tmp_path / "infers.py"
    path.write_text(
        "import torch\ntorch.set_grad_enabled(False)\n\n"
        "def step(batch_size):\n"
        "    layer, x = torch.nn.Linear(8, 8), torch.randn(batch_size, 8)\n\n"
        "    def run():\n"
        "        assert not torch.is_grad_enabled()\n"
        "        return layer(x)\n\n"
        "    return run\n"
    )
    ran = ask(tmp_path, f"{path}:step", *ONE)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert [row.status for row in record.rows] == ["ok"]
    assert "keeps_graph" not in [notice.kind for notice in record.notices]


def test_optimizer_skipped_by_scaler_has_stepped_after_first_step():
    step = OwnStep(own_step(read_spec(f"{MODELS}/train_ema.py:step", {})), CPU)

    assert not step._step.optimizers[0].state
    step.batch(1)()
    assert step._step.optimizers[0].state


def test_step_that_changes_its_batch_gets_it_whole_until_its_optimizer_has_stepped():
    step = OwnStep(own_step(read_spec(f"{MODELS}/steps.py:pops_labels", {})), CPU)

    step.batch(4)()

    assert step._step.optimizers[0].state


class Output(NamedTuple):
    scores: torch.Tensor
    loss_of_critic: torch.Tensor


@pytest.mark.parametrize(
    ("wrap", "counts"),
    [
        (lambda loss: loss, True),
        (lambda loss: loss.item(), True),
        (lambda loss: {"scores": torch.full((2,), torch.nan), "train/Loss": loss, "norm": torch.inf}, True),
        (lambda loss: (loss, torch.inf), True),
        (lambda loss: Output(torch.full((2,), torch.nan), loss), True),
        (lambda loss: iter([{"loss": loss.item()}]), True),
        (lambda _: {"norm": torch.nan}, False),
        (lambda _: 3, False),
        (lambda _: None, False),
    ],
)
def test_loss_in_any_output_of_a_step_is_checked(wrap, counts):
    for scale, result in ((1.0, "loss"), (torch.nan, "not_finite")):
        made = tputfind.Step(lambda batch, scale=scale: wrap((batch * scale).mean()), lambda size: torch.randn(size, 8))
        step = OwnStep(own_step(read_spec(f"{MODELS}/steps.py:pair", {})), CPU, made=made)

        check = step.check_training(step.batch(4))
        assert (check and check.result) == (result if counts else None)


def test_unnamed_optimizers_are_found_and_step_before_measuring():
    step = OwnStep(own_step(read_spec(f"{MODELS}/steps.py:finds_its_optimizers", {})), CPU)
    adam = next(each for each in step._optimizers if isinstance(each, torch.optim.Adam))

    assert step.parameters == 72 + 27
    assert not adam.state
    step.batch(2)()
    assert len(adam.state) == 2


@pytest.mark.parametrize(("every", "has_stepped"), [(64, True), (1000, False)])
def test_rare_step_of_an_unnamed_optimizer_is_awaited_or_named(every, has_stepped):
    layer = nn.Linear(8, 8)
    adam, taken = torch.optim.Adam(layer.parameters()), itertools.count(1)

    def run(batch):
        layer(batch).square().mean().backward()
        if next(taken) % every == 0:
            adam.step()
            adam.zero_grad()

    made = tputfind.Step(run, lambda size: torch.randn(size, 8))
    step = OwnStep(own_step(read_spec(f"{MODELS}/steps.py:pair", {})), CPU, made=made)
    step.try_out()

    assert bool(adam.state) == has_stepped
    assert ("idle_optimizer" in [notice.kind for notice in step.caveats()]) != has_stepped


def test_optimizer_of_another_library_takes_part_as_it_is():
    class Own:
        def __init__(self, weights):
            self.param_groups = [{"params": list(weights)}]

        def step(self):
            for weight in self.param_groups[0]["params"]:
                weight.data.sub_(1e-3 * weight.grad)

    layer = nn.Linear(8, 8)
    own = Own(layer.parameters())

    def run(batch):
        layer(batch).square().mean().backward()
        own.step()

    made = tputfind.Step(run, lambda size: torch.randn(size, 8), optimizers=own)
    step = OwnStep(own_step(read_spec(f"{MODELS}/steps.py:pair", {})), CPU, made=made)
    step.batch(2)()

    assert (step._number, step.parameters) == (1, 72)


@pytest.mark.parametrize("name", ["sharpness_aware", "delegating"])
def test_optimizer_that_wraps_another_steps_by_that(name):
    step = OwnStep(own_step(read_spec(f"{MODELS}/steps.py:{name}", {})), CPU)

    step.batch(2)()

    assert step._number == 1


@pytest.mark.parametrize(("name", "repeats"), [("converges", True), ("converges_by_size", True), ("delegating", False)])
def test_optimizer_that_evaluates_the_loss_itself_has_a_notice(name, repeats):
    step = OwnStep(own_step(read_spec(f"{MODELS}/steps.py:{name}", {})), CPU)
    step.try_out()

    assert ("closure" in [notice.kind for notice in step.caveats()]) == repeats


def test_optimizer_in_a_batch_keeps_its_state():
    layer = nn.Linear(8, 8)
    adam = torch.optim.Adam(layer.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(adam, 1)

    def run(batch):
        module, optimizer, scheduler, x = batch
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()
        scheduler.step()

    made = tputfind.Step(run, lambda size: (layer, adam, schedule, torch.randn(size, 8)), optimizers=adam)
    batch = OwnStep(own_step(read_spec(f"{MODELS}/steps.py:pair", {})), CPU, made=made).batch(4)
    batch()
    before = schedule.last_epoch
    batch()

    assert len(adam.state) == 2
    assert schedule.last_epoch == before + 1
    assert "inputs_written" not in batch.seen


def test_optimizer_of_a_step_maker_has_stepped_after_its_first_step():
    step = OwnStep(own_step(read_spec(f"{MODELS}/steps.py:maker_that_skips", {})), CPU)

    for size in (2, 4):
        batch = step.batch(size)
        made = next(iter(each for each in step._idle.values() if isinstance(each, torch.optim.Adam)))
        batch()
        assert len(made.state) == 2
        del batch, made


def test_step_maker_is_called_for_every_batch_size(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/train_contrastive.py:step", "--device", "cpu", "--batch-sizes", "4,8", *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert [row.batch_size for row in record.rows if row.status == "ok"] == [4, 8]
    assert record.input_shape == ""
    assert "samples_by_word" in [notice.kind for notice in record.notices]


@pytest.mark.parametrize(
    ("make_batch", "samples", "seen"),
    [
        (lambda size: [(torch.ones(size, 9), torch.ones(size))] * 4, 1, "a batch of size 2 holds 8 samples in 4 parts"),
        (lambda size: tuple({"ids": torch.ones(size, 9)} for _ in range(3)), 1, "holds 6 samples in 3 parts"),
        (lambda size: [(torch.ones(size, 9), torch.ones(size))] * 4, 4, "samples/s count 8 samples a step"),
        (lambda size: [(torch.ones(size, 9), torch.ones(size))], 1, ""),
        (lambda size: (torch.ones(size, 9), torch.ones(size)), 1, ""),
        (lambda size: ((torch.ones(size, 9), torch.ones(size)), torch.ones(size)), 1, ""),
    ],
)
def test_micro_batches_without_samples_have_a_notice(make_batch, samples, seen):
    made = tputfind.Step(lambda batch: None, make_batch, samples=samples)
    spec = own_step(read_spec(f"{MODELS}/steps.py:pair", {"batch_sizes": "2,4"}))
    notices = list(OwnStep(spec, CPU, made=made).caveats())

    assert len(notices) == bool(seen)
    assert all(seen in notice.seen for notice in notices)


def test_loader_as_batch_counts_samples_given_by_its_step(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/steps.py:loader_with_samples", *ONE)

    assert ran.status == 0, ran.err
    assert [row.samples for row in ran.record().rows] == [64]


def test_task_of_own_event_loop_runs_in_that_loop(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/steps.py:task_of_its_own_loop", *ONE)

    assert ran.status == 0, ran.err
    assert [row.status for row in ran.record().rows] == ["ok"]


def test_step_cut_short_is_resumed_and_compared(tmp_path, ask):
    asked = (f"{MODELS}/steps.py:pair", "--device", "cpu", *QUICK)
    whole = ask(tmp_path, *asked, "--batch-sizes", "1,2")
    (path,) = (tmp_path / "results").glob("*.json")
    cut = path.with_name("cut.json")
    cut.write_bytes(path.read_bytes().replace(whole.record().finished.encode(), b"NEVER", 1))
    cut.write_text(cut.read_text().replace('"finished": "NEVER"', '"finished": null'))

    resumed = ask(tmp_path, *asked, "--batch-sizes", "1,2", "--resume", cut)
    compared = ask(tmp_path, "compare", path, cut)
    other = ask(tmp_path, *asked, "--batch-sizes", "1,2", "--dtype", "bf16", "--resume", path)

    assert resumed.status == 0, resumed.err
    assert compared.status in (0, 1), compared.err
    assert other.status == 2


REFUSED = [
    ("steps.py:pair", ("--dtype", "fp32", "--layout", "nchw"), 2, "leave --dtype, --layout out"),
    ("steps.py:nothing", (), 2, "called with batch size 4 returned nothing"),
    ("steps.py:text", (), 2, "called with batch size 4 returned str, which cannot be called"),
    ("steps.py:width", (), 2, "takes arguments (width): name a function without arguments that returns width(...)"),
    ("steps.py:coroutine", (), 2, "is a coroutine function, which returns no step"),
    ("steps.py:runs_a_coroutine", (), 2, "a step returned a coroutine, and ran nothing"),
    ("steps.py:never_reads", (), 2, "since it has one parameter, and never reads its batch size"),
    ("steps.py:same_batch", (), 5, "its batch is of the same size at batch sizes 4 and 8"),
    ("steps.py:data_set_that_ends", ("--batch-sizes", "4,16"), 5, "its batch holds 9 samples at batch size 16"),
    ("steps.py:run_is_text", (), 2, "tputfind.Step: run is a str, not a function of a batch"),
    ("steps.py:half_samples", (), 2, "samples(4) returned 2.0, not a whole number from 1"),
    ("steps.py:step_takes_a_batch", (), 2, "called with batch size 4 returned a function that takes (y)"),
    ("steps.py:size_has_a_default", (), 2, "if it makes a step, give it the batch size as an argument without a def"),
    ("steps.py:kills_itself", (), 5, "cannot be built: killed by SIGKILL (build it by itself to see why)"),
    ("steps.py:batch_is_a_loader", (), 2, "returned a DataLoader, of which a step may take one batch or all"),
    ("steps.py:uses_up_a_generator", (), 2, "a step uses up the generator in its batch, which is empty in the next"),
    ("steps.py:uses_up_a_slice", (), 2, "a step uses up the islice in its batch, which is empty in the next"),
    ("steps.py:takes_args", (), 2, "takes_args(args) is called with a batch size, as one argument makes steps"),
    ("steps.py:takes_args", ("--input-size", "8"), 2, "a factory of a model takes no arguments"),
    ("steps.py:never_steps", (), 2, "SGD did not step in 100 steps"),
    ("steps.py:data_end", (), 5, "its training ended at step 5, by StopIteration"),
    ("steps.py:training_exits", (), 5, "its training ended at step 4, by SystemExit"),
    ("steps.py:HELD", (), 2, "is a step that was made as"),
    ("steps.py:fails", (), 5, "mat1 and mat2 shapes cannot be multiplied"),
    ("imports_a_model.py:step", (), 2, "makes 16 MiB of tensors as it is imported, which would not count"),
]


@pytest.mark.parametrize(
    ("name", "more", "status", "told"), REFUSED, ids=[case[0] + "".join(case[1]) for case in REFUSED]
)
def test_invalid_step_is_refused_in_one_line(tmp_path, ask, *, name, more, status, told):
    ran = ask(tmp_path, f"{MODELS}/{name}", *ONE, *more)

    assert ran.status == status, ran.err
    assert told in " ".join(ran.err.split())
    assert ("Traceback" in ran.err) == (name == "steps.py:fails")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dtype": "fp16"}, "is a step of its own, which is run as it is: leave --dtype out"),
        ({"layout": "nhwc", "phase": "train"}, "leave --layout, --phase out"),
        ({"input_size": "3x8x8"}, "leave --input-size out"),
        ({"mode": "compile"}, "leave --mode out"),
    ],
)
def test_options_of_a_model_are_refused_for_a_step(options, told):
    with pytest.raises(BadRequest, match=told):
        own_step(read_spec("train.py:step", options))


async def coroutine(size):
    return torch.randn(size, 8)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"modules": ["net"]}, "modules holds a str, not a torch.nn.Module"),
        ({"samples": 0}, "samples is 0"),
        ({"run": lambda x, y: x @ y}, "run takes (x, y), and is called with one argument, a batch"),
        ({"make_batch": lambda: torch.ones(4)}, "make_batch takes no argument, and is called with one argument"),
        ({"make_batch": coroutine}, "make_batch is a coroutine function"),
    ],
)
def test_step_of_a_wrong_part_is_refused(part, told):
    with pytest.raises(BadRequest) as refusal:
        tputfind.Step(**{"run": torch.sum, "make_batch": torch.ones} | part)

    assert f"tputfind.Step: {told}" in refusal.value.message


def test_step_ignoring_its_batch_size_is_refused(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/steps.py:ignores", "--device", "cpu", *QUICK)

    assert ran.status == 2
    assert "takes neither more time nor more memory than 1" in " ".join(ran.err.split())


QUICKLY = {"device": "cpu", "batches": 10, "warmup": 1, "processes": 1, "batch_sizes": [1, 8]}


def live_maker(batch_size):
    x, layer = torch.randn(batch_size, 8), nn.Linear(8, 8)
    return lambda: layer(x).sum().backward()


def live_factory():
    layer = nn.Linear(8, 8)
    return tputfind.Step(lambda batch: layer(batch).sum(), lambda size: torch.randn(size, 8), modules=layer)


@pytest.mark.parametrize("given", [{"model": live_maker}, {"step": live_factory}], ids=["maker as a model", "factory"])
def test_find_takes_the_step_of_a_script(given, kept):
    record = kept.find(**given, **QUICKLY)

    assert [row.status for row in record.rows] == ["ok", "ok"]
    assert (record.spec.phase, record.spec.dtype) == ("step", "own")
    assert record.spec.model.endswith(" (live)")


def test_find_takes_a_live_step_with_its_weights(kept):
    layer = nn.Linear(8, 8)
    known = layer.weight.sum().item()

    def train(batch):
        assert layer.weight.sum().item() == known
        return layer(batch).square().mean()

    record = kept.find(step=tputfind.Step(train, lambda size: torch.randn(size, 8), modules=[layer]), **QUICKLY)

    assert [row.status for row in record.rows] == ["ok", "ok"]
    assert record.input_shape == "8"
    assert record.parameters == 72


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "give a model or a step"),
        ({"model": "resnet18", "step": live_maker}, "give a model or a step, not both"),
        ({"step": "train.py:step"}, "hand it over as the model"),
        ({"step": live_maker, "dtype": "fp16"}, "leave --dtype out"),
        ({"step": live_maker, "dtype": "fp32"}, "leave --dtype out"),
        ({"step": live_maker, "inputs": torch.zeros, "device": "cpu"}, "leave inputs out"),
    ],
    ids=["nothing", "both", "a name", "a dtype", "the default dtype", "inputs"],
)
def test_find_refuses_a_step_with_incompatible_arguments(given, told):
    with pytest.raises(BadRequest, match=told):
        tputfind.find(**given)


def test_context_has_the_device_outside_a_measurement():
    assert tputfind.context().device.type in ("cpu", "cuda")


def test_context_has_a_torch_device_before_torch_is_imported():
    program = "import sys, tputfind; print('torch' in sys.modules, repr(tputfind.context().device))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout.startswith("False device(type=")


def test_training_scripts_run_by_themselves():
    assert all(len(script.loop(1, 1)) == 1 for script in (train_gan, train_ema, train_contrastive))
