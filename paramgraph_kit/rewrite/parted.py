"""A statement that computes on the device and reads that at once is parted: the graph computes, the rest is behind it.

``values = net(x).squeeze(-1).cpu().numpy()`` becomes ``values_out``, which the graph returns, and behind the launch
``values = values_out.cpu().numpy()`` with all that follows.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of
from paramgraph_kit.rewrite.loops.ending import Ending
from paramgraph_kit.rewrite.source.edits import Function, Source, names_in, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh, target_of

_READS = frozenset(("item", "tolist", "cpu", "numpy", "detach"))
_NUMBERS = frozenset(("float", "int", "bool"))
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp, ast.Lambda)


def part(place: Place) -> Ending | None:
    """How a statement is parted; None where nothing is computed in it, or not on the device alone."""
    node, function = place.statement, place.source.function_of(place.statement)
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or function is None:
        return None
    targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
    if not all(isinstance(each, ast.Name) for each in targets):
        return None
    line, handed = place.text(node.value), dict[str, str]()
    taken = place.taken
    inner = [node.value] if isinstance(node.value, (ast.Call, ast.BinOp)) else list(getattr(node.value, "elts", []))
    hints = [each.id for each in targets if isinstance(each, ast.Name)]
    for number, each in enumerate(inner):
        name = fresh(f"{hints[min(number, len(hints) - 1)]}_out", {*taken, *handed})
        if isinstance(each, ast.Call) and called(each) in ("any", "all") and isinstance(each.func, ast.Name):
            handed[name] = condition = _of_all(place, each)
            line = line.replace(place.text(each), f"bool({name})") if condition else ""
            continue
        for found in _read(place, each):
            text = place.text(found)
            if isinstance(found, ast.Name):
                continue
            if line.count(text) != 1:
                return None
            name = fresh(name, {*taken, *handed})
            handed[name] = place.source.bracketed(found)
            line = line.replace(text, name)
    if not handed or not line or not all(handed.values()) or _reads(line):
        return None
    lines = [f"{place.text(node.targets[0])} = {line}"]
    if isinstance(place.source.parents.get(node), ast.With):  # what is around it is around what is computed
        texts = [f"{name} = {text}" for name, text in handed.items()]
        stays = [place.source.replace(node, f"\n{place.source.indent(node)}".join(texts))]
        return Ending(place.source, node, stays, {name: name for name in handed}, lines, stays=True)
    return Ending(place.source, node, [place.source.without(node)], handed, lines)


def asked_next(source: Source, node: ast.stmt, order: Sequence[ast.stmt]) -> tuple[ast.If, Ending] | None:
    """``kl = (a - b).mean().item()`` before the branch that asks it: the graph has a tensor, and the host reads it."""
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Name) or node not in order:
        return None
    call, later = node.value, order[order.index(node) + 1 :]
    inner: ast.expr | None = None
    if isinstance(call, ast.Call) and called(call) == "item" and isinstance(call.func, ast.Attribute):
        inner = call.func.value
    elif isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and called(call) == "float" and call.args:
        inner = call.args[0]
    asking = next((each for each in later if target.id in names_in(each)), None)
    stores = [n for each in order for n in ast.walk(each) if isinstance(n, ast.Name) and n.id == target.id]
    if inner is None or not isinstance(asking, ast.If) or target.id not in names_in(asking.test):
        return None
    if sum(isinstance(n.ctx, ast.Store) for n in stores) != 1:
        return None
    edits = [source.replace(node.value, f"{source.bracketed(inner)}.detach()")]
    lines = [f"{target.id} = {target.id}.item()"]
    return asking, Ending(source, node, edits, {target.id: target.id}, lines, stays=True)


def _of_all(place: Place, call: ast.Call) -> str:
    """``any(not torch.isfinite(p.grad).all() for p in net.parameters())`` as one value of the device."""
    each = call.args[0] if len(call.args) == 1 else None
    if not isinstance(each, (ast.GeneratorExp, ast.ListComp)) or len(each.generators) != 1 or each.generators[0].ifs:
        return ""
    return condition_of(place, call).replace(".item()", "")


def _read(place: Place, node: ast.expr) -> list[ast.expr]:
    """What of an expression is computed on the device, and read there."""
    found: list[ast.expr] = []
    for call in within(node):
        if not isinstance(call, ast.Call) or any(call in ast.walk(each) for each in found):
            continue
        inner: ast.expr | None = None
        if isinstance(call.func, ast.Attribute) and call.func.attr in _READS and not call.args:
            inner = call.func.value
        elif isinstance(call.func, ast.Name) and call.func.id in _NUMBERS and len(call.args) == 1:
            inner = call.args[0]
        while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _READS:
            inner = inner.func.value
        if inner is None or any(inner in ast.walk(each) for each in found):
            continue
        above = place.source.parents.get(inner)
        while above is not None and above is not node and not isinstance(above, Function):
            if isinstance(above, _COMPREHENSIONS):
                return []
            above = place.source.parents.get(above)
        found.append(inner)
    return found


def _reads(line: str) -> bool:
    """Whether what is left of a statement calls something that may compute on the device."""
    tree = ast.parse(line, mode="eval")
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    return any(called(n) not in _READS | _NUMBERS and not _is_of_host(n) for n in calls)


def _is_of_host(call: ast.Call) -> bool:
    root = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    return isinstance(root, ast.Name) and root.id in ("math", "np", "numpy", "round", "max", "min", "len", "sum", "abs")
