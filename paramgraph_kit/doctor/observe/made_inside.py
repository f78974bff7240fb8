"""Random generators that a function makes anew in each call: no graph can be told of those before its capture."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import CodeType, MappingProxyType

from paramgraph_kit.doctor.explain.syntax import every, last_name, nodes_of, spans, tree_of, written_out
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame

_NOTHING: Mapping[str, ast.expr] = MappingProxyType({})


def generators(found: Collection[Failure], codes: Iterable[CodeType], ran: Iterable[CodeType]) -> Iterator[Failure]:
    """The lines that make generators which draw unregistered: each is in a local name, and in no cache.

    ``ran`` is what the last call has run: an ``__init__`` there makes an object of the call's own.
    """
    yield from _in_objects(found, ran)
    drawing = {(f.frame.function, f.frame.line) for f in found if f.code == "unregistered-generator" and f.frame}
    for code in codes:
        lines = {line for function, line in drawing if function == code.co_name}
        nodes = [*nodes_of(code)] if lines else []
        read = {n.id for n in nodes if isinstance(n, ast.Name) and n.lineno in lines}
        for node in nodes:
            if (
                isinstance(node, ast.Assign)
                and isinstance(target := node.targets[0], ast.Name)
                and _is_made(node.value)
            ):
                local = target.id in code.co_varnames and target.id not in code.co_freevars
                if local and target.id in read:
                    text = f"`{target.id}` is made anew in each call"
                    frame = frame_at(code, node.lineno)
                    line = ast.unparse(node)
                    after = f"before the capture: {line}; g.register_generator_state({target.id}), of the graph g"
                    after += f"; and before each launch {_seeded_anew(target.id, node.value)}, as each call does"
                    made = BY_ID["generator-made"].failure(text, frame)
                    yield replace(made, fix=f"before  {line}\nafter   {after}")


def _in_objects(found: Iterable[Failure], codes: Iterable[CodeType]) -> Iterator[Failure]:
    """The lines of an ``__init__`` that made them, of an object of the call's own.

    No graph can be told of them, and each call begins them from its own seeds.
    """
    ran = [*codes]
    for failure in [f for f in found if f.code == "unregistered-generator" and f.frame is not None]:
        line = failure.frame.line  # type: ignore[union-attr]
        files = {c.co_filename for c in ran if display_name(c.co_filename) == failure.frame.file}  # type: ignore[union-attr]
        for file in files:
            tree = tree_of(file)
            nodes = every(tree) if tree is not None else ()
            owner = next((n for n in nodes if isinstance(n, ast.ClassDef) and spans(n, line)), None)
            methods = {n.name: n for n in owner.body if isinstance(n, ast.FunctionDef)} if owner is not None else {}
            init, made_by = methods.get("__init__"), _maker(ran, owner.name) if owner is not None else None
            if init is None or made_by is None:
                continue
            users = [n for n in methods.values() if spans(n, line)]
            read = {n.attr for user in users for n in ast.walk(user) if isinstance(n, ast.Attribute)}
            for node in init.body:
                target = node.targets[0] if isinstance(node, ast.Assign) else None
                if not isinstance(node, ast.Assign) or not isinstance(target, ast.Attribute) or target.attr not in read:
                    continue
                if not _is_made(node.value.elt if isinstance(node.value, ast.ListComp) else node.value):
                    continue
                yield _told_of(node, target, made_by, init, file)


def _told_of(
    node: ast.Assign, target: ast.Attribute, made_by: tuple[str, ast.Call], init: ast.FunctionDef, file: str
) -> Failure:
    """The line that makes one, or a list of them, for an object that is made in each call."""
    held, call = made_by
    path = f"{held}.{target.attr}"
    listed = node.value if isinstance(node.value, ast.ListComp) else None
    given = dict(zip((each.arg for each in init.args.args[1:]), call.args, strict=False))
    given |= {k.arg: k.value for k in call.keywords if k.arg}
    if listed is not None:
        source = listed.generators[0]
        over = f"zip({path}, {ast.unparse(written_out(source.iter, given))})"
        own = {n.id for n in ast.walk(source.target) if isinstance(n, ast.Name)}
        inner = {name: value for name, value in given.items() if name not in own}
        seeded = f"`for gen, {ast.unparse(source.target)} in {over}: {_seeded_anew('gen', listed.elt, inner)}`"
        known = f"`for gen in {path}: g.register_generator_state(gen)`"
    else:
        apart = [n for n in ast.walk(init) if _seeds(n, ast.unparse(target))]
        seeded = f"`{_seeded_anew(path, apart[0] if apart else node.value, given)}`"
        known = f"`g.register_generator_state({path})`"
    after = (
        f"this line stays, and its object is made once, before the capture: `{held} = {ast.unparse(call)}`, "
        f"and {known} of the graph `g`; and before each launch {seeded}, as each call does"
    )
    frame = Frame(display_name(file), node.lineno, init.name, linecache.getline(file, node.lineno).strip())
    made = BY_ID["generator-made"].failure(f"`{ast.unparse(target)}` is made anew in each call", frame)
    return replace(made, fix=f"before  {ast.unparse(node)}\nafter   {after}")


def _seeds(node: ast.AST, path: str) -> bool:
    func = node.func if isinstance(node, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr == "manual_seed" and ast.unparse(func.value) == path


def _maker(ran: Iterable[CodeType], name: str) -> tuple[str, ast.Call] | None:
    """The one call of a class in what ran, and the name that its object has there; None where it may be kept."""
    for code in ran:
        nodes = [*nodes_of(code)]
        calls = [n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == name]
        for call in calls if len(calls) == 1 else ():
            holds = [n for n in nodes if isinstance(n, ast.stmt) and call in ast.walk(n)]
            if any(isinstance(n, (ast.If, ast.Try)) for n in holds):
                return None
            named = next((n.targets[0] for n in holds if isinstance(n, ast.Assign) and n.value is call), None)
            if isinstance(named, ast.Name) and named.id in code.co_varnames:
                return named.id, call
            method = [n for n in nodes if isinstance(n, ast.Attribute) and n.value is call]
            return ("made", call) if named is None and method else None
    return None


def _seeded_anew(name: str, value: ast.expr | ast.AST, given: Mapping[str, ast.expr] = _NOTHING) -> str:
    """The seed that a new generator has: a fresh one has torch's own, which is always the same."""
    call = value if isinstance(value, ast.Call) and last_name(value.func) == "manual_seed" and value.args else None
    return f"{name}.manual_seed({ast.unparse(written_out(call.args[0], given)) if call else f'{name}.initial_seed()'})"


def _is_made(value: ast.expr) -> bool:
    """Whether a value is a new generator, perhaps with a seed."""
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr == "manual_seed":
        return _is_made(value.func.value)
    return last_name(value.func) == "Generator"
