"""Variables that a function gives something, and that no line of it reads."""

from __future__ import annotations

import ast
from functools import lru_cache
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import nodes_of


@lru_cache(1024)
def never_loaded(code: CodeType) -> tuple[tuple[str, int], ...]:
    """Their names, each with its last line, of assignments of one variable alone."""
    nodes = [*nodes_of(code)]
    assigns = [n for n in nodes if isinstance(n, ast.Assign) and len(n.targets) == 1]
    stored = {n.targets[0].id: n.lineno for n in assigns if isinstance(n.targets[0], ast.Name)}
    loaded = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)}
    shared = {name for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
    own = {*code.co_varnames[code.co_argcount + code.co_kwonlyargcount :]} - {*code.co_cellvars} - shared
    return tuple((name, line) for name, line in stored.items() if name in own - loaded and not name.startswith("_"))
