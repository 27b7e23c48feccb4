"""Reads a user's Python file without running it: which factories it defines, and which of them return nothing."""

import ast
from pathlib import Path
from typing import Final

_MOST_NAMES: Final = 8


def callables_in(path: Path) -> list[str]:
    """Return the public top-level functions and classes of a file; an empty list if it cannot be read."""
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [one.name for one in _statements(path) if isinstance(one, defined) and not one.name.startswith("_")]


def factories_of(path: Path) -> str:
    """Return a phrase with the functions and classes that a file defines; empty if there are none."""
    names = callables_in(path)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"it defines {', '.join(names[:_MOST_NAMES])}{more}" if names else ""


def is_entry_point(path: Path, name: str) -> bool:
    """Return whether a function returns nothing and its file calls it as a script: a call would run the script."""
    statements = _statements(path)
    functions = [one for one in statements if isinstance(one, ast.FunctionDef) and one.name == name]
    others = [one for one in statements if isinstance(one, (ast.If, ast.Expr))]
    called = any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
        for one in others
        for node in ast.walk(one)
    )
    return bool(functions) and called and not functions[-1].decorator_list and not _returns(functions[-1])


def _returns(function: ast.FunctionDef) -> bool:
    """Return whether a function, or one nested in it, returns a value or yields."""
    return any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) or (isinstance(node, ast.Return) and node.value is not None)
        for node in ast.walk(function)
    )


def _statements(path: Path) -> list[ast.stmt]:
    try:
        return ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # running the file gives a better message
        return []
