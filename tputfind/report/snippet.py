"""Python code that runs a model as it was measured."""

import json
from collections.abc import Iterator, Sequence
from typing import Final

from tputfind.record.record import Record
from tputfind.record.spec import Spec
from tputfind.record.types import AUTOCAST, CONVERTED, MODES, QUANTIZED, GradMode, is_compile_mode, size_argument

_GRAD_MODES: Final[dict[GradMode, str]] = {
    "inference": "torch.inference_mode()",
    "no_grad": "torch.no_grad()",
    "enabled": "torch.enable_grad()",
}


def lines(record: Record, batch_size: int) -> Iterator[str]:
    spec = record.spec
    if spec.phase == "step":
        yield f"...  # {spec.model} at batch size {batch_size}, on {record.environment.device}"
        return
    seen = {sight for row in record.rows for sight in row.seen}
    by_trainer = "own_optimizers" in seen
    yield from _start(record)
    first, *others = record.input_shape.split("+")
    kind, shape = record.environment.device.partition(":")[0], first.split("x")
    device, dtype = json.dumps(kind), f"torch.{CONVERTED.get(spec.dtype, 'float32')}"
    yield from _model(record, shape)
    if kind == "cuda" and spec.device_count > 1 and not by_trainer:
        yield "import os"
        yield 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
    if kind == "cuda" and spec.dtype in ("fp32", "tf32"):
        yield f"torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = {spec.dtype == 'tf32'}"
    channels_last = "channels_last_3d" if len(shape) == _VOLUME else "channels_last"
    nhwc = f".to(memory_format=torch.{channels_last})" if spec.layout == "nhwc" else ""
    if spec.dtype == "own":
        yield f"model = model.to({device}){nhwc}"
    elif spec.dtype not in QUANTIZED and any(
        f"torch.{name}" != dtype for row in record.rows for name in row.parameter_bytes
    ):
        # Complex, fp8, integer or quantised parameters: Module.to would convert those that should stay.
        yield f"model = model.to({device}){nhwc}  # and its real floating-point parameters to {dtype}"
    else:
        yield f"model = model.to({device}, {dtype}){nhwc}"
    if spec.dtype in QUANTIZED:
        yield f"from torchao.quantization import {QUANTIZED[spec.dtype]}, quantize_"
        yield f"quantize_(model, {QUANTIZED[spec.dtype]}())"
    if spec.mode == "compile:freezing":
        yield "import torch._inductor.config"
        yield "torch._inductor.config.freezing = True"
    if is_compile_mode(spec.mode):
        how = spec.mode.partition(":")[2]
        argument = "mode" if spec.mode in MODES else "backend"
        more = f", {argument}={json.dumps(how)}" if how not in ("", "freezing") else ""
        yield f"model = torch.compile(model, dynamic=False{more})"
    if spec.parallel == "ddp" and not by_trainer:
        unused = ", find_unused_parameters=True" if spec.find_unused_parameters else ""
        yield f"model = torch.nn.parallel.DistributedDataParallel(model{unused})"
    if spec.parallel == "fsdp" and not by_trainer:
        yield "torch.distributed.fsdp.fully_shard(model)  # and before that each of its blocks"
    is_alone = not others and seen.isdisjoint(("several_inputs", "named_inputs"))
    is_one_tensor = is_alone and all(length.isdigit() for length in shape)
    if spec.transfer != "none":
        back = ", and its outputs are copied back" if spec.transfer == "both" else ""
        yield f"# every batch is copied from pinned host memory{back}, while the device computes another"
    if spec.source in ("torchvision", "timm") and is_one_tensor:
        yield f"x = torch.randn({', '.join([str(batch_size), *shape])}, device={device}, dtype={dtype}){nhwc}"
    else:
        yield f"x = ...  # {batch_size} samples of {record.input_shape}, as the model takes them"
    if by_trainer:
        yield from _trainer(spec, device)
        return
    modes = "torch.enable_grad()" if spec.phase == "train" else _GRAD_MODES[spec.grad_mode]
    if spec.dtype in AUTOCAST:
        modes += f", torch.autocast({device}, torch.{AUTOCAST[spec.dtype]})"
    share = f" / {spec.accumulate}" if spec.accumulate > 1 else ""
    is_classifier = spec.source in ("torchvision", "timm") and is_one_tensor and not spec.model.startswith(_NO_SCORES)
    if "loss_stand_in" in seen and not is_classifier:
        about = "your loss; measured with a stand-in: the cross-entropy of class scores, or the mean square"
        loss = f"...{share}  # {about}"
    elif "loss_stand_in" in seen:
        labels = "torch.arange(len(y), device=y.device) % y.shape[1]"
        about = "labels in turn, as measured"
        loss = f"torch.nn.functional.cross_entropy(y.float(), {labels}){share}  # {about}"
    else:
        loss = f"{'y.loss' if spec.source == 'hf' else '...'}{share}  # the loss that the model returns"
    inputs = "**x" if "named_inputs" in seen else "*x" if "several_inputs" in seen else "x"
    yield from _step(spec, modes, f"model({inputs})", loss, device)


_NO_SCORES: Final = ("inception_v3", "googlenet", "deeplab", "fcn_", "lraspp", "raft")
"""Beginnings of the names of torchvision's models that return other outputs than scores of classes."""
_VOLUME: Final = 4


def _start(record: Record) -> Iterator[str]:
    spec, (_, _, cores) = record.spec, record.environment.device.partition(":")
    on_host = record.environment.can.is_cpu
    if spec.has_instances:
        how = "started on its part of the cores (taskset -c ...)" if on_host else "while NVIDIA's MPS daemon runs"
        yield f"# in each of {spec.instances} processes, {how}"
    elif on_host and cores:
        yield f"# started on cores {cores} alone (taskset -c ...)"
    if spec.device_count > 1:
        yield f"# in each of {spec.device_count} processes (torchrun), after torch.distributed.init_process_group()"
    if spec.allocator == "expandable":
        yield "# started with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def _model(record: Record, shape: Sequence[str]) -> Iterator[str]:
    spec = record.spec
    name = spec.model.partition(":")[2]
    is_published = spec.weights is not None and spec.weights.isupper()  # names of published weights are in capitals
    is_file = spec.weights is not None and not is_published
    is_resized = spec.image_size is not None or spec.input_size is not None
    has_mode = all(notice.kind != "eval_left_out" for notice in record.caveats)
    end = ".train()" if spec.phase == "train" else ".eval()"
    match spec.source:
        case "torchvision":
            resized = size_argument(spec.model, tuple(map(int, shape))) if is_resized and not is_published else {}
            arguments = {} if resized else {"weights": json.dumps(spec.weights if is_published else "DEFAULT")}
            quantized = {"quantize": True} if spec.model.startswith("quantized_") else {}
            more = "".join(f", {argument}={value}" for argument, value in (arguments | resized | quantized).items())
            yield "import torch, torchvision"
            yield f"model = torchvision.models.get_model({json.dumps(spec.model)}{more}){end}"
        case "timm":
            channels = "" if spec.input_size is None else f", in_chans={shape[0]}"
            size = f", img_size=({shape[-2]}, {shape[-1]})" if is_resized else ""
            note = "  # without img_size if it takes none" if is_resized else ""
            yield "import timm, torch"
            yield f"model = timm.create_model({json.dumps(name)}, pretrained={not is_file}{channels}{size}){end}{note}"
        case _:
            is_file = False
            yield "import torch"
            yield f"model = ...  # {spec.model}"
            yield from (f"model{end}",) if has_mode else ()
    if is_file and f"{spec.weights}".endswith(".safetensors"):
        yield "from safetensors.torch import load_file"
        yield f"model.load_state_dict(load_file({json.dumps(spec.weights)}))"
    elif is_file:
        yield f'state = torch.load({json.dumps(spec.weights)}, map_location="cpu")'
        yield 'model.load_state_dict(state)  # or state["state_dict"]'
    if spec.grad_checkpoint:
        calls = {"hf": "model.gradient_checkpointing_enable()", "timm": "model.set_grad_checkpointing()"}
        yield calls.get(spec.source, "...  # turn on gradient checkpointing, as the model's library does")


_SPELLED: Final = {
    "adamw": "AdamW",
    "asgd": "ASGD",
    "nadam": "NAdam",
    "radam": "RAdam",
    "rmsprop": "RMSprop",
    "sgd": "SGD",
    "sparseadam": "SparseAdam",
}
"""Classes of torch.optim whose names are not the capitalized option."""


_PRECISIONS: Final = {"amp-bf16": "bf16-mixed", "amp-fp16": "16-mixed"}
"""Values of ``precision`` of Lightning's Trainer; the other dtypes are those of the weights."""


def _trainer(spec: Spec, device: str) -> Iterator[str]:
    """Yield the lines that train a LightningModule by its own optimizers."""
    unused = "_find_unused_parameters_true" if spec.find_unused_parameters else ""
    arguments = {
        "accelerator": device,
        "precision": json.dumps(_PRECISIONS[spec.dtype]) if spec.dtype in _PRECISIONS else None,
        "accumulate_grad_batches": spec.accumulate if spec.accumulate > 1 else None,
        "gradient_clip_val": spec.clip,
        "devices": spec.device_count,
        "strategy": None if spec.parallel is None else json.dumps(f"{spec.parallel}{unused}"),
    }
    given = ", ".join(f"{name}={value}" for name, value in arguments.items() if value is not None)
    yield "import lightning"
    yield f"lightning.Trainer({given}).fit(model, [x])"


_WITHOUT_SUM: Final = {"ddp": "under model.no_sync()", "fsdp": "after model.set_requires_gradient_sync(False)"}
"""How each kind of parallelism keeps the gradients of all but the last of accumulated batches on their device."""


def _step(spec: Spec, modes: str, call: str, loss: str, device: str) -> Iterator[str]:
    if spec.mode == "cudagraph":
        yield "side = torch.cuda.Stream()"
        yield "side.wait_stream(torch.cuda.current_stream())"
        yield f"with {modes}, torch.cuda.stream(side):"
        yield "    for _ in range(3):"
        yield f"        {call}"
        yield "torch.cuda.current_stream().wait_stream(side)"
        yield "graph = torch.cuda.CUDAGraph()"
        yield f"with {modes}, torch.cuda.graph(graph):"
        yield f"    y = {call}"
        yield "graph.replay()  # after x.copy_(...): y then holds the outputs"
        return
    if spec.phase == "train":
        name = spec.optimizer or "sgd"
        settings = ", momentum=0.9" if name == "sgd" else ""
        made = f"{_SPELLED.get(name, name.capitalize())}(model.parameters(), lr=1e-4{settings})"
        yield f"optimizer = torch.optim.{made}"
    scaled = spec.phase == "train" and spec.dtype == "amp-fp16"
    if scaled:
        yield f"scaler = torch.amp.GradScaler({device})  # once, and not at every step"
    times = spec.accumulate
    indent = "" if times == 1 else "    "
    if indent:
        alone = "" if spec.parallel is None else f", all but the last {_WITHOUT_SUM[spec.parallel]}"
        yield f"for x in batches:  # {times} of them{alone}"
    yield f"{indent}with {modes}:"
    yield f"{indent}    y = {call}"
    if spec.phase == "train":
        yield f"{indent}loss = {loss}"
        yield f"{indent}scaler.scale(loss).backward()" if scaled else f"{indent}loss.backward()"
        if spec.clip is not None:
            yield from ("scaler.unscale_(optimizer)",) if scaled else ()
            yield f"torch.nn.utils.clip_grad_norm_(model.parameters(), {spec.clip:g})"
        yield "scaler.step(optimizer), scaler.update()" if scaled else "optimizer.step()"
        yield "optimizer.zero_grad()"
