"""``self.h = self.h.detach()`` at the end of a step becomes a copy into memory of its own, which the next step reads.

So a step lets go of the history of a state that it carries on; a replay would go on reading what the capture had.
"""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Edit, assigned, heads, names_in, path_of
from paramgraph_kit.rewrite.source.place import Place, fresh


def keep_its_place(place: Place) -> list[Edit]:
    """What the statement reads of its object, and another line detaches, is copied there to where it was."""
    source, edits = place.source, list[Edit]()
    owner = _class_of(place, place.statement)
    read = {path_of(n) for n in heads(place.statement) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
    read = {path for path in read if path.startswith("self.") and path.count(".") == 1}
    for node in ast.walk(source.tree) if owner is not None and read else ():
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or _class_of(place, node) is not owner:
            continue
        freed = [
            (path_of(to), new) for to, new in assigned(node) if path_of(to) in read and _is_detached(new, path_of(to))
        ]
        lines = []
        for path, new in freed:
            kept = f"self.{fresh(f'{path[5:]}_kept', names_in(source.tree))}"
            empty = f'getattr(self, "{kept[5:]}", torch.empty_like({path}))'
            lines.append(f"{kept} = {empty}.copy_({place.text(new)})")
            edits.append(source.replace(new, kept))
        if lines:
            edits.append(source.before(node, lines))
    return edits


def _is_detached(value: ast.expr, path: str) -> bool:
    """``self.h.detach()``."""
    called = value.func if isinstance(value, ast.Call) and not value.args else None
    return isinstance(called, ast.Attribute) and called.attr == "detach" and path_of(called.value) == path


def _class_of(place: Place, node: ast.AST) -> ast.AST | None:
    above: ast.AST | None = node
    while above is not None and not isinstance(above, ast.ClassDef):
        above = place.source.parents.get(above)
    return above
