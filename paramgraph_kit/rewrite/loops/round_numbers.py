"""Numbers of the host's that are others from round to round: found before a round, and given to it in tensors.

A graph would keep the first of them. What the host alone computes of such numbers, ``schedule[it]`` or
``(it + 1) % 2 == 0``, comes before the round; a number becomes ``torch.full((), schedule[it], device=device)``, and
what is true or false stays a bool, for each of which there is a graph.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from paramgraph_kit.rewrite.loops.spans import LENT
from paramgraph_kit.rewrite.loops.states import Held
from paramgraph_kit.rewrite.source.digits import all_wide, is_fraction
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, free_names, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Form, called, fresh

_ALONE = frozenset("min max abs int float bool round len pow".split())  # noqa: SIM905
_MODULES = frozenset(("bisect", "math", "np", "numpy"))
_PLAIN = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
_PARTS = (*_PLAIN, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop, ast.IfExp, ast.Subscript, ast.Attribute, ast.Call)


def lend(
    source: Source,
    function: Function,
    part: Sequence[ast.stmt],
    varying: Collection[str],
    is_host: Callable[[ast.expr], bool],
    device: str,
    reals: Collection[str] = (),
    *,
    wide: bool = False,
    floats: Collection[str] = (),
) -> list[Edit]:
    """Edits that find what a round computes of some numbers before it, and have it read that; none where one cannot.

    Args:
        part: the statements of the round.
        varying: names that have another number in some rounds, also what others hold, as it is written: ``self.h``.
        reals: those of them that have to keep all their digits, beside tensors of 64 bits.
        wide: all tensors that the round reads are such.
        floats: those that have a fraction, which functions of others' may compare with numbers.
    """
    taken, made = names_in(source.tree) | {function.name}, stored(part)
    lines: dict[str, str] = {}
    names: dict[str, str] = {}
    edits = []
    for node in part:
        for found in _of_host(source, node, varying, is_host):
            if free_names(found) & made or found.lineno != found.end_lineno:
                return []
            text = source.text(found)
            if text not in names:
                names[text] = name = fresh(f"{_called(source, found)}_in", taken | set(lines))
                exact = any(each in text for each in reals) or (wide and is_fraction(found, function))
                exact |= text in floats and _is_given_to_others(source, found)
                kind = ", dtype=torch.float64" if exact else ""
                lines[name] = text if _decides(found) else f"torch.full((), {text}{kind}, device={device})"
            edits.append(source.replace(found, names[text]))
    head = [f"{name} = {text}" for name, text in lines.items()]
    return [source.before(part[0], head, LENT), *edits] if edits else []


def lend_arrays(source: Source, part: Sequence[ast.stmt], names: Collection[str], device: str) -> list[Edit]:
    """Edits that give a round the arrays by which it indexes, ``rewards[picked]``, as tensors; none for other uses."""
    taken, called_so, edits = names_in(source.tree), dict[str, str](), list[Edit]()
    for node in (n for top in part for n in ast.walk(top) if isinstance(n, ast.Name) and n.id in names):
        above: ast.AST | None = source.parents.get(node)
        index: ast.AST = node
        if isinstance(above, ast.Tuple):  # ``act[picked, None]``
            index, above = above, source.parents.get(above)
        if not isinstance(above, ast.Subscript) or above.slice is not index or not isinstance(node.ctx, ast.Load):
            return []
        edits.append(source.replace(node, called_so.setdefault(node.id, fresh(f"{node.id}_in", taken))))
    head = [f"{new} = torch.as_tensor({name}, device={device})" for name, new in called_so.items()]
    return [source.before(part[0], head, LENT), *edits] if edits else []


def lend_all(
    source: Source,
    function: Function,
    part: Sequence[ast.stmt],
    wanted: Sequence[Collection[str]],
    is_host: Callable[[ast.expr], bool],
    device: str,
    tensors: Mapping[str, Form],
) -> list[Edit]:
    """Edits for numbers of others' (those that map to them), for names of such, and for names of arrays."""
    held, names, arrays = (*wanted, (), ())[:3]
    double = any(form.dtype is torch.float64 for form in tensors.values())
    floats = [text for text, n in held.items() if isinstance(n, float)] if isinstance(held, Mapping) else []
    reals, wide = floats if double else [], all_wide(tensors.values())
    numbers_in = lend(source, function, part, {*held, *names}, is_host, device, reals, wide=wide, floats=floats)
    return _together(numbers_in, lend_arrays(source, part, arrays, device))


def heads(edits: Sequence[Edit]) -> int:
    """How many lines such edits put before the round."""
    return edits[0].text.count("\n") if edits else 0


def _together(one: Sequence[Edit], other: Sequence[Edit]) -> list[Edit]:
    """Edits of both, of which the first stands before the round."""
    if not one or not other:
        return [*one, *other]
    return [replace(one[0], text=one[0].text + other[0].text), *one[1:], *other[1:]]


def zeroed(
    source: Source, functions: Sequence[ast.AST], part: Sequence[ast.stmt], *, anywhere: bool = False
) -> list[Edit]:
    """Edits by which gradients keep their memory where rounds have several graphs, which all add to it.

    None of them knows which of the others began anew. Nothing where the round does not zero them, or lets them go
    otherwise. With ``anywhere`` it may be what its loop does around it that zeroes them, or reads them: a graph would
    go on adding to memory that is gone.
    """
    every = [n for function in functions for n in within(function)]
    gone = [n for n in every if isinstance(n, ast.Attribute) and n.attr == "grad" and isinstance(n.ctx, ast.Store)]
    calls = [n for n in every if isinstance(n, ast.Call) and called(n) == "zero_grad"]
    inside = {id(n) for node in part for n in ast.walk(node)}
    if gone or not (anywhere or any(id(each) in inside for each in calls)):
        return []
    edits = []
    for call in calls:
        if call.args or any(option.arg != "set_to_none" for option in call.keywords):
            return []
        edits.append(source.replace(call, f"{source.text(call.func)}(set_to_none=False)"))
    return edits


def _of_host(
    source: Source, node: ast.AST, varying: Collection[str], is_host: Callable[[ast.expr], bool]
) -> Iterator[ast.expr]:
    """What the host alone computes of some names below a node, each as much of it as there is."""
    if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp, Function)):
        return
    every = list(ast.walk(node)) if isinstance(node, ast.expr) else []
    held = [n for n in every if isinstance(n, Held) and isinstance(n.ctx, ast.Load) and source.text(n) in varying]
    meant = held or (isinstance(node, ast.expr) and free_names(node) & set(varying))
    if isinstance(node, ast.expr) and meant and _is_alone(node) and (node in held or is_host(node)):
        sums = not isinstance(node, ast.Name) and all(isinstance(n, _PLAIN) for n in every)
        # those are done on the device, where they are read, but for powers: 2**64 is none of its whole numbers
        if not sums or any(isinstance(n, ast.Pow) for n in every):
            yield node
            return
    for child in ast.iter_child_nodes(node):
        yield from _of_host(source, child, varying, is_host)


def _is_alone(node: ast.expr) -> bool:
    """Whether an expression only computes: it may be found a little earlier."""
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Load)
    for part in ast.walk(node):
        if not isinstance(part, _PARTS):
            return False
        if isinstance(part, ast.Call):
            path = path_of(part.func)
            if part.keywords or not (path in _ALONE or path.partition(".")[0] in _MODULES) or ".random." in path:
                return False
    return True


def _is_given_to_others(source: Source, node: ast.expr) -> bool:
    """Whether a function gets it that is none of torch's, nor a tensor's: ``bisect(EDGES, self.u)`` compares it."""
    above = source.parents.get(node)
    while above is not None and not isinstance(above, ast.stmt):
        of_torch = isinstance(above, ast.Call) and path_of(above.func).partition(".")[0] == "torch"
        if isinstance(above, ast.Call) and not of_torch and not hasattr(torch.Tensor, called(above)):
            return True
        above = source.parents.get(above)
    return False


def _decides(node: ast.expr) -> bool:
    """Whether it is true or false: that is asked by the host, and each has a graph of its own."""
    if isinstance(node, ast.BoolOp):
        return all(map(_decides, node.values))
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _called(source: Source, node: ast.expr) -> str:
    """What something could be called: by the name that it is given, that of a keyword, or its own."""
    above = source.parents.get(node)
    if isinstance(above, ast.Assign) and len(above.targets) == 1 and isinstance(above.targets[0], ast.Name):
        return above.targets[0].id
    if isinstance(above, ast.keyword) and above.arg:
        return above.arg
    if _decides(node):
        return "chosen"
    every = (n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript)))
    first = next((n for n in every if not isinstance(n, ast.Subscript) or _entry(n)), None)
    name = _entry(first) or path_of(first).rpartition(".")[2] if first is not None else ""
    return name or "number"


def _entry(node: ast.AST) -> str:
    """``h`` of ``state["h"]``."""
    key = node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
    return key if isinstance(key, str) and key.isidentifier() else ""
