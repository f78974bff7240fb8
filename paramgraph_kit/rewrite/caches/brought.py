"""Tensors of the host's that live from step to step, as a place in a cache does: they live on the device instead.

``self.pos = torch.tensor([0])`` of a step that reads ``self.pos.to(device)`` and adds 1 to it is made on the device,
and what is assigned to it is copied there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import torch

from paramgraph_kit.rewrite.counting import advance
from paramgraph_kit.rewrite.counting.counted import Counter
from paramgraph_kit.rewrite.proving.proof import Prover
from paramgraph_kit.rewrite.source.edits import Edit, Source, path_of, within
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.source.written_after import written_after
from paramgraph_kit.trace.model import Failure

CODES = frozenset(
    """copy-to-gpu host-counter stale-input cpu-scalar-frozen cpu-index scalar-frozen output-alias""".split()  # noqa: SIM905
)
_MOVES = ("to", "cuda")
_MAKERS = ("torch.arange", "torch.tensor", "torch.zeros", "torch.ones", "torch.full")


class Kept(Counter):
    """A tensor of the host's."""

    def tensor(self, device: torch.device) -> torch.Tensor:
        """The same on the device."""
        value: torch.Tensor = self.value
        return value.detach().to(device)

    def begun(self, start: int) -> torch.Tensor:
        """All of its elements at another number."""
        value: torch.Tensor = self.value
        return torch.full_like(value, start)


def bring(
    prover: Prover,
    source: Source,
    failures: Sequence[tuple[Failure, Source, ast.stmt]],
    ran: Sequence[ast.stmt],
    device: str,
) -> advance.Kept | None:
    """Those that a step writes on the device, with all that reads them; None where there are none."""
    edits, found = list[Edit](), list[Kept]()
    for one in _held(prover):
        every = [part for top in ran for part in ast.walk(top)]
        written = [n for n in every if isinstance(n, ast.stmt) and _is_written(n, one)]
        if not written:
            continue
        begun = list(advance.first_values(source, one))
        if len(begun) != 1 or begun[0] in every:
            return None
        edits.append(written_after(source, begun[0], f".to({device})"))
        for node in written:
            edits += _copied(source, node, one) if isinstance(node, ast.Assign) else []
        edits += [edit for part in every for edit in (*_apart(source, part, one), *_beside(source, part, one, device))]
        found.append(one)
    if not found:
        return None
    named = [f for f, where, node in failures if where is source and f.code in CODES and _reads(node, found)]
    names = ", ".join(dict.fromkeys(f"`{each.name}`" for each in found))
    told = f"{names} lives on the device: where anything else sets it, `.copy_(...)` or `.fill_(...)` does"
    return advance.Kept(source, list(found), edits, named, rates=False, told=told)


def _held(prover: Prover) -> Iterator[Kept]:
    """Tensors of the host's that variables, attributes and dictionaries hold in all steps."""
    for holder, values in prover.watched():
        for key in list(values[0]) if isinstance(values[0], dict) else [None]:
            seen = [each.get(key) if isinstance(each, dict) else each for each in values]
            known = [v for v in seen if isinstance(v, torch.Tensor) and v.device.type == "cpu" and not v.requires_grad]
            if len(known) == len(seen) and len({(v.shape, v.dtype) for v in known}) == 1:
                yield Kept(holder, key, False, known[0])


def _is_written(node: ast.stmt, one: Kept) -> bool:
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(one.is_at(part) for part in targets)
    call = node.value if isinstance(node, ast.Expr) else None
    name = called(call) if isinstance(call, ast.Call) else ""
    written = name.endswith("_") and isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    return (
        written and isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and one.is_at(call.func.value)
    )


def _copied(source: Source, node: ast.Assign, one: Kept) -> list[Edit]:
    """``pos = pos + 1`` as ``pos.copy_(pos + 1)``, in two edits, so that others can be inside the value."""
    if len(node.targets) != 1:
        return []
    left, right = source.replace(node.targets[0], ""), source.replace(node.value, "")
    return [
        Edit(left.end_line, left.end_column, right.line, right.column, ".copy_("),
        Edit(right.end_line, right.end_column, right.end_line, right.end_column, ")"),
    ]


def _apart(source: Source, node: ast.AST, one: Kept) -> Iterator[Edit]:
    """``p = pos.to(device)`` was a copy, and stays one."""
    value = node.value if isinstance(node, ast.Assign) else None
    inner = value
    while isinstance(inner, ast.Call) and called(inner) in _MOVES and isinstance(inner.func, ast.Attribute):
        inner = inner.func.value
    if value is not None and inner is not None and inner is not value and one.is_at(inner):
        yield written_after(source, value, ".clone()")


def _beside(source: Source, node: ast.AST, one: Kept, device: str) -> Iterator[Edit]:
    """``torch.arange(n) + pos`` of the host's: what is beside it is made where it is."""
    if not isinstance(node, ast.BinOp):
        return
    for made, other in ((node.left, node.right), (node.right, node.left)):
        makes = one.is_at(other) and isinstance(made, ast.Call) and path_of(made.func) in _MAKERS
        if makes and isinstance(made, ast.Call) and all(o.arg not in ("device", None) for o in made.keywords):
            at = source.replace(made, "")
            yield Edit(at.end_line, at.end_column - 1, at.end_line, at.end_column - 1, f", device={device}")


def _reads(node: ast.stmt, found: Sequence[Kept]) -> bool:
    return any(one.is_at(part) for part in within(node) for one in found)
