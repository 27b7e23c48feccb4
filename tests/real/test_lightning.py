"""A LightningModule trains by its own step and optimizers, like its bare loop."""

import sys
from importlib.util import find_spec
from time import perf_counter

import cloudpickle
import pytest
import torch
from support import bare
from support.command import EDGE, QUICK, run
from support.folders import MODELS

from tputfind.errors import BadRequest
from tputfind.record.spec import read_spec
from tputfind.worker.lightning import optimizers_of
from tputfind.worker.models import slow_imports
from tputfind.worker.models.lightning import drawn_like
from tputfind.worker.workload import Workload

FILE = f"{MODELS}/lit.py"
CPU = torch.device("cpu")
TRAIN = ("--phase", "train", "--device", "cpu", *QUICK)
ONE = ("--batch-sizes", 4, *TRAIN)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")


@pytest.fixture(scope="module")
def lit():
    """Return the modules; their import of lightning takes seconds, which a collection of the tests would take too."""
    from models import lit

    cloudpickle.register_pickle_by_value(lit)
    return lit


def workload(name, **asked):
    return Workload(read_spec(f"{FILE}:{name}", {"phase": "train", **asked}), CPU)


@linux_only
@pytest.mark.parametrize(("name", "limit"), [("wide", 100), pytest.param("gan", 150, marks=pytest.mark.slow)])
def test_largest_batch_of_a_module_is_that_of_its_bare_loop(tmp_path, name, limit):
    asked = (f"{FILE}:{name}", "--memory-limit", f"{limit}MiB", "--phase", "train", "--device", "cpu", *EDGE)
    ran = run(tmp_path, *asked, environment=bare.ENVIRONMENT)

    assert ran.status == 0, ran.err
    largest, where = ran.record().edge.largest_batch, ("cpu", name)
    fits, more = bare.step_seconds(FILE, largest, largest + 1, limit_bytes=limit * 2**20, where=where)
    assert fits is not None
    assert more is None


@pytest.mark.alone
@pytest.mark.parametrize("name", ["wide", "gan"])
def test_step_of_a_module_takes_as_long_as_in_its_bare_loop(lit, name):
    measured, loop_s = [], []
    with torch.enable_grad():
        batch = workload(name).batch(4)
        for _ in range(6):  # alternate, and take the fastest of each, since the machine has other work
            batch()
            for _ in range(2):
                start_s = perf_counter()
                batch()
                measured.append(perf_counter() - start_s)
            loop_s += lit.loop(4, 5, name=name)[2:]

    assert min(measured) == pytest.approx(min(loop_s), rel=0.3)


def test_lightning_module_computes_like_its_bare_loop(lit):
    torch.manual_seed(3)
    trained = workload("classifier", seed=3)
    inner = trained._module.inner
    with torch.enable_grad():
        batch = trained.batch(8)
        twin = lit.Classifier()
        twin.load_state_dict(inner.state_dict())
        plain = lit._loop_of_classifier(twin, batch._inputs[0][0])
        losses = [float(batch()) for _ in range(3)]
        expected = [float(next(plain)) for _ in range(3)]

    assert losses == expected
    assert all(map(torch.equal, inner.parameters(), twin.parameters()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "times", "dtype", "precision"),
    [
        ("Records", 1, "fp32", "32-true"),
        ("Records", 2, "amp-bf16", "bf16-mixed"),
        ("RecordsManually", 1, "amp-bf16", "bf16-mixed"),
    ],
)
def test_hooks_of_each_batch_are_called_as_by_a_trainer(lit, name, times, dtype, precision):
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    quiet |= {"accelerator": "cpu", "max_steps": 3}
    trainer = lit.lightning.Trainer(accumulate_grad_batches=times, precision=precision, **quiet)
    trainer.fit(expected := getattr(lit, name)())
    trained = workload(name, accumulate=times, dtype=dtype)
    with torch.enable_grad():
        batch = trained.batch(4)
        for _ in range(2 if trained._training.settles else 3):  # one step then came before
            batch()

    calls = trained._module.inner.calls
    assert [one for one in calls if one[0] == "after"] == [one for one in expected.calls if one[0] == "after"]
    assert [one for one in calls if one[0] != "after"] == [one for one in expected.calls if one[0] != "after"]


@pytest.mark.parametrize("form", ["one", "list", "lists", "dict", "dicts", "scheduler in a dict"])
def test_every_documented_form_of_configure_optimizers_gives_its_optimizer(lit, form):
    module = lit.Classifier(form)
    module.trainer = type("Trainer", (), {"estimated_stepping_batches": 10})()

    optimizers, schedulers = optimizers_of(module.configure_optimizers(), "m")

    assert [type(each) for each in optimizers] == [torch.optim.AdamW]
    assert len(schedulers) == (("dict" in form and form != "dicts") or form == "lists")


def test_both_optimizers_of_a_manual_module_have_state_before_anything_is_measured():
    trained = workload("gan")
    with torch.enable_grad():
        batch = trained.batch(2)

    assert [len(each.state) for each in trained._training.optimizers] == [4, 4]
    assert all(weight.requires_grad for weight in trained._module.parameters())
    assert trained.check_training(batch) is None


def test_manual_module_with_lazy_layer_has_weights_and_no_gradients_at_first():
    trained = workload("lazy_gan")
    weights = list(trained._module.parameters())
    gradients = [weight.grad for weight in weights]
    with torch.enable_grad():
        trained.batch(2)

    assert weights[0].shape == (16, 16)
    assert gradients == [None] * 10
    assert [len(each.state) for each in trained._training.optimizers] == [6, 4]
    assert trained._module.inner.generator.training


@pytest.mark.parametrize("dtype", ["fp32", "amp-fp16"])
def test_check_of_a_module_that_skips_batches_finds_no_loss_or_a_finite_one(dtype):
    trained = workload("skips", dtype=dtype)
    with torch.enable_grad():
        batch = trained.batch(2)
        checks = [trained.check_training(batch) for _ in range(4)]

    assert {check and check.result for check in checks} == {None, "loss"}


def test_samples_of_an_iterable_data_set_with_a_length_are_found():
    trained = workload("with_stream")
    with torch.enable_grad():
        assert trained.check_training(trained.batch(4)).result == "loss"


@pytest.mark.parametrize("name", ["prepares", "prepares_made"])
def test_data_hooks_run_and_each_part_keeps_its_own_mode(name):
    trained = workload(name)
    with torch.enable_grad():
        assert trained.check_training(trained.batch(4)).result == "loss"


@pytest.mark.parametrize("name", ["gathers", "parent"])
def test_module_on_one_device_logs_and_gathers_also_in_its_layers(name):
    trained = workload(name)
    with torch.enable_grad():
        assert trained.check_training(trained.batch(2)).result == "loss"


@pytest.mark.parametrize(
    "more",
    [
        ("--accumulate", 2, "--clip", 1),
        ("--dtype", "amp-fp16"),
        ("--mode", "compile:aot_eager"),
    ],
    ids=["accumulate", "fp16", "compile"],
)
def test_module_trains_as_options_ask(tmp_path, ask, more):
    ran = ask(tmp_path, f"{FILE}:classifier", *more, *ONE)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert [row.output.result for row in record.rows] == ["loss"]
    assert "own_optimizers" in record.rows[0].seen
    assert "stand_ins" not in [notice.kind for notice in record.notices]


def test_module_that_begins_by_hooks_and_logs_to_an_experiment_trains():
    workload = Workload(read_spec(f"{MODELS}/lit.py:begins", {"phase": "train"}), CPU)
    module = workload._module.inner
    with torch.enable_grad():
        loss = workload.batch(4)()

    assert module.order == ["fit", "train", "epoch"]
    assert workload.parameters == sum(weight.numel() for weight in module.layers.parameters())
    assert bool(torch.isfinite(loss))
    assert not torch.equal(module.average[0].weight, module.layers[0].weight)


@pytest.mark.usefixtures("lit")
def test_lightning_is_imported_once_for_all_processes():
    assert "lightning" in slow_imports()  # this process has imported it, as an inspecting one does


def test_find_trains_a_live_module(kept, lit):
    quick = {"device": "cpu", "batches": 5, "warmup": 1, "processes": 1, "batch_sizes": [4]}

    trained = kept.find(lit.Classifier(), inputs=lit.pair_of, phase="train", **quick)

    assert [row.status for row in trained.rows] == ["ok"]
    assert trained.input_shape == "32+1"


def test_forecast_of_a_module_names_its_own_optimizers(tmp_path, ask):
    asked = ("--phase", "train", "--memory", "1GiB", "--on-fake", "--save", "cards.csv")
    ran = ask(tmp_path, "forecast", f"{FILE}:classifier", *asked)

    assert ran.status == 0, ran.err
    assert "train own optimizers fp32 nchw: forecast, not measured" in " ".join(ran.out.split())
    assert "own optimizers" in (tmp_path / "cards.csv").read_text()


def test_module_that_slices_its_example_is_trained():
    trained = workload("next_token")
    trained.try_out()
    with torch.enable_grad():
        assert trained.check_training(trained.batch(2)).result == "loss"


@pytest.mark.parametrize(
    ("example", "dtype", "below"),
    [
        (torch.zeros(2, 3, dtype=torch.complex64), torch.complex64, None),
        (torch.zeros(2, 3, dtype=torch.float64), None, None),
        (torch.full((2, 3), 7), torch.int64, 8),
        (torch.zeros(0, 3, dtype=torch.int64), torch.int64, 2),
        (torch.ones(2, 3, dtype=torch.bool), torch.bool, 2),
    ],
)
def test_batch_is_drawn_like_an_example_of_any_dtype(example, dtype, below):
    drawn = drawn_like(example)

    assert (drawn.sample_shape, drawn.dtype) == ((3,), dtype)
    assert below in (None, drawn.below)


@pytest.mark.parametrize(
    ("name", "asked", "shape"),
    [
        ("gan", {}, "2048x16+2048x128"),
        ("encoder", {}, "24"),
        ("with_data", {}, "32+1"),
        ("alone", {"input": [":float:Bx32", ":int64:B:10"]}, "32+1"),
        ("takes_apart", {"phase": "infer"}, "32"),
    ],
)
def test_lightning_batch_is_found_at_its_owner(name, asked, shape):
    trained = workload(name, **asked)
    with torch.set_grad_enabled("phase" not in asked):
        trained.batch(4)()

    assert trained.input_shape() == shape


def test_module_knows_the_dtype_that_it_is_converted_to():
    with torch.inference_mode():
        output = workload("typed", phase="infer", dtype="bf16").batch(2)()

    assert output.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("alone", (), "does not say what batch its training_step takes (return (module, batch size -> batch)"),
        ("takes_apart", (), "its training_step takes a batch apart, and example_input_array is a single tensor"),
        ("loads_batches", (), "the data of its train_dataloader are whole batches of a fixed size"),
        ("no_optimizer", (), "configure_optimizers returned nothing (return an optimizer"),
        ("text_as_optimizer", (), "configure_optimizers returned str, not an optimizer"),
        ("two_optimizers", (), "has 2 optimizers, and optimizes automatically (set self.automatic_optimization"),
        ("classifier", ("--optimizer", "sgd"), "has its own, from configure_optimizers"),
        ("classifier", ("--grad-checkpoint",), "--grad-checkpoint: "),
        ("gan", ("--accumulate", 2), "optimizes manually, and does so itself in training_step"),
    ],
)
def test_module_that_cannot_be_trained_is_refused_in_one_line(tmp_path, ask, name, more, told):
    ask(tmp_path, f"{FILE}:{name}", "--quiet", *more, *ONE).check_refused(2, told)


def test_lightning_module_with_described_batch_is_refused():
    with pytest.raises(BadRequest, match="makes its own inputs"):
        workload("classifier", input_size="3")
