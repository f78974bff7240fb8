"""An optimizer inside one of the user's own, whose class makes it: its options are set where the outer one is made."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import pairs_of
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, locals_of, names_in, path_of
from paramgraph_kit.rewrite.source.place import fresh

Held = Callable[[str], Any]


def made_at(sources: Iterable[Source], known: Any, held: Held) -> tuple[Source, ast.stmt, str] | None:
    """The one statement that makes the object through which groups of parameters are known, and its name.

    ``known`` is the inner optimizer, ``held`` gives what a name stands for: ``optimizer = SAM(net.parameters(), SGD)``.
    """
    groups = getattr(known, "param_groups", None)
    if not isinstance(known, torch.optim.Optimizer) or groups is None:
        return None
    found = _made(sources, lambda each: each is not known and getattr(each, "param_groups", None) is groups, held)
    return found[0] if len(found) == 1 else None


def own_made_at(sources: Iterable[Source], known: Any, held: Held) -> tuple[Source, ast.stmt, str] | None:
    """The one statement that makes an optimizer of a class of the user's, whose rates are numbers, and its name."""
    if not is_own(known) or any(type(group.get("lr")) not in (int, float) for group in known.param_groups):
        return None
    found = _made(sources, lambda each: each is known, held)
    return found[0] if len(found) == 1 else None


def is_own(known: Any) -> bool:
    """Whether an optimizer is of a class of the user's, which computes the step by itself."""
    return isinstance(known, torch.optim.Optimizer) and not type(known).__module__.startswith("torch.")


def _made(sources: Iterable[Source], is_it: Callable[[Any], bool], held: Held) -> list[tuple[Source, ast.stmt, str]]:
    """The statements that give what is so a name of the module, or of an object, by a call."""
    found: list[tuple[Source, ast.stmt, str]] = []
    for source in sources:
        every = (n for n in ast.walk(source.tree) if isinstance(n, ast.Assign))
        for node, target, value in ((each, *pair) for each in every for pair in pairs_of(each)):
            name = path_of(target)
            is_outer = isinstance(target, ast.Name) and source.function_of(node) is None
            is_outer |= name.startswith("self.") and name.count(".") == 1
            if is_outer and isinstance(value, ast.Call) and is_it(held(name)):
                found.append((source, node, name))
    return found


def options(
    source: Source, made: ast.stmt, name: str, known: Any, device: str, *, rate: bool, fuse: bool
) -> list[Edit]:
    """Give its groups the options that a capture needs, once it is made."""
    function = source.function_of(made)
    beside = [n for n in source.tree.body if not isinstance(n, Function | ast.ClassDef)]
    taken = locals_of(function) if function is not None else {each for n in beside for each in names_in(n)}
    group = fresh("group", taken)
    of_first, lines = ({} if is_own(known) else known.param_groups[0]), list[str]()
    if "capturable" in of_first:
        lines.append(f'    {group}["capturable"] = True')
    counted = "lr_decay" in of_first
    if "fused" in of_first and (fuse or counted or (rate and "capturable" not in of_first)):
        lines.append(f'    {group}["fused"], {group}["foreach"] = True, False')
    if rate:
        lines.append(f'    {group}["lr"] = torch.tensor(float({group}["lr"]), device={device})')
    return [source.after(made, [f"for {group} in {name}.param_groups:", *lines])] if lines else []
