"""An optimizer that is made anew behind a capture, whose graph steps with the one that was there."""

from __future__ import annotations

from collections.abc import Iterable

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


def by_own_names(moved: Iterable[Moved]) -> list[Moved]:
    """Those that are told: of what is made anew that alone, and a module's number by the name that it is read by."""
    every = [*moved]
    anew = {each.use.text for each in every if is_anew(each)}
    named = {(each.use.text, id(each.use.owner())) for each in every if not each.part and each.then[0] == "number"}
    parts = [m for m in every if m.part and (f"{m.use.text}{m.part}", id(m.owner)) in named]
    return [m for m in every if not any(m is each for each in parts) and (is_anew(m) or m.use.text not in anew)]
