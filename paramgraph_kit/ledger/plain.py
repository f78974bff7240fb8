"""Pickles of plain values, read within bounds: nothing in them is run, and a file costs no more than its size explains.

Python's own reader refuses names where it is told to, but nothing else: a few bytes may ask it for gigabytes. So what a
file says to do is gone through first, most of it by one regular expression.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

LARGEST = 256 << 20  # bytes of a file
FREE, BY_SIZE = 100 << 20, 10  # bytes of memory for its values: so many for any file, and so many for each of its own
MOST_TEXTS = 1_000_000
LONGEST = 9  # bytes of an integer: 64 bits and a sign

# What has a fixed length: containers, marks, what is put aside and fetched again, small integers, floats, truth.
_FIXED = re.compile(rb"(?:[()\]}aesutldN0-2\x85-\x89\x94]|[Kqh].|M..|[Jj].{4}|G.{8}|\x80.|\x95.{8})++", re.DOTALL)
# What has a length in front: text and bytes, by how many bytes the length takes; integers.
_LENGTHS = {b"\x8c": 1, b"U": 1, b"C": 1, b"X": 4, b"T": 4, b"B": 4, b"\x8d": 8, b"\x8e": 8, b"\x8a": 1}
_COSTS = {b"}": 64, b"]": 120, b")": 8, b"\x85": 60, b"\x86": 60, b"\x87": 60, b"t": 60, b"J": 100, b"M": 100, b"G": 24}
_PUT, _INTEGER, _STOP, _NAMES = b"r", b"\x8a", b".", (b"c", b"\x93")


class _Plain(pickle.Unpickler):
    """Reads dictionaries, lists, tuples, text and numbers; a file that names anything else is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(f"it names {module}.{name}, and a memory snapshot has plain values only")


def plain(data: bytes) -> Any:
    """The value that was pickled.

    >>> plain(pickle.dumps({"segments": [(1, 2.5, None, "x")]}))
    {'segments': [(1, 2.5, None, 'x')]}

    Raises:
        ValueError: it holds something else than plain values, or asks for more than a file of its size may.
    """
    _check(data)
    try:
        return _Plain(io.BytesIO(data)).load()
    except ValueError:
        raise
    except Exception as error:  # a damaged pickle raises almost anything
        raise ValueError(str(error) or type(error).__name__) from None


def _check(data: bytes) -> None:
    at, cost, texts, most = 0, 0, 0, FREE + BY_SIZE * len(data)
    while at < len(data):
        if (run := _FIXED.match(data, at)) is not None:
            cost += sum(each * data.count(code, at, run.end()) for code, each in _COSTS.items())
            at = run.end()
            if cost > most:
                raise ValueError("it asks for more memory than a file of this size may")
        code = data[at : at + 1]
        if code == _STOP or code in _NAMES:
            return  # a name is refused when it is asked for
        if code == _PUT:  # its place is a number that the reader makes room for
            place, size = int.from_bytes(data[at + 1 : at + 5], "little"), 4
            if place > len(data):
                raise ValueError("it puts a value aside at a place that no file of this size has")
        elif code in _LENGTHS:
            wide = _LENGTHS[code]
            length = int.from_bytes(data[at + 1 : at + 1 + wide], "little")
            if code == _INTEGER and length > LONGEST:
                raise ValueError("it has an integer of more than 64 bits")
            if at + 1 + wide + length > len(data):
                raise ValueError("the file is cut off")
            size, cost, texts = wide + length, cost + length + 60, texts + 1
        elif code:
            raise ValueError("it has more than plain values")
        else:
            break
        if texts > MOST_TEXTS:
            raise ValueError(f"it has more than {MOST_TEXTS:,} texts and large integers")
        at += 1 + size
    raise ValueError("the file is cut off")
