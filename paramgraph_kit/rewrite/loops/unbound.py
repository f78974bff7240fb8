"""A name that only a way which is not taken would give a value: a round that is given it needs one before its loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

from paramgraph_kit.rewrite.loops.spans import Block
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source
from paramgraph_kit.rewrite.source.moving import stored

_QUOTED = re.compile(r"'(\w+)'")


def unbound(error: Exception, parameters: Collection[str]) -> str:
    """The parameter of a round that had no value where its loop called it, or ""."""
    said = _QUOTED.findall(str(error)) if isinstance(error, UnboundLocalError) else []
    return next((name for name in said if name in parameters), "")


def none_before(source: Source, function: Function, loop: Block, name: str) -> list[Edit]:
    """``scaler = None`` before ``if use_amp:`` that may make it one; nothing where another place does as well."""
    if any(isinstance(n, (ast.Global, ast.Nonlocal)) and name in n.names for n in ast.walk(function)):
        return []
    giving = [node for node in function.body if name in stored([node])]
    first = giving[0] if giving else None
    if not isinstance(first, ast.If) or first.lineno >= loop.lineno:
        return []
    return [source.before(first, [f"{name} = None"])]
