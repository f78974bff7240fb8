"""Parts of buffers that grow, ``cache[:, :n]``, followed through a step: what may take the whole buffer for the part.

Most of what is computed of a part is computed of each of its places alone, and may as well be computed of all of a
buffer. What goes along the places is told apart: a softmax, a sum or an attention has to leave out what lies behind the
end; a product with weights that are zero there leaves it out by itself. Anything else is no part's end to look for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from paramgraph_kit.rewrite.source.row_modules import ELEMENTS

SHAPES = frozenset(
    """transpose permute view reshape unsqueeze squeeze expand movedim moveaxis swapaxes swapdims flatten unflatten
    repeat repeat_interleave chunk split unbind __getitem__ select narrow t T mT view_as broadcast_to""".split()  # noqa: SIM905
)
_ASKS = frozenset(
    ["size", "dim", "stride", "numel", "is_contiguous", "type", "element_size", "is_floating_point", "ndimension"]
)
_ELEMENTS = ELEMENTS | frozenset(
    """dropout __and__ __or__ __invert__ bitwise_and bitwise_or bitwise_not rsub __rsub__ __rdiv__ __rtruediv__
    __rmul__ __radd__ true_divide bfloat16 silu alpha_dropout""".split()  # noqa: SIM905
)
_KEEPS_ZEROS = frozenset(
    """mul div to float half bfloat16 double type_as clone contiguous detach dropout neg true_divide __rmul__""".split()  # noqa: SIM905
)
_TYPES = frozenset(("type_as", "to"))
_PRODUCTS = frozenset(["matmul", "__matmul__", "bmm", "mm", "mv", "dot"])
FILLED = {
    "softmax": -math.inf,
    "log_softmax": -math.inf,
    "sum": 0,
    "mean": 0,
    "max": -math.inf,
    "amax": -math.inf,
    "argmax": -math.inf,
    "logsumexp": -math.inf,
    "min": math.inf,
    "amin": math.inf,
    "argmin": math.inf,
    "norm": 0,
    "any": False,
    "all": True,
    "prod": 1,
}  # what changes nothing along the places
MODULE = "multi_head_attention_forward"
ATTENDS = "scaled_dot_product_attention"


class Key(NamedTuple):
    """Where an expression is written."""

    file: str
    line: int
    end_line: int
    column: int
    end_column: int


class Ends(NamedTuple):
    """Between which places a part lies, and how many the whole has."""

    low: int
    high: int
    size: int


@dataclass(frozen=True, slots=True)
class Growth:
    """That a tensor has a dimension that is a part's."""

    dim: int  # from the last one, which is -1
    ends: Ends
    parts: frozenset[Key]
    zero: bool = False  # it is zero where the part is not
    view: bool = False  # of the buffer


@dataclass(slots=True)
class Part:
    """A part of a buffer, where it is taken."""

    chain: tuple[Key, ...]  # who calls whom there, the innermost first
    number: int  # which of the subscript's parts ends where the host says
    dim: int  # of the buffer
    at: int  # the same of the part, from the last one
    least: int  # how many places it has had at least
    size: int  # how many the buffer has
    joined: int = 0  # with what comes behind it: which dimension of that, from the last one
    repeats: bool = False  # it says where something is put: its first place again is no other place
    refused: str = ""
    counts: bool = False  # ``torch.arange(n)``, which is as long as a part of a buffer that it meets
    met: Key | None = None  # of one that counts: that part
    named: frozenset[tuple[str, int]] = frozenset()  # and variables there with a part, and its dimension of them


@dataclass(slots=True)
class Need:
    """An expression that has to leave out what lies behind the end."""

    kind: str  # the name of the function
    argument: int  # which of its tensors
    fill: float
    dim: int  # of that, from the last one
    chain: tuple[Key, ...]
    parts: frozenset[Key]
    direct: bool  # written as a call of that function
    masked: str = ""  # an attention's own mask: "" for none, or the kind of it


class _RefusedError(Exception):
    """What is done with a part cannot be done with a whole."""


@dataclass(slots=True)
class Growths:
    """What grows in the step that runs, and what was seen of all."""

    parts: dict[Key, Part] = field(default_factory=dict)
    needs: dict[tuple[Key, int], Need] = field(default_factory=dict)
    plain: set[Key] = field(default_factory=set)  # what goes along places, of what does not grow
    made: set[Key] = field(default_factory=set)  # where something is computed of what grows
    _held: dict[int, tuple[torch.Tensor, Growth]] = field(default_factory=dict)
    _blind: bool = False  # a part has less than two places, so that nothing tells its dimension

    def begin(self) -> None:
        """A step begins."""
        self._held.clear()
        self._blind = False

    def of(self, value: Any) -> Growth | None:
        """How a value grows, or None."""
        known = self._held.get(id(value))
        return known[1] if known is not None else None

    def begun(self, out: torch.Tensor, chain: tuple[Key, ...], number: int, dim: int, at: int, ends: Ends) -> None:
        """A part is taken: ``dim`` is that of the buffer, ``at`` that of the part, from the last one."""
        known = self.parts.setdefault(chain[0], Part(chain, number, dim, at, out.shape[at], ends.size))
        known.least = min(known.least, out.shape[at])
        if known.number != number or known.dim != dim or known.chain[1:2] != chain[1:2]:
            known.refused = known.refused or "it is taken in several places"
        self._blind |= out.shape[at] < 2
        self.made.add(chain[0])
        self._hold(out, Growth(at, ends, frozenset(chain[:1]), view=True))

    def counted(self, out: torch.Tensor, chain: tuple[Key, ...], held: Mapping[str, Any]) -> None:
        """Numbers are counted up to where a part may end, ``torch.arange(n)``; ``held``: variables there."""
        alike = {name: each for name, value in held.items() if (each := self.of(value)) is not None}
        named = frozenset((name, each.dim) for name, each in alike.items() if each.ends[:2] == (0, len(out)))
        known = self.parts.setdefault(chain[0], Part(chain, -1, 0, -1, len(out), 0, counts=True, named=named))
        known.named &= named
        known.least = min(known.least, len(out))
        self._blind |= len(out) < 2
        self.made.add(chain[0])
        self._hold(out, Growth(-1, Ends(0, len(out), 0), frozenset(chain[:1])))

    def _meet(self, grown: Sequence[Growth]) -> None:
        """What counts is as long as the buffer of a part that it is computed with."""
        if len({each.ends[:2] for each in grown}) > 1 or len({each.ends.size for each in grown if each.ends.size}) > 1:
            raise _RefusedError("two of several sizes meet")
        keys = sorted(key for each in grown for key in each.parts)
        real = next((key for key in keys if not self.parts[key].counts), None)
        for part in (self.parts[key] for key in keys if self.parts[key].counts and real is not None):
            part.met = part.met or real

    def note(
        self, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, chain: tuple[Key, ...]
    ) -> None:
        """Something is computed."""
        if self._blind:
            return
        if name == "__get__":
            name = str(getattr(getattr(func, "__self__", None), "__name__", name))
            if not isinstance(out, torch.Tensor):
                return  # a shape, a type
        grown = [growth for each in _tensors((*args, *kwargs.values())) if (growth := self.of(each)) is not None]
        if not grown:
            if name in FILLED or name == ATTENDS:
                self.plain.add(chain[0])
            return
        if name in _ASKS:
            return
        self.made.add(chain[0])
        try:
            self._meet(grown)
            self._carry(name, func, args, kwargs, out, chain)
        except _RefusedError as error:
            for key in {key for each in grown for key in each.parts}:
                self.parts[key].refused = self.parts[key].refused or f"line {chain[0].line}: {error}"

    def _hold(self, tensor: Any, growth: Growth) -> None:
        if isinstance(tensor, torch.Tensor):
            self._held[id(tensor)] = tensor, growth

    def _carry(
        self, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, chain: tuple[Key, ...]
    ) -> None:
        first = self.of(args[0]) if args else None
        plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        if name in SHAPES and first is not None:
            for made, dim in _through(func, args, kwargs, first, out):
                self._hold(made, replace(first, dim=dim))
        elif plain in _ELEMENTS:
            self._elements(plain, plain != name, args, kwargs, out)
        elif name == "einsum":
            self._einsum(args, out, chain)
        elif name in _PRODUCTS and len(args) == 2:
            self._product(name, args[0], args[1], out, chain)
        elif (name == "linear" and first is not None and self.of(args[1]) is None and first.dim < -1) or (
            name == "layer_norm" and first is not None and first.dim < -len(args[1])
        ):
            self._hold(out, replace(first, zero=False, view=False))
        elif name == "embedding" and self.of(args[0]) is not None:
            growth = self.of(args[0])
            assert growth is not None
            self._hold(out, replace(growth, dim=growth.dim - 1, zero=False, view=False))
        elif name in ("gather", "scatter", "scatter_", "index_fill_", "index_fill"):
            self._put(name, args, out)
        elif name in ("__getitem__", "__setitem__") and first is None:
            self._picked(name, args, out)
        elif name in FILLED and first is not None:
            self._along(name, args, kwargs, out, first, chain)
        elif name == ATTENDS:
            self._attention(args, kwargs, chain)
        elif name == MODULE:
            self._module(args, kwargs, out, chain)
        elif name in ("cat", "concat") and args and isinstance(args[0], (list, tuple)):
            self._joined(args, kwargs, out, chain)
        else:
            raise _RefusedError(f"`{name}` reads it")

    def _elements(self, name: str, written: bool, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        if name in _TYPES:
            args, kwargs = args[:1], {}  # only what the others are is asked
            if self.of(args[0]) is None:
                return
        inputs = list(_tensors((*args, *kwargs.values())))
        known = [growth for each in inputs if (growth := self.of(each)) is not None]
        dims = {each.dim for each in known}
        if len(dims) != 1:
            raise _RefusedError(f"`{name}` joins other dimensions of it")
        dim = dims.pop()
        size = known[0].ends.high - known[0].ends.low
        for each in inputs:
            if self.of(each) is None and each.dim() >= -dim and each.shape[dim] not in (1,):
                raise _RefusedError(f"`{name}` joins it with what has its size now")
        if written and (self.of(args[0]) is None or known[0].view):
            raise _RefusedError(f"`{name}_` writes into it")
        if not isinstance(out, torch.Tensor) or out.dim() < -dim or out.shape[dim] != size:
            raise _RefusedError(f"`{name}` has another size")
        first = self.of(args[0])
        zero = first is not None and first.zero and name in _KEEPS_ZEROS
        zero = zero or (name in ("mul", "__rmul__") and any(each.zero for each in known))
        parts = frozenset(key for each in known for key in each.parts)
        same = any(out is each for each in inputs)  # to() and contiguous() may give what they are given
        view = any(each.view for each in known) and (same or name in ("to", "contiguous", "detach", "float"))
        self._hold(out, Growth(dim, max(each.ends for each in known), parts, zero, view))

    def _product(self, name: str, a: Any, b: Any, out: Any, chain: tuple[Key, ...]) -> None:
        one, other = self.of(a), self.of(b)
        inner = -2 if b.dim() > 1 else -1
        if one is not None and other is not None:
            if one.dim == -1 and other.dim == inner:
                self._contracted(name, one, other, chain)
                return
            if one.dim == other.dim and one.dim < -2:  # of each place alone
                self._hold(out, replace(one, zero=False, view=False, parts=one.parts | other.parts))
                return
            raise _RefusedError(f"`{name}` joins other dimensions of it")
        if one is not None:
            if one.dim == -1:
                raise _RefusedError(f"`{name}` adds it up with what has its size now")
            self._hold(out, replace(one, dim=one.dim + (b.dim() == 1), zero=one.zero, view=False))
        if other is not None:
            if other.dim == inner:
                raise _RefusedError(f"`{name}` adds it up with what has its size now")
            dim = other.dim + (a.dim() == 1 and other.dim < -2)
            self._hold(out, replace(other, dim=dim, zero=other.zero, view=False))

    def _contracted(self, name: str, one: Growth, other: Growth, chain: tuple[Key, ...]) -> None:
        if not (one.zero or other.zero):
            self._need(Need(name, 1, 0, other.dim, chain, one.parts | other.parts, True))

    def _einsum(self, args: Sequence[Any], out: Any, chain: tuple[Key, ...]) -> None:
        text, operands = args[0], list(_tensors(args[1:]))
        if not isinstance(text, str) or "." in text or "->" not in text:
            raise _RefusedError("`einsum` reads it")
        left, _, right = text.replace(" ", "").partition("->")
        names = left.split(",")
        letters, zero, known = set[str](), False, list[Growth]()
        for letter_of, each in zip(names, operands, strict=True):
            if (growth := self.of(each)) is not None:
                letters.add(letter_of[growth.dim])
                zero |= growth.zero
                known.append(growth)
        if len(letters) != 1:
            raise _RefusedError("`einsum` joins other dimensions of it")
        letter = letters.pop()
        if any(letter in one and self.of(each) is None for one, each in zip(names, operands, strict=True)):
            raise _RefusedError("`einsum` joins it with what has its size now")
        parts = frozenset(key for each in known for key in each.parts)
        if letter in right:
            self._hold(out, Growth(right.index(letter) - len(right), known[0].ends, parts, zero))
        elif not zero:
            number = next(n for n, each in enumerate(operands) if self.of(each) is not None)
            self._need(Need("einsum", number + 1, 0, known[0].dim, chain, parts, True))

    def _along(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, first: Growth, chain: tuple[Key, ...]
    ) -> None:
        given = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
        rank = args[0].dim()
        if name == "norm" and "dim" not in kwargs:
            given = args[2] if len(args) > 2 else None
        if given is not None and not isinstance(given, (int, tuple, list)):
            raise _RefusedError(f"`{name}` reads it")
        dims = range(-rank, 0) if given is None else [given] if isinstance(given, int) else given
        dims = [d - rank if d >= 0 else d for d in dims]
        soft = "softmax" in name
        if first.dim not in dims:
            keeps = soft or bool(kwargs.get("keepdim")) or (len(args) > 2 and args[2] is True)
            dim = first.dim if keeps else first.dim + sum(d > first.dim for d in dims)
            for made in _tensors(out if isinstance(out, tuple) else (out,)):
                self._hold(made, replace(first, dim=dim, zero=False, view=False))
            return
        if not (name in ("sum", "norm") and first.zero):
            if name == "mean" and len(dims) != 1:
                raise _RefusedError("`mean` goes along several dimensions of it")
            self._need(Need(name, 0, FILLED[name], first.dim, chain, first.parts, True))
        if soft:
            self._hold(out, replace(first, zero=name == "softmax", view=False))

    def _put(self, name: str, args: Sequence[Any], out: Any) -> None:
        """Places of something else that a part says: each is read or written alone."""
        growth = self.of(args[2]) if len(args) > 2 and self.of(args[0]) is None else None
        if growth is None or (len(args) > 3 and self.of(args[3]) is None and isinstance(args[3], torch.Tensor)):
            raise _RefusedError(f"`{name}` reads it")
        if name == "gather":
            self._hold(out, replace(growth, zero=False, view=False))
        else:
            self._repeat(growth, name)

    def _picked(self, name: str, args: Sequence[Any], out: Any) -> None:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        growth = self.of(index[-1])
        if growth is None or any(not isinstance(each, int) for each in index[:-1]):
            raise _RefusedError("it is one of several indexes")
        if name == "__setitem__":
            if isinstance(args[2], torch.Tensor) and args[2].dim() and self.of(args[2]) is None:
                raise _RefusedError("what is put there has its size now")
            self._repeat(growth, "an assignment")
        else:
            dim = index[-1].dim() + growth.dim - out.dim()
            self._hold(out, replace(growth, dim=dim, zero=False, view=False))

    def _repeat(self, growth: Growth, name: str) -> None:
        for part in (self.parts[key] for key in growth.parts):
            part.repeats = True
        if growth.ends.low or len(growth.parts) != 1 or any(self.parts[key].least < 1 for key in growth.parts):
            raise _RefusedError(f"`{name}` writes where it says, and it may be empty")

    def _attention(self, args: Sequence[Any], kwargs: Mapping[str, Any], chain: tuple[Key, ...]) -> None:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        every = {**dict(zip(names, args, strict=False)), **kwargs}
        key, value, mask = self.of(every.get("key")), self.of(every.get("value")), every.get("attn_mask")
        if self.of(every.get("query")) is not None or key is None or value is None or every.get("is_causal"):
            raise _RefusedError("attention reads it otherwise than as keys and values")
        if key.dim != -2 or value.dim != -2:
            raise _RefusedError("attention reads other dimensions of it")
        grown = self.of(mask)
        if mask is not None and (grown.dim != -1 if grown is not None else mask.shape[-1] != 1):
            raise _RefusedError("the mask of attention has its size now")
        kind = "" if mask is None else "bool" if mask.dtype == torch.bool else "float"
        self._need(Need(ATTENDS, 1, 0, -1, chain, key.parts | value.parts, True, kind))

    def _module(self, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, chain: tuple[Key, ...]) -> None:
        """``nn.MultiheadAttention``, which is given its tensors with the places first."""
        query, key, value = args[:3]
        one, other = self.of(key), self.of(value)
        first = -query.dim()
        masked = kwargs.get("key_padding_mask") is not None or kwargs.get("attn_mask") is not None
        if self.of(query) is not None or one is None or other is None or one.dim != first or other.dim != first:
            raise _RefusedError("attention reads it otherwise than as keys and values")
        if masked:
            raise _RefusedError("attention has a mask of its own")
        rows = str(query.shape[1]) if query.dim() == 3 else ""
        self._need(Need(MODULE, 1, 0, -1, chain, one.parts | other.parts, True, rows))
        if out[1] is not None:  # its weights
            self._hold(out[1], Growth(-1, one.ends, one.parts | other.parts, zero=True))

    def _joined(self, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, chain: tuple[Key, ...]) -> None:
        """What was there, and what comes new: that is put where it ends."""
        tensors, dim = list(args[0]), kwargs.get("dim", args[1] if len(args) > 1 else 0)
        first = self.of(tensors[0])
        dim = dim - out.dim() if dim >= 0 else dim
        if len(tensors) != 2 or first is None or self.of(tensors[1]) is not None or dim != first.dim or first.ends.low:
            raise _RefusedError("it is joined to others")
        part = self.parts[next(iter(first.parts))]
        more = Part(chain, part.number, part.dim, dim, out.shape[dim], part.size, joined=dim)
        known = self.parts.setdefault(chain[0], more)
        if len(first.parts) > 1 or not first.view or known.chain[1:2] != chain[1:2]:
            raise _RefusedError("it is joined to others")
        ends = Ends(0, first.ends.high + tensors[1].shape[dim], first.ends.size)
        self._hold(out, Growth(dim, ends, frozenset(chain[:1])))

    def _need(self, need: Need) -> None:
        at = need.chain[0], need.argument
        known = self.needs.setdefault(at, need)
        if (known.kind, known.dim, known.masked) != (need.kind, need.dim, need.masked) or known.chain != need.chain:
            known.kind = ""  # it is not always the same
        known.parts |= need.parts


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (each for each in value if isinstance(each, torch.Tensor))


def _through(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], growth: Growth, out: Any
) -> Iterator[tuple[torch.Tensor, int]]:
    """What an operation that moves no numbers makes of a tensor, with the dimension that grows there.

    Seen of a tensor of the same shape that holds at each place which of the part's places it is.
    """
    shape = args[0].shape
    size = shape[growth.dim]
    marks = torch.arange(size, device="cpu").view(-1, *[1] * (-1 - growth.dim)).expand(shape).clone()
    try:
        made = func(marks, *args[1:], **kwargs)
    except Exception as error:
        raise _RefusedError("an index of the device picks of it") from error
    for one, mark in zip(_tensors((out,)), _tensors((made,)), strict=True):
        found = [d for d in range(-mark.dim(), 0) if mark.shape[d] == size and _is_along(mark, d)]
        if len(found) != 1:
            raise _RefusedError("some of its places are picked, or laid together with others")
        yield one, found[0]


def _is_along(mark: torch.Tensor, dim: int) -> bool:
    along = torch.arange(mark.shape[dim], device="cpu").view(-1, *[1] * (-1 - dim))
    return bool((mark == along).all())
