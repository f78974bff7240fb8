"""A batch that fills only some rows of what a graph reads: its replay computes all, also those of a batch before."""

from __future__ import annotations

import ast
import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.narrowed import as_slice
from paramgraph_kit.doctor.observe.places import Place, line_of
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_Line = tuple[str, int]
_MOST = 64  # writes to one memory between two replays that are looked at


@dataclass(frozen=True, slots=True)
class _Write:
    """What a line writes into memory of a graph's."""

    key: int
    rows: int
    of: int  # rows in all
    size: int  # of a row, in bytes
    from_start: bool
    place: Place


@dataclass(slots=True)
class _Part:
    """A replay whose batch has fewer rows than its input, and what of its results is read after it."""

    write: _Write
    results: Collection[int]  # memory that the graph writes
    reads: list[Place] = field(default_factory=list)
    is_cut: bool = False  # only the rows of the batch are used


class FilledRows:
    """The rows that lines fill between replays."""

    def __init__(self) -> None:
        self._writes: defaultdict[int, deque[_Write]] = defaultdict(lambda: deque(maxlen=_MOST))  # by memory
        self._whole: set[tuple[int, _Line]] = set()  # lines that fill all of it in some round
        self._parts: list[_Part] = []
        self._of_no_rows: set[_Line] = set()  # lines that read a result of another length than the batch

    def saw(self, name: str, given: list[torch.Tensor], written: set[int], result: Any, place: Place) -> None:
        """An operation outside of all captures."""
        for tensor in given:
            if id(tensor) not in written or tensor.device.type == "cpu" or not (key := storage_key(tensor)):
                continue
            if rows := len(tensor) if tensor.dim() else int(not tensor.is_floating_point()):  # perhaps how many
                if tensor.dim() and rows > 0 and tensor.numel() != rows * tensor.stride(0) and rows < tensor.numel():
                    continue  # a part of each row: x[:, :n]
                storage = tensor.untyped_storage().nbytes() // tensor.element_size()
                of = storage * rows // max(tensor.numel(), 1)
                start = tensor.storage_offset() == 0 and tensor.is_contiguous()
                size = tensor.numel() // len(tensor) * tensor.element_size() if tensor.dim() else 0
                self._writes[key].append(_Write(key, rows, of, size, start, place))
        if self._parts:
            self._cut(name, given, result, place)

    def _cut(self, name: str, given: list[torch.Tensor], result: Any, place: Place) -> None:
        part = self._parts[-1]
        rows, of = part.write.rows, part.write.of
        for tensor in given:
            if not tensor.dim() or len(tensor) != of:
                if name in ("slice", "narrow") and tensor.dim() and len(tensor) > of:  # of a buffer for all sizes
                    part.is_cut |= len(result) == rows and storage_key(tensor) != part.write.key
                if tensor.dim() and storage_key(tensor) in part.results:
                    self._of_no_rows.add(_line(place))
                continue
            if name in ("slice", "narrow", "split_with_sizes", "index", "index_select", "masked_select"):
                first = result[0] if isinstance(result, (list, tuple)) else result
                part.is_cut |= name != "slice" or len(first) == rows
            elif storage_key(tensor) in part.results:
                part.reads.append(place)

    def launched(self, reads: Mapping[int, int], results: Collection[int]) -> None:
        """A graph is replayed that reads, and writes, this memory; each with where what it reads of it ends, or 0."""
        own = [_as_read(w, end) for key, end in reads.items() for w in self._writes.pop(key, ())]
        some = [w for w in own if w.rows < w.of]
        self._whole |= {(w.key, _line(w.place)) for w in own if w.rows == w.of and w.from_start}
        is_last = some and all(w.from_start and (w.key, _line(w.place)) in self._whole for w in some)
        if is_last and len(some) == len(own) and len({(w.rows, w.of) for w in own}) == 1:
            self._parts.append(_Part(some[0], results))
        elif self._parts:
            self._parts[-1].results = ()  # what is read from now on is of another round

    def failures(self, made: Collection[str], read: Collection[str] = ()) -> Iterator[Failure]:
        """Replays whose further rows are used as if they were of the batch; ``made``: names of what is captured.

        ``read``: what the captures read of Python's: one that reads the number of rows leaves out the others by itself.
        """
        for part in self._parts:
            # What has another length for a batch of another size begins with no rows, even where the two agree here.
            part.reads = [each for each in part.reads if _line(each) not in self._of_no_rows]
            write, places = part.write, part.reads or [part.write.place]
            rows = _rows_of(write.place)
            if not part.is_cut and rows not in read and not any(_slices(each, rows) for each in part.reads):
                said = f"{write.rows} of the {write.of} rows are of this batch: the others are those of a batch before"
                failure = BY_ID["size-frozen"].failure(said, places[0].frame())
                yield replace(failure, fix=_fix(part, places[0], made))


def _as_read(write: _Write, end: int) -> _Write:
    """The same of the rows alone that a graph reads: that of two rows reads the first two of a buffer for all sizes."""
    rows = -(-end // write.size) if end and write.size else write.of
    return replace(write, of=rows, rows=min(write.rows, rows)) if rows < write.of else write


def _line(place: Place) -> _Line:
    user = place.user
    return (user[0].co_filename, line_of(*user)) if user is not None else ("", 0)


def _slices(place: Place, rows: str) -> bool:
    """Whether the line that reads a result, or what follows in its function, takes only its first entries."""
    user = place.user
    nodes = nodes_of(user[0]) if user is not None else ()
    line = _line(place)[1]
    for node in (n for n in nodes if isinstance(n, ast.expr) and n.lineno >= line):
        cut = as_slice(node)
        part = cut.slice if cut is not None and isinstance(cut.ctx, ast.Load) else None
        if isinstance(part, ast.Slice) and part.upper is not None:
            return True
        name = last_name(node.func) if isinstance(node, ast.Call) else ""
        if name == "zip" or (name == "range" and any(ast.unparse(a) == rows for a in node.args)):  # type: ignore[attr-defined]
            return True
    return False


def _fix(part: _Part, place: Place, made: Collection[str]) -> str:
    frame, filled = place.frame(), part.write.place.frame()
    line, source = (frame.text if frame else ""), (filled.text if filled else "")
    rows, of = _rows_of(part.write.place), part.write.of
    if not part.reads:
        return f"before  {line}\nafter   {only_whole(rows, str(of))}"
    after = re.sub(rf"\b({'|'.join(map(re.escape, made))})\b", rf"\1[:{rows}]", line) if made else line
    if after == line:
        after = f"the same of the first {rows} rows of what the graph has computed, as `{source}` fills them"
    return f"before  {line}\nafter   {after}"


def only_whole(rows: str, of: str) -> str:
    """Words that keep shorter batches from a graph, and leave out none."""
    loads = f"only batches of {of} rows go to the graph: drop_last=True in a loader, or `if {rows} == {of}:`"
    return f"{loads} around this line and the replay, and eager code for the others in its `else:`"


def _rows_of(place: Place) -> str:
    """The number of rows, as the line writes it that fills them."""
    user = place.user
    for node in nodes_of(user[0]) if user is not None else ():
        cut = as_slice(node)
        part = cut.slice if cut is not None and cut.lineno == _line(place)[1] else None
        if isinstance(part, ast.Slice) and part.upper is not None and part.lower is None:
            return ast.unparse(part.upper)
    return "n"


def end_of(tensor: torch.Tensor) -> int:
    """Where a tensor ends in its memory, in bytes."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()
