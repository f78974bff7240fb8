"""Modules that torch has graphed in place, by a line whose text does not name each of them: ``tuple(blocks)``."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.observe.graphed_by_torch import graphed_modules
from paramgraph_kit.doctor.observe.own_regions import Region, region_at

_MOST = 64  # of them


def graphed_elsewhere(
    lines: Collection[tuple[ast.stmt, CodeType]],
    values: Iterable[Any],
    known: Collection[int],
    kind: str,
    space: dict[str, Any],
) -> Iterator[Region]:
    """The captures of modules in reach that are not ``known``, where one line of the file alone can have made them."""
    if len(lines) != 1:
        return
    node, code = next(iter(lines))
    found = {id(each.graphs[0]): each for each in graphed_modules(values)}
    for each in [found[key] for key in found if key not in known][:_MOST]:
        region = region_at(code, node.lineno, dict(space), each.graphs[0], kind, space)
        region.graphed(each.original, each.args, each.graphs)
        yield region
