"""Model files: TorchScript (``.pt``, ``.pth``, ``.ts``), programs of ``torch.export`` (``.pt2``), and weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final
from zipfile import is_zipfile

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tputfind.errors import BadRequest, UnknownModel
from tputfind.processes.failures import said
from tputfind.record.record import Notice
from tputfind.record.spec import Spec
from tputfind.record.types import is_compile_mode
from tputfind.units import shorten_text
from tputfind.worker.inputs import Call, Drawn, Inputs, drawn_of, shape_text
from tputfind.worker.models.checked import HINT, load_program, load_script, refused_global, trusts_files
from tputfind.worker.models.source import LONGEST_PATH, Source, found, given_inputs

_EXPORTED: Final = ".pt2"
_CHECKPOINTS: Final = "state_dict", "model_state_dict", "model"
"""Keys under which a checkpoint stores its state dict."""
_WRAPPERS: Final = re.compile(r"(?<![^.])(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Parts of the keys of modules that are compiled, averaged, sharded, checkpointed, or in DistributedDataParallel."""
_LONGEST_REASON: Final = 200
_SHOWN: Final = 3
"""Maximum number of keys of a state dict in a message."""


def find(spec: Spec) -> Source:
    path = Path(spec.model)
    if not found(path.is_file):
        raise UnknownModel(f"there is no file {shorten_text(str(path), LONGEST_PATH)}")
    refuse_pickle(path)
    if spec.weights is not None:
        raise BadRequest(f"--weights: {path} holds its own")
    if spec.phase == "train":
        raise BadRequest(f"--phase train: {path} holds a program for inference", "a factory may return the module")
    if is_compile_mode(spec.mode) and path.suffix != _EXPORTED:
        raise BadRequest(f"--mode {spec.mode}: {path} is TorchScript, which torch.compile does not take")
    return _program_source(spec, path) if path.suffix == _EXPORTED else _script_source(spec, path)


def refuse_pickle(path: Path) -> None:
    """Refuse a file of ``torch.save``, with the lines of a factory that loads it; ignore other files."""
    load = f"torch.load({json.dumps(str(path))}, map_location='cpu'"
    into = f"put this into load.py, and name load.py:model in the place of {path}: "
    try:
        held = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except UnpicklingError as error:
        if "GLOBAL" not in f"{error}":
            return
        module, _, name = refused_global(error).rpartition(".")
        if module == "__main__":
            raise UnknownModel(
                f"{path} is a pickled object of the class {name} of a script",
                f"torch.save(model.state_dict(), {json.dumps(str(path))}) in that script, and load that in a factory",
            ) from None
        raise UnknownModel(
            f"{path} is a pickled object of the class {module}.{name}, "
            "which runs code of whoever made it when it is loaded",
            f"{into}import torch; model = lambda: {load}, weights_only=False)",
        ) from None
    except Exception:  # torch raises whatever reading another file brings about
        return
    if not isinstance(held, Mapping) or not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(held)):
        raise UnknownModel(
            f"{path} is a file of torch.save that holds a {type(held).__name__}, not a module",
            f"a factory may load it and return a module: {load})",
        )
    shown = ", ".join(shorten_text(f"{key}") for key in islice(held, _SHOWN))
    more = ", ..." if len(held) > _SHOWN else ""
    inside = "".join(f"[{key!r}]" for key in _key_of_weights(held))
    lines = f"import torch; from YOUR_FILE import Net; net = Net(); net.load_state_dict({load}){inside})"
    raise UnknownModel(
        f"{path} is a state dict ({shown}{more}): weights, without the module that they are of",
        f"{into}{lines}; model = lambda: net; or give --weights {path} beside the name of its model",
    )


def _script_source(spec: Spec, path: Path) -> Source:
    inputs = given_inputs(spec)
    if inputs is None:
        raise BadRequest(f"{path} does not say what it takes", "give --input-size 3x224x224, or --input for each input")

    def build() -> tuple[nn.Module, Inputs]:
        try:
            return load_script(path), inputs
        except (RuntimeError, ValueError) as error:
            hint = f"weights are given beside the name of their model: --weights {path}"
            raise UnknownModel(f"{path} is not TorchScript: {said(error)}", hint) from None

    return Source(build, inputs, path=path)


def _program_source(spec: Spec, path: Path) -> Source:
    if given_inputs(spec) is not None:
        raise BadRequest(f"{path} says itself what it takes: leave --input-size, --image-size and --input out")
    try:
        program = load_program(path)
    except BadRequest:
        raise
    except Exception as error:  # torch raises whatever reading an archive brings about
        raise UnknownModel(f"{path} holds no exported program: {said(error)}") from None
    inputs = _inputs_of(program, path)
    caveats = (*_batch_axis_notices(path, inputs, _free_lengths(program)), *_training_mode_notices(path, program))
    return Source(lambda: (_Exported(program), inputs), inputs, path=path, caveats=caveats)


def _batch_axis_notices(path: Path, inputs: Call, free: list[Any]) -> Iterator[Notice]:
    """Yield a notice if the batch is not the first axis, or not the only free length, such as that of a text."""
    odd = [drawn for drawn in drawn_of(inputs) if drawn.axis not in (0, None)]
    if odd:
        yield Notice(
            kind="batch_axis",
            seen=f"the batch was taken to be axis {odd[0].axis} of samples of {shape_text([odd[0].sample_shape])}",
            cause=f"that is the only length that {path} leaves free",
            advice="if it is not the batch, export the program with the batch as the free length",
        )
    elif len(set(free)) > 1:
        yield Notice(
            kind="batch_axis",
            seen="the batch was taken to be axis 0, and other free lengths to be those of the example inputs",
            cause=f"{path} leaves several lengths free",
            advice="for other lengths, export the program with example inputs of these lengths",
        )


def _training_mode_notices(path: Path, program: Any) -> Iterator[Notice]:
    """Yield a notice if a program was exported in training mode, which cannot be switched off."""
    if any(_trains(node) for node in program.graph.nodes if node.op == "call_function"):
        yield Notice(
            kind="training_mode",
            seen=f"{path} computes dropout, or the statistics of each batch",
            cause="it was exported from a module in training mode",
            advice="call eval() on the module before torch.export.export",
        )


def _trains(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    told = dict(zip(names, node.args, strict=False)) | node.kwargs
    return any(told.get(name) is True for name in ("train", "training")) or bool(told.get("dropout_p"))


class _Exported(nn.Module):
    """The module of an exported program; it keeps the mode, training or eval, in which it was exported."""

    def __init__(self, program: Any) -> None:
        super().__init__()
        self.program = program.module()

    def forward(self, *arguments: object, **keywords: object) -> object:
        return self.program(*arguments, **keywords)

    def train(self, mode: bool = True) -> _Exported:  # noqa: ARG002
        return self

    def to(self, *arguments: Any, **keywords: Any) -> _Exported:
        """Convert and move like any module, and move the tensors that the program itself creates too."""
        super().to(*arguments, **keywords)
        for device in (value for value in arguments if isinstance(value, torch.device)):
            for module in self.program.modules():
                if isinstance(module, torch.fx.GraphModule):
                    for node in module.graph.nodes:
                        if "device" in node.kwargs:
                            node.update_kwarg("device", device)
                        elif node.target is torch.ops.aten.to.device:
                            node.update_arg(1, device)
                    module.recompile()
        return self


def _inputs_of(program: Any, path: Path) -> Call:
    """Return the inputs with which a program was exported, the batch along the only free length or the first axis."""
    wanted, free = _traced_inputs(program), _free_lengths(program)
    examples, structure = tree_flatten(program.example_inputs)
    if not free:
        sizes = ", ".join("x".join(map(str, e.shape)) for e in examples if isinstance(e, torch.Tensor))
        raise BadRequest(
            f"{path} takes no batch but the one that it was exported with ({sizes})",
            "export it with a free batch axis: dynamic_shapes={...: {0: torch.export.Dim.DYNAMIC}}",
        )
    firsts = {length for value in wanted for length in _lengths(value)[:1]}
    batch = {*free} if len({*free}) == 1 else firsts & {*free}
    if len(batch) != 1:
        shapes = ", ".join("x".join(map(str, _lengths(value))) for value in wanted if isinstance(value, torch.Tensor))
        raise BadRequest(
            f"{path} leaves several lengths free, and does not say which is the batch ({shapes})",
            "export it with the batch as the only free length, or as the first axis of every input",
        )
    drawn = [_drawing_rule(value, example, *batch) for value, example in zip(wanted, examples, strict=True)]
    inputs: Call = tree_unflatten(drawn, structure)
    return inputs


def _traced_inputs(program: Any) -> list[object]:
    """Return the inputs of a program as they were traced, with free lengths."""
    placeholders = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    return [placeholders.get(name) for name in program.graph_signature.user_inputs]


def _free_lengths(program: Any) -> list[Any]:
    """Return the free lengths of a program's inputs as expressions, one for each axis of free length."""
    return [length for value in _traced_inputs(program) for length in _lengths(value) if not isinstance(length, int)]


def _lengths(value: object) -> list[Any]:
    """Return the shape of a tensor, each free length as an expression instead of an integer; empty for other values."""
    shape: Any = value.shape if isinstance(value, torch.Tensor) else ()
    return [length.node.expr if isinstance(length, torch.SymInt) else int(length) for length in shape]


def _drawing_rule(value: object, example: object, batch: object) -> object:
    """Return a rule to draw an input like its example, with the samples along the batch axis."""
    if not isinstance(value, torch.Tensor) or not isinstance(example, torch.Tensor):
        return example
    axis = next((axis for axis, length in enumerate(_lengths(value)) if length == batch), None)
    return Drawn.like(example, axis)


def file_of(spec: Spec) -> Path | None:
    """Return the file that the spec names for weights; None if the name is not a file."""
    path = Path(spec.weights or "")
    return path if found(path.is_file) else None


def load(module: nn.Module, file: Path, model: str) -> None:
    """Load a state dict, or a checkpoint that contains one, into a module; raise BadRequest for any other file."""
    try:
        held: Any = _read(file)
        for key in () if isinstance(held, nn.Module) else _key_of_weights(held):
            held = held[key]
        own = module.state_dict()
        state = _weights_of(own, held.state_dict() if isinstance(held, nn.Module) else dict(held))
        loaded = {tensor.data_ptr() for name, tensor in own.items() if name in state}
        tied = {name: tensor for name, tensor in own.items() if tensor.data_ptr() in loaded}
        module.load_state_dict(tied | state)
    except BadRequest:
        raise
    except UnpicklingError as error:
        if "GLOBAL" not in f"{error}" and not is_zipfile(file):  # no checkpoint: nobody is advised to trust it
            raise BadRequest(f"--weights: {file} holds no weights of {model}: torch finds no tensors in it") from None
        what = f"holds more than tensors and plain values: {refused_global(error)}"
        raise BadRequest(f"--weights: {file} is not loaded: it {what}", HINT) from None
    except Exception as error:  # reading any other file can raise anything
        lines = f"{error}".strip().splitlines() or [type(error).__name__]
        reason = " ".join(line.strip() for line in lines[:2])
        raise BadRequest(
            f"--weights: {file} holds no weights of {model}: {shorten_text(reason, _LONGEST_REASON)}"
        ) from None


def _key_of_weights(checkpoint: Mapping[str, Any]) -> list[str]:
    """Return the key under which a checkpoint holds a state dict or a module, if it does, in a list."""
    return [key for key in _CHECKPOINTS if isinstance(checkpoint.get(key), (Mapping, nn.Module))][:1]


def _weights_of(own: Mapping[str, torch.Tensor], state: dict[str, Any]) -> dict[str, Any]:
    """Return a module's weights in a state dict by the keys of its ``own``; the state dict itself if some are missing.

    Keys of the state dict may have parts of wrappers, and one common prefix, as in a checkpoint of Lightning; those
    without the prefix are left out, as is the number of averaged models. Of tied weights, one suffices.
    """
    tied: dict[int, list[str]] = {}
    for name, tensor in own.items():
        tied.setdefault(tensor.data_ptr() or id(tensor), []).append(name)
    for held in (state, {_WRAPPERS.sub("", key): value for key, value in state.items()}):
        first = next(iter(own), "")
        prefixes = dict.fromkeys(("", *(key.removesuffix(first) for key in held if key.endswith(f".{first}"))))
        fitting = [one for one in prefixes if all(any(one + name in held for name in names) for names in tied.values())]
        if own and fitting and (fitting[0] == "" or len(fitting) == 1):
            within = {key.removeprefix(fitting[0]): held[key] for key in held if key.startswith(fitting[0])}
            return {key: value for key, value in within.items() if key != "n_averaged" or key in own}
    return state


def _read(file: Path) -> Mapping[str, Any]:
    if file.suffix != ".safetensors":
        held: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=not trusts_files())
        return held
    try:
        from safetensors.torch import load_file
    except ModuleNotFoundError:
        raise BadRequest(f"--weights: {file} takes a package to read", "pip install safetensors") from None
    return load_file(file)
