"""What is told of numbers that were passed to what has captured, and are others at a replay."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_values import Names, Use
from paramgraph_kit.doctor.observe.moved_together import graph_for_each
from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.doctor.observe.own_tables import keys_of
from paramgraph_kit.doctor.observe.passed_numbers import PassedNumbers, PassedOn
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.observe.takes_tensors import takes_a_tensor
from paramgraph_kit.doctor.observe.tensors_for_numbers import with_tensor
from paramgraph_kit.trace.model import Failure

_CODES = ("scalar-frozen", "branch-frozen", "size-frozen")
_MOVES = "; what a warm-up in it moves, as weights, is copied ahead of that and put back behind it, in place"
_TESTS = (ast.If, ast.IfExp, ast.While)


def passed_on(numbers: PassedNumbers, kind: str, told: Sequence[Failure]) -> Iterator[Failure]:
    """Each, at the captured line that reads it, where nothing else is told of that."""
    known = {f.frame for f in told if f.code in _CODES}
    said = {f.message.split(" is given to a capture of its own")[0] for f in told}
    for moved in numbers.moved.values():
        one = moved.passed
        inside = {id(n) for block in captured_in(one.code) for s in block for n in ast.walk(s)}
        read = min(one.reads, key=lambda n: (id(n) not in inside, n.lineno))
        at = frame_at(one.code, read.lineno)
        if "[" in one.name and moved.origin is not None:  # one of many, which is told where it is given
            at = frame_at(moved.origin.code, moved.origin.call.lineno)
        if at in known or (not said.isdisjoint((one.name, moved.text)) and _may_be_a_tensor(moved)):
            continue
        code = "branch-frozen" if type(one.value) is bool or _decides(read, one.code) else "scalar-frozen"
        failure = BY_ID[code].failure(_said(moved), at)
        yield replace(failure, fix=f"before  {at.text}\nafter   {_fix(moved, kind)}")


def without_given(numbers: PassedNumbers, told: Sequence[Failure]) -> list[Failure]:
    """The same without numbers that are told at a captured line, as what reads them there takes no tensor."""
    moved = [each for each in numbers.moved.values() if not _may_be_a_tensor(each)]
    said = tuple(f"{name} is given to a capture of its own" for m in moved for name in {m.text, m.passed.name})
    return [f for f in told if not f.message.startswith(said)] if said else [*told]


def _decides(read: ast.Name, code: CodeType) -> bool:
    return any(isinstance(n, _TESTS) and any(each is read for each in ast.walk(n.test)) for n in nodes_of(code))


def _said(moved: PassedOn) -> str:
    one, now = moved.passed, _text(moved.now)
    where = moved.text if moved.text == one.name else f"{moved.text}, given as {one.name},"
    return f"{where} is {now} at a replay, and {one.code.co_name} has captured with {_text(one.value)}"


def _text(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _fix(moved: PassedOn, kind: str) -> str:
    one, origin = moved.passed, moved.origin
    line = linecache.getline(moved.code.co_filename, moved.line).strip()
    if moved.paired and origin is not None:
        made = f"torch.full((), float({ast.unparse(origin.node)}), device={kind!r})"
        given = f"torch.full((), float(value), device={kind!r})"
        return (
            f"`{made}` for `{ast.unparse(origin.node)}` here, and at each call a tensor for its number `value`, too: "
            f"`{given}`, which is copied as the others are"
        )
    launches = "g.replay()" if ".replay(" in line or not line else f"`{line}` (line {moved.line})"
    of_self = moved.code.co_varnames[:1] == ("self",)
    key = f"tuple({moved.text})" if isinstance(one.value, tuple) else moved.text
    needs = _needs(moved)
    with_it = f"; with a tensor there {', '.join(needs)}" if needs else ""
    if needs is None:
        if launches == "g.replay()" or origin is None:
            return graph_for_each(key)
        call = ast.unparse(origin.call)
        return (
            f"this line as it is, and a capture for each value: wherever `{moved.text}` is another one, "
            f"`{call}` comes again ahead of {launches}, with that one{_MOVES if _trains(one.code) else ''}"
        )
    if origin is None and not (of_self and one.code.co_varnames[:1] == ("self",)):
        return graph_for_each(key)
    if origin is None:
        held = f"self.{one.name}_in"
        made = f"before the capture `{held} = torch.full((), float({one.name}), device={kind!r})`"
        return (
            f"{made}, what is captured reads `{held}` for `{one.name}`, and ahead of {launches} "
            f"`{held}.fill_({moved.text})`{with_it}"
        )
    in_branch = any(
        isinstance(n, ast.If) and any(each is origin.call for each in ast.walk(n)) for n in nodes_of(origin.code)
    )
    if in_branch and not of_self and launches != "g.replay()":
        call = ast.unparse(origin.call)
        table = f"what `{call}` gives is kept in a table, by `{moved.text}`, and today's is taken ahead of {launches}"
        return f"this line as it is, and a capture for each value: {table}"
    if in_branch and not of_self:
        return graph_for_each(key)
    held, given = (f"self.{one.name}_in" if of_self else f"{one.name}_in"), ast.unparse(origin.node)
    made = f"`{held} = torch.full((), float({given}), device={kind!r})`"
    call = ast.unparse(origin.call)
    if in_branch and keys_of(one.code.co_filename):  # each capture would make another one, and the launch fills one
        return (
            f"this line as it is, and once, ahead of all captures, as in `__init__`, "
            f"`{held} = torch.ones((), device={kind!r})`; `{call}` (line {origin.call.lineno}) is given `{held}` for "
            f"`{given}`, and ahead of {launches} comes `{held}.fill_({moved.text})`{with_it}"
        )
    return (
        f"this line as it is, and ahead of `{call}` (line {origin.call.lineno}) {made}; that call is given "
        f"`{held}` for `{given}`, and ahead of {launches} comes `{held}.fill_({moved.text})`{with_it}"
    )


def _may_be_a_tensor(moved: PassedOn) -> bool:
    return _needs(moved) is not None


def _needs(moved: PassedOn) -> list[str] | None:
    """What else is written where a tensor of one number is read for it; None where one does not do as well."""
    one = moved.passed
    if isinstance(one.value, (tuple, bool)) or any(n.id != one.name for n in one.reads):
        return None
    said: dict[str, None] = {}
    for node in (n for n in nodes_of(one.code) if isinstance(n, ast.Name) and n.id == one.name):
        if isinstance(node.ctx, ast.Load) and not takes_a_tensor(Use(one.code, node, False, Names({})), one.value):
            if (further := _in_called(node, one.code) if type(one.value) is float else None) is None:
                return None
            said |= dict.fromkeys(further)
    return [*said]


def _in_called(node: ast.Name, code: CodeType) -> list[str] | None:
    """The same for a function of the file that is given the number: ``self.work(beta)``; None where it is none."""
    calls = [n for n in nodes_of(code) if isinstance(n, ast.Call)]
    call = next((n for n in calls if any(a is node for a in (*n.args, *(k.value for k in n.keywords)))), None)
    if call is None or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    tree = tree_of(code.co_filename) or ast.Module([], [])
    methods = {m for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for m in c.body}
    of_self = isinstance(call.func, ast.Attribute)
    named = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == last_name(call.func)]
    if len(named) != 1 or (named[0] in methods) is not of_self or named[0].args.vararg is not None:
        return None
    names = [each.arg for each in named[0].args.args][int(of_self) :]
    places = [names[i] for i, each in enumerate(call.args) if each is node and i < len(names)]
    given = [k.arg for k in call.keywords if k.value is node and k.arg]
    inside = [*ast.walk(named[0])]
    name = next(iter((*places, *given)), "")
    if not name or any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in inside):
        return None
    return with_tensor(inside, name)


def _trains(code: CodeType) -> bool:
    """Whether a capture of a function, with its warm-up, may move weights."""
    tree = tree_of(code.co_filename) or ast.Module([], [])
    return any(isinstance(n, ast.Call) and last_name(n.func) == "backward" for n in ast.walk(tree))
