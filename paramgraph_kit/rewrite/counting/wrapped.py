"""An optimizer inside one of the user's own, whose class makes it: its options are set where the outer one is made."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

import torch

from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, locals_of, names_in, path_of
from paramgraph_kit.rewrite.source.place import fresh, target_of

Held = Callable[[str], Any]


def made_at(sources: Iterable[Source], known: Any, held: Held) -> tuple[Source, ast.stmt, str] | None:
    """The one statement that makes the object through which groups of parameters are known, and its name.

    ``known`` is the inner optimizer, ``held`` gives what a name stands for: ``optimizer = SAM(net.parameters(), SGD)``.
    """
    groups = getattr(known, "param_groups", None)
    if not isinstance(known, torch.optim.Optimizer) or groups is None:
        return None
    found = []
    for source in sources:
        for node in (n for n in ast.walk(source.tree) if isinstance(n, ast.Assign)):
            target = target_of(node)
            name = path_of(target) if target is not None else ""
            is_outer = isinstance(target, ast.Name) and source.function_of(node) is None
            is_outer |= name.startswith("self.") and name.count(".") == 1
            if not is_outer or not isinstance(node.value, ast.Call):
                continue
            value = held(name)
            if value is not known and getattr(value, "param_groups", None) is groups:
                found.append((source, node, name))
    return found[0] if len(found) == 1 else None


def options(
    source: Source, made: ast.stmt, name: str, known: Any, device: str, *, rate: bool, fuse: bool
) -> list[Edit]:
    """Give its groups the options that a capture needs, once it is made."""
    function = source.function_of(made)
    beside = [n for n in source.tree.body if not isinstance(n, Function | ast.ClassDef)]
    taken = locals_of(function) if function is not None else {each for n in beside for each in names_in(n)}
    group = fresh("group", taken)
    of_first, lines = known.param_groups[0], list[str]()
    if "capturable" in of_first:
        lines.append(f'    {group}["capturable"] = True')
    counted = "lr_decay" in of_first
    if "fused" in of_first and (fuse or counted or (rate and "capturable" not in of_first)):
        lines.append(f'    {group}["fused"], {group}["foreach"] = True, False')
    if rate:
        lines.append(f'    {group}["lr"] = torch.tensor(float({group}["lr"]), device={device})')
    return [source.after(made, [f"for {group} in {name}.param_groups:", *lines])] if lines else []
