"""Tensors that a rewritten step writes in place, and that lines outside of it give another: a graph reads the first.

Six steps alone do not run these lines: ``def restart(self): self.state = zeros``, beside a step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.kept_numbers import object_of
from paramgraph_kit.rewrite.rounds import Rounds
from paramgraph_kit.rewrite.source.edits import Function, Source, functions_of, path_of, within
from paramgraph_kit.rewrite.ways import Ways

MOST = 3
TOLD = (
    "`{path}` is one tensor now, which a graph reads where it is: line {line} writes `{path}.copy_({value})` for "
    "`{path} = {value}`, or capture again behind it"
)


def told(attempt: Ways, rounds: Rounds) -> list[str]:
    """What such a line is to write, by the names that it has."""
    found = list[str]()
    for file, lines in rounds.texts.items():
        source = attempt.sources.get(file)
        if source is None:
            continue
        ran = {code.co_qualname for code in attempt.ran}
        inside = [*functions_of(source.tree, ran)]
        before = {path for each in inside for path, _ in _bound(each)}
        after = {path for each in functions_of(ast.parse("".join(lines)), ran) for path, _ in _bound(each)}
        owner = object_of(attempt)
        each = [at for path in before - after for at in _elsewhere(source, inside, path, owner)]
        found += [
            TOLD.format(path=path, line=node.lineno, value=source.text(node.value))
            for path, node in sorted(each, key=lambda at: (at[1].lineno, at[0]))
        ]
    return found[:MOST]


def _bound(part: ast.AST) -> Iterator[tuple[str, ast.Assign]]:
    """What assignments give another value that lives on: attributes, and names of the module's."""
    nodes = [n for each in getattr(part, "body", ()) for n in within(each)]
    shared = {name for n in nodes if isinstance(n, ast.Global) for name in n.names}
    for node in (n for n in nodes if isinstance(n, ast.Assign)):
        for path in (path_of(t) for t in node.targets if isinstance(t, (ast.Name, ast.Attribute))):
            if "." in path or path in shared or not isinstance(part, Function):
                yield path, node


def _elsewhere(source: Source, inside: list[Function], path: str, owner: str) -> Iterator[tuple[str, ast.Assign]]:
    """Lines that no step runs and that give it another value, as they call it; where an object is made, it is new."""
    classes = {source.parents.get(each) for each in inside}
    loops = [n for n in source.tree.body if isinstance(n, (ast.For, ast.While))]
    for part in (*loops, *(n for n in ast.walk(source.tree) if isinstance(n, Function) and n not in inside)):
        own = source.parents.get(part) in classes
        if isinstance(part, Function) and part.name == "__init__" and own:
            continue
        for other, node in _bound(part):
            first, _, rest = other.partition(".")
            if (other == path and (first != "self" or own)) or (path == f"self.{rest}" and first == owner != "self"):
                yield other, node
