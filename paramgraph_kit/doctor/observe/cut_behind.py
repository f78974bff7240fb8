"""Rows that a number of the host's cuts off and that nothing mixes: all are computed, and results are cut."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name, nodes_of
from paramgraph_kit.doctor.known.elementwise import ELEMENTWISE
from paramgraph_kit.doctor.observe.captured_values import Use
from paramgraph_kit.doctor.observe.moved_words import held_for, with_index
from paramgraph_kit.doctor.observe.own_regions import Region

_EACH = ELEMENTWISE | {"bfloat16"}
_MOST = 4  # results that are told


def as_whole(text: str, region: Region, kind: str) -> str:
    """What is captured of all rows, where a number that moves cuts them or picks one; "" where it is read otherwise."""
    uses = [*region.values.uses] if region.values is not None else []
    if told := _cut_behind(text, uses, region):
        return told
    held = held_for(text)
    if lines := with_index(text, uses, held, kind):
        made, filled = f"{held} = torch.zeros(1, dtype=torch.int64, device={kind!r})", f"`{held}.fill_({text})`"
        return f"before the capture `{made}`, captured is {lines}, and ahead of g.replay() {filled}"
    return ""


def _cut_behind(text: str, uses: Sequence[Use], region: Region) -> str:
    """``probs = net(x)[:self.n]``, of which each row goes alone to what is returned."""
    reads, wholes, told = [each for each in uses if each.text == text], dict[str, str](), dict[str, str]()
    for use in reads:
        nodes = [*nodes_of(use.code)]
        parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        cut = _first_rows(use.node, parents)
        if cut is None or any(each.code is not reads[0].code for each in reads):
            return ""
        derived = _alone(cut, parents, nodes)
        results = _results(derived, use, region) if derived is not None else {}
        if not results:
            return ""
        wholes[ast.unparse(cut)] = ast.unparse(cut.value)
        told |= results
    if not told or len(told) > _MOST:
        return ""
    captured = ", ".join(f"`{whole}` for `{cut}`" for cut, whole in wholes.items())
    behind = ", ".join(f"`{cut}` for `{name}`" for name, cut in told.items())
    rows = "which is all rows, each computed alone"
    return f"captured is {captured}, {rows}; and behind g.replay() {behind}, wherever that is read"


def _first_rows(read: ast.expr, parents: dict[ast.AST, ast.AST]) -> ast.Subscript | None:
    """``x[: n]``, which is read."""
    part = parents.get(read)
    node = parents.get(part) if part is not None else None
    if not isinstance(part, ast.Slice) or part.upper is not read or part.lower is not None or part.step is not None:
        return None
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return None
    return node if not isinstance(node.value, (ast.List, ast.Name)) else None


def _alone(cut: ast.Subscript, parents: dict[ast.AST, ast.AST], nodes: Sequence[ast.AST]) -> set[ast.expr] | None:
    """A cut and all reads of names that have something of its rows; None where something else than each row counts."""
    derived, names, todo = set[ast.expr]([cut]), set[str](), list[ast.expr]([cut])
    while todo:
        node: ast.AST = todo.pop()
        while not isinstance(node, ast.stmt):
            above = parents.get(node)
            if above is None or not _keeps_each(node, above):
                return None
            node = above
        if isinstance(node, ast.Return):
            continue
        if not isinstance(node, ast.Assign) or not all(isinstance(each, ast.Name) for each in node.targets):
            return None
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id not in names:
                names.add(target.id)
                reads = [n for n in nodes if isinstance(n, ast.Name) and n.id == target.id]
                if any(isinstance(n.ctx, ast.Load) and n.lineno <= node.lineno for n in reads):
                    return None  # a name that had something else
                todo += (loads := [n for n in reads if isinstance(n.ctx, ast.Load)])
                derived |= {*loads}
    return derived


def _keeps_each(node: ast.AST, above: ast.AST) -> bool:
    """Whether what stands above a part of an expression computes each of its rows alone."""
    if isinstance(above, ast.Call):
        return last_name(above.func) in _EACH
    if isinstance(above, ast.Attribute):
        return above.attr in _EACH
    plain = isinstance(above, (ast.UnaryOp, ast.Compare, ast.Assign, ast.Return, ast.keyword))
    plain = plain or (isinstance(above, ast.BinOp) and not isinstance(above.op, ast.MatMult))
    return plain or isinstance(above, (ast.Tuple, ast.List, ast.Dict))


def _results(derived: set[ast.expr], use: Use, region: Region) -> dict[str, str]:
    """The results of a capture that are to be cut, with that: ``{"self.probs": "self.probs[:self.n]"}``."""
    names = {ast.unparse(each) for each in derived}
    found = dict[str, str]()
    for node in (n for part in region.body for n in ast.walk(part) if isinstance(n, ast.Assign)):
        if use.code is region.code:
            given = [each for target in node.targets for each in elements_of(target) if ast.unparse(each) in names]
            found |= {ast.unparse(each): f"{ast.unparse(each)}[:{use.text}]" for each in given}
            continue
        if not isinstance(node.value, ast.Call) or last_name(node.value.func) != use.code.co_name:
            continue
        path = _as_called(use.text, node.value)
        targets = [*elements_of(node.targets[0])] if len(node.targets) == 1 else []
        returned = [*_returned(use)]
        if len(targets) != len(returned) or not path:
            return {}
        for target, value in zip(targets, returned, strict=True):
            if any(n in derived for n in ast.walk(value)):
                found[ast.unparse(target)] = f"{ast.unparse(target)}[:{path}]"
    return found


def _as_called(text: str, call: ast.Call) -> str:
    """``service.n`` for the ``self.n`` of a method that is called of ``service``; "" of a variable of a function."""
    owner, _, rest = text.partition(".")
    if owner != "self" or not isinstance(call.func, ast.Attribute):
        return ""
    return f"{ast.unparse(call.func.value)}.{rest}"


def _returned(use: Use) -> Iterator[ast.expr]:
    """What the one return of a function gives, each by itself."""
    values = [n.value for n in nodes_of(use.code) if isinstance(n, ast.Return) and n.value is not None]
    if len(values) == 1:
        yield from elements_of(values[0])
