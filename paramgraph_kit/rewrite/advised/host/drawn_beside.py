"""Advice for a number that the host draws within an expression of the device: ``(x + self.rng.random()) / self.n``."""

from __future__ import annotations

import ast
import random
from typing import Any

import numpy as np

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.rewrite.source.digits import zeros_for
from paramgraph_kit.rewrite.source.edits import heads, path_of
from paramgraph_kit.rewrite.source.place import Place, fresh

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_MODULES = ("random.", "np.random.", "numpy.random.")
_SEEDS = ("seed", "default_rng", "Random", "RandomState", "getstate", "get_state")


def drawn_beside(place: Place) -> str:
    """What moves there is what is drawn, and no number beside it that stays."""
    if place.failure.code not in ("scalar-frozen", "host-random") or place.loops():
        return ""
    found = [n for n in heads(place.statement) if isinstance(n, ast.Call) and _is_drawn(place, n)]
    if len(found) != 1 or not _is_computed_with(place, found[0]) or any(map(place.local, found[0].args)):
        return ""
    text = place.text(found[0])
    name = fresh("drawn_in", place.taken)
    branches = [n for n in place.source.above(place.statement) if isinstance(n, ast.If)]
    first = "".join(
        f"; it is drawn only where line {n.lineno}, `if {place.text(n.test)}`, takes that way, so that a draw ahead of "
        "each launch gives other numbers"
        for n in branches[:1]
    )
    return (
        f"the host draws `{text}`, and a graph has what it was at its capture: once `{name} = {zeros_for(place)}`, "
        f"before each launch `{name}.fill_({text})`, and here `{name}` for `{text}`{first}"
    )


def _is_drawn(place: Place, call: ast.Call) -> bool:
    """Whether it draws one number of the host's: by a module, or by a generator that an object or the file has."""
    path, name = path_of(call.func), last_name(call.func)
    if any(each.arg in ("size", "generator", "device") for each in call.keywords) or name in _SEEDS:
        return False
    owner: Any = place.value(path.rpartition(".")[0]) if "." in path else None
    return path.startswith(_MODULES) or isinstance(owner, _GENERATORS)


def _is_computed_with(place: Place, call: ast.Call) -> bool:
    """Whether a line computes with it alone, as it does with a tensor of one number."""
    above = place.source.parents.get(call)
    if not isinstance(above, ast.BinOp) or isinstance(above.op, ast.Pow | ast.Mod | ast.FloorDiv):
        return False
    while isinstance(above, ast.BinOp | ast.UnaryOp):
        above = place.source.parents.get(above)
    return isinstance(above, ast.stmt)
