"""Tensors of objects that a rewrite leaves exchanged, in its graph or around it: how their lines write in place."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

import torch

from paramgraph_kit.rewrite.by_hand import ENDS
from paramgraph_kit.rewrite.reads import only_around
from paramgraph_kit.rewrite.rounds import Rounds
from paramgraph_kit.rewrite.source.ahead_of import begins_with_none, is_sized
from paramgraph_kit.rewrite.source.edits import Function, Source, functions_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import fresh
from paramgraph_kit.rewrite.source.reach import attributes_of
from paramgraph_kit.rewrite.ways import Ways

MOST = 4
AROUND = (
    "`{path}` is one tensor, which a graph reads where it is: around the launch, too, write {new} for `{text}`{line}"
)
INSIDE = "`{path}` stays the tensor that a graph reads: write {new} for `{text}`{line}"
FIRST = " once a first call has made one"
_VIEWS = ("t", "transpose", "permute", "view", "reshape", "movedim", "mT", "T", "swapaxes")


def told(
    attempt: Ways, rounds: Rounds, exchanged: Sequence[str], said: Sequence[str], sizes: Callable[[str], set[object]]
) -> list[str]:
    """One line for each: of what a capture has shown to be ``exchanged``, and of what lines around the launch set.

    ``said`` are other lines for the user, and ``sizes`` tells the shapes that an attribute has had.
    """
    found = list[str]()
    moved = {each.name for each in (rounds.mover.moved, rounds.mover.fed) if each is not None} if rounds.moves else ()
    held = {name for name, value in attributes_of(attempt.prover.state).items() if _is_of_device(value)}
    names = {path.rpartition(".")[2] for path in exchanged}
    for file, lines in rounds.texts.items():
        if (source := attempt.sources.get(file)) is None:
            continue
        tree = ast.parse("".join(lines))
        beside = {*moved, *only_around(tree, moved)}
        inside = [f for f in functions_of(tree, {code.co_qualname for code in attempt.ran}) if f.name not in beside]
        around = [n for n in ast.walk(tree) if isinstance(n, Function) and n.name in beside]
        read = {n.attr for each in inside for n in ast.walk(each) if isinstance(n, ast.Attribute)}
        kept = [(AROUND, node, target) for node, target in _bound(around) if target.attr in read]
        kept += [(INSIDE, node, target) for node, target in _bound(inside) if target.attr in names]
        for words, node, target in kept:
            path, text = path_of(target), lines[node.lineno - 1].strip()
            of_one = path and target.attr in held and not is_sized(node.value) and len(sizes(target.attr)) == 1
            if not of_one or any(f"`{path}.copy_({ast.unparse(node.value)})`" in line for line in said):
                continue
            at = [n for n, line in enumerate(source.lines, 1) if line.strip() == text]
            if at and any(_is_behind(source, n, said) for n in at):
                continue
            where, new = (f" (line {at[0]})" if len(at) == 1 else ""), in_place(node, target, names_in(tree))
            new += FIRST if begins_with_none(source.tree, target.attr) else ""
            found.append(words.format(path=path, new=new, text=ast.unparse(node), line=where))
    return list(dict.fromkeys(found))[:MOST]


def _is_behind(source: Source, line: int, said: Sequence[str]) -> bool:
    """Whether other lines say to end what is captured ahead of a line in its function: their words tell of it."""
    cuts = [int(number) for each in said for number in ENDS.findall(each)]
    functions = [n for n in ast.walk(source.tree) if isinstance(n, Function)]
    return any(f.lineno <= cut <= line <= (f.end_lineno or 0) for f in functions for cut in cuts)


def _is_of_device(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


def _bound(functions: Sequence[Function]) -> Iterator[tuple[ast.Assign, ast.Attribute]]:
    """Attributes that assignments give another value, alone or among several."""
    for node in (n for each in functions for part in each.body for n in within(part)):
        for target in node.targets if isinstance(node, ast.Assign) and len(node.targets) == 1 else ():
            every = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from ((node, each) for each in every if isinstance(each, ast.Attribute))  # type: ignore[misc]


def in_place(node: ast.Assign, target: ast.Attribute, taken: set[str]) -> str:
    """``x, n = f()`` and ``self.x.copy_(x)``: what is read of the old one in the same line is a copy of it."""
    path, whole = path_of(target), node.targets[0]
    if whole is target:
        view = isinstance(node.value, ast.Call) and getattr(node.value.func, "attr", "") in _VIEWS
        return f"`{path}.copy_({ast.unparse(node.value)}{'.clone()' * view})`"
    name = fresh(f"{target.attr}_now", taken)
    targets = [name if each is target else ast.unparse(each) for each in getattr(whole, "elts", [])]
    value = node.value
    given = [ast.unparse(each) for each in value.elts] if isinstance(value, ast.Tuple) else [ast.unparse(value)]
    given = [f"{each}.clone()" if each == path else each for each in given]
    return f"`{', '.join(targets)} = {', '.join(given)}` and behind it `{path}.copy_({name})`"
