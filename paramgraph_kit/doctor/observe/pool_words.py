"""What is written where graphs share a pool, so that each has one of its own."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable
from dataclasses import replace

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.trace.model import Failure


def with_pools_of_their_own(failure: Failure, regions: Iterable[Region]) -> Failure:
    """The same with the lines that begin captures in a pool of another's, and without that pool there."""
    told: dict[str, str] = {}
    for region in regions:
        tree = tree_of(region.code.co_filename)
        for block in (n for n in ast.walk(tree) if isinstance(n, ast.With)) if tree is not None else ():
            if not block.lineno <= region.line < max(block.body[0].lineno, block.lineno + 1):
                continue
            for call in (i.context_expr for i in block.items if isinstance(i.context_expr, ast.Call)):
                if last_name(call.func) == "graph" and any(k.arg == "pool" for k in call.keywords):
                    alone = copy.copy(call)
                    alone.keywords = [k for k in call.keywords if k.arg != "pool"]
                    told[f"with {ast.unparse(call)}: (line {block.lineno})"] = f"with {ast.unparse(alone)}:"
    if not told:
        return failure
    before, after = " and ".join(told), " and ".join(told.values())
    why = "a pool of its own for each, as these replays come in another order than their captures"
    return replace(failure, fix=f"before  {before}\nafter   {after} {why}")
