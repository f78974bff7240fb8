"""A program that captures by itself and then raises: of a shape that its graph has not seen, or of no gradients."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import replace

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.launch_words import ANEW, is_replay, same_table
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame

_NO_GRADIENTS = "No inf checks were recorded"  # GradScaler's, where all gradients are None
_NULLED = "gradients-rebound"
_SHAPES = ("must match the size of tensor", "doesn't match the broadcast shape", "shape mismatch")


def ended_in(
    ended: Failure | None, told: Sequence[Failure], notes: list[str], regions: Collection[Region]
) -> list[Failure]:
    """What is told of what a program ends in; what may come of a shape that its graph has not is only noted."""
    if ended is None or ended.code != "raises" or ended.frame is None:
        return [ended] if ended is not None else []
    if _is_nulled(ended, told) or any(ANEW in f.fix for f in told):
        notes.append(_noted(ended, ended.frame))
        return []
    files = {region.code.co_filename for region in regions if region.whole}
    file = next((each for each in files if display_name(each) == ended.frame.file), "")
    if not file or not any(part in ended.message for part in _SHAPES):
        return [ended]
    return [_misfit(ended, tree_of(file) or ast.Module([], [])) or ended]


def without_nulled(ended: list[Failure], told: Sequence[Failure], notes: list[str]) -> list[Failure]:
    """Why calls of a step did not return; what sets its gradients to None in its place, where that is told."""
    nulled = [f for f in ended if f.frame is not None and _is_nulled(f, told)]
    notes += [_noted(f, f.frame) for f in nulled[:1] if f.frame is not None]
    gradients = [f for f in told if f.code == _NULLED] if nulled else []
    return [*gradients, *(f for f in ended if not any(f is each for each in nulled))]


def _is_nulled(ended: Failure, told: Sequence[Failure]) -> bool:
    """Whether it is raised where there are no gradients, and what sets them to None is told."""
    read = ended.frame is not None and ".grad" in ended.frame.text
    of_none = _NO_GRADIENTS in ended.message or ("NoneType" in ended.message and read)
    return of_none and any(f.code == _NULLED for f in told)


def _noted(ended: Failure, frame: Frame) -> str:
    what = ended.message.partition(", in call ")[0]
    return f"it ends in {what} at {frame.label()}, which may come of what is told: ask again behind that"


def _misfit(ended: Failure, tree: ast.Module) -> Failure | None:
    """An input of another shape is written to what a graph reads, which is as large as at its capture."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    line = ended.frame.line if ended.frame is not None else 0
    pair = next((p for n in parents if isinstance(n, ast.stmt) and n.lineno == line and (p := _written(n))), None)
    functions = [n for n in parents if isinstance(n, FUNCTIONS[:2]) and n.lineno <= line <= (n.end_lineno or 0)]
    launched = any(is_replay(n) and n.lineno >= line for f in functions[-1:] for n in ast.walk(f))  # type: ignore[attr-defined]
    if pair is None or not launched:
        return None
    static, given = pair
    shape = f"{given}.shape" if given.isidentifier() else "its shape"
    text = f"{given} has another shape here than {static}, which has that of its capture"
    own = same_table(shape, functions[-1], parents)
    new = f"ahead of this line `if {shape} not in graphs:` a new capture goes to `graphs[{shape}]`"
    words = f"a graph for each shape: {own or f'{new}, with an input of its own, and that one is filled and replayed'}"
    before = ended.frame.text if ended.frame is not None else ""
    failure = BY_ID["size-frozen"].failure(text, ended.frame)
    return replace(failure, fix=f"before  {before}\nafter   {words}")


def _written(node: ast.stmt) -> tuple[str, str] | None:
    """What a statement writes to, and what: ``x.copy_(y)``, ``x[...] = y``."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return ast.unparse(node.targets[0].value), ast.unparse(node.value)
    call = node.value if isinstance(node, ast.Expr) else None
    if (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and last_name(call.func) == "copy_"
        and call.args
    ):
        return ast.unparse(call.func.value), ast.unparse(call.args[0])
    return None
