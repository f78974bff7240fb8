"""Advice for numbers in an optimizer's groups that a step sets anew, and for calls that only keep what they get."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import torch

from paramgraph_kit.rewrite.advised.state.kept_outside import is_rate
from paramgraph_kit.rewrite.counting.begun_later import gradients_begin_later
from paramgraph_kit.rewrite.source.cancelled import takes_gradients_at_times
from paramgraph_kit.rewrite.source.digits import zeros_for
from paramgraph_kit.rewrite.source.edits import Function, locals_of, names_in, on_one_line, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.rewrite.source.writes import paths, written

_AS_NUMBER = ("alpha", "value")
_NO_NUMBER = "; a tensor is no `alpha=` or `value=`, so "
_TRAINS = ("train", "eval", "backward", "step", "zero_grad")


def set_anew(place: Place) -> str:
    """``group["momentum"] = f(it)`` in a step, and ``buf.lerp_(g, 1 - group["momentum"])`` that reads it."""
    if place.failure.code not in ("scalar-frozen", "host-counter"):
        return ""
    for key, made in _set_in_steps(place):
        reads = [n for n in ast.walk(place.statement) if _key_of(n) == key and isinstance(n.ctx, ast.Load)]  # type: ignore[attr-defined]
        if made is place.statement or reads:
            return filled_before(place, made, key)
    return ""


def filled_before(place: Place, made: ast.Assign, key: str) -> str:
    """How an entry of an optimizer of the file's own is a tensor that is written before each launch."""
    target, value, owner = place.text(made.targets[0]), place.text(made.value), owner_of_groups(place, made)
    where = "this" if made is place.statement else f"line {made.lineno}, `{place.text(made)}`,"
    return owner and (
        f"{where} belongs before each launch, with what it comes of, as `{target}.fill_({value})`; "
        f"{in_tensors(place, owner, key)}{multiplied(place, key)}"
    )


def in_tensors(place: Place, optimizer: str, key: str = "lr") -> str:
    """How each group has a tensor: of one that all share, ``lr=torch.tensor(...)``, all had what is written last."""
    optimizer = _with_groups(place, optimizer)
    value = _inner(place.value(optimizer))
    made = type(value)
    option = "fused" if made in (torch.optim.SGD, torch.optim.Adagrad) else "capturable"
    given = f" with `{option}=True`" * made.__module__.startswith("torch.optim")
    return (
        f"once, where `{optimizer}` has been made{given}, `for group in {optimizer}.param_groups: "
        f'group["{key}"] = torch.tensor(group["{key}"], device={place.device})`'
        f"{_begun_together(place, optimizer, value)}"
    )


def _inner(value: object) -> object:
    """The optimizer of torch's that one of the user's own steps, ``Lookahead(SGD(ps, 0.1))``; else it itself."""
    own = not type(value).__module__.startswith("torch.")
    held = list(getattr(value, "__dict__", {}).values()) if own else []
    inner = [each for each in held if isinstance(each, torch.optim.Optimizer)]
    return inner[0] if len(inner) == 1 and hasattr(value, "param_groups") else value


def _with_groups(place: Place, name: str) -> str:
    """An optimizer where a name is of what steps one, as a gradient scaler; ``optimizer`` where none is known."""
    value = place.value(name)
    if value is None or hasattr(value, "param_groups"):
        return name
    read = [path for path in sorted(paths(place.statement)) if isinstance(place.value(path), torch.optim.Optimizer)]
    known = [each for each, held in place.space.items() if isinstance(held, torch.optim.Optimizer)]
    return read[0] if read else known[0] if len(known) == 1 else "optimizer"


def _begun_together(place: Place, optimizer: str, value: object) -> str:
    """Momenta from the first step on: fused kernels of SGD take none that begins later than the others."""
    if type(value) is not torch.optim.SGD or not (
        takes_gradients_at_times([place.source]) or gradients_begin_later([place.source])
    ):
        return ""
    if not any(group["momentum"] for group in value.param_groups):
        return ""
    if any(group["dampening"] for group in value.param_groups):
        return (
            "; a parameter whose first gradient comes later than the others' fails there: step it by an SGD of its own"
        )
    return (
        f', and `for p in (p for group in {optimizer}.param_groups for p in group["params"]): '
        f'{optimizer}.state[p]["momentum_buffer"] = torch.zeros_like(p)`: some gradients come later here than others, '
        "and fused kernels take no momentum that begins later"
    )


def multiplied(place: Place, key: str) -> str:
    """What to write where an optimizer of the file's own takes such a number as ``alpha=`` or ``value=``."""
    found = []
    for node in ast.walk(place.source.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        for option in node.keywords:
            if option.arg in _AS_NUMBER and any(_key_of(n) == key for n in ast.walk(option.value)):
                found.append(_with_factor(place, node, option, place.text(option.value)))
    return f"{_NO_NUMBER}{', '.join(found)}" if found else ""


def _with_factor(place: Place, call: ast.Call, option: ast.keyword, factor: str) -> str:
    """A call with a factor in what it adds: ``torch.add(u, rate * (dt))`` for ``torch.add(u, rate, alpha=dt)``."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    given, at = [*map(place.text, call.args)], int(owner is not None and path_of(owner) == "torch")
    if at < len(given):
        given[at] += f" * ({factor})"
    given += [f"{each.arg}={place.text(each.value)}" for each in call.keywords if each.arg and each is not option]
    return f"line {call.lineno}: `{place.text(call.func)}({', '.join(given)})`"


def _set_in_steps(place: Place) -> Iterator[tuple[str, ast.Assign]]:
    """Entries of groups, by their keys, that one statement of the file gives another value."""
    found: dict[str, list[ast.Assign]] = {}
    for node in ast.walk(place.source.tree):
        function = place.source.function_of(node) if isinstance(node, ast.Assign) else None
        if not isinstance(node, ast.Assign) or function is None or function.name == "__init__":
            continue
        key = _key_of(node.targets[0]) if len(node.targets) == 1 else ""
        if key and owner_of_groups(place, node):
            found.setdefault(key, []).append(node)
    yield from ((key, nodes[0]) for key, nodes in found.items() if len(nodes) == 1)


def _key_of(node: ast.AST) -> str:
    key = node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
    return key if isinstance(key, str) else ""


def owner_of_groups(place: Place, node: ast.stmt) -> str:
    """``opt`` of ``for group in opt.param_groups`` around a statement, and of ``opt.param_groups[0]["lr"] = ...``."""
    for above in (*place.source.above(node), node):
        every = ast.walk(above.iter) if isinstance(above, ast.For) else ast.walk(above) if above is node else ()
        for part in every:
            if isinstance(part, ast.Attribute) and part.attr == "param_groups":
                return path_of(part.value)
    return ""


def _puts_into_tensors(place: Place, function: Function) -> bool:
    """``self.rows[self.at] = row``, where ``self.rows`` is a tensor."""
    every = (n for part in function.body for n in within(part))
    stores = (n for n in every if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
    names = {path_of(n.value).rpartition(".")[2] for n in stores if isinstance(n.value, ast.Attribute)}
    return any(isinstance(place.attributes.get(name), torch.Tensor) for name in names)


def _reads_written(function: Function, caller: Function, node: ast.Expr) -> bool:
    """Whether a method reads of its object what the step has written ahead of its call: ``self.done.copy_(fell)``."""
    ahead = caller.body[: caller.body.index(node)] if node in caller.body else []
    made = {path.rpartition(".")[2] for each in ahead for path in written(each) if path.startswith("self.")}
    every = (n for part in function.body for n in within(part) if isinstance(n, ast.Attribute))
    return any(n.attr in made for n in every if isinstance(n.ctx, ast.Load) and path_of(n.value) == "self")


def called_for_itself(place: Place) -> str:
    """``stopper(loss, model)`` in a step, where something was found in the object's own lines."""
    function = place.source.function_of(place.statement)
    codes = ("data-dependent-branch", "sync-item", "host-counter", "copy-to-cpu", "print", "size-frozen")
    if place.failure.code not in codes or function is None:
        return ""
    owner = place.source.parents.get(function)
    if not isinstance(owner, ast.ClassDef) or function.name in ("forward", "step", "__init__"):
        return ""
    calls = [each for each in calls_of(place, function, owner.name) if place.source.function_of(each) is not function]
    returns = any(isinstance(n, ast.Return) and n.value is not None for part in function.body for n in within(part))
    if returns and sum(_is_named(n, function.name) for n in ast.walk(place.source.tree)) > len(calls):
        return ""  # one of its callers goes on with that
    if function.name in _TRAINS or any(called(n) in _TRAINS for n in ast.walk(function) if isinstance(n, ast.Call)):
        return ""  # the graph is to have that
    if any(called(n).endswith("_") and called(n)[:1] != "_" for n in ast.walk(function) if isinstance(n, ast.Call)):
        return ""  # it writes to tensors, of which the next step may read
    stores = (n for part in function.body for n in within(part) if isinstance(getattr(n, "ctx", None), ast.Store))
    if any(isinstance(n, ast.Attribute) and n.attr == "data" for n in stores):
        return ""  # it moves parameters, with which a network in the step computes
    picks = (n for part in function.body for n in within(part) if isinstance(n, ast.Subscript))
    written_at = {path_of(n.value) for n in picks if isinstance(n.ctx, ast.Store)}
    if written_at & {*arguments_of(function)[1:]}:
        return ""  # it writes to what it is given, with which the step goes on: `logits[k, first:] = -inf`
    own = [each for each in calls if getattr(place.source.function_of(each), "name", "") == place.entry]
    if len(own or calls) != 1 or (function.name == place.entry and not own):
        return ""  # who knows which of them ran
    node = (own or calls)[0]
    text = f"line {node.lineno}, `{on_one_line(place.text(node))}`, belongs"
    caller = place.source.function_of(node)
    if _puts_into_tensors(place, function):
        given = names_in(node) & locals_of(caller) if caller is not None else set()
        early = caller is not None and given <= set(arguments_of(caller)) and not _reads_written(function, caller, node)
        return f"{text} before each launch, as what it writes may be read there: take it out of the step" * early
    if place.failure.code == "size-frozen":
        return ""
    if _is_read_on(place, function, owner, caller, _object_of(function, node)):
        args = node.value.args if isinstance(node.value, ast.Call) else []
        local = locals_of(caller) - {"self"} if caller is not None else set()
        if caller is None or any(names_in(each) & local for each in args) or not _stands_first(caller, node):
            return ""
        written_there = "".join(_in_place(place, function))
        return f"{text} before each launch: take it out of the step, and call it there{written_there}"
    if any(isinstance(n, ast.Assign) and any(map(is_rate, n.targets)) for n in ast.walk(function)):
        return f"{text} before each launch: take it out of the step"
    values = node.value.args if isinstance(node.value, ast.Call) else []
    back = _given_there(place, caller, values) if values else "return what it is given"
    read = [*_read_elsewhere(place, function, caller, node)]
    if not read and _goes_on_with(function, caller, node):
        return ""  # what is computed in this very step would be one step late
    kept = "".join(_filled_ahead(place, path, line, caller or node) for path, line in read)
    if caller is not None and read and all(line > (node.end_lineno or node.lineno) for _, line in read):
        # The step reads what was decided in this very step: behind the launch it would come one step late.
        if _stands_first(caller, node) and not values:
            return f"{text} before each launch: take it out of the step{kept}"
        between = kept.replace("before each launch", "before the second launch")
        return f"{text} between two launches: one graph ends ahead of it, and another one begins behind it{between}"
    return f"{text} behind the launch: take it out of the step, and {back}{kept}"


def _given_there(place: Place, caller: Function | None, values: Sequence[ast.expr]) -> str:
    """What a step returns for a call behind its launch, which reads it there: ``buffer.update(td.cpu().numpy())``."""
    made: dict[str, list[ast.expr]] = {}
    for node in (n for part in (caller.body if caller is not None else ()) for n in within(part)):
        if isinstance(node, ast.Assign):
            made.setdefault(path_of(node.targets[0]), []).append(node.value)
    known = [made.get(value.id, []) if isinstance(value, ast.Name) else [] for value in values]
    once = [each[0] if len(each) == 1 and _unread(each[0]) is not each[0] else None for each in known]
    values = [each or value for each, value in zip(once, values, strict=True)]  # `td_np`, by what makes it
    held = [_unread(value) for value in values]
    local = locals_of(caller) if caller is not None else set()
    own = [each for each in held if caller is None or names_in(each) & local]  # a model of the file's is there, too
    found = [each for each in own if isinstance(each, ast.Name) and is_host_made(place, caller, each.id)]
    own = [each for each in own if each not in found]
    if not own:
        return "call it there"
    names = "`, `".join(dict.fromkeys(map(place.text, own)))
    read = [place.text(value) for value, inner in zip(values, held, strict=True) if value is not inner]
    ahead = f", with the `{'`, `'.join(each.id for each in found)}` that the host has ahead of that launch" * bool(
        found
    )
    return f"return `{names}`" + f", of which it is given `{'`, `'.join(read)}` there" * bool(read) + ahead


def is_host_made(place: Place, caller: Function | None, name: str, but: ast.stmt | None = None) -> bool:
    """Whether a name is what a function of the file finds without torch: ``idx, w = buffer.sample(16)``, of numpy.

    A line ``but`` may give it another value.
    """
    every = [n for part in (caller.body if caller is not None else ()) for n in within(part)]
    made = [n.value for n in every if isinstance(n, ast.Assign) and n is not but and name in stored([n])]
    call = made[0] if len(made) == 1 else None
    if not isinstance(call, ast.Call):
        return False
    functions = [n for n in place.source.parents if isinstance(n, Function) and n.name == called(call)]
    if len(functions) != 1:
        return False
    read = {path_of(n).partition(".")[0] for n in ast.walk(functions[0]) if isinstance(n, (ast.Name, ast.Attribute))}
    calls = {called(n) for n in ast.walk(functions[0]) if isinstance(n, ast.Call)}
    held = [value for each in read if (value := place.value(each)) is not None]
    draws = any(type(each).__module__.partition(".")[0] == "numpy" for each in held) or read & {"np", "numpy", "random"}
    return bool(draws) and not read & {"torch", "F"} and not calls & {"to", "cuda", "device"}


def _unread(value: ast.expr) -> ast.expr:
    """``td`` of ``td.cpu().numpy()``, which a graph cannot return."""
    inner, reads = value, ("cpu", "numpy", "item", "tolist")
    if isinstance(value, ast.BinOp):  # `td.abs().cpu().numpy() + 1e-5`
        parts = [n for n in ast.walk(value) if isinstance(n, ast.Call) and called(n) in reads]
        outer = [n for n in parts if not any(n is not each and n in ast.walk(each) for each in parts)]
        inner = outer[0] if len(outer) == 1 else value
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and not inner.args:
        if called(inner) not in ("cpu", "numpy", "item", "tolist", "detach"):
            break
        inner = inner.func.value
    found = {called(n) for n in ast.walk(value) if isinstance(n, ast.Call)} & {*reads}
    return inner if found else value


def _is_read_on(place: Place, function: Function, owner: ast.ClassDef, caller: Function | None, held: str) -> bool:
    """Whether a step goes on with a tensor that a method gives its object: of that only the host's lines may go."""
    stores = {n.attr for n in ast.walk(function) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    made = {name for name in stores if isinstance(place.attributes.get(name), torch.Tensor)}
    named = {n.attr for n in ast.walk(caller or function) if isinstance(n, ast.Attribute)}
    if any(isinstance(n, ast.Call) and path_of(n.func) == held for n in ast.walk(caller or function)) and held:
        named |= {"__call__", "forward"}
    others = [n for n in owner.body if isinstance(n, Function) and n.name in named and n is not function]
    read = {n.attr for each in others for n in ast.walk(each) if isinstance(n, ast.Attribute)} | named
    return bool(made & read)


def _in_place(place: Place, function: Function) -> Iterator[str]:
    """What a method gives its object a tensor for is written in place, as a graph reads it: ``self.mean``."""
    for node in (n for part in function.body for n in within(part) if isinstance(n, ast.Assign)):
        path = path_of(node.targets[0]) if len(node.targets) == 1 else ""
        if path.startswith("self.") and isinstance(place.value(path), torch.Tensor):
            yield f"; in line {node.lineno} `{path}.copy_({on_one_line(place.text(node.value))})`"


def _read_elsewhere(
    place: Place, function: Function, caller: Function | None, node: ast.Expr
) -> Iterator[tuple[str, int]]:
    """Numbers that a method writes, as the step that calls it reads them on the device: ``ada.p``, with its line."""
    held = _object_of(function, node)
    for name in sorted(_sets_of_its_own(function)):
        given = _given_as_they_are(caller or node)  # which the host gives, behind the launch
        attributes = [n for n in ast.walk(caller or node) if isinstance(n, ast.Attribute) and n not in given]
        reads = [n.lineno for n in attributes if path_of(n) == f"{held}.{name}"]
        if held and reads and type(place.value(f"{held}.{name}")) in (int, float):
            yield f"{held}.{name}", min(reads)


def _goes_on_with(function: Function, caller: Function | None, node: ast.Expr) -> bool:
    """Whether lines behind a call compute with what its method sets, whatever that is where nothing has run yet."""
    held = _object_of(function, node)
    stores = {f"{held}.{name}" for name in _sets_of_its_own(function)}
    later = (n for n in ast.walk(caller or node) if isinstance(n, ast.Assign | ast.AugAssign | ast.Return))
    values = (n.value for n in later if n.lineno > node.lineno and n.value is not None)
    given = _given_as_they_are(caller or node)
    read = (n for value in values for n in ast.walk(value) if isinstance(n, ast.Attribute) and n not in given)
    return bool(held) and any(path_of(n) in stores for n in read)


def _given_as_they_are(step: ast.AST) -> set[ast.AST]:
    """The parts of what a step returns: ``losses.avg`` of ``return losses.avg, y``."""
    found = set[ast.AST]()
    for value in (n.value for n in ast.walk(step) if isinstance(n, ast.Return)):
        found |= {*value.elts} if isinstance(value, ast.Tuple | ast.List) else {value} if value is not None else set()
    return found


def _sets_of_its_own(function: Function) -> set[str]:
    """The attributes that a method sets of its object."""
    every = (n for n in ast.walk(function) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return {n.attr for n in every if path_of(n.value) == "self"}


def _object_of(function: Function, node: ast.Expr) -> str:
    """``ada`` of ``ada.update(loss)``, and of ``ada(loss)``."""
    call = node.value.func if isinstance(node.value, ast.Call) else None
    if isinstance(call, ast.Attribute) and function.name != "__call__":
        call = call.value
    return path_of(call) if call is not None else ""


def _stands_first(caller: Function, node: ast.Expr) -> bool:
    """Whether nothing of a step comes ahead of a line, but what it says of itself."""
    said = ast.get_docstring(caller) is not None
    return caller.body.index(node) == said if node in caller.body else False


def _filled_ahead(place: Place, path: str, line: int, step: ast.AST) -> str:
    name = f"{path.rpartition('.')[2]}_in"
    options = ((n, option) for n in ast.walk(step) if isinstance(n, ast.Call) for option in n.keywords)
    found = [
        _with_factor(place, call, option, re.sub(rf"(?<![\w.]){re.escape(path)}(?!\w)", name, place.text(option.value)))
        for call, option in options
        if option.arg == "alpha" or (option.arg == "value" and called(call).strip("_") in ("addcmul", "addcdiv"))
        if any(isinstance(n, ast.Attribute) and path_of(n) == path for n in ast.walk(option.value))
    ]
    return (
        f"; `{path}`, which it moves, is read from line {line} on: once `{name} = {zeros_for(place)}`, "
        f"before each launch `{name}.fill_({path})`, and `{name}` for `{path}` in the step"
    ) + (f"{_NO_NUMBER}{', '.join(found)}" if found else "")


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and called(node) == name


def calls_of(place: Place, function: Function, owner: str) -> Iterator[ast.Expr]:
    """Statements that call a method, of objects that may be of its class."""
    kinds = {name: type(value).__name__ for name, value in place.space.items()}
    for node in ast.walk(place.source.tree):
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(node, ast.Expr) or not isinstance(call, ast.Call) or place.source.function_of(node) is None:
            continue
        itself = function.name == "__call__" and kinds.get(path_of(call.func)) == owner
        method = call.func if called(call) == function.name and isinstance(call.func, ast.Attribute) else None
        if itself or (method is not None and kinds.get(path_of(method.value), owner) == owner):
            yield node
