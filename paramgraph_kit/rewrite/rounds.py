"""What the rounds of a loop ask the host for goes before the launch for all of them: tensors have an element for each.

Where a round asks for several things, they are asked for in the loop's own order, with what the host makes of them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from paramgraph_kit.rewrite import moving
from paramgraph_kit.rewrite.edits import Edit, Source, names_in, within
from paramgraph_kit.rewrite.hosts import is_of_host
from paramgraph_kit.rewrite.place import called, fresh

_KINDS = (ast.Assign, ast.AugAssign, ast.AnnAssign)


def given(statement: ast.stmt) -> list[str]:
    """The names that a statement gives a value to."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def each_of(loop: ast.stmt, statement: ast.stmt, node: ast.expr, made: Sequence[ast.stmt] = ()) -> ast.expr:
    """What a loop asks in all its rounds, as one expression; ``made`` by statements of its own."""
    if loop is statement or not isinstance(loop, ast.For):
        return node
    if not _reads_target(loop, [node, *made]) and not made:
        return node
    values = [each.value for each in made if isinstance(each, _KINDS) and each.value is not None]
    names: list[ast.expr] = [ast.Name(name, ast.Store()) for name in sorted(moving.stored(made))]
    whole = ast.Tuple([node, *values], ast.Load()) if made else node
    if not _reads_target(loop, [node, *made]):
        through = ast.comprehension(ast.Tuple(names, ast.Store()), ast.Tuple([], ast.Load()), [], 0)
        return ast.ListComp(whole, [through])
    target = ast.Tuple([loop.target, *names], ast.Store()) if names else loop.target
    return ast.ListComp(whole, [ast.comprehension(target, loop.iter, [], 0)])


def drawn_in(source: Source, statement: ast.stmt, node: ast.expr) -> tuple[ast.stmt, ast.expr] | None:
    """Where the round of a loop gives a name its value, ``flag = random.random() < p``, once."""
    loop = source.parents.get(statement)
    if not isinstance(node, ast.Name) or not isinstance(loop, ast.For) or node.id not in moving.stored(loop.body):
        return None
    if isinstance(source.parents.get(node), ast.Slice):
        return None  # its place is read from a tensor, and no end of a slice is one
    made = [n for n in ast.walk(loop) if isinstance(n, ast.Assign) and given(n) == [node.id]]
    stored = [n for n in ast.walk(loop) if isinstance(n, ast.Name) and n.id == node.id and n is not node]
    once = len(made) == 1 and made[0] in loop.body and made[0].lineno < statement.lineno and len(stored) == 1
    return (made[0], made[0].value) if once else None


def made_in(
    loop: ast.For, statement: ast.stmt, node: ast.expr, is_host: Callable[[ast.expr], bool]
) -> list[ast.stmt] | None:
    """The statements of a loop by which a round makes what an expression reads; None where the device has a part."""
    if statement not in loop.body or any(isinstance(n, moving.STOPS) for part in loop.body for n in within(part)):
        return None
    targets, stored = moving.stored([ast.Expr(loop.target)]), moving.stored(loop.body)
    needed, found = names_in(node), list[ast.stmt]()
    for before in reversed(loop.body[: loop.body.index(statement)]):
        if not moving.stored([before]) & needed - targets:
            continue
        if not isinstance(before, _KINDS) or not is_of_host(before, is_host, targets):
            return None
        found.insert(0, before)
        needed = needed | names_in(before)
    if (needed - targets) & stored - moving.stored(found):
        return None  # what a round hands on to the next
    order = loop.body
    for each in (*found, statement):
        read = names_in(each) if each is not statement else names_in(node)
        stay = [one for one in order[: order.index(each)] if one not in found]
        if read & targets & moving.stored(stay):
            return None  # by then it is another thing than the loop has given
    return found


def in_order(
    source: Source, loop: ast.For, made: Sequence[ast.stmt], lines: Mapping[ast.stmt, list[str]], at: str, rounds: int
) -> list[str]:
    """The loop as the host goes through it before the launch; ``at`` is the number of the round in it."""
    inner = list[str]()
    for node in (each for each in loop.body if each in made or each in lines):
        if node in made:
            depth = len(source.indent(node))
            inner += [line[depth:].rstrip() for line in source.part(node, source.lines)]
        inner += lines.get(node, ())
    targets = moving.stored([ast.Expr(loop.target)])
    read = names_in(ast.parse("\n".join(inner))) & targets
    body = [f"    {line}" for line in inner]
    if at.isidentifier() and read <= {at}:
        return [f"for {at} in range({rounds}):", *body]
    target, every = source.text(loop.target), source.text(loop.iter)
    if at.isidentifier() and at not in targets:
        target = f"{at}, ({target})" if isinstance(loop.target, ast.Tuple) else f"{at}, {target}"
        every = f"enumerate({every})"
    return [f"for {target} in {every}:", *body]


def is_the_same(loop: ast.stmt, node: ast.expr) -> bool:
    """Whether all rounds of a loop, which nothing in it decides, ask for one number that was found before it."""
    inside = moving.stored([loop]) if isinstance(loop, ast.For) else set[str]()
    return not names_in(node) & inside and not any(isinstance(n, ast.Call) for n in ast.walk(node))


def through(source: Source, loop: ast.For, node: ast.expr, rounds: int) -> str:
    """How a comprehension goes through all rounds of a loop."""
    if _reads_target(loop, [node]):
        return f"for {source.text(loop.target)} in {source.text(loop.iter)}"
    return f"for _ in range({rounds})"


def number_of(source: Source, loop: ast.For, taken: set[str]) -> tuple[str, list[Edit]]:
    """The number of the round in a loop, and edits that count it where nothing does."""
    call, target = loop.iter, loop.target
    if isinstance(call, ast.Call) and called(call) == "range" and isinstance(target, ast.Name) and len(call.args) < 3:
        first = source.text(call.args[0]) if len(call.args) == 2 else "0"
        return (target.id, []) if first == "0" else (f"{target.id} - {first}", [])
    counted = isinstance(call, ast.Call) and called(call) == "enumerate" and len(call.args) == 1
    if counted and isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
        return target.elts[0].id, []
    name = fresh("n", taken)
    text = source.text(target)
    text = f"({text})" if isinstance(target, ast.Tuple) else text
    return name, [source.replace(target, f"{name}, {text}"), source.replace(call, f"enumerate({source.text(call)})")]


def _reads_target(loop: ast.For, nodes: Sequence[ast.AST]) -> bool:
    targets = moving.stored([ast.Expr(loop.target)])
    return any(names_in(node) & targets for node in nodes)
