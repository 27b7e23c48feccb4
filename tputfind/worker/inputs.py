"""The inputs of a step: their structure, and the samples in them, which can be selected or repeated."""

import inspect
import io
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Final, Literal, Self, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils._pytree import tree_leaves

from tputfind.worker.structures import (
    attributes_of,
    clone_tensors,
    is_plain,
    moves,
    parts_of,
    replace_parts,
    tensors_of,
)

_DEEPEST: Final = 12
"""Maximum depth of a structure that is compared."""
_LARGE_TABLE: Final = 2**17
"""Integers that add up to this may be the rows of tables that no cache holds."""
_WRAPPERS: Final = (AveragedModel, nn.DataParallel, DistributedDataParallel)
"""Modules that pass any arguments to another one."""
CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The memory format of layout ``nhwc`` by a tensor's number of dimensions; other tensors have none."""


@dataclass(frozen=True)
class Drawn:
    """A tensor to be drawn at random, its batch along an ``axis``, or a list of one tensor per sample.

    ``sample_shape`` leaves the batch out; without an axis the tensor's shape is the same for every batch size. The
    default ``dtype`` is the workload's. Floating-point numbers are normal, or uniform in [0, 1) for an ``image``.
    Integers are uniform in [0, ``below``). With ``ones`` all numbers are 1, as in a mask.
    """

    sample_shape: tuple[int, ...]
    axis: int | None = 0
    dtype: torch.dtype | None = None
    below: int = 2
    ones: bool = False
    image: bool = False
    listed: bool = False

    @classmethod
    def like(cls, example: torch.Tensor, axis: int | None) -> Self:
        """Return a rule to draw values like an example's, in its shape without the axis of the samples."""
        shape = tuple(length for place, length in enumerate(example.shape) if place != axis)
        if example.is_floating_point() or example.is_complex():
            return cls(shape, axis, example.dtype if example.is_complex() else None)
        most = int(example.max()) if example.numel() else 1
        return cls(shape, axis, example.dtype, below=max(1, most + 1))  # zeros alone may index a table of one row

    def shape(self, batch_size: int) -> tuple[int, ...]:
        shape, axis = self.sample_shape, self.axis
        return shape if axis is None else (*shape[:axis], batch_size, *shape[axis:])


@dataclass(frozen=True)
class Each:
    """A list of one value per sample; ``make`` draws each value on a device."""

    make: Callable[[torch.device], object]


Call = tuple[tuple[object, ...], dict[str, object]]
"""Positional and keyword arguments."""
MakeInputs = Callable[[int], object]
"""Makes the inputs of one step from a batch size: a tuple of arguments, a dict of keywords, or a single argument."""
Inputs = Call | MakeInputs
"""The arguments of a step, with ``Drawn`` for each tensor to be drawn, or the callable that makes them."""


@dataclass(frozen=True)
class Rows:
    """Several rows per sample along an axis, such as the nodes of graphs; they can be counted, but not selected."""

    axis: int
    each: int


Leaf = int | Rows | Literal["listed", "whole", "unknown"]
"""The location of the samples in a part of a value.

An integer is the axis of a tensor with one row per sample; ``Rows`` is an axis with several. ``listed``: the items of a
list. ``whole``: the part holds no samples. ``unknown``: the samples cannot be located.
"""
Split = Leaf | dict[Any, "Split"]
"""The location of the samples in a value; a dict has that of each part of a container or dataclass."""


class Indivisible(LookupError):
    """Raised if samples cannot be selected from inputs."""


def as_call(inputs: object, forward: Callable[..., object] | None = None) -> Call:
    """Return the result of a ``MakeInputs`` as positional and keyword arguments.

    A tuple holds positional arguments and a mapping keyword arguments, unless ``forward`` only accepts the tuple or
    mapping as its single argument. A named tuple whose names ``forward`` has holds keyword arguments, and positional
    ones if ``forward`` names none. A list, and any other named tuple, is one argument, unless ``forward`` only accepts
    its items.
    """
    call: Call
    whole: Call = (inputs,), {}
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        call = (), dict(inputs)
    elif isinstance(inputs, (tuple, list)):
        call = tuple(inputs), {}
    else:
        return whole
    parameters = _parameters(forward)
    named = cast("Any", inputs)._asdict() if hasattr(type(inputs), "_asdict") else None
    if named is not None and parameters.keys() >= named.keys() and _binds(forward, ((), named)):
        return (), named
    is_whole = isinstance(inputs, list) or (named is not None and bool(parameters))
    usual, other = (whole, call) if is_whole else (call, whole)
    if _binds(forward, usual) or not _binds(forward, other):
        return usual
    # One such key may have the name of the argument that the dict is. With several, the error names the wrong key.
    required = {name for name, parameter in parameters.items() if parameter.default is Parameter.empty}
    is_spread = required <= call[1].keys() and len(parameters.keys() & call[1].keys()) > 1
    return usual if is_spread else other


def forward_of(module: nn.Module) -> Callable[..., object]:
    """Return the ``forward`` that takes a module's arguments: that of the inner one if it is compiled or averaged."""
    while True:
        inner = module.module if isinstance(module, _WRAPPERS) else getattr(module, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return module.forward
        module = inner


def _signature(forward: Callable[..., object] | None) -> inspect.Signature | None:
    try:
        schema = getattr(forward, "schema", None)  # of a scripted module
        return inspect.signature(forward) if schema is None else _signature_of(schema)  # type: ignore[arg-type]  # None has none
    except (TypeError, ValueError):
        return None


def _parameters(forward: Callable[..., object] | None) -> dict[str, Parameter]:
    """Return a function's parameters by name, without ``*args`` and ``**kwargs``, which take any."""
    signature = _signature(forward)
    parameters = {} if signature is None else signature.parameters
    variable = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
    return {name: parameter for name, parameter in parameters.items() if parameter.kind not in variable}


def _binds(forward: Callable[..., object] | None, call: Call) -> bool:
    """Return whether a function can be called with these arguments; True if its signature is unknown."""
    signature = _signature(forward)
    try:
        if signature is not None:
            signature.bind(*call[0], **call[1])
    except TypeError:
        return False
    return True


def _signature_of(schema: Any) -> inspect.Signature:
    return inspect.Signature(
        [
            Parameter(
                each.name,
                Parameter.POSITIONAL_OR_KEYWORD,
                default=each.default_value if each.has_default_value() else Parameter.empty,
            )
            for each in schema.arguments
            if each.name != "self"
        ]
    )


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Return whether a plain tensor is stored channels last; False if it counts as contiguous too."""
    memory_format = CHANNELS_LAST.get(tensor.dim()) if is_plain(tensor) else None
    return (
        memory_format is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=memory_format)
    )


def shape_text(shapes: Sequence[Sequence[int | None]]) -> str:
    """Return the shapes of a sample as text: ``3x224x224``, several joined by ``+``; ``1`` for a single number."""
    texts = (("?" if length is None else str(length) for length in shape) for shape in shapes)
    return "+".join("x".join(text) or "1" for text in texts)


def shape_of(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """Return the shape of a tensor; lengths that differ within a nested tensor are None."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    if tensor.layout is torch.jagged:
        return tuple(int(length) if isinstance(length, int) else None for length in tensor.shape)
    return (tensor.size(0), *(None for _ in range(tensor.dim() - 1)))


def split_of(values: Sequence[object], sizes: Sequence[int], above: tuple[int, ...] = ()) -> Split:
    """Return the location of the samples in values that were made for these batch sizes, one value per size.

    It is unknown in a part that refers back to a value that holds it; ``above`` are the ids of these values.
    """
    first = values[0]
    if all(isinstance(value, torch.Tensor) for value in values):
        return _axis_of(cast("Sequence[torch.Tensor]", values), sizes)
    lists = [value for value in values if isinstance(value, (list, tuple))]
    if len(lists) == len(values) and [len(value) for value in lists] == list(sizes):
        return "listed"
    parts = [parts_of(value) for value in values]
    keys = parts[0]
    if id(first) in above:
        return "unknown"
    if keys is not None and all(type(value) is type(first) for value in values):
        same = all(other is not None and other.keys() == keys.keys() for other in parts)
        if not same:
            return "unknown"
        held = cast("list[dict[Any, Any]]", parts)
        return {key: split_of([part[key] for part in held], sizes, (*above, id(first))) for key in keys}
    plain = isinstance(first, (int, float, str, bool, type(None)))
    return "whole" if plain and all(type(v) is type(first) and v == first for v in values) else "unknown"


def _axis_of(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Split:
    """Return the axis whose length follows the batch size; other axes may change too, since texts are padded."""
    shapes = [shape_of(tensor) for tensor in tensors]
    if len({len(shape) for shape in shapes}) > 1:
        return "unknown"
    axes = dict(enumerate(zip(*shapes, strict=True)))
    if any(tensor.is_nested for tensor in tensors):
        return Rows(0, 1) if axes[0] == tuple(sizes) else "unknown"
    changing = {axis: lengths for axis, lengths in axes.items() if len(set(lengths)) > 1}
    if not changing:
        return "whole"
    exact = [axis for axis, lengths in changing.items() if lengths == tuple(sizes)]
    if exact:
        return exact[0] if len(exact) == 1 else "unknown"
    each = {axis: (lengths[0] or 0) // sizes[0] for axis, lengths in changing.items()}
    rows = [axis for axis, lengths in changing.items() if lengths == tuple(each[axis] * size for size in sizes)]
    return Rows(rows[0], each[rows[0]]) if len(rows) == 1 else "unknown"


def drawn_split(value: object) -> Split:
    """Return the location of the samples in the tensors that are drawn for a value."""
    if isinstance(value, Each):
        return "listed"
    if isinstance(value, Drawn):
        return "listed" if value.listed else "whole" if value.axis is None else value.axis
    parts = parts_of(value)
    return "whole" if parts is None else {key: drawn_split(part) for key, part in parts.items()}


def drawn_of(inputs: object) -> list[Drawn]:
    """Return every ``Drawn`` in a value of any structure, in order."""
    return [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Drawn)]


def leaves(value: object, split: Split) -> Iterator[tuple[Any, Leaf]]:
    """Yield the parts of a value, each with the location of the samples in it; a missing part is None."""
    if not isinstance(split, dict):
        yield value, split
        return
    parts = parts_of(value) or {}
    for key, inner in split.items():
        yield from leaves(parts.get(key), inner)


def miscounts(value: object, split: Split, size: int) -> Iterator[int]:
    """Yield the number of samples in each part of a value whose number is not the batch size.

    A part whose samples cannot be located is skipped. A missing part, or one that is no longer a tensor or list, has 0.
    """
    return (count for count, _ in _counts(value, split, size) if count != size)


def has_samples(value: object, split: Split, size: int) -> bool:
    """Return whether the part with the most numbers per sample holds as many samples as the batch size."""
    counts = [*_counts(value, split, size)]
    most = max((numbers for _, numbers in counts), default=0)
    return any(count == size for count, numbers in counts if numbers == most)


def has_part_of_sample(value: object, split: Split) -> bool:
    """Return whether a part with several rows per sample ends within a sample."""
    several = ((part, leaf) for part, leaf in leaves(value, split) if isinstance(leaf, Rows))
    return any(_length(part, leaf.axis) % leaf.each for part, leaf in several)


def drop_rows(split: Split) -> Split:
    """Return the location of the samples that is unknown for parts with several rows per sample."""
    if isinstance(split, dict):
        return {key: drop_rows(inner) for key, inner in split.items()}
    return "unknown" if isinstance(split, Rows) and split.each > 1 else split


def _counts(value: object, split: Split, size: int) -> Iterator[tuple[int, int]]:
    """Yield the number of samples in each part of a value, and the number of numbers in each of these samples."""
    for part, leaf in leaves(value, split):
        match leaf:
            case int(axis):
                count = _length(part, axis)
            case Rows(axis, each):
                length = _length(part, axis)
                count = length // each + (length > size * each and length % each > 0)
            case "listed":
                count = len(part) if isinstance(part, (list, tuple)) else 0
            case _:
                continue
        yield count, sum(tensor.numel() for tensor in tensors_of(part)) // max(count, 1)


def _length(value: object, axis: int) -> int:
    shape = shape_of(value) if isinstance(value, torch.Tensor) else ()
    return (shape[axis] or 0) if axis < len(shape) else 0


def can_count_samples(split: Split) -> bool:
    """Return whether the samples can be counted in every part that may hold samples."""
    return all(leaf != "unknown" for _, leaf in leaves(None, split))


def outline(
    value: Any,
    depth: int = 0,
    known: dict[int, tuple[object, object]] | None = None,
    *,
    any_numbers: bool = False,
) -> object:
    """Return the sizes in a value: shapes of tensors and arrays, lengths, integers and texts, also inside of objects.

    Two inputs with equal outlines have the same number of samples, whatever their numbers are. ``known`` holds objects
    and their outlines, by id; a part that refers back to the value has the name of its type. With ``any_numbers``,
    integers and opaque objects count by their type, and texts by their length, so that two draws of the same sizes have
    equal outlines.
    """
    known = {} if known is None else known
    if isinstance(value, torch.Tensor):
        return ("tensor", shape_of(value), value.values().shape if value.is_nested else None)
    if any_numbers and isinstance(value, (int, str)):
        return type(value), isinstance(value, str) and len(value)
    if isinstance(value, (int, str, type, type(None))) or depth > _DEEPEST:
        return value
    if isinstance(value, float):
        return "float"
    if hasattr(type(value), "__array__") and hasattr(value, "shape"):  # an array
        return ("array", tuple(value.shape))
    parts = parts_of(value)
    parts = attributes_of(value) if parts is None else parts
    if parts is None:
        own_hash = isinstance(value, Hashable) and type(value).__hash__ is not object.__hash__
        opaque = type(value) if any_numbers else id(value)
        identity = len(value) if isinstance(value, Sized) else hash(value) if own_hash else opaque
        return (type(value).__name__, identity)
    if id(value) not in known:
        name = type(value).__name__
        known[id(value)] = value, name
        inner = [(str(key), outline(part, depth + 1, known, any_numbers=any_numbers)) for key, part in parts.items()]
        known[id(value)] = value, (name, inner)
    return known[id(value)][1]


def is_same(one: object, other: object) -> bool:
    """Return whether two values are known to be equal in sizes and content: both are saved, as the same bytes."""
    if outline(one) != outline(other):
        return False
    try:
        return _bytes_of(one) == _bytes_of(other)
    except Exception:  # the value's own code can raise anything
        return False


def _bytes_of(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(clone_tensors(value), file)  # a view would be saved with its whole storage
    return file.getvalue()


def divides(split: Split) -> bool:
    """Return whether any part of a value can be divided into samples: it has one row or one element for each."""
    return any(isinstance(leaf, int) or leaf == "listed" for _, leaf in leaves(None, split))


def select_samples(value: Any, split: Split, samples: Sequence[int]) -> Any:
    """Return a value of the same structure that holds only the samples of these indices, or raise Indivisible."""
    match split:
        case "whole":
            return value
        case "unknown" | Rows():
            raise Indivisible
        case "listed":
            return replace_parts(value, {number: value[sample] for number, sample in enumerate(samples)})
        case int(axis):
            return _rows(value, axis, samples)
    parts = parts_of(value) or {}
    return replace_parts(value, {key: select_samples(part, split[key], samples) for key, part in parts.items()})


def sample_shapes(values: Sequence[object], splits: Split) -> Iterator[str]:
    """Yield the shape of a sample in each tensor of inputs made for several batch sizes, as ``3x224x224``.

    Other parts that hold samples are shown by the name of their type. The samples' axis is left out, or has the number
    of rows per sample if there are several. Lengths that vary otherwise are ranges: ``12-48x64``.
    """
    for pairs in zip(*(leaves(value, splits) for value in values), strict=True):
        parts, (leaf, *_) = zip(*pairs, strict=True)
        first = parts[0]
        if isinstance(first, torch.Tensor):
            yield _sample_shape([shape_of(part) for part in parts if isinstance(part, torch.Tensor)], leaf)
        elif leaf == "listed":
            shapes = [*map(shape_of, tensors_of(first[0]))]
            yield shape_text(shapes) if shapes else type(first[0]).__name__
        elif leaf == "unknown":
            yield type(first).__name__


def _sample_shape(shapes: Sequence[tuple[int | None, ...]], split: Split) -> str:
    axes: list[tuple[int | None, ...]] = list(zip(*shapes, strict=False))
    if isinstance(split, int):
        del axes[split]
    elif isinstance(split, Rows) and split.each == 1:
        del axes[split.axis]
    elif isinstance(split, Rows):
        axes[split.axis] = (split.each,)
    return "x".join(_range([length for length in axis if length is not None]) for axis in axes) or "1"


def _range(lengths: Sequence[int]) -> str:
    if not lengths:
        return "?"
    low, high = min(lengths), max(lengths)
    return f"{low}" if low == high else f"{low}-{high}"


def _rows(tensor: torch.Tensor, axis: int, samples: Sequence[int]) -> torch.Tensor:
    few = tensor.index_select(axis, torch.tensor(samples, device=tensor.device))
    if is_channels_last(tensor):
        few = few.contiguous(memory_format=CHANNELS_LAST[tensor.dim()])
    return few.requires_grad_(tensor.requires_grad) if few.is_leaf else few


_COLUMNS: Final = 16
"""Maximum length of an axis that may have a column of indices, as the coordinates of points have."""
_PLAIN: Final = (int, float, str, bytes, type(None))


def repeatable_split(values: Sequence[object], sizes: Sequence[int]) -> Split | None:
    """Return the location of the samples in values made for these batch sizes; None if repeats would be wrong.

    Repeats are right only if each part is a plain value or a dense tensor whose shape differs between the sizes along
    its axis of samples alone, if some part holds samples, and if none holds indices of samples, which grow with the
    batch size, or of the rows of large tables, since few rows would come from a cache.
    """
    split = split_of(values, sizes)
    if not can_count_samples(split) or not all(map(_is_plain, values)):
        return None
    if all(leaf == "whole" for _, leaf in leaves(None, split)):  # as if padded to a multiple of more samples
        return None
    for pairs in zip(*(leaves(value, split) for value in values), strict=True):
        parts, (leaf, *_) = zip(*pairs, strict=True)
        if isinstance(leaf, (int, Rows)):
            axis = leaf if isinstance(leaf, int) else leaf.axis
            if len({(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}) > 1:
                return None
    maxima = [maxima_of(value, split) for value in values]
    rows = [sum(most for key, most in each.items() if key[-1] == "integers") for each in maxima]  # type: ignore[index,misc]
    return None if max(rows) >= _LARGE_TABLE or indexes_samples(maxima, sizes) else split


def _is_plain(value: object, above: tuple[int, ...] = ()) -> bool:
    """Return whether a value holds plain parts alone, none of which refers back to a value that holds it."""
    if isinstance(value, torch.Tensor):
        return is_plain(value)
    parts = None if moves(value) else parts_of(value)
    if parts is None:
        return isinstance(value, _PLAIN)
    return id(value) not in above and all(_is_plain(part, (*above, id(value))) for part in parts.values())


def maxima_of(value: object, split: Split) -> dict[Hashable, float]:
    """Return the highest number in each part of a value, and in each column of its tensors, by a key.

    A column is one place along a short axis that is not the axis of the samples. The items of a list count as one part.
    Parts that are not plain are left out, and numbers of one byte, which are too small to count a batch.
    """
    highest: dict[Hashable, float] = {}
    for number, (part, leaf) in enumerate(leaves(value, split)):
        items = part if leaf == "listed" and isinstance(part, (list, tuple)) else [part]
        axis = leaf.axis if isinstance(leaf, Rows) else leaf
        for place, found in (pair for item in items if _is_plain(item) for pair in _maxima(item, axis)):
            key = number, *place
            highest[key] = max(found, highest.get(key, found))
    return highest


def _maxima(value: Any, samples: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Yield the highest number in each part and column of a plain value; the last item of its key is a column's axis.

    It is ``"integers"`` for all of a tensor or plain integer, or ``"numbers"``.
    """
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.element_size() == 1 or not value.numel():
            return
        numbers = value if value.is_floating_point() else value.long()
        yield (*path, "numbers" if value.is_floating_point() else "integers"), numbers.max().item()
        for axis, length in enumerate(value.shape):
            if axis != samples and length <= _COLUMNS and value.dim() > 1:
                found = numbers.amax([other for other in range(value.dim()) if other != axis]).tolist()
                yield from (((*path, column, axis), highest) for column, highest in enumerate(found))
    elif isinstance(value, int):
        yield (*path, "integers"), value
    else:
        for key, part in (parts_of(value) or {}).items():
            yield from _maxima(part, None, (*path, key))


def indexes_samples(maxima: Sequence[Mapping[Any, float]], sizes: Sequence[int]) -> bool:
    """Return whether a part or column of values made for these batch sizes holds indices of samples, by its maxima."""
    for key in set().union(*maxima):
        highest = [each.get(key, 0) for each in maxima]
        if _counts_samples(highest, sizes) or (key[-1] == "integers" and _grows(highest, sizes)):
            return True
    return False


def _counts_samples(highest: Sequence[float], sizes: Sequence[int]) -> bool:
    """Return whether the highest number belongs to the last sample in every batch, as in an index with k rows each.

    It is then whole, and between k (b - 1) and k b in a batch of b samples. Random numbers are not, not even in sparse
    columns.
    """
    if not all(float(number).is_integer() for number in highest):
        return False
    pairs = [*zip(highest, sizes, strict=True)]
    most = min(number / (size - 1) for number, size in pairs if size > 1)
    return max(1, *(number / size for number, size in pairs)) <= most


def _grows(highest: Sequence[float], sizes: Sequence[int]) -> bool:
    """Return whether the highest number grows in proportion to the batch size.

    It does if the largest batch's highest number exceeds two thirds of the number scaled up from each smaller batch.
    Numbers drawn below a bound come close to it with few samples and do not grow.
    """
    largest = max(sizes)
    top = highest[list(sizes).index(largest)]
    pairs = zip(highest, sizes, strict=True)
    return all(3 * top * size > 2 * largest * max(1, number) for number, size in pairs if size < largest)


def copies(few: int, many: int) -> Iterator[tuple[int, int, int]]:
    """Yield the copies that turn ``few`` samples into ``many``: source index, target index, number of samples.

    The source and target of a copy never overlap. The last sample is always a copy of the last of the few.
    """
    done = few
    while done < many:
        count = min(done, many - done)
        yield done - count, done, count
        done += count
