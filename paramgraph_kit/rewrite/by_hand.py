"""What is left to the user: all of it at once, each place with what to write there, where the line itself tells."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import torch

from paramgraph_kit.rewrite.edits import heads
from paramgraph_kit.rewrite.place import Place
from paramgraph_kit.rewrite.planning import Attempt
from paramgraph_kit.rewrite.values import is_size, made_there
from paramgraph_kit.trace.model import Failure
from paramgraph_kit.trace.wording import frame_text

ENDED = ("raises", "exits", "time-limit")
RANDOM = ("rand", "randn", "randint", "randperm", "normal")
NUMBERED = (ast.Name, ast.Attribute, ast.BinOp)
READS = ("sync-item", "copy-to-cpu")


def still(
    attempt: Attempt, found: Sequence[Failure], known: Sequence[Failure], left: Sequence[Failure]
) -> list[Failure]:
    """The problems of the rewritten function: of those that are left, which it still has, and what it has got."""
    before = {_what(failure): failure for failure in known}
    there = {_what(failure) for failure in found}
    more = [before.get(_what(failure)) or attempt.at_home(failure) for failure in found]
    ended = any(failure.code in ENDED for failure in found)  # it did not come to the lines behind that
    return [f for f in left if ended and _what(f) not in there] + more


def _what(failure: Failure) -> tuple[str, str]:
    return failure.code, failure.frame.text if failure.frame else ""


def lines(attempt: Attempt, failures: Sequence[Failure], known: Sequence[Failure] | None = None) -> list[str]:
    """One line for each place; ``known`` are the problems of the function as it is."""
    places: dict[str, list[Failure]] = {}
    for failure in failures:
        places.setdefault(frame_text(failure.frame), []).append(failure)
    return [_line(attempt, place, each, known) for place, each in places.items()]


def _line(attempt: Attempt, place: str, failures: list[Failure], known: Sequence[Failure] | None) -> str:
    line = f"{place}  [{', '.join(dict.fromkeys(f.code for f in failures))}]"
    if why := next((text for f in failures if (text := attempt.unsafe.get(id(f), ""))), ""):
        line += f": a rewrite was tried and taken back, {why}"
    elif known is not None and not any(failure is each for failure in failures for each in known):
        line += ": once the lines above are rewritten"
    hints = [
        text
        for f in failures
        if (at := attempt.place(f)) and (text := hint(Place(*at, f, attempt.device, space=attempt.space)))
    ]
    return "; ".join([line, *dict.fromkeys(hints)])


def hint(place: Place) -> str:
    """What to write in a line, where it tells more than the class of its problem."""
    code = place.failure.code
    if code in READS and is_size(place):
        return (
            "it decides a size: take it from a shape, or from a number among the arguments, of which each has a graph"
        )
    if code == "copy-to-gpu":
        for _, text in made_there(place, RANDOM):
            return f"draw on the device, `{text}`: other numbers than the CPU's, so it was not rewritten"
    indexed = [node for node in heads(place.statement) if isinstance(node, ast.Subscript)]
    if code == "tensor-bound":
        for node in indexed:
            if isinstance(node.slice, NUMBERED):
                table = place.text(node.value)
                text = f"{table}[{place.source.bracketed(node.slice)}.reshape(1)][0]"
                return f"pick with `{text}`, and have `{table}` on the device"
    if code == "dynamic-shape":
        for node in indexed:
            name = node.slice.id if isinstance(node.slice, ast.Name) and not place.local(node.slice) else ""
            mask = place.space.get(name)
            if isinstance(mask, torch.Tensor) and mask.dtype is torch.bool:
                return (
                    f"as long as `{name}` stays as it is, `{name}_at = {name}.nonzero().squeeze(-1)` before it and "
                    f"`[{name}_at]` in it"
                )
    return ""
