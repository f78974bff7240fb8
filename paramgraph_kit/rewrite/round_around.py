"""What is set around a round, by the function that it is cut out of, or by those that call that function."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.rewrite.counting.counted import counters
from paramgraph_kit.rewrite.loops.states import numbers_held
from paramgraph_kit.rewrite.reads import moved_around, set_around, still_read
from paramgraph_kit.rewrite.source.edits import Function, Source, locals_of, path_of
from paramgraph_kit.rewrite.source.place import NUMBER
from paramgraph_kit.rewrite.source.reach import attributes_with, numbers_of

if TYPE_CHECKING:
    from paramgraph_kit.rewrite.loops.one_round import Round
    from paramgraph_kit.rewrite.round_run import Run
    from paramgraph_kit.rewrite.ways import Ways


def set_elsewhere(whole: Ways, inner: str) -> set[str]:
    """Numbers and tensors that a function, and what it calls, bind around another of these: ``.heat``, ``heat``.

    No trial has to show that: such a line may run in a later step alone, and may move results by too little.
    """
    trees = [source.tree for source in whole.sources.values()]
    entry = whole.entry.__name__ if whole.entry is not None else ""
    numbers, tensors = numbers_of(whole.prover.state), attributes_with(whole.prover.state, torch.Tensor)
    held = set_around(trees, entry, inner, {f".{name}" for name in tensors - numbers})
    of_objects = {f".{name}" for name in numbers | tensors}
    return {name for name in held if name in of_objects or isinstance(whole.space.get(name), NUMBER)}


def numbers_read(
    source: Source, definition: Function, block: ast.AST, part: Sequence[ast.stmt], whole: Ways, around: Collection[str]
) -> dict[str, int | float]:
    """What a part reads that is a number which its block sets beside it, or that is set ``around`` its function."""
    found, local = numbers_held(source, block, part, whole._value), locals_of(definition)
    for node in (n for top in part for n in ast.walk(top)):
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        of_object = isinstance(node, ast.Attribute)
        name = f".{node.attr}" if isinstance(node, ast.Attribute) else node.id
        if name in around and (path := path_of(node)) and (of_object or path not in local):
            value: Any = whole._value(path)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found.setdefault(source.text(node), value)
    return found


def moved_in(
    whole: Ways, definition: Function, found: Round, run: Run, around: Iterable[str], *, rates: bool
) -> tuple[str, set[str]]:
    """The name of something that is bound around a round which reads it, or ""; what is bound before its loop alone."""
    containers = {each.name for each in whole.prover.state.holders if each.kind == "container"}
    numbers = [(each.holder.kind, each.name, each.holder.name) for each in counters(whole.prover)]
    moved = {f".{n}" if kind == "attributes" else of if kind == "container" else n for kind, n, of in numbers}
    known = [*found.lines], definition.name, found.name, containers, moved, run.ran
    name, begun = moved_around(*known, rates, whole.same_names(), whole.has_elsewhere)
    return name or min(still_read([*found.lines], found.name, run.ran, around), default=""), begun


def still_anew(
    anew: tuple[str, ...], found: Round, run: Run, texts: Mapping[str, Sequence[str]], file: str
) -> tuple[str, ...]:
    """Those attributes of before the loop that the round reads in its own lines, too, once these are rewritten.

    What fills the round's tensors before each launch reads today's.
    """
    lines = [*(texts.get(file + REWRITTEN) or texts.get(file) or found.lines)]
    return tuple(each for each in anew if still_read(lines, found.name, run.ran, [f".{each}"]))
