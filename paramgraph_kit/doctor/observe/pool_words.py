"""What is written where graphs share a pool, so that each has one of its own."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, tree_of
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.trace.model import Failure


def with_pools_of_their_own(failure: Failure, regions: Iterable[Region], begun: CodeType | None = None) -> Failure:
    """The same with the lines that begin captures in a pool of another's, and without that pool there.

    ``begun``: where one of them was captured, whose lines count if there are no regions.
    """
    told: dict[str, str] = {}
    nodes = nodes_of(begun) if begun is not None else ()
    for block in [*_begin(regions)] or [n for n in nodes if isinstance(n, ast.With)]:
        for item in block.items:
            call = item.context_expr
            named = isinstance(call, ast.Call) and last_name(call.func) == "graph"
            if isinstance(call, ast.Call) and named and any(k.arg == "pool" for k in call.keywords):
                alone = copy.copy(call)
                alone.keywords = [k for k in call.keywords if k.arg != "pool"]
                told[f"with {ast.unparse(call)}: (line {block.lineno})"] = f"with {ast.unparse(alone)}:"
    if not told:
        return failure
    before, after = " and ".join(told), " and ".join(told.values())
    why = "a pool of its own for each, as these replays come in another order than their captures"
    return replace(failure, fix=f"before  {before}\nafter   {after} {why}")


def _begin(regions: Iterable[Region]) -> Iterator[ast.With]:
    for region in regions:
        tree = tree_of(region.code.co_filename)
        for block in (n for n in ast.walk(tree) if isinstance(n, ast.With)) if tree is not None else ():
            if block.lineno <= region.line < max(block.body[0].lineno, block.lineno + 1):
                yield block
