"""The lines of a diff that take the place of others, and where a statement of the user's is beside them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from paramgraph_kit.doctor.diagnosis import Fix
from paramgraph_kit.rewrite.reads import only_around
from paramgraph_kit.rewrite.source.edits import Source, path_of
from paramgraph_kit.rewrite.source.place import around_launches
from paramgraph_kit.trace.model import Failure

_HUNK = re.compile(r"@@ -(\d+)")


@dataclass(slots=True)
class Block:
    """Lines of a diff that take the place of others."""

    file: str
    first: int  # of the lines that go
    gone: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


def blocks_of(diff: str) -> Iterator[Block]:
    """The blocks of a diff, one after the other."""
    file, number, block = "", 0, None
    for line in diff.splitlines(keepends=True):
        if block is not None and line[0] not in "+-":
            yield block
            block = None
        if line.startswith("--- "):
            file = line[4:].strip()
        elif (hunk := _HUNK.match(line)) is not None:
            number = int(hunk[1])
        elif line[0] in "+-" and not line.startswith("+++ "):
            block = block or Block(file, number)
            (block.gone if line[0] == "-" else block.new).append(line[1:])
            number += line[0] == "-"
        else:
            number += 1
    if block is not None:
        yield block


def is_touched(failure: Failure, place: tuple[Source, ast.stmt] | None, blocks: Sequence[Block]) -> bool:
    """Whether a diff takes out a line of the statement that has a problem."""
    if failure.frame is None or place is None:
        return True
    first, last = lines_of(place[1])
    mine = (each for each in blocks if each.file == failure.frame.file)
    return any(each.first <= last and first < each.first + max(len(each.gone), 1) for each in mine)


def is_a_tensor_now(place: tuple[Source, ast.stmt] | None, blocks: Sequence[Block]) -> bool:
    """Whether a diff makes a tensor of the number that a statement counts, so that the graph counts it."""
    node = place[1] if place is not None else None
    name = path_of(node.target) if isinstance(node, ast.AugAssign) else ""
    made = re.compile(rf"\s*{re.escape(name)} = torch\.(?:tensor|zeros|full)\(")
    return bool(name) and any(made.match(line) for each in blocks for line in each.new)


def is_only_around(place: tuple[Source, ast.stmt], fix: Fix) -> bool:
    """Whether only what a diff put around the launch calls the function that a statement is in."""
    source, statement = place
    function, lines = source.function_of(statement), fix.texts.get(source.file, [])
    if function is None or not lines:
        return False
    tree = ast.parse("".join(lines))
    around = [each.name for mark in ("before", "after") for each in around_launches(source.file, lines, tree, mark)]
    return function.name in only_around(tree, around)


def is_beside_a_round(place: tuple[Source, ast.stmt] | None, fix: Fix, entry: str) -> bool:
    """Whether a statement is the entry's own, of which a graph of a round has nothing but what the diff cuts out."""
    function = place[0].function_of(place[1]) if place is not None else None
    return fix.is_of_loop and function is not None and function.name == entry


def lines_of(statement: ast.stmt) -> tuple[int, int]:
    """The first and the last line of a statement; of a compound one those of its head."""
    body = getattr(statement, "body", None)
    last = min(part.lineno for part in body) - 1 if isinstance(body, list) and body else statement.end_lineno
    return statement.lineno, max(last or statement.lineno, statement.lineno)


def head_of(node: ast.AST) -> str:
    """What a branch asks, or a loop goes through; "" for any other."""
    if not isinstance(node, (ast.If, ast.While, ast.For)):
        return ""
    asked = [node.target, node.iter] if isinstance(node, ast.For) else [node.test]
    return f"{type(node).__name__} {' '.join(map(ast.dump, asked))}"


def heads_like(tree: ast.AST, head: str) -> int:
    """How many branches or loops ask the same, or go through it."""
    return sum(head_of(node) == head for node in ast.walk(tree))


def like_of(line: str, lines: Sequence[str]) -> str:
    """The one of other lines that takes the place of this: what gives the same name its value.

    What only takes a part's result over is of another line.

    >>> like_of("q = q + self.eps * p", ["q = q + eps_in * p"]), like_of("q = q + self.eps * p", ["q = q.clone()"])
    ('q = q + eps_in * p', '')
    """
    name, equals, _ = line.partition(" = ")
    found = [each.strip() for each in lines if equals and each.strip().startswith(f"{name} = ")]
    return found[0] if len(found) == 1 and not (_reads(found[0]) == {name} != _reads(line)) else ""


def _reads(line: str) -> set[str]:
    with suppress(SyntaxError):
        return {n.id for n in ast.walk(ast.parse(line)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return set()
