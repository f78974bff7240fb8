"""What a function needs to be launched as a step, and what its user writes for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paramgraph_kit.rewrite.result import Rewriting


def state_of(function: Any) -> tuple[bool, dict[str, Any]]:
    """Whether a function can take optimizer steps; the modules, optimizers and tensors of the device that it names."""
    import torch

    from paramgraph_kit.backend.code_names import names_of as named_in
    from paramgraph_kit.driver.select import device
    from paramgraph_kit.rewrite.source.given import named_on_the_way
    from paramgraph_kit.rewrite.source.reach import entry_of, names_of, owner_of
    from paramgraph_kit.verbs._pieces import object_name

    entry, owner, space = entry_of(function), owner_of(function), names_of(function)
    own = getattr(owner, "__dict__", {})
    code = entry.__code__ if entry is not None else (lambda: None).__code__
    outer, me = named_in(code).globals | {*code.co_freevars}, object_name(owner, space)
    known = {name: space[name] for name in sorted(outer) if name in space} | {me: owner}
    known |= {f"{me}.{name}": value for name, value in own.items() if name in code.co_names}
    known |= named_on_the_way(function)
    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)
    # What the host keeps in tensors of its own is none of the step's state: other values would be another graph.
    state = {n: v for n, v in known.items() if isinstance(v, kinds) and getattr(v, "device", device()) == device()}
    found = any(isinstance(value, torch.optim.Optimizer) for value in (*space.values(), *own.values()))
    return (found and _trains(function)) or "backward" in code.co_names, state


def _trains(function: Any) -> bool:
    """Whether code that a function reaches asks for a step or a backward pass: an optimizer beside it tells nothing."""
    from paramgraph_kit.backend.code_names import names_of
    from paramgraph_kit.doctor.restore.host_state import HostState

    called = (name for each in HostState(function, (), {}).functions for name in names_of(each.__code__).attributes)
    return any(name == "step" or "backward" in name for name in called)


def is_written(function: Any, name: str, value: Any, caller: dict[str, Any]) -> bool:
    """Whether the user can write a name where the story is told; what a function reaches by itself needs none."""
    from paramgraph_kit.rewrite.source.reach import entry_of

    entry, root = entry_of(function), name.partition(".")[0]
    space = getattr(entry, "__globals__", {})
    known = caller if any(each is function for each in caller.values()) else space  # it may have been imported
    return root in known and (root != name or known[root] is value)


def is_cell(function: Any) -> bool:
    """Whether a function is a whole cell of a notebook, and not one that the cell has or a rewrite puts beside it."""
    from paramgraph_kit.doctor import cell

    code = getattr(function, "__code__", None)
    return code is not None and cell.is_whole(code.co_filename, code.co_name)


def lines_of(function: Any, state: list[str] | None, fix: Rewriting | None) -> list[str]:
    """What the user writes to have a function launched, and around each launch."""
    from paramgraph_kit.rewrite.source.reach import names_of, owner_of
    from paramgraph_kit.verbs._pieces import called, object_name

    owner = owner_of(function)
    me = object_name(owner, names_of(function)) if owner is not None else ""
    name = "step" if is_cell(function) else called(function)  # of which it is the body
    name = fix.capture if fix is not None and fix.capture else name
    given = "" if state is None else f", state=({', '.join(state)}{',' * (len(state) == 1)})" if state else ", state=[]"
    around = fix.loop if fix is not None and (fix.usage or fix.alone) else []
    return [f"launched = pgk.parameterize({name}{given})", *(line.replace("self.", f"{me}.") for line in around)]
