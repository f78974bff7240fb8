"""What both ways of a branch end with, which is done behind it: ``if c: t = a; log(t)``, ``else: t = b; log(t)``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Edit
from paramgraph_kit.rewrite.source.place import Place


def do_it_behind(place: Place) -> list[Edit]:
    """The same lines at the end of both ways come behind the branch, which is then a choice of what they read."""
    node = place.statement
    if not isinstance(node, ast.If) or not node.orelse:
        return []
    count = 0
    for one, other in zip(reversed(node.body[1:]), reversed(node.orelse[1:]), strict=False):
        if not isinstance(one, ast.Expr) or ast.dump(one) != ast.dump(other):
            break
        count += 1
    if not count:
        return []
    ends = [*node.body[-count:], *node.orelse[-count:]]
    lines = [place.text(each) for each in node.body[-count:]]
    return [*place.source.without_all(ends), place.source.after(node, lines)]
