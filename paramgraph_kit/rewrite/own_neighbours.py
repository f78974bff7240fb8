"""What a diff does with a line that stands among others in a hunk, or in a function that no graph runs."""

from __future__ import annotations

import ast

AROUND = "# around the launches, as in the diff: no graph holds this line"
_Pair = tuple[list[str], list[str]]


def is_a_neighbours(statement: ast.stmt, pair: _Pair) -> bool:
    """Whether what a hunk puts there is of other lines: nothing of it gives what this statement does."""
    own = (statement.end_lineno or statement.lineno) - statement.lineno + 1
    if len(pair[0]) <= own:
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    given = [ast.unparse(n) for each in targets if each is not None for n in getattr(each, "elts", [each])]
    return not any(name in line for line in pair[1] for name in given or [ast.unparse(statement)])


def told_around(pair: _Pair) -> _Pair:
    """The same, with the word that it runs around the launches."""
    if any("each launch" in line or line == AROUND for line in pair[1]):
        return pair
    return pair[0], [*pair[1], AROUND]
