"""State that each step hands on to the next: it stays in its memory, which the end of the step writes.

``out, hidden = rnn(x, hidden.detach())`` with a ``hidden`` around the function becomes a local ``hidden_now`` that
begins as ``hidden`` and is copied into it before the function returns; ``p.data = v`` becomes ``p.data.copy_(v)``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from paramgraph_kit.doctor.observe.held import attribute_of
from paramgraph_kit.rewrite.expressions.state.begins import MAKERS, begins_as, is_none
from paramgraph_kit.rewrite.expressions.state.swapped import is_read_later, swapped
from paramgraph_kit.rewrite.proving.proof import Prover
from paramgraph_kit.rewrite.source.edits import Edit, Function, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, fewer_globals, is_kept
from paramgraph_kit.rewrite.source.place import Place, called, fresh, target_of
from paramgraph_kit.rewrite.source.pure import is_pure

_NAMED = re.compile(r"(?<![\w.])([A-Za-z_]\w*) gets another at ")
_VIEWS = frozenset(  # perhaps
    ("cpu", "cuda", "detach", "double", "float", "reshape", "squeeze", "to", "view", "view_as")
)
_MAKERS = frozenset(
    ("__init__", "register", "reset", "reset_state", "init_hidden")
)  # what they do is done outside the step


def hand_on(place: Place) -> list[Edit]:
    """Variables that a function exchanges are local to it until its end.

    ``return h.detach()`` of a helper that is given one is where it is read first: those that call it exchange it.
    """
    seen, waiting = set[str](), [place.statement]
    while waiting:
        statement = waiting.pop(0)
        if edits := _local_until_the_end(replace(place, statement=statement)):
            return edits
        function = place.source.function_of(statement)
        if function is not None and function.name not in {place.entry, *seen}:
            seen.add(function.name)
            calls = (n for n in place.source.parents if isinstance(n, ast.Call) and called(n) == function.name)
            waiting += [place.source.statement_of(n) for n in calls if place.source.function_of(n) is not None]
    return []


def _local_until_the_end(place: Place) -> list[Edit]:
    source, function = place.source, place.source.function_of(place.statement)
    if function is None or isinstance(function, ast.AsyncFunctionDef) or function.name in MAKERS:
        return []  # a new object has nothing to begin with
    every = [node for part in function.body for node in within(part)]
    last = function.body[-1]
    while isinstance(last, ast.With):
        last = last.body[-1]
    returns = [n for n in every if isinstance(n, ast.Return)]
    nested = any(isinstance(n, (Function, ast.Lambda, ast.ClassDef)) for part in function.body for n in ast.walk(part))
    if nested or any(n is not last for n in returns) or any(isinstance(n, (ast.Yield, ast.Try)) for n in every):
        return []
    names = [n for n in every if isinstance(n, (ast.Name, ast.Attribute))]
    taken = names_in(source.tree) | locals_of(function)
    begin, end, edits, gone, carried = list[str](), list[str](), list[Edit](), set[ast.AST](), list[str]()
    for path in dict.fromkeys(ast.unparse(n) for n in names if isinstance(n.ctx, ast.Store)):
        at = [n for n in names if _is(n, path)]
        if not _is_carried(place, function, path, at) or _is_handed_on(path, every):
            continue
        now = fresh(f"{path.rpartition('.')[2]}_now", taken)
        taken.add(now)
        carried.append(path)
        begin.append(f"{now} = {path}")
        one = isinstance(held_by(place, path), torch.Tensor)
        wide = f".view_as({path})" * _is_made_anew(place, every, path)
        hand = [f"{path}.copy_({now}.detach(){wide})"]
        if not one:
            hand = [f"for held, new in zip({path}, {now}):", "    held.copy_(new.detach())"]
        first = begins_as(source, function, path)
        if path in place.begun or first:  # it is None until the first step has made it
            new = f"{now}.detach().clone()" if one else f"tuple(new.detach().clone() for new in {now})"
            number = begins_as_number(place, path) or not all(map(is_none, first))
            asks = f"not isinstance({path}, torch.Tensor)" if number else f"{path} is None"
            hand = [f"if {asks}:", f"    {path} = {new}", "else:", *(f"    {line}" for line in hand)]
        end += hand
        edits += [source.replace(n, now) for n in at]
        gone |= set() if path in place.begun or first else set(at)
    exchanged = swapped(carried, every)
    if not edits or not exchanged.isdisjoint(place.begun):
        return []
    told = _NAMED.search(place.failure.message)
    if told is not None and told[1] not in {path.rpartition(".")[2] for path in carried}:
        return []  # what was told stays as it is
    begin = [
        _apart(place, path, line) if path in exchanged else line for path, line in zip(carried, begin, strict=True)
    ]
    start = function.body[0]
    if isinstance(start, ast.Expr) and isinstance(start.value, ast.Constant) and len(function.body) > 1:
        start = function.body[1]  # behind the docstring
    while isinstance(start, (ast.Global, ast.Nonlocal)) and start is not function.body[-1]:
        start = function.body[function.body.index(start) + 1]
    edits.append(source.before(start, begin, rank=-3))
    edits.append(source.before(last, end, rank=3) if returns else source.after(last, end))
    return edits + fewer_globals(source, [n for n in every if n not in gone])


def _apart(place: Place, path: str, line: str) -> str:
    """How a local name begins as a copy of its state: what it hands on may be another one's memory."""
    one = isinstance(held_by(place, path), torch.Tensor)
    name, _, held = line.partition(" = ")
    return f"{line}.clone()" if one else f"{name} = tuple(each.clone() for each in {held})"


def _is_made_anew(place: Place, every: list[ast.AST], path: str) -> bool:
    """Whether a value is computed of others alone: of another size, as other inputs have, ``copy_`` would repeat it."""
    made = [n.value for n in every if isinstance(n, ast.Assign) and [ast.unparse(t) for t in n.targets] == [path]]
    function = place.source.function_of(place.statement)
    given = arguments_of(function) if function is not None else []
    return (
        bool(made)
        and not any(_is(n, path) for value in made for n in ast.walk(value))
        and all(
            value.id in given if isinstance(value, ast.Name) else is_pure(place, value) and path_of(value) == ""
            for value in made
        )
    )


def _is_carried(place: Place, function: Function, path: str, at: list[ast.Name | ast.Attribute]) -> bool:
    """Whether a path is a tensor, or a tuple of them, from around the function that it reads and gives another."""
    first, parents = path.partition(".")[0], place.source.parents
    if path.count(".") > 1 or (first in locals_of(function) and (first != "self" or path == "self")):
        return False
    value = held_by(place, path)
    parts = [value] if isinstance(value, torch.Tensor) else list(value) if type(value) is tuple else []
    if not parts or not all(isinstance(part, torch.Tensor) and not part.requires_grad for part in parts):
        return False
    every_store = [n for n in at if isinstance(n.ctx, ast.Store)]
    adds = [n for n in every_store if isinstance(parents.get(n), ast.AugAssign)]
    stores = [n for n in every_store if n not in adds]  # `self.cur *= damp` writes in place what it is, here or there
    if adds and (path in place.begun or not isinstance(value, torch.Tensor)):
        return False
    if not stores or len(stores) == len(at) or any(isinstance(parents.get(n), ast.For) for n in stores):
        return False
    made = parents.get(stores[0])
    if len(stores) == 1 and isinstance(made, ast.Assign) and any(n in at and n not in stores for n in ast.walk(made)):
        every = [node for part in function.body for node in within(part)]
        if not swapped([path], every) and not is_read_later(path, every, stores[0]):
            return False  # it is written in place where it stands
    last = path.rpartition(".")[2]
    names = {n.attr if isinstance(n, ast.Attribute) else n.id for n in _calls(function)}
    for other in place.source.parents:
        runs = isinstance(other, Function) and other is not function and other.name in names - _MAKERS
        if runs and any(getattr(n, "attr", getattr(n, "id", "")) == last for n in ast.walk(other)):
            return False  # what it calls reads it as well
    return True


def _is_handed_on(path: str, every: list[ast.AST]) -> bool:
    """Whether a function was rewritten so: its end writes what it has made, ``h.copy_(h_now.detach())``."""
    now = f"{path.rpartition('.')[2]}_now"
    calls = [n for n in every if isinstance(n, ast.Call)]
    ends = (
        n for n in calls if path_of(n.func) == f"{path}.copy_" and any(each.startswith(now) for each in names_in(n))
    )
    return any(ends) or any(ast.unparse(n).startswith(f"zip({path}, ") for n in calls)


def _named(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute))


def _is(node: ast.AST, path: str) -> bool:
    """Whether an expression is this path, with nothing picked of it."""
    return _named(node) and ast.unparse(node) == path


def _calls(function: Function) -> list[ast.Name | ast.Attribute]:
    calls = (n.func for part in function.body for n in ast.walk(part) if isinstance(n, ast.Call))
    return [func for func in calls if isinstance(func, (ast.Name, ast.Attribute))]


def held_by(place: Place, path: str) -> Any:
    """What a path leads to, or what the first step makes of it where it is None until then."""
    if path in place.begun:
        return place.begun[path]
    first, _, name = path.partition(".")
    if first == "self":
        return place.attributes.get(name)
    return attribute_of(place.space.get(first), name, None) if name else place.space.get(first)


def begins_as_number(place: Place, path: str) -> bool:
    """Whether a path leads to a number before the first step, and to a tensor after it: ``self.total = 0.0``."""
    first, _, name = path.partition(".")
    value = place.attributes.get(name) if first == "self" else None if name else place.space.get(first)
    return path in place.begun and type(value) in (int, float)


def begun(prover: Prover) -> dict[str, Any]:
    """What is None or a number before the first step, and a tensor or some of them after it, by how it is written."""
    found: dict[str, Any] = {}
    for holder, values in prover.from_now().watched():
        keys: list[Any] = list(values[0]) if isinstance(values[0], dict) else [None]
        for key in keys:
            first, later = (each.get(key) if isinstance(each, dict) else each for each in (values[0], values[-1]))
            known = isinstance(later, torch.Tensor) or (first is None and type(later) is tuple and bool(later))
            begins = first is None or type(first) in (int, float)
            if begins and known and holder.kind in ("global", "attributes"):
                found[f"self.{key}" if key is not None else holder.name] = tree_map(_alone, later)
    return found


def _alone(value: Any) -> Any:
    """A tensor that nothing else knows of: no gradients come back to it."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def fill_the_data(place: Place) -> list[Edit]:
    """``p.data = v`` becomes ``p.data.copy_(v)``, which leaves the parameter where a graph reads it.

    An entry that keeps a copy of it until then, ``state["old"] = p.data.clone()``, is the parameter itself from there
    on, as it was: what is compared, or saved, has the same numbers.
    """
    node = place.statement
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Attribute) or target.attr != "data":
        return []
    text = f"{place.text(target)}.copy_({place.text(node.value)})"
    if isinstance(node.value, ast.Subscript) and _is_copied_for_it(place, node.value):
        text += f"\n{place.source.indent(node)}{place.text(node.value)} = {place.text(target)}"
    return [place.source.replace(node, text)]


def _is_copied_for_it(place: Place, entry: ast.Subscript) -> bool:
    """Whether an entry is a copy that something of the file makes, and that nothing else there reads."""
    text = place.text(entry)
    every = [n for n in place.source.parents if isinstance(n, ast.Subscript) and place.text(n) == text]
    made = [place.source.parents.get(n) for n in every if isinstance(n.ctx, ast.Store)]
    values = [each.value for each in made if isinstance(each, ast.Assign)]
    copies = [v for v in values if isinstance(v, ast.Call) and called(v) == "clone"]
    return len(every) == 2 and len(copies) == 1


def fill_the_entry(place: Place) -> list[Edit]:
    """``states[i] = f(states[i])`` becomes ``states[i].copy_(f(states[i]))``.

    ``logs[key] = f(logs.get(key, 0.0))`` does so from the second step on: the first one makes the entry.
    """
    node = place.statement
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Subscript):
        return []
    text = place.text(target)
    gets = [n for n in ast.walk(node.value) if isinstance(n, ast.Call) and called(n) == "get" and n.args]
    if any(f"{place.text(n.func).removesuffix('.get')}[{place.text(n.args[0])}]" == text for n in gets):
        if _has_others(place, target.value):
            return []
        new, held = fresh("new", place.taken), f"{place.text(target.value)}.get({place.text(target.slice)})"
        made = [
            f"{new} = {place.text(node.value)}",
            f"if isinstance({held}, torch.Tensor):",
            f"    {text}.copy_({new})",
            "else:",
            f"    {text} = {new}.clone()",
        ]
        return [place.source.replace(node, f"\n{place.source.indent(node)}".join(made))]
    if not any(isinstance(n, ast.Subscript) and place.text(n) == text for n in ast.walk(node.value)):
        return []
    if keeps_or_exchanges(place, target.value):
        return []
    return [place.source.replace(node, f"{text}.copy_({place.text(node.value)})")]


def keeps_or_exchanges(place: Place, table: ast.expr) -> bool:
    """Whether another function, or a loop around the step, keeps an entry of a table or puts another one there."""
    source, function = place.source, place.source.function_of(place.statement)
    own = set(ast.walk(function)) if function is not None else set[ast.AST]()
    helpers = {n.name for n in source.parents if isinstance(n, Function)}
    for node in (n for n in source.parents if isinstance(n, ast.Subscript) and n not in own):
        if path_of(node.value).rpartition(".")[2] != path_of(table).rpartition(".")[2]:
            continue
        where = source.function_of(node)
        rounds = [above for above in source.above(node) if isinstance(above, (ast.For, ast.While))]
        again = where.name not in _MAKERS if where is not None else any(_calls_any(loop, helpers) for loop in rounds)
        made = source.statement_of(node)
        again |= bool(rounds) and isinstance(made, ast.Assign) and not _is_a_copy(made.value)
        if is_kept(source, node) if isinstance(node.ctx, ast.Load) else again:
            return True
    return False


def _is_a_copy(value: ast.expr) -> bool:
    """Whether a value has memory of its own: ``p.data.clone()``, but not ``p.data``, which would be written through."""
    if isinstance(value, ast.Call) and called(value) in _VIEWS and isinstance(value.func, ast.Attribute):
        return _is_a_copy(value.func.value)
    return isinstance(value, (ast.Call, ast.BinOp))


def _calls_any(loop: ast.AST, helpers: set[str]) -> bool:
    """Whether a loop calls a function of the file, which may be the step: else it makes entries ahead of all steps."""
    return any(called(n) in helpers for n in ast.walk(loop) if isinstance(n, ast.Call))


def _has_others(place: Place, table: ast.expr) -> bool:
    """Whether something else in the file lets a table's entries go, has others made, or keeps one of them."""
    source, function, path = place.source, place.source.function_of(place.statement), path_of(table)
    own = set(ast.walk(function)) if function is not None else set[ast.AST]()
    name, stores = path.rpartition(".")[2], 0
    helpers = {n.name for n in source.parents if isinstance(n, Function)}
    for node in source.parents:
        of_object = isinstance(node, ast.Attribute) and "." in path and node.attr == name
        if not of_object and not (isinstance(node, ast.Name) and node.id == path):
            continue
        stores += isinstance(getattr(node, "ctx", None), ast.Store)
        above = source.parents.get(node)
        method = above.attr if isinstance(above, ast.Attribute) else ""
        entry = above if isinstance(above, ast.Subscript) and above.value is node else None
        if stores > 1 or method in ("clear", "pop", "popitem", "update", "setdefault"):
            return True
        if node in own:
            continue
        given = isinstance(above, ast.Call) and node in above.args and called(above) in helpers
        if given or (isinstance(above, ast.Assign) and node is above.value):
            return True  # by another name
        if entry is not None and (not isinstance(entry.ctx, ast.Load) or is_kept(source, entry)):
            return True
        call = source.parents.get(above) if above is not None else None
        copied = method in ("copy", "values") or (isinstance(above, ast.Call) and path_of(above.func) == "dict")
        if copied or (method == "get" and isinstance(call, ast.Call) and is_kept(source, call)):
            return True
    return False


def fill_each_entry(place: Place) -> list[Edit]:
    """``state["x"], state["P"] = x, P`` of what the step has read is ``state["x"].copy_(x)``, one after the other.

    Of a helper that is given such entries, those that call it exchange them: ``d["a"], d["b"] = flip(d["a"], d["b"])``.
    """
    if edits := _each_entry(place):
        return edits
    function = place.source.function_of(place.statement)
    if function is None or function.name == place.entry:
        return []
    calls = [n for n in place.source.parents if isinstance(n, ast.Call) and called(n) == function.name]
    callers = (replace(place, statement=place.source.statement_of(n)) for n in calls if place.source.function_of(n))
    return next((edits for each in callers if (edits := _each_entry(each))), [])


def _each_entry(place: Place) -> list[Edit]:
    source, function = place.source, place.source.function_of(place.statement)
    if function is None:
        return []
    every = [node for part in function.body for node in within(part)]
    read = {place.text(n) for n in within(place.statement) if isinstance(n, ast.Subscript) and _is_read(n)}
    names = {n.id for n in within(place.statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    tests = [n for n in every if isinstance(n, ast.Compare) and isinstance(n.ops[0], (ast.Is, ast.IsNot))]
    asked = {place.text(n.left) for n in tests}
    for node in every:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
        found = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Call)  # by a helper, which may exchange
        pairs = [(each, node.value) for each in target.elts] if found and isinstance(target, ast.Tuple) else pairs
        entries = [each for each, _ in pairs if isinstance(each, ast.Subscript)]
        texts = {place.text(each) for each in entries}
        if texts & asked:
            continue  # while it is None there is nothing to write to
        by_name = {text for other in every for text in _texts_named(place, other, names)}
        if len(entries) != len(pairs) or not texts & (read | by_name):
            continue
        if not all(_is_entry(place, each) for each in entries):
            continue
        if any(keeps_or_exchanges(place, each.value) for each in entries):
            continue
        kept = {n.id for other in every if other is not node for n in _named_so(place, other, texts)}
        later = [n for n in every if isinstance(n, ast.Name) and n.lineno > (node.end_lineno or node.lineno)]
        if any(n.id in kept for n in later):
            return []  # what was there is still asked for
        lines = [f"{place.text(each)}.copy_({_fitting(place, each, value, texts, kept)})" for each, value in pairs]
        if len(pairs) > 1 and any(_reads_one(place, value, texts, kept) for _, value in pairs):
            lines = _all_before_any(place, pairs, texts, kept)
        if found:
            lines = _held_and_new(place, entries, f"[each.clone() for each in {place.text(node.value)}]")
        return [source.replace(node, f"\n{source.indent(node)}".join(lines))]
    return []


def _reads_one(place: Place, value: ast.expr, texts: set[str], kept: set[str]) -> bool:
    """Whether a value is made of an entry that is written beside it, by its own text or by a name."""
    every = [n for n in ast.walk(value) if isinstance(n, (ast.Subscript, ast.Name))]
    return any((n.id in kept) if isinstance(n, ast.Name) else (place.text(n) in texts) for n in every)


def _all_before_any(place: Place, pairs: list[tuple[ast.expr, ast.expr]], texts: set[str], kept: set[str]) -> list[str]:
    """``d["a"], d["b"] = d["b"], x`` as copies: all that is read is there before the first of them writes."""
    values = [
        f"{place.source.bracketed(value)}.clone()" if _reads_one(place, value, texts, kept) else place.text(value)
        for _, value in pairs
    ]
    return _held_and_new(place, [each for each, _ in pairs], f"[{', '.join(values)}]")


def _held_and_new(place: Place, entries: Sequence[ast.expr], values: str) -> list[str]:
    held, new = (fresh(word, place.taken) for word in ("held", "new"))
    texts = ", ".join(map(place.text, entries))
    return [
        f"for {held}, {new} in zip(({texts}), {values}, strict=True):",
        f"    {held}.copy_({new}{'.detach()' * place.trains}.view_as({held}))",
    ]


def _is_read(node: ast.Subscript) -> bool:
    return isinstance(node.ctx, ast.Load)


def _is_entry(place: Place, node: ast.Subscript) -> bool:
    """Whether it is a tensor in a list or a dictionary from around the function."""
    path = path_of(node.value)
    first = path.partition(".")[0]
    handed = _is_handed(place, path)
    if not path or path.count(".") > 1 or (first != "self" and place.is_local(first) and not handed):
        return False
    held = place.given[path] if handed else held_by(place, path)
    values = list(held.values()) if type(held) is dict else list(held) if type(held) is list else []
    if isinstance(node.slice, ast.Constant):
        try:
            values = [held[node.slice.value]]
        except (LookupError, TypeError):
            return False  # the first step makes it
    return bool(values) and all(isinstance(each, torch.Tensor) and not each.requires_grad for each in values)


def _is_handed(place: Place, path: str) -> bool:
    """Whether it is an argument of the step, which has no other value there."""
    function = place.source.function_of(place.statement)
    if function is None or path not in place.given:
        return False
    every = (n for part in function.body for n in within(part))
    return not any(isinstance(n, ast.Name) and n.id == path and not isinstance(n.ctx, ast.Load) for n in every)


def _named_so(place: Place, node: ast.AST, texts: set[str]) -> list[ast.Name]:
    """Names that are given one of these entries as it is."""
    pairs = _given_names(node)
    return [one for one, given in pairs if place.text(given) in texts]


def _texts_named(place: Place, node: ast.AST, names: set[str]) -> list[str]:
    """The entries that a statement gives one of some names."""
    return [place.text(given) for one, given in _given_names(node) if one.id in names]


def _given_names(node: ast.AST) -> list[tuple[ast.Name, ast.expr]]:
    if not isinstance(node, ast.Assign):
        return []
    target, value = node.targets[0], node.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    return [(one, given) for one, given in pairs if isinstance(one, ast.Name)]


def _fitting(place: Place, entry: ast.expr, value: ast.expr, texts: set[str], kept: set[str]) -> str:
    """A value that an entry is given; of another size, as other inputs have, ``copy_`` would repeat it."""
    function, made = place.source.function_of(entry), value
    if isinstance(value, ast.Name) and function is not None and value.id not in arguments_of(function):
        pairs = [pair for part in function.body for n in within(part) for pair in _given_names(n)]
        given = [each for name, each in pairs if name.id == value.id]
        made = given[0] if len(given) == 1 else entry
    if not is_pure(place, made) or _reads_one(place, made, texts, kept):
        return _alone_of(place, value)
    return f"{place.source.bracketed(value)}{'.detach()' * place.trains}.view_as({place.text(entry)})"


def _alone_of(place: Place, value: ast.expr) -> str:
    """A value without its gradients, where any may come to it."""
    return f"{place.source.bracketed(value)}.detach()" if place.trains else place.text(value)
