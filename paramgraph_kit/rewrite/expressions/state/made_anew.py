"""Tables of tensors that a step makes anew, all of them at once or one by one: each is written where it lies.

``self.old = {k: v.clone() for k, v in weights}`` is ``for key, new in {...}.items(): self.old[key].copy_(new)``.
"""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.rewrite.expressions.state.begins import MAKERS
from paramgraph_kit.rewrite.expressions.state.carried import held_by, keeps_or_exchanges
from paramgraph_kit.rewrite.expressions.state.set_elsewhere import run_with
from paramgraph_kit.rewrite.source.edits import Edit, heads, path_of
from paramgraph_kit.rewrite.source.moving import is_kept
from paramgraph_kit.rewrite.source.place import Place, called, fresh

_ANEW = (
    "clone",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "zeros",
    "ones",
    "randn",
    "deepcopy",
)
_VIEWS = frozenset(("cpu", "cuda", "detach", "double", "float", "requires_grad_", "to"))  # perhaps
_LISTS = ("list", "dict", "tuple", "set", "copy", "deque")  # of the same tensors
_READS = ("items", "keys", "values", "get")


def write_each_anew(place: Place) -> list[Edit]:
    """The lines of a step that give a table, which a statement of it reads, other tensors: they write into the first.

    ``star[n] = p.clone()`` in a loop, and ``star.update({...})``, do the same.
    """
    read = {path_of(n) for n in heads(place.statement) if isinstance(n, (ast.Name, ast.Attribute))}
    return [edit for path in sorted(read) for edit in written_there(place, path)]


def written_there(place: Place, path: str) -> list[Edit]:
    """The same of one table."""
    source, here = place.source, place.source.function_of(place.statement)
    if here is None or not _is_table(place, path):
        return []
    run = {f for f in run_with(source, here.name) if f.name not in MAKERS} | {here}
    stores = [(n, value) for n in source.parents if (value := _given(n, path)) is not None]
    own = [(n, value) for n, value in stores if source.function_of(n) in run and isinstance(n, ast.stmt)]
    if not all(_are_anew(value) for _, value in stores) or _is_kept(place, path):
        return []
    return [source.replace(node, _in_place(place, node, value, path)) for node, value in own]


def _is_table(place: Place, path: str) -> bool:
    """Whether a path leads to a dictionary or a list of tensors that outlives the step."""
    first = path.partition(".")[0]
    if not path or path.count(".") > 1 or (first != "self" and place.is_local(first)):
        return False
    held = held_by(place, path)
    values = [*held.values()] if type(held) is dict else held if type(held) is list else []
    return bool(values) and all(isinstance(each, torch.Tensor) and not each.requires_grad for each in values)


def _given(node: ast.AST, path: str) -> ast.expr | None:
    """What a statement gives a table, or an entry of it; of ``self.old`` that of any object's."""
    targets, value = _stored(node)
    return value if any(_is_called_so(each, path) for each in targets) else None


def given_by(node: ast.stmt) -> str:
    """What a statement may give other tensors by an assignment, or a dictionary's ``update``."""
    targets, value = _stored(node)
    return path_of(targets[0]) if value is not None and len(targets) == 1 else ""


def _stored(node: ast.AST) -> tuple[list[ast.expr], ast.expr | None]:
    """The tables that a statement gives something, or entries of them, and what."""
    targets, value = list[ast.expr](), None
    if isinstance(node, ast.AnnAssign):
        targets, value = [node.target], node.value
    elif isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called(node.value) == "update":
        func, given = node.value.func, node.value.args
        targets, value = ([func.value], given[0]) if isinstance(func, ast.Attribute) and len(given) == 1 else ([], None)
    else:
        return [], None
    return [each.value if isinstance(each, ast.Subscript) else each for each in targets], value


def _is_called_so(node: ast.AST, path: str) -> bool:
    """Whether an expression has the name of a table, of an object's attribute that of any object's."""
    kind = ast.Attribute if "." in path else (ast.Name, ast.Attribute)
    name = getattr(node, "attr", getattr(node, "id", ""))
    return isinstance(node, kind) and name == path.rpartition(".")[2]


def _is_entry(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Subscript) for target in node.targets)


def _are_anew(value: ast.expr) -> bool:
    """Whether what is given has memory of its own: a copy, or a sum, and no parameter by another name."""
    if isinstance(value, (ast.DictComp, ast.ListComp)):
        return _are_anew(value.value if isinstance(value, ast.DictComp) else value.elt)
    if isinstance(value, (ast.Dict, ast.List)):
        parts = value.values if isinstance(value, ast.Dict) else value.elts
        return bool(parts) and all(map(_are_anew, parts))
    if isinstance(value, ast.BinOp):
        return True
    if not isinstance(value, ast.Call):
        return False
    if called(value) in _VIEWS and isinstance(value.func, ast.Attribute):
        return _are_anew(value.func.value)
    return called(value) in _ANEW


def _is_kept(place: Place, path: str) -> bool:
    """Whether something else may have the table, or a tensor of it, by another name: it would be written with it."""
    source = place.source
    for node in source.parents:
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        if not _is_called_so(node, path):
            continue
        whole: ast.expr = node
        above = source.parents.get(node)
        if isinstance(above, ast.Subscript):
            if keeps_or_exchanges(place, node) or (isinstance(above.ctx, ast.Load) and is_kept(source, above)):
                return True
            continue
        if isinstance(above, ast.Attribute):
            call = source.parents.get(above)
            if above.attr not in (*_READS, "update") or not isinstance(call, ast.Call):
                return True
            above, whole = source.parents.get(call), call
            if isinstance(above, ast.Expr):
                continue
        if not isinstance(above, (ast.For, ast.comprehension, ast.Call, ast.Compare)):
            return True
        if isinstance(above, ast.comprehension) and _gives_as_it_is(source.parents.get(above)):
            return True
        as_it_is = isinstance(above, ast.Call) and called(above) in _LISTS
        if as_it_is or (isinstance(above, ast.Call) and is_kept(source, whole) and not _is_of_torch(place, above)):
            return True
    return False


def _gives_as_it_is(node: ast.AST | None) -> bool:
    """Whether a comprehension has the tensors themselves: ``{k: v for k, v in self.old.items()}``."""
    given = node.value if isinstance(node, ast.DictComp) else getattr(node, "elt", None)
    return isinstance(given, (ast.Name, ast.Tuple, ast.Subscript))


def _is_of_torch(place: Place, call: ast.Call) -> bool:
    """Whether a name is a function of torch's, which computes: ``functional_call(net, self.old, (x,))``."""
    held = place.value(path_of(call.func))
    return str(getattr(held, "__module__", "")).partition(".")[0] == "torch" and not isinstance(held, type)


def _in_place(place: Place, node: ast.stmt, value: ast.expr, path: str) -> str:
    """The same in one line, written to the tensors that are there."""
    if isinstance(node, ast.Assign) and _is_entry(node):
        entry, given = place.text(node.targets[0]), place.text(value)
        given = f"({given})" if isinstance(value, ast.BinOp) else given
        return f"{entry}.copy_({given}.view_as({entry}))"  # a plain copy would repeat fewer rows
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    held = place.text(target) if target is not None else path
    new, old = fresh("new", place.taken), fresh("held", place.taken)
    if isinstance(held_by(place, path), dict):
        key = fresh("key", place.taken)
        return f"for {key}, {new} in {place.text(value)}.items(): {held}[{key}].copy_({new}.view_as({held}[{key}]))"
    return f"for {old}, {new} in zip({held}, {place.text(value)}, strict=True): {old}.copy_({new}.view_as({old}))"
