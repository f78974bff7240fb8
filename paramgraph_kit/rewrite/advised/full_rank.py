"""Advice for routines of linear algebra that find a rank, where a matrix is known to have a full one.

Source: https://docs.pytorch.org/docs/stable/generated/torch.linalg.lstsq.html (on CUDA, it takes a full rank for given)
"""

from __future__ import annotations

from paramgraph_kit.rewrite.source.place import Place, called, fresh


def by_qr(place: Place) -> str:
    """``torch.linalg.lstsq(a, b)`` and ``torch.linalg.pinv(a)`` of a tall matrix."""
    if place.failure.code != "linalg-host":
        return ""
    for call in place.calls("lstsq", "pinv", "pinverse"):
        if not call.args or (called(call) == "lstsq" and len(call.args) < 2):
            continue
        q, r = (fresh(name, place.taken) for name in ("q", "r"))
        a, right = place.source.bracketed(call.args[0]), f"{q}.mH"
        if called(call) == "lstsq":
            right = f"{q}.mH @ {place.source.bracketed(call.args[1])}"
        makes = "its solution" if called(call) == "lstsq" else "the same"
        return (
            f"where `{a}` has at least as many rows as columns, and those are independent, `{q}, {r} = "
            f"torch.linalg.qr({a})` with `torch.linalg.solve_triangular({r}, {right}, upper=True)` is {makes}, and can "
            "be captured (a matrix on the right: of a vector `[:, None]`); else end what is captured before it, and "
            "do it behind the launch"
        )
    return ""
