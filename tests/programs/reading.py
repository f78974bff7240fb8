"""Programs as users write them, read from ``fields/``: what is wrong with each at which line, and how it is mended.

A field is one file of programs. ``# %% title -> name`` begins one; ``name`` is what would be captured, ``args`` what it
is called with. The file is the difference between the program and its mended variant at once:

* ``... # expect: sync-item|print`` the doctor has to find one of these classes at this line; a second word is a second
  problem of the line. ``# may: CODE`` beside it is no false alarm.
* ``... #-`` the line is not in the mended variant; ``#- expect: ...`` says both.
* ``#+ ...`` the line is in the mended variant only.

``# file: NAME.py`` begins a module of the program's own, which it imports, and ``# file: the program`` ends it.

A program may define ``feed(i)`` (the arguments of step i; else tensors are drawn again from their own elements),
``after(out, i)`` (what the loop does around a step), ``seen(out)`` (what of a result is comparable) and ``ignore``
(names whose values need not agree). ``(random)`` in the title: the mended variant draws other numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from dataclasses import field as made_by
from pathlib import Path

FIELDS = Path(__file__).parent / "fields"
PRELUDE = """\
import math
import random
import time
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()
"""
HEADER = re.compile(r"# %% (?P<title>.+?) -> (?P<function>\w+)$")
MARK = re.compile(r"\s*#(?P<gone>-)?(?: ?expect: (?P<expect>[\w|\- ]+?))?(?: may: (?P<may>[\w|\- ]+))?$")
FILE = re.compile(r"# file: (?P<name>\w+\.py|the program)$")
ONLY_MENDED = re.compile(r"^(?P<indent>\s*)#\+ ?(?P<code>.*)$")


@dataclass(frozen=True, slots=True)
class Expected:
    """One problem: the classes that are right, at a line of the program with its prelude."""

    codes: tuple[str, ...]
    line: int


@dataclass(slots=True)
class Program:
    """One program with its mended variant; both begin with the prelude."""

    field: str
    title: str
    function: str
    broken: str = PRELUDE
    mended: str = PRELUDE
    expected: list[Expected] = made_by(default_factory=list)
    allowed: set[tuple[str, int]] = made_by(default_factory=set)

    @property
    def is_clean(self) -> bool:
        return not self.expected

    @property
    def draws(self) -> bool:
        """Whether the mended variant draws other random numbers."""
        return "(random)" in self.title

    @property
    def name(self) -> str:
        return f"{self.field}: {self.title}"

    def add(self, line: str) -> None:
        """Take one line of the field's file."""
        if only := ONLY_MENDED.match(line):
            self.mended += f"{only['indent']}{only['code']}\n"
            return
        mark = MARK.search(line)
        if mark is None or not any(mark.groups()):
            self.broken += f"{line}\n"
            self.mended += f"{line}\n"
            return
        code = line[: mark.start()]
        self.broken += f"{code}\n"
        if not mark["gone"]:
            self.mended += f"{code}\n"
        number = self.broken.count("\n")
        self.expected += [Expected(tuple(each.split("|")), number) for each in (mark["expect"] or "").split()]
        self.allowed |= {(each, number) for each in (mark["may"] or "").split()}


def read(path: Path) -> list[Program]:
    """The programs of one field."""
    found: list[Program] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("# %%"):
            header = HEADER.match(line)
            if header is None:
                raise ValueError(f"{path}:{number}: a program begins with '# %% title -> name', not {line!r}")
            found.append(Program(path.stem, header["title"], header["function"]))
        elif found:
            found[-1].add(line)
    return found


def modules(text: str) -> dict[str, str]:
    """A program's files by name, its own as ``""``: each has a line for each of the text, so that the numbers agree."""
    owners, owner = list[str](), ""
    for line in text.splitlines():
        begun = FILE.match(line)
        owner = begun["name"] if begun and begun["name"].endswith(".py") else "" if begun else owner
        owners.append("-" if begun else owner)
    lines = list(zip(owners, text.splitlines(), strict=True))
    names = ["", *sorted(set(owners) - {"", "-"})]
    return {name: "".join(f"{line}\n" if of == name else "\n" for of, line in lines) for name in names}


def programs() -> list[Program]:
    """All programs of all fields."""
    return [program for path in sorted(FIELDS.glob("*.py")) for program in read(path)]
