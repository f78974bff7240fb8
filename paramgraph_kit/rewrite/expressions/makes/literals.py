"""Tensors that the host makes anew of the same numbers in each step are filled on the device, or copied there once.

Rules for what has not gone before the launch: numbers that are the same in each step, whatever they are computed from.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import numpy as np
import torch

from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.rewrite.source.edits import Edit, Function, heads, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called

FEW = 16  # numbers of a list, each of which is filled by a kernel of its own
_MADE = re.compile(r"of (?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]")
_COPIES = ("tensor", "as_tensor", "from_numpy", "to", "cuda", "float", "long", "double", "half", "int")

_VIEWS = (
    "to",
    "cuda",
    "view",
    "reshape",
    "expand",
    "unsqueeze",
    "squeeze",
    "detach",
    "float",
    "type",
    "contiguous",
    "data",
)
_KEEPS = (ast.Return, ast.Yield, ast.Tuple, ast.List, ast.Dict)
_KEPT_BY = ("append", "appendleft", "insert", "add", "put", "setattr")


def fill_with_numbers(place: Place) -> list[Edit]:
    """``torch.tensor([t] * n, device=d)`` becomes ``torch.full((n,), t, device=d)``, and a few numbers are stacked."""
    found: list[Edit] = []
    made = _MADE.search(place.failure.message)
    calls = list(place.calls("tensor", "as_tensor", "new_tensor"))
    if made is None or len(calls) != 1 or len(calls[0].args) != 1:
        return found
    default = str(torch.get_default_dtype()).removeprefix("torch.")
    if place.source.file.endswith(REWRITTEN) and "float" in made["dtype"] and made["dtype"] != default:
        return found  # that of a tensor in it, where there was a number before
    call, shape = calls[0], [int(n) for n in made["shape"].split(",") if n.strip()]
    options = {option.arg: place.text(option.value) for option in call.keywords}
    if called(call) == "new_tensor" and isinstance(call.func, ast.Attribute):
        like = place.source.bracketed(call.func.value)
        options = {"device": f"{like}.device", "dtype": f"{like}.dtype", **options}
    whole: ast.expr = call
    outer = place.source.parents.get(place.source.parents.get(call, call))
    if "device" not in options:
        copied = isinstance(outer, ast.Call) and outer.func is place.source.parents.get(call)
        if not isinstance(outer, ast.Call) or not copied or called(outer) not in ("to", "cuda"):
            return found
        targets = [*outer.args, *(o.value for o in outer.keywords if o.arg == "device")]
        if len(targets) > 1 or {o.arg for o in outer.keywords} - {"device", "non_blocking"}:
            return found
        whole, options["device"] = outer, place.text(targets[0]) if targets else place.device
    if options.keys() - {"device", "dtype"} or not hasattr(torch, made["dtype"]):
        return found
    rest = f", dtype={options.get('dtype', 'torch.' + made['dtype'])}, device={options['device']}"
    text = _filled(place, call.args[0], shape, rest)
    return [place.source.replace(whole, text)] if text else found


def index_with_numbers(place: Place) -> list[Edit]:
    """``x[:, ids + [end]]`` of a few numbers of the host's becomes an index that is filled on the device."""
    made, found = _MADE.search(place.failure.message), list[Edit]()
    picks = [n for n in heads(place.statement) if isinstance(n, ast.Subscript) and path_of(n.value)]
    shape = made["shape"].split(",") if made is not None else []
    if len(picks) != 1 or len(shape) != 1 or not shape[0].strip() or int(shape[0]) > FEW:
        return found
    node = picks[0].slice
    parts = [n for n in (node.elts if isinstance(node, ast.Tuple) else [node]) if not isinstance(n, ast.Slice)]
    if len(parts) != 1 or isinstance(parts[0], (ast.Constant, ast.UnaryOp, ast.Compare)):
        return found
    if any(name in place.tensors or _is_listed(place, name) for name in _read(place, parts[0])):
        return found
    there = f"torch.full((), number, dtype=torch.long, device={place.text(picks[0].value)}.device)"
    return [place.source.replace(parts[0], f"torch.stack([{there} for number in {place.text(parts[0])}])")]


def _is_listed(place: Place, name: str) -> bool:
    """Whether a name is what ``x.tolist()`` gives, which stays a tensor where it only picks, or what holds alone."""
    function = place.source.function_of(place.statement)
    made = [n for n in ast.walk(function or place.statement) if isinstance(n, ast.Assign)]
    values = [n.value for n in made if any(isinstance(t, ast.Name) and t.id == name for t in n.targets)]
    left = (n for value in values if isinstance(value, ast.ListComp) for n in value.generators if n.ifs)
    return any(left) or any(isinstance(value, ast.Call) and called(value) == "tolist" for value in values)


def _filled(place: Place, node: ast.expr, shape: list[int], rest: str) -> str:
    """What fills a tensor with the numbers of an expression, or ""."""
    if any(name in place.tensors and not _is_begun(place, name) for name in _read(place, node)):
        return ""
    if not shape and not isinstance(node, (ast.List, ast.Tuple, ast.ListComp)):
        return f"torch.full((), {place.text(node)}{rest})"
    if len(shape) == 2 and isinstance(node, (ast.List, ast.Tuple)) and shape[0] * shape[1] <= FEW:
        rows = [each.elts for each in node.elts if isinstance(each, (ast.List, ast.Tuple))]
        numbers = [each for row in rows for each in row]
        if [len(row) for row in rows] != [shape[1]] * shape[0] or any(isinstance(n, ast.Starred) for n in numbers):
            return ""
        every = ", ".join(f"torch.full((), {place.text(each)}{rest})" for each in numbers)
        return f"torch.stack([{every}]).reshape({shape[0]}, {shape[1]})"
    if len(shape) != 1:
        return ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        one, times = (node.left, node.right) if isinstance(node.left, ast.List) else (node.right, node.left)
        if isinstance(one, ast.List) and len(one.elts) == 1:
            return f"torch.full(({place.text(times)},), {place.text(one.elts[0])}{rest})"
    if isinstance(node, (ast.List, ast.Tuple)) and not any(isinstance(each, ast.Starred) for each in node.elts):
        if len(node.elts) == 1:
            return f"torch.full((1,), {place.text(node.elts[0])}{rest})"
        if len(node.elts) <= FEW:
            return f"torch.stack([{', '.join(f'torch.full((), {place.text(each)}{rest})' for each in node.elts)}])"
    if isinstance(node, ast.ListComp) and shape[0] <= FEW:
        head, tail = place.text(node.elt), place.text(node)
        return f"torch.stack([torch.full((), {head}{rest}){tail[len(head) + 1 :]})"
    return ""


def _read(place: Place, node: ast.expr) -> Iterator[str]:
    """The names that an expression reads, without those that it only asks for a size."""
    for each in (n for n in ast.walk(node) if isinstance(n, ast.Name)):
        above = place.source.parents.get(each)
        sized = isinstance(above, ast.Attribute) and above.attr in ("shape", "size", "numel", "ndim", "dim")
        if not sized and not (isinstance(above, ast.Call) and called(above) == "len"):
            yield each.id


def _is_begun(place: Place, name: str) -> bool:
    """``eps = torch.tensor(eps)``: an argument, before the statement itself gives its name to a tensor."""
    function = place.source.function_of(place.statement)
    every = [n for n in ast.walk(function or place.statement) if isinstance(n, ast.Name) and n.id == name]
    stores = [n for n in every if isinstance(n.ctx, ast.Store)]
    first = len(stores) == 1 and place.source.parents.get(stores[0]) is place.statement and not place.loops()
    return first and function is not None and name in arguments_of(function)


def copy_before_the_helper(place: Place) -> list[Edit]:
    """``torch.from_numpy(table).to(t.device)[t]`` of an argument: what it is called with is copied before, once.

    Only where each call in the file gives it an array or a tensor of around the function, which nothing writes.
    """
    function, source = place.source.function_of(place.statement), place.source
    if function is None:
        return []
    names = arguments_of(function)
    for call in place.calls("to", "cuda", "tensor", "as_tensor"):
        if called(call) in ("to", "cuda"):
            inner = call.func.value if isinstance(call.func, ast.Attribute) else None
        else:
            inner = call.args[0] if call.args else None
        pick = inner if isinstance(inner, ast.Subscript) and called(call) in ("to", "cuda") else None
        inner = pick.value if pick is not None else inner
        tables = [name for name in names if inner is not None and name in names_in(inner)]
        if inner is None or len(tables) != 1 or place.local(inner) != {tables[0]} or not _only_copies(inner):
            continue
        if pick is not None and (is_of_the_device(place, pick.slice) or not is_only_read(place, place.statement)):
            continue
        number, text, edits = names.index(tables[0]), place.text(call), list[Edit]()
        text = text.replace(place.text(pick), tables[0], 1) if pick is not None else text
        for part in [*call.args, *(option.value for option in call.keywords)]:
            if part is not inner and place.local(part):
                if not isinstance(part, ast.Attribute) or part.attr != "device":
                    break
                text = text.replace(place.text(part), place.device)
        else:
            given = [_given(place, node, function, number) for node in ast.walk(source.tree)]
            calls = [one for one in given if one is not None]
            if not calls or not all(isinstance(one, ast.Name) and is_table(place, one.id) for one in calls):
                continue
            for one in calls:
                assert isinstance(one, ast.Name)
                there = re.sub(rf"\b{tables[0]}\b", one.id, text)
                edits.append(source.replace(one, place.hoist(f"{one.id}_on_device", there)))
            return [source.replace(call, place.text(pick) if pick is not None else tables[0]), *edits]
    return []


def _only_copies(node: ast.expr) -> bool:
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    return all(called(n) in _COPIES for n in calls) and not any(isinstance(n, ast.Subscript) for n in ast.walk(node))


def _given(place: Place, node: ast.AST, function: Function, number: int) -> ast.expr | None:
    """What a call of a function gives it there; the node itself where that cannot be told."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != function.name:
        return None
    named = [option.value for option in node.keywords if option.arg == arguments_of(function)[number]]
    return node.args[number] if len(node.args) > number else named[0] if named else node


def is_table(place: Place, name: str) -> bool:
    """Whether a name around the function is an array or a tensor of the CPU that the file never writes."""
    held = place.space.get(name)
    if place.is_local(name) or not (
        isinstance(held, np.ndarray) or (isinstance(held, torch.Tensor) and held.device.type == "cpu")
    ):
        return False
    for node in ast.walk(place.source.tree):
        changed = node.value if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) else None
        if isinstance(node, ast.AugAssign):
            changed = node.target
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            changed = node.func.value
        if isinstance(changed, ast.Name) and changed.id == name:
            return False
    functions = (n for n in ast.walk(place.source.tree) if isinstance(n, ast.Global))
    return not any(name in n.names for n in functions)


def is_of_the_device(place: Place, index: ast.expr) -> bool:
    """Whether an index may be a tensor that is not on the CPU."""
    if any(isinstance(n, (ast.Call, ast.List)) for n in ast.walk(index)):
        return True
    forms = (place.tensors.get(name) for name in names_in(index))
    return any(form is not None and form.device != "cpu" for form in forms)


def is_only_read(place: Place, statement: ast.stmt) -> bool:
    """Whether what a statement picks of a table, no longer a copy, is only computed with."""
    function = place.source.function_of(statement)
    names = {n.id for n in within(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if isinstance(statement, ast.Assign) and not all(isinstance(each, ast.Name) for each in statement.targets):
        return False
    for node in ast.walk(function or statement):
        if isinstance(node, ast.AugAssign) and names & {getattr(n, "id", "") for n in ast.walk(node.target)}:
            return False
        part = isinstance(node, ast.Subscript) and node in set(within(statement))
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            continue
        if not part and not (isinstance(node, ast.Name) and node.id in names):
            continue
        whole, above = node, place.source.parents.get(node)
        while isinstance(above, (ast.Attribute, ast.Call, ast.Subscript)) and _is_part_of(above, whole):
            whole, above = above, place.source.parents.get(above)
        if isinstance(above, _KEEPS) or (isinstance(above, ast.Assign) and above is not statement):
            return False
        if isinstance(above, ast.Attribute) and above.attr.endswith("_"):
            return False
        if isinstance(above, ast.Call) and (called(above) in _KEPT_BY or called(above).endswith("_")):
            return False
    return True


def _is_part_of(above: ast.Attribute | ast.Call | ast.Subscript, node: ast.AST) -> bool:
    """Whether an expression gives a view of another, or the same tensor."""
    if isinstance(above, ast.Attribute):
        return above.attr in _VIEWS
    return (above.func if isinstance(above, ast.Call) else above.value) is node
