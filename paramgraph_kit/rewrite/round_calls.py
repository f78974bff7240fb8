"""What a loop writes in the place of a round: its call, what goes around it, and the loop's names for what it gives."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from paramgraph_kit.doctor import cell
from paramgraph_kit.rewrite.loops.one_round import Round
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.source.edits import Function, path_of, within


def with_calls(found: Round, fix: Rewriting, lines: Sequence[str]) -> list[str]:
    """The lines of a file whose loop also calls what goes around a launch of its round."""
    results, arguments = ", ".join(found.results), ", ".join(found.parameters)
    call = f"{results} = " * bool(results) + f"{found.name}({arguments})"
    at = next(n for n, line in enumerate(lines) if line.strip() == call)
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    around = []
    for line in fix.loop:
        gets, _, rest = named(line, found).rpartition(" = ")
        rest = f"{found.name}({arguments})" if rest.startswith("launched(") else rest
        around.append(f"{indent}{gets} = {rest}\n" if gets else f"{indent}{rest}\n")
    return [*lines[:at], *around, *lines[at + 1 :]]


def unpacks_otherwise(texts: Mapping[str, Sequence[str]], name: str) -> bool:
    """Whether lines take another number of values from a function of theirs than it returns."""
    trees = [cell.parsed("".join(lines), file) for file, lines in texts.items()]
    every = [node for tree in trees for node in ast.walk(tree)]
    own = [node for node in every if isinstance(node, Function) and node.name == name]
    returns = [n for each in own for part in each.body for n in within(part) if isinstance(n, ast.Return)]
    given = {_values(each.value) for each in returns} or {0}
    calls = [n for n in every if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)]
    taken = {_values(n.targets[0]) for n in calls if path_of(n.value.func) == name}  # type: ignore[attr-defined]
    return bool(own) and None not in given | taken and not taken <= given


def _values(node: ast.expr | None) -> int | None:
    """How many values an expression gives, or takes; None where it does not say."""
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node] if node is not None else []
    return len(parts) if not any(isinstance(each, ast.Starred) for each in parts) else None


def named(line: str, found: Round) -> str:
    """A line around a launch, with the loop's names for what a round gives."""
    results = f"{', '.join(found.results)} = " * bool(found.results)
    return results + line.removeprefix("out = ") if line.startswith("out = ") else line


def called(found: Round, bound: int, graph: str) -> str:
    """What the loop writes for a round that is launched, from which graph."""
    return f"{', '.join(found.results)} = " * bool(found.results) + f"{graph}({', '.join(found.parameters[bound:])})"
