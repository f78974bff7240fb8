"""Results of a capture that the call which captures gives back as they are: nothing has computed them yet."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import CodeType

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.held import tensors_in
from paramgraph_kit.doctor.observe.one_graph import OneGraph
from paramgraph_kit.doctor.observe.own_regions import Region, all_blocks, graphs_at
from paramgraph_kit.doctor.observe.places import frames_of_the_user
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_Given = tuple[CodeType, int, ast.expr | None]
_MOVED = "the capture has run nothing yet, and the state that it is to move is returned here as it was"
_SAID = "the capture has run nothing yet, and its result is returned here"


class ReturnedEarly:
    """Those of one examination."""

    def __init__(self) -> None:
        self._chains: dict[int, list[tuple[CodeType, int]]] = {}
        self._told: dict[tuple[CodeType, int], Failure] = {}

    def begin(self, graph: object) -> None:
        """A capture begins in functions of the user's, each at a line."""
        self._chains[id(graph)] = [(frame.f_code, frame.f_lineno) for frame in frames_of_the_user()]

    def returned(
        self, result: Iterable[torch.Tensor], waiting: Mapping[int, Collection[int]], regions: Iterable[Region]
    ) -> None:
        """A call gives this back; ``waiting``: memory of graphs that were captured and not replayed, by their ids."""
        keys = {storage_key(tensor) for tensor in result} if waiting else set()
        for graph in (g for g, made in waiting.items() if not keys.isdisjoint(made)):
            region = next((r for r in regions if id(r.graph) == graph), None)
            for code, line, value in _returns(self._chains.get(graph, []), region):
                failure = BY_ID["not-executed"].failure(_SAID, frame_at(code, line))
                name = (graphs_at(region) if region is not None else [])[-1:] or ["g"]
                shown = failure.frame.text if failure.frame is not None else ""
                after = f"{name[0]}.replay() right behind the capture, ahead of this line: a capture runs nothing"
                if isinstance(value, (ast.Name, ast.Attribute)):
                    after += f"; who keeps its result needs `return {ast.unparse(value)}.clone()`"
                self._told[code, line] = replace(failure, fix=f"before  {shown}\nafter   {after}")

    def leaves(
        self,
        written: Collection[int],
        regions: Iterable[Region],
        of: Callable[[object], OneGraph | None],
        filled: Callable[[object], Collection[int]],
    ) -> None:
        """A call ends; ``written``: memory of before that its own operations have written, and no graph.

        A state that a graph moves is what it was, though the call was given what it is to be moved by: where it gives
        that back, and has not replayed, this step is lost.
        """
        for region in regions:
            own = of(region.graph)
            if own is None or own.before or own.by_torch or own.launched or own.reads.keys().isdisjoint(written):
                continue
            states = {*filled(region.graph)}.difference(written)
            for code, line, value in _returns(self._chains.get(id(region.graph), []), region):
                given = value
                while isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and not given.args:
                    given = given.func.value  # a copy, or another look
                path = given if isinstance(given, (ast.Name, ast.Attribute)) else None
                if any(storage_key(t) in states for t in tensors_in(path_value(path, region.names, region.space))):
                    failure = BY_ID["not-executed"].failure(_MOVED, frame_at(code, line))
                    name = (graphs_at(region) or ["g"])[-1]
                    shown = failure.frame.text if failure.frame is not None else ""
                    after = f"{name}.replay() right behind the capture, ahead of this line: a capture runs nothing"
                    self._told[code, line] = replace(failure, fix=f"before  {shown}\nafter   {after}")

    def failures(self) -> Iterator[Failure]:
        """All that was seen."""
        yield from self._told.values()


def _returns(chain: list[tuple[CodeType, int]], region: Region | None) -> Iterator[_Given]:
    """The line that gives a result back: the innermost one that names it, or else that of the outermost function."""
    names = {last_name(target) for target in region.targets()} if region is not None else set()
    found = [(code, _behind(code, line)) for code, line in chain]
    given = [(code, each) for code, each in found if each is not None and each.value is not None]
    named = (each for each in given if not names.isdisjoint(map(last_name, ast.walk(each[1]))))
    if (chosen := next(named, given[-1] if given else None)) is not None:
        yield chosen[0], chosen[1].lineno, chosen[1].value
    elif chain:
        yield *chain[0], None


def _behind(code: CodeType, line: int) -> ast.Return | None:
    """The return that a function comes to from a line, whatever is asked there."""
    tree = tree_of(code.co_filename)
    functions = [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])] if tree is not None else []
    around = [n for n in functions if n.name == code.co_name and n.lineno <= line <= (n.end_lineno or 0)]
    if not around:
        return None
    held = []
    for block in all_blocks(max(around, key=lambda n: n.lineno)):
        for at, node in enumerate(block):
            if node.lineno <= line <= (node.end_lineno or 0):
                held.append((node.lineno, node, block[at:]))
    for _, node, rest in sorted(held, key=lambda each: -each[0]):
        if isinstance(node, ast.Return):
            return node
        for each in rest[1:]:
            if isinstance(each, ast.Return):
                return each
    return None
