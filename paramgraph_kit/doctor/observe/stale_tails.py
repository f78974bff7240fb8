"""A shorter input fills only the first part of what a graph reads: whether the result depends on the rest is tried."""

from __future__ import annotations

import ast
import linecache
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.bucket_words import is_of_table, masked
from paramgraph_kit.doctor.observe.filled_cuts import cut_in, line_at, sizes_of
from paramgraph_kit.doctor.observe.filled_rows import only_whole
from paramgraph_kit.doctor.observe.held import tensors_in
from paramgraph_kit.doctor.observe.pad_words import pad_of, padded
from paramgraph_kit.doctor.observe.padded_rows import PaddedRows
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.restore.keeper import Keeper, storage_key, storage_ref
from paramgraph_kit.trace.model import Failure

_MOST = 64  # writes to one memory between two replays that are looked at
_FILLS = ("zero_", "fill_")
_PATHS = (ast.Name, ast.Attribute)
_MOST_ELEMENTS = 1 << 24


class StaleTails:
    """What lines have written between replays, and what they have left as it was."""

    def __init__(self) -> None:
        self._written: defaultdict[int, list[tuple[torch.Tensor, Place]]] = defaultdict(list)  # by memory
        self.found: dict[tuple[str, int], tuple[Place, ast.Subscript]] = {}  # lines that fill the first part
        self.numbers: set[tuple[str, int]] = set()  # those that fill it with whole numbers: indices, tokens, labels
        self.values: defaultdict[tuple[str, int], set[int]] = defaultdict(set)  # these numbers
        self.rows: set[int] = set()  # how many there are in all, of what they fill
        self.full: dict[tuple[str, int], tuple[ast.Subscript, set[int]]] = {}  # lines that fill all today, and sizes
        self.changes = 0.0  # what they leave gets other numbers, this many times those of the input
        self.only: Collection[tuple[str, int]] = ()  # lines of which alone that is so, where some are named
        self.watches = False  # also what the call itself has made, as a program does that captures by itself
        self.carries = False  # the graph goes on from what its replay before has left
        self._filled: dict[int, tuple[Any, torch.Tensor]] = {}  # of that, by memory, what such lines have filled
        self.padded = PaddedRows()
        self.writes: Callable[[torch.Tensor], bool] | None = None  # whether a tensor is a graph's, where that is asked
        self.captured = False  # the call that was tried last has captured
        self.kept_as_read = False  # results are kept as they are: what a view held when it was made is what counts
        self.read: list[torch.Tensor] = []  # copies of what is made of results, in the order in which it is
        self._viewed: set[tuple[int, int, torch.Size]] = set()

    def begin_reads(self, writes: Callable[[torch.Tensor], bool]) -> None:
        """A call begins of which it is asked what it makes of results; ``writes``: whether a tensor is a graph's."""
        self.writes, self.read, self._viewed = writes, [], set()

    def _note_reads(self, tensors: list[torch.Tensor], written: set[int], result: Any) -> None:
        given = [t for t in tensors if id(t) not in written and self.writes is not None and self.writes(t)]
        if not given or (self.kept_as_read and any(_part_of(t) in self._viewed for t in given)):
            return
        made = tensors_in(result)
        self.read += [t.detach().cpu().clone() for t in made]
        keys = {storage_key(t) for t in given}
        self._viewed |= {_part_of(t) for t in made if storage_key(t) in keys}

    def saw(self, tensors: list[torch.Tensor], written: set[int], keeper: Keeper, place: Place, result: Any) -> None:
        """An operation outside of all captures."""
        if self.writes is not None:
            self._note_reads(tensors, written, result)
        for tensor in (t for t in tensors if id(t) in written and t.device.type != "cpu"):
            is_seen = self.watches or keeper.is_outside(tensor)
            if is_seen and len(writes := self._written[storage_key(tensor)]) < _MOST:
                writes.append((tensor.detach(), place))

    def saw_ahead(self, written: list[Any], place: Place) -> None:
        """The same ahead of all captures, where it is a part of something that is filled."""
        for tensor in written:
            is_part = isinstance(tensor, torch.Tensor) and tensor._base is not None and tensor.device.type != "cpu"
            if is_part and cut_in(place) is not None and len(writes := self._written[storage_key(tensor)]) < _MOST:
                writes.append((tensor.detach(), place))

    def launched(self, keeper: Keeper, reads: Collection[int] = (), written_too: Collection[int] = ()) -> None:
        """A graph is replayed now, which reads and writes this memory, with what was written since the one before."""
        written, self._written = self._written, defaultdict(list)
        self.carries = self.carries or any(key in written_too for key in reads)
        with suppress(RuntimeError):  # of a tensor without memory
            self.padded.launched(written.values(), keeper)
        for key, writes in written.items():
            lines = [(place, cut) for _, place in writes if (cut := cut_in(place)) is not None]
            with suppress(RuntimeError):  # of another size of element, or of no strides
                rest = _rest(writes) if lines else None
                if rest is not None and not rest[1].any():
                    self.full |= _filled_whole(writes)
                if rest is not None and not keeper.is_outside(writes[0][0]):
                    rest = rest[0], self._left_by_others(key, *rest) if key in reads else torch.zeros_like(rest[1])
                if rest is not None and rest[1].any():
                    self.found |= {line_at(place): (place, cut) for place, cut in lines}
                    kind = writes[0][0].dtype
                    self.rows |= _rows_of(writes[0][0])
                    is_whole = not (kind.is_floating_point or kind.is_complex or kind is torch.bool)
                    self.numbers |= {line_at(place) for place, _ in lines if is_whole}
                    for place, _ in lines if is_whole else ():
                        self.values[line_at(place)] |= {*torch.unique(rest[0].cpu()[~rest[1]]).tolist()}
                    if self.changes and (not self.only or any(line_at(place) in self.only for place, _ in lines)):
                        _change(*rest, keeper, self.changes)

    def _left_by_others(self, key: int, flat: torch.Tensor, is_left: torch.Tensor) -> torch.Tensor:
        """What is left of a longer input: of memory that the call has made itself, only what it has filled before."""
        before = self._filled.get(key)
        known = before is not None and not before[0].expired() and before[1].shape == is_left.shape
        filled = before[1] if before is not None and known else torch.zeros_like(is_left)
        self._filled[key] = storage_ref(flat.untyped_storage()), filled | ~is_left
        return filled & is_left

    def failures(self) -> Iterator[Failure]:
        """The lines, where the result depends on what they leave."""
        for at, (place, cut) in self.found.items():
            frame, whole = place.frame(), ast.unparse(cut.value)
            said = f"the replay also reads what is behind {ast.unparse(cut)}, which a longer input has left there"
            line = frame.text if frame is not None else ""
            filled = _made_of(place, whole)
            of_numbers = at in self.numbers and filled in ("", "zero_()")
            words = _words(cut, whole, line, filled)
            if of_numbers:
                words = padded(cut, whole, line, self.values[at], pad_of(place))
            if is_of_table(cut):
                words = masked(cut, line)
            if self.carries and isinstance(cut.slice, ast.Slice) and cut.slice.upper is not None:
                words = _of_each_length(cut, whole)
            words = _ahead_of_rounds(words, whole, line, cut, place)
            yield replace(BY_ID["size-frozen"].failure(said, frame), fix=f"before  {line}\nafter   {words}")


def _part_of(tensor: torch.Tensor) -> tuple[int, int, torch.Size]:
    return storage_key(tensor), int(tensor.storage_offset()), tensor.shape


def _filled_whole(writes: list[tuple[torch.Tensor, Place]]) -> dict[tuple[str, int], tuple[ast.Subscript, set[int]]]:
    """The lines that fill all of it in parts, and how many rows each fills; none where something clears it anyway."""
    cuts = [(part, place, cut_in(place)) for part, place in writes]
    size = writes[0][0].untyped_storage().nbytes() // writes[0][0].element_size()
    if any(part.numel() == size and cut is None for part, _, cut in cuts):
        return {}
    return {line_at(place): (cut, sizes_of(part, cut)) for part, place, cut in cuts if cut is not None}


def _rows_of(part: torch.Tensor) -> set[int]:
    """The sizes of what a tensor is the first part of, in the dimensions that it cuts."""
    elements = part.untyped_storage().nbytes() // part.element_size()
    steps = [elements, *part.stride()]
    there = [of // step for of, step in zip(steps, part.stride(), strict=False) if step]
    return {of for of, some in zip(there, part.shape, strict=False) if of > some}


def _rest(writes: list[tuple[torch.Tensor, Place]]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """All memory, and which elements of it are not written; None where that is another matter."""
    first = writes[0][0]
    storage, size = first.untyped_storage(), first.element_size()
    elements = storage.nbytes() // size
    if elements > _MOST_ELEMENTS or any(t.element_size() != size for t, _ in writes):
        return None
    is_left = torch.ones(elements, dtype=torch.bool)
    for tensor, _ in writes:
        is_left.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)
    flat = torch.empty(0, dtype=first.dtype, device=first.device).set_(storage)
    return flat[:elements], is_left


def _change(flat: torch.Tensor, is_left: torch.Tensor, keeper: Keeper, times: float) -> None:
    """Another input was there before: of the numbers of this one, which are possible where it has indices."""
    keeper.before_write(flat)
    held = flat.cpu()
    filled, left = held[~is_left], held[is_left]
    other = filled.flip(0).repeat(len(left) // max(len(filled), 1) + 1)[: len(left)]
    same = other == left
    other[same] = filled.amax() if filled.dtype != torch.bool else ~left[same]
    if filled.is_floating_point():
        other = torch.where(other == left, left + 1, other) * times
    held[is_left] = other
    flat.copy_(held)


def _words(cut: ast.Subscript, whole: str, line: str, filled: str) -> str:
    """What is written for a line that fills the first part; ``filled``: with what the rest was made."""
    counted = filled in ("", "zero_()")  # what is made of another number is made to count for nothing
    if not isinstance(cut.slice, ast.Slice) or cut.slice.upper is None:
        mask = ", and where zeros count too, as in a mean or a softmax, a mask of that" if counted else ""
        return f"{whole}.{filled or 'zero_()'}; {line}{mask}"
    rows = ast.unparse(cut.slice.upper)
    only = f"{only_whole(rows, f'len({whole})')}; or what it computes of those is left out"
    again = f"{line}; {whole}[{rows}:].{filled}, as it was made"
    return only if not filled else f"{again}; where zeros count too, as in a mean, {only}" if counted else again


def _ahead_of_rounds(words: str, whole: str, line: str, cut: ast.Subscript, place: Place) -> str:
    """The same, where a loop fills row after row: what is filled ahead of that is so ahead of the loop, once."""
    (file, at), begins = line_at(place), f"{whole}."
    tree = tree_of(file)
    names = {n.id for n in ast.walk(cut.slice) if isinstance(n, ast.Name)}
    for loop in ast.walk(tree) if tree is not None and words.startswith(begins) and f"; {line}" in words else ():
        if not isinstance(loop, ast.For) or not loop.lineno < at <= (loop.end_lineno or 0):
            continue
        if not names.isdisjoint(n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)):
            filled, _, rest = words.partition(f"; {line}")
            head = linecache.getline(file, loop.lineno).strip()
            return f"ahead of line {loop.lineno}, `{head}`, {filled}; this line as it is{rest}"
    return words


def _of_each_length(cut: ast.Subscript, whole: str) -> str:
    """Words for a graph that goes on from its own state, which rows of zeros would move, too."""
    rows = ast.unparse(cut.slice.upper)  # type: ignore[attr-defined]
    read = f"a new capture goes to `graphs[{rows}]`, which reads `{ast.unparse(cut)}` for `{whole}`"
    return (
        f"this line as it is, and a graph for each length, as all rows move the state: behind it `if {rows} not in "
        f"graphs:` {read}, with its results, and that one is replayed"
    )


def _made_of(place: Place, whole: str) -> str:
    """What fills a buffer as the lines do that make it: ``fill_(PAD)``; "" where they do not show it."""
    tree: Any = tree_of(place.user[0].co_filename) if place.user is not None else None
    (owner, _, name), found, known, later = whole.rpartition("."), set[str](), set[str](), set[str]()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
            given, of = node.func.value, ", ".join(map(ast.unparse, node.args))
            later |= {f"{node.func.attr}({of})"} if last_name(given) == name and isinstance(given, _PATHS) else set()
        if isinstance(node, ast.Assign):
            targets = [each for t in node.targets for each in elements_of(t)]
            known |= {t.id for t in targets if isinstance(t, ast.Name) and node in tree.body}
            pairs = [p for t in node.targets for p in zip(elements_of(t), elements_of(node.value), strict=False)]
            same = (v for t, v in pairs if (isinstance(t, ast.Attribute) or not owner) and last_name(t) == name)
            found |= {_filling(value) for value in same}
    found = later or found  # ones for the warm-up, and zeros since
    filled = found.pop() if len(found) == 1 else ""
    names = {n.id for n in ast.walk(ast.parse(filled)) if isinstance(n, ast.Name)} - {"fill_", "zero_", "torch", "math"}
    return filled if names <= known | {owner} else ""


def _filling(value: ast.expr) -> str:
    while isinstance(value, ast.Call) and last_name(value.func) in ("to", "cuda", "contiguous"):
        value = value.func.value if isinstance(value.func, ast.Attribute) else value.func
    if not isinstance(value, ast.Call):
        return ""
    kind, of = last_name(value.func), [*value.args[1:2], *(k.value for k in value.keywords if k.arg == "fill_value")]
    plain = {"zeros": "zero_()", "new_zeros": "zero_()", "zeros_like": "zero_()", "ones": "fill_(1)"}
    if kind in ("full", "new_full", "full_like") and of:
        return f"fill_({ast.unparse(of[0])})"
    return plain.get(kind, "")
