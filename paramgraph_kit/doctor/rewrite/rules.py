"""How a line is rewritten where it stands, for each class of problem: what is sure, or nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paramgraph_kit.doctor.rewrite.edits import Edit, Source, heads, locals_of, names_in, path_of
from paramgraph_kit.trace.model import Failure

FACTORIES = frozenset("zeros ones empty full arange linspace eye".split())  # noqa: SIM905 - shorter so
WRITERS = ("print", "append", "info", "debug", "warning", "write", "add_scalar")  # what they are given is read
NUMBER = (int, float, complex, bool)


@dataclass(slots=True)
class Place:
    """A statement in which something was found."""

    source: Source
    statement: ast.stmt
    failure: Failure
    device: str  # how the user, or else anybody, would write the device
    cuda: str = "torch.cuda"  # how the user calls what has the streams
    space: dict[str, Any] = field(default_factory=dict)  # global names of the function
    hoisted: list[str] = field(default_factory=list)  # lines for before the function

    def text(self, node: ast.AST) -> str:
        """A node as it is written."""
        return self.source.text(node)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Calls of functions or methods with these names."""
        for node in heads(self.statement):
            if isinstance(node, ast.Call) and called(node) in names:
                yield node

    def local(self, node: ast.AST) -> set[str]:
        """Local names of the function that a node reads."""
        function = self.source.function_of(self.statement)
        own = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return names_in(node) & locals_of(function) - own if function is not None else set()

    def hoist(self, hint: str, text: str) -> str:
        """Evaluate an expression before the function; returns the name that stands for it."""
        function = self.source.function_of(self.statement)
        taken = names_in(self.source.tree) | (locals_of(function) if function is not None else set())
        taken |= {line.split(" = ")[0] for line in self.hoisted}
        name, number = hint, 1
        while name in taken:
            number += 1
            name = f"{hint}_{number}"
        self.hoisted.append(f"{name} = {text}")
        return name


Rule = Callable[[Place], list[Edit]]
RULES: dict[str, list[Rule]] = {}


def _rule(*codes: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        for code in codes:
            RULES.setdefault(code, []).append(rule)
        return rule

    return add


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def edits_for(place: Place) -> list[Edit]:
    """What the first rule that knows the statement makes of it."""
    for rule in RULES.get(place.failure.code, []):
        if edits := rule(place):
            return edits
    return []


@_rule("sync-item")
def _keep_on_device(place: Place) -> list[Edit]:
    """``x.item()`` and ``float(x)`` stay a tensor; ``math.exp(x)`` becomes torch's."""
    found: list[Edit] = []
    if isinstance(place.statement, (ast.If, ast.While, ast.For, ast.Expr, ast.AugAssign)):
        return found  # what is decided or kept on the CPU needs the number
    if is_size(place) or any(place.calls(*WRITERS)):
        return found
    for node in heads(place.statement):
        if not isinstance(node, ast.Call):
            continue
        value: ast.expr | None = None
        if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
            value = node.func.value
        elif isinstance(node.func, ast.Name) and node.func.id in ("float", "int") and len(node.args) == 1:
            value = node.args[0]
        elif isinstance(node.func, ast.Attribute) and place.text(node.func.value) == "math":
            found.append(place.source.replace(node.func.value, "torch"))
        if value is not None:
            text = place.source.bracketed(value)
            found.append(place.source.replace(node, text if text.endswith(".detach()") else f"{text}.detach()"))
    for branch in _branches_on(place) if found else ():  # what the host decided by the number, the device decides
        chosen = _choose_by_where(replace(place, statement=branch)) or _assert_on_device(
            replace(place, statement=branch)
        )
        if not chosen:
            return []
        found += chosen
    return found


def _branches_on(place: Place) -> Iterator[ast.stmt]:
    """Branches and assertions of the function that read what a statement assigns."""
    names = {n.id for n in ast.walk(place.statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    function = place.source.function_of(place.statement)
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, (ast.If, ast.While, ast.Assert)) and names & names_in(node.test):
            yield node


def is_size(place: Place) -> bool:
    """Whether a statement's result is where the host needs a number: the end of a slice, of a range."""
    names = {n.id for n in ast.walk(place.statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    function = place.source.function_of(place.statement)
    for node in ast.walk(function) if function is not None else ():
        sized = isinstance(node, ast.Slice) or (isinstance(node, ast.Call) and called(node) in (*FACTORIES, "range"))
        if sized and names & names_in(node):
            return True
    return False


@_rule("copy-to-cpu")
def _return_the_tensor(place: Place) -> list[Edit]:
    """``return x.cpu().numpy()`` returns the tensor."""
    if not isinstance(place.statement, ast.Return):
        return []
    value = place.statement.value
    inner = value
    while (
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Attribute)
        and inner.func.attr in ("cpu", "numpy", "tolist", "detach")
        and not inner.args
    ):
        inner = inner.func.value
    if value is None or inner is None or inner is value:
        return []
    return [place.source.replace(value, place.text(inner))]


@_rule("tensor-literal", "copy-to-gpu")
def _number_in_full(place: Place) -> list[Edit]:
    """``torch.tensor(3.0, device=d)`` becomes ``torch.full((), 3.0, device=d)``."""
    found = []
    for call in place.calls("tensor"):
        options = {option.arg: option for option in call.keywords}
        if len(call.args) != 1 or "device" not in options or not _is_number(call.args[0]):
            continue
        rest = "".join(f", {place.text(option)}" for option in call.keywords)
        found.append(place.source.replace(call, f"torch.full((), {place.text(call.args[0])}{rest})"))
    return found


@_rule("copy-to-gpu")
def _make_it_there(place: Place) -> list[Edit]:
    """``torch.tril(torch.ones(n, n)).to(d)`` becomes ``torch.tril(torch.ones(n, n, device=d))``."""
    return [place.source.replace(call, text) for call, text in made_there(place, FACTORIES)]


def made_there(place: Place, names: Collection[str]) -> Iterator[tuple[ast.Call, str]]:
    """Copies to the device of what functions of torch with these names make, and the text that makes it there."""
    for call in place.calls("to", "cuda"):
        made = call.func.value if isinstance(call.func, ast.Attribute) else None
        if not isinstance(made, ast.Call) or len(call.args) > 1:
            continue
        if any(option.arg != "non_blocking" for option in call.keywords):
            continue
        text, target = place.text(made), place.text(call.args[0]) if call.args else place.device
        factories = [node for node in ast.walk(made) if isinstance(node, ast.Call) and called(node) in names]
        factories = [node for node in factories if names_in(node.func) == {"torch"}]
        for factory in factories:
            old = place.text(factory)
            text = text.replace(old, f"{old[:-1]}, device={target})", 1)
        if factories:
            yield call, text


@_rule("copy-to-cpu", "copy-to-gpu")
def _look_up_there(place: Place) -> list[Edit]:
    """``table[i.cpu()].to(d)`` becomes ``table_on_device[i]``, of a table that was copied before the function."""
    found = []
    for node in heads(place.statement):
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or place.local(node.value):
            continue
        index = node.slice
        if not isinstance(place.space.get(node.value.id), torch.Tensor) or not isinstance(index, ast.Call):
            continue
        if called(index) != "cpu" or not isinstance(index.func, ast.Attribute):
            continue
        attribute = place.source.parents.get(node)
        outer = place.source.parents.get(attribute) if isinstance(attribute, ast.Attribute) else None
        whole = outer if isinstance(outer, ast.Call) and called(outer) in ("to", "cuda") else node
        name = node.value.id
        table = place.hoist(f"{name}_on_device", f"{name}.to({place.device})")
        found.append(place.source.replace(whole, f"{table}[{place.text(index.func.value)}]"))
    return found


@_rule("tensor-literal", "copy-to-gpu")
def _make_it_before(place: Place) -> list[Edit]:
    """A copy whose values do not come from the function's own variables is made before the function."""
    found = []
    for call in place.calls("tensor", "as_tensor", "to", "cuda"):
        source = call.func.value if isinstance(call.func, ast.Attribute) and called(call) in ("to", "cuda") else None
        values = [source] if source is not None else call.args[:1]
        if not values or any(place.local(value) for value in values if value is not None):
            continue
        if any(isinstance(node, ast.Call) and "rand" in called(node) for node in ast.walk(call)):
            continue  # other numbers each time
        text, rest = place.text(call), []
        for part in call.args[1 if source is None else 0 :]:
            if place.local(part):
                text = text.replace(place.text(part), place.device)
        for option in call.keywords:
            if option.arg == "device" and place.local(option.value):
                text = text.replace(place.text(option.value), place.device)
            elif place.local(option.value):
                rest.append(place.text(option))
                text = re.sub(rf",?\s*{re.escape(place.text(option))}", "", text)
        inside = place.source.parents.get(call)
        target = inside.targets[0] if isinstance(inside, ast.Assign) and len(inside.targets) == 1 else None
        if isinstance(target, ast.Name) and inside is place.statement and not rest:
            place.hoisted.append(f"{target.id} = {text}")
            return [place.source.without(place.statement)]
        hint = source.id if isinstance(source, ast.Name) else "constant"
        cast = f".to({', '.join(rest)})" if rest else ""
        found.append(place.source.replace(call, place.hoist(f"{hint}_on_device", text) + cast))
    return found


@_rule("cpu-index")
def _index_on_device(place: Place) -> list[Edit]:
    """``x[:, [-1]]`` becomes a slice; another list becomes an index that was made before the function."""
    found = []
    for node in heads(place.statement):
        if not isinstance(node, ast.Subscript):
            continue
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        lists = [part for part in parts if isinstance(part, ast.List)]
        for listed in lists:
            number = _integer(listed.elts[0]) if len(listed.elts) == 1 else None
            if number is not None and len(lists) == 1:
                end = "" if number == -1 else str(number + 1)
                found.append(place.source.replace(listed, f"{number}:{end}"))
            elif all(_integer(each) is not None for each in listed.elts):
                text = f"torch.tensor({place.text(listed)}, device={place.device})"
                found.append(place.source.replace(listed, place.hoist("index", text)))
        for part in parts:
            known = place.space.get(part.id) if isinstance(part, ast.Name) and not place.local(part) else None
            if isinstance(part, ast.Name) and isinstance(known, (list, torch.Tensor)):
                text = f"torch.as_tensor({part.id}, device={place.device})"
                found.append(place.source.replace(part, place.hoist(f"{part.id}_on_device", text)))
    return found


@_rule("data-dependent-branch", "sync-item")
def _choose_by_where(place: Place) -> list[Edit]:
    """``if c: x = a`` becomes ``x = torch.where(c, a, x)``, and two returns become one."""
    node = place.statement
    if not isinstance(node, ast.If) or len(node.body) != 1 or len(node.orelse) > 1:
        return []
    condition = place.text(node.test)
    if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not):
        condition = f"torch.logical_not({place.text(node.test.operand)})"
    elif isinstance(node.test, ast.BoolOp):
        return []
    condition = condition.replace(".item()", "")
    yes, no = node.body[0], node.orelse[0] if node.orelse else None
    if isinstance(yes, ast.Assign) and len(yes.targets) == 1 and isinstance(yes.targets[0], ast.Name):
        name = yes.targets[0].id
        other = name
        if no is not None:
            if not isinstance(no, ast.Assign) or place.text(no.targets[0]) != name:
                return []
            other = place.text(no.value)
        return [place.source.replace(node, f"{name} = torch.where({condition}, {place.text(yes.value)}, {other})")]
    if isinstance(yes, ast.Return) and yes.value is not None:
        block = getattr(place.source.parents[node], "body", [])
        following = block[block.index(node) + 1 :] if node in block else []
        last = no if no is not None else following[0] if len(following) == 1 else None
        if not isinstance(last, ast.Return) or last.value is None:
            return []
        if isinstance(yes.value, ast.Tuple) or isinstance(last.value, ast.Tuple):
            return []
        text = f"return torch.where({condition}, {place.text(yes.value)}, {place.text(last.value)})"
        edits = [place.source.replace(node, text)]
        return edits if no is not None else [*edits, place.source.without(last)]
    return []


@_rule("data-dependent-branch", "compare-on-cpu")
def _assert_on_device(place: Place) -> list[Edit]:
    """``assert c`` becomes ``torch._assert_async(c)``, which the device checks."""
    node = place.statement
    if isinstance(node, ast.If) and not node.orelse and len(node.body) == 1 and isinstance(node.body[0], ast.Raise):
        test, wanted = node.test, False
    elif isinstance(node, ast.Assert):
        test, wanted = node.test, True
    else:
        return []
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, wanted = test.operand, not wanted
    if isinstance(test, ast.BoolOp):
        return []
    text = place.text(test)
    if isinstance(test, ast.Call) and called(test) == "allclose":
        text = text.replace("allclose", "isclose", 1) + ".all()"
    condition = text if wanted else f"torch.logical_not({text})"
    message = f", {place.text(node.msg)}" if isinstance(node, ast.Assert) and isinstance(node.msg, ast.Constant) else ""
    return [place.source.replace(node, f"torch._assert_async({condition}{message})")]


@_rule("dynamic-shape")
def _reduce_the_whole(place: Place) -> list[Edit]:
    """``x[mask].sum()`` and ``x[mask].mean()`` become reductions of the whole, with zeros elsewhere."""
    found = []
    for call in place.calls("sum", "mean"):
        picked = call.func.value if isinstance(call.func, ast.Attribute) else None
        if not isinstance(picked, ast.Subscript) or call.args or call.keywords:
            continue
        if not isinstance(picked.slice, (ast.Name, ast.Compare, ast.Attribute, ast.UnaryOp, ast.BinOp)):
            continue
        mask = place.source.bracketed(picked.slice)
        text = f"torch.where({place.text(picked.slice)}, {place.text(picked.value)}, 0).sum()"
        if called(call) == "mean":
            text = f"({text} / {mask}.sum())" if _binds_tighter(place.source, call) else f"{text} / {mask}.sum()"
        found.append(place.source.replace(call, text))
    return found


@_rule("mask-assignment", "dynamic-shape")
def _assign_by_where(place: Place) -> list[Edit]:
    """``x[mask] = v`` becomes ``x.copy_(torch.where(mask, v, x))``; ``v[mask]`` there is ``v``."""
    node = place.statement
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Subscript):
        return []
    target, mask = node.targets[0].value, place.text(node.targets[0].slice)
    value = node.value
    if isinstance(value, ast.Subscript) and place.text(value.slice) == mask:
        value = value.value
    elif any(isinstance(each, ast.Subscript) and place.text(each.slice) == mask for each in ast.walk(value)):
        return []
    text = place.text(target)
    return [place.source.replace(node, f"{text}.copy_(torch.where({mask}, {place.text(value)}, {text}))")]


@_rule("synchronize")
def _do_not_wait(place: Place) -> list[Edit]:
    """A wait for the device is taken out."""
    node = place.statement
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called(node.value) == "synchronize":
        return [place.source.without(node)]
    return []


LINALG = {"inv": ".inverse", "cholesky": ".L", "solve": ".result", "lu_factor": "[:2]"}


@_rule("linalg-check")
def _unchecked(place: Place) -> list[Edit]:
    """``torch.linalg.inv(x)`` becomes ``torch.linalg.inv_ex(x).inverse``."""
    found = []
    for call in place.calls(*LINALG):
        if isinstance(call.func, ast.Attribute) and place.text(call.func.value).endswith("linalg"):
            name = called(call)
            end = len(place.text(call.func)) - len(name)
            head = place.text(call)
            new = f"{head[:end]}{name}_ex{head[end + len(name) :]}{LINALG[name]}"
            found.append((call, new))
    # One inside another is written first, and both are then one edit.
    outer = [(c, t) for c, t in found if not any(c is not o and c in ast.walk(o) for o, _ in found)]
    edits = []
    for call, text in outer:
        for inner, new in found:
            if inner is not call and inner in ast.walk(call):
                text = text.replace(place.text(inner), new, 1)
        edits.append(place.source.replace(call, text))
    return edits


@_rule("clip-check")
def _clip_unchecked(place: Place) -> list[Edit]:
    """``error_if_nonfinite=True`` is left out."""
    for call in place.calls("clip_grad_norm_", "get_total_norm", "clip_grads_with_norm_"):
        for option in call.keywords:
            if option.arg == "error_if_nonfinite":
                return [place.source.replace(option.value, "False")]
    return []


@_rule("argument-check", "data-dependent-branch", "sync-item")
def _do_not_validate(place: Place) -> list[Edit]:
    """A distribution that checks its arguments on the CPU is told not to."""
    for call in place.calls("Categorical", "Normal", "Bernoulli", "Beta", "Independent", "OneHotCategorical"):
        if not any(option.arg == "validate_args" for option in call.keywords):
            return [place.source.replace(call, f"{place.text(call)[:-1]}, validate_args=False)")]
    return []


@_rule("unjoined-work")
def _join(place: Place) -> list[Edit]:
    """After ``with cuda.stream(s):`` the current stream waits for ``s``."""
    found = _stream_block(place)
    if found is None:
        return []
    block, stream = found
    return [place.source.after(block, [f"{place.cuda}.current_stream().wait_stream({stream})"])]


@_rule("work-elsewhere", "isolation", "not-forked")
def _fork(place: Place) -> list[Edit]:
    """Before ``with cuda.stream(s):`` ``s`` waits for the current stream."""
    found = _stream_block(place)
    if found is None:
        return []
    block, stream = found
    return [place.source.before(block, [f"{stream}.wait_stream({place.cuda}.current_stream())"])]


@_rule("stale-input")
def _write_in_place(place: Place) -> list[Edit]:
    """``state = f(state)`` becomes ``state.copy_(f(state))`` where ``state`` outlives the function."""
    function = place.source.function_of(place.statement)
    if function is None:
        return []
    reads = {path_of(n) for n in ast.walk(place.statement) if isinstance(n, (ast.Name, ast.Attribute))}
    found = []
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or isinstance(node.value, (ast.IfExp, ast.Tuple)):
            continue
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id in locals_of(function):
            continue
        if isinstance(target, (ast.Name, ast.Attribute)) and path_of(target) in reads:
            found.append(place.source.replace(node, f"{place.text(target)}.copy_({place.text(node.value)})"))
    return found


def _stream_block(place: Place) -> tuple[ast.With, str] | None:
    node: ast.AST | None = place.statement
    while node is not None and not isinstance(node, ast.With):
        node = place.source.parents.get(node)
    if node is None:
        function = place.source.function_of(place.statement)
        blocks = [each for each in ast.walk(function) if isinstance(each, ast.With)] if function else []
        node = blocks[0] if len(blocks) == 1 else None
    if not isinstance(node, ast.With):
        return None
    for item in node.items:
        if isinstance(item.context_expr, ast.Call) and called(item.context_expr) == "stream" and item.context_expr.args:
            return node, place.text(item.context_expr.args[0])
    return None


def _is_number(node: ast.expr) -> bool:
    """Whether an expression is a Python number as far as the text shows."""
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, NUMBER)
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    return isinstance(node, ast.Call) and called(node) in ("len", "size", "sqrt", "numel")


def _integer(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if type(value) is int else None


def _binds_tighter(source: Source, node: ast.expr) -> bool:
    return isinstance(source.parents.get(node), (ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Subscript))
