"""Callers of what a program captures by itself, where its rewritten lines return more than before.

``self.loss = self.body(self.x)`` stands in the program's own capture, and would get a tuple.
"""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.explain.syntax import elements_of
from paramgraph_kit.doctor.observe.own_managers import CAPTURES
from paramgraph_kit.rewrite.source.called_on import is_of_another
from paramgraph_kit.rewrite.source.edits import Function, Source, path_of, within
from paramgraph_kit.rewrite.source.moving import Moved, arguments_of
from paramgraph_kit.rewrite.source.place import called, fresh, names_of
from paramgraph_kit.rewrite.source.reached_as import class_of
from paramgraph_kit.rewrite.ways import Ways

RETURNS = (
    "`{name}` returns `{values}` now, and whoever calls it takes that: {lines}; `{behind}` is given these behind each "
    "replay"
)
BESIDE = ", and behind the call at line{s} {lines}, too, which runs all of it without a graph"
MOST = 4
_KEEPS = ("append", "setdefault", "put")


def take_more(mover: Ways, moved: Moved) -> list[str]:
    """What the callers of a captured function write now, where one of them stands in a capture of the program's own."""
    if not moved.extra or mover.entry is None:
        return []
    found = [
        (source, node)
        for source in mover.sources.values()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and called(node) == mover.entry_name and not _is_in_it(source, node, mover)
    ]
    found = [(source, node) for source, node in found if not _is_of_another(source, node, mover)]
    if not any(_is_captured(source, node) for source, node in found):
        return []
    written = [(source, node, text) for source, node in found if (text := _written(source, node, moved))]
    lines = [text for *_, text in written]
    values = ", ".join(moved.parameters[moved.arguments :])
    told = ", ".join(dict.fromkeys(lines[:MOST]))
    said = RETURNS.format(name=mover.entry_name, values=values, lines=told, behind=moved.name)
    eager = dict.fromkeys(f"{node.lineno}" for source, node, _ in written if not _is_captured(source, node))
    said += BESIDE.format(lines=", ".join(eager), s="s" if len(eager) > 1 else "") if eager else ""
    return [said] if lines else []


def _is_in_it(source: Source, node: ast.AST, mover: Ways) -> bool:
    function, at = source.function_of(node), mover._definition()
    return function is not None and (function is at[1] if at is not None else function.name == mover.entry_name)


def _is_of_another(source: Source, node: ast.Call, mover: Ways) -> bool:
    at = mover._definition()
    return at is not None and is_of_another(source, node, at[1], class_of(at[0].tree, at[1]))


def _is_captured(source: Source, node: ast.AST) -> bool:
    """Whether a node stands in a ``with cuda.graph(g):``."""
    return bool(_captures(source, node))


def _captures(source: Source, node: ast.AST) -> list[ast.Call]:
    blocks = [each for each in source.above(node) if isinstance(each, ast.With)]
    items = [item.context_expr for each in blocks for item in each.items]
    return [each for each in items if isinstance(each, ast.Call) and called(each) in CAPTURES]


def _beside_its_graph(source: Source, call: ast.Call, statement: ast.stmt) -> str:
    """What a capture is given to that keeps one result for each of several graphs; "" where there is one of them.

    ``out = self.body(x)``, then ``self.graphs[key] = graph, x, out``: an attribute has the latest graph's alone.
    """
    if not isinstance(statement, ast.Assign) or statement.value is not call or len(statement.targets) != 1:
        return ""
    target = statement.targets[0]
    graphs = {ast.unparse(each.args[0]) for each in _captures(source, call) if each.args}
    names = [*elements_of(target)]
    if not graphs or any(isinstance(each, ast.Attribute) and path_of(each.value) == "self" for each in names):
        return ""
    if any(isinstance(each, ast.Subscript) and not isinstance(each.slice, ast.Constant) for each in names):
        return source.text(target)
    function = source.function_of(call)
    around = [*ast.walk(function if function is not None else source.tree)]
    values = [n.value for n in around if isinstance(n, (ast.Return, ast.Assign)) and n.value is not None]
    values += [n for n in around if isinstance(n, ast.Call) and called(n) in _KEEPS]
    wanted = {ast.unparse(each) for each in names} | {path_of(each) for each in names}
    for value in (value for value in values if not any(n is call for n in ast.walk(value))):
        read = {ast.unparse(n) for n in ast.walk(value) if isinstance(n, (ast.Name, ast.Attribute))}
        if not read.isdisjoint(graphs) and not read.isdisjoint(wanted):
            return source.text(target)
    owners = {each.rpartition(".")[0] for each in graphs} - {"", "self"}  # ``entry.graph`` and ``entry.out``
    return source.text(target) if any(path_of(each).rpartition(".")[0] in owners for each in names) else ""


def _kept_there(source: Source, statement: ast.stmt, moved: Moved, target: str) -> str:
    """Words for a line whose results are kept beside their graph: there as they come, and taken apart at a replay."""
    names, kept = moved.parameters[moved.arguments :], moved.results - moved.extra
    assert isinstance(statement, ast.Assign)
    several = isinstance(statement.targets[0], (ast.Tuple, ast.List))
    whole, line = "results" if several else target, f"line {statement.lineno} "
    if several:
        given = f"{line}`{whole} = {source.text(statement.value)}`, and `{whole}` for `{target}` beside its graph"
    else:
        given = f"{line}stays as it is, with all of that in `{target}` beside its graph"
    given += "; behind each replay of that graph "
    if moved.returns:
        stars = "*" * (len(names) > 1)
        return f"{given}`{moved.name}` is given `{stars}{whole}`, and `{target}` is what it returns"
    own = target if several or kept == 1 else f"*{target}"
    return f"{given}`{own}, {', '.join(names[kept:])} = {whole}`"


def _written(source: Source, call: ast.Call, moved: Moved) -> str:
    """The line of a caller that takes all of the results; "" where it takes none, and has no use for more."""
    statement, text = source.statement_of(call), source.text(call)
    names = moved.parameters[moved.arguments :]
    kept = moved.results - moved.extra
    if beside := _beside_its_graph(source, call, statement):
        return _kept_there(source, statement, moved, beside)
    # Of an object's graph they are asked for in later calls, too.
    own = "self." if isinstance(call.func, ast.Attribute) and path_of(call.func.value) == "self" else ""
    prefix = own if _is_captured(source, call) else ""
    # A name that is any other's, too, is given another tensor there, perhaps by what runs behind each replay.
    taken = names_of(source.tree) | {n.attr for n in ast.walk(source.tree) if isinstance(n, ast.Attribute)}
    new = [f"{prefix}{fresh(f'{name}_out', taken)}" for name in names[kept:]]
    more, line = ", ".join(new), f"line {call.lineno} "
    if isinstance(statement, ast.Expr) and statement.value is call:
        return f"{line}`{'*_, ' if kept else ''}{more} = {text}`" if _is_captured(source, call) else ""
    if isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1:
        target = source.text(statement.targets[0])
        if moved.returns:
            first = _read_first(source, call, statement)
            return f"{line}`{more} = {text}`, and `{target}` is what `{moved.name}` returns{first}"
        several = isinstance(statement.targets[0], (ast.Tuple, ast.List))
        return f"{line}`{target if several or kept == 1 else '*' + target}, {more} = {text}`"
    if moved.returns or not kept:
        return f"{line}gets what is needed behind the launch from `{text}`, and no result"
    after = f"{ast.unparse(call.func).rpartition('.')[0]}.{moved.name}".lstrip(".")
    given = ", ".join([*(each for each in moved.parameters[: moved.arguments] if each != "self"), "*results"])
    result = "results[0]" if kept == 1 else f"results[:{kept}]"
    return f"{line}`results = {text}`, `{after}({given})` and `{result}` for `{text}`"


def _read_first(source: Source, call: ast.Call, statement: ast.Assign) -> str:
    """Words for names that only what comes behind a replay gives a value to, and that a line ahead of it reads."""
    function = source.function_of(call)
    if function is None or not _is_captured(source, call):
        return ""
    nodes = [n for n in ast.walk(function) if source.function_of(n) is function]
    replays = [n.lineno for n in nodes if isinstance(n, ast.Call) and called(n) == "replay"]
    ends = min((at for at in replays if at > call.lineno), default=0)
    names = [n for n in nodes if isinstance(n, ast.Name)]
    stored = [n for n in names if not isinstance(n.ctx, ast.Load)]
    begins = call.end_lineno or call.lineno
    given = {n.id for n in stored if n.lineno < call.lineno or begins < n.lineno < ends}
    told = list[str]()
    for number, target in enumerate(elements_of(statement.targets[0])):
        if not isinstance(target, ast.Name) or target.id in given | set(arguments_of(function)):
            continue
        reads = [n.lineno for n in names if n.id == target.id and isinstance(n.ctx, ast.Load) and n.lineno < ends]
        if reads := [at for at in reads if at > (statement.end_lineno or 0)]:
            begun = _held(source, call, number)
            value = f"`{target.id} = {begun}`" if begun else "what the first step begins with"
            told.append(
                f"; line {reads[0]} reads `{target.id}` ahead of the first replay: give it a value before, {value}"
            )
    return "".join(told)


def _held(source: Source, call: ast.Call, number: int) -> str:
    """``env.state`` where ``env.step()`` returns ``self.state`` at a place of its results; "" where none holds it."""
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    made = [n for n in ast.walk(source.tree) if isinstance(n, Function) and n.name == called(call)]
    made = [n for n in made if not is_of_another(source, call, n, class_of(source.tree, n))]
    values = [n.value for each in made for n in within(each) if isinstance(n, ast.Return) and n.value is not None]
    parts = [[*elements_of(value)] for value in values]
    paths = {path_of(each[number]) if number < len(each) else "" for each in parts}
    first, _, rest = next(iter(paths)).partition(".") if len(paths) == 1 else ("", "", "")
    return f"{owner}.{rest}" if owner and rest and first == "self" and all(len(each) > number for each in parts) else ""
