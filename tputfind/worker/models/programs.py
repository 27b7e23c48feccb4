"""Checks the serialized graph of an exported program: torch makes Python code of its names and evaluates its
expressions.

Every string must be of the kind that its field requires; in any other field it must be a plain word.
"""

import ast
import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

_WORD: Final = re.compile(r"[\w.\-/: ]*")
_TEXT: Final = re.compile(r"[\w .,:/+\-=>]*")
_TARGET: Final = re.compile(r"torch\.ops\.(aten|prims|torchvision|_?quantized|quantized_decomposed)\.(\w+)\.(\w+)")
_WRITE_FILES: Final = "save", "from_file"
_ARITHMETIC: Final = re.compile(
    r"_operator\.(abs|add|sub|mul|truediv|floordiv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_|lshift|rshift|getitem)"
    r"|math\.[a-z]\w*|torch\._?sym_\w+"
)
_NESTING: Final = re.compile(
    r"torch\.ops\.higher_order\.(associative_scan|cond|map_impl|scan|switch|while_loop|wrap|wrap_with_autocast"
    r"|wrap_with_set_grad_enabled|out_dtype|strict_mode|hints_wrapper|invoke_subgraph|flex_attention"
    r"|auto_functionalized|auto_functionalized_v2|tag_activation_checkpoint)"
)
"""Higher-order operators that run only graphs of the same file, and no code that was compiled elsewhere."""
_STRUCTURES: Final = re.compile(
    r"builtins\.(tuple|list|dict)|collections\.(OrderedDict|namedtuple|deque)"
    r"|torch\.(Size|return_types\.\w+|fx\.immutable_collections\.immutable_(list|dict))"
)
_OF_SYMPY: Final = re.compile(
    "Symbol|Integer|Float|Rational|Add|Mul|Pow|Max|Min|floor|ceiling|Abs|Piecewise|ExprCondPair|Tuple|log|exp|sqrt"
    "|Equality|Unequality|(Strict)?(Greater|Less)Than|Eq|Ne|Ge|Le|Gt|Lt|And|Or|Not|BooleanTrue|BooleanFalse"
)
_OF_GUARDS: Final = re.compile("L|math|torch|inf|min|max|int|float|bool|abs|round|IsNonOverlappingAndDenseIndicator")
_METHODS: Final = "size", "stride", "storage_offset", "item"
_ARITHMETIC_NODES: Final = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.Invert, ast.BinOp,
    ast.operator, ast.Compare, ast.cmpop, ast.IfExp, ast.Constant, ast.Name, ast.Load, ast.Call, ast.keyword, ast.Tuple,
)  # fmt: skip


def first_wrong(program: bytes) -> str:
    """Return the first part of a serialized program that is not data only; empty if there is none."""
    from torch._export.serde import schema, serialize

    read = serialize._bytes_to_dataclass(schema.ExportedProgram, program)  # noqa: SLF001  # as torch reads it
    return next(_wrong(read), "")


def _wrong(value: object, field: str = "") -> Iterator[str]:
    """Yield each fault in a part of a program; ``field`` is the name of the part's field."""
    if isinstance(value, str):
        check = _CHECKS.get(field, _is_word)
        if not check(value):
            shown = value if len(value) < 80 else f"{value[:76]} ..."
            yield f"has {shown!r} for {field.replace('_', ' ') or 'a word'}"
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from _wrong(key, f"key of {field}")
            if field != "metadata" or not isinstance(held, str):  # torch keeps it and never evaluates it
                yield from _wrong(held)
    elif isinstance(value, (list, tuple)):
        for held in value:
            yield from _wrong(held, field)
    elif dataclasses.is_dataclass(value) and hasattr(value, "target") and hasattr(value, "inputs"):  # a node
        yield from _wrong_node(value)
    elif hasattr(value, "type") and hasattr(value, "value"):  # a union of several kinds
        yield from _wrong(value.value, value.type)
    elif dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            yield from _wrong(getattr(value, one.name), one.name)


def _wrong_node(node: Any) -> Iterator[str]:
    for one in dataclasses.fields(node):
        if one.name != "inputs":
            yield from _wrong(getattr(node, one.name), one.name)
    for given in node.inputs:
        yield from _wrong(given.name, "name")
        if given.arg.type != "as_string" or not isinstance(given.arg.value, str):  # torch quotes it
            yield from _wrong(given.arg)


def _is_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None


def _is_name(text: str) -> bool:
    return not text or text.isidentifier()


def _is_text(text: str) -> bool:
    return _TEXT.fullmatch(text) is not None


def _is_target(text: str) -> bool:
    """Return whether an operator is one of torch's that uses only tensors."""
    if _ARITHMETIC.fullmatch(text) or _NESTING.fullmatch(text):
        return True
    found = _TARGET.fullmatch(text)
    if found is None or found[2] in _WRITE_FILES:
        return False
    packet = getattr(getattr(torch.ops, found[1]), found[2], None)
    return packet is None or isinstance(getattr(packet, found[3], None), torch._ops.OpOverload)  # noqa: SLF001


def _is_structure(text: str) -> bool:
    """Return whether nested inputs or outputs consist of plain containers; any others name modules to import."""
    _, structure = json.loads(text)
    return _is_plain(structure)


def _is_plain(structure: Any) -> bool:
    kind, context = structure["type"], structure["context"]
    if kind is not None and _STRUCTURES.fullmatch(kind) is None:
        return False
    if kind == "collections.namedtuple" or context is None:
        named = context is None or _is_word(context)
    else:
        held = json.loads(context)
        named = all(
            isinstance(key, int | None) or (isinstance(key, str) and key.isidentifier())
            for key in (held if isinstance(held, list) else [held])
        )
    return named and all(map(_is_plain, structure["children_spec"]))


def _is_expression(text: str) -> bool:
    """Return whether an expression is arithmetic, because sympy evaluates it as Python."""

    def is_safe(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Name) and _is_sympy_name(node.func.id)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return re.fullmatch(r"[\w.+\-]*", node.value, re.ASCII) is not None
        return isinstance(node, _ARITHMETIC_NODES)

    return _all_nodes(text, is_safe)


def _is_sympy_name(name: str) -> bool:
    import sympy  # type: ignore[import-untyped]
    from torch.utils._sympy import functions

    own = getattr(functions, name, None)
    return _OF_SYMPY.fullmatch(name) is not None or (isinstance(own, type) and issubclass(own, sympy.Function))


def _is_guard(text: str) -> bool:
    """Return whether a guard reads only sizes of inputs, because torch makes Python code of it."""

    def is_safe(node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return _OF_GUARDS.fullmatch(node.id) is not None
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Attribute | ast.Name)
        if isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            if of in ("math", "torch"):
                return re.fullmatch("[a-z]+" if of == "math" else r"_?sym_\w+", node.attr) is not None
            return node.attr in _METHODS
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value.isidentifier()
        return isinstance(node, (*_ARITHMETIC_NODES, ast.Subscript))

    return _all_nodes(text, is_safe)


def _all_nodes(text: str, allowed: Callable[[ast.AST], bool]) -> bool:
    try:
        return text.isascii() and "\n" not in text and all(map(allowed, ast.walk(ast.parse(text, mode="eval"))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


_CHECKS: Final[dict[str, Callable[[str], bool]]] = {
    **dict.fromkeys(("name", "as_name", "forward_arg_names", "field_names"), _is_name),
    **dict.fromkeys(("target", "as_operator"), _is_target),
    **dict.fromkeys(("in_spec", "out_spec"), _is_structure),
    **dict.fromkeys(("as_string", "as_strings"), _is_text),
    "key of range_constraints": _is_expression,
    "expr_str": _is_expression,
    "guards_code": _is_guard,
    "torch_version": lambda text: _is_text(text.replace("<", "")),
}
