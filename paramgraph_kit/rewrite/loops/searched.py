"""A helper that looks for one among many, and returns early, goes through all of them: a rule for ``return True``.

``for p in params: if not torch.isfinite(p.grad).all(): return True`` with ``return False`` behind it, as hand-written
loss scaling has it.
"""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of
from paramgraph_kit.rewrite.source.edits import Edit, Function, locals_of, names_in, within
from paramgraph_kit.rewrite.source.place import Place, fresh
from paramgraph_kit.rewrite.source.pure import may_run


def look_at_all(place: Place) -> list[Edit]:
    """``if c: return True`` in a helper's loop becomes ``found = found | c``, which is returned behind it."""
    node, source = place.statement, place.source
    function = source.function_of(node)
    if not isinstance(node, ast.If) or node.orelse or len(node.body) != 1 or function is None:
        return []
    around = [each for each in source.above(node) if not isinstance(each, ast.With)]
    loops = [each for each in around if isinstance(each, ast.For)]
    if not loops or not all(isinstance(each, (ast.For, ast.If)) for each in around):
        return []
    early, last = node.body[0], _behind(function, loops[-1])
    answer = _answer(early)
    if last is None or answer is None or _answer(last) is not (not answer):
        return []
    inside = [n for part in loops[-1].body for n in within(part)]
    only = [n for n in inside if isinstance(n, (ast.Return, ast.Break, ast.Continue))] == [early]
    steps = [n for n in inside if isinstance(n, ast.stmt) and not isinstance(n, (ast.For, ast.If, ast.Return))]
    if not only or steps or loops[-1].orelse or not all(may_run(place, n, node) for n in (node.test,)):
        return []
    host, asked = _parts(node.test)
    if not asked:
        return []
    name = fresh("found", names_in(source.tree) | locals_of(function))
    test = condition_of(place, asked[0] if len(asked) == 1 else ast.BoolOp(ast.And(), asked))
    lines = [f"{name} = {name} | ({test.replace('.item()', '')})"]
    if host:
        lines = [f"if {' and '.join(map(place.text, host))}:", f"    {lines[0]}"]
    begin = f"{name} = torch.zeros((), dtype=torch.bool, device={place.device})"
    return [
        source.before(loops[-1], [begin]),
        source.replace(node, f"\n{source.indent(node)}".join(lines)),
        source.replace(last, f"return {name}" if answer else f"return torch.logical_not({name})"),
    ]


def given_by(function: Function, helper: str) -> set[str]:
    """The names of a step's own that it gives what a helper returns."""
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign) and len(n.targets) == 1]
    made = [n for n in every if isinstance(n.value, ast.Call) and isinstance(n.targets[0], ast.Name)]
    called = [(n.targets[0], n.value.func) for n in made if isinstance(n.value, ast.Call)]
    return {
        target.id
        for target, func in called
        if isinstance(target, ast.Name) and helper in (getattr(func, "attr", ""), getattr(func, "id", ""))
    }


def _behind(function: Function, loop: ast.For) -> ast.stmt | None:
    """What comes behind a loop of a function's own body, or of a with block there, if that is one statement."""
    for number, part in enumerate(function.body):
        inside = part.body if isinstance(part, ast.With) else [part]
        if loop in inside:
            behind = [*inside[inside.index(loop) + 1 :], *function.body[number + 1 :]]
            return behind[0] if len(behind) == 1 else None
    return None


def _answer(node: ast.stmt) -> bool | None:
    value = node.value if isinstance(node, ast.Return) else None
    return value.value if isinstance(value, ast.Constant) and type(value.value) is bool else None


def _parts(test: ast.expr) -> tuple[list[ast.expr], list[ast.expr]]:
    """What a test asks of Python alone, ``p.grad is not None``, and what it asks of the device behind that."""
    values = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    host = []
    for value in values:
        known = isinstance(value, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in value.ops)
        if not known and getattr(value, "attr", "") != "requires_grad":
            break
        host.append(value)
    return host, list(values[len(host) :])
