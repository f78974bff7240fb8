"""What steps print, so that a number that only a reader sees is compared too: text, and numbers by their digits.

Lines may come in another order, as one that is printed behind the launch comes after those before it.
"""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

PRINTS = "what it prints"
RETURNED = f"{PRINTS} or returns as text"
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan\b|inf\b)")
_OF_TENSORS = re.compile(r", (?:device='[^']*'|grad_fn=<[^>]*>|requires_grad=True|dtype=torch\.\w+)")
_ONE = re.compile(r"tensor\(([^\[\]()]*)\)")  # a tensor of one number reads as that
_CLOSE = 1e-4


class Printed(io.StringIO):
    """Takes what is printed; what a capture prints itself cannot be compared, as no replay prints."""

    def __init__(self) -> None:
        super().__init__()
        self.in_capture = False

    def seen(self) -> dict[str, list[str]]:
        """The lines without their numbers, and the numbers of each kind of line."""
        if self.in_capture:
            return {}
        found: dict[str, list[str]] = {PRINTS: []}
        for line in self.getvalue().splitlines():
            words, *numbers = _parted(line)
            found[PRINTS].append(words)
            found.setdefault(f"{PRINTS}#{words}", []).extend(numbers)
        found[PRINTS].sort()
        return found


def texts(results: Any) -> dict[str, list[str]]:
    """What results hold as text, as a label, a key or a message: the words, and their numbers behind them.

    >>> texts([("cat", 1), {"loss": "0.25 now"}])
    {'what it prints or returns as text': ['cat', 'loss', '# now', '0.25']}
    """
    return {RETURNED: [part for text in _texts_in(results) for part in _parted(text)]}


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts_in(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _texts_in((name, each))


def _parted(line: str) -> list[str]:
    plain = _ONE.sub(r"\1", _OF_TENSORS.sub("", line))
    return [" ".join(_NUMBER.sub(" # ", plain).split()), *_NUMBER.findall(plain)]


@contextmanager
def capturing() -> Iterator[None]:
    """Around a capture, whose own prints no replay repeats."""
    out = sys.stdout
    before = out.tell() if isinstance(out, Printed) else 0
    yield
    if isinstance(out, Printed):
        out.in_capture |= out.tell() != before


def difference(one: Sequence[str], other: Sequence[str]) -> str:
    """How what two runs have printed differs, "" where only by roundings.

    >>> difference(["0.1235", "7"], ["0.1234", "7"]), difference(["7"], ["8"]), difference(["go #"], [])
    ('', '7, then 8', '1 lines, then 0')
    """
    if len(one) != len(other):
        return f"{len(one)} lines, then {len(other)}"
    return next((f"{x}, then {y}" for x, y in zip(one, other, strict=True) if not _alike(x, y)), "")


def _alike(one: str, other: str) -> bool:
    if one == other or _NUMBER.fullmatch(one) is None or _NUMBER.fullmatch(other) is None:
        return one == other
    x, y = float(one), float(other)
    if not (math.isfinite(x) and math.isfinite(y)):
        return x == y or (math.isnan(x) and math.isnan(y))
    digit = max(_last_digit(one), _last_digit(other))
    return abs(x - y) <= max(1.001 * digit, _CLOSE * abs(x)) if digit else x == y


def _last_digit(number: str) -> float:
    """What the last digit of a number is worth; 0 of a whole one, which counts something."""
    mantissa, _, power = number.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    return 10.0 ** (int(power or 0) - digits) if "." in mantissa or power else 0.0
