"""An optimizer that is made anew behind a capture, whose graph steps with the one that was there."""

from __future__ import annotations

from paramgraph_kit.doctor.observe.captured_values import Moved

ANEW = "is another optimizer from here on, and the graph steps with that of its capture, by its rate and its state"
WHY = "no replay steps with another optimizer than that of its capture"


def behind_it(moved: Moved) -> str:
    """What one does where nobody knows which line makes it."""
    if moved.part.rpartition(".")[2] in ("betas", "momentum"):
        once = "cycle_momentum=False where the scheduler is made"
        return f"this line as it is; {once}: no tensor can be one of these numbers"
    return f"a new capture behind the line that makes it: {WHY}" if is_anew(moved) else ""


def is_anew(moved: Moved) -> bool:
    """Whether the optimizer itself is another one."""
    return bool(moved.then[0] == "itself")
