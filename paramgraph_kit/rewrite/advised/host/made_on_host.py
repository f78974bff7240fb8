"""Advice for tensors that the host makes in a step: how they are made on the device, or brought there before it."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import replace
from numbers import Number
from types import ModuleType
from typing import Any

import numpy as np
import torch

from paramgraph_kit.doctor.observe.held import attribute_of
from paramgraph_kit.rewrite.advised.asks.listed_numbers import listed_numbers
from paramgraph_kit.rewrite.advised.host.entries_read import entries_read
from paramgraph_kit.rewrite.advised.host.filled_for_each import filled_by_host
from paramgraph_kit.rewrite.advised.host.from_host import BROUGHT, assignments
from paramgraph_kit.rewrite.advised.host.kept_part import of_what_is_kept
from paramgraph_kit.rewrite.advised.host.on_cpu import named
from paramgraph_kit.rewrite.expressions.makes.values import WRITERS, made_in
from paramgraph_kit.rewrite.expressions.picks.sizes import DRAWN, FACTORIES
from paramgraph_kit.rewrite.source.edits import Function, heads, is_method, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, body_of
from paramgraph_kit.rewrite.source.place import Place, called, fresh, is_training, target_of
from paramgraph_kit.rewrite.source.writes import CHANGES

_SEVERAL = re.compile(r"of \w+\[\d")  # of more than one number
_FROM_LISTS = ("tensor", "as_tensor")
_TYPED = ("LongTensor", "FloatTensor", "IntTensor", "BoolTensor", "DoubleTensor", "HalfTensor", "from_numpy")
_FORMS = ("shape", "device", "dtype", "ndim")
_REDUCED = ("sum", "mean", "max", "min", "amax", "amin", "any", "all", "norm", "prod", "count_nonzero")
_ARRAYS = ("np.array", "np.asarray", "np.mean", "np.sum", "np.std", "numpy.array", "numpy.mean")
_READ = ("tolist", "item", "cpu", "numpy")
_TELLS = (*WRITERS, "warn", "error", "critical", "exception", "log", "extend")


def made_in_a_call(place: Place) -> str:
    """``batch = buffer.sample(64)`` of the function that is captured, which makes tensors in methods of its own."""
    helper, tree = place.source.function_of(place.statement), place.source.tree
    if (
        place.failure.code not in (*BROUGHT, "host-random")
        or helper is None
        or not place.entry
        or helper.name == place.entry
    ):
        return ""
    functions = {n.name: n for n in ast.walk(tree) if isinstance(n, Function)}
    if (
        place.entry not in functions
        or sum(isinstance(n, Function) and n.name == place.entry for n in ast.walk(tree)) > 1
    ):
        return ""
    if _on_device(place, functions.get(helper.name)):
        return ""
    found: list[tuple[ast.stmt, ast.Call]] = []
    for node in (n for part in functions[place.entry].body for n in within(part)):
        if isinstance(node, ast.Assign):
            calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
            found += [(node, call) for call in calls if _leads(functions, call, helper.name)]
    # What leads there may do more than the host's: `trainer.train_step()` fetches, and trains.
    if found and _on_device(place, functions.get(called(found[0][1]))):
        return ""
    if len(found) != 1 or not _is_plain(place, found[0][1], helper):
        return ""
    statement, call = found[0]
    return (
        f"all that `{place.text(call)}` does, at line {statement.lineno}, is the host's: do that before each launch, "
        f"and give `{place.entry}` what comes of it, as arguments"
    )


def _leads(functions: dict[str, Function], call: ast.Call, name: str, deep: int = 4) -> bool:
    """Whether a call comes to a function of the same file."""
    if called(call) == name:
        return True
    inner = functions.get(called(call)) if deep else None
    below = (n for part in inner.body for n in within(part)) if inner is not None else ()
    return any(isinstance(n, ast.Call) and _leads(functions, n, name, deep - 1) for n in below)


def _on_device(place: Place, helper: Function | None) -> bool:
    """Whether a function names models, optimizers or tensors of the device, so that it does more than the host's."""
    nodes = [n for part in helper.body for n in ast.walk(part)] if helper is not None else []
    values = (place.space.get(n.id) for n in nodes if isinstance(n, ast.Name))
    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)
    return any(map(is_training, nodes)) or any(isinstance(value, kinds) for value in values)


def _is_plain(place: Place, call: ast.Call, helper: Function) -> bool:
    """Whether a call is made with what the host has: a buffer of its own, and numbers."""
    names = arguments_of(helper)[1 if is_method(place.source, helper) else 0 :]
    numbers = [n for n, name in zip(call.args, names, strict=False) if name in place.plain]
    numbers += [n.value for n in call.keywords if n.arg in place.plain]
    numbers = numbers if called(call) == helper.name else []  # by what names another one has them is not known
    for node in ast.walk(call):
        if isinstance(node, ast.Name) and not any(node is each for each in numbers):
            above = place.source.parents.get(node)
            if isinstance(above, ast.Attribute) and above.attr in (*_FORMS, "size"):
                continue  # a size is the host's
            value = place.space.get(node.id)
            on_host = not isinstance(value, (torch.Tensor, torch.nn.Module))
            if node.id not in place.space or not on_host:
                return False
    return True


def stacked(place: Place) -> str:
    """``torch.tensor([(chosen == i).sum() for i in range(n)])``."""
    if place.failure.code not in ("tensor-literal", "sync-item", "copy-to-cpu"):
        return ""
    for call in place.calls(*_FROM_LISTS):
        given = call.args[0] if call.args else None
        each = given.elt if isinstance(given, (ast.ListComp, ast.GeneratorExp)) else None
        if isinstance(given, (ast.List, ast.Tuple)) and given.elts:
            each = given.elts[0]
        if given is None or not isinstance(each, ast.Call) or not isinstance(each.func, ast.Attribute):
            continue
        if called(each) in _REDUCED and path_of(each.func).partition(".")[0] not in ("np", "numpy", "math"):
            return f"`torch.stack({place.text(given)})` puts them together where they are: `torch.tensor` reads each"
    return ""


def index_made(place: Place) -> str:
    """``x[torch.arange(len(x)), at]``."""
    if place.failure.code != "cpu-index":
        return ""
    for node in (n for n in heads(place.statement) if isinstance(n, ast.Subscript)):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        made = [call for call in map(made_in, parts) if call is not None]
        made = [call for call in made if not any(option.arg == "device" for option in call.keywords)]
        x = place.text(node.value)
        texts = [f"{place.text(call)[:-1]}, device={x}.device)" for call in made]
        drawn = list(_drawn(place, parts, f"{x}.device"))
        others = {n for each in parts for n in place.local(each) if _is_given(place, n)}
        given = others - {n for each in made for n in names_in(each)}
        given = {n for n in given if place.tensors[n].device == "cpu"} if given <= place.tensors.keys() else given
        if not made and not drawn:
            continue
        names = "`, `".join(sorted(given))
        more = f"; give it `{names}` on the device, too, where that is one of the CPU" if names else ""
        told = "`, `".join(texts)
        first = f"make the index where `{x}` is: `{told}`" if told else ""
        return first + ("; " * bool(told and drawn)) + "; ".join(drawn) + more
    return ""


def _drawn(place: Place, parts: list[ast.expr], where: str) -> Iterator[str]:
    """``at = torch.randint(n, (m,))`` of the lines before, which the host draws and the index reads."""
    names = {n for each in parts for n in place.local(each)}
    for name, made in assignments(place):
        value = made.value
        of_torch = isinstance(value, ast.Call) and names_in(value.func) == {"torch"} and called(value) in DRAWN
        if name in names and isinstance(value, ast.Call) and of_torch and "device" not in place.text(value):
            yield (
                f"`{name}` is drawn on the CPU, at line {made.lineno}: `{name} = {place.text(value)[:-1]}, "
                f"device={where})` draws it there; other numbers than the CPU's, so it was not rewritten"
            )


def _is_given(place: Place, name: str) -> bool:
    """Whether a name is an argument of the function that a statement is in."""
    function = place.source.function_of(place.statement)
    return function is not None and name in arguments_of(function)


def made_above(place: Place) -> str:
    """``mask = torch.ones(n, m)`` that is written on the CPU and copied afterwards."""
    if place.failure.code != "copy-to-gpu":
        return ""
    for name in sorted({name for call in place.calls("to", "cuda") for name in place.local(call.func)}):
        made = next(named(place, name), None)
        value = made.value if made is not None else None
        if made is None or not isinstance(value, ast.Call) or any(option.arg == "device" for option in value.keywords):
            continue
        if called(value) not in FACTORIES or names_in(value.func) != {"torch"}:
            continue
        target = next((place.text(call.args[0]) for call in place.calls("to") if len(call.args) == 1), place.device)
        text = f"{name} = {place.text(value)[:-1]}, device={target})"
        return (
            f"`{name}` is made on the CPU, at line {made.lineno}: make it on the device, `{text}`, what writes it then "
            "writes it there, and leave out the copy here"
        )
    return ""


def literal(place: Place) -> str:
    """``torch.tensor(self.alphas[i], device=d)``: a number that is the same in each call."""
    if place.failure.code != "tensor-literal" or _SEVERAL.search(place.failure.message):
        return ""
    for call in place.calls(*_FROM_LISTS):
        if len(call.args) == 1 and _is_number(place, call.args[0]):
            options = "".join(f", {place.text(option)}" for option in call.keywords)
            return f"`torch.full((), {place.text(call.args[0])}{options})` is filled on the device, and copies nothing"
    return ""


def _is_number(place: Place, node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return _is_number(place, node.body) and _is_number(place, node.orelse)
    if isinstance(node, ast.BinOp):
        return _is_number(place, node.left) and _is_number(place, node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_number(place, node.operand)
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Slice, ast.Tuple)):
        table = _known(place, node.value)
        if isinstance(table, np.ndarray):
            return table.ndim == 1
        return isinstance(table, (list, tuple)) and all(isinstance(each, Number) for each in table)
    if isinstance(node, (ast.Name, ast.Attribute)):
        return isinstance(_known(place, node), Number)
    return isinstance(node, ast.Constant) and isinstance(node.value, Number)


def _known(place: Place, node: ast.expr) -> Any:
    """What a global name or an attribute holds, as far as its last name tells."""
    path = path_of(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
    if "." in path:
        return place.attributes.get(path.rpartition(".")[2])
    return None if place.local(node) else place.space.get(path)


def before_launch(place: Place) -> str:
    """``w = torch.tensor([count[i] for i in items.tolist()], device=d)``: the host's, of arguments alone."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code not in ("copy-to-cpu", "sync-item", "tensor-literal", "copy-to-gpu") or function is None:
        return ""
    if (
        isinstance(node, ast.For)
        and node in body_of(function)
        and place.local(node.iter) <= set(arguments_of(function))
    ):
        return (
            _rounds(place, node)
            or f"it reads arguments alone, `{place.text(node.iter)}`: the loop belongs before each launch"
        )
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Name) or node not in body_of(function):
        return ""
    calls = [call for call in place.calls(*_FROM_LISTS, "from_numpy") if call.args]
    if not calls or not any(called(n) in _READ for n in ast.walk(calls[0].args[0]) if isinstance(n, ast.Call)):
        return ""
    if not place.local(calls[0]) <= set(arguments_of(function)):
        return ""
    kept = f"{target.id}_in"
    return (
        f"the host makes it of arguments alone: it belongs before each launch, with what it counts on. Once `{kept}`, "
        f"a tensor of that shape on {place.device}, before each launch `{kept}.copy_({place.text(node.value)})`, here "
        f"`{kept}` for `{target.id}`"
    )


def _rounds(place: Place, loop: ast.For) -> str:
    """``for g in range(int(groups.max()) + 1):`` whose rounds compute on the device: how many there are is given."""
    known = {*place.tensors, *place.seen, *(n for n in names_in(loop) if isinstance(place.space.get(n), torch.Tensor))}
    if not known & {name for part in loop.body for name in names_in(part)}:
        return ""
    if not isinstance(loop.iter, ast.Call) or path_of(loop.iter.func) != "range":
        return (
            f"before each launch do what the rounds do with `{place.text(loop.iter)}` on the host, into a tensor of "
            "the device that stays, with a row for each round, and let the loop go through its rows"
        )
    taken = place.taken
    n, end = fresh("n", taken), place.text(loop.iter.args[-1])
    return (
        f"`{end}` says how many rounds there are, and a graph has one number of them: find `{n} = {end}` before the "
        f"launch, give it as a number, `for {place.text(loop.target)} in range({n}):`, and keep a graph for each, "
        f"`graphs[{n}]`; or take an `{n}` that none is above, where a round without a row writes nothing"
    )


def made_by_host(place: Place) -> str:
    """``mask = torch.from_numpy(spans(x.shape[:2])).to(d)``, which the host draws or computes anew at each step."""
    node = place.statement
    target = target_of(node)
    if place.failure.code != "copy-to-gpu" or not isinstance(target, ast.Name):
        return ""
    for call in place.calls("from_numpy", *_FROM_LISTS):
        made = call.args[0] if call.args else None
        if not isinstance(made, ast.Call) or called(made) in _READ:
            continue
        sized = {n for n in ast.walk(made) if isinstance(n, ast.Attribute) and n.attr in ("shape", "device", "dtype")}
        inside = {n for each in sized for n in ast.walk(each)}
        if any(n.id in place.tensors for n in ast.walk(made) if isinstance(n, ast.Name) and n not in inside):
            continue
        kept, form = f"{target.id}_in", place.tensors.get(target.id)
        like = (
            f"torch.zeros({tuple(form.shape)}, dtype={form.dtype}, device={place.device})" if form else "a tensor of it"
        )
        if not form and not sized and isinstance(node, ast.Assign) and not place.local(node.value):
            like = place.text(node.value)
        numbers = ", with the shape as numbers" * bool(sized)
        return (
            f"the host makes it: it belongs before each launch. Once `{kept} = {like}`, before each launch "
            f"`{kept}.copy_({place.text(call)})`{numbers}, here {of_what_is_kept(place, call, kept, target.id)}"
        )
    return ""


def of_sizes(place: Place) -> str:
    """``torch.LongTensor(np.tile(np.arange(n), [len(x), 1])).to(d)``: the host's, and the same for each size."""
    if place.failure.code not in ("copy-to-gpu", "tensor-literal"):
        return ""
    for call in place.calls(*_FROM_LISTS, *_TYPED):
        made = list(_all_of(place, call))
        if not call.args or not any(isinstance(n, ast.Call) and n is not call for n in made):
            continue
        forms: list[ast.AST] = [n for n in made if isinstance(n, ast.Attribute) and n.attr in _FORMS]
        forms += [n for n in made if isinstance(n, ast.Call) and called(n) in ("len", "size", "dim")]
        inside = {part for each in forms for part in ast.walk(each)}
        if not all(_is_of_sizes(place, n) for n in made if n not in inside):
            continue
        return (
            f"sizes alone make `{place.text(call)}`, so it is the same in each call: make the tensor once, outside, on "
            f"{place.device}, with the shape as numbers, and read it here; or make it there with functions of torch's, "
            f"as `torch.arange(..., device={place.device})`, and copy nothing"
        )
    return ""


def _is_of_sizes(place: Place, node: ast.AST) -> bool:
    """Whether a part of what is made can not be another thing in another call."""
    if isinstance(node, ast.Call):
        path = path_of(node.func)
        method = isinstance(node.func, ast.Attribute) and not path.partition(".")[0]  # of what was made here
        return (method or _is_fixed(place, path)) and called(node) not in _READ and "rand" not in path
    if isinstance(node, ast.Attribute):
        above = place.source.parents.get(node)
        return isinstance(above, (ast.Attribute, ast.Call)) or _is_fixed(place, path_of(node))
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return True
    above = place.source.parents.get(node)
    if isinstance(above, ast.Attribute):
        return True  # told by its path
    if place.is_local(node.id):
        function = place.source.function_of(place.statement)
        every = [n for part in (function.body if function is not None else ()) for n in within(part)]
        known = node.id in dict(assignments(place))
        return known and not any(_fills(each, node.id) for each in every)
    return _is_fixed(place, node.id)


def _is_fixed(place: Place, path: str) -> bool:
    """Whether a path from outside is a function of a library's, or a number: objects hold other values by then."""
    root, *rest = path.split(".")
    if not rest and hasattr(builtins, root) and root not in place.space:
        return root not in ("next", "input", "id")
    value = place.space.get(root)
    for name in rest:
        value = attribute_of(value, name, None)
    kind = getattr(value, "__module__", None) if callable(value) else None
    of_library = isinstance(kind, str) and kind.partition(".")[0] in ("torch", "numpy", "math", "itertools", "builtins")
    plain = isinstance(value, (Number, str, torch.dtype, torch.device, ModuleType))
    return not place.is_local(root) and (of_library or plain or (not rest and isinstance(value, torch.Tensor)))


def _fills(node: ast.AST, name: str) -> bool:
    """Whether a list or an array with that name is given elements in a place: ``returns.append(r)``, ``x[i] = y``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return path_of(node.func.value) == name and node.func.attr in (*CHANGES, "sort", "reverse", "fill")
    if isinstance(node, ast.AugAssign):
        return name in names_in(node.target)
    return isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and path_of(node.value) == name


def filled(place: Place) -> str:
    """``torch.tensor(returns)`` of a list that the lines before have filled, number by number."""
    function = place.source.function_of(place.statement)
    if place.failure.code not in ("copy-to-gpu", "tensor-literal", "sync-item") or function is None:
        return ""
    every = [n for part in function.body for n in within(part)]
    for call in place.calls(*_FROM_LISTS, *_TYPED[:-1]):
        given = call.args[0] if call.args else None
        if not isinstance(given, ast.Name) or not place.is_local(given.id) or not place.is_its(call):
            continue
        fills = [n for n in every if isinstance(n, (ast.stmt, ast.expr)) and _fills(n, given.id)]
        lines = [n.lineno for n in fills if n.lineno < place.statement.lineno]
        if not lines:
            continue
        kept, first = f"{given.id}_in", place.statement.lineno
        return (
            f"`{given.id}` is filled on the host, at line {lines[0]}. What of it comes of the device stays there: "
            f"without `.item()` where it is read, and here `torch.stack([*{given.id}])`. Where it is the host's alone, "
            f"that belongs before each launch, with all that fills it up to line {first}: once `{kept}`, a tensor of "
            f"that length on {place.device}, before each launch `{kept}.copy_({place.text(call)})`, here `{kept}`"
        )
    return ""


def _all_of(place: Place, node: ast.AST) -> Iterator[ast.AST]:
    """A part of a statement, and what makes the local names in it."""
    yield from ast.walk(node)
    made = dict(assignments(place))
    for name in sorted(place.local(node) & made.keys()):
        yield from _all_of(replace(place, statement=made[name]), made[name].value)


def only_tells(place: Place) -> str:
    """``if bad.any(): print("...")``: a branch on the device in which nothing is computed."""
    node = place.statement
    if place.failure.code not in ("data-dependent-branch", "sync-item") or not isinstance(node, ast.If):
        return ""
    if node.orelse or not all(_tells(each) and not _is_read_here(place, each) for each in node.body):
        return ""
    return (
        f"it only tells what happened: keep `{place.text(node.test)}` without asking for it, return it, and do this "
        "behind the launch; or take it out"
    )


def _tells(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called(node.value) in _TELLS


def _is_read_here(place: Place, node: ast.stmt) -> bool:
    """``keep.append(i)``, where the function itself goes on with ``keep``."""
    call = node.value if isinstance(node, ast.Expr) else None
    owner = call.func.value if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
    path, every = path_of(owner) if owner is not None else "", list(ast.walk(place.source.function_of(node) or node))
    if path and not (isinstance(owner, ast.Name) and place.is_local(path)):  # ``blocks[table[-1]]``
        return any(
            isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load) and path_of(n.value) == path for n in every
        )
    name = path
    reads = [n for n in every if isinstance(n, ast.Name) and n.id == name]
    alone = (place.source.parents.get(n) for n in reads if n is not owner and isinstance(n.ctx, ast.Load))
    return bool(name) and not all(isinstance(above, (ast.Return, ast.Tuple, ast.Attribute)) for above in alone)


def brought_back(place: Place) -> str:
    """``return out.view(n).to(t.device)`` of what was made on the CPU in the lines before."""
    if place.failure.code != "copy-to-gpu":
        return ""
    for call in place.calls("to", "cuda"):
        brought: ast.AST = call
        while isinstance(brought, (ast.Call, ast.Attribute, ast.Subscript)):
            brought = brought.func if isinstance(brought, ast.Call) else brought.value
        for name in sorted(place.local(brought)):  # what is picked by it may be the CPU's itself
            made = next(named(place, name), None)
            if made is not None and any(called(n) in _READ for n in ast.walk(made.value) if isinstance(n, ast.Call)):
                return f"stays as it is, and copies nothing, once line {made.lineno} makes `{name}` on the device"
    return ""


def into_an_array(place: Place) -> str:
    """``correct = (p == y).sum().item()``, of which numpy makes an array in the end, by way of a list."""
    node = place.statement
    if place.failure.code != "sync-item" or not isinstance(node, ast.Assign):
        return ""
    function, name = place.source.function_of(node), path_of(node.targets[0])
    reads = [n for n in ast.walk(node.value) if isinstance(n, ast.Call) and called(n) == "item"]
    held = reads[0].func.value if len(reads) == 1 and isinstance(reads[0].func, ast.Attribute) else None
    if function is None or held is None or node.value is not reads[0]:
        return ""
    every = [n for part in function.body for n in within(part)]
    stores = [n for n in every if isinstance(n, ast.Assign) and name in names_in(n.value)]
    lists = {path_of(t.value) for n in stores for t in n.targets if isinstance(t, ast.Subscript)}
    for end in (n for n in every if isinstance(n, ast.Assign) and n.lineno > node.lineno):
        for call in (n for n in ast.walk(end.value) if isinstance(n, ast.Call) and path_of(n.func) in _ARRAYS):
            given = call.args[0] if call.args else None
            if isinstance(given, ast.Name) and given.id in lists:
                return (
                    f"keep it a tensor, `{name} = {place.text(held)}`; line {end.lineno} makes an array of these: give "
                    f"`{given.id}` back in place of `{path_of(end.targets[0])}`, and do that line behind the launch, "
                    f"with `[float(each) for each in {given.id}]` for `{given.id}`"
                )
    return ""


MADE = (
    made_in_a_call,
    entries_read,
    stacked,
    listed_numbers,
    index_made,
    literal,
    before_launch,
    made_by_host,
    filled_by_host,
    made_above,
    brought_back,
    filled,
    of_sizes,
    only_tells,
    into_an_array,
)
