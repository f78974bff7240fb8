"""Branches on what the host has drawn, which a few calls may all take the same way: ``if random.random() < 0.9``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.observe.compare import RANDOM_WORDS
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Frame


def tests(codes: Iterable[CodeType]) -> Iterator[Frame]:
    """The lines of such branches, as far as the names tell that they read."""
    for code in codes:
        nodes = list(nodes_of(code))
        drawn = {
            name.id
            for node in nodes
            if isinstance(node, (ast.Assign, ast.NamedExpr)) and _draws(node.value)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            for name in ast.walk(target)
            if isinstance(name, ast.Name)
        }
        for node in nodes:
            if isinstance(node, (ast.If, ast.IfExp, ast.While)) and _asks(node.test, drawn):
                yield frame_at(code, node.lineno)


def _asks(test: ast.expr, drawn: set[str]) -> bool:
    return _draws(test) or any(isinstance(n, ast.Name) and n.id in drawn for n in ast.walk(test))


def _draws(node: ast.expr) -> bool:
    """Whether it calls what draws, and not on a device that it names: that would be asked for there."""
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(
        any(word in last_name(call.func) for word in RANDOM_WORDS) and all(k.arg != "device" for k in call.keywords)
        for call in calls
    )
