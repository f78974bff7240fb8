"""What is written for a line that fills the first part of whole numbers: indices, tokens, labels."""

from __future__ import annotations

import ast
from collections.abc import Collection

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.doctor.observe.places import Place


def padded(cut: ast.Subscript, whole: str, line: str, numbers: Collection[int], own: tuple[int, int] | None) -> str:
    """The words; ``numbers`` are those that are filled in, ``own`` is the pad of the program's own tables.

    That is one of the numbers as any other where it is filled in.
    """
    own = own if own is not None and own[0] not in numbers else None
    upper = cut.slice.upper if isinstance(cut.slice, ast.Slice) else None
    pad = "pad" if own is None else str(own[0])
    behind = f"{whole}[{ast.unparse(upper)}:].fill_({pad})" if upper is not None else ""
    rest = f"{line}; {behind}" if behind else f"{whole}.fill_({pad}); {line}"
    if own is not None:
        return (
            f"{rest}: {pad} is the padding_idx of line {own[1]}; and where others read what it gives, as in a mean or "
            f"a softmax, a mask of `{whole} != {pad}`, if they have none"
        )
    only = f"; or only batches of len({whole}) rows go to the graph, and eager code for the others"
    zero = "is" if 0 in numbers else "may be"
    return (
        f"{rest}, with a `pad` that counts for nothing, as 0 {zero} one of its numbers: of indices that of one more "
        "row, of zeros, which what they index is made with ahead of the capture, and which is left out of what is "
        "computed of all rows; of labels the -100 that cross_entropy leaves out; of tokens that of the padding, with a "
        f"mask of those that count{only if upper is not None else ''}"
    )


def pad_of(place: Place) -> tuple[int, int] | None:
    """The one ``padding_idx`` that all tables of a program's file have, and the line of the first of them."""
    tree = tree_of(place.user[0].co_filename) if place.user is not None else None
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)] if tree is not None else []
    tables = [n for n in calls if last_name(n.func) in ("Embedding", "EmbeddingBag", "embedding", "embedding_bag")]
    given = [k.value for n in tables for k in n.keywords if k.arg == "padding_idx"]
    known = {k.value for k in given if isinstance(k, ast.Constant) and type(k.value) is int}
    if len(given) != len(tables) or len(known) != 1 or not all(isinstance(k, ast.Constant) for k in given):
        return None
    (pad,) = known
    return (pad, given[0].lineno) if isinstance(pad, int) and pad >= 0 else None
