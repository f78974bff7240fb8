"""Whether words tell exactly what to write: in names that the user has or that they make themselves, nothing open."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable

from paramgraph_kit.rewrite.source.edits import Source

_CODE = re.compile(r"`([^`]+)`")
_SAID = re.compile(r"(?:with a number `(?=\w+` of which)|of the graph `)(\w+)")  # what it is follows
_OPEN = (
    "the host decides here",
    "where the host decides it",
    "what the host has here",
    "it decides a size: take it from a shape",
    "into a tensor that this line reads",
    "what comes of it in a tensor",
)
_KNOWN = frozenset({*dir(builtins), "torch", "F", "device", "pgk", "functools", "launched", "graphs"})


def is_specific(text: str, names: Iterable[str]) -> bool:
    """Whether some words leave nothing to the reader: no ``...``, no ``new`` and ``values`` that the file has not."""
    if not text or any(each in text for each in _OPEN):
        return False
    nodes = [node for code in _CODE.findall(text) for node in ast.walk(_parsed(code))]
    loads = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    made = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    made |= {n.arg for n in nodes if isinstance(n, ast.arg)} | {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
    made |= {*_SAID.findall(text)}
    is_open = any(isinstance(n, ast.Constant) and n.value is ... and not _is_index(n, nodes) for n in nodes)
    return not is_open and not loads - made - _KNOWN - {*names}


def names_of_files(files: Iterable[str]) -> set[str]:
    """All that has a name in some files."""
    sources = filter(None, map(Source.of, dict.fromkeys(files)))
    nodes = [node for source in sources for node in ast.walk(source.tree)]
    named = (getattr(n, key, None) for n in nodes for key in ("id", "arg", "name", "asname"))
    return {each for each in named if isinstance(each, str)}


def _parsed(code: str) -> ast.AST:
    """What stands between two marks, also the head of a loop or ``.clamp(min=1)``; nothing for what is no Python."""
    for text in (code, f"{code} pass", f"device{code}"):
        try:
            return ast.parse(text.strip())
        except SyntaxError:
            continue
    return ast.Module([], [])


def _is_index(node: ast.Constant, nodes: list[ast.AST]) -> bool:
    """Whether ``...`` is of ``x[..., 0]``."""
    indexes = [n.slice for n in nodes if isinstance(n, ast.Subscript)]
    return any(node is each or node in getattr(each, "elts", ()) for each in indexes)
