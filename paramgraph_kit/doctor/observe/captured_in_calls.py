"""Captures in a function that has returned: what their names meant, as far as what it has made still holds it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, TypeGuard

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, elements_of, here, last_name
from paramgraph_kit.doctor.observe.captured_values import NOTHING, path_value
from paramgraph_kit.doctor.observe.held import attributes_of, cells_of, is_a

_LOCALS = "{}.<locals>."
_MOST = 64  # entries of a table of graphs


@dataclass(slots=True)
class Made:
    """What one call of a function has made: the variables of it that are still there."""

    code: CodeType
    names: dict[str, Any]
    cells: dict[str, CellType] = field(default_factory=dict)  # those that functions of it share


def made_by(
    node: ast.FunctionDef, tree: ast.Module, space: dict[str, Any], held: Iterable[Any], objects: Collection[Any]
) -> Iterator[Made]:
    """The calls of a function at the top of a file whose inner functions, or results, are in reach."""
    function = space.get(node.name)
    function = inspect.unwrap(function) if is_a(function, FunctionType) else None
    if not is_a(function, FunctionType) or function.__code__.co_name != node.name:
        return
    calls = [*_calls(tree.body, node.name, {}, space)]
    for method, known in _methods(tree, space, objects):
        calls += _calls(method.body, node.name, known, space)
    calls += _calls_by_functions(tree, node.name, space)
    inner = [f for f in held if is_a(f, FunctionType) and f.__qualname__.startswith(_LOCALS.format(node.name))]
    given = _given(function, calls[0][0], calls[0][1], space) if len(calls) == 1 else {}
    for each in {id(f): f for f in inner}.values():
        made = Made(function.__code__, {**_constants(node), **given}, cells_of(each))
        made.names |= {name: cell.cell_contents for name, cell in made.cells.items()}
        yield _with_functions(made, node, space)
    for call, known, value in calls:
        if names := dict(_unpacked(_result(node), value)):
            made = Made(function.__code__, {**_constants(node), **_given(function, call, known, space), **names})
            yield _with_functions(made, node, space)


def _calls_by_functions(
    tree: ast.Module, name: str, space: dict[str, Any]
) -> Iterator[tuple[ast.Call, dict[str, Any], Any]]:
    """Calls by functions at the top of a file that put it into a table of it: ``graphs[n] = make(fn)``."""
    for each in (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name != name):
        args = each.args
        own = {a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg) if a}
        nodes = [n for s in each.body for n in here(s, FUNCTIONS)]
        own |= {n.id for n in nodes if _is_stored(n)}
        known = {n: value for n, value in space.items() if n not in own}  # its variables hide those of the file
        into = (n for n in nodes if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Subscript))
        for node in (n for n in into if _is_call(n.value, name)):
            table = path_value(node.targets[0].value, {}, known)  # type: ignore[attr-defined]
            for entry in [*table.values()][:_MOST] if type(table) is dict else ():
                yield node.value, dict.fromkeys(own, NOTHING), entry  # type: ignore[misc]


def given_to_method(
    method: ast.FunctionDef, tree: ast.Module, space: dict[str, Any], owner: Any, code: CodeType
) -> Iterator[dict[str, Any]]:
    """What the variables of a method meant, for each call of it by another one: ``self.g = self.capture(fn)``."""
    for other, own in _methods(tree, space, [owner]):
        if other is method:
            continue
        name = f"{other.args.args[0].arg}.{method.name}"
        for call, known, value in _calls(other.body, name, own, space):
            function = MethodType(FunctionType(code, space), owner)
            given = _given(function, call, known, space)
            yield given | dict(_unpacked(_result(method), value))
    for call in _calls_by_the_file(method, tree, space, owner):
        yield _given(MethodType(FunctionType(code, space), owner), call, {}, space)


def _calls_by_the_file(
    method: ast.FunctionDef, tree: ast.Module, space: dict[str, Any], owner: Any
) -> Iterator[ast.Call]:
    """The call of an object's method, or of its ``__init__``, at the top of its file, if it is one that has no loop."""
    top = [s for s in tree.body if not isinstance(s, LOOPS)]  # of a loop's rounds nobody knows which it was
    stored = [n.id for s in tree.body for n in here(s, (*FUNCTIONS, ast.ClassDef)) if _is_stored(n)]
    made = method.name == "__init__"
    names = [name for name, value in space.items() if value is owner]
    called = [type(owner).__name__] if made else [f"{name}.{method.name}" for name in names]
    calls = [each for name in called for each in _calls(top, name, {}, space)]
    calls = [each for each in calls if not made or each[2] is owner]
    if len(calls) == 1:
        call = calls[0][0]
        read = [n.id for part in ast.iter_child_nodes(call) for n in ast.walk(part) if isinstance(n, ast.Name)]
        if all(stored.count(name) <= 1 for name in read):
            yield call


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _methods(
    tree: ast.Module, space: dict[str, Any], objects: Collection[Any]
) -> Iterator[tuple[ast.FunctionDef, dict[str, Any]]]:
    """Methods of a file's classes, once for each object, with what their first argument means."""
    for kind in (n for n in tree.body if isinstance(n, ast.ClassDef)):
        owners = [each for each in objects if space.get(kind.name) in type(each).__mro__]
        for method in (n for n in kind.body if isinstance(n, ast.FunctionDef) and n.args.args):
            yield from ((method, {method.args.args[0].arg: owner}) for owner in owners)


def _calls(
    body: list[ast.stmt], name: str, own: dict[str, Any], space: dict[str, Any]
) -> Iterator[tuple[ast.Call, dict[str, Any], Any]]:
    """Calls in statements, each with what a loop around it has given it, and its result."""
    nodes = (n for s in body for n in here(s, (*FUNCTIONS, ast.ClassDef)))
    for node in (n for n in nodes if isinstance(n, (ast.Assign, ast.Expr))):
        target, value = (node.targets[0] if isinstance(node, ast.Assign) else None), node.value
        if isinstance(target, ast.Tuple):
            held: Any = tuple(path_value(each, own, space) for each in target.elts)
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Name) and _is_call(value, name):
            table = path_value(target.value, own, space)
            entries = table.items() if type(table) is dict else ()
            yield from ((value, own | {target.slice.id: k}, each) for k, each in entries)  # type: ignore[misc]
            continue
        else:
            held = path_value(target, own, space)
        if isinstance(value, ast.DictComp) and type(held) is dict and _is_call(value.value, name):
            key = value.key.id if isinstance(value.key, ast.Name) else ""
            yield from ((value.value, own | {key: k}, each) for k, each in held.items())  # type: ignore[misc]
        elif isinstance(value, ast.ListComp) and type(held) is list and _is_call(value.elt, name):
            yield from ((value.elt, own, each) for each in held)  # type: ignore[misc]
        elif _is_call(value, name):
            yield value, own, held  # type: ignore[misc]


def _is_call(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == name


def _unpacked(returned: ast.expr | None, value: Any) -> Iterator[tuple[str, Any]]:
    """The variables that a result has: of a tuple, a dictionary, an object made of them, or one alone."""
    parts: list[tuple[ast.expr | None, Any]] = [(returned, value)]
    if isinstance(returned, ast.Tuple) and type(value) is tuple:
        parts = [*zip(returned.elts, value, strict=False)]
    elif isinstance(returned, ast.Dict) and type(value) is dict:
        keys = [each.value if isinstance(each, ast.Constant) else None for each in returned.keys]
        parts = [(each, value.get(key, NOTHING)) for key, each in zip(keys, returned.values, strict=True)]
    elif isinstance(returned, ast.Call) and last_name(returned.func) == "dict" and type(value) is dict:
        parts = [(each.value, value.get(each.arg, NOTHING)) for each in returned.keywords]
    elif isinstance(returned, ast.Call) and last_name(returned.func) == type(value).__name__:
        parts = [*_fields(returned, value)]
    yield from ((node.id, part) for node, part in parts if isinstance(node, ast.Name) and part is not NOTHING)


def _fields(made: ast.Call, value: Any) -> Iterator[tuple[ast.expr, Any]]:
    """What an object was made of that it keeps by the names of its class's parameters, as those of dataclasses do."""
    fields = getattr(type(value), "_fields", ())  # of a named tuple
    kept = dict(zip(fields, value, strict=False)) if isinstance(value, tuple) else attributes_of(value)
    yield from ((k.value, kept[k.arg]) for k in made.keywords if k.arg and k.arg in kept)
    with suppress(TypeError, ValueError):  # of a class that has no signature, as a SimpleNamespace
        names = [*inspect.signature(type(value)).parameters]
        yield from ((each, kept[name]) for name, each in zip(names, made.args, strict=False) if name in kept)


def _given(
    function: FunctionType | MethodType, call: ast.Call, known: dict[str, Any], space: dict[str, Any]
) -> dict[str, Any]:
    """What a call gives, where that has a name or is written there."""
    file = function.__code__.co_filename
    args = [_value(each, known, space, file) for each in call.args]
    kwargs = {k.arg: _value(k.value, known, space, file) for k in call.keywords if k.arg}
    with suppress(TypeError):
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        return {name: value for name, value in bound.arguments.items() if value is not NOTHING}
    return {}


def _value(node: ast.expr, known: dict[str, Any], space: dict[str, Any], file: str) -> Any:
    if isinstance(node, ast.Lambda):
        return made_again(node, known, space, file)
    if isinstance(node, ast.Call) and last_name(node.func) == "partial" and node.args:
        return _value(node.args[0], known, space, file)  # which reads what it reads
    return node.value if isinstance(node, ast.Constant) else path_value(node, known, space)


def made_again(node: ast.Lambda, known: dict[str, Any], space: dict[str, Any], file: str) -> Any:
    """A nameless function that nobody has any more."""
    if node.args.defaults or any(node.args.kw_defaults):
        return NOTHING
    maker = ast.parse(f"def made({', '.join(known)}):\n    return None")
    maker.body[0].body[0].value = node  # type: ignore[attr-defined]
    found: dict[str, Any] = {}
    exec(compile(maker, file, "exec"), space, found)
    return found["made"](**known)


def _constants(node: ast.FunctionDef) -> dict[str, Any]:
    """Variables that are given one number, or one word, and no other."""
    found: dict[str, Any] = {}
    stored: dict[str, int] = {}
    for each in (n for s in node.body for n in ast.walk(s)):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            stored[each.id] = stored.get(each.id, 0) + 1
        if isinstance(each, ast.Assign):
            targets, values = [*elements_of(each.targets[0])], [*elements_of(each.value)]
            pairs = zip(targets, values, strict=False) if len(targets) == len(values) else ()
            found |= {t.id: v.value for t, v in pairs if isinstance(t, ast.Name) and isinstance(v, ast.Constant)}
    return {name: value for name, value in found.items() if stored.get(name) == 1}


def _result(node: ast.FunctionDef) -> ast.expr | None:
    returns = [n for s in node.body for n in here(s, FUNCTIONS) if isinstance(n, ast.Return)]
    return returns[-1].value if returns else None


def _with_functions(made: Made, node: ast.FunctionDef, space: dict[str, Any]) -> Made:
    """The same with functions that are defined in it."""
    plain = {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and not n.args.defaults}
    for code in (c for c in made.code.co_consts if is_a(c, CodeType) and c.co_name in plain - made.names.keys()):
        cells = [made.cells.get(name) or _cell(made, name) for name in code.co_freevars]
        made.names[code.co_name] = FunctionType(code, space, code.co_name, None, tuple(cells))
    return made


def _cell(made: Made, name: str) -> CellType:
    if name not in made.names:
        return CellType()  # nobody has it any more: what reads it says so where it is run
    return made.cells.setdefault(name, CellType(made.names[name]))


def kept_in(
    body: list[ast.stmt], graph: ast.expr | None, names: dict[str, Any], space: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """What variables meant whose values were put into a table, or a list, with a graph: ``graphs[n] = g, x, y``."""
    name = graph.id if isinstance(graph, ast.Name) else ""
    nodes = [n for s in body for n in here(s, FUNCTIONS)]
    for node in nodes:
        held: Any = None
        key: ast.expr | None = None
        targets = node.targets if isinstance(node, ast.Assign) else []
        target = next((t for t in targets if isinstance(t, ast.Subscript)), None)
        value: Any = node.value if isinstance(node, ast.Assign) else None
        if target is not None:
            held, key = path_value(target.value, names, space), target.slice
            # ``graphs[n] = g = CUDAGraph()``
            value = next((t for t in targets if isinstance(t, ast.Name) and t.id == name), value)
        elif isinstance(node, ast.Call) and last_name(node.func) == "append" and len(node.args) == 1:
            held, value = path_value(getattr(node.func, "value", None), names, space), node.args[0]
        entries = held.items() if type(held) is dict else enumerate(held) if type(held) is list else ()
        is_place = target is not None and graph is not None and ast.unparse(target) == ast.unparse(graph)
        if not is_place and (value is None or not _names(value, name)):
            continue
        for at, entry in [*entries][:_MOST]:
            found = dict(_unpacked(value, entry))
            if is_place or name in found:
                beside = _kept_beside(nodes, key, at, names, space)
                yield beside | found | ({key.id: at} if isinstance(key, ast.Name) else {})


def _names(value: ast.expr, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value))


def _kept_beside(
    nodes: Iterable[ast.AST], key: ast.expr | None, at: Any, names: dict[str, Any], space: dict[str, Any]
) -> dict[str, Any]:
    """What other tables have of the same key: ``graphs[n] = g`` goes with ``inputs[n] = x``."""
    found: dict[str, Any] = {}
    for node in (n for n in nodes if isinstance(n, ast.Assign) and key is not None):
        for target in (t for t in node.targets if isinstance(t, ast.Subscript)):
            held = path_value(target.value, names, space)
            if type(held) is dict and at in held and ast.unparse(target.slice) == ast.unparse(key):  # type: ignore[arg-type]
                found |= dict(_unpacked(node.value, held[at]))
    return found


def graph_at(graph: ast.expr | None, known: dict[str, Any]) -> Any:
    """The graph of a path, also of one in a table: ``graphs[n]``."""
    if isinstance(graph, ast.Subscript) and isinstance(graph.slice, ast.Name):
        held, key = path_value(graph.value, known, {}), known.get(graph.slice.id, NOTHING)
        return held.get(key, NOTHING) if type(held) is dict and key is not NOTHING else NOTHING
    return path_value(graph, known, {})
