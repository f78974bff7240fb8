"""Dataclasses of the model as columns: every field of all rows together, so that a file stays small.

A row's strings are indices into one table of strings, frames are indices into one table of frames, and
nested rows (the words of a node) are stored flat with a count per parent. Encoding and decoding read the
same schema, so that neither can forget a field; a test compares the schema with the model.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from paramgraph_kit.trace import model

VERSION = 5  # what is written; older ones, which lack what ``SINCE`` has, are read too


class BadValueError(ValueError):
    """A value that does not fit the schema; its text says where and what, in one line."""


@dataclass(slots=True)
class Tables:
    """What rows point into: strings and frames, each stored once."""

    strings: list[str] = field(default_factory=list)
    frames: list[model.Frame] = field(default_factory=list)
    clean: Callable[[str], str] = str  # applied to every string on its way into the file
    clean_frame: Callable[[model.Frame], model.Frame] = lambda frame: frame
    version: int = VERSION  # of the file that is read or written
    _string_at: dict[str, int] = field(default_factory=dict)
    _frame_at: dict[model.Frame, int] = field(default_factory=dict)

    def put_string(self, text: str) -> int:
        """The index of ``text``, added if it is new."""
        if not isinstance(text, str):
            raise BadValueError(f"expected text, got {_short(text)}")
        text = self.clean(text)
        at = self._string_at.setdefault(text, len(self.strings))
        if at == len(self.strings):
            self.strings.append(text)
        return at

    def put_frame(self, frame: model.Frame) -> int:
        """The index of ``frame``, added if it is new."""
        frame = self.clean_frame(frame)
        at = self._frame_at.setdefault(frame, len(self.frames))
        if at == len(self.frames):
            self.frames.append(frame)
        return at


class _Codec:
    """How one field becomes a JSON column and comes back; ``decode`` raises BadValueError."""

    optional = False

    def encode(self, values: Sequence[Any], tables: Tables) -> Any:
        """The column for ``values``."""
        if self.optional:
            return [None if value is None else self.encode_one(value, tables) for value in values]
        return [self.encode_one(value, tables) for value in values]

    def decode(self, column: Any, tables: Tables, where: str) -> list[Any]:
        """The values of a column; ``where`` names it in errors."""
        column = expect_list(column, where)
        decode = self.decode_one
        result: list[Any] = []
        for row, value in enumerate(column):
            if value is None and self.optional:
                result.append(None)
                continue
            try:
                result.append(decode(value, tables))
            except BadValueError as error:
                raise BadValueError(f"{where}[{row}]: {error}") from None
        return result

    def encode_one(self, value: Any, tables: Tables) -> Any:
        """One value as JSON."""
        raise NotImplementedError

    def decode_one(self, value: Any, tables: Tables) -> Any:
        """One value from JSON."""
        raise NotImplementedError


@dataclass(slots=True)
class _Int(_Codec):
    """An integer."""

    optional: bool = False

    def encode_one(self, value: Any, tables: Tables) -> int:
        return expect_int(operator.index(value))

    def decode_one(self, value: Any, tables: Tables) -> int:
        return expect_int(value)


@dataclass(slots=True)
class _Float(_Codec):
    """A finite number, or null."""

    optional: bool = True

    def encode_one(self, value: Any, tables: Tables) -> float:
        if not math.isfinite(value):
            raise BadValueError(f"expected a finite number, got {value}")
        return float(value)

    def decode_one(self, value: Any, tables: Tables) -> float:
        if type(value) not in (int, float):
            raise BadValueError(f"expected a number, got {_short(value)}")
        number = float(value) if abs(value) < 1e308 else math.inf
        if not math.isfinite(number):
            raise BadValueError(f"expected a finite number, got {_short(value)}")
        return number


@dataclass(slots=True)
class _Bool(_Codec):
    """True or false."""

    def encode_one(self, value: Any, tables: Tables) -> bool:
        return bool(value)

    def decode_one(self, value: Any, tables: Tables) -> bool:
        if not isinstance(value, bool):
            raise BadValueError(f"expected true or false, got {_short(value)}")
        return value


@dataclass(slots=True)
class _Text(_Codec):
    """A string, as an index into the table of strings."""

    def encode_one(self, value: Any, tables: Tables) -> int:
        return tables.put_string(value)

    def decode_one(self, value: Any, tables: Tables) -> str:
        return tables.strings[expect_index(value, len(tables.strings), "strings")]


@dataclass(slots=True)
class _Choice(_Codec):
    """A member of an enumeration, as its text."""

    of: type[StrEnum]
    optional: bool = False

    def encode_one(self, value: Any, tables: Tables) -> str:
        return self.of(value).value

    def decode_one(self, value: Any, tables: Tables) -> StrEnum:
        try:
            return self.of(value)
        except ValueError:
            raise BadValueError(f"unknown {self.of.__name__} {_short(value)}") from None


@dataclass(slots=True)
class _FrameIndex(_Codec):
    """A frame of the user's code, as an index into the table of frames, or null."""

    optional: bool = True

    def encode_one(self, value: Any, tables: Tables) -> int:
        return tables.put_frame(value)

    def decode_one(self, value: Any, tables: Tables) -> model.Frame:
        return tables.frames[expect_index(value, len(tables.frames), "frames")]


@dataclass(slots=True)
class _Ints(_Codec):
    """A tuple of exactly ``count`` integers."""

    count: int

    def encode_one(self, value: Any, tables: Tables) -> list[int]:
        return [expect_int(operator.index(v)) for v in value]

    def decode_one(self, value: Any, tables: Tables) -> tuple[int, ...]:
        if not isinstance(value, list) or len(value) != self.count:
            raise BadValueError(f"expected {self.count} integers, got {_short(value)}")
        return tuple(expect_int(v) for v in value)


@dataclass(slots=True)
class _Many(_Codec):
    """A tuple of values of another codec, or null."""

    of: _Codec
    optional: bool = False

    def encode_one(self, value: Any, tables: Tables) -> list[Any]:
        return [self.of.encode_one(v, tables) for v in value]

    def decode_one(self, value: Any, tables: Tables) -> tuple[Any, ...]:
        return tuple(self.of.decode_one(v, tables) for v in expect_list(value, "a row"))


@dataclass(slots=True)
class _Rows(_Codec):
    """A tuple of nested rows, stored flat for all parents together, with a count for each."""

    of: type

    def encode(self, values: Sequence[Any], tables: Tables) -> Any:
        flat = [row for rows in values for row in rows]
        return {"counts": [len(rows) for rows in values], "rows": encode_rows(self.of, flat, tables)}

    def decode(self, column: Any, tables: Tables, where: str) -> list[Any]:
        column = expect_dict(column, where, ("counts", "rows"))
        rows = decode_rows(self.of, column["rows"], tables, where)
        result: list[Any] = []
        start = 0
        for count in expect_list(column["counts"], f"{where}.counts"):
            if type(count) is not int or not 0 <= count <= len(rows) - start:
                raise BadValueError(f"{where}.counts: {_short(count)} does not fit into {len(rows)} rows")
            result.append(tuple(rows[start : start + count]))
            start += count
        if start != len(rows):
            raise BadValueError(f"{where}.counts: add up to {start}, but there are {len(rows)} rows")
        return result


SCHEMA: dict[type, dict[str, _Codec]] = {
    model.Frame: {"file": _Text(), "line": _Int(), "function": _Text(), "text": _Text()},
    model.Word: {
        "offset": _Int(),
        "kind": _Choice(model.WordKind),
        "allocation": _Int(optional=True),
        "delta": _Int(),
        "value": _Int(optional=True),
        "evidence": _Text(),
    },
    model.Node: {
        "index": _Int(),
        "kind": _Choice(model.NodeKind),
        "name": _Text(),
        "grid": _Ints(3),
        "block": _Ints(3),
        "shared_bytes": _Int(),
        "lane": _Int(),
        "parameter_bytes": _Int(),
        "words": _Rows(model.Word),
        "frame": _FrameIndex(),
        "lowered_from": _Choice(model.NodeKind, optional=True),
        "module": _Text(),
        "source": _Text(),
    },
    model.Allocation: {
        "index": _Int(),
        "role": _Choice(model.Role),
        "size": _Int(),
        "slot": _Int(optional=True),
        "offset": _Int(),
        "born": _Int(),
        "died": _Int(optional=True),
        "name": _Text(),
        "shape": _Many(_Int(), optional=True),
        "dtype": _Text(),
        "frame": _FrameIndex(),
    },
    model.Capture: {
        "id": _Int(),
        "partition": _Int(),
        "nodes": _Rows(model.Node),
        "edges": _Many(_Ints(2)),
        "allocations": _Rows(model.Allocation),
        "workspace_bytes": _Int(),
        "graph_bytes": _Int(),
        "patching": _Text(),
    },
    model.Reason: {"code": _Text(), "message": _Text(), "frame": _FrameIndex(), "operation": _Text()},
    model.Partition: {
        "id": _Int(),
        "graph": _Text(),
        "graphed": _Bool(),
        "operations": _Many(_Text()),
        "kernels": _Int(),
        "reasons": _Rows(model.Reason),
        "position": _Int(),
    },
    model.Launch: {
        "capture": _Int(),
        "call": _Int(),
        "moved": _Int(),
        "words_patched": _Int(),
        "bytes_copied": _Int(),
        "cpu_us": _Float(),
        "start_us": _Float(),
        "addresses": _Many(_Int()),
        "gpu_start_us": _Float(),
        "gpu_us": _Float(),
        "event": _Int(optional=True),
    },
    model.Failure: {
        "code": _Text(),
        "title": _Text(),
        "message": _Text(),
        "frame": _FrameIndex(),
        "cause": _Text(),
        "fix": _Text(),
    },
    model.PoolEvent: {
        "time": _Int(),
        "pool": _Text(),
        "action": _Choice(model.PoolAction),
        "address": _Int(),
        "size": _Int(),
        "call": _Int(optional=True),
        "frame": _FrameIndex(),
    },
    model.Proof: {
        "label": _Text(),
        "tensors": _Int(),
        "values": _Int(),
        "differing": _Int(),
        "largest": _Float(),
    },
}


# The version that a field came with, where that is not the first. Such fields come last, and have a default.
SINCE: dict[type, dict[str, int]] = {
    model.Partition: {"position": 3},
    model.Node: {"module": 3, "source": 3},
    model.Allocation: {"shape": 3, "dtype": 3, "frame": 3},
    model.Launch: {"start_us": 3, "addresses": 3, "gpu_start_us": 4, "gpu_us": 4, "event": 5},
    model.PoolEvent: {"frame": 3},
}


def encode_rows(cls: type, rows: Sequence[Any], tables: Tables) -> dict[str, Any]:
    """Rows of one dataclass as columns."""
    columns = {}
    for name, codec in SCHEMA[cls].items():
        try:
            columns[name] = codec.encode([getattr(row, name) for row in rows], tables)
        except (TypeError, ValueError, AttributeError) as error:
            raise BadValueError(f"{cls.__name__}.{name}: {error}") from None
    return columns


def decode_rows(cls: type, data: Any, tables: Tables, where: str) -> list[Any]:
    """Rows of one dataclass from columns; every column must be there and of the same length."""
    since = SINCE.get(cls, {})
    schema = {name: codec for name, codec in SCHEMA[cls].items() if since.get(name, 1) <= tables.version}
    data = expect_dict(data, where, tuple(schema))
    columns = [codec.decode(data[name], tables, f"{where}.{name}") for name, codec in schema.items()]
    lengths = {name: len(column) for name, column in zip(schema, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise BadValueError(f"{where}: columns of different lengths {lengths}")
    return [cls(*row) for row in zip(*columns, strict=True)]


def expect_dict(value: Any, where: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """``value`` if it is an object with exactly these keys."""
    if not isinstance(value, dict):
        raise BadValueError(f"{where}: expected an object, got {_short(value)}")
    if missing := [key for key in keys if key not in value]:
        raise BadValueError(f"{where}: misses {', '.join(missing)}")
    if unknown := sorted(set(value) - set(keys)):
        raise BadValueError(f"{where}: unknown key {_short(unknown[0])}")
    return value


def expect_list(value: Any, where: str) -> list[Any]:
    """``value`` if it is a list."""
    if not isinstance(value, list):
        raise BadValueError(f"{where}: expected a list, got {_short(value)}")
    return value


def expect_int(value: Any) -> int:
    """``value`` if it is an integer of 64 bits, signed or not (true and false are not)."""
    if type(value) is not int:
        raise BadValueError(f"expected an integer, got {_short(value)}")
    if not -(1 << 63) <= value < 1 << 64:
        raise BadValueError("expected an integer of 64 bits")
    return value


def expect_index(value: Any, length: int, table: str) -> int:
    """``value`` if it is an index into a table of ``length``."""
    if type(value) is not int or not 0 <= value < length:
        raise BadValueError(f"{_short(value)} is no index into {length} {table}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
