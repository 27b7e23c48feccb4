"""Names of records, the fields that distinguish them, and tests whether two describe the same work."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, Literal, NamedTuple, cast, get_type_hints

import msgspec

from tputfind.record.record import Record
from tputfind.record.spec import Spec, apply_findings
from tputfind.units import format_bytes


def has_images(input_shape: str) -> bool:
    """Return whether a part of a sample's shape is an image or a volume."""
    return any(shape.count("x") in (2, 3) for shape in input_shape.split("+"))


def name_of(spec: Spec, *, images: bool = True) -> str:
    """Name the recipe of a spec: ``fp16 nhwc compile``; ``own step`` for a step of the user's own.

    Without ``images`` among the inputs, ``nchw`` is left out. Words such as ``checkpoint``, ``ddp x2``, ``instances=2``
    and ``allocator=native`` follow if they apply.
    """
    ranks = [] if spec.ranks is None else [*filter(None, [spec.parallel]), f"x{spec.ranks}"]
    if spec.has_instances:
        ranks = [f"instances={spec.instances}"]
    allocator = [] if spec.allocator is None else [f"allocator={spec.allocator}"]
    layout = [spec.layout] if images or spec.layout != "nchw" else []
    words = ["own step"] if spec.phase == "step" else [spec.dtype, *layout, spec.mode]
    trains = ["train", *(["checkpoint"] if spec.grad_checkpoint else [])] if spec.phase == "train" else []
    return " ".join([*words, *trains, *ranks, *allocator])


Role = Literal["work", "told", "asked", "free"]
"""How a field counts when two records are compared: see ``types``."""


@cache
def roles(kind: type[msgspec.Struct]) -> dict[str, Role]:
    """Return the role of each field of Spec or of Environment, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: _role(hints[name]) for name in kind.__struct_fields__}


def _role(hint: Any) -> Role:
    (role,) = (meta.extra["role"] for meta in hint.__metadata__ if isinstance(meta, msgspec.Meta) and meta.extra)
    return cast("Role", role)


def differing(old: msgspec.Struct, new: msgspec.Struct, *among: Role) -> Iterator[tuple[str, object, object]]:
    """Yield each field of these roles in which two structs differ, with both values."""
    for name, role in roles(type(old)).items():
        before, after = getattr(old, name), getattr(new, name)
        if role in among and before != after:
            yield name, before, after


class Question(NamedTuple):
    """The specs of a measurement, and its device, if known; with ``any_device`` the specs do not name theirs yet."""

    specs: tuple[Spec, ...] = ()
    device_name: str | None = None
    any_device: bool = False


def question_of(result: Any) -> Question:
    """Return the specs and the device of any result with a measurement, or of several, on the device of the first."""
    if isinstance(result, list):
        each = list(map(question_of, result))
        return Question(tuple(spec for one in each for spec in one.specs), each[0].device_name)
    specs = getattr(result, "specs", None)
    name = result.device_name if hasattr(result, "device_name") else result.environment.device_name
    return Question((result.spec,) if specs is None else specs, name)


def unlike_questions(old: Question, new: Question) -> list[str]:
    """Return the differences of two questions, with both values; empty if they are the same."""
    there, here = (_without_repetition(one.specs, any_device=new.any_device) for one in (old, new))
    if len(there) != len(here):
        return [f"runs ({len(there)} there, {len(here)} here)"]
    pairs = [
        pair
        for before, after in zip(there, here, strict=True)
        for pair in differing(before, apply_findings(after, before), "work", "told", "asked")
    ]
    if new.device_name is not None and new.device_name != old.device_name:
        pairs.append(("device", old.device_name, new.device_name))
    return [f"{name} ({before} there, {after} here)" for name, before, after in pairs]


def _without_repetition(specs: Sequence[Spec], *, any_device: bool) -> list[Spec]:
    """Return the different specs of a list of devices, without those that were measured on all devices at once."""
    alone = [spec for spec in specs if spec.load != "all_busy"] or specs
    several = any_device or len({spec.device for spec in alone}) > 1
    place = {"load": "solo", "busy_devices": 1} | ({"device": "auto"} if several else {})
    return list(dict.fromkeys(msgspec.structs.replace(spec, **place) for spec in alone))


def work_key(record: Record) -> tuple[tuple[str, object], ...]:
    """Return the fields that recipes must share to be compared, by name: the work, the device and the method.

    The dtype is part of the recipe, and so is a chosen allocator. ``gpus`` is the number of devices, which ``--device``
    may name instead. The input shape is the requested one, because a recipe that failed has no other.
    """
    parts = (record.spec, record.environment)
    work = {name: getattr(part, name) for part in parts for name, role in roles(type(part)).items() if role == "work"}
    del work["dtype"]
    work["gpus"] = record.spec.device_count
    if record.spec.allocator is not None:
        del work["allocator_conf"]
    checkpoint = "checkpoint", record.spec.grad_checkpoint
    return (*work.items(), ("method", record.method), checkpoint, ("all busy", record.spec.load == "all_busy"))


def requests_key(record: Record) -> tuple[object, ...]:
    """Return a key that two records share if their devices can answer the same requests, in whichever recipe."""
    spec = record.spec
    return spec.model, spec.phase, spec.weights, spec.inputs, record.input_shape


_PLACE: Final = re.compile(r"  # (?:kind (?P<kind>\S+), )?node (?P<node>\S+)$")


def placed_command(command: str, kind: str | None, node: str) -> str:
    """Return a command line with a comment that names the kind and node of a cluster; a shell ignores the comment."""
    return f"{command}  # {'' if kind is None else f'kind {kind}, '}node {node}"


def place_of(record: Record) -> tuple[str, str]:
    """Return the requested kind and the node of a cluster from the record's command; empty strings if it names none."""
    found = _PLACE.search(record.command)
    return ("", "") if found is None else (found["kind"] or "", found["node"])


def optimizer_of(record: Record) -> str | None:
    """Return the name of the optimizer that trains a model; None for inference and for a step of the user's own."""
    return optimizer_name(record.spec, own=any("own_optimizers" in row.seen for row in record.rows))


def optimizer_name(spec: Spec, *, own: bool) -> str | None:
    """Return the same for a spec; ``own`` says whether the model brings optimizers of its own."""
    if spec.phase != "train":
        return None
    return "own optimizers" if own else spec.optimizer or "sgd"


def trained_with(record: Record) -> tuple[str, ...]:
    """Return the words for a record's optimizer, its checkpoints and its allocator, as far as it has any."""
    spec = record.spec
    words = (
        optimizer_of(record),
        "checkpoint" * spec.grad_checkpoint,
        spec.allocator and f"{spec.allocator} allocator",
    )
    return tuple(word for word in words if word)


NAMES: Final[dict[str, Callable[[Record], str]]] = {
    "model": lambda record: record.spec.model,
    "recipe": lambda record: name_of(record.spec),
    "device": lambda record: record.environment.device_name,
    "place": lambda record: record.environment.device,
    "load": lambda record: record.spec.load.replace("_", " "),
    "node": lambda record: " ".join(filter(None, place_of(record))),
    "training": lambda record: " ".join(trained_with(record)),
    "input": lambda record: record.input_shape,
    "transfer": lambda record: f"transfer {record.spec.transfer}",
    "weights": lambda record: f"weights {record.spec.weights or ('its own' if record.spec.own_code else 'random')}",
    "memory": lambda record: _memory_text(record.spec.memory_limit_bytes),
    "begun": lambda record: record.started,
}


def distinguishing_fields(records: Sequence[Record]) -> list[str]:
    """Return the fields that distinguish records, as few as suffice: later ones only if those before do not."""
    differing = _differing(records, ("model", "recipe", "device", "node"))
    for names in (("training", "input", "transfer", "weights", "memory"), ("place", "load")):
        if not _apart(records, differing):
            differing += _differing(records, names)
    return differing if _apart(records, differing) else [*differing, "begun"]


def _memory_text(limit_bytes: int | None) -> str:
    return "no memory limit" if limit_bytes is None else f"memory limit {format_bytes(limit_bytes)}"


def _differing(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    return [name for name in names if len(set(map(NAMES[name], records))) > 1]


def _apart(records: Sequence[Record], names: Sequence[str]) -> bool:
    return len({tuple(NAMES[name](record) for name in names) for record in records}) == len(records)
