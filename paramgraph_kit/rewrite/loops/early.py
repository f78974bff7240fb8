"""Loops that end early become loops that go on and change nothing more: rules for ``break`` and ``continue``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of
from paramgraph_kit.rewrite.expressions.decisions.hosted import is_given
from paramgraph_kit.rewrite.source.edits import SIMPLE, Edit, Function, Source, combined, locals_of, names_in, path_of
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh
from paramgraph_kit.rewrite.source.pure import is_pure, kept_finite, may_run


def end_of_round(
    place: Place, end: type[ast.Break | ast.Continue]
) -> tuple[ast.If, ast.For | ast.While, Function] | None:
    """``if c: break`` or ``if c: continue`` in a loop's own body, with the loop and the function."""
    node = place.statement
    loop, function = place.source.parents.get(node), place.source.function_of(node)
    if not isinstance(node, ast.If) or node.orelse or [type(part) for part in node.body] != [end]:
        return None
    if not isinstance(loop, (ast.For, ast.While)) or loop.orelse or node not in loop.body or function is None:
        return None
    return node, loop, function


def go_on(place: Place) -> list[Edit]:
    """In a ``for`` loop, ``if c: break`` becomes ``done = done | c``, and what is carried on is kept where ``done``.

    Only loops are taken that do nothing but give values to the function's own names: all rounds run, and those after
    the end change nothing.
    """
    if (found := end_of_round(place, ast.Break)) is None:
        return []
    node, loop, function = found
    counter = bound_of(place, loop.test)[:1] if isinstance(loop, ast.While) else ("",)
    if not counter:
        return []
    counts = [part for part in loop.body if isinstance(part, ast.AugAssign) and name_of(part) == counter[0]]
    steps = [part for part in loop.body if part is not node and part not in counts]
    if isinstance(loop, ast.While) and (len(counts) != 1 or any(name_of(part) == counter[0] for part in steps)):
        return []
    behind = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.lineno > (loop.end_lineno or loop.lineno)]
    head: list[Edit] = []
    if any(n.id == counter[0] for n in behind):  # how many rounds there were: a number that the device counts
        if not isinstance(loop, ast.While) or not (head := _in_rounds(place, loop, counts[0], function)):
            return []
        steps = [part for part in loop.body if part is not node]
    if not all(isinstance(part, (ast.Assign, ast.AugAssign)) and name_of(part) for part in steps):
        return []
    if not all(is_pure(place, part.value) for part in steps if isinstance(part, (ast.Assign, ast.AugAssign))):
        return []
    known = known_before(function, loop)
    inside = set(ast.walk(loop))
    outside = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and n not in inside}
    names = {name for part in steps if (name := name_of(part))}
    goes = stored([ast.Expr(loop.target)]) if isinstance(loop, ast.For) else set()
    if names & outside - known or names - locals_of(function) or names & goes:
        return []  # one that the loop makes, and that is read behind it
    if goes & {n.id for n in behind}:
        return []
    done = fresh("done", place.taken)
    edits = [*head, place.source.before(loop, [f"{done} = torch.zeros((), dtype=torch.bool, device={place.device})"])]
    for part in steps:
        name = name_of(part)
        assert isinstance(part, (ast.Assign, ast.AugAssign))
        if name not in known:
            continue
        value = place.text(part.value)
        if isinstance(part, ast.AugAssign) and not (value := combined(part, name, value)):
            return []
        text = f"torch.where({done}, {name}, {value})"
        if isinstance(part.value, (ast.List, ast.ListComp)):  # of as many as before, which eager steps must show
            old, new = (fresh(word, place.taken) for word in ("old", "new"))
            text = f"[torch.where({done}, {old}, {new}) for {old}, {new} in zip({name}, {value}, strict=True)]"
        edits.append(place.source.replace(part, f"{name} = {text}"))
    test = condition_of(place, node.test).replace(".item()", "")
    test = test if isinstance(node.test, SIMPLE) else f"({test})"
    edits += _tensors_from_the_beginning(place, function, loop, names & known)
    return [*edits, place.source.replace(node, f"{done} = {done} | {test}")]


def _tensors_from_the_beginning(
    place: Place, function: Function, loop: ast.For | ast.While, names: set[str]
) -> list[Edit]:
    """``h = 0.4`` before a loop with ``h = min(h, 1 - t)``: what the device chooses between is a tensor at once."""
    every = [n for part in loop.body for n in ast.walk(part) if isinstance(n, ast.Call)]
    calls = [n for n in every if isinstance(n.func, ast.Name) and n.func.id in ("min", "max")]
    edits = []
    for name in sorted(names & {n.id for call in calls for each in call.args for n in _names(each)}):
        starts = [value for made, value in given_to(function, name) if made.lineno < loop.lineno]
        if len(starts) == 1 and isinstance(starts[0], ast.Constant) and type(starts[0].value) is float:
            text = f"torch.full((), {place.text(starts[0])}, dtype=torch.float64, device={place.device})"
            edits.append(place.source.replace(starts[0], text))
    return edits


def _names(node: ast.AST) -> list[ast.Name]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Name)]


def _in_rounds(place: Place, loop: ast.While, count: ast.AugAssign, function: Function) -> list[Edit]:
    """``while i < 10`` as ``for _ in range(10)``, where ``i`` begins as a literal and only the loop changes it."""
    counter, most = bound_of(place, loop.test) or ("", "")
    starts = [value for made, value in given_to(function, counter) if made.lineno < loop.lineno]
    stores = [n for n in ast.walk(function) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
    if not _adds_one(count) or len(starts) != 1 or sum(n.id == counter for n in stores) != 2:
        return []
    first = starts[0].value if isinstance(starts[0], ast.Constant) else None
    if type(first) is not int or names_in(loop.test) & stored([*loop.body]) - {counter}:
        return []
    name = "_" if "_" not in names_in(function) else fresh("rounds", place.taken)
    line = place.source.lines[loop.lineno - 1]
    test, at = place.source.replace(loop.test, ""), len(line) - len(line.lstrip())
    begin = f"{first}, " if first else ""
    return [Edit(loop.lineno, at, test.end_line, test.end_column, f"for {name} in range({begin}{most})")]


def leave_round_out(place: Place) -> list[Edit]:
    """In a ``for`` loop, ``if c: continue`` becomes ``skipped = c``; what follows changes nothing where that holds."""
    found, source = end_of_round(place, ast.Continue), place.source
    if found is None or not isinstance(found[1], ast.For):
        return []
    node, loop, function = found[0], found[1], found[2]
    steps = loop.body[loop.body.index(node) + 1 :]
    if not steps or not all(isinstance(part, (ast.Assign, ast.AugAssign)) and name_of(part) for part in steps):
        return []
    inside = set(ast.walk(loop))
    outside = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and n not in inside}
    known = known_before(function, loop)
    names = {name for part in steps if (name := name_of(part))}
    if names & outside - known or names - locals_of(function) or names & stored([ast.Expr(loop.target)]):
        return []
    head = loop.body[: loop.body.index(node)]
    if any(isinstance(n, ast.Name) and n.id in names - known for part in head for n in ast.walk(part)):
        return []  # a round reads what the round before it has made
    skipped = fresh("skipped", names_in(source.tree) | locals_of(function))
    edits = [source.replace(node, f"{skipped} = {condition_of(place, node.test).replace('.item()', '')}")]
    for part in steps:
        assert isinstance(part, (ast.Assign, ast.AugAssign))
        name = name_of(part)
        if not may_run(place, part.value, node):
            return []
        value = kept_finite(place, part.value, node.test, skipped, taken=False)
        if isinstance(part, ast.AugAssign) and not (value := combined(part, name, value)):
            return []
        if name in known:
            edits.append(source.replace(part, f"{name} = torch.where({skipped}, {name}, {value})"))
        elif value != place.text(part.value):
            edits.append(source.replace(part, f"{name} = {value}"))
    return edits


def count_up(place: Place) -> list[Edit]:
    """``while c and i < 10: x = f(x); i += 1`` becomes ``for i in range(10)``, in which ``x`` stays where ``c`` ends.

    What ``c`` asks is what the loop carries on, so once it ends it has ended: nothing it asks changes any more.
    """
    loop, source = place.statement, place.source
    function = source.function_of(loop)
    if not isinstance(loop, ast.While) or loop.orelse or function is None or not isinstance(loop.test, ast.BoolOp):
        return []
    if not isinstance(loop.test.op, ast.And) or not all(is_pure(place, part) for part in loop.test.values):
        return []
    bounds = [part for part in loop.test.values if bound_of(place, part)]
    rest = [part for part in loop.test.values if part not in bounds]
    if len(bounds) != 1 or not rest:
        return []
    counter, most = bound_of(place, bounds[0]) or ("", "")
    every = [n for part in function.body for n in ast.walk(part)]
    inside = set(ast.walk(loop))
    starts = [n for n in every if isinstance(n, ast.Assign) and n not in inside and name_of(n) == counter]
    steps = [n for n in loop.body if isinstance(n, ast.AugAssign) and name_of(n) == counter]
    if len(starts) != 1 or len(steps) != 1 or steps[0] is not loop.body[-1] or not _adds_one(steps[0]):
        return []
    first = starts[0].value
    behind = any(
        isinstance(n, ast.Name) and n.id == counter and n.lineno > loop.lineno for n in every if n not in inside
    )
    if behind or not isinstance(first, ast.Constant) or type(first.value) is not int:
        return []
    known, live = known_before(function, loop), fresh("live", names_in(source.tree) | locals_of(function))
    edits = [source.without(steps[0])]
    made: set[str] = set()
    for part in loop.body[:-1]:
        if not isinstance(part, (ast.Assign, ast.AugAssign)) or not is_pure(place, part.value):
            return []
        target = part.targets[0] if isinstance(part, ast.Assign) else part.target
        name, value = place.text(target), place.text(part.value)
        if isinstance(part, ast.AugAssign) and not (value := combined(part, name, value)):
            return []
        if name == counter:
            return []
        own = isinstance(target, ast.Name) and name in locals_of(function)
        if isinstance(target, ast.Name) and own and name not in known:
            made.add(name)  # made in each round
            continue
        if not (own or isinstance(target, ast.Subscript)) or (isinstance(part, ast.Assign) and len(part.targets) != 1):
            return []
        edits.append(source.replace(part, f"{name} = torch.where({live}, {value}, {name})"))
    outside = {n.id for n in every if isinstance(n, ast.Name) and n not in inside}
    asked = {name for part in rest for name in names_in(part)}
    if made & outside or asked & made or not asked & known:
        return []
    if any(
        isinstance(s.value, ast.Constant)
        for s in every
        if isinstance(s, ast.Assign) and s not in inside and name_of(s) in asked
    ):
        return []  # a number of the host's at first
    test = (
        " & ".join(f"({condition_of(place, part)})" for part in rest) if len(rest) > 1 else condition_of(place, rest[0])
    )
    begin = "" if first.value == 0 else f"{first.value}, "
    head = source.replace(loop.test, "")
    line = source.lines[loop.lineno - 1]
    at = len(line) - len(line.lstrip())
    edits.append(Edit(loop.lineno, at, head.end_line, head.end_column, f"for {counter} in range({begin}{most})"))
    edits.append(source.before(loop.body[0], [f"{live} = {test}"], rank=-1))
    return edits


def bound_of(place: Place, node: ast.expr) -> tuple[str, str] | tuple[()]:
    """The counter and its end, of ``i < 10``."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.left, ast.Name):
        return ()
    end = node.comparators[0]
    if not place.is_local(node.left.id) or not is_given(place, end):
        return ()
    if isinstance(node.ops[0], ast.Lt):
        return node.left.id, place.text(end)
    return (node.left.id, f"{place.text(end)} + 1") if isinstance(node.ops[0], ast.LtE) else ()


def _adds_one(node: ast.AugAssign) -> bool:
    one = isinstance(node.value, ast.Constant) and type(node.value.value) is int and node.value.value == 1
    return isinstance(node.op, ast.Add) and one


def known_before(function: Function, statement: ast.stmt) -> set[str]:
    """Names that have a value before a statement."""
    earlier = [n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return set(arguments_of(function)) | {n.id for n in earlier if n.lineno < statement.lineno}


def name_of(node: ast.stmt) -> str:
    """The name that a statement gives a value to, if it is one."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def given_to(function: ast.AST, name: str) -> list[tuple[ast.Assign, ast.expr]]:
    """The assignments below a node that give a name a value, with the value: ``b`` has 2 of ``a, b = 1, 2``."""
    found = list[tuple[ast.Assign, ast.expr]]()
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            found += [(node, value) for one, value in pairs if isinstance(one, ast.Name) and one.id == name]
    return found


def else_of(source: Source, loop: ast.For | ast.While) -> int:
    """The line of a loop's ``else:``, which has nothing else; 0 where there is none."""
    lines = range(loop.body[-1].end_lineno or 0, loop.orelse[0].lineno) if loop.orelse else range(0)
    return next((n for n in lines if source.lines[n - 1].strip() == "else:"), 0)


def is_listed(source: Source, node: ast.AST) -> bool:
    """Whether a list of an object's gets what comes of a number: ``self.rounds.append(i + 1)``, where it stays one."""
    above = source.parents.get(node)
    while isinstance(above, ast.BinOp):
        above = source.parents.get(above)
    if not isinstance(above, ast.Call) or not isinstance(source.parents.get(above), ast.Expr):
        return False
    return called(above) == "append" and isinstance(above.func, ast.Attribute) and "." in path_of(above.func.value)
