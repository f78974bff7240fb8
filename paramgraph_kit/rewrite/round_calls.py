"""What a loop writes in the place of a round: its call, what goes around it, and the loop's names for what it gives."""

from __future__ import annotations

from collections.abc import Sequence

from paramgraph_kit.rewrite.loops.one_round import Round
from paramgraph_kit.rewrite.result import Rewriting


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


def named(line: str, found: Round) -> str:
    """A line around a launch, with the loop's names for what a round gives."""
    results = f"{', '.join(found.results)} = " * bool(found.results)
    return results + line.removeprefix("out = ") if line.startswith("out = ") else line


def called(found: Round, bound: int, graph: str) -> str:
    """What the loop writes for a round that is launched, from which graph."""
    return f"{', '.join(found.results)} = " * bool(found.results) + f"{graph}({', '.join(found.parameters[bound:])})"
