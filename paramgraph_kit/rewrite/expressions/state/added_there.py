"""``self.best += x.max().item()`` of a state that is on the device: what is read stays there, and the line where it is.

Behind the launch such a line would come too late for what the step computes of the state below it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import torch

from paramgraph_kit.rewrite.expressions.numbers.of_tensors import of_tensors
from paramgraph_kit.rewrite.expressions.numbers.readings import read_of
from paramgraph_kit.rewrite.source.edits import Edit, path_of
from paramgraph_kit.rewrite.source.place import Place, called, renamed, target_of

# Methods that take a tensor of one element where they take a number.
_TAKE = frozenset(
    """add_ sub_ mul_ div_ fill_ pow_ clamp_ clamp_min_ clamp_max_ masked_fill_ index_fill_ remainder_ fmod_
    floor_divide_ true_divide_ multiply_ divide_ subtract_ copy_ lerp_""".split()  # noqa: SIM905
)
_BARE = frozenset("zero_ abs_ neg_ sqrt_ exp_ log_ square_ round_ floor_ ceil_ sigmoid_ tanh_ relu_".split())  # noqa: SIM905
_WHOLE = ("argmax", "argmin", "count_nonzero", "numel")
_OF_HOST = ("min", "max", "abs", "float", "int")
_SHAPED = re.compile(r"_local_scalar_dense of \w+\[[^\]]")
_WITHIN = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.Name, ast.Attribute, ast.expr_context)
_MAKES = ("zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_full", "new_tensor")


def keep_it_there(place: Place) -> list[Edit]:
    """The same line with the tensor for the number that it reads."""
    if (changed := _changed(place)) is None:
        return []
    return [place.source.replace(old, new) for old, new in changed]


def stays_there(place: Place) -> str:
    """The same as words, where no trial has written it."""
    if place.failure.code != "sync-item" or (changed := _changed(place)) is None:
        return ""
    text = renamed(place.text(place.statement), {place.text(old): new for old, new in changed})
    return f"`{text}`: the state is on the device, and so is what is read"


def is_written_there(place: Place) -> bool:
    """Whether a statement writes numbers that it reads into a tensor of the device, also in a way that is none here."""
    return any(_is_there(place, state) for state, _ in _written(place.statement))


def _changed(place: Place) -> list[tuple[ast.expr, str]] | None:
    """Each expression with the text that stands for it; None where something takes nothing but a number."""
    found = list[tuple[ast.expr, str]]()
    for state, given in _written(place.statement):
        if not _is_there(place, state):
            return None
        if any(read_of_device(place, n) for n in ast.walk(state)):
            if (at := _place_in(place, state)) is None:
                return None
            found.append(at)
        for value in given:
            if any(read_of_device(place, n) is not None for n in ast.walk(value)):
                if (text := _there(place, value, path_of(state))) is None:
                    return None
                found.append((value, text))
    return found or None


def _place_in(place: Place, state: ast.expr) -> tuple[ast.expr, str] | None:
    """``x.argmax()`` of ``hist[int(x.argmax())] += 1``, as an index of one place."""
    at = state.slice if isinstance(state, ast.Subscript) and isinstance(place.statement, ast.AugAssign) else None
    if (
        at is None
        or not isinstance(at, ast.Call)
        or (read := read_of_device(place, at)) is None
        or _SHAPED.search(place.failure.message)
    ):
        return None
    return at, f"{_tensor(place, at, read, '')}.reshape(1)"


def _written(node: ast.stmt) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    """What a statement writes in place, with what it is given: ``x``, and ``[v]`` of ``x.mul_(0.9).add_(v)``."""
    if isinstance(node, ast.AugAssign):
        yield node.target, [node.value]
    elif isinstance(node, ast.Assign) and isinstance(target := target_of(node), ast.Subscript):
        yield target, [node.value]
    call, given = node.value if isinstance(node, ast.Expr) else None, list[ast.expr]()
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and called(call) in (*_TAKE, *_BARE):
        given += [*call.args, *(option.value for option in call.keywords)]
        call = call.func.value
        if path_of(call):
            yield call, given


def _is_there(place: Place, state: ast.expr) -> bool:
    """Whether what has a path is a tensor of the device, also by the name that a line of the function gives it."""
    path = path_of(state)
    if not path:
        return False
    function = place.source.function_of(place.statement)
    if "." not in path and place.is_local(path) and path not in place.given:
        every = list(ast.walk(function)) if function is not None else []
        made = [n.value for n in every if isinstance(n, ast.Assign) and path in map(path_of, n.targets)]
        made = [n for n in made if not isinstance(n, ast.Constant)]
        return bool(made) and all(_is_made_there(place, value) for value in made)
    held = place.value(path) if path not in place.given else place.given[path]
    if held is None and path.startswith("self.") and path.count(".") == 1:
        made = list(_made_in_class(place, path))  # of several objects that have one
        return bool(made) and all(_is_made_there(place, value) for value in made)
    return isinstance(held, torch.Tensor) and held.device.type != "cpu"


def _made_in_class(place: Place, path: str) -> Iterator[ast.expr]:
    """What lines of the class around a statement give an attribute."""
    own = next((n for n in place.source.above(place.statement) if isinstance(n, ast.ClassDef)), None)
    for node in ast.walk(own) if own is not None else ():
        if isinstance(node, ast.Assign) and path in [
            path_of(each) for each in node.targets if isinstance(each, (ast.Name, ast.Attribute))
        ]:
            yield node.value
        elif isinstance(node, ast.Call) and called(node) == "register_buffer" and len(node.args) > 1:
            name = node.args[0]
            if isinstance(name, ast.Constant) and name.value == path.removeprefix("self."):
                yield node.args[1]


def _is_made_there(place: Place, value: ast.expr) -> bool:
    if path_of(value):
        return "." in path_of(value) and _is_there(place, value)
    call = value if isinstance(value, ast.Call) else None
    if call is not None and any(option.arg == "device" for option in call.keywords):
        return "cpu" not in place.text(call)
    return call is not None and called(call) in _MAKES and "cpu" not in place.text(call)


def read_of_device(place: Place, node: ast.AST) -> ast.expr | None:
    """What a call reads of the device: ``x`` of ``x.item()``, and of ``int(x)`` where that is evidently a tensor."""
    if not isinstance(node, ast.Call) or (value := read_of(place, node)) is None:
        return None
    if not isinstance(node.func, ast.Name):
        return value
    # `float(np.log(x.item()))` computes before it is one
    if any(isinstance(n, ast.Call) and called(n) == "item" for n in ast.walk(node)):
        return read_of_device(place, value)
    if isinstance(value, ast.Call):
        return value if isinstance(value.func, ast.Attribute) and not path_of(value.func).startswith("math.") else None
    held = place.value(path) if (path := path_of(value)) else None
    return value if isinstance(held, torch.Tensor) and held.device.type != "cpu" else None


def _there(place: Place, value: ast.expr, state: str) -> str | None:
    """A value with the tensors for the numbers that it reads."""
    known, texts = set[ast.AST](), list[tuple[ast.expr, str]]()
    for node in ast.walk(value):
        if node in known:
            continue
        if isinstance(node, ast.Call) and (read := read_of_device(place, node)) is not None:
            known |= set(ast.walk(node))
            texts.append((node, _tensor(place, node, read, state)))
        elif isinstance(node, ast.Call) and not _is_known(place, node):
            return None
        elif isinstance(node, ast.Call):
            known.add(node.func)
            known |= set(ast.walk(node.func))
        elif not isinstance(node, _WITHIN):
            return None
    return of_tensors(renamed(place.text(value), {place.text(node): new for node, new in texts}))


def _is_known(place: Place, call: ast.Call) -> bool:
    """Whether a function of the host's has one of torch's for it."""
    if isinstance(call.func, ast.Name):
        return call.func.id in _OF_HOST and call.func.id not in place.space and not call.keywords
    return path_of(call.func).startswith("math.") and hasattr(torch, called(call)) and len(call.args) == 1


def _tensor(place: Place, call: ast.Call, read: ast.expr, state: str) -> str:
    text = place.source.bracketed(read)
    text = text if text.endswith(".detach()") else f"{text}.detach()"
    if _SHAPED.search(place.failure.message):
        text += ".squeeze()"  # as a number has no dimensions
    if isinstance(read, ast.Subscript) and path_of(read) == state:
        text += ".clone()"  # a part of what is written
    whole = isinstance(read, ast.Call) and called(read) in _WHOLE
    whole = whole or "_dense of int" in place.failure.message
    return f"{text}.long()" if path_of(call.func) == "int" and not whole else text
