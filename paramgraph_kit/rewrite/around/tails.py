"""A function cut in two: what comes before a statement is captured, the rest runs behind each launch, as it did.

``tail`` says whether that can be: no gradients come back from the rest, and it is not half of a ``with`` block. What
the host computes of the arguments alone before, ``n = x.shape[0]``, the rest computes again; all else it is handed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Sequence

from paramgraph_kit.rewrite.source.edits import Function, Source, about_gradients, locals_of, names_in, within
from paramgraph_kit.rewrite.source.moving import Tail, arguments_of, body_of, is_backward, reads_number, stored
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.source.writes import written

_CONTAINERS = ("list", "dict", "set", "tuple", "deque", "defaultdict", "Counter", "OrderedDict")


def tail(
    source: Source,
    function: Function,
    cut: int,
    is_host: Callable[[ast.expr], bool],
    stays: Sequence[ast.stmt] = (),
    left: ast.stmt | None = None,
    graded: Collection[str] = (),
    is_object: Callable[[ast.expr], bool] = lambda _: False,
) -> Tail | None:
    """All from a statement on, where it can run behind the launch: no gradients come back from there.

    ``stays`` are statements of these that are left where they are; ``left`` goes there too, from inside of a loop;
    ``is_object`` tells what is an object of the user's, which has the same name behind the launch.
    """
    order = list(body_of(function))
    before, statements = order[:cut], [node for node in order[cut:] if node not in stays]
    every = [part for node in order for part in within(node)]
    if any(isinstance(part, (ast.Yield, ast.YieldFrom, ast.Await)) for part in every):
        return None
    if any(is_backward(part) for node in statements for part in ast.walk(node)):
        told = {part for top in statements for n in ast.walk(top) if reads_number(n) for part in ast.walk(n)}
        read = {n.id for top in statements for n in ast.walk(top) if isinstance(n, ast.Name) and n not in told}
        if read & set(graded) & stored(before):
            return None  # its gradients would go through the launch
    gone = set(ast.walk(left)) if left is not None else set()
    if any(isinstance(part, ast.Return) and part not in gone for node in before for part in within(node)):
        return None
    fixed: list[ast.stmt] = []
    arguments = set(arguments_of(function))
    every_store = [n.id for node in before for n in ast.walk(node) if isinstance(n, ast.Name) and _is_store(n)]
    for node in before:
        plain = (
            isinstance(node, ast.Assign)
            and (is_host(node.value) or is_object(node.value))
            and not any(isinstance(n, ast.Call) and not _is_plain(n) for n in ast.walk(node.value))
        )
        once = all(every_store.count(name) == 1 for name in stored([node]))  # what a loop counts with is none
        filled = {re.split(r"[.\[]", path)[0] for other in before if other is not node for path in written(other)}
        given = names_in(node) & locals_of(function) - stored([node])
        if plain and once and not filled & stored([node]) and given <= (arguments - set(every_store)) | stored(fixed):
            fixed.append(node)
    contexts = [source.text(each) for each in function.decorator_list]
    contexts += [
        source.text(item.context_expr) for part in function.body if isinstance(part, ast.With) for item in part.items
    ]
    off = [text if text.endswith(")") else f"{text}()" for text in contexts if about_gradients(text)]
    others = [part for part in function.body if isinstance(part, ast.With) and len(function.body) > 1]
    others = [part for part in others if any(node in statements for node in part.body)]
    if others and not off:
        return None  # what is around some of it is not around the rest
    return Tail(statements, fixed, off[0] if off else "")


def constants(source: Source, before: Sequence[ast.stmt], names: Collection[str]) -> list[str]:
    """Lines that give some names again what ``y, n = net(x), 0`` has given them: no graph hands over a number."""
    stores = [n.id for node in before for n in ast.walk(node) if isinstance(n, ast.Name) and _is_store(n)]
    found = []
    for node in before:
        target, value = (node.targets[0], node.value) if isinstance(node, ast.Assign) else (None, None)
        if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
            continue
        for name, each in zip(target.elts, value.elts, strict=False):
            plain = (
                isinstance(name, ast.Name) and isinstance(each, ast.Constant) and len(target.elts) == len(value.elts)
            )
            if plain and isinstance(name, ast.Name) and name.id in names and stores.count(name.id) == 1:
                found.append(f"{name.id} = {source.text(each)}")
    return found


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_plain(node: ast.Call) -> bool:
    return called(node) in ("size", "len", "dim", "numel", "int", "min", "max", "range") or called(node) in _CONTAINERS
