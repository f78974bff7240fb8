"""Variables and slots of objects that are always tensors, as a file makes them: these can be written in place."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from paramgraph_kit.rewrite.memory_moved import bound_by_text
from paramgraph_kit.rewrite.source.edits import path_of
from paramgraph_kit.rewrite.source.place import called

_NEW = frozenset(
    f"torch.{name}"
    for name in """tensor zeros ones full empty arange linspace eye rand randn randint randperm where stack cat
    zeros_like ones_like full_like empty_like rand_like randn_like""".split()  # noqa: SIM905
)
_ALIKE = frozenset("to cuda clone contiguous detach float double half long int bool requires_grad_".split())  # noqa: SIM905


def slot_of(target: ast.expr) -> str:
    """``.pos`` of ``self.pos``, ``["pos"]`` of ``cache["pos"]``, and a name as it is; "" of anything else."""
    if isinstance(target, ast.Attribute):
        return f".{target.attr}"
    if isinstance(target, ast.Subscript):
        return f"[{target.slice.value!r}]" if isinstance(target.slice, ast.Constant) else ""
    return target.id if isinstance(target, ast.Name) else ""


def always_tensors(tree: ast.Module, tensors: Collection[str]) -> set[str]:
    """Names and slots that are tensors, now or as a file makes them, but no attribute that it gives a number, too."""
    numbers = {slot for slot, value in _given(tree) if slot.startswith(".") and isinstance(value, ast.Constant)}
    return ({*tensors} - numbers) | made_as_tensors(tree)


def made_as_tensors(tree: ast.Module) -> set[str]:
    """Slots that a file gives nothing but new tensors: ``self.pos = torch.tensor(0)``, ``{"pos": torch.zeros(1)}``."""
    given = _given(tree)
    return {slot for slot, _ in given if slot} - {slot for slot, value in given if not _is_new_tensor(value)}


def _given(tree: ast.Module) -> list[tuple[str, ast.expr | None]]:
    """The slots that a file gives something, and what, where that is told."""
    given: list[tuple[str, ast.expr | None]] = []
    anew = {*_made_anew(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            given += [(f"[{key.value!r}]", value) for key, value in pairs if isinstance(key, ast.Constant)]
        elif isinstance(node, ast.AnnAssign):
            given += (
                [] if node in anew else [(slot_of(node.target), node.value), (f".{slot_of(node.target)}", node.value)]
            )  # also of a class
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                several = isinstance(target, (ast.Tuple, ast.List))
                parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
                values = node.value.elts if isinstance(node.value, (ast.Tuple, ast.List)) else []
                if not several:
                    given.append((slot_of(target), node.value))
                elif len(values) == len(parts):
                    given += [(slot_of(part), value) for part, value in zip(parts, values, strict=True)]
                else:
                    given += [(slot_of(part), None) for part in parts]
        elif isinstance(node, ast.Call) and called(node) == "register_buffer" and (name := bound_by_text(node)):
            given.append((f".{name}", node.args[1] if len(node.args) > 1 else None))
    return given


def _made_anew(tree: ast.Module) -> Iterator[ast.stmt]:
    """Fields of a dataclass that its ``__post_init__`` makes tensors of: no object has their numbers."""
    for owner in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
        last = [n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == "__post_init__"]
        made = [n for each in last for n in each.body if isinstance(n, ast.Assign) and _is_new_tensor(n.value)]
        names = {slot_of(target) for n in made for target in n.targets}
        fields = (n for n in owner.body if isinstance(n, ast.AnnAssign))
        yield from (n for n in fields if f".{slot_of(n.target)}" in names)


def _is_new_tensor(value: ast.expr | None) -> bool:
    """``torch.zeros(3)``, also with ``.to(device)`` behind it."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _ALIKE:
        value = value.func.value
    return isinstance(value, ast.Call) and path_of(value.func) in _NEW
