"""What a graph still reads of the host's that is given another value behind its launch: it would stay as it was."""

from __future__ import annotations

import ast
import builtins
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.rewrite.around.crossing import is_property
from paramgraph_kit.rewrite.made_tensors import always_tensors, made_as_tensors, slot_of
from paramgraph_kit.rewrite.memory_moved import bound_by_text, is_data
from paramgraph_kit.rewrite.memory_owners import memory_read
from paramgraph_kit.rewrite.source.attribute_owners import plain, tell_apart
from paramgraph_kit.rewrite.source.edits import Function, assigned, functions_of, locals_of, path_of, within
from paramgraph_kit.rewrite.source.modes import set_for_good, told_of
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.source.writes import CHANGES, MODULES, only_added_to

_KINDS = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, dict, list, set, deque, str)  # with methods

Read = tuple[str, object]  # a name, and the key of the entry that is meant, if it is one
_ENTRY, _LENGTH = object(), object()  # as such keys: an entry whose key no text tells, and how many a list has


def frozen(
    lines: list[str],
    moved: Collection[str],
    ran: Collection[str],
    containers: Collection[str],
    rates: bool = False,
    tensors: Collection[str] = (),
    same: Mapping[str, str] = MappingProxyType({}),
    is_shared: Callable[[Collection[str]], bool] = lambda _: True,
    lists: Collection[str] = (),
) -> str:
    """The name of something that functions ``moved`` rebind, and functions that a graph has ``ran`` read, or "".

    ``ran`` are qualified names, ``containers`` the names of lists, sets and dictionaries. Steps that are tried may not
    show it: a number may have come to its end before the capture. ``rates``: learning rates are tensors, which can be
    written in place; ``tensors``: names of variables that are tensors, whose parts are, and of attributes, with a dot;
    ``same``: other names of what several names have; ``is_shared``: whether what these names have is had by others too;
    ``lists``: those of ``containers`` that have as many entries where one is written.
    """
    tree = ast.parse("".join(lines))
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    around, inside, stay, reached, binding = _sides(tree, functions, moved, ran)
    tell_apart(tree, [*stay, *binding], {name.lstrip(".") for name in (*containers, *tensors, *same)})
    if any(map(_steps, stay)) and any(_groups(each, rates) for each in reached):
        return ".param_groups"  # an optimizer's step reads them, wherever that is written
    if mode := set_for_good(stay, binding)[0]:
        return f".{mode}"
    if stay and (name := memory_read(tree, functions, binding, stay, is_shared)):
        return name
    tensors = always_tensors(tree, tensors)
    bound = {name for each in binding for name in _bound(each, containers, tensors)}
    bound |= {name for each in binding for name in _bound_of_others(functions, each, each.body) if name[0] in same}
    for function in stay:
        if read := _met(bound, set(_read(function, _unread(function, inside, tree), around, lists)), same):
            return plain(min(read))
    if any(each.name == "__call__" for each in reached):  # of objects, whose own lines may all be behind
        for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            calls = [part for part in owner.body if isinstance(part, Function) and part.name == "__call__"]
            changed = {name for each in calls for name in _bound(each, containers, tensors)}
            for function in (each for each in stay if each not in owner.body):
                if read := _met(changed, set(_read(function, lists=lists)), same):
                    return plain(min(read))
    return ""


def mode_set(lines: list[str], moved: Collection[str], ran: Collection[str]) -> str:
    """What to do where functions around a launch set modules for good: ``net.eval()``."""
    tree = ast.parse("".join(lines))
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    _, _, stay, _, binding = _sides(tree, functions, moved, ran)
    return told_of(set_for_good(stay, binding)[1])


def _sides(
    tree: ast.Module, functions: list[Function], moved: Collection[str], ran: Collection[str]
) -> tuple[set[str], list[Function], list[Function], list[Function], list[Function]]:
    """What is around a launch alone, what is in it and stays there, and what ``moved`` come to and bind in."""
    around = _only_around(tree, functions, moved)
    inside = [each for each in functions_of(tree, ran) if each.name not in around]
    # `y.sum() > 0 and self.is_late()` has not run all of it while it was seen, and on the device it does.
    named = [each.name for each in functions]
    entries = {each.name for each in inside} - {called(call) for each in inside for call in _calls(each.body)}
    more = _reached(functions, {each.name for each in inside} - set(moved))
    # But `opt.step()` of a part is not the `step` that comes to that.
    above = _above(functions, entries)
    more = [each for each in more if each in inside or each.name not in above]
    inside += [each for each in more if each not in inside and each.name not in around and named.count(each.name) == 1]
    stay = [each for each in inside if each.name not in moved]
    reached = _reached(functions, moved)
    # What the graph seems to have, too, as `__init__` calls it or other steps do, runs around launches all the same.
    own = {each.name for each in _called_for_sure(functions, moved)}
    own -= _above(functions, entries - own)
    return around, inside, stay, reached, [x for x in reached if x.name in {*moved, *own} or x not in stay]


def called_by(lines: list[str], names: Collection[str]) -> set[str]:
    """The names of functions and of those of the file that they call."""
    functions = [node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, Function)]
    return {each.name for each in _reached(functions, names)}


def _above(functions: list[Function], names: Collection[str]) -> set[str]:
    """Some names with those of the functions of the file that come to them."""
    calls, found = dict[str, set[str]](), set(names)
    for each in functions if names else ():
        calls.setdefault(each.name, set()).update(map(called, _calls(each.body)))
    while more := {name for name, own in calls.items() if own & found} - found:
        found |= more
    return found


def moved_around(
    lines: list[str],
    function: str,
    inner: str,
    containers: Collection[str],
    moved: Collection[str],
    ran: Collection[str],
    rates: bool = False,
    same: Mapping[str, str] = MappingProxyType({}),
    is_shared: Callable[[Collection[str]], bool] = lambda _: True,
) -> tuple[str, set[str]]:
    """The name of something that a function rebinds around one that it calls, which reads it, or "".

    ``moved`` are names of what was seen to move, by whatever lines, and ``ran`` the qualified names of what ran in the
    inner one: ``x.update()`` alone may be anybody's; ``rates``: learning rates are tensors; ``same``: other names of
    what several names have. Also what is bound before the loop alone, and read in it: it is another one in each call of
    the function, and stays in its rounds.
    """
    tree = ast.parse("".join(lines))
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    named = [each.name for each in functions]
    tensors = made_as_tensors(tree)
    inside = functions_of(tree, ran)
    inside += [each for each in functions if each.name == inner and each not in inside]
    # A way that no round has taken may read it, too; but `opt.step()` of a round is not the `step` that it is of.
    above = _above(functions, {function})
    more = _reached([each for each in functions if each.name not in above], {each.name for each in inside})
    inside += [each for each in more if each not in inside and named.count(each.name) == 1]
    read = {name for each in inside for name, _ in _read(each, only_added_to(each.body))}
    read |= {name for name, first in same.items() if first in {same.get(each) for each in read}}
    beside = [each for each in _reached(functions, {function}) if each not in inside]
    if any(map(_steps, inside)) and any(_groups(each, rates) for each in beside):
        return "param_groups", set()  # an optimizer's step reads them, wherever that is written
    wholes = [each for each in functions if each.name == function]
    if mode := set_for_good(inside, beside, [each for whole in wholes for each in _ahead(whole, inner)])[0]:
        return mode, set()
    if inside and (name := memory_read(tree, functions, beside, inside, is_shared)):
        return name, set()
    begun = set[str]()
    rest = set(moved) - {name for each in inside for name, _ in _bound(each, containers, tensors)}
    for whole in wholes:
        ahead = _ahead(whole, inner)
        for part, names in ((ahead, begun), (whole.body[len(ahead) :], rest)):
            around = _reached(functions, {*map(called, _calls(part))})
            names.update(name for each in around if each not in inside for name, _ in _bound(each, containers, tensors))
            names.update(name for name, _ in _bound_in(part, locals_of(whole), containers, tensors))
            bodies = [(whole, part), *((each, each.body) for each in around if each not in inside)]
            others = (each for one, body in bodies for each in _bound_of_others(functions, one, body))
            names.update(name for name, _ in others if name in same)
    return min(rest & read, default=""), (begun - rest) & read


def set_around(trees: Iterable[ast.Module], function: str, inner: str, tensors: Collection[str] = ()) -> set[str]:
    """Variables, and attributes with a dot, that a function and those that it calls bind, but for ``inner``."""
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, Function)]
    inside = _reached(functions, {inner})
    around = [each for each in _reached(functions, {function}) if each not in inside]
    return {name for each in around for name, _ in _bound(each, (), tensors)}


def still_read(lines: list[str], inner: str, ran: Collection[str], names: Iterable[str]) -> set[str]:
    """Which of some names a function reads, or what ran in it."""
    tree = ast.parse("".join(lines))
    inside = [*functions_of(tree, ran), *(n for n in tree.body if isinstance(n, Function) and n.name == inner)]
    return {name for each in inside for name, _ in _read(each)} & {*names}


def _ahead(whole: Function, inner: str) -> list[ast.stmt]:
    """What a function does before it comes to where it calls another one."""
    at = next((n for n, top in enumerate(whole.body) if inner in map(called, _calls([top]))), 0)
    return whole.body[:at]


def _is_an_object(func: ast.expr, local: Collection[str]) -> bool:
    """Whether what is called may be a module by a name that gets another one: ``self.target(x)``, ``target(x)``."""
    if isinstance(func, ast.Name):
        return func.id not in local and not hasattr(builtins, func.id)
    if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name):
        return False
    return func.value.id == "self" or not any(hasattr(kind, func.attr) for kind in _KINDS)


def one_name(space: Mapping[str, Any], holders: Iterable[Holder]) -> dict[str, str]:
    """By which of its names each list, dictionary or array is known that has several: ``log = state``.

    Those of attributes begin with a dot.
    """
    owned = (
        (f".{name}", value) for each in holders if each.kind == "attributes" for name, value in each.target.items()
    )
    first, same = dict[int, str](), dict[str, str]()
    for name, value in (*space.items(), *owned):
        if isinstance(value, (dict, list, set, deque, np.ndarray)):
            one = first.setdefault(id(value), same.get(name, name))
            if (other := same.setdefault(name, one)) != one:  # attributes of this name are several
                first |= {key: one for key, known in first.items() if known == other}
                same |= {key: one for key, known in same.items() if known == other}
    return same


def _met(bound: Collection[Read], read: Collection[Read], same: Mapping[str, str]) -> set[str]:
    """The names of which something is bound and read: an entry, or all of it."""
    bound, read = ({(same.get(name, name), key) for name, key in each} for each in (bound, read))
    whole = {name for name, key in read if key is None}
    entries = {(name, key) for name, key in read} | {(name, None) for name, _ in read}
    entries |= {(name, _ENTRY) for name, key in read if key is not _LENGTH}
    return {name for name, key in bound if name in whole or (name, key) in entries}


def _key(node: ast.Subscript) -> object:
    """The key of ``state["missed"]``; None where it is none that the text tells, or all of an array, ``[...]``."""
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return None if key is Ellipsis else key


def _is_one(index: ast.expr) -> bool:
    """Whether an index means one entry: not a part of a list, which may get longer, or all."""
    return isinstance(index, (ast.Name, ast.Attribute, ast.BinOp, ast.Subscript, ast.UnaryOp))


def _calls(part: Iterable[ast.stmt]) -> list[ast.Call]:
    return [n for top in part for n in within(top) if isinstance(n, ast.Call)]


def only_around(tree: ast.Module, moved: Collection[str]) -> set[str]:
    """Functions that those around the launch call, and that nothing else in the file has a name of."""
    return _only_around(tree, [node for node in ast.walk(tree) if isinstance(node, Function)], moved)


def _only_around(tree: ast.Module, functions: list[Function], moved: Collection[str]) -> set[str]:
    """The same, of the functions that a file has."""
    around = [part for each in functions if each.name in moved for part in ast.walk(each)]
    read = {part.attr for part in around if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Load)}
    names = {*moved, *(each.name for each in functions if each.name in read and is_property(each))}
    found = [each for each in _reached(functions, names) if each.name != "forward" and not each.name.startswith("__")]
    lists = {path_of(each.iter) for each in around if isinstance(each, ast.For)}
    appends = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and called(n) == "append"]
    put_off = {given for n in appends if path_of(n.func).rpartition(".")[0] in lists for given in n.args}
    while True:
        inside = {part for each in found for part in ast.walk(each)} | put_off
        rest = [n for n in ast.walk(tree) if isinstance(n, (ast.Name, ast.Attribute)) and n not in inside]
        named = {n.id if isinstance(n, ast.Name) else n.attr for n in rest}
        left = [each for each in found if each.name not in named or each.name in moved]
        if len(left) == len(found):
            return {each.name for each in found} - set(moved)
        found = left


def _steps(function: Function) -> bool:
    """Whether a function takes a step of something, as an optimizer's is."""
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(isinstance(func, ast.Attribute) and func.attr == "step" for func in calls)


def _reached(functions: list[Function], names: Collection[str]) -> list[Function]:
    """The functions with these names, and those of the file that they call; a property is none that is called."""
    functions = [each for each in functions if each.name in names or not is_property(each)]
    known = {each.name for each in functions}

    def meant(calls: list[ast.Call]) -> set[str]:
        objects = any(_may_be_an_object(node.func, known) for node in calls)
        return {*map(called, calls), *(["__call__"] if objects else [])}

    return _with_called(functions, names, meant)


def _called_for_sure(functions: list[Function], names: Collection[str]) -> list[Function]:
    """The same, but of calls whose name and ``self`` leave no other object's function to mean."""
    named = [each.name for each in functions]

    def meant(calls: list[ast.Call]) -> set[str]:
        own = {path_of(node.func).removeprefix("self.") for node in calls}
        return {name for name in own if named.count(name) == 1}

    return _with_called(functions, names, meant)


def _with_called(
    functions: list[Function], names: Collection[str], meant: Callable[[list[ast.Call]], set[str]]
) -> list[Function]:
    """Functions with these names, those that their calls mean, and so on."""
    found, wanted = list[Function](), set(names)
    while more := [each for each in functions if each.name in wanted and each not in found]:
        found += more
        wanted |= meant([node for each in more for node in ast.walk(each) if isinstance(node, ast.Call)])
    return found


def _may_be_an_object(func: ast.expr, functions: Collection[str]) -> bool:
    """Whether what is called is none of the file's functions, of Python's, or of a library's."""
    path = path_of(func)
    own = bool(path) and path.rpartition(".")[2] not in functions and not hasattr(builtins, path)
    method = isinstance(func, ast.Attribute) and (hasattr(torch.Tensor, func.attr) or func.attr in CHANGES)
    return own and not method and path.partition(".")[0] not in MODULES


def _groups(function: Function, rates: bool) -> bool:
    """Whether a function gives another number to a group of an optimizer's parameters."""
    every = [part for top in function.body for part in within(top)]
    names = set[str]()
    for node in every:
        given = node.iter if isinstance(node, ast.For) else node.value if isinstance(node, ast.Assign) else None
        if given is not None and has_groups(given):
            targets = [node.target] if isinstance(node, ast.For) else getattr(node, "targets", [])
            names |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    for node in every:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign) else targets
        for target in targets:
            if not isinstance(target, ast.Subscript) or not (has_groups(target) or path_of(target) in names):
                continue
            rate = isinstance(target.slice, ast.Constant) and target.slice.value == "lr"
            if not (rates and rate and isinstance(node, ast.AugAssign)):
                return True
    return False


def has_groups(node: ast.expr) -> bool:
    """Whether an expression has the groups of an optimizer's parameters in it."""
    return any(isinstance(n, ast.Attribute) and n.attr == "param_groups" for n in ast.walk(node))


def _bound(function: Function, containers: Collection[str], tensors: Collection[str] = ()) -> Iterator[Read]:
    """Variables around a function, and attributes, that it gives another value."""
    yield from _bound_in(function.body, locals_of(function), containers, tensors)


def _bound_of_others(functions: list[Function], function: Function, body: list[ast.stmt]) -> Iterator[Read]:
    """Entries of what a function has by a name of its own: ``s["n"] = 0`` of ``def note(s)``, by ``note(state)``."""
    for node in (part for top in body for part in within(top)):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign) else targets
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            yield from ((name, None) for name in _meant(functions, function, path_of(node.func.value)))
        for target in (n for each in targets for n in ast.walk(each) if isinstance(n, ast.Subscript)):
            yield from ((name, _key(target)) for name in _meant(functions, function, path_of(target.value)))


def _meant(functions: list[Function], function: Function, name: str, seen: frozenset[object] = frozenset()) -> set[str]:
    """What around a function a name of its own may be: what it is assigned, and what calls give for it."""
    if (function, name) in seen or name not in locals_of(function):
        return set()
    given = [n.value for n in ast.walk(function) if isinstance(n, ast.Assign) and name in map(path_of, n.targets)]
    values = [(function, value) for value in given]
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    for caller in functions if name in names else ():
        for call in (n for n in ast.walk(caller) if isinstance(n, ast.Call) and called(n) == function.name):
            at = names.index(name) - (names[0] == "self" and isinstance(call.func, ast.Attribute))
            values += [(caller, call.args[at])] if 0 <= at < len(call.args) else []
            values += [(caller, option.value) for option in call.keywords if option.arg == name]
    found = set[str]()
    for caller, value in values:
        first, dot, _ = (path := path_of(value)).partition(".")
        if dot:
            found.add(f".{path.rpartition('.')[2]}")
        elif first in locals_of(caller):
            found |= _meant(functions, caller, first, seen | {(function, name)})
        elif first:
            found.add(first)
    return found


def _bound_in(
    body: Iterable[ast.stmt], local: Collection[str], containers: Collection[str], tensors: Collection[str] = ()
) -> Iterator[Read]:
    for node in (part for top in body for part in within(top)):
        if name := bound_by_text(node):
            yield f".{name}", None
        targets = node.targets if isinstance(node, ast.Assign) and not _stays_where_it_is(node) else []
        targets = [node.target] if isinstance(node, ast.AugAssign) and not _is_in_place(node, tensors) else targets
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            changed = path_of(node.func.value).rpartition(".")[2]
            targets = [node.func.value] if changed in containers else []
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Subscript) and {path_of(each), slot_of(each.value)} & {*tensors}:
                    continue
                key = None
                while isinstance(each, ast.Subscript):
                    key = _key(each)
                    key = _ENTRY if key is None and _is_one(each.slice) else key
                    each = each.value
                if isinstance(each, ast.Name) and each.id not in local:
                    yield each.id, key
                elif isinstance(each, ast.Attribute) and not is_data(each):  # of which `memory_moved` tells
                    yield f".{each.attr}", key


def _stays_where_it_is(node: ast.Assign) -> bool:
    """``h = h.detach()`` and ``h = tuple(s.detach() for s in h)``: other tensors, of the memory that a graph writes."""
    value, path = node.value, path_of(node.targets[0])
    if isinstance(value, ast.Call) and path_of(value.func) in ("tuple", "list") and len(value.args) == 1:
        value = value.args[0]
    if isinstance(value, (ast.GeneratorExp, ast.ListComp)):
        loop = value.generators[0]
        if len(value.generators) > 1 or loop.ifs or path_of(loop.iter) != path:
            return False
        value, path = value.elt, path_of(loop.target)
    method = value.func if isinstance(value, ast.Call) and called(value) == "detach" else None
    return bool(path) and isinstance(method, ast.Attribute) and path_of(method.value) == path


def _is_in_place(node: ast.AugAssign, tensors: Collection[str]) -> bool:
    """``p.grad /= scale``, which writes where the gradient lies, and ``self.pos += 1`` of what is always a tensor."""
    target = node.target
    if isinstance(target, ast.Attribute) and target.attr in ("grad", "data"):
        return True
    return slot_of(target) in tensors


def _unread(function: Function, ran: list[Function], tree: ast.Module) -> set[ast.expr]:
    """Arguments of calls that what is called never reads, as a trainer's hooks get the number of the batch."""
    found: set[ast.expr] = set()
    for node in (part for top in function.body for part in within(top)):
        if not isinstance(node, ast.Call) or any(isinstance(each, ast.Starred) for each in node.args):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        called = [each for each in ran if each.name == name]
        bound = not called or isinstance(node.func, ast.Attribute)
        called = called or [each for each in _calls_of(tree, name) if each in ran]
        for number, given in enumerate(node.args):
            found |= {given} if called and not any(_takes(each, number, bound=bound) for each in called) else set()
    return found


def _calls_of(tree: ast.Module, name: str) -> list[Function]:
    """What runs where an object of one of the file's classes is called: ``crit(s, t)`` of ``crit = Loss(6).to(d)``."""
    made = {each.name: each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)}
    given = [pair for node in ast.walk(tree) for pair in assigned(node) if last_name(pair[0]) == name]
    stores = (n for n in ast.walk(tree) if isinstance(getattr(n, "ctx", None), ast.Store) and last_name(n) == name)
    kinds = {_class_of(value) for _, value in given}
    if len(kinds) != 1 or len(list(stores)) != len(given) or (owner := made.get(kinds.pop())) is None:
        return []
    return [each for each in owner.body if isinstance(each, Function) and each.name in ("forward", "__call__")]


def _class_of(value: ast.expr) -> str:
    """``Loss`` of ``Loss(6).to(device)``."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    return value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""


def _takes(function: Function, number: int, *, bound: bool) -> bool:
    """Whether a function reads the argument with that number, as far as its text tells."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] == ["self"] and bound else names
    every = {n.id for part in function.body for n in ast.walk(part) if isinstance(n, ast.Name)}
    return number >= len(names) or names[number] in every or bool(every & {"locals", "eval", "exec", "vars"})


def _read(
    function: Function, unread: Collection[ast.expr] = (), apart: Collection[str] = (), lists: Collection[str] = ()
) -> Iterator[Read]:
    """Variables around a function, and attributes, that it reads; ``apart`` are functions that it only defines."""
    local = locals_of(function)
    tops = [top for top in function.body if not (isinstance(top, Function) and top.name in apart)]
    every = [part for top in tops for part in within(top)]
    methods = {node.func for node in every if isinstance(node, ast.Call) and not _is_an_object(node.func, local)}
    keys: dict[ast.AST, object] = {node.value: _key(node) for node in every if isinstance(node, ast.Subscript)}
    sized = (n.args[0] for n in every if isinstance(n, ast.Call) and path_of(n.func) == "len" and len(n.args) == 1)
    keys |= {one: _LENGTH for one in sized if last_name(one) in lists}
    for node in every:
        if node in methods or node in unread:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in local:
            yield node.id, keys.get(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield f".{node.attr}", keys.get(node)
