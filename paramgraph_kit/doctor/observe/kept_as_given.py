"""Lines ahead of a capture that keep an argument as it is: ``self.mask = mask``, ``static = {"mask": mask}``.

What is captured reads it by that name, so a clone of it that is made behind such a line is read by nobody; and a copy
to that name ahead of a replay writes into the tensor of the caller's that the capture was given.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name, nodes_of, pairs_of


@dataclass(frozen=True, slots=True)
class KeptAsGiven:
    """One such line."""

    name: str  # the argument
    path: str  # what it is kept as
    line: int

    @property
    def cloned(self) -> str:
        """What is said of it beside a copy to its path."""
        return f"line {self.line} keeps `{self.name}.clone()` for `{self.name}`, as that is its caller's tensor"


def kept_as_given(code: CodeType, before: int = sys.maxsize) -> Iterator[KeptAsGiven]:
    """Those of a function, ahead of a line where one is given, in their order."""
    named = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]}
    nodes = [*nodes_of(code)]
    anew = {t.id for node in nodes for t, _ in pairs_of(node) if isinstance(t, ast.Name)}
    for node in sorted((n for n in nodes if isinstance(n, ast.stmt) and n.lineno < before), key=lambda n: n.lineno):
        for target, value in pairs_of(node):
            for part, given in _parts(value):
                if isinstance(given, ast.Name) and given.id in named - anew and given.id != "self":
                    yield KeptAsGiven(given.id, ast.unparse(target) + part, node.lineno)


def _parts(value: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    """What a value holds, by the way to it."""
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        yield from ((f"[{k.value!r}]", v) for k, v in pairs if isinstance(k, ast.Constant))
    elif isinstance(value, ast.Call) and last_name(value.func) == "dict":
        yield from ((f"[{k.arg!r}]", k.value) for k in value.keywords if k.arg)
    elif isinstance(value, (ast.Tuple, ast.List)):
        yield from ((f"[{i}]", each) for i, each in enumerate(elements_of(value)))
    else:
        yield "", value
