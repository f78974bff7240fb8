"""Several tensors that one line exchanges: ``self.f, self.energy = self.forces()`` writes each into the one before."""

from __future__ import annotations

import ast
from collections.abc import Collection

import torch

from paramgraph_kit.rewrite.expressions.state.begins import begins_as, is_made_by, is_none, not_made
from paramgraph_kit.rewrite.expressions.state.carried import begins_as_number, held_by
from paramgraph_kit.rewrite.expressions.state.swapped import is_read_later
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, locals_of, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh


def write_each(place: Place, function: Function, node: ast.Assign, reads: Collection[str]) -> list[Edit]:
    """A line that gives several names their values at once, of which some are in ``reads``: a graph reads their memory.

    All of them are computed first. What may have another one's memory by then is copied before that is written.
    """
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or any(isinstance(each, ast.Starred) for each in target.elts):
        return []
    known = {each: path_of(each) for each in target.elts if _lives_on(place, function, each)}
    states = {each: path for each, path in known.items() if path in reads or _is_held(place, path)}
    if not {*states.values()} & {*reads} or len({*states.values()}) < len(states):
        return []
    every = [part for statement in function.body for part in within(statement)]
    if any(_is_graded(place, path) or is_read_later(path, every, each) for each, path in states.items()):
        return []
    taken, names, written = place.taken, [place.text(each) for each in target.elts], list[str]()
    mixed = len(states) > 1 and not {path.rpartition(".")[2] for path in states.values()}.isdisjoint(
        _read_by(place.source, node.value)
    )
    for at, each in enumerate(target.elts):
        if (path := states.get(each)) is None:
            continue
        new = names[at] = fresh(f"{path.rpartition('.')[2]}_now", taken | {*names})
        value = f"{new}.clone()" if mixed and written else new
        if value != new:
            written.insert(0, f"{new} = {value}")
        written.append(_written(place, function, path, new))
    lines = [f"{', '.join(names)} = {place.text(node.value)}", *written]
    return [place.source.replace(node, f"\n{place.source.indent(node)}".join(lines))]


def _lives_on(place: Place, function: Function, target: ast.expr) -> bool:
    """Whether it is an attribute, or a name around the function, that may be a tensor."""
    if isinstance(target, ast.Name):
        return target.id not in locals_of(function)
    if not isinstance(target, ast.Attribute) or not path_of(target) or target.attr in place.numbers:
        return False
    held = place.value(path_of(target))
    return not callable(held) and not isinstance(held, (torch.optim.Optimizer, int, float, str))


def _is_held(place: Place, path: str) -> bool:
    held = _held(place, path)
    return isinstance(held, torch.Tensor) and held.device.type != "cpu"


def _is_graded(place: Place, path: str) -> bool:
    held = _held(place, path)
    return isinstance(held, torch.Tensor) and held.requires_grad


def _held(place: Place, path: str) -> object:
    found = held_by(place, path)
    return place.value(path) if found is None else found


def _written(place: Place, function: Function, path: str, new: str) -> str:
    """One line, which makes the tensor where there is none: a number, or None, before the first step."""
    text = f"{path}.copy_({new}.view_as({path}))"
    if is_made_by(place.source, function, path):
        return f"{path} = {new}.clone() if {not_made(path)} else {text}"
    first = begins_as(place.source, function, path)
    if begins_as_number(place, path) or not all(map(is_none, first)):
        return f"{path} = {text} if isinstance({path}, torch.Tensor) else {new}.clone()"
    if path in place.begun or first:
        return f"{path} = {new}.clone() if {path} is None else {text}"
    return text


def run_for(source: Source, value: ast.expr) -> list[ast.AST]:
    """An expression, and the functions of the file that it comes to, as their names tell."""
    helpers = [n for n in ast.walk(source.tree) if isinstance(n, Function)]
    found: list[ast.AST] = [value]
    for part in found:
        names = {called(n) for n in ast.walk(part) if isinstance(n, ast.Call)}
        found += [each for each in helpers if each.name in names and each not in found]
    return found


def _read_by(source: Source, value: ast.expr) -> set[str]:
    """The last names of what an expression reads, and of what functions of the file read for it that is not theirs."""
    found = set[str]()
    for part in run_for(source, value):
        own = locals_of(part) if isinstance(part, Function) else set[str]()
        methods = {n.func for n in ast.walk(part) if isinstance(n, ast.Call)}
        read = [n for n in ast.walk(part) if n not in methods and isinstance(getattr(n, "ctx", None), ast.Load)]
        found |= {n.attr for n in read if isinstance(n, ast.Attribute)}
        found |= {n.id for n in read if isinstance(n, ast.Name)} - own
    return found
