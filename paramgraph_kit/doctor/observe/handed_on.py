"""A name that a loop of captures hands on from one to the next: each graph reads what the one before makes."""

from __future__ import annotations

import ast
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import LOOPS, here, last_name, tree_of
from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.doctor.observe.own_regions import all_blocks, assigned


def is_handed_on(code: CodeType, name: str) -> bool:
    """Whether a loop of captures in a function gives a name what they make, and a line ahead of the loop begins it.

    A name that nothing gives again there begins with what the call before has left: that is another matter.
    """
    tree, captured = tree_of(code.co_filename), captured_in(code)
    made = {each for body in captured for each in assigned(body)}
    for block in all_blocks(tree) if tree is not None and made else ():
        for at, loop in enumerate(block):
            inside = [*here(loop)] if isinstance(loop, LOOPS) else []
            if any(body[0] in inside for body in captured) and any(_gives(n, name, made) for n in inside):
                return any(_gives(n, name) for statement in block[:at] for n in here(statement))
    return False


def _gives(node: ast.AST, name: str, values: set[str] | None = None) -> bool:
    if not isinstance(node, ast.Assign) or all(last_name(each) != name for each in node.targets):
        return False
    return values is None or (isinstance(node.value, ast.Name) and node.value.id in values)
