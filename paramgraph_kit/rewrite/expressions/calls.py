"""Calls that a capture allows in the place of those that wait, check, or leave it: rules for libraries and streams."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import attribute_of
from paramgraph_kit.doctor.observe.unordered import TAKES
from paramgraph_kit.rewrite.expressions.state.begins import begins_as, is_made_by, is_none, not_made
from paramgraph_kit.rewrite.expressions.state.carried import begins_as_number, held_by
from paramgraph_kit.rewrite.expressions.state.unpacked import write_each
from paramgraph_kit.rewrite.source.caught import hears
from paramgraph_kit.rewrite.source.edits import Edit, Function, heads, locals_of, path_of
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, binds_tighter, called, fresh
from paramgraph_kit.rewrite.source.pure import candidates

LINALG_ERROR: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # torch exports it by assignment
LINALG = {"inv": ".inverse", "cholesky": ".L", "solve": ".result", "lu_factor": "[:2]"}


def do_not_wait(place: Place) -> list[Edit]:
    """A wait for the device is taken out."""
    node = place.statement
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called(node.value) == "synchronize":
        return [place.source.without(node)]
    return []


def unchecked(place: Place) -> list[Edit]:
    """``torch.linalg.inv(x)`` becomes ``torch.linalg.inv_ex(x).inverse``, where no line waits for its error."""
    if hears(place.source, place.statement, LINALG_ERROR, place.space):
        return []
    found = []
    for call in place.calls(*LINALG):
        if isinstance(call.func, ast.Attribute) and place.text(call.func.value).endswith("linalg"):
            name = called(call)
            end = len(place.text(call.func)) - len(name)
            head = place.text(call)
            new = f"{head[:end]}{name}_ex{head[end + len(name) :]}{LINALG[name]}"
            found.append((call, new))
    for call in place.calls("inverse"):
        if isinstance(call.func, ast.Attribute) and len(call.args) <= 1 and not call.keywords:
            of_torch = place.text(call.func.value) in ("torch", "torch.linalg")
            given = call.args[0] if of_torch and call.args else call.func.value
            found.append((call, f"torch.linalg.inv_ex({place.text(given)}).inverse"))
    # One inside another is written first, and both are then one edit.
    outer = [(c, t) for c, t in found if not any(c is not o and c in ast.walk(o) for o, _ in found)]
    edits = []
    for call, text in outer:
        for inner, new in found:
            if inner is not call and inner in ast.walk(call):
                text = text.replace(place.text(inner), new, 1)
        edits.append(place.source.replace(call, text))
    return edits


def clip_unchecked(place: Place) -> list[Edit]:
    """``error_if_nonfinite=True`` is left out, where no line waits for its error."""
    if hears(place.source, place.statement, RuntimeError, place.space):
        return []
    for call in place.calls("clip_grad_norm_", "get_total_norm", "clip_grads_with_norm_"):
        for option in call.keywords:
            if option.arg == "error_if_nonfinite":
                return [place.source.replace(option.value, "False")]
    return []


def do_not_validate(place: Place) -> list[Edit]:
    """A distribution that checks its arguments on the CPU is told not to; one of the user's own, too."""
    if hears(place.source, place.statement, ValueError, place.space):
        return []
    for call in (n for n in heads(place.statement) if isinstance(n, ast.Call)):
        named = {option.arg for option in call.keywords}
        if named & {"validate_args", None} or any(isinstance(each, ast.Starred) for each in call.args):
            continue
        if is_distribution(place, called(call)):
            return [_with_options(place, call, ["validate_args=False"])]
    return []


def _with_options(place: Place, call: ast.Call, options: Sequence[str]) -> Edit:
    """A call with more options at its end."""
    head = place.text(call)[:-1].rstrip().rstrip(",")
    return place.source.replace(call, f"{head}{', ' * bool(call.args or call.keywords)}{', '.join(options)})")


def is_distribution(place: Place, name: str) -> bool:
    """Whether a class is one of torch's distributions, or made of one in the same file and takes the same arguments."""
    own = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.ClassDef) and n.name == name]
    if not own:
        kind = getattr(torch.distributions, name, None)
        return isinstance(kind, type) and "validate_args" in inspect.signature(kind).parameters
    made = any(isinstance(n, ast.FunctionDef) and n.name == "__init__" for n in own[0].body)
    if made or not own[0].bases:
        return False
    base = path_of(own[0].bases[0]).rpartition(".")
    if base[0].rpartition(".")[2] in ("distributions", "td", "dist", "D"):
        return hasattr(torch.distributions, base[2])
    return base[2] != name and is_distribution(place, base[2])


_CAUSAL: dict[type, tuple[str, ...]] = {
    torch.nn.TransformerEncoder: ("is_causal",),
    torch.nn.TransformerDecoder: ("tgt_is_causal",),
    torch.nn.Transformer: ("src_is_causal", "tgt_is_causal"),
}


def tell_that_masks_are_given(place: Place) -> list[Edit]:
    """Torch's transformers ask a mask whether it is causal, unless they are told; ``False`` takes it as it is."""
    found = []
    for call in (n for n in heads(place.statement) if isinstance(n, ast.Call)):
        options = next((names for kind, names in _CAUSAL.items() if _is_module(place, call.func, kind)), ())
        named = {option.arg for option in call.keywords}
        told = [f"{name}=False" for name in options if name not in named]
        if told and None not in named and not any(isinstance(each, ast.Starred) for each in call.args):
            found.append(_with_options(place, call, told))
    return found


def _is_module(place: Place, node: ast.expr, kind: type) -> bool:
    """Whether what is called is a module of a kind, also one of a module that an object has: ``self.model.encoder``."""
    owner, _, rest = path_of(node).partition(".")
    first, *names = rest.split(".")
    held: Any = place.attributes.get(first) if owner == "self" else None
    for name in names:
        held = attribute_of(held, name, None)
    return any(isinstance(each, kind) for each in (held, *candidates(place, node)))


def draw_by_hand(place: Place) -> list[Edit]:
    """``torch.normal(m, s)`` becomes ``m + s * torch.randn_like(s)``, and ``d.sample()`` ``d.rsample().detach()``."""
    for call in place.calls("normal"):
        if len(call.args) == 2 and not call.keywords:
            mean, std = (place.source.bracketed(each) for each in call.args)
            text = f"{mean} + {std} * torch.randn_like({std})"
            return [place.source.replace(call, f"({text})" if binds_tighter(place.source, call) else text)]
    for call in place.calls("sample"):
        if isinstance(call.func, ast.Attribute):
            head = place.text(call)[: -len("sample" + place.text(call).rpartition("sample")[2])]
            rest = place.text(call).rpartition("sample")[2]
            return [place.source.replace(call, f"{head}rsample{rest}.detach()")]
    return []


def join(place: Place) -> list[Edit]:
    """After ``with cuda.stream(s):`` the current stream waits for ``s``."""
    found = _stream_block(place)
    if found is None:
        return []
    block, stream = found
    return [place.source.after(block, [f"{place.cuda}.current_stream().wait_stream({stream})"])]


def fork(place: Place) -> list[Edit]:
    """Before ``with cuda.stream(s):`` ``s`` waits for the current stream."""
    found = _stream_block(place)
    if found is None or TAKES in place.failure.message:
        return []
    block, stream = found
    return [place.source.before(block, [f"{stream}.wait_stream({place.cuda}.current_stream())"])]


# What gives new memory, which nothing else has.
_MAKES = frozenset(("clone", "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "new_zeros"))


def write_in_place(place: Place) -> list[Edit]:
    """``state = f(state)`` becomes ``state.copy_(f(state))`` where ``state`` outlives the function."""
    function = place.source.function_of(place.statement)
    if function is None:
        return []
    reads = {path_of(n) for n in ast.walk(place.statement) if isinstance(n, (ast.Name, ast.Attribute))}
    found = []
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        if isinstance(target, ast.Tuple):
            found += write_each(place, function, node, reads)
        if isinstance(node.value, ast.Tuple):
            continue
        if isinstance(node.value, ast.IfExp):
            found += _made_once(place, target, node.value)
            continue
        if _is_first(place, node, target):
            if not (isinstance(node.value, ast.Call) and called(node.value) in _MAKES):
                found.append(place.source.replace(node.value, f"{place.source.bracketed(node.value)}.clone()"))
            continue
        if isinstance(target, ast.Name) and target.id in locals_of(function):
            continue
        if isinstance(target, ast.Attribute) and target.attr in place.numbers:
            continue
        if isinstance(target, (ast.Name, ast.Attribute)) and path_of(target) in reads:
            held = held_by(place, path_of(target))
            if callable(held) or isinstance(held, torch.optim.Optimizer):
                continue  # which has nothing to be written into: a module
            text = f"{place.text(target)}.copy_({_as_wide(place, node.value, target)})"
            found += _begun_before(place, function, node, target, text) or [place.source.replace(node, text)]
    return found


def _begun_before(
    place: Place, function: Function, node: ast.Assign, target: ast.Name | ast.Attribute, text: str
) -> list[Edit]:
    """The same where a new process's first step finds a number there, or None; nothing where it finds a tensor."""
    path = path_of(target)
    held, first = held_by(place, path), begins_as(place.source, function, path)
    value = place.source.bracketed(node.value)
    if is_made_by(place.source, function, path):
        if isinstance(node.value, ast.Name):
            return [place.source.replace(node, f"{path} = {value}.clone() if {not_made(path)} else {text}")]
        new = fresh(f"{path.rpartition('.')[2]}_now", place.taken)
        text = f"{path} = {new}.clone() if {not_made(path)} else {path}.copy_({new}.view_as({path}))"
        made = f"{new} = {place.text(node.value)}\n{place.source.indent(node)}{text}"
        return [place.source.replace(node, made)]
    if begins_as_number(place, path) or (first and not any(map(is_none, first))):
        if not isinstance(held, torch.Tensor) or held.dim() or len(first) != 1 or not _is_known(place, first[0]):
            asks = f"not isinstance({path}, torch.Tensor)"
            return [place.source.replace(node, f"{path} = {value}.clone() if {asks} else {text}")]
        kind = "" if held.dtype is torch.get_default_dtype() else f", dtype={held.dtype}"
        number = place.text(first[0])
        number = number if type(getattr(first[0], "value", None)) is float else f"float({number})"
        begins = f"torch.full((), {number}{kind}, device={place.device})"
        return [place.source.replace(node, text), place.source.replace(first[0], begins)]
    reads = {path_of(n) for n in ast.walk(node.value) if isinstance(n, (ast.Name, ast.Attribute))}
    if not first or path in place.begun or path in reads:  # another line has made it by then
        return []
    return [place.source.replace(node, f"{path} = {value}.clone() if {path} is None else {text}")]


def _is_known(place: Place, first: ast.expr) -> bool:
    """Whether the name of the device has its value by the line of the file that a number stands in."""
    if place.source.function_of(first) is not None:
        return True
    made = [n.lineno for n in place.source.tree.body if place.device in stored([n])]
    return not made or min(made) < first.lineno


def _as_wide(place: Place, value: ast.expr, target: ast.expr) -> str:
    """What is written into a tensor, and raises where it has another number of elements: ``copy_`` would repeat it."""
    path = path_of(target)
    named = any(isinstance(n, (ast.Name, ast.Attribute)) and path_of(n) == path for n in ast.walk(value))
    return place.text(value) if named else f"{place.source.bracketed(value)}.view_as({path})"


def _asks_for_none(place: Place, test: ast.expr, target: ast.expr) -> bool | None:
    """Whether a test is ``x is None``; False for ``x is not None``, None for any other."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or place.text(test.left) != place.text(target):
        return None
    if not isinstance(test.comparators[0], ast.Constant) or test.comparators[0].value is not None:
        return None
    return True if isinstance(test.ops[0], ast.Is) else False if isinstance(test.ops[0], ast.IsNot) else None


def _made_once(place: Place, target: ast.expr, value: ast.IfExp) -> list[Edit]:
    """``x = a if x is None else f(x)`` makes a tensor in the first call, and writes it in place in the others."""
    empty = _asks_for_none(place, value.test, target)
    if empty is None or not isinstance(target, (ast.Name, ast.Attribute)):
        return []
    first, other = (value.body, value.orelse) if empty else (value.orelse, value.body)
    return [
        place.source.replace(first, f"{place.source.bracketed(first)}.clone()"),
        place.source.replace(other, f"{place.text(target)}.copy_({place.text(other)})"),
    ]


def _is_first(place: Place, node: ast.Assign, target: ast.expr) -> bool:
    """Whether a statement gives a variable that is None its first value."""
    above = place.source.parents.get(node)
    if not isinstance(above, ast.If):
        return False
    asked = target
    if place.text(target) in place.begun and isinstance(above.test, ast.Compare):  # with another one that is None, too
        asked = above.test.left if place.text(above.test.left) in place.begun else target
    empty = _asks_for_none(place, above.test, asked)
    return empty is not None and node in (above.body if empty else above.orelse)


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


def fill_with_a_tensor(place: Place) -> list[Edit]:
    """``x.index_fill_(0, i, v)`` with a ``v`` of the device, which it reads on the host, is an ``index_copy_``."""
    for call in place.calls("index_fill_"):
        if not isinstance(call.func, ast.Attribute) or len(call.args) != 3 or isinstance(call.args[2], ast.Constant):
            continue
        x, (dim, index) = place.text(call.func.value), map(place.text, call.args[:2])
        value = f"{place.source.bracketed(call.args[2])}.to({x}.dtype).expand_as({x}.index_select({dim}, {index}))"
        return [place.source.replace(call, f"{x}.index_copy_({dim}, {index}, {value})")]
    return []
