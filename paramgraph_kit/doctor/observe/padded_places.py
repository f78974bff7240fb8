"""Rows that a shorter input leaves are rows of the graph's, too: where their numbers are places, it writes there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_before import bodies_of
from paramgraph_kit.doctor.observe.captured_values import NOTHING, Use
from paramgraph_kit.doctor.observe.filled_cuts import cut_in
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.padded_rows import PLAIN, Padded
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.observe.result_numbers import numbers_of
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.one_call import Caller

_OVERWRITE = ("index_copy_", "index_fill_", "index_put_", "scatter_")
_ADD = ("index_add_", "scatter_add_", "scatter_reduce_")
_NUMBERS, _FROM_AND_TO = ("range", "arange", "count"), 2
_MADE = ("zeros", "empty", "full", "ones", "randn", "rand", "new_zeros", "new_empty", "new_full", "Embedding")


@dataclass(frozen=True, slots=True)
class _Write:
    """A line of a capture that writes where an index says."""

    path: str
    state: torch.Tensor | None  # where it is known
    node: ast.AST
    indices: frozenset[int]  # memory that tells where

    @property
    def overwrites(self) -> bool:
        """Whether what was there is gone, and nothing is added to it."""
        adds = isinstance(self.node, ast.Call) and last_name(self.node.func) in _ADD
        return not adds and not isinstance(self.node, ast.AugAssign)

    @property
    def dim(self) -> str:
        """The dimension that the index is of."""
        if isinstance(self.node, ast.Call) and last_name(self.node.func) != "index_put_" and self.node.args:
            return ast.unparse(self.node.args[0])
        return str(next((at for at, key in enumerate(_indices(self.node)) if _is_index(key)), 0))


def padded_places(caller: Caller, number: int) -> Iterator[Failure]:
    """Lines behind whose rows others are left that write to places of a state; tried with other numbers there."""
    padded = caller.graphs.tails.padded
    writes = [*index_writes(caller.graphs.launched_regions())] if padded.found else []
    known = [write for write in writes if write.state is not None]
    found = dict(padded.found)
    for line, each in found.items() if writes else ():
        padded.found = {line: each}
        try:
            told = _tried(caller, number, each, known)
        finally:
            padded.found, padded.moves, padded.others = dict(found), PLAIN, []
        unknown = (w for w in writes if w.state is None and w.overwrites and each.key in w.indices)
        other = next(unknown, None)
        if told is None and other is not None and (each.rows & each.behind or _may_be_real(each)):
            told = _told(each, other, [], sure=False)
        if told is not None:
            yield told


def _tried(caller: Caller, number: int, each: Padded, writes: list[_Write]) -> Failure | None:
    states = [write.state for write in writes if write.state is not None]
    numbers = [(state, torch.ones_like(state, dtype=torch.bool)) for state in states if state.is_floating_point()]
    made = [_made(caller, number, states, moves, numbers) for moves in (PLAIN, 0, 1)] if states else []
    left = [one[1] for one in made if one is not None]
    if len(left) < len(made) or not made:
        return None
    moved = zip(*left, strict=True)
    places = [~_is_same(a, b) & _is_same(b, c) for a, b, c in moved]  # which the rows behind write, and no others
    if any(chosen.any() for chosen in places) and (again := _made(caller, number, states, PLAIN, numbers)) is not None:
        # What each call writes elsewhere, as at the next free place, is none of these.
        places = [chosen & _is_same(a, b) for chosen, a, b in zip(places, left[0], again[1], strict=True)]
    written = [at for at, chosen in enumerate(places) if chosen.any()]
    if not written:
        return None
    is_real = bool(each.rows & each.behind)
    if not is_real:
        chosen = [(states[at], places[at].to(states[at].device)) for at in written]
        results = [_made(caller, number, states, 0, others) for others in ([], chosen)]
        plain, other = (one[0] if one is not None else [] for one in results)
        is_real = any(not bool(_is_same(a, b).all()) for a, b in zip(plain, other, strict=False) if a.shape == b.shape)
    first, *others = (writes[at] for at in written)
    return _told(each, first, others, sure=is_real) if is_real or _may_be_real(each) else None


def _may_be_real(each: Padded) -> bool:
    """Whether nothing tells that the first place is for these rows alone, or that a longer input leaves no others."""
    return each.behind == {0} and (not each.filled or not _has_spare(each.place))


def _made(
    caller: Caller, number: int, states: list[torch.Tensor], moves: int, others: list[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
    """What a call returns, and the states as it leaves them; None where it fails."""
    padded = caller.graphs.tails.padded
    function, found, left = caller.function, list[torch.Tensor](), list[torch.Tensor]()

    def kept(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        found.extend(numbers_of(result))
        left.extend(t.detach().cpu().clone() for t in states)
        return result

    padded.moves, padded.others, caller.function = moves, others, kept
    known = dict(padded.found)
    try:
        call = caller.call(caller.args, caller.kwargs, drawing=number)
    finally:
        caller.function, padded.found = function, known
    return (found, left) if call.ended is None and len(left) == len(states) else None


def _is_same(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return (some == others) | ((some != some) & (others != others))


def index_writes(regions: Iterable[Region]) -> Iterator[_Write]:
    """What the lines of captures write at places that a tensor has."""
    for region in regions:
        for code, nodes, names in bodies_of(region):
            for node in nodes:
                if (target := _written(node)) is None:
                    continue
                value = Use(code, target, False, names).value()
                if value is not NOTHING and not is_a(value, torch.Tensor):
                    continue  # an entry of a dictionary, or of a list
                given = [n for key in _indices(node) for n in ast.walk(key) if isinstance(n, (ast.Name, ast.Attribute))]
                held = [v for n in given if is_a(v := Use(code, n, False, names).value(), torch.Tensor)]
                state = value if is_a(value, torch.Tensor) else None
                yield _Write(ast.unparse(target), state, node, frozenset(map(storage_key, held)))


def _indices(node: ast.AST) -> list[ast.expr]:
    """What tells a line where to write."""
    if isinstance(node, ast.Call):
        return [each for each in node.args if not isinstance(each, ast.Constant)][:1]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [key for t in targets if isinstance(t, ast.Subscript) for key in _keys(t)]


def _written(node: ast.AST) -> ast.expr | None:
    """What a line writes where an index says."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in (*_OVERWRITE, *_ADD):
        return node.func.value
    stored = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    for target in stored:
        if isinstance(target, ast.Subscript) and any(map(_is_index, _keys(target))):
            return target.value
    return None


def _keys(target: ast.Subscript) -> list[ast.expr]:
    return target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]


def _is_index(key: ast.expr) -> bool:
    return not isinstance(key, (ast.Slice, ast.Constant))


def _has_spare(place: Place) -> bool:
    """Whether a file makes something one larger than a name says, or gives out no first place, for what is left out."""
    tree = tree_of(place.user[0].co_filename) if place.user is not None else None
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)] if tree is not None else []
    sizes = (n for c in calls if last_name(c.func) in _MADE for a in c.args for n in ast.walk(a))
    added = (n.right for n in sizes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add))
    return any(map(_is_one, added)) or _gives_out_from_one(tree, calls)


def _gives_out_from_one(tree: ast.AST | None, calls: list[ast.Call]) -> bool:
    """Whether a file keeps free places, `deque(range(1, n))`, of which the first is none."""
    looped = {id(n.iter) for n in ast.walk(tree or ast.Pass()) if isinstance(n, ast.For)}
    begins = [c for c in calls if last_name(c.func) in _NUMBERS and id(c) not in looped and c.args]
    counts = (c for c in begins if last_name(c.func) == "count" or len(c.args) == _FROM_AND_TO)
    return any(_is_one(c.args[0]) for c in counts)


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def _told(each: Padded, write: _Write, others: Iterable[_Write], *, sure: bool) -> Failure:
    frame, cut, path, dim = each.place.frame(), each.cut, write.path, write.dim
    line, whole = (frame.text if frame is not None else ""), ast.unparse(cut.value)
    place = ", ".join(map(str, sorted(each.behind)[:3]))
    upper = getattr(cut.slice, "upper", None)
    rows = ast.unparse(upper) if upper is not None else "n"
    at = f"place {place}" if len(each.behind) == 1 else f"places such as {place}"
    said = f"the graph also computes the rows behind {ast.unparse(cut)}, and writes their results to {at} of {path}"
    if not sure:
        said += ", which is wrong where that place is ever one of a real row"
    instead = " in place of what fills these rows now" if cut_in(each.place) is None else ""
    without = f", as `{path}[:-1]`" if dim == "0" else f" of dimension {dim}"
    every = " and ".join(dict.fromkeys([path, *(other.path for other in others)]))  # keys, and values at their places
    words = (
        f"{line}; {whole}[{rows}:].fill_({path}.size({dim}) - 1){instead}, with {every} made one larger ahead of the "
        "capture: its last place is for these rows, and no row of an input has it; what goes over all of "
        f"{every} leaves out the last{without}. Zeros are no padding here: 0 is a place"
    )
    return replace(BY_ID["size-frozen"].failure(said, frame), fix=f"before  {line}\nafter   {words}")
