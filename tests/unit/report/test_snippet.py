"""The Python lines of a snippet run a model as it was measured."""

import pytest
from msgspec.structs import replace
from support.records import CPU_CAN, example

from tputfind.record.record import Notice
from tputfind.report import snippet


def lines_of(parameters=None, seen=(), **fields):
    record = example()
    rows = tuple(replace(row, parameter_bytes=parameters or {}, seen=seen) for row in record.rows)
    record = replace(record, spec=replace(record.spec, **fields), rows=rows)
    return "\n".join(snippet.lines(record, 4))


@pytest.mark.parametrize(("model", "loss"), [("net.py:make", "..."), ("hf:bert-base-uncased", "y.loss")])
def test_snippet_of_a_model_with_a_loss_takes_that_loss(model, loss):
    text = lines_of(model=model, phase="train", dtype="bf16")

    assert f"loss = {loss}  # the loss that the model returns\nloss.backward()" in text
    assert "cross_entropy" not in text


def test_snippet_of_a_lightning_module_trains_by_its_own_optimizers():
    text = lines_of(seen=("own_optimizers",), phase="train", dtype="amp-bf16", accumulate=4, clip=0.5)

    asked = 'accelerator="cuda", precision="bf16-mixed", accumulate_grad_batches=4, gradient_clip_val=0.5, devices=1'
    assert text.endswith(f"import lightning\nlightning.Trainer({asked}).fit(model, [x])")
    assert "torch.optim" not in text


@pytest.mark.parametrize(("dtype", "tf32"), [("fp32", False), ("tf32", True)])
def test_snippet_of_fp32_on_cuda_sets_the_arithmetic(dtype, tf32):
    assert f"torch.backends.cudnn.allow_tf32 = {tf32}\n" in lines_of(dtype=dtype)
    assert "allow_tf32" not in lines_of(dtype="bf16")


def test_snippet_of_a_model_of_volumes_has_its_own_channels_last():
    record = replace(example(), input_shape="3x16x112x112", spec=replace(example().spec, layout="nhwc"))

    text = "\n".join(snippet.lines(record, 4))
    assert text.count("torch.channels_last_3d") == 2


def test_snippet_leaves_several_inputs_to_the_reader():
    pair = replace(example(), input_shape="3x256x256+3x256x256")
    pair = replace(pair, spec=replace(pair.spec, model="raft_large", input_size=(3, 256, 256)))

    assert "x = ...  # 4 samples of 3x224x224" in lines_of(seen=("several_inputs",))
    assert "x = ...  # 4 samples of 3x256x256+3x256x256" in "\n".join(snippet.lines(pair, 4))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_snippet_sums_gradients_of_several_devices_once_a_step(kind):
    text = lines_of(phase="train", dtype="bf16", parallel=kind, gpus=2, accumulate=4)

    assert 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\nmodel = model.to("cuda"' in text
    how = {"ddp": "under model.no_sync()", "fsdp": "after model.set_requires_gradient_sync(False)"}[kind]
    assert f"for x in batches:  # 4 of them, all but the last {how}\n" in text


@pytest.mark.parametrize(
    ("asked", "strategy"),
    [
        ({"parallel": "ddp"}, "ddp"),
        ({"parallel": "ddp", "find_unused_parameters": True}, "ddp_find_unused_parameters_true"),
        ({"parallel": "fsdp"}, "fsdp"),
    ],
)
def test_snippet_leaves_ranks_of_a_lightning_module_to_its_trainer(asked, strategy):
    text = lines_of(seen=("own_optimizers",), phase="train", dtype="bf16", gpus=2, **asked)

    assert f'lightning.Trainer(accelerator="cuda", devices=2, strategy="{strategy}").fit(model, [x])' in text
    assert "DistributedDataParallel" not in text
    assert "fully_shard" not in text


def test_snippet_of_a_module_that_refused_eval_leaves_it_in_its_mode():
    record = replace(example(), spec=replace(example().spec, model="net.pt2"))
    left_out = Notice(kind="eval_left_out", seen="", cause="", advice="")

    assert "model.eval()" in snippet.lines(record, 4)
    assert "model.eval()" not in snippet.lines(replace(record, caveats=(left_out,)), 4)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"grad_mode": "inference"}, "with torch.inference_mode():"),
        ({"grad_mode": "no_grad"}, "with torch.no_grad():"),
        ({"grad_mode": "enabled"}, "with torch.enable_grad():"),
        ({"mode": "compile:max-autotune"}, 'torch.compile(model, dynamic=False, mode="max-autotune")'),
        ({"mode": "compile:openvino"}, 'torch.compile(model, dynamic=False, backend="openvino")'),
        ({"dtype": "own"}, 'model = model.to("cuda")\n'),
        ({"parameters": {"float16": 8}, "dtype": "fp16"}, 'model = model.to("cuda", torch.float16)'),
        (
            {"parameters": {"complex64": 8, "float16": 8}, "dtype": "fp16"},
            'model = model.to("cuda")  # and its real floating-point parameters to torch.float16',
        ),
        ({"seen": ()}, "    y = model(x)"),
        ({"seen": ("several_inputs",)}, "    y = model(*x)"),
        ({"seen": ("named_inputs",)}, "    y = model(**x)"),
        (
            {"seen": ("loss_stand_in",), "phase": "train"},
            "cross_entropy(y.float(), torch.arange(len(y), device=y.device) % y.shape[1])  # labels in turn",
        ),
        (
            {"seen": ("loss_stand_in",), "phase": "train", "accumulate": 4},
            "for x in batches:  # 4 of them\n    with torch",
        ),
        (
            {"seen": ("loss_stand_in",), "phase": "train", "accumulate": 4},
            "% y.shape[1]) / 4  # labels in turn, as measured\n    loss.backward()\noptimizer.step()",
        ),
        ({"model": "vit_b_16", "image_size": 384}, 'get_model("vit_b_16", image_size=224).eval()'),
        ({"model": "maxvit_t", "image_size": 384}, 'get_model("maxvit_t", input_size=(224, 224)).eval()'),
        ({"model": "resnet50", "image_size": 384}, 'get_model("resnet50", weights="DEFAULT").eval()'),
        ({"model": "resnet50", "weights": "IMAGENET1K_V1"}, 'get_model("resnet50", weights="IMAGENET1K_V1").eval()'),
        ({"model": "resnet50", "weights": "state.pt"}, 'weights="DEFAULT").eval()\nstate = torch.load("state.pt", '),
        ({"model": "resnet50", "weights": "a.safetensors"}, 'model.load_state_dict(load_file("a.safetensors"))'),
        ({"model": "vit_b_16", "weights": "DEFAULT", "image_size": 224}, 'get_model("vit_b_16", weights="DEFAULT")'),
        ({"model": "quantized_resnet18"}, 'weights="DEFAULT", quantize=True).eval()'),
        (
            {"model": "timm:vit_tiny", "image_size": 384},
            "img_size=(224, 224)).eval()  # without img_size if it takes none",
        ),
        ({"model": "timm:vit_tiny", "weights": "state.pt"}, 'pretrained=False).eval()\nstate = torch.load("state.pt"'),
        (
            {"model": "timm:vit_tiny", "input_size": (3, 9, 9)},
            "pretrained=True, in_chans=3, img_size=(224, 224)).eval()",
        ),
        ({"allocator": "expandable"}, "# started with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ({"instances": 4}, "# in each of 4 processes, while NVIDIA's MPS daemon runs"),
        ({"phase": "train", "parallel": "ddp", "gpus": 2}, "# in each of 2 processes (torchrun)"),
        ({"phase": "train", "parallel": "ddp", "gpus": 2}, "model = torch.nn.parallel.DistributedDataParallel(model)"),
        (
            {"phase": "train", "parallel": "ddp", "gpus": 2, "find_unused_parameters": True},
            ", find_unused_parameters=True)",
        ),
        ({"phase": "train", "dtype": "amp-fp16"}, 'scaler = torch.amp.GradScaler("cuda")'),
        ({"transfer": "h2d"}, "# every batch is copied from pinned host memory, while the device computes another"),
        ({"phase": "train", "parallel": "fsdp", "gpus": 2}, "torch.distributed.fsdp.fully_shard(model)"),
        ({"model": "timm:vit", "phase": "train", "grad_checkpoint": True}, "model.set_grad_checkpointing()"),
        ({"model": "hf:bert", "phase": "train", "grad_checkpoint": True}, "model.gradient_checkpointing_enable()"),
        ({"model": "net.py:make", "phase": "train", "grad_checkpoint": True}, "...  # turn on gradient checkpointing"),
        ({"phase": "train", "optimizer": "sparseadam"}, "torch.optim.SparseAdam(model.parameters(), lr=1e-4)"),
    ],
)
def test_snippet_has_the_lines_of_what_was_measured(fields, line):
    assert line in lines_of(**({"dtype": "bf16"} | fields))


def test_snippet_of_a_core_set_names_the_cores():
    record = replace(example(), environment=replace(example().environment, device="cpu:0-1", can=CPU_CAN))

    assert next(snippet.lines(record, 4)) == "# started on cores 0-1 alone (taskset -c ...)"


@pytest.mark.parametrize("model", ["hf:bert", "inception_v3", "deeplabv3_resnet50", "net.py:make"])
def test_snippet_leaves_the_loss_to_the_user_if_the_output_is_no_tensor_of_scores(model):
    text = lines_of(model=model, seen=("loss_stand_in",), phase="train", dtype="bf16")

    assert "loss = ...  # your loss; measured with a stand-in" in text
    assert "y.float()" not in text
