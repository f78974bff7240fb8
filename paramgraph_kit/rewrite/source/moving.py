"""Work of the host is moved behind the launch: into a function of the user's own lines, called after each one."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from paramgraph_kit.rewrite.source.edits import (
    Edit,
    Function,
    Source,
    free_names,
    is_method,
    locals_of,
    names_in,
    path_of,
    within,
)
from paramgraph_kit.rewrite.source.place import around_launch, called
from paramgraph_kit.rewrite.source.ungraded import context_of, off_for
from paramgraph_kit.rewrite.source.writes import MODULES, written, written_in_place
from paramgraph_kit.rewrite.source.written_after import written_after

DEEP = 3  # through how many functions an argument is followed
NAMED = (ast.Global, ast.Nonlocal)
_VIEWS = frozenset(
    """detach view reshape flatten unflatten squeeze unsqueeze permute transpose movedim t chunk split unbind select
    narrow expand expand_as view_as diagonal""".split()  # noqa: SIM905
)
_GIVING = frozenset("setattr max min next list tuple sorted reversed iter zip dict set enumerate".split())  # noqa: SIM905
_OF_OTHERS = ("add", "put", "log", "__setattr__", "__setitem__")  # methods of other objects, too, which may keep it
STOPS = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Break, ast.Continue)


@dataclass(slots=True)
class Moved:
    """The edits that take statements out of a function and put them into another one after it."""

    edits: list[Edit]
    name: str
    parameters: list[str]  # arguments of the function first, then its results
    arguments: int  # how many of the parameters are arguments
    results: int  # how many values the function returns now
    extra: int  # how many of them it did not return before
    returns: bool = False  # it returns what the function has returned


@dataclass(slots=True)
class Tail:
    """All of a function from one statement on, which runs behind the launch as it did."""

    statements: list[ast.stmt]
    again: list[ast.stmt]  # what the host computes before it from the arguments alone, and it computes again
    context: str = ""  # that of the function: no gradients
    held: tuple[Sequence[str], ast.stmt | None, Sequence[str]] = ((), None, ())  # lines before it, and behind a part


def body_of(function: Function) -> Iterator[ast.stmt]:
    """The statements of a function's body, and of its ``with`` blocks."""
    for part in function.body:
        yield from part.body if isinstance(part, ast.With) else [part]


def top_of(source: Source, function: Function, node: ast.stmt) -> ast.stmt | None:
    """The statement of a function's body that holds ``node``."""
    body = set(body_of(function))
    above: ast.AST | None = node
    while above is not None and above not in body:
        above = source.parents.get(above)
    return above if isinstance(above, ast.stmt) else None


def is_movable(node: ast.stmt, graded: Collection[str] | None = None) -> bool:
    """Whether a statement may run after the rest of its function, as far as its kind tells.

    ``graded`` are the names whose gradients come from the rest: a branch that trains without them may run there, too.
    """
    if not isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.If, ast.For)):
        return False
    return is_closed(node) or (graded is not None and trains_apart(node, graded))


def trains_apart(node: ast.stmt, graded: Collection[str]) -> bool:
    """Whether a branch runs a backward pass of its own: no gradients come to it from outside."""
    if not isinstance(node, ast.If) or not any(is_backward(part) for part in within(node)):
        return False
    if any(isinstance(part, STOPS) for part in within(node)):
        return False
    told = {part for each in ast.walk(node) if reads_number(each) for part in ast.walk(each)}
    read = (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n not in told)
    return not {name for name in read if name in graded} - stored([node])


def with_their_zeros(function: Function, chosen: list[ast.stmt], graded: Collection[str]) -> list[ast.stmt]:
    """Statements that move, with the ``zero_grad()`` for what trains among them, which a graph would not do."""
    order = list(body_of(function))
    if not any(trains_apart(node, graded) for node in chosen):
        return chosen
    found = list(chosen)
    for number, node in enumerate(order):
        call = node.value if isinstance(node, ast.Expr) else None
        if node in chosen or not isinstance(call, ast.Call) or _method(call) != "zero_grad":
            continue
        after = [part for later in order[number + 1 :] if later not in chosen for part in ast.walk(later)]
        if not any(isinstance(n, ast.Call) and _method(n) in ("backward", "step", "grad") for n in after):
            found.append(node)
    return [node for node in order if node in found]


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def reads_number(node: ast.AST) -> bool:
    """``x.item()`` and ``x.detach()``, through which no gradients go."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("item", "detach")


def is_closed(node: ast.stmt) -> bool:
    """Whether a statement neither leaves its function nor runs a backward pass."""
    return not any(isinstance(part, STOPS) or is_backward(part) for part in within(node))


def is_backward(node: ast.AST) -> bool:
    """Whether a node is a call of a backward pass."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"


def stored(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that are assigned below some nodes."""
    every = (part for node in nodes for part in ast.walk(node))
    return {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def move(
    source: Source,
    function: Function,
    moved: list[ast.stmt],
    graded: set[str],
    first: Iterable[str] = (),
    gone: Sequence[ast.stmt] = (),
    tail: Tail | None = None,
    more: Callable[[ast.stmt], Iterable[Edit]] = lambda _: (),
    ended: tuple[Mapping[str, str], Sequence[str]] = ({}, ()),
    tensors: Collection[str] = (),
    leads: bool = False,
) -> Moved | None:
    """Move statements of a function into another one after it, or None where what they need cannot be handed over.

    ``graded``: the local names that hold a tensor with gradients when the function returns; ``first``: lines before;
    ``gone``: statements that go before the launch, with what they assign; ``tail``: all from there on is moved;
    ``more``: other edits of a statement that moves; ``ended``: what a loop's end decides the length of, as it is handed
    over, and lines that cut it; ``tensors``: the names that hold one; ``leads``: gradients go back from its results.
    """
    first = list(first)
    local, arguments = locals_of(function), arguments_of(function)
    out = [*moved, *gone]
    stay = [node for part in function.body for node in ast.walk(part) if not _is_in(node, out, source)]
    there = {n.id for n in stay if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    read = ({name for node in moved for name in free_names(node)} | _read_by(ended[1])) & local
    read |= _read_in_functions(first) & set(arguments)
    again = [each for each in tail.again if stored([each]) & read - ended[0].keys()] if tail is not None else []
    first_read = _read_by(ended[1])
    made = stored(again) | {n for n in _made_by(ended[1]) if n not in first_read}
    needed = sorted(
        (read | {name for each in again for name in names_in(each)} & local) & (there | set(arguments)) - made
    )
    owner = arguments[:1] if is_method(source, function) else []
    given = [name for name in arguments if (name in needed or name in owner) and name not in there]
    results = [name for name in needed if name not in given and name not in ended[0]]
    results += ended[0]
    returned = _returned(source, function, results, graded, tail is not None, ended[0], leads)
    if returned is None:
        return None
    edits, names, extra = returned
    edits += source.without_all(moved)
    edits += fewer_globals(source, stay)
    name = around_launch(source, function, "after")
    parameters = [*given, *names]
    off = tail.context if tail is not None else off_for(source, function, moved)
    lines = ["", f"def {name}({', '.join(parameters)}):  # after each launch"]
    for word, kind in (("global", ast.Global), ("nonlocal", ast.Nonlocal)):
        outer = {n for node in ast.walk(function) if isinstance(node, kind) for n in node.names}
        if here := sorted(outer & {p for node in moved for p in written(node)}):
            lines.append(f"    {word} {', '.join(here)}")
    lines += [f"    {line}" for line in first]
    lines += [f"    with {off}:"] * bool(off)
    deep = "    " * (1 + bool(off))
    lines += [f"{deep}{line}" for line in ended[1]]
    held, last, given_back = tail.held if tail is not None else ((), None, ())
    lines += [f"{deep}{line}" for line in held]
    around = None
    for node in (*again, *moved):
        depth, context = len(source.indent(node)), context_of(source, node) if not off else ""
        if context and source.parents[node] is not around:
            lines.append(f"{deep}with {context}:")
        around = source.parents[node] if context else None
        # Gradients keep their memory, which is the graph's; what is kept must not, for it is overwritten.
        copies = [*cloned(source, node, [n for n in results if n not in ended[0]])]
        copies += cloned(source, node, {*given} & {*tensors}, only_kept=True)  # a launch reads them where they are
        anew = [*more(node)]
        edited = source.apply([*_without_copies_of_copies(source, node, copies, anew), *anew])
        text = [each.rstrip() for each in source.part(node, edited)]
        text = [re.sub(r"zero_grad\((set_to_none=True)?\)", "zero_grad(set_to_none=False)", each) for each in text]
        lines += [each if each[:depth].strip() else deep + "    " * bool(context) + each[depth:] for each in text]
        lines += [f"{deep}{line}" for line in given_back if node is last]
    edits += [source.after(function, lines), *handed_out(source, function, name)]
    return Moved(edits, name, parameters, len(given), len(names), extra, tail is not None)


def _read_by(lines: Sequence[str]) -> set[str]:
    """Names that lines read before they give them a value."""
    return _read_first(ast.parse("\n".join(lines)).body, set())


def _read_in_functions(lines: Iterable[str]) -> set[str]:
    """Names that the functions among lines read from around themselves."""
    try:
        body = ast.parse("\n".join(lines)).body
    except SyntaxError:  # lines of a way that is taken back
        return set()
    made = [node for node in body if isinstance(node, Function)]
    return {name for node in made for part in node.body for name in free_names(part) - locals_of(node)}


def _made_by(lines: Sequence[str]) -> set[str]:
    """Names to which lines give a value in any case."""
    return stored([node for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.Assign)])


def _read_first(nodes: Sequence[ast.stmt], made: set[str]) -> set[str]:
    read = set[str]()
    for node in nodes:
        if isinstance(node, ast.If):
            read |= free_names(node.test) - made
            read |= _read_first(node.body, {*made}) | _read_first(node.orelse, {*made})
        else:
            read |= free_names(node) - made
        made |= stored([node])
    return read


def _without_copies_of_copies(
    source: Source, node: ast.stmt, copies: Sequence[Edit], anew: Sequence[Edit]
) -> list[Edit]:
    """Those copies that are not of what a statement copies into a tensor that stays: ``self.y.copy_(y)``."""
    whole = {source.replace(each, "") for each in ast.walk(node) if isinstance(each, ast.stmt)}
    ends = {(each.end_line, each.end_column) for each in anew if each in whole and ".copy_(" in each.text}
    return [each for each in copies if (each.line, each.column) not in ends]


def handed_out(source: Source, function: Function, name: str) -> list[Edit]:
    """What makes a function beside one that another function makes known outside: by that function, for each its own.

    As its attribute a step would lead to what the other reads, and be captured anew where that changes.
    """
    if source.function_of(function) is None:
        return []
    rank = 2 + name.startswith("before")  # edits of one place and rank are one
    made = source.before(source.outermost(function), [f"{name}_of = {{}}"], rank)
    return [made, replace(source.after(function, [f"{name}_of[{function.name}] = {name}"]), rank=rank)]


def cloned(source: Source, node: ast.stmt, results: Iterable[str], *, only_kept: bool = False) -> Iterator[Edit]:
    """Copies of results where a statement keeps them: in a list, a dictionary, a variable, or by a method's leave.

    So of what lies in their memory, as ``h[0]``. ``only_kept``: not where a name of the function's own holds them.
    """
    for part in ast.walk(node):
        if not isinstance(part, ast.Name) or part.id not in results or not isinstance(part.ctx, ast.Load):
            continue
        whole = _viewed(source, part)
        if only_kept and not _lives_on(source, whole):
            continue
        if is_kept(source, whole) and not _writes_on(source, whole):
            yield written_after(source, whole, ".clone()")


def _viewed(source: Source, node: ast.expr) -> ast.expr:
    """The longest expression that has the memory of what a part of it stands for."""
    while True:
        above = source.parents.get(node)
        call = source.parents.get(above) if isinstance(above, ast.Attribute) and above.value is node else None
        if isinstance(call, ast.Call) and isinstance(above, ast.Attribute) and call.func is above:
            if above.attr not in _VIEWS:
                return node
            node = call
        elif isinstance(above, ast.Subscript) and above.value is node and isinstance(above.ctx, ast.Load):
            if any(isinstance(n, ast.Name) for n in ast.walk(above.slice)) and _is_named(source.parents.get(above)):
                return node  # it may be rows that a mask picks, which are copies
            node = above
        elif isinstance(above, (ast.Call, ast.Attribute)) and _is_a_view(above, node):
            node = above
        else:
            return node


def _lives_on(source: Source, node: ast.expr) -> bool:
    """Whether a call takes something, also in a list, or an object or a container outlives the function with it."""
    above = source.parents.get(node)
    while isinstance(above, (ast.List, ast.Tuple, ast.Dict)):
        above = source.parents.get(above)
    targets = above.targets if isinstance(above, ast.Assign) else []
    kept = any(isinstance(each, (ast.Attribute, ast.Subscript)) for each in targets)
    return kept or isinstance(above, (ast.Call, ast.AugAssign))


def _is_named(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)


def _is_a_view(above: ast.Call | ast.Attribute, node: ast.expr) -> bool:
    """``h.T`` and ``torch.squeeze(h)``, which lie in the memory of ``h``."""
    if isinstance(above, ast.Attribute):
        return above.attr in ("T", "mT", "H", "data", "real", "imag") and isinstance(above.ctx, ast.Load)
    of_torch = isinstance(above.func, ast.Attribute) and path_of(above.func.value) == "torch"
    return of_torch and node in above.args[:1] and called(above) in _VIEWS


def _writes_on(source: Source, node: ast.expr) -> bool:
    """Whether a tensor gets another name of the function's own, by which it is written: a copy would be another one."""
    above, function = source.parents.get(node), source.function_of(node)
    if not isinstance(above, ast.Assign) or function is None or not all(isinstance(t, ast.Name) for t in above.targets):
        return False
    names = {t.id for t in above.targets if isinstance(t, ast.Name)} & locals_of(function)
    return bool(names & set(written_in_place(ast.walk(function))))


def is_kept(source: Source, node: ast.expr) -> bool:
    """Whether what an expression gives may live on: in a list, a variable, or by a method's leave."""
    above = source.parents.get(node)
    if isinstance(above, ast.Call) and node in above.args:
        if isinstance(above.func, ast.Attribute):
            return _may_keep(above.func)
        return isinstance(above.func, ast.Name) and _is_kept_by(source, above.func.id, above.args.index(node), DEEP)
    return isinstance(above, (ast.Assign, ast.Dict, ast.List, ast.Tuple, ast.keyword))


def _is_kept_by(source: Source, name: str, number: int, deep: int) -> bool:
    """Whether a function or an object of the file that is called so may keep its argument with that number."""
    if hasattr(builtins, name):
        return name in _GIVING
    every = [n for n in ast.walk(source.tree) if isinstance(n, Function)]
    own = [n for n in every if n.name == name] or [n for n in every if n.name in ("__call__", "forward")]
    for function in own:
        given = arguments_of(function)[is_method(source, function) :]
        names = given[number : number + 1] or [each.arg for each in (function.args.vararg,) if each is not None]
        for part in (n for top in function.body for n in ast.walk(top)):
            if not isinstance(part, ast.Name) or part.id not in names or not isinstance(part.ctx, ast.Load):
                continue
            call = source.parents.get(part)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and part in call.args:
                if deep == 0 or _is_kept_by(source, call.func.id, call.args.index(part), deep - 1):
                    return True
            elif is_kept(source, part) or isinstance(call, (ast.Return, ast.Starred, ast.Yield, ast.IfExp)):
                return True
    return not own


def _may_keep(function: ast.expr) -> bool:
    """Whether what a method is given may live on in what it belongs to: torch's own compute."""
    known = (
        isinstance(function, ast.Attribute) and hasattr(torch.Tensor, function.attr) and function.attr not in _OF_OTHERS
    )
    return not known and path_of(function).partition(".")[0] not in MODULES


def _is_in(node: ast.AST, moved: list[ast.stmt], source: Source) -> bool:
    above: ast.AST | None = node
    while above is not None:
        if above in moved:
            return True
        above = source.parents.get(above)
    return False


def arguments_of(function: Function) -> list[str]:
    """The names of a function's parameters."""
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def detached(source: Source, function: Function, graded: set[str]) -> list[Edit]:
    """A function that runs a backward pass itself returns ``loss.detach()``: none goes through a launch."""
    if not _runs_backward(function):
        return []
    edits = []
    for node in (node for part in function.body for node in within(part) if isinstance(node, ast.Return)):
        value = node.value
        parts = value.values if isinstance(value, ast.Dict) else getattr(value, "elts", [value])
        known = (part for part in parts if isinstance(part, ast.Name) and part.id in graded)
        edits += [source.replace(part, f"{part.id}.detach()") for part in known]
    return edits


def _runs_backward(function: Function) -> bool:
    return any(is_backward(node) for part in function.body for node in within(part))


def _returned(
    source: Source,
    function: Function,
    needed: list[str],
    graded: set[str],
    tail: bool = False,
    texts: Mapping[str, str] | None = None,
    leads: bool = False,
) -> tuple[list[Edit], list[str], int] | None:
    """Edits that make a function return local names too; the names of all that it returns, and how many are new.

    ``tail``: what it has returned is not its own to return any more, ``leads``: which gradients go back from.
    """
    returns = [node for part in function.body for node in within(part) if isinstance(node, ast.Return)]
    valued = [node for node in returns if node.value is not None]
    if tail and not needed:
        return [], [], 0  # what is behind it reads variables alone
    if not needed:
        return detached(source, function, graded), [], 0
    last = function.body[-1]
    while isinstance(last, ast.With):
        last = last.body[-1]
    new = [(texts or {}).get(name, name) for name in needed]
    # In eager code, and compiled, they still do.
    new = new if tail and leads else [*map(_apart, new)]
    if not returns or tail:
        return [source.after(last, [f"return {', '.join(new)}"])], needed, len(needed)
    if len(returns) > 1 or not valued or valued[0] is not last:
        return None
    value = valued[0].value
    assert value is not None
    parts = list(value.elts) if isinstance(value, ast.Tuple) else [value]
    names = [_name_of(part) or f"_{number}" for number, part in enumerate(parts)]
    missing = [name for name in needed if name not in names]
    if not missing:
        return detached(source, function, graded), names, 0
    # No backward goes through a launch, and this one's is done.
    done = graded if _runs_backward(function) else set[str]()
    kept = [source.text(part) + ".detach()" * (isinstance(part, ast.Name) and part.id in done) for part in parts]
    text = ", ".join([*kept, *(_apart((texts or {}).get(name, name)) for name in missing)])
    return [source.replace(value, text)], [*names, *missing], len(missing)


def _apart(text: str) -> str:
    """What is handed over: a tensor without its gradients, or several that are so already."""
    return text if text[0] in "[{" else f"{text}.detach()"


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach":
        node = node.func.value
    return node.id if isinstance(node, ast.Name) else ""


def fewer_globals(source: Source, stay: list[ast.AST]) -> list[Edit]:
    """``global`` names only what the function still writes or reads."""
    used = {node.id for node in stay if isinstance(node, ast.Name)}
    edits = []
    for node in stay:
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            left = [name for name in node.names if name in used]
            if left != node.names:
                edits.append(replace(source.replace(node, ""), keeps=tuple(left)))
    return edits


def unscaled_before(function: Function, step: ast.stmt) -> list[ast.stmt]:
    """What a gradient scaler's step needs to have happened just before it: ``unscale_``, and all from there."""
    body = list(body_of(function))
    names = [{part.attr for part in within(node) if isinstance(part, ast.Attribute)} for node in body]
    first = next((k for k, known in enumerate(names) if "unscale_" in known), len(body))
    return body[first : body.index(step)] if step in body else []
