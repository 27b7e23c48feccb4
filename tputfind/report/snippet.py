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
    """Yield the lines that run the step of a record at a batch size."""
    spec = record.spec
    if spec.phase == "step":
        yield f"...  # {spec.model} at batch size {batch_size}, on {record.environment.device}"
        return
    yield from _start(record)
    kind, shape = record.environment.device.partition(":")[0], record.input_shape.split("x")
    device, dtype = json.dumps(kind), f"torch.{CONVERTED.get(spec.dtype, 'float32')}"
    yield from _model(spec, shape)
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
    if spec.parallel is not None:
        yield _SPREAD[spec.parallel]
    seen = {sight for row in record.rows for sight in row.seen}
    is_one_tensor = seen.isdisjoint(("several_inputs", "named_inputs")) and all(length.isdigit() for length in shape)
    if spec.source in ("torchvision", "timm") and is_one_tensor:
        yield f"x = torch.randn({', '.join([str(batch_size), *shape])}, device={device}, dtype={dtype}){nhwc}"
    else:
        yield f"x = ...  # {batch_size} samples of {record.input_shape}, as the model takes them"
    if "own_optimizers" in seen:
        yield from _trainer(spec, device)
        return
    modes = "torch.enable_grad()" if spec.phase == "train" else _GRAD_MODES[spec.grad_mode]
    if spec.dtype in AUTOCAST:
        modes += f", torch.autocast({device}, torch.{AUTOCAST[spec.dtype]})"
    own, share = "y.loss" if spec.source == "hf" else "...", f" / {spec.accumulate}" if spec.accumulate > 1 else ""
    stand_in = f"torch.nn.functional.cross_entropy(y.float(), labels){share}"
    loss = stand_in if "loss_stand_in" in seen else f"{own}{share}  # the loss that the model returns"
    inputs = "**x" if "named_inputs" in seen else "*x" if "several_inputs" in seen else "x"
    yield from _step(spec, modes, f"model({inputs})", loss)


_VOLUME: Final = 4
"""The number of lengths of a sample of volumes or frames."""
_SPREAD: Final = {
    "ddp": "model = torch.nn.parallel.DistributedDataParallel(model)",
    "fsdp": "torch.distributed.fsdp.fully_shard(model)  # and before that each of its blocks",
}


def _start(record: Record) -> Iterator[str]:
    """Yield comments on how the processes are started."""
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


def _model(spec: Spec, shape: Sequence[str]) -> Iterator[str]:
    name = spec.model.partition(":")[2]
    is_file = spec.weights is not None and not spec.weights.isupper()  # names of published weights are in capitals
    is_resized = spec.image_size is not None or spec.input_size is not None
    end = ".train()" if spec.phase == "train" else ".eval()"
    match spec.source:
        case "torchvision":
            resized = size_argument(spec.model, tuple(map(int, shape))) if is_resized else {}
            arguments = {} if is_file or resized else {"weights": json.dumps(spec.weights or "DEFAULT")}
            more = "".join(f", {argument}={value}" for argument, value in (arguments | resized).items())
            yield "import torch, torchvision"
            yield f"model = torchvision.models.get_model({json.dumps(spec.model)}{more}){end}"
        case "timm":
            channels = "" if spec.input_size is None else f", in_chans={shape[0]}"
            size = f"  # with img_size=({shape[-2]}, {shape[-1]}) if it takes one" if is_resized else ""
            yield "import timm, torch"
            yield f"model = timm.create_model({json.dumps(name)}, pretrained={not is_file}{channels}){end}{size}"
        case _:
            is_file = False
            yield "import torch"
            yield f"model = ...  # {spec.model}"
            yield f"model{end}"
    if is_file:
        yield f"model.load_state_dict(torch.load({json.dumps(spec.weights)}))"
    if spec.grad_checkpoint:
        yield f"model.{'gradient_checkpointing_enable' if spec.source == 'hf' else 'set_grad_checkpointing'}()"


_SPELLED: Final = {
    "adamw": "AdamW",
    "asgd": "ASGD",
    "nadam": "NAdam",
    "radam": "RAdam",
    "rmsprop": "RMSprop",
    "sgd": "SGD",
}
"""Classes of torch.optim whose names are not the capitalized option."""


def _optimizer(name: str) -> str:
    settings = ", momentum=0.9" if name == "sgd" else ""
    return f"torch.optim.{_SPELLED.get(name, name.capitalize())}(model.parameters(), lr=1e-4{settings})"


_PRECISIONS: Final = {"amp-bf16": "bf16-mixed", "amp-fp16": "16-mixed"}
"""Values of ``precision`` of Lightning's Trainer; the other dtypes are those of the weights."""


def _trainer(spec: Spec, device: str) -> Iterator[str]:
    """Yield the lines that train a LightningModule by its own optimizers."""
    arguments = {
        "accelerator": device,
        "precision": json.dumps(_PRECISIONS[spec.dtype]) if spec.dtype in _PRECISIONS else None,
        "accumulate_grad_batches": spec.accumulate if spec.accumulate > 1 else None,
        "gradient_clip_val": spec.clip,
    }
    given = ", ".join(f"{name}={value}" for name, value in arguments.items() if value is not None)
    yield "import lightning"
    yield f"lightning.Trainer({given}, devices=1).fit(model, [x])"


def _step(spec: Spec, modes: str, call: str, loss: str) -> Iterator[str]:
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
        yield f"optimizer = {_optimizer(spec.optimizer or 'sgd')}"
    scaled = spec.phase == "train" and spec.dtype == "amp-fp16"
    if scaled:
        yield "scaler = torch.amp.GradScaler()  # once, and not at every step"
    times = spec.accumulate
    indent = "" if times == 1 else "    "
    if indent:
        yield f"for x, labels in batches:  # {times} of them"
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
