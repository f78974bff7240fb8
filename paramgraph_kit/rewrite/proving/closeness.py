"""Whether two runs have given the same: results, written tensors, gradients and state, as near as a rounding leads."""

from __future__ import annotations

import math
from typing import Any

import torch

from paramgraph_kit.rewrite.proving.looked_up import LOOKED_UP
from paramgraph_kit.rewrite.proving.printed import PRINTS, difference
from paramgraph_kit.rewrite.proving.rounded_first import ROUNDED

RETURNS = "what it returns"
GRADIENTS = "gradients"
OF_ARGUMENTS = f"{GRADIENTS} of its arguments"
LEADS = "whether gradients go back from what it returns"
WRITES = "a tensor that it writes"
GRADED = "whether gradients are kept for"  # begins the names of what tells that
BESIDE = (PRINTS, LEADS, GRADED, LOOKED_UP, ROUNDED)  # begin the names of what is noted beside tensors and numbers
FEW = 4.0  # roundings
Seen = dict[str, list[Any]]


def differences(a: Seen, b: Seen, near: Seen | None = None) -> list[str]:
    """What differs between two runs, each in a few words; of states what differs by more than a few times ``near``."""
    found = []
    for name in sorted(a.keys() & b.keys()):
        one, other = a[name], b[name]
        said = name.partition("#")[0]
        if said.startswith(PRINTS):
            found += [f"{said}: {told}" for told in [difference(one, other)] if told]
            continue
        if name in (LOOKED_UP, ROUNDED):
            found += (
                [f"{said}: {int(one[0])}, then {int(other[0])}"]
                if any(y > x for x, y in zip(one, other, strict=False))
                else []
            )
            continue
        if name == LEADS:  # more than before may be so, as of zeros that one of two branches has returned
            found += [f"{said}: they do, then no more"] if any(x > y for x, y in zip(one, other, strict=False)) else []
            continue
        if name.startswith(GRADED):  # fewer than before may be kept, of what nothing goes back through
            found += [f"{said}: they are now"] if any(y > x for x, y in zip(one, other, strict=False)) else []
            continue
        if len(one) != len(other):
            found.append(f"{said}: {len(one)} values, then {len(other)}")
            continue
        if name == RETURNS and (others := next(filter(None, map(_another_kind, one, other)), "")):
            found.append(f"{said}: {others}")
            continue
        third = near.get(name, []) if near and name.startswith((WRITES, GRADIENTS)) else []
        thirds = third if len(third) == len(one) else [None] * len(one)
        spread = name == GRADIENTS  # sums of parts that cancel: as near as the largest of them are
        wrong = next(((x, y) for x, y, z in zip(one, other, thirds, strict=True) if not _close(x, y, z, spread)), None)
        if wrong is not None:
            found.append(f"{said}: {_short(*wrong)}")
    return found


class Plain(torch.Tensor):
    """What was a number and no tensor, as one."""

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec)  # torch formats none but its own class's


def loosely_apart(a: Seen, b: Seen) -> str:
    """How two runs differ by more than roundings that have grown; "" where they do not."""
    for name in sorted(a.keys() & b.keys()):
        one, other = a[name], b[name]
        said = name.partition("#")[0]
        if said.startswith(PRINTS):
            told = difference(one, other)
        elif said.startswith(BESIDE):
            told = ""
        elif len(one) != len(other):
            told = f"{len(one)} values, then {len(other)}"
        else:
            kinds = filter(None, map(_another_kind, one, other)) if name == RETURNS else iter(())
            pairs = ((x, y) for x, y in zip(one, other, strict=True) if not _loosely(_real(x), _real(y)))
            told = next(kinds, "") or next((_short(x, y) for x, y in pairs), "")
        if told:
            return f"{said}: {told}"
    return ""


def _loosely(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.shape == y.shape and torch.equal(x, y):
        return True
    if x.numel() == y.numel() == 1:
        x, y = x.flatten(), y.flatten()
    if x.shape != y.shape:
        return False
    known = x[x.isfinite()].abs()
    most = float(known.max()) if known.numel() else 0.0
    return torch.allclose(x, y, rtol=1e-3, atol=1e-6 + 1e-4 * most, equal_nan=True)


def _another_kind(a: Any, b: Any) -> str:
    """Of two tensors how their shapes or types differ; a number may have become a tensor, which makes a loss wider."""
    if isinstance(a, Plain) or isinstance(b, Plain):
        return ""
    shapes = f"shape {tuple(a.shape)}, then {tuple(b.shape)}" if a.shape != b.shape else ""
    wider = not a.dim() and a.dtype.is_floating_point and b.dtype.is_floating_point
    return shapes or (f"{a.dtype}, then {b.dtype}" if a.dtype != b.dtype and not wider else "")


def farther(a: Seen, near: Seen, other: Seen) -> Seen:
    """Of two roundings what is farther from a run, element by element: one alone may happen to leave it where it is."""
    found = dict(near)
    for name in (n for n in a.keys() & near.keys() & other.keys() if not n.startswith((PRINTS, LOOKED_UP, ROUNDED))):
        rows = a[name], near[name], other[name]
        if len({len(row) for row in rows}) == 1:
            found[name] = [_farther(*map(_real, each)) for each in zip(*rows, strict=True)]
    return found


def _farther(x: torch.Tensor, z: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if not x.shape == z.shape == other.shape:
        return z
    return torch.where((x - other).abs() > (x - z).abs(), other, z)


def _close(a: Any, b: Any, near: Any = None, spread: bool = False) -> bool:
    x, y = _real(a), _real(b)
    if x.numel() == y.numel() == 1:
        x, y = x.flatten(), y.flatten()  # item() gives the number of either
    if x.shape != y.shape:
        return False
    if torch.equal(x, y):  # mostly
        return True
    most = float(x.abs().max()) if spread and x.numel() else 0.0
    atol = max(1e-6, 1e-5 * most if math.isfinite(most) else 0.0)
    if not (far := _apart(x, y, atol)).any():
        return True
    if near is None or (z := _real(near)).shape != x.shape:
        return False
    # Which elements a rounding moves is chance, how many and how far is not. NaN is not close.
    moved = _apart(x, z, atol)
    few = int(far.sum()) <= FEW * int(moved.sum())
    return few and bool((x - y)[far].abs().max() <= FEW * (x - z)[moved].abs().max())


def _apart(x: torch.Tensor, y: torch.Tensor, atol: float) -> torch.Tensor:
    return ~torch.isclose(x, y, rtol=1e-4, atol=atol, equal_nan=True)


def _short(a: Any, b: Any) -> str:
    x, y = _real(a), _real(b)
    if x.shape != y.shape:
        return f"shape {tuple(x.shape)}, then {tuple(y.shape)}"
    at = int((x - y).abs().nan_to_num(math.inf).argmax())
    return f"{x.flatten()[at]:.6g}, then {y.flatten()[at]:.6g}"


def _real(value: Any) -> torch.Tensor:
    tensor = torch.as_tensor(value)
    return torch.view_as_real(tensor.resolve_conj()).double() if tensor.is_complex() else tensor.double()


def is_nesterov(group: Any) -> bool:
    """Whether options are those of an optimizer's group whose step adds the momentum to the gradients."""
    return isinstance(group, dict) and "params" in group and bool(group.get("nesterov"))
