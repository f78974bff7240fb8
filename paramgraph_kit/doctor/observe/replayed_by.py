"""Lines that replay a graph which holds a function alone, ``with graph(g): net.step()``: they stand for its calls."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.doctor.observe.captures_written import graph_of


def graphs_of(file: str, function: Any) -> frozenset[str]:
    """How the graphs of a file are called into which that function is captured, and nothing else."""
    name = getattr(function, "__name__", "")
    tree = tree_of(file) if name and name not in ("forward", "__call__", "<lambda>") else None
    return frozenset(graph for called, graph in _captured(tree) if called == name) if tree is not None else frozenset()


def replays_it(call: ast.Call, graphs: frozenset[str]) -> bool:
    """Whether a call replays one of these."""
    launched = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "replay" else None
    return launched is not None and last_name(launched) in graphs


@lru_cache(maxsize=64)
def _captured(tree: ast.Module) -> tuple[tuple[str, str], ...]:
    """What each capture calls, and its graph; one with other lines beside that may be of something else."""
    found = []
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.With) and len(n.body) == 1):
        graph, value = graph_of(node, {}), getattr(node.body[0], "value", None)
        if graph is not None and isinstance(value, ast.Call):
            found.append((last_name(value.func), last_name(graph)))
    return tuple(found)
