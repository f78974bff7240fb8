"""Tensors that a rewritten step writes in place, and that lines outside of it give another: a graph reads the first.

Six steps alone do not run these lines: ``def restart(self): self.state = zeros``, beside a step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.doctor.explain.syntax import pairs_of
from paramgraph_kit.doctor.observe.exchanged import exchanged_in
from paramgraph_kit.rewrite.kept_numbers import beside, object_of
from paramgraph_kit.rewrite.rounds import Rounds
from paramgraph_kit.rewrite.source.edits import Function, Source, functions_of, locals_of, path_of, within
from paramgraph_kit.rewrite.source.writes import paths_in_place
from paramgraph_kit.rewrite.ways import Ways

MOST = 4
TOLD = (
    "`{path}` is one tensor, which a graph reads where it is: once that is captured, line {line} writes "
    "`{path}.{how}_({value})` for `{path} = {value}`, or capture again behind it"
)
EXCHANGED = (
    "`{path}` is one tensor, which a graph reads where it is: once that is captured, line {line} writes "
    "`{whole}` for `{text}`"
)
GONE = (
    "`{path}` is one tensor, which a graph reads where it is: once that is captured, capture again behind line {line}, "
    "`{path} = {value}`"
)


def told(attempt: Ways, rounds: Rounds) -> list[str]:
    """What such a line is to write, by the names that it has."""
    found = list[str]()
    moved = {each.name for each in (rounds.mover.moved, rounds.mover.fed) if each is not None} if rounds.moves else ()
    for file, lines in rounds.texts.items():
        source = attempt.sources.get(file)
        if source is None:
            continue
        ran = {code.co_qualname for code in attempt.ran}
        inside = [*functions_of(source.tree, ran)]
        tree = ast.parse("".join(lines))
        after = [*functions_of(tree, ran)]
        around = beside(lines, tree, moved, ran)  # numbers that these count are no tensors
        bound = [{path for each in part for path, _ in _bound(each)} for part in (inside, after)]
        behind = [n for n in ast.walk(tree) if isinstance(n, Function) and n.name in {*moved, *around}]
        bound[1] |= {path for each in behind for path, _ in _bound(each)}  # there it still gets another
        in_place = {path for each in after if each.name not in around for path in _in_place(each)} - bound[1]
        owner = object_of(attempt)
        each = [at for path in (bound[0] - bound[1]) | in_place for at in _elsewhere(source, inside, path, owner)]
        for path, value in sorted(each, key=lambda at: (at[1].lineno, at[0])):
            text = source.text(above) if isinstance(above := source.statement_of(value), ast.Assign) else ""
            words = EXCHANGED if (whole := exchanged_in(text)) else _words(value)
            known = {"line": value.lineno, "value": source.text(value), "how": _how(value), "text": text}
            found.append(words.format(path=path, whole=whole, **known))
    return found[:MOST]


def _words(value: ast.expr) -> str:
    return GONE if isinstance(value, ast.Constant) and not isinstance(value.value, (int, float)) else TOLD


def _how(value: ast.expr) -> str:
    return "fill" if isinstance(value, (ast.Constant, ast.UnaryOp)) else "copy"


def _bound(part: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What assignments give another value that lives on: attributes, and names of the module's."""
    nodes = [n for each in getattr(part, "body", ()) for n in within(each)]
    shared = {name for n in nodes if isinstance(n, ast.Global) for name in n.names}
    for target, value in (pair for n in nodes if isinstance(n, ast.Assign) for pair in pairs_of(n)):
        path = path_of(target) if isinstance(target, (ast.Name, ast.Attribute)) else ""
        if "." in path or path in shared or (path and not isinstance(part, Function)):
            yield path, value


def _in_place(function: Function) -> Iterator[str]:
    """What lines of a step write in place, and lives on."""
    own = locals_of(function) - {"self"}
    written = paths_in_place(n for part in function.body for n in within(part))
    yield from (path for path in written if path.partition(".")[0] not in own)


def _elsewhere(source: Source, inside: list[Function], path: str, owner: str) -> Iterator[tuple[str, ast.expr]]:
    """Lines that no step runs and that give it another value, as they call it; where an object is made, it is new."""
    classes = {source.parents.get(each) for each in inside}
    loops = [n for n in source.tree.body if isinstance(n, (ast.For, ast.While))]
    for part in (*loops, *(n for n in ast.walk(source.tree) if isinstance(n, Function) and n not in inside)):
        own = source.parents.get(part) in classes
        if isinstance(part, Function) and part.name == "__init__" and own:
            continue
        for other, value in _bound(part):
            first, _, rest = other.partition(".")
            if (other == path and (first != _self_of(source, part) or own)) or (
                path == f"self.{rest}" and first == owner != "self"
            ):
                yield other, value


def _self_of(source: Source, part: ast.AST) -> str:
    """By which name a method has its own object, or any class's would."""
    first = [*part.args.posonlyargs, *part.args.args][:1] if isinstance(part, Function) else []
    return first[0].arg if first and isinstance(source.parents.get(part), ast.ClassDef) else "self"
