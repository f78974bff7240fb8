"""What is the same in each call is made once and kept on the device: masks, labels, indexes and tables.

``x[mask].view(n, -1)`` with a mask of sizes alone needs no count: its places are found in the first call, before any
capture, and each later call, also one that is captured, picks by these.
"""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.makes.literals import is_only_read
from paramgraph_kit.rewrite.source.edits import Edit, heads, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh
from paramgraph_kit.rewrite.source.unchanging import Deciders, deciders

KEPT = "made_once"
_BRING = (
    "to",
    "cuda",
    "tensor",
    "as_tensor",
    "LongTensor",
    "FloatTensor",
    "IntTensor",
    "BoolTensor",
    "type_as",
    "new_tensor",
)
_COUNT = (
    "nonzero",
    "where",
    "argwhere",
    "unique",
    "bincount",
    "one_hot",
    "repeat_interleave",
    "masked_select",
    "histc",
)
_READ = ("item", "tolist", "cpu", "numpy", "int", "float", "bool")
_VIEWS = frozenset("view reshape unsqueeze squeeze expand t T transpose permute flatten detach contiguous to".split())  # noqa: SIM905


def make_once(place: Place) -> list[Edit]:
    """``w = torch.from_numpy(table).to(d)[t]`` copies a table that stays in the first call alone."""
    names = {"dynamic-shape": _COUNT, "hidden-size": _COUNT, "sync-item": _READ, "copy-to-cpu": _READ}
    wanted = names.get(place.failure.code, _BRING)
    if not _has_a_line(place):
        return []
    if place.failure.code in ("dynamic-shape", "cpu-index", "mask-assignment") and (found := _pick_by_places(place)):
        return found
    for call in place.calls(*wanted):
        if called(call) == "where" and len(call.args) != 1:
            continue
        node: ast.expr = call
        found_by = deciders(place, node)
        above = place.source.parents.get(node)
        while found_by is not None and isinstance(above, ast.expr) and (more := deciders(place, above)) is not None:
            node, found_by = above, more
            above = place.source.parents.get(node)
        if isinstance(above, ast.Call) and above.func is node and isinstance(node, ast.Attribute):
            if called(above).endswith("_"):
                continue  # ``torch.FloatTensor(n).normal_()``: what is kept would be written
            node = node.value
            found_by = deciders(place, node)
        if found_by is not None:
            lines, kept = _kept(place, node, place.text(node), found_by, [])
            new = f"{kept}.clone()" if _is_let_out(place, node) else kept
            return [place.source.before(place.statement, lines), place.source.replace(node, new)]
    return []


def _pick_by_places(place: Place) -> list[Edit]:
    """``x[mask]`` and ``x[i, j]``, where these stay the same."""
    found, lines, keys = list[Edit](), list[str](), list[str]()
    for node in heads(place.statement):
        if not isinstance(node, ast.Subscript) or isinstance(node.slice, (ast.Slice, ast.Constant)):
            continue
        of_host = place.failure.code == "cpu-index"
        if of_host and deciders(place, node.value) is not None:
            continue  # as a whole
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        chosen = [n for n in parts if not isinstance(n, (ast.Slice, ast.Constant)) and names_in(n)]
        chosen = [n for n in chosen if path_of(n) not in place.plain]  # a row's number, which is no mask
        found_by = [deciders(place, each) for each in chosen]
        told = tuple(dict.fromkeys(text for each in found_by for text in each or ()))
        if not chosen or None in found_by:
            continue
        x = place.source.bracketed(node.value)
        if of_host:
            made = [f"torch.as_tensor({place.text(each)}, device={x}.device)" for each in chosen]
        elif len(chosen) == 1 and (len(parts) == 1 or _dimensions(place, chosen[0]) == 1):
            made = [f"{place.source.bracketed(chosen[0])}.nonzero(as_tuple=True){'[0]' * (len(parts) > 1)}"]
        else:
            continue
        one = len(made) == 1
        new, kept = _kept(place, chosen[0], made[0] if one else f"({', '.join(made)})", told, keys)
        lines += new
        found += [place.source.replace(each, kept if one else f"{kept}[{n}]") for n, each in enumerate(chosen)]
    return [place.source.before(place.statement, lines), *found] if found else []


def _dimensions(place: Place, mask: ast.expr) -> int:
    form = place.tensors.get(path_of(mask))
    return len(form.shape) if form is not None else 0


def _has_a_line(place: Place) -> bool:
    """Whether lines can go before a statement: it has its line for itself, and runs once when these have."""
    node = place.statement
    beside = [each for each in place.source.block_of(node) if each is not node and each.lineno == node.lineno]
    above = place.source.parents.get(node)
    joined = isinstance(above, ast.stmt) and above.lineno == node.lineno
    return not (beside or joined or isinstance(node, (ast.While, ast.For, ast.With, ast.ClassDef)))


def _kept(place: Place, node: ast.expr, text: str, told: Deciders, keys: list[str]) -> tuple[list[str], str]:
    """Lines that make something in the first call with these deciders, and what reads it in place of an expression."""
    function = place.source.function_of(place.statement)
    held = KEPT if _is_there(place) else place.hoist(KEPT, "{}")
    taken = names_in(function) | locals_of(function) if function is not None else set[str]()
    keys.append(key := fresh("key", taken | set(keys)))
    parts = ", ".join([_quoted(_label(place, node)), *(told or ())])
    lines = [
        f"{key} = {parts}" if told else f"{key} = ({parts},)",
        f"if {key} not in {held}:  # once, before what is captured",
    ]
    lines.append(f"    {held}[{key}] = {text}")
    return lines, f"{held}[{key}]"


def _is_there(place: Place) -> bool:
    """Whether lines that were rewritten before have made the dictionary."""
    made = [n for n in place.source.tree.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Dict)]
    return any(path_of(target) == KEPT and not n.value.keys for n in made for target in n.targets)  # type: ignore[attr-defined]


def _label(place: Place, node: ast.expr) -> str:
    """What tells this from all else that is kept: its name, and a number where others have that."""
    name = place.text(node)
    every = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.expr) and n.lineno < node.lineno]
    before = sum(type(n) is type(node) and ast.dump(n) == ast.dump(node) for n in every)
    return f"{name} ({before + 1})" if before else name


def _quoted(text: str) -> str:
    return f'"{text}"' if not any(each in text for each in '"\\') else repr(text)


def _is_let_out(place: Place, node: ast.expr) -> bool:
    """Whether others may write into what is kept: it, or a view of it, gets a name that is written, or goes out."""
    if place.failure.code in ("sync-item",):
        return False
    whole: ast.AST = node
    above = place.source.parents.get(whole)
    while above is not None and _is_view(above, whole):
        whole, above = above, place.source.parents.get(above)
    if isinstance(above, ast.Assign):
        return not is_only_read(place, place.statement) and _may_be_written(place)
    if isinstance(above, (ast.Return, ast.Tuple, ast.List, ast.Dict, ast.Starred, ast.keyword)):
        return True
    if isinstance(above, ast.Call) and above.func is not whole:
        root = path_of(above.func).partition(".")[0]
        return root not in ("torch", "F")
    return isinstance(above, ast.Attribute) and above.attr.endswith("_")


def _may_be_written(place: Place) -> bool:
    """Whether the function writes anything in place, or gives out what a statement makes."""
    function = place.source.function_of(place.statement)
    names = {n.id for n in ast.walk(place.statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in (n for part in (function.body if function is not None else ()) for n in within(part)):
        if isinstance(node, (ast.AugAssign, ast.Delete, ast.Yield)):
            return True
        if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Call) and called(node).endswith("_"):
            return True
        if isinstance(node, ast.Return) and names & names_in(node):
            return True
    return False


def _is_view(above: ast.AST, node: ast.AST) -> bool:
    if isinstance(above, ast.Attribute):
        return above.value is node and above.attr in _VIEWS
    if isinstance(above, ast.Call):
        return above.func is node
    plain = isinstance(above, ast.Subscript) and above.value is node
    return plain and all(isinstance(n, (ast.Slice, ast.Constant, ast.Tuple, ast.expr_context, ast.UnaryOp, ast.USub))
                         for n in ast.walk(above.slice))  # type: ignore[attr-defined]  # fmt: skip
