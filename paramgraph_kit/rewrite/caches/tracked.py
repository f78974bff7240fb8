"""Numbers of the host's that say places in tensors, followed through a step: where they are used, and for what.

Each counter is given as a ``Position``, a number of which all that comes by arithmetic is one too. A mode sees them as
indexes, as ends of slices and as arguments of functions, at the expression that the running instruction stands for.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from paramgraph_kit.rewrite.caches.growths import Ends, Growths, Key
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.widths import width_at

_GET, _SET = "__getitem__", "__setitem__"
# Of numbers that are tensors without dimensions these are what they are of numbers.
_ARITHMETIC = frozenset(
    """add sub mul div true_divide pow remainder fmod rsub floor_divide eq ne lt le gt ge where clamp fill_ add_ sub_
    mul_ div_ __rsub__ __rdiv__ __rtruediv__ __rpow__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __radd__
    __rmul__ maximum minimum masked_fill masked_fill_""".split()  # noqa: SIM905
)


class Position(int):
    """A number that says a place; what comes of it by arithmetic is one too, and who compares it is told."""

    of: frozenset[int] = frozenset()  # the counters that it comes of
    tell: Callable[[types.FrameType], None] | None = None

    @classmethod
    def made(cls, value: int, *others: Any) -> Position:
        """One that comes of others."""
        made = cls(value)
        made.of = frozenset(number for each in others for number in getattr(each, "of", ()))
        made.tell = next((each.tell for each in others if isinstance(each, Position)), None)
        return made


def _arithmetic(name: str) -> None:
    plain = getattr(int, name)

    def combined(self: Position, other: Any) -> Any:
        value = plain(self, other)
        return value if value is NotImplemented else Position.made(value, self, other)

    setattr(Position, name, combined)


def _comparison(name: str) -> None:
    plain = getattr(int, name)

    def compared(self: Position, other: Any) -> Any:
        if self.tell is not None:
            self.tell(sys._getframe(1))
        return plain(self, other)

    setattr(Position, name, compared)


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    _arithmetic(f"__{_name}__")
    _arithmetic(f"__r{_name}__")
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _comparison(f"__{_name}__")
Position.__hash__ = int.__hash__  # type: ignore[method-assign]


@dataclass(slots=True)
class Index:
    """A subscript that positions are in, with what was seen there."""

    shape: torch.Size  # of the whole
    dtype: torch.dtype
    stored: bool
    # Of what is stored how many dimensions it has, and whether it has the part's shape and type; () of a number.
    given: set[tuple[Any, ...]] = field(default_factory=set)
    widths: dict[int, set[int]] = field(default_factory=dict)  # of those of its parts that are slices
    placed: set[int] = field(default_factory=set)  # which of its parts positions are in
    listed: set[int] = field(default_factory=set)  # which of them are tensors or lists of places, as rows of a table
    wrong: str = ""  # why nothing can stand for it


@dataclass(frozen=True, slots=True)
class Apart:
    """A branch that no step has run, and that is given the parts alone."""

    branch: ast.If
    dims: Mapping[str, int]  # the names that it and the lines behind it read, with the dimension that grows
    parts: set[Key]


class Tracking(TorchFunctionMode):
    """Notes where positions are used while this is on."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        super().__init__()
        self.sources = sources
        self.nodes = {file: _by_place(source) for file, source in sources.items()}
        self.used: set[int] = set()  # counters
        self.indexes: dict[Key, Index] = {}
        self.makers: dict[Key, str] = {}  # calls of functions that are given positions, by their names
        self.asked: set[Key] = set()  # comparisons of positions
        self.stacked: set[Key] = set()  # those of makers that are given a list which has a name
        # Calls of min() and max(), with those of their arguments that are positions, and what each of these comes of.
        self.limits: dict[Key, dict[int, set[int]]] = {}
        self.growths = Growths()
        self.apart: dict[ast.stmt, Apart] = {}  # by the first line of each branch
        self.falls = False  # a place may be counted down, to below 0
        self.around = id(sys._getframe(1))  # whoever runs the steps, as long as they run

    def number(self, value: int, counter: int) -> Position:
        """A counter's value to follow."""
        found = Position(value)
        found.of, found.tell = frozenset((counter,)), self._asked
        return found

    def _asked(self, frame: types.FrameType) -> None:
        if chain := self.chain(frame):
            self.asked.add(chain[0])

    def limited(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """``min`` or ``max`` of which a position comes where one is given, whichever it is."""

        def limit(*args: Any, **options: Any) -> Any:
            known = {number: each.of for number, each in enumerate(args) if isinstance(each, Position)}
            found = plain(*args, **options)
            if not known or options or len(args) != 2:
                return found
            if chain := self.chain(sys._getframe(1)):
                limits = self.limits.setdefault(chain[0], {})
                for number, counters in known.items():
                    limits.setdefault(number, set()).update(counters)
            return Position.made(found, *args) if type(found) in (int, Position) else found

        return limit

    def begin(self) -> None:
        """A step begins: what the one before has computed is looked at no more."""
        self.growths.begin()

    def node(self, key: Key) -> ast.expr | None:
        """The expression at a place."""
        return self.nodes[key.file].get(key[1:])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(getattr(func, "__name__", ""))
        out = func(*args, **kwargs)
        chain = self.chain(sys._getframe(1))
        if chain:
            self._note(name, func, args, kwargs, out, chain)
            if name == "arange" and self._counts(args, chain[0]):
                self.growths.counted(out, chain, self._held(sys._getframe(1)))
        return out

    def _held(self, frame: types.FrameType | None) -> Mapping[str, Any]:
        """The variables of the innermost function of the user's."""
        while frame is not None and frame.f_code.co_filename not in self.nodes:
            frame = frame.f_back
        return frame.f_locals if frame is not None else {}

    def chain(self, frame: types.FrameType | None) -> tuple[Key, ...]:
        """Where the user's code is, the innermost place first, as far as a step has called it."""
        found = []
        while frame is not None and id(frame) != self.around:  # a program asks for its fix in a line of its own
            code = frame.f_code
            if code.co_filename in self.nodes:
                place = next(islice(code.co_positions(), frame.f_lasti // 2, None))
                found.append(Key(code.co_filename, *(part or 0 for part in place)))
            frame = frame.f_back
        return tuple(found)

    def _note(
        self, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, chain: tuple[Key, ...]
    ) -> None:
        given = list(_positions((*args, *kwargs.values())))
        if name in (_GET, _SET) and given:
            self._index(name == _SET, args, out, chain)
        elif given and name not in _ARITHMETIC:
            self.makers[chain[0]] = name
            node = self.node(chain[0])
            named = isinstance(node, ast.Call) and node.args and isinstance(node.args[0], (ast.Name, ast.Attribute))
            self.stacked |= {chain[0]} if named and args and isinstance(args[0], list) else set()
        self.used |= {number for each in given for number in each.of}
        if not (name == _GET and given):
            self.growths.note(name, func, args, kwargs, out, chain)

    def _counts(self, args: Sequence[Any], key: Key) -> bool:
        """Whether numbers are counted from 0 up to a position, and not as many as ever behind one."""
        node = self.node(key)
        begins = len(args) == 1 or (len(args) == 2 and type(args[0]) is int and args[0] == 0)
        whole = isinstance(node, ast.Call) and len(node.args) == len(args)
        return begins and whole and isinstance(args[-1], Position)

    def _index(self, stored: bool, args: Sequence[Any], out: Any, chain: tuple[Key, ...]) -> None:
        whole, index = args[0], args[1]
        parts = index if isinstance(index, tuple) else (index,)
        known = self.indexes.setdefault(chain[0], Index(whole.shape, whole.dtype, stored))
        if known.shape != whole.shape or known.stored != stored or self.growths.of(whole) is not None:
            known.wrong = "it is not always of one size"
        known.placed |= {n for n, part in enumerate(parts) if _is_placed(part)}
        known.listed |= {n for n, part in enumerate(parts) if isinstance(part, (torch.Tensor, list))}
        for n, part in enumerate(parts):
            if isinstance(part, slice) and part.start is not None and part.stop is not None:
                known.widths.setdefault(n, set()).add(int(part.stop) - int(part.start))
        if stored:
            value = args[2]
            whole = isinstance(value, torch.Tensor) and value.shape == whole[index].shape
            known.given.add((value.dim(), whole, value.dtype == known.dtype) if isinstance(value, torch.Tensor) else ())
            return
        node = self.node(chain[0])
        growing = [n for n, part in enumerate(parts) if isinstance(part, slice) and _is_placed(part)]
        if isinstance(node, ast.Subscript):
            source = self.sources[chain[0].file]
            growing = [n for n in growing if len(known.widths.get(n, ())) > 1 or not width_at(source, node, n)]
        if len(growing) == 1 and isinstance(out, torch.Tensor):
            number = growing[0]
            part = parts[number]
            size = whole.shape[dim := _dim_at(parts, number, whole.dim())]
            low, high = int(part.start or 0), size if part.stop is None else int(part.stop)
            if whole.is_floating_point() and not bool(whole.isfinite().all()):
                known.wrong = "it has values that are no numbers, which weights of zero do not leave out"
            if part.step is not None or low < 0 or not 0 <= high <= size:
                known.wrong = "its ends are not between its first place and its last"
            at = _dim_at(parts, number, out.dim(), of_part=True) - out.dim()
            self.growths.begun(out, chain, number, dim, at, Ends(low, high, size))


def _dim_at(parts: Sequence[Any], number: int, rank: int, *, of_part: bool = False) -> int:
    """The dimension of a whole, or of what is picked of it, that a part of an index is about."""

    def taken(part: Any) -> bool:
        if part is ...:
            return False
        plain = isinstance(part, int) and not isinstance(part, bool)
        return part is not None and not (of_part and plain) if not (of_part and part is None) else True

    if ... in parts[:number]:
        return rank - 1 - sum(map(taken, parts[number + 1 :]))
    return sum(map(taken, parts[:number]))


def _positions(values: Sequence[Any], deep: int = 2) -> Iterator[Position]:
    for value in values:
        if isinstance(value, Position):
            yield value
        elif isinstance(value, slice):
            yield from _positions((value.start, value.stop), 0)
        elif isinstance(value, (list, tuple)) and deep and len(value) < 64:
            yield from _positions(value, deep - 1)


def _is_placed(part: Any) -> bool:
    """Whether a part of an index is a position, or has one: also the first place, which is 0."""
    return any(True for _ in _positions((part,)))


def _by_place(source: Source) -> dict[tuple[int, ...], ast.expr]:
    found: dict[tuple[int, ...], ast.expr] = {}
    for node in source.parents:
        if isinstance(node, ast.expr) and node.end_lineno is not None and node.end_col_offset is not None:
            found.setdefault((node.lineno, node.end_lineno, node.col_offset, node.end_col_offset), node)
    return found
