"""Programs of a class of failure: one that fails, and the same with the fix applied, stepped beside eager."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PRELUDE = """\
import torch
from torch import nn
from torch.nn import functional as F
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()
"""
STEPS = 10
X = "x = torch.arange(4.0, device=device)"
MOVE = "x.add_(1)"
REPLAY = "g.replay()"
Which = Literal["before", "after", "eager"]


@dataclass(frozen=True, slots=True)
class Program:
    """What fails, what is right, and what eager does, each run after ``PRELUDE`` and then stepped with new inputs.

    ``before`` and ``after`` make the graph, ``eager`` is the work of one step. What is empty in the mended one is as
    in the failing one.
    """

    before: str = ""
    after: str = ""
    eager: str = ""
    setup: str = X
    move: str = MOVE  # what the user does between two steps
    replay: str = REPLAY
    result: str = "y"  # what is compared after each step
    name: str = ""
    fixed_setup: str = ""
    fixed_move: str = ""
    fixed_replay: str = ""
    eager_fixed: bool = False  # eager runs on the mended setup: where both compute in another order of roundings
    exact: bool = True  # or within rounding
    recognised: str = ""  # as what, where it is not the class that it belongs to
    simulator_cannot: str = ""

    def first(self, which: Which) -> str:
        """What runs once."""
        mended = which == "after" or (which == "eager" and self.eager_fixed)
        setup = (self.fixed_setup if mended else "") or self.setup
        graph = "" if which == "eager" else "g = cuda.CUDAGraph()\n"
        return code(setup) + graph + code({"before": self.before, "after": self.after, "eager": ""}[which])

    def step(self, which: Which) -> str:
        """What runs ten times."""
        mended = which == "after" or (which == "eager" and self.eager_fixed)
        move = (self.fixed_move if mended else "") or self.move
        replay = (self.fixed_replay if which == "after" else "") or self.replay
        return code(move) + code(self.eager if which == "eager" else replay)

    def run(self, which: Which, file: Path, steps: int = STEPS) -> list[Any]:
        """The result of every step; ``file`` is where lines can be looked up. What the program raises is raised."""
        import torch

        file.write_text(PRELUDE + self.first(which), encoding="utf-8")
        names: dict[str, Any] = {"__name__": "program"}
        torch.manual_seed(0)
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
        found: list[Any] = []
        for _ in range(steps):
            exec(self.step(which), names)
            got = eval(self.result, names)
            found.append(got.detach().cpu().clone() if isinstance(got, torch.Tensor) else got)
        return found

    def text(self, which: Which) -> str:
        """The whole program, to read."""
        return self.first(which) + f"for _ in range({STEPS}):\n" + textwrap.indent(self.step(which), "    ")


def graph(text: str) -> str:
    """``text`` captured."""
    return "with cuda.graph(g):\n" + textwrap.indent(code(text), "    ")


def code(text: str) -> str:
    """A snippet without the indentation that it has in our source."""
    return textwrap.dedent(text).strip() + "\n" if text else ""
