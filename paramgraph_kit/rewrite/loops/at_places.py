"""Loops over the places where a mask holds become loops over all places, with a branch in each round.

``for i in (x > 0).nonzero().flatten().tolist(): out[i] = 2 * x[i]`` asks how many there are; ``if there[i]:`` asks for
one at a time, which the rules for branches let the device decide.
"""

from __future__ import annotations

import ast
import re

from paramgraph_kit.rewrite.expressions.picks.listed import listed_mask
from paramgraph_kit.rewrite.source.edits import Edit, first_line, locals_of, names_in, within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh

MANY = 64  # rounds: more of them are slower than the question
_ROW = re.compile(r"nonzero of \w+\[(\d+)\]")
_HOSTED = ("tolist", "cpu", "numpy", "unbind", "detach")


def ask_in_each_round(place: Place) -> list[Edit]:
    """A loop over the places of a mask of one dimension, or over a name that has only these."""
    node, function, source = place.statement, place.source.function_of(place.statement), place.source
    row = _ROW.search(place.failure.message)
    if function is None or row is None or int(row[1]) > MANY:
        return []
    edits = list[Edit]()
    loop: ast.stmt | None = node
    if isinstance(node, ast.Assign):
        loop, found = _loop_over(place, node), _mask(node.value)
        edits = [source.without(node)]
    else:
        found = _mask(node.iter) if isinstance(node, ast.For) else None
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name) or loop.orelse or found is None:
        return []
    mask, numbers = found
    parts = [n for each in loop.body for n in within(each)]
    name, changed = loop.target.id, stored(loop.body)
    every = [n for each in function.body for n in within(each) if isinstance(n, ast.Name) and n not in parts]
    if any(n.id == name and n is not loop.target for n in every) or name in changed:
        return []  # behind the loop it would be the last of all
    if not numbers and any(_asks_for_a_tensor(place, n, name) for n in parts):
        return []
    if any(isinstance(n, ast.Constant) and isinstance(n.value, str) and n.lineno != n.end_lineno for n in parts):
        return []  # a text over several lines would get other white space
    there = fresh("there", names_in(source.tree) | locals_of(function))
    begin, deep = f"{source.indent(loop)}{there} = {mask}\n", source.indent(loop.body[0])
    body = source.lines[first_line(loop.body[0]) - 1 : loop.end_lineno]
    if first_line(loop.body[0]) == loop.lineno:
        return []
    step = deep.removeprefix(source.indent(loop))
    lines = [begin, f"{source.indent(loop)}for {name} in range(len({there})):\n", f"{deep}if {there}[{name}]:\n"]
    lines += [f"{step}{line}" if line.strip() else line for line in body]
    end = loop.end_lineno or loop.lineno
    return [*edits, Edit(loop.lineno, 0, end + 1, 0, "".join(lines))]


def _mask(listed: ast.expr) -> tuple[str, bool] | None:
    """The mask whose places are listed, as it is written, and whether they are listed as numbers of the host's."""
    numbers = False
    while isinstance(listed, ast.Call) and called(listed) in _HOSTED and isinstance(listed.func, ast.Attribute):
        numbers |= called(listed) == "tolist"
        listed = listed.func.value
    mask = listed_mask(listed)
    if mask is None:
        return None
    text = ast.unparse(mask)
    copied = isinstance(mask, (ast.Name, ast.Attribute, ast.Subscript))  # which a round may write into
    return f"{text}.clone()" if copied else text, numbers


def _loop_over(place: Place, node: ast.Assign) -> ast.For | None:
    """The loop that goes through what a statement gives a name, if nothing else reads that."""
    target, function = node.targets[0], place.source.function_of(node)
    if not isinstance(target, ast.Name) or len(node.targets) != 1 or function is None:
        return None
    every = [n for each in function.body for n in within(each) if isinstance(n, ast.Name) and n.id == target.id]
    others = [n for n in every if n is not target]
    above = place.source.parents.get(others[0]) if len(others) == 1 else None
    beside = place.source.block_of(node)
    if not isinstance(above, ast.For) or above.iter is not others[0] or above not in beside:
        return None
    moved = stored(beside[beside.index(node) + 1 : beside.index(above)]) & names_in(node.value)
    return None if moved else above


def _asks_for_a_tensor(place: Place, node: ast.AST, name: str) -> bool:
    """Whether a name is more than an index, which the number in its place would be as well."""
    if not isinstance(node, ast.Name) or node.id != name:
        return False
    above = place.source.parents.get(node)
    return not isinstance(above, ast.Subscript) or above.slice is not node
