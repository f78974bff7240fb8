"""What lines around a step add to a list that it reads, set there or take out: tried on the step, as a round does."""

from __future__ import annotations

import ast
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name, tree_of
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.captured_entries import ADDS, LEAVES, TAKES, TURNS
from paramgraph_kit.doctor.observe.captured_values import NOTHING
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.loop_elements import rounds_of
from paramgraph_kit.doctor.observe.loop_state import Given
from paramgraph_kit.doctor.observe.near_numbers import another
from paramgraph_kit.doctor.restore.holder import is_array

HOLDS = (list, deque, dict, set, OrderedDict, defaultdict, Counter)
ARRAYS = ("fill", "put", "partition", "itemset", "byteswap", "setfield")  # methods of arrays that write them
_BY_FUNCTIONS = {  # of modules, which change what they are given, as a method would
    **dict.fromkeys(("heappush", "insort", "insort_left", "insort_right"), "append"),
    **dict.fromkeys(("heappushpop", "heapreplace"), "__setitem__"),
    **dict.fromkeys(("shuffle", "heapify"), "reverse"),
    "heappop": "popleft",
}
_ON_ARRAYS = ("at", "copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis")
_FIRST = ("appendleft", "extendleft", "insert")
_ROUNDS = (1, 6)  # a length decides perhaps only later
_DEEP = 3  # lists in lists


@dataclass(frozen=True, slots=True)
class Change:
    """A line that changes the entries of a list or a dictionary, and the value that it gives, as far as it is known."""

    node: ast.AST
    value: Any
    adds: bool = False  # a key that is not there

    def make(self, holds: Any) -> None:
        """Do what the line does; where its value is not known, with one like the last entry."""
        node = self.node
        if self.adds:
            if holds:
                last = [*holds][-1]
                holds[_new_key(holds)] = _known(self.value, holds[last])
        elif keys := _keys_written(node) if isinstance(holds, dict) else []:
            for key in keys:
                Change(ast.Pass(), NOTHING)._enter(holds, key)
        elif isinstance(node, ast.Call):
            self._call(holds, last_name(node.func), node)
        elif isinstance(node, ast.Delete):
            target = node.targets[0]
            _take(holds, _key(target) if isinstance(target, ast.Subscript) else NOTHING)
        else:
            into = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(into, ast.Subscript):
                self._enter(holds, _key(into))
            elif isinstance(node, ast.AugAssign):  # ``+=`` and ``|=``, and of sets ``-=``
                takes = isinstance(holds, set) and isinstance(node.op, (ast.Sub, ast.BitAnd))
                self._call(holds, "discard" if takes else "extend", node)
            else:
                self._enter(holds, NOTHING)

    def is_known(self, holds: Any) -> bool:
        """Whether there is anything to try it with."""
        return len(holds) > 0 or not _has_gaps(self.value)

    def _call(self, holds: Any, name: str, node: ast.AST) -> None:
        by_function = _BY_FUNCTIONS.get(name, "")
        name = by_function or ("discard" if name in LEAVES else name)
        if name == "setdefault" or (name in ADDS and isinstance(holds, dict)):
            return  # what is there stays
        if name == "move_to_end" and isinstance(holds, OrderedDict) and holds:
            holds.move_to_end(next(iter(holds)))
        elif name in TAKES:
            given = node.args if isinstance(node, ast.Call) and not by_function else []
            key = given[0].value if given and isinstance(given[0], ast.Constant) else NOTHING
            if name == "clear":
                holds.clear()
            else:
                _take(holds, -1 if name == "pop" and not given else key)
        elif name in TURNS:
            _put(holds, [*holds][::-1] if not isinstance(holds, dict) else holds)
        elif (name in ADDS or isinstance(holds, set)) and not isinstance(holds, dict):
            plain = name not in ("append", "appendleft", "insert", "add")
            more = [*self.value] if plain and type(self.value) in (list, tuple) else [self.value]
            last = [*holds][-1:]
            if isinstance(holds, set):
                more = [_new_key(holds) if last and _has_gaps(each) else each for each in more]
            more = [_known(each, last[0]) if last else each for each in more]
            _put(holds, [*more, *holds] if name in _FIRST else [*holds, *more])
        else:
            self._enter(holds, NOTHING)

    def _enter(self, holds: Any, key: Any) -> None:
        if isinstance(holds, set):
            return
        is_list = not isinstance(holds, dict)
        keys = [*range(len(holds))] if is_list else [*holds]
        if key is not NOTHING and not (is_list and not (type(key) is int and -len(holds) <= key < len(holds))):
            then = holds[key] if is_list or key in holds else holds[keys[-1]] if keys else NOTHING
            holds[key] = _known(self.value, then)
            return
        for each in keys:
            holds[each] = other(holds[each])


@dataclass(slots=True)
class Entries:
    """A list or a dictionary, and the lines between two calls of a step that change what it has."""

    holds: Any
    changes: tuple[Change, ...]
    is_seen: bool = False  # a call with other entries has run to its end

    def tries(self) -> Generator[None]:
        """Each time it goes on there is what some rounds leave, or one line alone; then it is as it was."""
        if is_array(self.holds):
            yield from self._of_array()
            return
        then = dict(self.holds) if isinstance(self.holds, dict) else [*self.holds]
        known = [each for each in self.changes if each.is_known(self.holds)]
        every = [(known, rounds) for rounds in _ROUNDS]
        every += [([each], rounds) for each in known for rounds in _ROUNDS if len(known) > 1]
        for changes, rounds in every if known else ():
            try:
                with torch.no_grad():
                    for _ in range(rounds):
                        for each in changes:
                            each.make(self.holds)
                yield
            finally:
                _put(self.holds, then)

    def _of_array(self) -> Generator[None]:
        then = self.holds[:] if not hasattr(self.holds, "dtype") else self.holds.copy()
        for by in (*_ROUNDS, -1):  # the next may lie behind the last
            try:
                for each in self.changes:
                    _write(self.holds, each, by)
                yield
            finally:
                self.holds[... if hasattr(self.holds, "dtype") else slice(None)] = then

    def as_many(self) -> Generator[None]:
        """Each time there are as many entries as there were, and other ones; then it is as it was."""
        then: Any = dict(self.holds) if isinstance(self.holds, dict) else [*self.holds]
        ways: list[Any] = [[other(each) for each in then]]
        if isinstance(self.holds, dict):
            ways = [{key: other(each) for key, each in then.items()}]
            ways += [{**dict([*then.items()][:-1]), _new_key(then): [*then.values()][-1]}] if then else []
        elif isinstance(self.holds, set):
            ways = [[*then[:-1], _new_key(self.holds)]] if then else []
        for way in ways:
            try:
                _put(self.holds, way)
                yield
            finally:
                _put(self.holds, then)


def has_entries(value: Any) -> bool:
    """Whether lines can change what it has: a list, a dictionary or the like, or an array."""
    return type(value) in HOLDS or (is_array(value) and hasattr(value, "__setitem__"))


def given_in_place(call: ast.Call) -> Iterator[ast.expr]:
    """What a function changes that it is given: ``np.copyto(self.pos, now)``, ``heappush(self.open, cost)``."""
    name = last_name(call.func)
    if call.args and (name in _BY_FUNCTIONS or name in _ON_ARRAYS):
        yield call.args[0]
    yield from (k.value for k in call.keywords if k.arg == "out")


def changes_by(line: Given, holds: Any, value: Any) -> Iterator[Change]:
    """What a line does to what an object holds: another value of what is there, and a key that is not."""
    made, node = Change(line.node, value), line.node
    if not isinstance(holds, dict):
        yield made
        return
    into = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    subscripts = [e for t in into if t is not None for e in elements_of(t) if isinstance(e, ast.Subscript)]
    merges = isinstance(node, ast.Call) or (isinstance(node, ast.AugAssign) and not subscripts)
    if not subscripts and not merges:
        yield made
        return
    name = last_name(node.func) if isinstance(node, ast.Call) else "update" if merges else "__setitem__"
    args = node.args if isinstance(node, ast.Call) else [node.value] if isinstance(node, ast.AugAssign) else []
    if name not in ("update", "setdefault", "__setitem__"):
        yield made
        return
    whole = merges and name == "update"
    if not (whole and type(holds) is dict and not all(isinstance(each, ast.Dict) for each in args)):
        yield made  # of another dictionary nobody knows whether it has what is there
    keys = [s.slice for s in subscripts] if subscripts else [] if whole else [*args[:1]]
    if whole and _keys_written(node):
        return
    if isinstance(node, ast.AugAssign) and subscripts and type(holds) not in (Counter, defaultdict):
        return  # which reads it first
    if whole or not all(_is_there(key, line, holds) for key in keys):
        yield replace(made, adds=True)


def _is_there(key: ast.expr, line: Given, holds: Any) -> bool:
    """Whether a key of a dictionary is known to be one of its own: written out, or of a loop over them."""
    if isinstance(key, ast.Constant):
        return True  # which is entered as it is written
    if isinstance(key, ast.BinOp) and isinstance(key.op, ast.Mod):  # ``self.rates[k % 2]``
        wide = key.right.value if isinstance(key.right, ast.Constant) else len(holds)
        return type(wide) is int and {*range(wide)} <= {*holds}
    tree, at, own = tree_of(line.file), line.target.rpartition("[")[0], ast.unparse(key)
    number: int = line.node.lineno  # type: ignore[attr-defined]
    for node in ast.walk(tree) if tree is not None and isinstance(key, ast.Name) else ():
        if not getattr(node, "lineno", number + 1) <= number <= (getattr(node, "end_lineno", 0) or 0):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and ast.unparse(node.test.left) == own:
            if isinstance(node.test.ops[0], ast.In) and ast.unparse(node.test.comparators[0]) == at:
                return True
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            firsts = ((next(elements_of(target), None), over) for target, over in rounds_of(node.target, node.iter))
            if any(f is not None and ast.unparse(f) == own and _goes_over(over, at, holds) for f, over in firsts):
                return True
    return False


def _goes_over(over: ast.expr, at: str, holds: Any) -> bool:
    """Whether what a loop goes over are keys that are there."""
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr in ("keys", "items"):
        over = over.func.value
    if ast.unparse(over) == at:
        return True
    if isinstance(over, (ast.Tuple, ast.List)):
        return all(isinstance(e, ast.Constant) and e.value in holds for e in over.elts)
    counts = isinstance(over, ast.Constant) or (isinstance(over, ast.Call) and last_name(over.func) == "range")
    return counts and {*holds} == {*range(len(holds))}


def _new_key(holds: Any) -> Any:
    """A key that is not there, like the last."""
    made = [*holds][-1]
    for _ in range(len(holds) + 1):
        if made not in holds:
            break
        made = _like(made)
    return made


def _like(key: Any) -> Any:
    if type(key) is tuple:
        return tuple(map(_like, key))
    return f"{key}_" if type(key) is str else another(key)


def _write(holds: Any, change: Change, by: int) -> None:
    """Write an array as a line does: what it gives, as far as that is known; else other numbers."""
    node, kind = change.node, getattr(getattr(holds, "dtype", None), "kind", "")
    filled = isinstance(node, ast.Call) and last_name(node.func) == "fill"
    if (isinstance(node, ast.Assign) or filled) and type(change.value) in NUMBERS:
        key = (
            _key(into) if isinstance(node, ast.Assign) and isinstance(into := node.targets[0], ast.Subscript) else None
        )
        holds[key if type(key) is int else ... if kind else slice(None)] = change.value
    elif kind == "b":
        holds[...] = ~holds
    elif kind in ("i", "u"):
        holds[...] = holds + by
    elif kind in ("f", "c"):
        holds[...] = holds * 1.25 + 0.0625 * by
    else:
        for number in range(0 if kind else len(holds)):
            holds[number] = another(holds[number]) if holds[number] != 255 else 0


def _put(holds: Any, entries: Any) -> None:
    entries = dict(entries) if isinstance(holds, dict) else [*entries]
    holds.clear()
    holds.update(entries) if isinstance(holds, (dict, set)) else holds.extend(entries)


def _take(holds: Any, key: Any) -> None:
    if not holds:
        return
    if isinstance(holds, (dict, set)):
        key = key if key is not NOTHING and key in holds else next(iter(holds))
        holds.pop(key) if isinstance(holds, dict) else holds.discard(key)
    else:
        del holds[key if type(key) is int and -len(holds) <= key < len(holds) else 0]


def _key(target: ast.Subscript) -> Any:
    """The key that a line has as it is written."""
    try:
        return ast.literal_eval(target.slice)
    except (ValueError, TypeError):
        return NOTHING


def _keys_written(node: ast.AST) -> list[Any]:
    """The keys of a dictionary that a line adds: ``d |= {"a": 1}``, ``d.update({"a": 1}, b=2)``; none of others."""
    is_update = isinstance(node, ast.Call) and last_name(node.func) == "update"
    given = node.args[0] if is_update and node.args else node.value if isinstance(node, ast.AugAssign) else None  # type: ignore[attr-defined]
    named = [k.arg for k in node.keywords] if isinstance(node, ast.Call) and is_update else []
    keys = [k for k in given.keys if isinstance(k, ast.Constant)] if isinstance(given, ast.Dict) else []
    whole = given is None or (isinstance(given, ast.Dict) and len(keys) == len(given.keys))
    return [*named, *(k.value for k in keys)] if whole and None not in named else []


def _has_gaps(value: Any) -> bool:
    return value is NOTHING or (type(value) in (list, tuple) and any(map(_has_gaps, value)))


def _known(value: Any, like: Any) -> Any:
    """A value, where what nobody knows of it is like another one."""
    if type(value) in (list, tuple):
        alike = like if type(like) in (list, tuple) and len(like) == len(value) else [NOTHING] * len(value)
        kind = type(like) if type(like) in (list, tuple) else type(value)
        parts = [_known(*pair) for pair in zip(value, alike, strict=True)]
        return other(like) if any(each is NOTHING for each in parts) else kind(parts)
    return other(like) if value is NOTHING else value


def other(value: Any, deep: int = _DEEP) -> Any:
    """A value like this one, with other numbers, or other memory."""
    if is_a(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if deep and type(value) in (list, tuple):
        return type(value)(other(each, deep - 1) for each in value)
    if type(value) is set and value:
        return {*value, _new_key(value)}
    if deep and type(value) is deque:
        return deque((other(each, deep - 1) for each in value), value.maxlen)
    if deep and type(value) is dict:
        return {key: other(each, deep - 1) for key, each in value.items()}
    return another(value)
