"""Tensors that are made on the device where they were made on the CPU and copied there."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

import torch

from paramgraph_kit.rewrite.expressions.decisions.hosted import is_made_by
from paramgraph_kit.rewrite.expressions.picks.sizes import FACTORIES
from paramgraph_kit.rewrite.source.edits import Edit, Function, names_in, path_of
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.rewrite.source.widths import takes_all


def make_it_there(place: Place) -> list[Edit]:
    """``torch.tril(torch.ones(n, n)).to(d)`` becomes ``torch.tril(torch.ones(n, n, device=d))``."""
    return [place.source.replace(call, text) for call, text in made_there(place, FACTORIES)]


def made_there(place: Place, names: Collection[str]) -> Iterator[tuple[ast.Call, str]]:
    """Copies to the device of what functions of torch with these names make, and the text that makes it there."""
    for call in place.calls("to", "cuda", "type_as"):
        made = call.func.value if isinstance(call.func, ast.Attribute) else None
        options = {option.arg: option.value for option in call.keywords if option.arg != "non_blocking"}
        targets = [*call.args, *options.values()]
        while isinstance(made, ast.Subscript) and _is_all_of(made.slice):
            made = made.value  # what is picked of it is picked there
        sum_of = isinstance(made, (ast.BinOp, ast.UnaryOp)) and is_made_by(place, made, names)
        if (
            made is None
            or not (isinstance(made, ast.Call) or sum_of)
            or len(targets) > 1
            or options.keys() - {"device"}
        ):
            continue
        given = call.func.value if isinstance(call.func, ast.Attribute) else made
        text = f"({place.text(made)})" if sum_of and given is made else place.text(given)
        target = place.text(targets[0]) if targets else place.device
        like = called(call) == "type_as" or (bool(targets) and is_a_tensor(place, targets[0]))
        factories = [node for node in ast.walk(made) if isinstance(node, ast.Call) and called(node) in names]
        factories = [node for node in factories if names_in(node.func) == {"torch"}]
        for factory in factories:
            old = place.text(factory)
            text = text.replace(old, f"{old[:-1]}, device={target}{'.device' * like})", 1)
        if factories:  # what is made like another tensor gets its type, too
            yield call, f"{text}.to({target})" if like else text


def _is_all_of(index: ast.expr) -> bool:
    """Whether an index takes all there is, as ``[:, None]`` does."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    whole = map(takes_all, parts)
    none = [isinstance(n, ast.Constant) and (n.value is None or n.value is ...) for n in parts]
    return all(one or other for one, other in zip(whole, none, strict=True))


def is_a_tensor(place: Place, node: ast.expr) -> bool:
    """Whether what ``x.to(...)`` is given is a tensor, as far as the function's use of it tells."""
    if not isinstance(node, ast.Name) or not place.local(node):
        return False
    if node.id in place.tensors:
        return True
    function = place.source.function_of(place.statement)
    above = (place.source.parents.get(n) for n in ast.walk(function or place.statement) if _is_named(n, node.id))
    return any(isinstance(n, (ast.BinOp, ast.Subscript)) or _asks_a_tensor(n) for n in above)


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _asks_a_tensor(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and node.attr != "type" and hasattr(torch.Tensor, node.attr)


def made_of_it(place: Place) -> list[Edit]:
    """``m = torch.ones(n, n).tril()`` is made on the device, where ``m.bool().to(d)`` has copied it there.

    So are ``ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w))``, where ``torch.stack([xs, ys]).to(d)`` has.
    """
    function = place.source.function_of(place.statement)
    copies = list(place.calls("to", "cuda", "type_as"))
    names = {name for call in copies for name in place.local(call.func)}
    found: list[Edit] = []
    seen = list[ast.stmt]()  # `ys, xs = torch.meshgrid(...)` makes several
    for name in sorted(names) if function is not None else ():
        made = [
            n
            for n in ast.walk(function or place.statement)
            if isinstance(n, ast.Assign) and n.lineno < place.statement.lineno and name in _given(n.targets[0])
        ]
        if len(made) != 1 or made[0] in seen:
            continue
        seen += made
        there = _device_of(place, copies, made[0])
        for call in (n for n in ast.walk(made[0].value) if isinstance(n, ast.Call) and called(n) in FACTORIES):
            if names_in(call.func) == {"torch"} and not any(option.arg == "device" for option in call.keywords):
                found.append(place.source.replace(call, f"{place.text(call)[:-1]}, device={there})"))
    return found


def _device_of(place: Place, copies: Sequence[ast.Call], made: ast.stmt) -> str:
    """``x.device`` where ``m.type_as(x)`` has copied it, and ``x`` is there already where it is made."""
    function = place.source.function_of(place.statement)
    likes = {path_of(arg) for call in copies if called(call) == "type_as" for arg in call.args[:1]}
    like = likes.pop() if len(likes) == 1 else ""
    stores = [n for n in ast.walk(function or made) if isinstance(n, ast.Name) and n.id == like]
    known = bool(stores) and all(n.lineno < made.lineno for n in stores if isinstance(n.ctx, ast.Store))
    return f"{like}.device" if known and place.is_local(like) else place.device


def _given(target: ast.expr) -> set[str]:
    """The paths that an assignment gives values."""
    return set(map(path_of, target.elts if isinstance(target, ast.Tuple) else [target]))


def made_in_a_helper(place: Place) -> list[Edit]:
    """``mask_of(n).to(d)`` copies nothing where ``mask_of``, a function of the file, makes its tensors there."""
    found: list[Edit] = []
    for call in place.calls("to", "cuda"):
        made = call.func.value if isinstance(call.func, ast.Attribute) else None
        if not isinstance(made, ast.Call):
            continue
        every = list(ast.walk(place.source.tree))
        helpers = [n for n in every if isinstance(n, Function) and n.name == called(made)]
        calls = [n for n in every if isinstance(n, ast.Call) and called(n) == called(made)]
        if len(helpers) != 1 or len(calls) != 1:
            continue
        for factory in (n for n in ast.walk(helpers[0]) if isinstance(n, ast.Call) and called(n) in FACTORIES):
            given = any(option.arg == "device" for option in factory.keywords)
            if names_in(factory.func) == {"torch"} and not given:
                found.append(place.source.replace(factory, f"{place.text(factory)[:-1]}, device={place.device})"))
    return found
