"""What a scan of kernel parameters cannot see, each with the code of the reason that the report must give.

Where ``expect`` is empty the thing looks dangerous and is not: it must be graphed, and right.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from tests.corpus import opaque
from tests.corpus.case import Case, built, inference, normal

ON_GPU, WITH_TRITON = ("cuda", "cuda.bindings"), ("cuda", "cuda.bindings", "triton")
# operation: (reason's code or "" for graphed, what it needs)
EXPECTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "child_graph": ("opaque-node", ON_GPU),
    "conditional_node": ("opaque-node", ON_GPU),
    "host_node": ("opaque-node", ON_GPU),
    "allocation_nodes": ("opaque-node", ON_GPU),
    "event_node": ("opaque-node", ("cuda",)),
    "table_from_host": ("host-memcpy|unsafe-op", WITH_TRITON),
    "table_from_kernel": ("", WITH_TRITON),
    "hidden_word": ("unexplained-word", WITH_TRITON),
    "hidden_word_in_aten": ("unexplained-word", WITH_TRITON),
    "hidden_tensor": ("unowned-address", ()),
    "foreign_memory": ("unowned-address", WITH_TRITON),
    "waits_for_host": ("unsafe-op", ()),  # its Python shows that it reads on the host
    "changes_its_mind": ("unstable-capture|unknown-output", ()),
    "unsafe": ("unsafe-op", ()),
}


class Around(nn.Module):
    """One opaque operation between two layers."""

    def __init__(self, operation: str) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(32, 32), nn.Linear(32, 8)
        self.operation = opaque.registered(operation)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32)."""
        result: Tensor = self.after(self.operation(self.before(x)).relu())
        return result


class ThroughHost(nn.Module):
    """Part of the work is done on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32)."""
        result: Tensor = self.after(self.before(x).cpu().sin().to(x.device))
        return result


class Condition(nn.Module):
    """A branch on a value that stays in the compiled region."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32)."""
        y = self.layer(x)
        chosen: Tensor = torch.cond(y.sum() > 0, _sine, _cosine, (y,))
        return chosen * 2


def _sine(y: Tensor) -> Tensor:
    return y.sin()


def _cosine(y: Tensor) -> Tensor:
    return y.cos()


def _foreign(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    if inputs[0].is_cuda:
        opaque.foreign.renew(int(inputs[0].abs().sum()) % 97)
    with torch.no_grad():
        return [model(*inputs)]


def cases() -> list[Case]:
    """The refusal family."""
    rows = normal((16, 32))
    found = [
        Case(
            name.replace("_", " "),
            built(partial(Around, name)),
            rows,
            _foreign if name == "foreign_memory" else inference(),
            needs=needs,
            expect=(code,) if code else (),
            graphed=not code,
            timed=False,
        )
        for name, (code, needs) in EXPECTED.items()
    ]
    return [
        *found,
        Case("work on the host", built(ThroughHost), rows, inference(), expect=("device-copy",), timed=False),
        Case("torch.cond", built(Condition), rows, inference(), expect=("control-flow",), timed=False),
    ]
