"""Two rows of operations side by side: the fewest that only one of them has.

difflib looks for the longest piece that both have. Rounds of a loop are alike, and where one round ran an operation
more, and another one did in the other call, the longest piece is of different rounds: numbers that count them would
seem to differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

Block = tuple[str, int, int, int, int]  # difflib's
FEW = 300  # operations that only one of them has, up to which the fewest are found


def blocks(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[Block]:
    """difflib's opcodes, with the fewest elements that are not equal.

    >>> blocks("abxb", "abb")
    [('equal', 0, 2, 0, 2), ('delete', 2, 3, 2, 2), ('equal', 3, 4, 2, 3)]
    """
    pairs = _matching(left, right)
    if pairs is None:
        return list(SequenceMatcher(None, left, right, autojunk=False).get_opcodes())
    found: list[Block] = []
    a = c = 0
    for x, y in [*pairs, (len(left), len(right))]:
        if a < x or c < y:
            found.append(("replace" if a < x and c < y else "delete" if a < x else "insert", a, x, c, y))
        if x < len(left) and y < len(right):
            last = found[-1] if found and found[-1][0] == "equal" else None
            if last is not None and last[2] == x and last[4] == y:
                found[-1] = ("equal", last[1], x + 1, last[3], y + 1)
            else:
                found.append(("equal", x, x + 1, y, y + 1))
        a, c = x + 1, y + 1
    return found


def _matching(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]] | None:
    """The elements that stand beside each other, as Myers finds them; None where too many have none."""
    furthest, steps = {1: 0}, list[dict[int, int]]()
    for differing in range(FEW + 1):
        steps.append(dict(furthest))
        for way in range(-differing, differing + 1, 2):
            down = way == -differing or (way != differing and furthest[way - 1] < furthest[way + 1])
            x = furthest[way + 1] if down else furthest[way - 1] + 1
            while x < len(left) and x - way < len(right) and left[x] == right[x - way]:
                x += 1
            furthest[way] = x
            if x >= len(left) and x - way >= len(right):
                return _back(steps, len(left), len(right))
    return None


def _back(steps: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for differing in range(len(steps) - 1, -1, -1):
        known, way = steps[differing], x - y
        down = way == -differing or (way != differing and known[way - 1] < known[way + 1])
        before = way + 1 if down else way - 1
        from_x = known[before]
        from_y = from_x - before
        while x > max(from_x, 0) and y > max(from_y, 0):
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = from_x, from_y
    return pairs[::-1]
