"""Which loops of a function go through a DataLoader, also one that the function makes, is handed, or has wrapped."""

from __future__ import annotations

import ast
import types
from collections.abc import Collection, Iterator
from typing import Any

from torch.utils.data import DataLoader

from paramgraph_kit.driver.profiling import profiled
from paramgraph_kit.rewrite.loops.one_round import Loop
from paramgraph_kit.rewrite.source.edits import Function, locals_of, path_of, within
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.truths import Known
from paramgraph_kit.rewrite.ways import Ways


def through_loaders(whole: Ways, definition: Function, loops: Collection[Loop], known_of: Known) -> list[Loop]:
    """Those of some loops whose rounds get their batches from a DataLoader.

    ``for x, y in loader``, ``for n, batch in enumerate(tqdm(loader))``, ``bar = tqdm(loader)`` and ``for x in bar``,
    and ``while True`` with ``next(data_iter)``.
    """
    known: set[str] = {path for path, value in whole.given.items() if _is_loader(value)}
    fetched = {loop: _fetched_from(loop) for loop in loops}
    given = {name for paths in fetched.values() for name in paths if name in locals_of(definition)} - known
    if any(not _leads(whole, definition, known, fetched[loop]) for loop in loops) and given:
        if (key := "loaders") not in known_of.seen:  # only a run tells what a helper has returned
            known_of.seen[key] = _held(whole)
        known |= known_of.seen[key]
    return [loop for loop in loops if _leads(whole, definition, known, fetched[loop])]


def _fetched_from(loop: Loop) -> set[str]:
    """The names of what a loop goes through, or takes the next of in its rounds."""
    nodes = [loop.iter] if isinstance(loop, ast.For) else []
    nexts = (n for part in loop.body for n in within(part) if isinstance(n, ast.Call) and called(n) == "next")
    nodes += [each for call in nexts for each in call.args[:1]]
    return {path for node in nodes for n in ast.walk(node) if isinstance(n, ast.expr) and (path := path_of(n))}


def _leads(whole: Ways, definition: Function, known: Collection[str], paths: Collection[str]) -> bool:
    """Whether one of some names is a loader, or was assigned what one is in."""
    seen, left = set[str](), [*paths]
    every = [n for part in definition.body for n in within(part) if isinstance(n, ast.Assign)]
    while left:
        path = left.pop()
        if path in known or _is_loader(whole._value(path)):
            return True
        if path not in seen:
            seen.add(path)
            left += [more for n in every if path in map(path_of, n.targets) for more in _wrapped(n.value)]
    return False


def _wrapped(value: ast.expr) -> Iterator[str]:
    """The names of what an expression is a wrapper of: ``tqdm(loader)``, ``enumerate(iter(self.loader), 1)``."""
    if path := path_of(value):
        yield path
    if isinstance(value, ast.Call) and called(value) != "len":
        for each in (*value.args, *(keyword.value for keyword in value.keywords)):
            yield from _wrapped(each)


def _is_loader(value: Any) -> bool:
    return isinstance(value, DataLoader)


def _held(whole: Ways) -> set[str]:
    """The local names of the function that are loaders once it has run."""
    entry, found = whole.entry.__code__ if whole.entry is not None else None, set[str]()

    def look(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is entry:
            found.update(name for name, value in frame.f_locals.items() if _is_loader(value))

    with profiled(look):
        whole.prover.given(lambda _, inputs: inputs, steps=1).eager()  # what a name is, one call tells
    return found
