"""What is written where a graph of a bucket computes rows that no input has filled: only a mask leaves them out."""

from __future__ import annotations

import ast


def is_of_table(cut: ast.Subscript) -> bool:
    """Whether the part of rows, from the first one, is of an entry in a table: ``inputs[size][:n]``."""
    is_rows = isinstance(cut.slice, ast.Slice) and cut.slice.upper is not None
    return is_rows and isinstance(cut.value, ast.Subscript) and isinstance(cut.value.slice, (ast.Name, ast.Attribute))


def masked(cut: ast.Subscript, line: str) -> str:
    """Words for such a line: each bucket gets a mask of its own, which the line fills and the capture reads.

    Args:
        cut: the part of the entry that the line fills.
        line: what the line says.
    """
    assert isinstance(cut.value, ast.Subscript)
    assert isinstance(cut.slice, ast.Slice)
    assert cut.slice.upper is not None
    table, key, rows = cut.value.value, ast.unparse(cut.value.slice), ast.unparse(cut.slice.upper)
    owner = f"{ast.unparse(table.value)}." if isinstance(table, ast.Attribute) else ""
    mask, whole = f"{owner}valid[{key}]", ast.unparse(cut.value)
    return (
        f"{line}; {mask}.fill_(False); {mask}[:{rows}] = True, with a mask for each bucket that is made ahead of its "
        f"capture, `{mask} = torch.ones(len({whole}), dtype=torch.bool, device={whole}.device)`, and read in it: "
        "what goes over the rows leaves out those where it is False, as `torch.where(valid, scores, -torch.inf)` "
        "ahead of a softmax or a maximum, and `torch.where(valid, x, 0)` ahead of a sum, with `valid.sum()` for the "
        "number of rows in a mean; zeros alone are enough only where a row of zeros adds nothing"
    )
