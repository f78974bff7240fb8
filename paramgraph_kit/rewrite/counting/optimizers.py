"""Optimizers whose steps a graph can hold: ``capturable``, and a learning rate that is a tensor."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import pairs_of
from paramgraph_kit.doctor.observe.held import attribute_of
from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, heads, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import is_backward
from paramgraph_kit.rewrite.source.place import Place, called, fresh
from paramgraph_kit.rewrite.source.written_after import written_after

_Made = tuple[Source, ast.Call]
_OPTIONS = ("capturable", "fused", "foreach", "lr")
_SCALED = "_step_supports_amp_scaling"  # what a fused one tells a gradient scaler, which then asks nothing on the host
_SCALES = ("mul_", "div_", "clamp_", "clip_")
_RATES = {"SGD": "1e-3", "Adam": "1e-3", "AdamW": "1e-3", "NAdam": "2e-3", "RAdam": "1e-3", "RMSprop": "1e-2"}
DECAYS = {
    "AdamW": 'p.mul_(1 - group["lr"] * group["decay"])',
    "SGD": 'p.grad.add_(p * group["decay"])',  # and of all others, whose decay goes through the gradients
}


def stepped(statement: ast.stmt, *, scaled: bool = True) -> str:
    """``opt`` for a statement with ``opt.step()`` and, where ``scaled``, with ``scaler.step(opt)``, or ""."""
    for node in heads(statement):
        if isinstance(node, ast.Call) and called(node) == "step" and isinstance(node.func, ast.Attribute):
            name = path_of(node.func.value)
            given = path_of(node.args[0]) if len(node.args) == 1 else ""
            is_scaler = scaled and "scale" in name.rpartition(".")[2].lower()  # a closure is no optimizer
            return given if given and is_scaler else name
    return ""


def gone_through(source: Source, statement: ast.stmt, name: str) -> str:
    """``opts`` for ``opt`` in ``for opt in opts`` and ``for opt, schedule in zip(opts, schedules)``."""
    for loop in (above for above in source.above(statement) if isinstance(above, ast.For)):
        given: list[ast.expr] = [loop.iter]
        targets: list[ast.expr] = [loop.target]
        if isinstance(loop.iter, ast.Call) and called(loop.iter) in ("zip", "enumerate"):
            given = [ast.Constant(0), *loop.iter.args] if called(loop.iter) == "enumerate" else list(loop.iter.args)
            targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
        for target, each in zip(targets, given, strict=False):
            if isinstance(target, ast.Name) and target.id == name:
                return path_of(each)
    return ""


def rebinds(statement: ast.stmt) -> bool:
    """Whether a statement may give parameters or gradients other memory than a graph knows."""
    for node in within(statement):
        if isinstance(node, ast.Attribute) and node.attr in ("data", "grad") and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.Call) and called(node) in ("zero_grad", "set_"):
            return True
        alone = node.value if isinstance(node, ast.Expr) else None  # of a module; a tensor's would give nothing
        if isinstance(alone, ast.Call) and called(alone) in ("to", "cuda", "cpu", "half", "float"):
            return True
        if isinstance(node, ast.Call) and any(option.arg == "assign" for option in node.keywords):
            return True
    return False


def rated(statements: Iterable[ast.stmt]) -> list[str]:
    """``opt`` for statements that give ``opt.param_groups`` another rate."""
    every = [part for node in statements for part in within(node)]
    stores = (n for n in every if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
    if not any(isinstance(n.slice, ast.Constant) and n.slice.value == "lr" for n in stores):
        return []
    groups = (n for n in every if isinstance(n, ast.Attribute) and n.attr == "param_groups")
    return list(dict.fromkeys(path_of(n.value) for n in groups))


def renumbers(statement: ast.stmt) -> bool:
    """Whether a statement gives the groups of an optimizer other numbers, as their rate or their weight decay."""
    every = list(within(statement))
    stores = (n for n in every if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
    named = any(isinstance(n.slice, ast.Constant) and isinstance(n.slice.value, str) for n in stores)
    return named and any(isinstance(n, ast.Attribute) and n.attr == "param_groups" for n in every)


def has_renumbered(source: Source, statement: ast.stmt) -> bool:
    """Whether a statement does that, or calls a function of the file that does: ``adjust_learning_rate(opt, it)``."""
    call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    named = called(call) if isinstance(call, ast.Call) else ""
    named = "" if named == "step" else named  # of an optimizer of the user's own, which keeps moments
    for function in (n for n in source.parents if isinstance(n, Function) and n.name == named):
        calls = {called(n) for n in ast.walk(function) if isinstance(n, ast.Call)}
        if any(map(renumbers, function.body)) and not calls & {"backward", "step", "zero_grad"}:
            return True
    return renumbers(statement)


def given_rates(statement: ast.stmt) -> list[ast.expr]:
    """What a statement computes rates of, and what decides whether it does."""
    found: list[ast.expr] = []
    for node in within(statement):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AugAssign)) and any(isinstance(each, ast.Subscript) for each in targets):
            found.append(node.value)
        elif isinstance(node, (ast.If, ast.While)):
            found.append(node.test)
    return found


def counts_on_host(optimizer: Any) -> bool:
    """Whether it is one whose steps are counted by the CPU, unless its kernels are fused."""
    adagrad = type(optimizer) is torch.optim.Adagrad
    return adagrad and not all(group.get("fused") for group in optimizer.param_groups)


def asks_its_rate(optimizer: Any) -> bool:
    """Whether its steps make a number of a rate that is a tensor, unless its kernels are fused."""
    groups = optimizer.param_groups if type(optimizer) in (torch.optim.SGD, torch.optim.Adagrad) else []
    return any(isinstance(group["lr"], torch.Tensor) and not group.get("fused") for group in groups)


def constructor(
    sources: Iterable[Source],
    name: str,
    known: Any = None,
    around: Mapping[str, Any] = MappingProxyType({}),
    owner: Any = None,
) -> tuple[Source, ast.Call] | None:
    """Where an optimizer is made that is called so in the end, if there is one such place.

    ``known`` is the optimizer: the one place that makes its kind is where it comes from, whatever it is called there.
    ``around`` are the variables of the module: where one of them holds it, that is its name, and a parameter's is not.
    ``owner`` is the object whose attribute it is, of other classes' attributes that have its name.
    """
    if known is not None and around.get(name.partition(".")[0]) is not known and "." not in name:
        held = [each for each, value in around.items() if value is known]
        name = held[0] if len(held) == 1 else name
    sources = list(sources)
    found = named(sources, name, known, owner)
    if found and "." in name:  # of a class and what it is made of, the first in its order sets it
        found = [each for each in found if _class_of(each[0], each[2]) == _class_of(found[0][0], found[0][2])]
    elif known is not None and around.get(name) is known:  # a variable of the module is no attribute
        found = _of_module(sources, name, found)
    if found:
        return found[0][:2] if len(found) == 1 else None
    every = ((source, node) for source in sources for node in source.parents if isinstance(node, ast.Call))
    alike = [each for each in every if called(each[1]) == type(known).__name__ and _of_torch(each[1], each[0])]
    return alike[0] if len(alike) == 1 else None


def _of_module(
    sources: Iterable[Source], name: str, found: list[tuple[Source, ast.Call, ast.expr]]
) -> list[tuple[Source, ast.Call, ast.expr]]:
    """Of the places that give a name an optimizer those of the module, or of the functions that it has it from."""
    own = [each for each in found if isinstance(each[2], ast.Name) and each[0].function_of(each[2]) is None]
    pairs = ((source, *pair) for source in sources for node in source.parents for pair in pairs_of(node))
    given = [value for source, one, value in pairs if path_of(one) == name and source.function_of(one) is None]
    makers = {called(each) for value in given for each in ast.walk(value) if isinstance(each, ast.Call)}
    return own or [each for each in found if getattr(each[0].function_of(each[2]), "name", "") in makers]


def named(
    sources: Iterable[Source], name: str, known: Any = None, owner: Any = None
) -> list[tuple[Source, ast.Call, ast.expr]]:
    """All places that make an optimizer of that name, each with what it is set to; of attributes those of its class."""
    classes = [each.__name__ for each in type(owner).__mro__]
    last, is_owned = name.rpartition(".")[2], "." in name and owner is not None
    found: list[tuple[Source, ast.Call, ast.expr]] = []
    for source in sources:
        for node in source.parents:
            several = isinstance(node, ast.Assign) and len(node.targets) != 1
            for one, made in () if several else _choices(node):
                if isinstance(made, ast.Call) and _of_torch(made, source) and _last(one) == last:
                    is_its = not is_owned or _class_of(source, one) in (*classes, "")
                    found += [(source, made, one)] if is_its and _makes(made, known) else []
    order = {each: n for n, each in enumerate(classes)}
    return sorted(found, key=lambda each: order.get(_class_of(each[0], each[2]), len(order)))


def _choices(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """What a line gives names, either side of a choice: ``opt = Adam(ps) if is_large else SGD(ps, 0.1)``."""
    pairs = pairs_of(node)
    sides = [(one, each) for one, value in pairs if isinstance(value, ast.IfExp) for each in (value.body, value.orelse)]
    return [*pairs, *sides]


def _class_of(source: Source, target: ast.expr) -> str:
    """The class that sets an attribute of its own, "" of what no method sets."""
    of = source.function_of(target) if isinstance(target, ast.Attribute) else None
    above = source.parents.get(of) if of is not None else None
    return above.name if isinstance(above, ast.ClassDef) else ""


def living(state: HostState) -> list[torch.optim.Optimizer]:
    """The optimizers that a function leads to, also those in lists and dictionaries."""
    found: dict[int, torch.optim.Optimizer] = {}
    for holder in state.holders:
        held = holder.read() if holder.kind in ("cell", "global", "container", "attributes") else None
        parts = held.values() if isinstance(held, dict) else held if isinstance(held, (list, tuple, set)) else (held,)
        found |= {id(each): each for each in parts if isinstance(each, torch.optim.Optimizer)}
    return list(found.values())


def makers_of(sources: Iterable[Source], kind: str, alive: int, given: Collection[ast.Call]) -> list[_Made]:
    """All places that make optimizers of a kind, where no name tells them apart and none makes another one.

    ``alive`` is how many there are; ``given`` are the places that have been given their options already.
    """
    every = ((source, node) for source in sources for node in source.parents if isinstance(node, ast.Call))
    found = [(source, node) for source, node in every if called(node) == kind and _of_torch(node, source)]
    found = [(source, node) for source, node in found if node not in given and (node.args or node.keywords)]
    return found if len(found) == alive or (alive and len(found) == 1) else []


def _of_torch(call: ast.Call, source: Source) -> bool:
    """Whether a call makes one of torch's optimizers: a class of that name may be the file's own, or another package's.

    >>> own = ast.parse("class Muon: ...\\nopt = Muon(ps)")
    >>> _of_torch(own.body[1].value, Source("f.py", own))
    False
    """
    name = called(call)
    if name not in dir(torch.optim) or not isinstance(call.func, ast.Name):
        return name in dir(torch.optim)
    for node in source.parents:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return False
        if isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == name for each in node.names):
            return (node.module or "").partition(".")[0] == "torch"
    return True


def refused_kind(message: str) -> str:
    """``AdamW`` for what torch says of an optimizer that a capture may not step, or ""."""
    kind = re.search(r"\bstep\(\) for (\w+) but\b", message)
    return kind[1] if kind is not None else ""


def _makes(call: ast.Call, known: Any) -> bool:
    """Whether a call may have made an optimizer: another kind is another one of that name."""
    return known is None or type(known).__name__ not in dir(torch.optim) or called(call) == type(known).__name__


def _last(node: ast.expr) -> str:
    return path_of(node).rpartition(".")[2]


def left_out(statement: ast.stmt, source: Source) -> str:
    """``opt`` for ``if c: opt.step()``, also with what only scales gradients before it, or ""."""
    if not isinstance(statement, ast.If) or statement.orelse:
        return ""
    *before, last = statement.body
    call = last.value if isinstance(last, ast.Expr) else None
    name = stepped(last) if isinstance(call, ast.Call) and not call.args and not call.keywords else ""
    return name if name and (not before or _scales_new_gradients(source, statement, before)) else ""


def _scales_new_gradients(source: Source, branch: ast.If, before: Sequence[ast.stmt]) -> bool:
    """Whether statements only scale gradients that each step makes anew, and that nothing reads behind them."""
    for part in (n for node in before for n in within(node)):
        if isinstance(part, ast.Expr):
            call = part.value if isinstance(part.value, ast.Call) else None
            func = call.func if call is not None else None
            owner = path_of(func.value).split(".") if isinstance(func, ast.Attribute) else []
            clips = call is not None and called(call) in ("clip_grad_norm_", "clip_grad_value_")
            if not clips and not (call is not None and owner[-1:] == ["grad"] and called(call) in _SCALES):
                return False
        elif isinstance(part, ast.stmt) and not isinstance(part, (ast.For, ast.If)):
            return False
    function = source.function_of(branch)
    every = [n for part in (function.body if function is not None else ()) for n in within(part)]
    zeros = [n for n in every if isinstance(n, ast.Call) and called(n) == "zero_grad" and n.lineno < branch.lineno]
    read = [n for n in every if isinstance(n, ast.Attribute) and n.attr == "grad"]
    return bool(zeros) and not any(n.lineno > (branch.end_lineno or 0) for n in read)


def leave_the_step_out(place: Place) -> list[Edit]:
    """``if c: opt.step()`` steps always, and the kernels of a fused optimizer change nothing where ``c`` is false."""
    node, source = place.statement, place.source
    name = left_out(node, source)
    if not name or not is_fusable(place.space, name) or not isinstance(node, ast.If):
        return []
    condition = condition_of(place, node.test)
    lines = [*momentum_of(place, name), f"{name}.found_inf = torch.logical_not({condition}).float()"]
    if len(node.body) == 1:
        return [source.replace(node, f"\n{source.indent(node)}".join([*lines, f"{name}.step()"]))]
    head, end = source.replace(node, ""), source.replace(node.test, "")
    without = Edit(head.line, head.column, end.end_line, end.end_column, "with torch.no_grad()")  # as far in as before
    return [without, source.before(node.body[-1], lines)]


def is_scaled_inside(statement: ast.stmt, source: Source) -> bool:
    """Whether ``scaler.step(opt)`` stands where no launch can end before it, as its function runs the backward pass.

    ``scaler.update()`` has to come next: without it the scaler would not look at the gradients of a next launch.
    """
    function, block = source.function_of(statement), source.block_of(statement)
    call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    if function is None or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    trains = any(map(is_backward, (n for part in function.body for n in within(part))))
    after = [n.value for n in block[block.index(statement) + 1 :] if isinstance(n, ast.Expr)]
    updates = f"{path_of(call.func.value)}.update"
    updated = any(isinstance(n, ast.Call) and path_of(n.func) == updates and not n.args for n in after)
    return trains and updated and path_of(call.func.value) != stepped(statement)


def is_fusable(space: Mapping[str, Any], name: str) -> bool:
    """Whether a name is an optimizer whose fused kernels ask ``found_inf`` on the device."""
    found = _value(space, name)
    if type(found) is torch.optim.SGD:  # its first step takes the whole gradient, whatever the others leave of it
        return not any(group["momentum"] and group["dampening"] for group in found.param_groups)
    return type(found) in (torch.optim.Adam, torch.optim.AdamW)


def momentum_of(place: Place, name: str) -> list[str]:
    """Lines that make SGD's momentum, of zeros, before its first step: left out, that would leave it unwritten."""
    found = _value(place.space, name)
    if type(found) is not torch.optim.SGD or not any(group["momentum"] for group in found.param_groups):
        return []
    function = place.source.function_of(place.statement)
    taken = names_in(place.source.tree) | (locals_of(function) if function is not None else set())
    group, p = fresh("group", taken), fresh("p", taken)
    return [
        f"for {group} in {name}.param_groups:",
        f'    for {p} in {group}["params"]:',
        f"        if {p}.requires_grad and not {name}.state[{p}]:",
        f'            {name}.state[{p}]["momentum_buffer"] = torch.zeros_like({p})',
    ]


def _value(space: Mapping[str, Any], path: str) -> Any:
    first, *rest = path.split(".")
    found = space.get(first)
    for each in rest:
        found = attribute_of(found, each, None)
    return found


def options(source: Source, call: ast.Call, device: str, *, rate: bool, fuse: bool = False) -> list[Edit]:
    """Give an optimizer the options that a capture needs."""
    given = {option.arg: option.value for option in call.keywords}
    name, new, edits = called(call), [], []
    known = given.get("lr") or (call.args[1] if len(call.args) > 1 else None)
    if rate and not (known is not None and _is_tensor(known)):
        if "lr" in given:
            edits.append(source.replace(given["lr"], f"torch.tensor({_rate(source, given['lr'])}, device={device})"))
        elif len(call.args) > 1:
            edits.append(source.replace(call.args[1], f"torch.tensor({_rate(source, call.args[1])}, device={device})"))
        else:
            new.append(f"lr=torch.tensor({_RATES.get(name, '1e-3')}, device={device})")
    if name in ("SGD", "Adagrad"):
        new += [] if "fused" in given else ["fused=True"]
    elif "capturable" in given:
        edits.append(source.replace(given["capturable"], "True"))
    else:
        new.append("capturable=True")
    if fuse and name not in ("SGD", "Adagrad"):
        new += [] if "fused" in given else ["fused=True"]
    if new:
        # Behind the last argument, so that the edit does not overlap with one inside it.
        last = max((*call.args, *(option.value for option in call.keywords)), key=lambda n: (n.lineno, n.col_offset))
        edits.append(written_after(source, last, f", {', '.join(new)}"))
    return edits


def _rate(source: Source, node: ast.expr) -> str:
    """A rate as a float: of a whole number, ``lr=0``, the tensor would be one of whole numbers, whatever fills it."""
    text = source.text(node)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return f"{node.value}.0"
    parts = list(ast.walk(node))
    is_float = any(isinstance(n, ast.Constant) and isinstance(n.value, float) for n in parts)
    return text if is_float or any(isinstance(n, ast.Div) for n in parts) else f"float({text})"


def _is_tensor(node: ast.expr) -> bool:
    """Whether an expression makes a tensor, as far as its name tells."""
    return isinstance(node, ast.Call) and path_of(node.func) in ("torch.tensor", "torch.full", "torch.as_tensor")


def apart(source: Source, call: ast.Call, device: str) -> list[Edit]:
    """A tensor of its own for the rate of each group, once the optimizer is made."""
    made: ast.AST | None = call
    while made is not None and not isinstance(made, ast.Assign):
        made = source.parents.get(made)
    if made is None:
        return []
    pairs = zip(*((n.elts if isinstance(n, ast.Tuple) else [n]) for n in (made.targets[0], made.value)), strict=False)
    target = next((source.text(one) for one, value in pairs if value is call), source.text(made.targets[0]))
    lines = [f"for group in {target}.param_groups:"]
    return [source.after(made, [*lines, f'    group["lr"] = torch.tensor(float(group["lr"]), device={device})'])]


def found_in(state: HostState) -> list[dict[str, Any]]:
    """The attributes of every optimizer that a function leads to."""
    targets = [holder.target for holder in state.holders if holder.kind == "attributes"]
    return [t for t in targets if isinstance(t, dict) and "param_groups" in t and "state" in t and "defaults" in t]


def _prepare(group: dict[str, Any], device: torch.device, *, rate: bool, fuse: bool) -> None:
    if "capturable" in group:
        group["capturable"] = True
    counted = "lr_decay" in group  # Adagrad, which counts its steps on the device where it is fused
    if "fused" in group and (fuse or counted or (rate and "capturable" not in group)):
        group["fused"], group["foreach"] = True, False
    if rate and not isinstance(group["lr"], torch.Tensor):
        group["lr"] = torch.tensor(float(group["lr"]), device=device)


@contextmanager
def prepared(
    optimizers: Iterable[dict[str, Any]], device: torch.device, *, rate: bool, fuse: bool = False
) -> Iterator[None]:
    """Living optimizers as their constructors would have made them with these options, for a while."""
    optimizers = list(optimizers)
    groups = [group for attributes in optimizers for group in attributes["param_groups"]]
    kept = [(group, {name: group[name] for name in _OPTIONS if name in group}) for group in groups]
    for group in groups:
        _prepare(group, device, rate=rate, fuse=fuse)
    told = [(each, each.get(_SCALED)) for each in optimizers if all(g.get("fused") for g in each["param_groups"])]
    for attributes, _ in told:
        attributes[_SCALED] = True
    counts = []  # what the user's own optimizer counts with, which is not ours to keep on the device
    for attributes in optimizers:
        for values in attributes["state"].values():
            step = values.get("step") if isinstance(values, dict) else None
            if isinstance(step, torch.Tensor) and step.device != device:
                values["step"] = there = step.to(device)
                counts.append((values, step, there))
    try:
        yield
    finally:
        for values, step, there in counts:
            if values.get("step") is there:
                values["step"] = step
        for group, options in kept:
            group.update(options)
        for attributes, value in told:
            attributes.pop(_SCALED, None) if value is None else attributes.update({_SCALED: value})


@contextmanager
def made_so(device: torch.device, *, rate: bool, fuse: bool = False) -> Iterator[None]:
    """While this lasts optimizers are made with these options: a function that makes one has it so in each call."""
    group_of = torch.optim.Optimizer.add_param_group

    def add(self: torch.optim.Optimizer, group: dict[str, Any]) -> None:
        group_of(self, group)
        _prepare(self.param_groups[-1], device, rate=rate, fuse=fuse)
        if self.param_groups[-1].get("fused"):
            setattr(self, _SCALED, True)

    torch.optim.Optimizer.add_param_group = add  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.optim.Optimizer.add_param_group = group_of  # type: ignore[method-assign]
