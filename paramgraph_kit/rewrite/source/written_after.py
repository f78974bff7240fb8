"""Text right behind an expression, in an edit that leaves what is in the expression to others."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Edit, Source


def written_after(source: Source, node: ast.expr, text: str, rank: int = 0) -> Edit:
    """``.item()`` behind ``self.alpha``."""
    at = source.replace(node, "")
    return Edit(at.end_line, at.end_column, at.end_line, at.end_column, text, rank)
