"""Lists that the host fills with numbers of the device: rules that fill them with tensors.

``torch.tensor([f(d) for d in x.tolist()], device=d)`` becomes ``torch.stack([f(d) for d in x.unbind()])``,
``np.concatenate(outs)`` of what was copied to the CPU one after the other ``torch.cat(outs)``, and a mean of what the
rounds of a loop have added a sum with zeros for the rounds that are left out.
"""

from __future__ import annotations

import ast
from typing import Any

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of
from paramgraph_kit.rewrite.expressions.numbers.extremes import larger_on_device
from paramgraph_kit.rewrite.expressions.numbers.readings import is_cpu
from paramgraph_kit.rewrite.loops.early import end_of_round, given_to
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, heads, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh, target_of
from paramgraph_kit.rewrite.source.pure import kept_finite, may_run

_TORCHS = {"concatenate": "cat", "stack": "stack", "vstack": "vstack", "hstack": "hstack"}  # of numpy's

_REDUCES = ("sum", "mean", "max", "min", "amax", "amin", "std", "var", "prod", "any", "all", "logsumexp")
_JOINS = ("torch.stack", "torch.cat", "torch.vstack", "torch.hstack")
_REDUCED = {  # by what the host reduces a list of numbers, and what a tensor of them has
    "max": "max()",
    "min": "min()",
    "np.max": "max()",
    "np.min": "min()",
    "np.mean": "mean()",
    "np.sum": "sum()",
    "np.std": "std(correction=0)",
    "np.argmin": "argmin()",
    "np.argmax": "argmax()",
}


def stack_the_elements(place: Place) -> list[Edit]:
    """A list of what is computed of each element, which becomes a tensor of the device, is stacked there."""
    found: list[Edit] = []
    for call in place.calls("tensor", "as_tensor"):
        listed = call.args[0] if len(call.args) == 1 else None
        if (
            not isinstance(listed, ast.ListComp)
            or len(listed.generators) != 1
            or path_of(call.func) != f"torch.{called(call)}"
        ):
            continue
        each = listed.generators[0]
        source = each.iter
        if each.ifs or not isinstance(source, ast.Call) or called(source) != "tolist" or source.args:
            continue
        if not isinstance(source.func, ast.Attribute) or {o.arg for o in call.keywords} - {"device"}:
            continue
        if (table := _table_of(place, listed.elt, each.target)) and (there := f"{table}_on_device") not in place.space:
            kept = place.hoist(there, f"torch.tensor({_as_list(place, table)}, device={place.device})")
            found.append(place.source.replace(call, f"{kept}[{place.text(source.func.value)}]"))
            continue
        made, unbound = place.source.replace(source, ""), place.source.bracketed(source.func.value)
        whole, inner = place.source.replace(call, ""), place.source.replace(listed, "")
        found += [
            Edit(whole.line, whole.column, inner.line, inner.column, "torch.stack("),
            Edit(made.line, made.column, made.end_line, made.end_column, f"{unbound}.unbind()"),
            Edit(inner.end_line, inner.end_column, whole.end_line, whole.end_column, ")"),
        ]
        found += larger_on_device(place)
    return found


def go_through_tensors(place: Place) -> list[Edit]:
    """``[x[i, :n].mean(0) for i, n in enumerate(lengths.tolist())]`` goes through ``lengths.unbind()``."""
    found = []
    for node in heads(place.statement):
        if not isinstance(node, (ast.ListComp, ast.GeneratorExp)) or len(node.generators) != 1:
            continue
        each = node.generators[0]
        names = {n.id for n in ast.walk(each.target) if isinstance(n, ast.Name)}
        parts = [n for n in ast.walk(node.elt) if isinstance(n, ast.Slice) and names_in(n) & names]
        read = next((n for n in ast.walk(each.iter) if isinstance(n, ast.Call) and called(n) == "tolist"), None)
        if each.ifs or read is None or read.args or not isinstance(read.func, ast.Attribute):
            continue
        if parts and all(_is_reduced(place, part, node.elt) for part in parts):
            found.append(place.source.replace(read, f"{place.source.bracketed(read.func.value)}.unbind()"))
    return found


def _is_reduced(place: Place, part: ast.AST, within_it: ast.expr) -> bool:
    """Whether what is cut out is added up, or the largest of it taken: its mask does the same."""
    while part is not within_it:
        part = place.source.parents[part]
        if isinstance(part, ast.Call) and called(part) in _REDUCES:
            return True
    return False


def _table_of(place: Place, element: ast.expr, index: ast.expr) -> str:
    """``weights`` of ``weights[i]``, numbers of one kind around the function that the file never changes; or ""."""
    table = element.value if isinstance(element, ast.Subscript) else None
    if not isinstance(element, ast.Subscript) or not isinstance(table, ast.Name) or place.is_local(table.id):
        return ""
    held: Any = place.space.get(table.id)
    if (
        not isinstance(index, ast.Name)
        or path_of(element.slice) != index.id
        or not isinstance(held, (list, tuple, dict))
    ):
        return ""
    values = list(held.values()) if isinstance(held, dict) else list(held)
    if len({type(each) for each in values}) != 1 or type(values[0]) not in (int, float, bool):
        return ""
    if isinstance(held, dict) and list(held) != list(range(len(held))):
        return ""
    stores = 0
    for node in ast.walk(place.source.tree):
        if isinstance(node, (ast.Global, ast.Nonlocal)) and table.id in node.names:
            return ""
        if not isinstance(node, ast.Name) or node.id != table.id:
            continue
        stores += isinstance(node.ctx, ast.Store)
        if not isinstance(node.ctx, ast.Store) and not _only_asks(place, node):
            return ""
    if stores != 1:
        return ""
    return table.id


def _only_asks(place: Place, table: ast.Name) -> bool:
    """Whether a read of a table gives it to nobody who may change it: ``table[i]`` and ``len(table)``."""
    above = place.source.parents.get(table)
    if isinstance(above, ast.Call):
        return path_of(above.func) in ("len", "sum", "max", "min", "torch.tensor", "torch.as_tensor")
    return isinstance(above, ast.Subscript) and above.value is table and isinstance(above.ctx, ast.Load)


def _as_list(place: Place, table: str) -> str:
    return f"list({table}.values())" if isinstance(place.space[table], dict) else table


def join_on_device(place: Place) -> list[Edit]:
    """``outs.append(y.cpu().numpy())`` and ``return np.concatenate(outs)`` keep tensors, and return one."""
    node, function = place.statement, place.source.function_of(place.statement)
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or called(call) != "append" or len(call.args) != 1 or function is None:
        return []
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    value = _on_device(call.args[0])
    if not isinstance(owner, ast.Name) or owner.id not in locals_of(function) or value is None:
        return []
    every = [n for part in function.body for n in ast.walk(part)]
    reads = [n for n in every if isinstance(n, ast.Name) and n.id == owner.id and isinstance(n.ctx, ast.Load)]
    edits = [place.source.replace(call.args[0], place.text(value))]
    for read in reads:
        above = place.source.parents.get(read)
        if isinstance(above, ast.Attribute) and above.attr == "append" and read is owner:
            continue
        returned = place.source.parents.get(above) if above is not None else None
        if not isinstance(above, ast.Call) or read not in above.args or not isinstance(returned, ast.Return):
            return []
        root, _, name = path_of(above.func).rpartition(".")
        if root not in ("np", "numpy") or name not in _TORCHS:
            return []
        text = place.text(above).replace(f"{root}.{name}", f"torch.{_TORCHS[name]}", 1).replace("axis=", "dim=")
        edits.append(place.source.replace(above, text))
    return edits if len(edits) > 1 else []


def reduce_on_device(place: Place) -> list[Edit]:
    """``xs.append(x.item())`` keeps the tensor where every read is ``max(xs)``, ``np.mean(xs)``, or how many there are.

    What the host reduced is ``torch.stack(xs).max()`` then, and the place of the smallest ``torch.stack(xs).argmin()``.
    ``xs = [f(i).item() for i in ...]`` is as that.
    """
    function, source = place.source.function_of(place.statement), place.source
    owner, value = _fills(place.statement)
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or called(value) != "item":
        return []
    read = value.func.value
    if function is None or owner is None or not _is_local_list(function, owner.id):
        return []
    if any(place.is_local(each.__name__) or place.space.get(each.__name__, each) is not each for each in (max, min)):
        return []  # somebody's own
    edits, reduced = [source.replace(value, f"{source.bracketed(read)}.detach().clone()")], 0
    names = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == owner.id]
    ranked = [call for n in names if (call := _ranks(source, n)) is not None]
    inside = {part for call in ranked for part in ast.walk(call)}
    for call in ranked:
        reduced += 1
        end = "argmin" if path_of(call.args[0].func) == "min" else "argmax"  # type: ignore[attr-defined]
        edits.append(source.replace(call, f"torch.stack({owner.id}).{end}()"))
    for name in (n for n in names if n not in inside):
        above = source.parents.get(name)
        if not isinstance(name.ctx, ast.Load) or name is owner or _calls(above, "len", owner.id):
            continue
        path = path_of(above.func) if isinstance(above, ast.Call) else ""
        end = _REDUCED.get(path.replace("numpy.", "np."), "")
        if not end or not isinstance(above, ast.Call) or len(above.args) != 1 or above.keywords:
            return []
        reduced += 1
        edits.append(source.replace(above, f"torch.stack({owner.id}).{end}"))
    return edits if reduced else []


def _fills(node: ast.stmt) -> tuple[ast.Name | None, ast.expr | None]:
    """The list that a statement fills, by one value or by all, and what each value is."""
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and called(call) == "append" and len(call.args) == 1:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        return (owner, call.args[0]) if isinstance(owner, ast.Name) else (None, None)
    target = target_of(node)
    if isinstance(node, ast.Assign) and isinstance(target, ast.Name) and isinstance(node.value, ast.ListComp):
        return target, node.value.elt
    return None, None


def _ranks(source: Source, name: ast.Name) -> ast.Call | None:
    """``xs.index(min(xs))``, of the ``xs`` that is asked."""
    method = source.parents.get(name)
    call = source.parents.get(method) if isinstance(method, ast.Attribute) and method.attr == "index" else None
    inner = call.args[0] if isinstance(call, ast.Call) and len(call.args) == 1 else None
    least = isinstance(inner, ast.Call) and path_of(inner.func) in ("min", "max") and not inner.keywords
    if not least or not isinstance(inner, ast.Call) or [*map(path_of, inner.args)] != [name.id]:
        return None
    return call if isinstance(call, ast.Call) else None


def _on_device(value: ast.expr) -> ast.expr | None:
    """``y`` of ``y.detach().cpu().numpy()``."""
    inner = value
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and not inner.args:
        if inner.func.attr not in ("cpu", "numpy", "detach"):
            break
        inner = inner.func.value
    return inner if inner is not value else None


def average_those_kept(place: Place) -> list[Edit]:
    """``if c: continue; xs.append(v)`` with ``torch.stack(xs).mean()`` behind the loop: a sum over all rounds.

    A round that is left out adds a zero, and the sum is divided by how many are kept.
    """
    found, source = end_of_round(place, ast.Continue), place.source
    if found is None or not isinstance(found[1], ast.For):
        return []
    node, loop, function = found[0], found[1], found[2]
    *steps, last = loop.body[loop.body.index(node) + 1 :] or [node]
    call = last.value if isinstance(last, ast.Expr) else None
    if not isinstance(call, ast.Call) or called(call) != "append" or len(call.args) != 1:
        return []
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(owner, ast.Name) or not _is_local_list(function, owner.id):
        return []
    if not all(isinstance(part, ast.Assign) and may_run(place, part.value, node) for part in steps):
        return []
    if not may_run(place, call.args[0], node):
        return []
    inside = set(ast.walk(loop))
    made = {n.id for part in steps for n in ast.walk(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    outside = [n for part in function.body for n in within(part) if n not in inside]
    if any(isinstance(n, ast.Name) and n.id in made for n in outside):
        return []
    ends = _ends(owner.id, [n for n in outside if isinstance(n, ast.expr)])
    if not ends:
        return []
    taken = names_in(source.tree) | locals_of(function)
    skipped, kept = fresh("skipped", taken), fresh("kept", taken)
    value = kept_finite(place, call.args[0], node.test, skipped, taken=False)
    edits = [
        source.before(loop, [f"{kept} = []"]),
        source.replace(node, f"{skipped} = {condition_of(place, node.test).replace('.item()', '')}"),
        source.replace(call.args[0], f"torch.where({skipped}, 0, {value})"),
        source.after(last, [f"{kept}.append(torch.logical_not({skipped}))"]),
    ]
    for part in steps:
        assert isinstance(part, ast.Assign)
        text = kept_finite(place, part.value, node.test, skipped, taken=False)
        edits += [source.replace(part.value, text)] if text != place.text(part.value) else []
    for each in ends:
        total = f"torch.stack({owner.id}).sum(0)" + ".mean()" * isinstance(each, ast.Call)
        edits.append(source.replace(each, f"({total} / torch.stack({kept}).sum())"))
    return edits


def _is_local_list(function: Function, name: str) -> bool:
    own = [value for _, value in given_to(function, name)]
    empty = len(own) == 1 and isinstance(own[0], ast.List) and not own[0].elts
    return empty or (len(own) == 1 and isinstance(own[0], ast.ListComp))


def _ends(name: str, nodes: list[ast.expr]) -> list[ast.expr]:
    """The means of a list, where every read of it is in one; else nothing."""
    found: list[ast.expr] = []
    reads = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    means = [n for n in nodes if _is_mean(n, name)]
    for read in reads:
        around = [each for each in means if read in set(ast.walk(each))]
        if not around:
            return []
        found += [each for each in around[:1] if each not in found]
    return found


def _is_mean(node: ast.expr, name: str) -> bool:
    """``torch.stack(xs).mean()``, ``sum(xs) / len(xs)``, also with ``max(len(xs), 1)``."""
    if isinstance(node, ast.Call) and called(node) == "mean" and not node.args and not node.keywords:
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        return _calls(inner, "stack", name)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or not _calls(node.left, "sum", name):
        return False
    return _calls(node.right, "len", name)


def _calls(node: ast.AST | None, function: str, name: str) -> bool:
    if not isinstance(node, ast.Call) or called(node) != function or len(node.args) != 1 or node.keywords:
        return False
    return isinstance(node.args[0], ast.Name) and node.args[0].id == name


def keep_those_that_go_back(place: Place) -> list[Edit]:
    """``rows.append(r.cpu() * 2)`` keeps the tensor there, where ``torch.stack(rows).to(d)`` brings all back."""
    node, function = place.statement, place.source.function_of(place.statement)
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or called(call) != "append" or not isinstance(call.func, ast.Attribute):
        return []
    name = path_of(call.func.value)
    copies = [n for n in ast.walk(call) if isinstance(n, ast.Call) and is_cpu(place, n)]
    if function is None or name not in locals_of(function) or not copies:
        return []
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Name) and n.id == name]
    for other in (n for n in every if isinstance(n.ctx, ast.Load) and n is not call.func.value):
        joined = place.source.parents.get(other)
        method = place.source.parents.get(joined) if isinstance(joined, ast.Call) else None
        back = isinstance(method, ast.Attribute) and method.attr in ("to", "cuda")
        if not isinstance(joined, ast.Call) or path_of(joined.func) not in _JOINS or not back:
            return []
    above = [place.source.parents.get(each) for each in copies]
    if any(isinstance(each, ast.Attribute) and each.attr in ("numpy", "item", "tolist") for each in above):
        return []
    kept = ((each, each.func.value) for each in copies if isinstance(each.func, ast.Attribute))
    return [place.source.replace(each, place.text(inner)) for each, inner in kept]
