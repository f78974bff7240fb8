"""Lists and dictionaries that only some rounds of a loop add to: all do, and those that count are picked behind.

``if m.any(): xs.append(x[m].mean(0))`` with ``torch.stack(xs)`` adds in each round, and notes whether it counts:
``torch.stack(xs)[kept]``. What becomes of that is a mean or a sum with a mask, or is picked behind the launch.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_on_device
from paramgraph_kit.rewrite.expressions.decisions.hosted import is_of_the_host
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh, target_of
from paramgraph_kit.rewrite.source.pure import kept_finite, may_run

_LISTS = ("list", "tuple")


@dataclass(frozen=True, slots=True)
class Adding:
    """The statements of a round that lead to what it adds."""

    steps: list[ast.Assign]
    last: ast.stmt
    name: str  # of what it is added to
    value: ast.expr
    when: bool  # what the test is where it is added


def keep_which(place: Place) -> list[Edit]:
    """Each round adds, and notes whether it would have."""
    node, source = place.statement, place.source
    loop, function = source.parents.get(node), source.function_of(node)
    if not isinstance(node, ast.If) or node.orelse or not isinstance(loop, ast.For) or loop.orelse or function is None:
        return []
    adding = _adding(node, loop)
    if adding is None or is_of_the_host(place, node.test) or not _begins_empty(function, adding.name):
        return []
    values = [*(part.value for part in adding.steps), adding.value]
    made = {n.id for part in adding.steps for n in ast.walk(part) if isinstance(n, ast.Name) and _is_stored(n)}
    inside = set(ast.walk(loop))
    outside = [n for part in function.body for n in within(part) if n not in inside]
    own = {n for each in (*adding.steps, adding.last) for n in ast.walk(each)}
    if not all(may_run(place, each, node) for each in values):
        return []
    if any(isinstance(n, ast.Name) and n.id in made for n in (*outside, *(inside - own))):
        return []
    if any(isinstance(n, ast.Name) and n.id == adding.name and n not in own for n in inside):
        return []
    taken = names_in(source.tree) | locals_of(function)
    counts, kept = fresh("counts", taken), fresh("kept", taken)
    edits = _picked(place, adding.name, [n for n in outside if isinstance(n, ast.expr)], counts, kept)
    if not edits:
        return []
    test = condition_on_device(place, node.test)
    now = fresh("counts_now", taken)
    texts = [kept_finite(place, each, node.test, now, taken=adding.when) for each in values]
    lines = [f"{now} = {test if adding.when else f'torch.logical_not({test})'}"]
    for part, value, text in zip((*adding.steps, adding.last), values, texts, strict=True):
        head, _, tail = place.text(part).rpartition(place.text(value))
        lines.append(f"{head}{text}{tail}")
    lines.append(f"{counts}.append({now})")
    gone = [] if adding.when else [source.without(part) for part in (*adding.steps, adding.last)]
    written = source.replace(node, f"\n{source.indent(node)}".join(lines))
    return [source.before(loop, [f"{counts} = []"]), written, *gone, *edits]


def _adding(node: ast.If, loop: ast.For) -> Adding | None:
    """What a branch adds, or what the rest of its round does where it does not go on with the next one."""
    if node not in loop.body:
        return None
    goes_on = len(node.body) == 1 and isinstance(node.body[0], ast.Continue)
    block = loop.body[loop.body.index(node) + 1 :] if goes_on else node.body
    if not block or not all(isinstance(part, ast.Assign) and len(part.targets) == 1 for part in block[:-1]):
        return None
    steps = [part for part in block[:-1] if isinstance(part, ast.Assign)]
    if not all(isinstance(n, (ast.Name, ast.Tuple)) for part in steps for n in part.targets):
        return None
    last = block[-1]
    call = last.value if isinstance(last, ast.Expr) else None
    if isinstance(call, ast.Call) and called(call) == "append" and len(call.args) == 1 and not call.keywords:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        name = owner.id if isinstance(owner, ast.Name) else ""
        return Adding(steps, last, name, call.args[0], not goes_on) if name else None
    target = target_of(last)
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and isinstance(last, ast.Assign):
        counter = isinstance(loop.target, ast.Name) and isinstance(target.slice, ast.Name)
        if counter and isinstance(loop.target, ast.Name) and loop.target.id == path_of(target.slice):
            return Adding(steps, last, target.value.id, last.value, not goes_on)
    return None


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _begins_empty(function: Function, name: str) -> bool:
    """Whether a name is given ``[]`` or ``{}`` once, and nothing else."""
    every = [n for part in function.body for n in within(part)]
    stores = [n for n in every if isinstance(n, ast.Name) and n.id == name and _is_stored(n)]
    own = [n.value for n in every if isinstance(n, (ast.Assign, ast.AnnAssign)) and _target(n) == name]
    if len(own) != 1 or len(stores) != 1:
        return False
    value = own[0]
    made = isinstance(value, ast.Call) and path_of(value.func) in (*_LISTS, "dict") and not value.args
    return made or (isinstance(value, ast.List) and not value.elts) or (isinstance(value, ast.Dict) and not value.keys)


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    """The one name that a statement gives a value."""
    target = node.target if isinstance(node, ast.AnnAssign) else target_of(node)
    return target.id if isinstance(target, ast.Name) else ""


def _picked(place: Place, name: str, nodes: list[ast.expr], counts: str, kept: str) -> list[Edit]:
    """All reads behind the loop as those of what counts; nothing where one cannot be."""
    source, edits = place.source, list[Edit]()
    reads = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    every = fresh("every", {*names_in(source.tree), counts, kept})
    heads: dict[ast.stmt, list[str]] = {}
    for read in sorted(reads, key=lambda n: (n.lineno, n.col_offset)):
        inner, above = _listed(source, read)
        path = path_of(above.func) if isinstance(above, ast.Call) and len(above.args) == 1 else ""
        whole = f"torch.stack({place.text(inner)})"
        plain = isinstance(above, ast.Call) and not above.keywords
        asked = isinstance(above, (ast.If, ast.IfExp)) or (
            isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.Not)
        )
        if path == "torch.stack" and plain:
            edits.append(_replaced(source, above, f"{every}[{kept}]"))
        elif path == "sum" and plain:
            edits.append(_replaced(source, above, f"{every}[{kept}].sum(0)"))
        elif path == "len" and inner is read:
            edits.append(_replaced(source, above, f"{kept}.sum()"))
        elif asked and inner is read and read is getattr(above, "test", read):
            edits.append(source.replace(read, f"{kept}.any()"))
        else:
            return []
        lines = heads.setdefault(source.statement_of(read), [f"{kept} = torch.stack({counts})"] * (not heads))
        if path in ("torch.stack", "sum") and f"{every} = {whole}" not in [n for each in heads.values() for n in each]:
            lines.append(f"{every} = {whole}")  # a tensor that has a name can be picked of behind the launch
    edits += [source.before(statement, lines) for statement, lines in heads.items() if lines]
    return edits


def _replaced(source: Source, node: ast.AST | None, text: str) -> Edit:
    assert isinstance(node, ast.expr)
    return source.replace(node, text)


def _listed(source: Source, read: ast.Name) -> tuple[ast.expr, ast.AST | None]:
    """A list's name, or ``list(d.values())`` and ``[*d.values()]`` of a dictionary's; with what is around it."""
    inner: ast.expr = read
    above = source.parents.get(inner)
    if isinstance(above, ast.Attribute) and above.attr == "values":
        call = source.parents.get(above)
        around = source.parents.get(call) if isinstance(call, ast.Call) else None
        if isinstance(around, ast.Starred):
            around = source.parents.get(around)
        if isinstance(around, (ast.Call, ast.List)) and (
            isinstance(around, ast.List) or path_of(around.func) in _LISTS
        ):
            inner, above = around, source.parents.get(around)
    return inner, above
