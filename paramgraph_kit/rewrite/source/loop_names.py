"""Names that loops count with: numbers of the host's, whatever lies on the device beside them."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.place import Place, called


def counted_around(place: Place, node: ast.AST) -> set[str]:
    """Names that loops around a statement count with."""
    found, above = set[str](), place.source.parents.get(node)
    while above is not None:
        way = called(above.iter) if isinstance(above, ast.For) and isinstance(above.iter, ast.Call) else ""
        if isinstance(above, ast.For) and way in ("enumerate", "range"):
            first = above.target.elts[0] if isinstance(above.target, ast.Tuple) else above.target
            counts = way == "range" or isinstance(above.target, ast.Tuple)
            found |= {first.id} if isinstance(first, ast.Name) and counts else set()
        above = place.source.parents.get(above)
    return found | counted_within(node)


def counted_within(node: ast.AST) -> set[str]:
    """``b`` of ``[x[b] for b in range(n)]``."""
    every = [n for n in ast.walk(node) if isinstance(n, ast.comprehension) and isinstance(n.iter, ast.Call)]
    counts = [n.target for n in every if isinstance(n.iter, ast.Call) and called(n.iter) == "range"]
    return {n.id for n in counts if isinstance(n, ast.Name)}
