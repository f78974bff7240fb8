"""Graphs that were captured before anybody looked, found where the user's file captures them, as its names mean now."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any

import torch

from paramgraph_kit.doctor.cell import is_made_of
from paramgraph_kit.doctor.explain.syntax import (
    FUNCTIONS,
    LOOPS,
    elements_of,
    every,
    here,
    last_name,
    nodes_of,
    tree_of,
)
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.begun_as_numbers import begun_as_numbers, made_as
from paramgraph_kit.doctor.observe.callers_tensors import written_over
from paramgraph_kit.doctor.observe.captured_in_calls import (
    Made,
    given_to_method,
    graph_at,
    kept_in,
    made_again,
    made_by,
)
from paramgraph_kit.doctor.observe.captured_values import NOTHING, Names, Use, path_value
from paramgraph_kit.doctor.observe.captures_written import captures as captures_of
from paramgraph_kit.doctor.observe.captures_written import graph_of, graphs_made
from paramgraph_kit.doctor.observe.carried_states import begins_anew, is_place, made_of_itself, named_as, outlives
from paramgraph_kit.doctor.observe.given_to_methods import rebound_by_methods
from paramgraph_kit.doctor.observe.graphed_by_torch import defined_in, graphed_by_torch
from paramgraph_kit.doctor.observe.graphed_elsewhere import graphed_elsewhere
from paramgraph_kit.doctor.observe.held import attributes_of, cells_of, code_of, is_a, is_graph, methods_of
from paramgraph_kit.doctor.observe.held_objects import methods_by_user, reachable
from paramgraph_kit.doctor.observe.made_first import GROW, ROWS
from paramgraph_kit.doctor.observe.names_read import stored_in
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.one_call import MOVED
from paramgraph_kit.doctor.observe.own_managers import CAPTURES, managers_in
from paramgraph_kit.doctor.observe.own_regions import GRAPHED, Region, region_at
from paramgraph_kit.doctor.observe.rate_words import rate_in_a_tensor
from paramgraph_kit.doctor.observe.rebound_entries import entries_carried_on
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.trace.model import Failure

_GIVE_THEMSELVES = ("eval", "train", "requires_grad_", "to", "cuda", "half", "bfloat16", "float")  # a module does


def captured_before(function: Callable[..., Any], kind: str, given: Iterable[Any] = ()) -> list[Region]:
    """What the file of a function has captured already, and those of the objects that it has, or is given."""
    regions = list[Region]()
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        regions += _regions(function, kind, [*given])
        for region in regions:
            written = [(_is_copy(node), storage_key(tensor)) for node, _, tensor in writes_of(region)]
            region.writes = frozenset(key for _, key in written) - {0}
            region.filled = frozenset(key for is_copy, key in written if is_copy) - {0}
    return regions


def rates(region: Region, found: Iterable[Failure]) -> Iterator[Failure]:
    """Schedulers that are stepped around the replays of a graph that has their optimizer's step, and its rate."""
    read = [use.value() for use in region.values.uses] if region.values is not None else []
    optimizers = [value for value in read if is_a(value, torch.optim.Optimizer)]
    for failure in (f for f in found if optimizers and f.frame is not None):
        line = failure.frame.text  # type: ignore[union-attr]
        if failure.code == "learning-rate-frozen" and any(map(_has_number, optimizers)):
            made = rate_in_a_tensor(region.settings[0], next(filter(_has_number, optimizers)))
            yield replace(failure, fix=f"before  {line}\nafter   {line}, behind the replay, with {made}")
        elif failure.code == "scalar-frozen" and MOVED in failure.message:
            once = "cycle_momentum=False where the scheduler is made: no tensor can be one of these numbers"
            yield replace(failure, fix=f"before  {line}\nafter   {line}, behind the replay, with {once}")


def given_in_vain(
    region: Region, function: Callable[..., Any], given: Mapping[str, Any], steps: Iterable[Step], told: list[Failure]
) -> Iterator[Failure]:
    """Arguments that are only given a name which the graph read at its capture, by ``static_in = x``."""
    code = code_of(getattr(function, "forward", None) or function)
    if code is None or region.values is None:
        return
    read = {key for step in steps for key in step.outside}
    paths = {use.text for use in region.values.uses if is_a(use.value(), torch.Tensor)}
    known = {f.frame for f in told}
    nodes = [*nodes_of(code)]
    loaded = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    yield from (f for f in rebound_by_methods(region, function, given, read) if f.frame not in known)
    shared = {name for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
    for node in (n for n in nodes if isinstance(n, ast.Assign) and isinstance(n.targets[0], (ast.Name, ast.Attribute))):
        name, target = ast.unparse(node.value), ast.unparse(node.targets[0])
        value, frame = given.get(name), frame_at(code, node.lineno)
        is_given = is_a(value, torch.Tensor) and storage_key(value) not in read
        # A variable of the function's own that nobody reads has the name of what the graph reads.
        in_vain = isinstance(node.targets[0], ast.Name) and target not in loaded | shared
        if target in paths and (is_given or in_vain) and frame not in known:
            text = f"{target} is {name} from here on, and the graph reads the tensor of its capture"
            fix = f"before  {ast.unparse(node)}\nafter   {target}.copy_({name}), ahead of the replay"
            yield replace(BY_ID["stale-input"].failure(text, frame), fix=fix)


def carried_on(region: Region) -> Iterator[Failure]:
    """Tensors that a capture reads and then gives the name of another, so that each replay begins with the first."""
    yield from written_over(region)
    tree, bodies = tree_of(region.file or region.code.co_filename), [*bodies_of(region)]
    yield from entries_carried_on(bodies)
    within = {n for _, inside, _ in bodies for n in inside}
    outside = [n for n in every(tree) if n not in within] if tree is not None else []
    for code, inside, names in bodies:
        carried: dict[str, bool] = {}  # whether a path is read before it is given another tensor
        assigns = [n for n in inside if isinstance(n, ast.Assign)]
        for node in sorted(assigns, key=lambda n: n.lineno):
            yield from _of_data(code, node, region)
            for target in filter(is_place, elements_of(node.targets[0])):
                path, value = ast.unparse(target), Use(code, target, False, names).value()
                own = any(_reads(n, path) for n in ast.walk(node.value)) or made_of_itself(node, path, inside)
                first = own or any(_reads(n, path) and n.lineno < node.lineno for n in inside)  # type: ignore[attr-defined]
                kept = (own and outlives(target, inside)) or any(_writes(n, target) for n in outside)
                if not carried.setdefault(path, first and kept) or not is_a(value, torch.Tensor):
                    continue
                owner = Use(code, target, False, names).owner()
                others = ((lines, Use(c, target, False, n).owner() is owner) for c, lines, n in bodies if c is not code)
                if not any(same and begins_anew(lines, path) for lines, same in others):
                    text = f"{path} is another tensor from here on, and each replay reads the one of the capture"
                    frame = frame_at(code, node.lineno)
                    made = made_as(region, Use(code, target, False, names))
                    fix = _in_place(node, target, inside) + (f", and {made} where it is made" if made else "")
                    yield replace(BY_ID["stale-input"].failure(text, frame), fix=fix)
        added = [n for n in inside if isinstance(n, ast.AugAssign) and isinstance(n.target, (ast.Name, ast.Attribute))]
        yield from begun_as_numbers(region, ((n, Use(code, n.target, False, names)) for n in added))


def _of_data(code: CodeType, node: ast.Assign, region: Region) -> Iterator[Failure]:
    """``p.data = ...`` of a parameter, which each replay reads where it was at the capture."""
    target = node.targets[0]
    if isinstance(target, ast.Attribute) and target.attr == "data" and region.code.co_filename == code.co_filename:
        text = f"{ast.unparse(target)} has other memory from here on, and each replay reads that of the capture"
        fix = f"before  {ast.unparse(node)}\nafter   {ast.unparse(target)}.copy_({ast.unparse(node.value)})"
        yield replace(BY_ID["parameter-rebound"].failure(text, frame_at(code, node.lineno)), fix=fix)


def bodies_of(region: Region) -> Iterator[tuple[CodeType, list[ast.AST], Names]]:
    """The lines of a capture, and those of each function of the user's that it calls, with what names mean there."""
    tree = tree_of(region.file or region.code.co_filename)
    own = Names(region.space, own=frozenset(region.names), known=region.names)
    uses = region.values.uses if region.values is not None else []
    called = {use.code: use.names for use in uses if use.code is not region.code}
    beside = [] if called else [*_methods_of(region, tree)]  # as where the capture has failed
    yield region.code, [n for each in (*region.body, *beside) for n in ast.walk(each)], own
    yield from ((code, [*nodes_of(code)], names) for code, names in called.items())


def _in_place(node: ast.Assign, target: ast.expr, inside: list[ast.AST]) -> str:
    """An assignment, and the same into the tensors that were read; what a capture only makes has its name of it."""
    path, line = ast.unparse(target), ast.unparse(node)
    if target is node.targets[0] and isinstance(node.value, ast.Call) and last_name(node.value.func) in GROW:
        return f"before  {line}\nafter   {path} as large as it gets, made ahead of the capture: {ROWS}"
    if target is node.targets[0]:
        return f"before  {line}\nafter   {path}.copy_({ast.unparse(node.value)})"
    whole = copy.deepcopy(node)
    paths = [ast.unparse(each) for each in elements_of(node.targets[0])]
    if isinstance(whole.value, ast.Tuple):  # a, b = b, a: the first copy_() writes over what the second one reads
        exchanged = (ast.unparse(each) in paths for each in whole.value.elts)
        parts = zip(whole.value.elts, exchanged, strict=True)
        whole.value.elts = [ast.parse(f"{ast.unparse(p)}.clone()", mode="eval").body if x else p for p, x in parts]
        line = ast.unparse(whole)
    written = []
    for each in elements_of(whole.targets[0]):
        read = (_reads(n, ast.unparse(each)) and n.lineno <= node.lineno for n in inside)  # type: ignore[attr-defined]
        if not isinstance(each, ast.Name) and is_place(each) and any(read):
            old, new = ast.unparse(each), f"new_{named_as(each)}"
            written.append(f"{old}.copy_({new})")
            line = line.replace(old, new, 1)  # of the targets, which stand first
    return f"before  {ast.unparse(node)}\nafter   {line}; {'; '.join(written)}"


def written_in(region: Region) -> Iterator[tuple[str, torch.Tensor]]:
    """Paths that the lines of a capture, and of what it calls, write in place, or read and give another value."""
    yield from ((path, value) for _, path, value in writes_of(region))


def writes_of(region: Region) -> Iterator[tuple[ast.AST, str, torch.Tensor]]:
    """The same, with the lines that do."""
    for code, inside, names in bodies_of(region):
        for node, target in ((node, _written_by(node, inside)) for node in inside):
            value = Use(code, target, False, names).value() if target is not None else None
            if target is not None and is_a(value, torch.Tensor):
                yield node, ast.unparse(target), value


def _is_copy(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "copy_"


def _written_by(node: ast.AST, inside: list[ast.AST]) -> ast.expr | None:
    target: ast.expr | None = node.target if isinstance(node, ast.AugAssign) else None
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Assign):
        path = ast.unparse(node.targets[0])
        first = (n.lineno <= node.lineno for n in inside if _reads(n, path))  # type: ignore[attr-defined]
        held = node.targets[0].value if isinstance(node.targets[0], ast.Subscript) else None  # x[:n] = ...
        target = held or (node.targets[0] if any(first) else None)
    elif isinstance(func, ast.Attribute) and func.attr.endswith("_") and not func.attr.startswith("_"):
        target = func.value
    while isinstance(target, ast.Subscript) and not isinstance(node, ast.Assign):  # x[0].copy_(y) is a part of x
        target = target.value
    return target if isinstance(target, (ast.Name, ast.Attribute)) else None


def _methods_of(region: Region, tree: ast.Module | None) -> Iterator[ast.stmt]:
    """Lines of methods of the same object that a capture calls: ``self.step()``."""
    calls = [n.func for each in region.body for n in ast.walk(each) if isinstance(n, ast.Call)]
    names = {n.attr for n in calls if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "self"}
    for node in (n for n in every(tree) if isinstance(n, ast.ClassDef)) if tree is not None and names else ():
        methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        if any(set(region.body) & set(ast.walk(n)) for n in methods):
            yield from (line for n in methods if n.name in names for line in n.body)


def _reads(node: ast.AST, path: str) -> bool:
    kinds = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Load)
    return kinds and ast.unparse(node) == path


def _writes(node: ast.AST, target: ast.expr) -> bool:
    """``flow.copy_(...)``, of an attribute also by another name of its object."""
    func = node.func if isinstance(node, ast.Call) else None
    if not isinstance(func, ast.Attribute) or not func.attr.endswith("_"):
        return False
    if isinstance(target, ast.Attribute):
        return isinstance(func.value, ast.Attribute) and func.value.attr == target.attr
    return isinstance(target, ast.Name) and isinstance(func.value, ast.Name) and func.value.id == target.id


def _only_replaying(plain: Any, decorated: Any) -> Any:
    """A function under a decorator, where its class captures when an object is made; else the decorated one.

    What a call of it captures is seen there, or is told better by what is gone.
    """
    code = code_of(plain)
    tree = tree_of(code.co_filename) if code is not None else None
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)) if tree is not None else ():
        methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
        own = methods.get(getattr(plain, "__name__", ""))
        if (
            own is None
            or code is None
            or not own.lineno <= code.co_firstlineno + len(own.decorator_list) <= (own.end_lineno or 0)
        ):
            continue
        made = methods.get("__init__")
        called = {n.func.attr for n in ast.walk(own) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
        return (
            plain
            if made is not None and not any(_captures_in(methods[n]) for n in {own.name, *called} & {*methods})
            else decorated
        )
    return decorated


def _captures_in(method: ast.FunctionDef) -> bool:
    calls = [n for n in ast.walk(method) if isinstance(n, ast.Call)]
    return any(last_name(n.func) in (*CAPTURES, "capture_begin", GRAPHED) for n in calls)


def _regions(function: Callable[..., Any], kind: str, given: list[Any]) -> Iterator[Region]:
    """The captures in the file of a function, or of an object that it can name, at its top or in a method of one."""
    own = unwrap(getattr(function, "forward", None) or function)
    plain = own if isinstance(own, FunctionType) else getattr(own, "__func__", None) or type(own).__call__
    if is_library(getattr(getattr(plain, "__code__", None), "co_filename", "")):
        plain = _only_replaying(unwrap(plain), plain)  # under torch.no_grad()
    code, space = getattr(plain, "__code__", None), getattr(plain, "__globals__", None)
    if not isinstance(code, CodeType) or space is None or is_library(code.co_filename):
        return
    cells = cells_of(plain) if is_a(plain, FunctionType) else {}
    held = [own, *given, *(cell.cell_contents for cell in cells.values())]
    seen = set[int]()
    yield from _regions_in(code.co_filename, space, [function, *held], held, kind, seen)
    others = _files_of([function, *held, *space.values()])
    for file, names in ((file, names) for file, names in others.items() if file != code.co_filename):
        yield from _regions_in(file, names, [function, *held, *space.values()], held, kind, seen)


def _files_of(values: list[Any]) -> dict[str, dict[str, Any]]:
    """The user's files that the classes of objects are defined in, each with what its names mean."""
    found = dict[str, dict[str, Any]]()
    for each in reachable(values):
        kind: Any = type(each)
        for method in methods_by_user(kind):
            found.setdefault(method.__code__.co_filename, method.__globals__)
    return found


def _regions_in(
    file: str, space: dict[str, Any], roots: list[Any], held: list[Any], kind: str, seen: set[int]
) -> Iterator[Region]:
    """The captures in one file."""
    tree = tree_of(file)
    if tree is None or is_made_of(file):
        return
    managers = managers_in(tree)
    captures = partial(captures_of, managers=managers)
    blocks = list(captures(tree.body, None))
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name not in managers]
    makers = [n for n in functions if any(captures(n.body, None))]
    if not blocks and not makers:
        return  # all that the function can name need not be looked at
    objects = {id(each): each for each in _objects([*roots, *space.values()], file)}
    graphed = dict[ast.stmt, CodeType]()
    for block, method in blocks:
        for names, at in _scopes(tree, method, space, [*objects.values()], file):
            if graphs_made(block) is None:
                body = method.body if method is not None else tree.body
                made_at = partial(region_at, at, kind=kind, space=space)
                yield from _with_tables(block, body, names, made_at, seen, managers)
            else:
                regions = [*_by_torch(block, names, at, kind, space)]
                seen |= {id(region.graph) for region in regions}
                graphed[block] = at
                yield from regions
    known = [*held, *space.values()]
    known += [each for value in known for each in attributes_of(value).values()]
    for maker in makers:
        value = space.get(maker.name)
        whole = unwrap(value) if is_a(value, FunctionType) else None
        made = [*made_by(maker, tree, space, known, [*objects.values()])]
        made += [Made(whole.__code__, {})] if is_a(whole, FunctionType) else []
        for each in made:
            hidden = {*each.code.co_varnames, *each.code.co_cellvars}
            names = {name: value for name, value in space.items() if name not in hidden} | each.names
            graphed |= {n: each.code for n, _ in captures(maker.body, None) if graphs_made(n) is not None}
            for block in (n for n, _ in captures(maker.body, None) if graphs_made(n) is None):
                region = partial(region_at, each.code, kind=kind, space=space, cells=each.cells)
                yield from _with_tables(block, maker.body, names, region, seen, managers)
    if graphed:
        yield from graphed_elsewhere([*graphed.items()], [*known, *objects.values()], seen, kind, space)


def _with_tables(
    block: ast.stmt,
    body: list[ast.stmt],
    names: dict[str, Any],
    made: Callable[..., Region],
    seen: set[int],
    managers: Mapping[str, str | int],
) -> Iterator[Region]:
    """The graph that a block captures by the name that it has now, and those that have gone into a table."""
    graph = graph_of(block, managers)
    loops = [n for s in body for n in ast.walk(s) if isinstance(n, LOOPS) and block in ast.walk(n)]
    own = stored_in(loops)  # which mean what they did in the last round
    rest = {name: value for name, value in names.items() if name not in own}
    tables = [*kept_in(body, graph, names, {})]
    last = [names] if not loops or not tables else []
    for known in (*last, *(rest | each for each in tables)):
        value = graph_at(graph, known)
        if is_graph(value) and id(value) not in seen:
            seen.add(id(value))
            yield made(block.lineno, known, value, unknown=frozenset() if known is names else own)


def _by_torch(
    node: ast.stmt, names: dict[str, Any], at: CodeType, kind: str, space: dict[str, Any]
) -> Iterator[Region]:
    """Callables that torch has graphed: modules in place, functions under the name that they were given."""
    call = graphs_made(node)
    targets = list(elements_of(node.targets[0])) if isinstance(node, ast.Assign) else []
    for number, given in enumerate(elements_of(call.args[0]) if call is not None else ()):
        value = _made_of(given, names, space, at) if isinstance(given, ast.Lambda) else path_value(given, names, space)
        is_module = is_a(value, torch.nn.Module)
        result = value if is_module else path_value(targets[number], names, space) if number < len(targets) else None
        found = graphed_by_torch(result)
        if found is None:
            continue
        function = found.original if is_module else value
        if graphed_by_torch(function) is not None:  # its name means what torch has made of it
            function = defined_in(at.co_filename, given.id, space) if isinstance(given, ast.Name) else None
        region = region_at(at, node.lineno, names, found.graphs[0], kind, space)
        if function is not None:
            region.graphed(function, found.args, found.graphs)
        yield region


def _made_of(node: ast.Lambda, names: dict[str, Any], space: dict[str, Any], at: CodeType) -> Any:
    """A nameless function with what its names mean where it stands."""
    read = sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & names.keys())
    own = {name: names[name] for name in read if names[name] is not space.get(name)}
    return made_again(node, own, space, at.co_filename)


def _objects(values: list[Any], file: str) -> Iterator[Any]:
    """Objects of classes of a file, and what these have as attributes."""
    for each in reachable(values):
        if any(c.co_filename == file for c in methods_of(type(each)).values()):
            yield each


def _scopes(
    tree: ast.Module, method: ast.FunctionDef | None, space: dict[str, Any], objects: list[Any], file: str
) -> Iterator[tuple[dict[str, Any], CodeType]]:
    """What the names of a block mean, and the code that it stands in: once for each object that has the method."""
    if method is None:
        yield dict(space), compile("", file, "exec")  # whose name and file count
        return
    for owner in objects:
        code = methods_of(type(owner)).get(method.name)
        if code is not None and code.co_filename == file and code.co_firstlineno <= method.lineno:
            own = {method.args.args[0].arg: owner, **_kept_by_owner(method, owner)}
            for given in given_to_method(method, tree, space, owner, code):
                yield {**space, **given, **own}, code
            yield {**space, **own}, code


def _itself(value: ast.expr) -> ast.expr:
    """What a call that gives back the module it is asked of is asked of: ``net`` of ``net.to(device).eval()``."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _GIVE_THEMSELVES:
        value = value.func.value
    return value


def _kept_by_owner(method: ast.FunctionDef, owner: Any) -> dict[str, Any]:
    """What variables of a method meant that its object keeps: ``self.net = net``, ``net = self.net``, if one each."""
    held, own = attributes_of(owner), method.args.args[0].arg
    nodes = [n for s in method.body for n in here(s, FUNCTIONS)]
    stored = [ast.unparse(n) for n in nodes if isinstance(getattr(n, "ctx", None), ast.Store)]
    given = {each.arg for each in (*method.args.args, *method.args.kwonlyargs)}
    found: dict[str, Any] = {}
    for node in (n for n in nodes if isinstance(n, ast.Assign)):
        targets = [[*elements_of(each)] for each in node.targets]
        values = [*elements_of(node.value)] if any(len(each) > 1 for each in targets) else [node.value]
        for each in (each for each in targets if len(each) == len(values)):
            for target, value in zip(each, values, strict=True):
                path, value = ast.unparse(target), _itself(value)
                if isinstance(target, ast.Name) and isinstance(value, (ast.Name, ast.Attribute)):
                    is_held = stored.count(path) == 1 and path not in given and ast.unparse(value) not in stored
                    meant = path_value(value, {own: owner, **found}, {}) if is_held else NOTHING
                    found |= {path: meant} if meant is not NOTHING else {}
                if not isinstance(value, ast.Name) or not path.startswith(f"{own}.") or stored.count(path) != 1:
                    continue
                if value.id == own:  # ``self.loss = self.train()``, a method of its own
                    continue
                once = stored.count(value.id) + (value.id in given) == 1
                if (
                    once
                    and isinstance(target, ast.Attribute)
                    and target.attr in held
                    and path == f"{own}.{target.attr}"
                ):
                    found[value.id] = held[target.attr]
    return found


def _has_number(optimizer: torch.optim.Optimizer) -> bool:
    return any(isinstance(group.get("lr"), float) for group in optimizer.param_groups)
