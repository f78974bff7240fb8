"""Numbers that what is captured counts on itself, ``self.t += 1``: told there, and not where a line sets them back."""

from __future__ import annotations

import ast
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.observe.held import methods_of
from paramgraph_kit.doctor.observe.own_regions import Region


def counts_itself(region: Region, owner: Any, attribute: str) -> bool:
    """Whether a method of an object that the captured lines call counts it, or one that this calls."""
    methods = methods_of(type(owner))
    waiting = [last_name(n.func) for s in region.body for n in ast.walk(s) if isinstance(n, ast.Call)]
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in methods:
            continue
        seen.add(name)
        nodes = [*nodes_of(methods[name])]
        waiting += [last_name(n.func) for n in nodes if isinstance(n, ast.Call)]
        moved = (n.target for n in nodes if isinstance(n, ast.AugAssign))
        if any(isinstance(n, ast.Attribute) and n.attr == attribute for n in moved):
            return True
    return False
