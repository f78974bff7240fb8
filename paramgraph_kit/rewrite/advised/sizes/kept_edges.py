"""Advice for edges that a mask leaves out before a function adds them up itself: they stay, and add nothing.

``edge_index = edge_index[:, keep]`` with ``out.index_add_(0, edge_index[1], messages)``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.source.edits import names_in, on_one_line, within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh
from paramgraph_kit.rewrite.source.widths import columns_of

_ADDS = ("index_add", "index_add_", "scatter_add", "scatter_add_")
_KNOWN = ("bincount", "cat", "stack", "zeros", "ones", "zeros_like", "ones_like", "len", "full", "empty", "gather")


def kept_edges(place: Place) -> str:
    """``edge_index = edge_index[:, keep]``, where each line that adds up or counts edges is the function's own."""
    node, function = place.statement, place.source.function_of(place.statement)
    value = node.value if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if place.failure.code != "dynamic-shape" or function is None or not isinstance(value, ast.Subscript):
        return ""
    mask = columns_of(value)
    top = next((each for each in function.body if each is node or node in getattr(each, "body", ())), None)
    if not isinstance(mask, (ast.Name, ast.Compare, ast.UnaryOp, ast.BinOp)) or not isinstance(node, ast.Assign):
        return ""
    if not (top is node or isinstance(top, ast.If)):
        return ""
    own = isinstance(mask, ast.Name)
    kept = place.text(mask) if own else fresh("kept", place.taken)
    lines = _Lines(place, kept, stored([node]))
    later = [each for each in function.body if each.lineno > (top.end_lineno or top.lineno)]
    inside = [each for each in getattr(top, "body", ()) if each.lineno > node.lineno]
    told = [text for each in (*inside, *later) for text in lines.of(each)]
    if not lines.adds or lines.unknown or (isinstance(top, ast.If) and top.orelse):
        return ""
    here = "" if own else f"`{kept} = {place.text(mask)}`, "
    edges = f"`{place.text(node.targets[0])} = {place.text(value.value)}`"
    if isinstance(top, ast.If):
        every = f"torch.ones({place.text(value.value)}.shape[1], dtype=torch.bool, device={place.device})"
        edges += f", with `else: {kept} = {every}` of line {top.lineno}"
    return (
        f"keep all of `{place.text(value.value)}`, of which those left out add nothing: here {here}{edges}; "
        f"{'; '.join(told)}; any other sum, mean or largest over edges is one of `torch.where({kept}, ..., 0)`, or of "
        "-torch.inf for 0; `.size(1)` of them is not their number, which is "
        f"`{kept}.sum()`"
    )


class _Lines:
    """What to write in the lines behind such a pick."""

    def __init__(self, place: Place, kept: str, names: set[str]) -> None:
        self.place, self.kept, self.names = place, kept, names  # of edges, and of their ends
        self.made, self.adds, self.unknown = set[str](), False, False

    def of(self, statement: ast.stmt) -> Iterator[str]:
        """What to write in the place of one of them, as far as it adds up, counts or joins edges."""
        calls = [n for n in within(statement) if isinstance(n, ast.Call) and names_in(n) & self.names]
        ends = stored([statement]) if isinstance(statement, ast.Assign) and self._are_ends(statement.value) else set()
        new, first, last = on_one_line(self.place.text(statement)), list[str](), list[str]()
        for call in calls:
            old, put = "", ""
            if called(call) in _ADDS:
                old, put = self._added(call, first)
            elif called(call) == "bincount":
                old, put = self._counted(call)
            elif called(call) in ("cat", "concat") and call.args and isinstance(call.args[0], ast.List):
                last.append(f"{self.kept} = torch.cat([{', '.join(map(self._mask_for, call.args[0].elts))}])")
                ends |= stored([statement])
            elif any(isinstance(n, ast.Name) and n.id in self.names for n in call.args):
                self.unknown |= called(call) not in _KNOWN  # whatever that does with edges
            self.unknown |= new.count(old) != 1 and bool(old)
            new = new.replace(old, put) if old else new
        self.unknown |= isinstance(statement, ast.Return) and self._are_ends(statement.value)
        self.names |= ends
        self.unknown |= bool((first or last) and hasattr(statement, "body"))
        if lines := [*first, *[new] * (new != on_one_line(self.place.text(statement)))]:
            yield f"line {statement.lineno} becomes `{'`, `'.join(lines)}`"
        if last:
            yield f"behind line {statement.lineno} `{'`, `'.join(last)}`"

    def _are_ends(self, value: ast.expr | None) -> bool:
        """Whether it is edges, or their ends: ``edge_index``, ``edge_index[0]``."""
        while isinstance(value, ast.Subscript):
            value = value.value
        return isinstance(value, ast.Name) and value.id in self.names

    def _added(self, call: ast.Call, first: list[str]) -> tuple[str, str]:
        """``out.index_add_(0, col, messages)``."""
        given = {str(each.arg): each.value for each in call.keywords}
        given |= dict(zip(("dim", "index", "src"), call.args, strict=False))
        src = given.get("src", given.get("source"))
        if len(given) != 3 or src is None or self.place.text(given["dim"]) != "0":
            self.unknown = True
            return "", ""
        self.adds = True
        text, name = on_one_line(self.place.text(src)), fresh("messages", self.place.taken | self.made)
        self.made.add(name)
        first.append(f"{name} = {text}")
        before, mask = on_one_line(self.place.text(call)), f"{self.kept}.view(-1, *[1] * ({name}.dim() - 1))"
        head, _, tail = before.rpartition(text)
        return before, f"{head}torch.where({mask}, {name}, 0){tail}"

    def _counted(self, call: ast.Call) -> tuple[str, str]:
        """``torch.bincount(col, minlength=n)``."""
        least = [each.value for each in call.keywords if each.arg == "minlength"]
        if len(call.args) != 1 or len(call.keywords) != 1 or not least:
            self.unknown = True
            return "", ""
        self.adds = True
        ends, n = self.place.text(call.args[0]), self.place.text(least[0])
        counts = f"torch.zeros({n}, dtype=torch.long, device={self.place.device})"
        return on_one_line(self.place.text(call)), f"{counts}.scatter_add_(0, {ends}, {self.kept}.long())"

    def _mask_for(self, part: ast.expr) -> str:
        """The mask of a part of ``torch.cat([edge_index, loops], 1)``."""
        if self._are_ends(part):
            return self.kept
        return f"torch.ones(({self.place.text(part)}).shape[-1], dtype=torch.bool, device={self.place.device})"
