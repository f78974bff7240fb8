"""Results of a step that lines around it hold over a further call of it, and read behind that.

All ways through the lines of one function are followed by their text: ``a = step(x); b = step(y); a - b`` is b - b.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, last_name, pairs_of
from paramgraph_kit.doctor.observe.calls_around import CallsAround, Ran
from paramgraph_kit.doctor.observe.captured_values import NOTHING
from paramgraph_kit.doctor.observe.copied_names import copy_of
from paramgraph_kit.doctor.observe.gradients import Scope
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.held_in_line import held_over, of_what
from paramgraph_kit.doctor.observe.kept_if_better import may_be
from paramgraph_kit.doctor.observe.named_lists import emptied_by
from paramgraph_kit.doctor.observe.parts_of_results import LOOKS, Holds, part_of
from paramgraph_kit.doctor.observe.read_later import is_about

_KEEPS = ("append", "appendleft", "setdefault", "extend", "insert")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_COLLECT = ("list", "tuple", "sorted", "dict", "set", "deque")
_ASK = ("len", "isinstance", "id", "type", "hasattr", "callable")
_NO_VALUE = ("shape", "size", "dim", "dtype", "device", "numel", "ndim", "is_cuda", "clear")
_MOST = 4000  # statements


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A result by the line that gives it a name."""

    line: ast.AST
    what: ast.expr
    ran: Ran
    value: Any
    is_old: bool = False


@dataclass(slots=True)
class _State:
    """What paths mean on the ways that lead to a line: results of the last call, and of those before."""

    values: dict[str, Any] = field(default_factory=dict)
    fresh: dict[str, frozenset[_Held]] = field(default_factory=dict)
    old: dict[str, frozenset[_Held]] = field(default_factory=dict)

    def copy(self) -> _State:
        return _State(dict(self.values), dict(self.fresh), dict(self.old))

    def join(self, other: _State) -> None:
        self.values = {**other.values, **self.values}
        for mine, more in ((self.fresh, other.fresh), (self.old, other.old)):
            for path, held in more.items():
                mine[path] = mine.get(path, frozenset()) | held

    def forget(self, path: str) -> None:
        for table in (self.values, self.fresh, self.old):
            for each in [each for each in table if _is_in(each, path)]:
                del table[each]


class HeldAround:
    """Follows one scope; gives lines with the parts of theirs that are to be copied."""

    def __init__(self, around: CallsAround, scope: Scope, holds: Holds) -> None:
        self.around, self.scope, self.holds = around, scope, holds
        nodes = [n for statement in scope.body.body for n in ast.walk(statement)]
        self._nodes = nodes
        self._parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        self._state, self._left = _State(), _MOST
        self._breaks, self._continues = list[_State](), list[_State]()
        self._ran_here = list[Ran]()  # by the statement that is followed, in this order
        self._line: ast.stmt = scope.body.body[0]
        self._found: dict[ast.AST, dict[ast.expr, str]] = {}

    def lines(self) -> Iterator[tuple[ast.AST, dict[ast.expr, str]]]:
        """The lines at which results are held over a call and read behind it: which parts, and their copies."""
        self._block(self.scope.body.body)
        if self._left > 0:
            yield from self._found.items()

    # Statements: each gives whether what follows it runs

    def _block(self, body: list[ast.stmt]) -> bool:
        return all(self._statement(each) for each in body)

    def _statement(self, node: ast.stmt) -> bool:
        self._left -= 1
        if self._left < 0 or isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            return True
        if isinstance(node, (ast.If, ast.Match)):
            self._line = node
            self._read(node.test if isinstance(node, ast.If) else node.subject)
            ways = [node.body, node.orelse] if isinstance(node, ast.If) else [*(c.body for c in node.cases), []]
            return self._either(ways)
        if isinstance(node, LOOPS):
            return self._loop(node)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self._line = node
                self._read(item.context_expr)
                self._store(item.optional_vars)
            return self._block(node.body)
        if isinstance(node, ast.Try):
            begun = self._state.copy()
            alive = self._block([*node.body, *node.orelse])
            for handler in node.handlers:
                after, self._state = self._state, begun.copy()
                if self._block(handler.body):
                    after.join(self._state)
                    alive = True
                self._state = after
            return self._block(node.finalbody) and alive
        return self._plain(node)

    def _plain(self, node: ast.stmt) -> bool:
        self._line, self._ran_here = node, []
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._call(node.value, dropped=True)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            if node.value is not None:
                self._read(node.value)
                self._give(node, [(target, value, self._held(value)) for target, value in pairs_of(node)])
        elif isinstance(node, ast.AugAssign):
            self._read(node.value)
            if isinstance(node.value, ast.List):
                self._add(node.target, [part for each in node.value.elts for part in self._held(each)])
            else:
                self._read(node.target)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self._store(target)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self._read(child)
        if isinstance(node, (ast.Break, ast.Continue)):
            (self._breaks if isinstance(node, ast.Break) else self._continues).append(self._state.copy())
        return not isinstance(node, (ast.Return, ast.Raise, ast.Break, ast.Continue))

    def _either(self, ways: list[list[ast.stmt]]) -> bool:
        begun, joined = self._state, list[_State]()
        for way in ways:
            self._state = begun.copy()
            if self._block(way):
                joined.append(self._state)
        self._state = joined[0] if joined else begun
        for each in joined[1:]:
            self._state.join(each)
        return bool(joined)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> bool:
        """Twice: what the first round holds is there in the second."""
        outer = self._breaks, self._continues
        self._breaks, after = [], list[_State]()
        if not isinstance(node, ast.While):
            self._line = node
            self._read(node.iter)
        for _ in range(2):
            after.append(self._state.copy())
            self._line, self._continues = node, []
            if isinstance(node, ast.While):
                self._read(node.test)
            else:
                self._next(node)
            alive = self._block(node.body)
            ends = [*([self._state] if alive else []), *self._continues]
            self._state = ends[0] if ends else after[-1]
            for each in ends[1:]:
                self._state.join(each)
        for each in (*self._breaks, *after):
            self._state.join(each)
        if isinstance(node, ast.While) and (emptied := emptied_by(node)):
            self._state.forget(emptied)
        self._breaks, self._continues = outer
        return self._block(node.orelse)

    def _next(self, node: ast.For | ast.AsyncFor) -> None:
        """A loop goes on: what gives its entries may have called the step for that."""
        what, target = node.iter, node.target
        while isinstance(what, ast.Call) and last_name(what.func) in ("enumerate", "tqdm") and what.args:
            if last_name(what.func) == "enumerate" and isinstance(target, ast.Tuple):
                target = target.elts[-1]
            what = what.args[0]
        ran = self.around.given_one_by_one(what, self.scope)
        self._store(node.target)
        if ran is not None:
            self._runs(ran)
            if isinstance(target, ast.Name):
                self._state.values[target.id] = ran.part
                self._state.fresh[target.id] = frozenset([_Held(node, target, ran, ran.part)])

    # Expressions, in the order in which they are evaluated

    def _read(self, node: ast.AST) -> None:
        if isinstance(node, FUNCTIONS):
            return
        if isinstance(node, _COMPREHENSIONS):
            self._comprehension(node)
        elif isinstance(node, ast.IfExp):
            self._read(node.test)
            begun = self._state.copy()
            self._read(node.body)
            one, self._state = self._state, begun
            self._read(node.orelse)
            self._state.join(one)
        elif isinstance(node, ast.NamedExpr):
            self._read(node.value)
            held = [replace(each, line=node) for each in self._held(node.value)]
            self._give(node, [(node.target, node.value, held)])
        elif isinstance(node, ast.Call):
            self._call(node)
        elif (path := _path(node)) is not None:
            if not self._is_about(node):
                self._reads(path)
        else:
            is_last = isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "-1"
            if isinstance(node, ast.Subscript) and is_last and (_path(node.value) or self._collected(node.value)):
                return
            if isinstance(node, (ast.List, ast.Tuple)):
                for each in (each for each in node.elts if isinstance(each, ast.Starred)):
                    self._collects(each.value, each.value)
            for child in ast.iter_child_nodes(node):
                if isinstance(child, (ast.expr, ast.keyword)):
                    self._read(child.value if isinstance(child, ast.keyword) else child)

    def _call(self, node: ast.Call, *, dropped: bool = False) -> None:
        func, name = node.func, last_name(node.func)
        if name in _ASK:
            return
        keeps = _keeps(node)
        if not keeps:
            self._read(func)
        for each in (*node.args, *(k.value for k in node.keywords)):
            self._read(each)
        if keeps and node.args:
            last = node.args[-1]
            parts = last.elts if name == "extend" and isinstance(last, ast.List) else [last]
            self._add(func.value, [held for each in parts for held in self._held(each)])  # type: ignore[attr-defined]
        if name in _COLLECT and node.args and not dropped:
            self._collects(node.args[0], node)
        if (ran := self.around.ran(node, self.scope)) is not None and not dropped:
            for what, reader in held_over(node, self._line) if not hasattr(self._line, "body") else self._in_head(node):
                self._held_in_line(what, reader, ran)
            self._runs(ran)
            self._ran_here.append(ran)

    def _in_head(self, call: ast.Call) -> Iterator[tuple[ast.expr, ast.expr | ast.stmt]]:
        heads = (c for c in ast.iter_child_nodes(self._line) if isinstance(c, ast.expr))
        whole = next((each for each in heads if any(n is call for n in ast.walk(each))), None)
        yield from held_over(call, ast.Expr(whole)) if whole is not None else ()

    def _held_in_line(self, what: ast.expr, reader: ast.expr | ast.stmt, ran: Ran) -> None:
        """A part of a line that is evaluated ahead of a call, and read behind it."""
        is_list = isinstance(reader, ast.AugAssign) and isinstance(reader.value, ast.List)
        keeps = isinstance(reader, ast.Call) and _keeps(reader)
        is_asked = isinstance(reader, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in reader.ops)
        if is_list or is_asked or (keeps and what is reader.func.value):  # type: ignore[union-attr]
            return
        base = of_what(what)
        if (path := _path(base)) is not None:
            for held in self._state.fresh.get(path, ()):
                if self._is_same(held.ran, ran):
                    self._tell(held.line, held.what, held.value)
        elif isinstance(base, ast.Call) and self._is_result(value := self._of(what)):
            first = self.around.ran(base, self.scope)
            if first is not None and self._is_same(first, ran):
                self._tell(self._line, what, value)

    def _comprehension(self, node: Any) -> None:
        then = self._state.copy()
        for each in node.generators:
            self._read(each.iter)
            ran = self.around.given_one_by_one(each.iter, self.scope)
            self._store(each.target)
            if ran is not None:
                self._runs(ran)
                parts = [node.value] if isinstance(node, ast.DictComp) else [node.elt]
                if ast.unparse(parts[0]) == ast.unparse(each.target) and self._is_kept(node):
                    self._tell(self._line, parts[0], ran.part)
            for test in each.ifs:
                self._read(test)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._read(part)
        self._state.join(then)

    def _collects(self, node: ast.expr, whole: ast.expr) -> None:
        """All that something gives one by one is kept at once."""
        if self._collected(node) is not None and self._is_kept(whole):
            self._found.setdefault(self._line, {})[whole] = f"[y.clone() for y in {ast.unparse(node)}]"

    def _collected(self, node: ast.expr) -> Ran | None:
        if isinstance(node, ast.Call) and last_name(node.func) in (*_COLLECT, "enumerate") and node.args:
            return self._collected(node.args[0])
        return self.around.given_one_by_one(node, self.scope)

    def _is_kept(self, node: ast.AST) -> bool:
        """Whether a list is read, and more of it than its last entry."""
        above = self._parents.get(node)
        if isinstance(above, ast.Subscript) and ast.unparse(above.slice) == "-1":
            return False
        if isinstance(above, ast.Call) and last_name(above.func) in ("sum", "any", "all", "deque"):
            return not isinstance(node, ast.GeneratorExp)
        if isinstance(above, ast.Assign) and isinstance(target := above.targets[0], ast.Name):
            named = [n for n in self._nodes if isinstance(n, ast.Name) and n.id == target.id]
            last = {id(n.value) for n in self._nodes if isinstance(n, ast.Subscript) and ast.unparse(n.slice) == "-1"}
            return any(isinstance(n.ctx, ast.Load) and id(n) not in last for n in named)
        return not isinstance(above, ast.Expr)

    # What is held

    def _runs(self, ran: Ran) -> None:
        """The step is called: what earlier calls of it gave is something else by now."""
        for path, mine in [*self._state.fresh.items()]:
            gone = frozenset(held for held in mine if self._is_same(held.ran, ran))
            self._state.fresh[path] = mine - gone
            self._state.old[path] = self._state.old.get(path, frozenset()) | gone

    def _is_same(self, one: Ran, other: Ran) -> bool:
        """Whether two calls replay the same graph, as far as the lines tell."""
        if one.of != other.of or any(self.around.moves(each.node, self.scope.body) for each in (one, other)):
            return False
        return not self.around.by_key or one.sizes == other.sizes

    def _reads(self, path: str) -> None:
        for each, mine in self._state.old.items():
            if _is_in(each, path) or _is_in(path, each):
                for held in mine:
                    self._tell(held.line, held.what, held.value)

    def _tell(self, line: ast.AST, what: ast.expr, value: Any) -> None:
        self._found.setdefault(line, {})[what] = copy_of(ast.unparse(what), value)

    def _held(self, value: ast.expr) -> list[_Held]:
        """The results that an expression is, or puts side by side."""
        if isinstance(value, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            parts = value.values if isinstance(value, ast.Dict) else value.elts
            return [held for each in parts for held in self._held(each)]
        found = list[_Held]()
        for part in may_be(value.value if isinstance(value, (ast.Starred, ast.NamedExpr)) else value):
            if not self._is_result(now := self._of(part)):
                continue
            base = of_what(part)
            ran = self.around.ran(base, self.scope)
            if ran is not None:
                found.append(_Held(self._line, part, ran, now, self._is_over(ran)))
                continue
            found += [_Held(self._line, part, each.ran, now) for each in self._state.fresh.get(_path(base) or "", ())]
            found += [replace(each, is_old=True) for each in self._state.old.get(_path(base) or "", ())]
        return found

    def _is_over(self, ran: Ran) -> bool:
        """Whether the statement has called the step again since."""
        at = next((n for n, each in enumerate(self._ran_here) if each.node is ran.node), len(self._ran_here))
        return any(self._is_same(ran, each) for each in self._ran_here[at + 1 :])

    def _give(self, node: ast.AST, pairs: list[tuple[ast.expr, ast.expr, list[_Held]]]) -> None:
        values = [self._of(value) for _, value, _ in pairs]
        for (target, value, held), what in zip(pairs, values, strict=True):
            if isinstance(target, (ast.Tuple, ast.List)):
                self._unpack(target, what, held)
                continue
            if isinstance(target, ast.Subscript):
                self._add(target.value, held if self._is_table(target.value) else [])
                continue
            self._store(target)
            path = _path(target)
            if path is None or not held:
                continue
            keys = value.keys if isinstance(value, ast.Dict) else None
            if isinstance(value, (ast.Tuple, ast.List)):
                for n, each in enumerate(value.elts):
                    self._name(f"{path}[{n!r}]", self._of(each), self._held(each))
            elif keys is not None and all(isinstance(key, ast.Constant) for key in keys):
                for key, each in zip(keys, value.values, strict=True):  # type: ignore[attr-defined]
                    self._name(f"{path}[{key.value!r}]", self._of(each), self._held(each))  # type: ignore[union-attr]
            else:
                self._name(path, what, held)

    def _name(self, path: str, value: Any, held: list[_Held]) -> None:
        if held:
            self._state.values |= {path: value} if value is not NOTHING else {}
            self._put(path, held)

    def _put(self, path: str, held: list[_Held]) -> None:
        for table, is_old in ((self._state.fresh, False), (self._state.old, True)):
            table[path] = table.get(path, frozenset()) | {each for each in held if each.is_old == is_old}

    def _unpack(self, target: ast.Tuple | ast.List, whole: Any, held: list[_Held]) -> None:
        parts = [*whole] if is_a(whole, (tuple, list)) and len(whole) == len(target.elts) else []
        for n, each in enumerate(target.elts):
            self._store(each)
            if parts and self._is_result(parts[n]) and (path := _path(each)) is not None:
                self._name(path, parts[n], held)

    def _add(self, target: ast.expr, held: list[_Held]) -> None:
        path = _path(target)
        if path is not None and held:
            self._put(path, held)

    def _is_table(self, node: ast.expr) -> bool:
        """Whether lines make a list, or a dictionary, of a name: an entry of a tensor gets a copy."""
        given = [
            n.value
            for n in self._nodes
            if isinstance(n, ast.Assign) and ast.unparse(node) in map(ast.unparse, n.targets)
        ]
        made = (ast.Dict, ast.List, ast.ListComp, ast.DictComp)
        return any(
            isinstance(each, made) or (isinstance(each, ast.BinOp) and isinstance(each.left, ast.List))
            for each in given
        )

    def _store(self, target: ast.expr | None) -> None:
        for each in ast.walk(target) if target is not None else ():
            if isinstance(each, (ast.Name, ast.Attribute)) and not isinstance(each.ctx, ast.Load):
                if (path := _path(each)) is not None:
                    self._state.forget(path)
                if isinstance(each, ast.Name):
                    self._let_go(each.id)

    def _let_go(self, name: str) -> None:
        """A name means something else: what was called by it is another object's."""
        for path, mine in self._state.fresh.items():
            self._state.fresh[path] = frozenset(held for held in mine if name not in held.ran.names)

    def _is_result(self, part: Any) -> bool:
        return part is not NOTHING and part is not None and self.holds(part)

    def _of(self, node: ast.expr) -> Any:
        """The result, or the part of one, that an expression is."""
        if (path := _path(node)) in self._state.values:
            return self._state.values[path]
        if isinstance(node, (ast.NamedExpr, ast.Starred)):
            return self._of(node.value)
        if (ran := self.around.ran(node, self.scope)) is not None:
            return ran.part if ran.part is not None else NOTHING
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS:
            base = self._of(node.func.value)
            return base if is_a(base, torch.Tensor) else NOTHING
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            base = self._of(node.value)
            return NOTHING if base is NOTHING else part_of(base, node)
        return NOTHING

    def _is_about(self, node: ast.AST) -> bool:
        is_shape = isinstance(node, ast.Attribute) and node.attr in _NO_VALUE
        return is_shape or is_about(node, self._parents)


def _path(node: ast.AST) -> str | None:
    """A variable, an attribute, or an entry by a key that is written there."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := _path(node.value)) is not None:
        return f"{base}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        base = _path(node.value)
        return f"{base}[{node.slice.value!r}]" if base is not None else None
    return None


def _keeps(call: ast.Call) -> bool:
    func = call.func
    return isinstance(func, ast.Attribute) and func.attr in _KEEPS and _path(func.value) is not None


def _is_in(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}.", f"{other}["))
