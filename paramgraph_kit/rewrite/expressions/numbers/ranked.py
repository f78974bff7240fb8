"""Orders that the host finds by numbers of the device: the device sorts, and picks by its own order."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.numbers.exact import as_python_has_it
from paramgraph_kit.rewrite.expressions.numbers.number_lists import is_index, only_indexes
from paramgraph_kit.rewrite.expressions.numbers.readings import read_of
from paramgraph_kit.rewrite.source.edits import Edit, path_of
from paramgraph_kit.rewrite.source.place import Place, target_of


def order_on_device(place: Place) -> list[Edit]:
    """``sorted(range(n), key=lambda i: x[i].sum().item())``, and ``max(range(n), key=...)`` for the first of all."""
    node, found = place.statement, list[Edit]()
    target = target_of(node)
    for call in place.calls("sorted", "max", "min"):
        name = path_of(call.func)
        options = {o.arg: o.value for o in call.keywords}
        key, over = options.pop("key", None), call.args[0] if len(call.args) == 1 else None
        down = options.pop("reverse", None)
        if name in place.space or place.is_local(name) or options or not isinstance(key, ast.Lambda):
            continue
        if not isinstance(over, ast.Call) or path_of(over.func) != "range" or len(key.args.args) != 1:
            continue
        minus = isinstance(key.body, ast.UnaryOp) and isinstance(key.body.op, ast.USub)
        inner = key.body.operand if isinstance(key.body, ast.UnaryOp) and minus else key.body
        read = read_of(place, inner) if isinstance(inner, ast.Call) else None
        if read is None or (down is not None and not isinstance(down, ast.Constant)):
            continue
        first = over.args[0] if len(over.args) > 1 else None
        if len(over.args) > 2 or (first is not None and place.text(first) != "0"):
            continue
        each = place.source.bracketed(read)
        each = f"-{each}{as_python_has_it(place, inner, read)}" if minus else each
        values = f"torch.stack([{each} for {key.args.args[0].arg} in {place.text(over)}])"
        whole = isinstance(target, ast.Name) and isinstance(node, ast.Assign) and node.value is call
        if name != "sorted":
            found.append(place.source.replace(call, f"{values}.arg{name}()"))
        elif whole and isinstance(target, ast.Name) and _only_indexes(place, target):
            descending = isinstance(down, ast.Constant) and bool(down.value)
            order = f"argsort({'descending=True, ' * descending}stable=True)"  # equal ones stay as they are
            found.append(place.source.replace(call, f"{values}.{order}"))
    return found


def _only_indexes(place: Place, name: ast.Name) -> bool:
    """Whether an order, and what a loop goes through of it, are read as indexes alone."""
    function = place.source.function_of(place.statement)
    if function is None or only_indexes(place, name):
        return function is not None
    reads = [
        n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Load)
    ]
    for read in reads:
        node: ast.AST = read
        above = place.source.parents.get(node)
        counts = isinstance(above, ast.Call) and path_of(above.func) == "enumerate" and len(above.args) == 1
        if counts and above is not None:
            node, above = above, place.source.parents.get(above)
        if not isinstance(above, ast.For) or above.iter is not node:
            return False
        each = above.target.elts[1] if counts and isinstance(above.target, ast.Tuple) else above.target
        body = [n for part in above.body for n in ast.walk(part) if isinstance(n, ast.Name)]
        if not isinstance(each, ast.Name) or not all(is_index(place, n) for n in body if n.id == each.id):
            return False
    return bool(reads)
