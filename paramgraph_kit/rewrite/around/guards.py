"""A branch of the device's that leaves a step: it is taken behind the launch, and the device leaves the step out.

``if torch.isnan(loss): skipped += 1; return None`` before ``loss.backward()`` and ``opt.step()``: gradients are
computed in any case, fused kernels of the optimizer change nothing where the branch is taken, and the host counts,
tells, raises or returns behind the launch, as it did.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paramgraph_kit.rewrite.counting import optimizers
from paramgraph_kit.rewrite.expressions.decisions.branches import choose_by_where, condition_of
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, path_of, within
from paramgraph_kit.rewrite.source.moving import is_closed
from paramgraph_kit.rewrite.source.place import TO_HOST, Place, called
from paramgraph_kit.rewrite.source.pure import is_pure

_EXITS = ("sys.exit", "exit", "quit", "os._exit", "os.abort")
_GRADIENTS = frozenset(("zero_grad", "backward", "clip_grad_norm_", "clip_grad_value_"))
_TELLS = frozenset(("print", "append", "info", "debug", "warning", "error", "write", "add_scalar", "log", "zero_grad"))


@dataclass(slots=True)
class Guard:
    """What of a step stays where it is, what goes behind the launch, and how the device leaves out the rest."""

    stays: list[ast.stmt] = field(default_factory=list)
    moves: list[ast.stmt] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    fused: set[str] = field(default_factory=set)


def guard(place: Place, order: Sequence[ast.stmt]) -> Guard | None:
    """How a branch that leaves the function goes behind the launch; ``order`` is the function's body."""
    node = place.statement
    if not isinstance(node, ast.If) or node.orelse or node not in order or node is order[-1]:
        return None
    *before, last = node.body
    ends = is_exit(last, place.source)  # behind the launch it finds all that a step writes as it was, too
    if not (ends or isinstance(last, ast.Return)):
        return None
    if not all(only_tells(part) or _raises(part) or (ends and _trains_nothing(part)) for part in before):
        return None
    found, rest = Guard(moves=[node]), order[order.index(node) + 1 :]
    written = False  # something behind the launch changes what the rest may read
    for part in rest:
        name = optimizers.stepped(part, scaled=False) if isinstance(part, ast.Expr) else ""
        if not written and name and optimizers.is_fusable(place.space, name):
            asks = f"{name}.found_inf = ({_asked(place, node.test)}).float()"
            found.edits.append(place.source.before(part, [*optimizers.momentum_of(place, name), asks]))
            found.fused.add(name)
            found.stays.append(part)
        elif not written and (_stays(place, part) or _scales(place, part)):
            found.stays.append(part)
        elif isinstance(part, ast.Return) or is_closed(part):
            found.moves.append(part)
            written = written or _changes_tensors(part) or not (isinstance(part, ast.Return) or only_tells(part))
        else:
            return None
    captured = [*order[: order.index(node)], *found.stays]
    if any(_calls(part, "backward") for part in order) and not any(map(_zeroes, captured)):
        return None  # what the branch leaves out would be added to the gradients
    return found if found.stays and isinstance(rest[-1], (ast.Return, ast.Expr)) else None


def is_exit(part: ast.stmt, source: Source, deep: int = 2) -> bool:
    """Whether a statement raises, or ends the program: ``sys.exit(1)``, or a call of the file's own that ends so."""
    call = part.value if isinstance(part, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return isinstance(part, ast.Raise)
    own = [n for n in source.parents if isinstance(n, Function) and n.name == called(call)] if deep else []
    return path_of(call.func) in _EXITS or (len(own) == 1 and is_exit(own[0].body[-1], source, deep - 1))


def _trains_nothing(part: ast.stmt) -> bool:
    return is_closed(part) and not _calls(part, "step")


def _calls(part: ast.stmt, name: str) -> bool:
    return any(isinstance(n, ast.Call) and called(n) == name for n in ast.walk(part))


def _zeroes(part: ast.stmt) -> bool:
    """Whether a statement sets gradients to zero at each launch: not each few batches, by a branch."""
    if isinstance(part, (ast.For, ast.With)):
        return any(map(_zeroes, part.body))
    return isinstance(part, ast.Expr) and _calls(part, "zero_grad")


def _asked(place: Place, test: ast.expr) -> str:
    """A test as a value of the device."""
    text = condition_of(place, test).replace(".item()", "")
    return re.sub(r"\b(math|np|numpy)\.(isfinite|isnan|isinf)\b", r"torch.\2", text)


def _stays(place: Place, part: ast.stmt) -> bool:
    """Whether a statement computes values or gradients, and changes nothing that lasts."""
    value = part.value if isinstance(part, (ast.Expr, ast.Assign)) else None
    if isinstance(value, ast.Call) and called(value) in _GRADIENTS:
        scaled = any(isinstance(n, ast.Call) and called(n) == "unscale_" for n in ast.walk(value))
        return not scaled
    targets = part.targets if isinstance(part, ast.Assign) else []
    named = all(isinstance(target, ast.Name) and place.is_local(target.id) for target in targets)
    reads = any(isinstance(n, ast.Call) and called(n) in TO_HOST for n in within(part))
    return bool(targets) and named and not reads and value is not None and is_pure(place, value)


def _scales(place: Place, part: ast.stmt) -> bool:
    """Whether a statement only writes gradients in place: by a branch, as far as that can be rewritten, or a loop."""
    if isinstance(part, ast.If) and not choose_by_where(replace(place, statement=part)):
        return False
    return isinstance(part, (ast.If, ast.For)) and all(_writes_gradients(each) for each in (*part.body, *part.orelse))


def _writes_gradients(part: ast.stmt) -> bool:
    if isinstance(part, ast.For) or (isinstance(part, ast.If) and _asks_for_none(part.test)):
        return all(_writes_gradients(each) for each in (*part.body, *part.orelse))
    call = part.value if isinstance(part, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    owner, name = path_of(call.func.value), called(call)
    return owner.endswith(".grad") and name.endswith("_") and not name.endswith("__")


def _asks_for_none(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot))


def _changes_tensors(part: ast.stmt) -> bool:
    """Whether a statement writes gradients or tensors in place, whatever else it does."""
    names = {called(n) for n in within(part) if isinstance(n, ast.Call)}
    return any(name in _GRADIENTS or (name.endswith("_") and not name.endswith("__")) for name in names)


def _raises(part: ast.stmt) -> bool:
    """``if bad > 3: raise RuntimeError("too many")``, where what it asks is the host's."""
    return (
        isinstance(part, ast.If)
        and not part.orelse
        and all(isinstance(n, ast.Raise) or only_tells(n) for n in part.body)
    )


def only_tells(part: ast.stmt) -> bool:
    """Whether a statement counts, keeps or prints something, and leaves tensors as they are."""
    if isinstance(part, ast.AugAssign):
        return True
    if isinstance(part, ast.Assign):
        return all(isinstance(target, (ast.Attribute, ast.Subscript, ast.Name)) for target in part.targets) and not any(
            isinstance(n, ast.Call) and called(n) in ("step", "backward") for n in within(part)
        )
    if isinstance(part, ast.If):
        return all(map(only_tells, [*part.body, *part.orelse]))
    value = part.value if isinstance(part, ast.Expr) else None
    if not isinstance(value, ast.Call):
        return isinstance(part, ast.Pass)
    return called(value) in _TELLS and path_of(value.func).partition(".")[0] != "torch"
