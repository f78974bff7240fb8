"""Programs of a learner whose step a loop of `main` calls: which object, and what the loop does, is left open."""

from __future__ import annotations

HEAD = """import torch, paramgraph_kit as pgk
from dataclasses import dataclass
from typing import NamedTuple
from torch import nn
device = pgk.device()
class Pair(NamedTuple):
    loss: torch.Tensor
    seen: int
@dataclass
class Out:
    loss: torch.Tensor
    seen: int
class Learner:
    def __init__(self):
        self.net = nn.Linear(8, 1).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def step(self, x):
        ZEROED
        loss = self.net(x).square().mean()
        loss.backward()
        self.opt.step()
        loss = loss.detach()
        return RESULT
def rows():
    return torch.ones(4, 8, device=device)
def build(): return Learner()
def build_more():
    made = build()
    return made
AROUND
learner = build()
if __name__ == "__main__":
    main()
"""
FIT = "def fit(one, kept, best=None):\n    for k in range(9):\n        LINES\n    return best\n"
CALLED = FIT + "def main(): fit(MADE, [])\n"
HERE = (
    "def main():\n    one, kept, best = MADE, [], None\n    for k in range(9):\n        LINES\n    print(kept, best)\n"
)
PLACES = [(HERE, "Learner()"), (HERE, "build()"), (HERE, "build_more()"), (CALLED, "Learner()"), (CALLED, "build()")]


def program(lines: str, result: str = "loss", *, around: str = HERE, made: str = "build()", zeroed: bool = True) -> str:
    """A learner, and a loop around its step."""
    text = HEAD.replace("AROUND", around.replace("MADE", made)).replace("RESULT", result)
    text = text.replace("ZEROED", "self.opt.zero_grad()" if zeroed else "pass")
    return text.replace("LINES", lines.replace("\n", "\n        "))
