"""Whose ``param_groups`` a line sets an entry of: by the objects that its names lead to, through loops and helpers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, defines, every, here, tree_of
from paramgraph_kit.doctor.observe.gradients import Search

_UNKNOWN = object()  # whatever it is, it may be what is looked for
_MOST = 12  # steps from a name to its object
_GROWS = ("append", "extend", "insert", "setdefault", "update", "pop", "clear", "remove")
_HANDS_ON = ("update", "load_state_dict", "add_param_group")
_MAKES = ("__init__", "__post_init__", "__new__", "setup", "build")


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """A body of lines, what its names mean, and what it is given where a call of it is read."""

    file: str
    body: Any  # a module, or a function; None where it cannot be read
    names: dict[str, Any]
    given: dict[str, ast.expr] = field(default_factory=dict)
    caller: Lines | None = None
    function: Any = None  # that these lines call
    closed: dict[str, Any] = field(default_factory=dict)  # what a nested function has of the one around it

    @property
    def owner(self) -> Any:
        """The object whose method these lines call."""
        return getattr(self.function, "__self__", None)

    def called(self, call: ast.Call, helper: Any) -> Lines:
        """The lines of a function that a call here runs."""
        code = helper.__code__
        tree = tree_of(code.co_filename)
        body = next((n for n in (every(tree) if tree is not None else ()) if defines(n, code)), None)
        names: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = {} if any(isinstance(a, ast.Starred) for a in call.args) else dict(zip(names, call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg is not None}
        closed = dict(zip(code.co_freevars, helper.__closure__ or (), strict=False))
        return Lines(code.co_filename, body, helper.__globals__, given, self, self.function, closed)


def may_set_its(target: ast.expr, lines: Lines, optimizer: torch.optim.Optimizer) -> bool:
    """Whether an entry of what a line sets may be of a group of this optimizer, as far as is known."""
    if lines.body is None or not isinstance(target, ast.Subscript):
        return True
    return any(_may_be_group(each, target.value, lines, optimizer) for each in _values(target.value, lines))


def may_schedule_its(scheduler: ast.expr, lines: Lines, optimizer: torch.optim.Optimizer) -> bool:
    """Whether a scheduler that a function makes may be of this optimizer."""
    made = _made_as(scheduler, lines) if lines.body is not None and isinstance(scheduler, ast.Name) else []
    owners = [_optimizer_of(each, lines) for each in made]
    return not owners or any(_may_be(v, optimizer) for each in owners for v in each)


def _may_be_group(value: Any, node: ast.expr, lines: Lines, optimizer: torch.optim.Optimizer) -> bool:
    if type(value) is not dict:
        return True
    if any(value is group for group in optimizer.param_groups):
        return True
    return _overlaps([value], optimizer) or ("params" not in value and _is_handed_on(node, lines))


def _may_be(value: Any, optimizer: torch.optim.Optimizer) -> bool:
    if not isinstance(value, torch.optim.Optimizer):
        return True
    return value is optimizer or _overlaps(value.param_groups, optimizer)


def _overlaps(groups: list[dict[str, Any]], optimizer: torch.optim.Optimizer) -> bool:
    """Whether they have a parameter that this optimizer has as well, as those of a wrapper do."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return any(id(p) in own for group in groups for p in group.get("params", ()))


def _is_handed_on(node: ast.expr, lines: Lines) -> bool:
    """Whether a dictionary that is no group is given to one: ``group.update(cfg)``."""
    tree, text = tree_of(lines.file), ast.unparse(node)
    for call in (n for n in (every(tree) if tree is not None else ()) if isinstance(n, ast.Call)):
        hands = isinstance(call.func, ast.Attribute) and call.func.attr in _HANDS_ON
        inside = [*(call.args if hands else ()), *(k.value for k in call.keywords if k.arg is None)]
        if any(ast.unparse(n) == text for each in inside for n in ast.walk(each) if isinstance(n, ast.expr)):
            return True
    return False


def _made_as(node: ast.Name, lines: Lines) -> list[ast.Call]:
    """The calls that make what a name has; none where any of its lines gives it something else."""
    stored, given = _stores(node.id, lines.body)
    values = [v for target, v in given if isinstance(target, ast.Name) and isinstance(v, ast.Call)]
    return values if len(values) == stored else []


def _optimizer_of(call: ast.Call, lines: Lines) -> list[Any]:
    """What a scheduler is made for."""
    kind = Search(lines.names, None, set())._value(call.func)
    given = [k.value for k in call.keywords if k.arg == "optimizer"] or call.args[:1]
    is_scheduler = isinstance(kind, type) and issubclass(kind, LRScheduler)
    return _values(given[0], lines) if is_scheduler and given else [_UNKNOWN]


# What names lead to


def _values(node: ast.expr, lines: Lines, left: int = _MOST) -> list[Any]:
    """What it may be, each of them; ``_UNKNOWN`` where nobody knows."""
    found = _meant(node, lines, left) if left else [_UNKNOWN]
    if lines.owner is not None and isinstance(node, (ast.Name, ast.Attribute)) and _UNKNOWN in found:
        return [lines.owner] if _is_called_on(node, lines) else found
    return found


def _is_called_on(node: ast.expr, lines: Lines) -> bool:
    """Whether the step is called on that: ``one.step(x)``, by which lines are taken to be about it."""
    text, name = ast.unparse(node), getattr(lines.function, "__name__", "")
    calls = (n.func for n in ast.walk(lines.body) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    return any(f.attr == name and ast.unparse(f.value) == text for f in calls)


def _meant(node: ast.expr, lines: Lines, left: int) -> list[Any]:
    if isinstance(node, ast.Name):
        return _of_name(node, lines, left - 1)
    if isinstance(node, ast.Attribute):
        return [_attribute(each, node.attr, lines) for each in _values(node.value, lines, left - 1)]
    if isinstance(node, ast.Subscript):
        if _is_changed(node.value, lines):
            return [_UNKNOWN]
        return [part for each in _values(node.value, lines, left - 1) for part in _entries(each, node.slice)]
    if isinstance(node, (ast.IfExp, ast.BoolOp)):
        either = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
        return [value for each in either for value in _values(each, lines, left - 1)]
    if isinstance(node, (ast.Tuple, ast.List)):
        held = [_values(each, lines, left - 1) for each in node.elts]
        return [[each[0] if len(each) == 1 else _UNKNOWN for each in held]]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        both = [_values(each, lines, left - 1) for each in (node.left, node.right)]
        return [a + b if type(a) is list and type(b) is list else _UNKNOWN for a in both[0] for b in both[1]]
    return [{}] if isinstance(node, ast.Dict) and not node.keys else [_UNKNOWN]


def _of_name(node: ast.Name, lines: Lines, left: int) -> list[Any]:
    name, body = node.id, lines.body
    loop = _loop_around(node, body)
    if loop is not None:
        again = [n for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == name]
        return [_UNKNOWN] if any(isinstance(n.ctx, ast.Store) for n in again) else _in_turn(loop, name, lines, left)
    stored, given = _stores(name, body)
    if name in _arguments_of(body):
        if stored:
            return [_UNKNOWN]
        if lines.caller is not None:
            return _values(lines.given[name], lines.caller, left) if name in lines.given else [_UNKNOWN]
        return [lines.names.get(name, _UNKNOWN)]
    if not stored:
        return _of_outer(name, lines, left)
    if stored != len(given):
        return [_UNKNOWN]
    found: list[Any] = []
    for target, value in given:
        if isinstance(target, ast.For):
            found += _in_turn(target, name, lines, left)
        else:
            found += [part for each in _values(value, lines, left) for part in _unpacked(target, each, name)]
    is_known = all(each is not _UNKNOWN for each in found)
    return found if is_known or stored > 1 else [lines.names.get(name, _UNKNOWN)]


def _of_outer(name: str, lines: Lines, left: int) -> list[Any]:
    """A name that these lines do not set: what it has now, where one line of its file gives it that."""
    tree = tree_of(lines.file)
    nodes = every(tree) if tree is not None else ()
    if any(name in n.names for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal))):
        return [_UNKNOWN]
    around = [n for n in nodes if isinstance(n, FUNCTIONS[:2]) and n is not lines.body and _holds(n, lines.body)]
    if bound := sum(_stores(name, n)[0] + (name in _arguments_of(n)) for n in around):
        cell = lines.closed.get(name)
        return [cell.cell_contents] if cell is not None and bound == 1 else [_UNKNOWN]
    if tree is not None and lines.body is not tree and _stores(name, tree)[0]:
        return _of_name(ast.Name(name, ast.Load()), Lines(lines.file, tree, lines.names), left)
    return [lines.names.get(name, _UNKNOWN)]


def _holds(outer: Any, body: Any) -> bool:
    """Whether a function stands in another one."""
    return hasattr(body, "lineno") and outer.lineno < body.lineno <= (outer.end_lineno or 0)


def _stores(name: str, body: Any) -> tuple[int, list[tuple[ast.AST, ast.expr]]]:
    """How often lines set a name, and what those give it that can be read: targets or loops, with values."""
    nodes = [n for statement in body.body for n in here(statement, FUNCTIONS[:2])]
    stored = sum(isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load) for n in nodes)
    given: list[tuple[ast.AST, ast.expr]] = []
    for node in nodes:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value else targets
        given += [(each, node.value) for each in targets if _has(each, name)]  # type: ignore[attr-defined]
        if isinstance(node, ast.For) and _has(node.target, name):
            given.append((node, node.iter))
    return stored, given


def _has(target: ast.expr, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(target))


def _arguments_of(body: Any) -> set[str]:
    given = getattr(body, "args", None)
    every_one = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if given else ()
    return {each.arg for each in every_one if each is not None}


def _loop_around(node: ast.Name, body: Any) -> ast.For | None:
    """The innermost loop around a name that gives it what it goes through."""
    found = None
    for loop in (n for n in ast.walk(body) if isinstance(n, ast.For) and _has(n.target, node.id)):
        if any(n is node for s in loop.body for n in ast.walk(s)):
            found = loop  # those within come later
    return found


def _in_turn(loop: ast.For, name: str, lines: Lines, left: int) -> list[Any]:
    """What a loop gives a name."""
    return [part for each in _rounds(loop.iter, lines, left) for part in _unpacked(loop.target, each, name)]


def _rounds(node: ast.expr, lines: Lines, left: int) -> list[Any]:
    """What a loop goes through."""
    if not left:
        return [_UNKNOWN]
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in ("list", "tuple", "reversed", "sorted", "iter") and len(node.args) == 1:
            return _rounds(node.args[0], lines, left - 1)
        if name == "chain":
            return [value for each in node.args for value in _rounds(each, lines, left - 1)]
        if name == "enumerate":
            return [[_UNKNOWN, each] for each in _rounds(node.args[0], lines, left - 1)] if node.args else [_UNKNOWN]
        if name == "zip":
            held = [_rounds(each, lines, left - 1) for each in node.args]
            most = max(map(len, held), default=0)
            return [[each[min(n, len(each) - 1)] for each in held] for n in range(most)] or [_UNKNOWN]
        if name in ("values", "items") and isinstance(node.func, ast.Attribute) and not node.args:
            if _is_changed(node.func.value, lines):
                return [_UNKNOWN]
            tables = _values(node.func.value, lines, left - 1)
            held_in = [[*t.values()] if type(t) is dict and t else [_UNKNOWN] for t in tables]
            return [[_UNKNOWN, each] if name == "items" else each for one in held_in for each in one]
        return [_UNKNOWN]
    if _is_changed(node, lines):
        return [_UNKNOWN]
    return [part for each in _values(node, lines, left - 1) for part in _elements(each)]


def _is_changed(node: ast.expr, lines: Lines) -> bool:
    """Whether lines of the file add to what a path has, which has others by then."""
    if isinstance(node, ast.Attribute) and node.attr == "param_groups":
        return False  # they stay those of the optimizer
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    tree, text = tree_of(lines.file), ast.unparse(node)
    for each in every(tree) if tree is not None else ():
        grows = isinstance(each, ast.Attribute) and each.attr in _GROWS
        is_set = isinstance(each, ast.Subscript) and not isinstance(each.ctx, ast.Load)
        if (grows or is_set) and ast.unparse(each.value) == text:  # type: ignore[attr-defined]
            return True
    return False


def _elements(value: Any) -> list[Any]:
    return [*value] if type(value) in (list, tuple) and value else [_UNKNOWN]


def _entries(value: Any, key: ast.expr) -> list[Any]:
    """An entry; each of them, where the key is not written out; the same list for a slice of it."""
    if isinstance(key, ast.Slice):
        return [value] if type(value) in (list, tuple) else [_UNKNOWN]
    if type(value) not in (list, tuple, dict) or not value:
        return [_UNKNOWN]
    try:
        one = ast.literal_eval(key)
    except ValueError:
        return [*value.values()] if type(value) is dict else [*value]
    try:
        return [value[one]]
    except (LookupError, TypeError):
        return [_UNKNOWN]


def _unpacked(target: ast.AST, value: Any, name: str) -> Iterator[Any]:
    """What a name of a target gets of a value."""
    if isinstance(target, ast.Name):
        if target.id == name:
            yield value
    elif isinstance(target, (ast.Tuple, ast.List)):
        is_told = type(value) in (list, tuple) and len(value) == len(target.elts)
        is_told = is_told and not any(isinstance(each, ast.Starred) for each in target.elts)
        for number, each in enumerate(target.elts):
            yield from _unpacked(each, value[number] if is_told else _UNKNOWN, name)
    elif isinstance(target, ast.Starred) and _has(target, name):
        yield _UNKNOWN


def _attribute(owner: Any, name: str, lines: Lines) -> Any:
    """What an object has by that name, where no line gives it another one later."""
    if owner is _UNKNOWN or (name != "param_groups" and _is_set_again(owner, name, lines)):
        return _UNKNOWN
    if name == "param_groups" and any(hasattr(each, name) for each in getattr(owner, "__dict__", {}).values()):
        return _UNKNOWN  # it hands on what is set there to another one
    found = Search({"it": owner}, None, set())._value(ast.Attribute(ast.Name("it", ast.Load()), name, ast.Load()))
    return _UNKNOWN if found is None else found


def _is_set_again(owner: Any, name: str, lines: Lines) -> bool:
    init = getattr(getattr(type(owner), "__init__", None), "__code__", None)
    for file in {lines.file, init.co_filename if init is not None else lines.file}:
        tree = tree_of(file)
        nodes = every(tree) if tree is not None else ()
        made = {id(n) for f in nodes if isinstance(f, FUNCTIONS[:2]) and f.name in _MAKES for n in ast.walk(f)}
        sets = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr == name and isinstance(n.ctx, ast.Store)]
        if len(sets) > 1 and any(id(n) not in made for n in sets):
            return True
    return False
