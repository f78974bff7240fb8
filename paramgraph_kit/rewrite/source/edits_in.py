"""Which edits of a file are of one statement."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from paramgraph_kit.rewrite.source.edits import Edit, Source


def edits_in(source: Source, edits: Iterable[Edit], nodes: Iterable[ast.stmt]) -> list[Edit]:
    """Those that stand in what one of these statements says."""
    whole = [source.replace(node, "") for node in nodes]
    spans = [((each.line, each.column), (each.end_line, each.end_column)) for each in whole]

    def is_in(edit: Edit) -> bool:
        first, last = (edit.line, edit.column), (edit.end_line, edit.end_column)
        return any(begin <= first and last <= end for begin, end in spans)

    return [edit for edit in edits if is_in(edit)]
