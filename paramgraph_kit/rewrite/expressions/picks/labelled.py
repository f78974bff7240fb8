"""Sums and counts over rows that are alike: each row is labelled by the first that is like it, which needs no list.

``u, inv = torch.unique(v, dim=0, return_inverse=True)`` with ``torch.zeros(len(u), 3).index_add_(0, inv, p)[inv]``:
which number a label has is seen nowhere, as long as everything that is made with labels is picked by them again.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Collection

from paramgraph_kit.rewrite.source.edits import Edit, heads, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, integer, target_of
from paramgraph_kit.rewrite.source.rowwise import is_rowwise

MANY = 4096  # rows: each is compared with each
_WHOLE = re.compile(r"unique\w* of (?:u?int\d+|bool)\[(\d+)(, \d+)?\]")  # of what is compared exactly
_ADDS = ("index_add", "index_add_")
_TABLE = "_table"


def label_each(place: Place) -> list[Edit]:
    """``torch.unique(...)`` with ``return_inverse`` compares each row with each, where only sums are made with it."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = target_of(node)
    seen = _WHOLE.search(place.failure.message)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Tuple) or function is None or seen is None:
        return []
    call, names = node.value, [each.id for each in target.elts if isinstance(each, ast.Name)]
    if not isinstance(call, ast.Call) or called(call) != "unique" or not isinstance(call.func, ast.Attribute):
        return []
    own = path_of(call.func.value) != "torch"
    given = call.func.value if own else call.args[0] if call.args else None
    options = {o.arg: o.value for o in call.keywords}
    counts = options.pop("return_counts", None) is not None
    asked = options.pop("return_inverse", None) is not None
    dim = options.pop("dim", None)
    rows = seen[2] is not None
    if options or not asked or given is None or len(names) != len(target.elts) or len(names) != 2 + counts:
        return []
    if int(seen[1]) > MANY or (dim is None) is rows or (dim is not None and integer(dim) != 0):
        return []
    edits = _picked_again(place, function.body, {names[0], *names[2:]}, names[0], names[1])
    if edits is None:
        return []
    x = place.source.bracketed(given)
    alike = f"({x}[:, None] == {x}){'.all(-1)' * rows}"
    values = [x, f"{alike}.long().argmax(1)", f"{alike}.sum(1)"][: len(names)]
    return [place.source.replace(call, ", ".join(values)), *edits]


def _picked_again(place: Place, body: list[ast.stmt], tables: set[str], listed: str, labels: str) -> list[Edit] | None:
    """Edits for what is counted with labels, if all that is made with them is picked by them; else None."""
    edits = list[Edit]()
    for node in (n for part in body for n in within(part) if isinstance(n, ast.stmt)):
        if node is place.statement:
            continue
        made = [n for n in heads(node) if isinstance(n, ast.Call) and _is_made(n, listed, labels)]
        inside = {part for each in made for part in ast.walk(each)}
        parts = [n for n in heads(node) if n not in inside or n in made]
        picks = [n for n in parts if isinstance(n, ast.Subscript) and path_of(n.slice) == labels]
        picked = {part for each in picks for part in ast.walk(each)}
        if any(not _is_table(place, each.value, made, tables) for each in picks):
            return None
        left = [n for n in parts if n not in picked and (n in made or _is_named(n, {*tables, labels}))]
        if any(_is_named(n, {labels}) for n in left):
            return None
        if left:
            plain = isinstance(node, ast.Assign) and [type(each) for each in node.targets] == [ast.Name]
            if not plain or not isinstance(node, ast.Assign) or not _is_table(place, node.value, made, tables):
                return None
            tables |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        for each in (n for n in made if called(n) == "bincount"):
            zeros = f"torch.zeros(len({labels}), dtype=torch.long, device={labels}.device)"
            edits.append(place.source.replace(each, f"{zeros}.index_add_(0, {labels}, torch.ones_like({labels}))"))
    return edits


def _is_named(node: ast.AST, names: Collection[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _is_made(node: ast.Call, listed: str, labels: str) -> bool:
    """``torch.zeros(len(u), 3).index_add_(0, inv, x)`` and ``torch.bincount(inv)``."""
    if called(node) == "bincount":
        return path_of(node.func) == "torch.bincount" and not node.keywords and [*map(path_of, node.args)] == [labels]
    zeros = node.func.value if isinstance(node.func, ast.Attribute) and called(node) in _ADDS else None
    if not isinstance(zeros, ast.Call) or called(zeros) not in ("zeros", "new_zeros") or len(node.args) != 3:
        return False
    at, index, added = node.args
    first = zeros.args[0] if zeros.args else None
    first = first.elts[0] if isinstance(first, (ast.Tuple, ast.List)) and first.elts else first
    more = {n for each in (added, *zeros.args[1:], *zeros.keywords) for n in ast.walk(each)}
    wide = first is not None and _is_how_many(first, listed)
    return (
        integer(at) == 0 and path_of(index) == labels and wide and not any(_is_named(n, {listed, labels}) for n in more)
    )


def _is_how_many(node: ast.expr, listed: str) -> bool:
    """``len(u)``, ``u.shape[0]`` and ``u.size(0)``."""
    if isinstance(node, ast.Call):
        first = [*map(integer, node.args)] == [0]
        by_len = called(node) == "len" and [*map(path_of, node.args)] == [listed]
        return by_len or (first and path_of(node.func) == f"{listed}.size")
    return isinstance(node, ast.Subscript) and path_of(node.value) == f"{listed}.shape" and integer(node.slice) == 0


def _is_table(place: Place, node: ast.expr, made: Collection[ast.Call], tables: Collection[str]) -> bool:
    """Whether an expression has something for each label, computed of what others have for it alone."""
    texts = {place.text(each) for each in made}

    class Named(ast.NodeTransformer):
        def visit_Call(self, call: ast.Call) -> ast.AST:
            return ast.Name(_TABLE, ast.Load()) if place.text(call) in texts else self.generic_visit(call)

    plain = Named().visit(copy.deepcopy(node))
    asked = (n for n in ast.walk(plain) if isinstance(n, ast.Attribute) and n.attr in ("shape", "size", "numel"))
    return not any(_is_named(n.value, tables) for n in asked) and is_rowwise(
        place, plain, lambda n: _is_named(n, {_TABLE, *tables})
    )
