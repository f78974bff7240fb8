"""Loops that the device ends: all rounds run, and what is read behind the loop stays as it was at the end.

What only the loop itself reads may hold anything in the rounds after the end. What grows by one piece in each round, a
list or a tensor that is joined, is cut behind the launch, with all that comes after the loop.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import torch

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of
from paramgraph_kit.rewrite.expressions.numbers.exact import as_python_has_it
from paramgraph_kit.rewrite.expressions.numbers.readings import divided_by_name
from paramgraph_kit.rewrite.loops.early import bound_of, else_of, given_to, is_listed, known_before, name_of
from paramgraph_kit.rewrite.loops.emptied import emptied
from paramgraph_kit.rewrite.loops.inner import Inner, ends_of, unset_in
from paramgraph_kit.rewrite.loops.leaving import begun_at, bounded, counted_by, is_leave, lines_of, read_in
from paramgraph_kit.rewrite.source.edits import (
    SIMPLE,
    Edit,
    Function,
    Source,
    combined,
    locals_of,
    names_in,
    path_of,
    within,
)
from paramgraph_kit.rewrite.source.masked import mask_in, mask_of_put
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called, integer, is_number, target_of
from paramgraph_kit.rewrite.source.pure import is_pure

_IN_PLACE = {"copy_": "", "fill_": "", "add_": "0", "sub_": "0", "mul_": "1", "div_": "1"}
_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Raise)


@dataclass(slots=True)
class Ending:
    """The edits of a loop that goes on, and of what its end decides the length."""

    source: Source
    loop: ast.stmt
    edits: list[Edit]
    handed: dict[str, str] = field(default_factory=dict)  # how what has grown leaves the graph
    lines: list[str] = field(default_factory=list)  # what cuts it, behind the launch
    left: ast.stmt | None = None  # a branch of it that leaves the function
    stays: bool = False  # it is no loop, and computes in the graph what is read behind the launch

    @property
    def gone(self) -> list[ast.stmt]:
        """The same where it is no loop, and all of it is done behind the launch."""
        return [self.loop] if isinstance(self.loop, ast.Assign) and not self.stays else []


def end_all(place: Place) -> list[Edit]:
    """A loop that goes on, where nothing has to be cut behind the launch."""
    found = ending(place)
    return found.edits if found is not None and not found.handed else []


def ending(place: Place, rounds: type[LoopRounds] | None = None) -> Ending | None:
    """How the loop of a statement that ends it goes on; None where it may do something that nobody can leave out.

    ``rounds``: what rewrites its lines.
    """
    source, function = place.source, place.source.function_of(place.statement)
    loop = _loop_of(place)
    if loop is None or function is None:
        return None
    if loop.orelse and (isinstance(loop, ast.While) or not else_of(source, loop)):
        return None
    breaks = [each for part in loop.body for each in ends_of(part)]
    leave = [part for part in loop.body if isinstance(part, ast.If) and is_leave(part)]
    if (not breaks and not leave and isinstance(loop, ast.For)) or len(leave) > 1:
        return None
    if leave and (breaks or loop.orelse or place.statement is not leave[0] or isinstance(loop, ast.While)):
        return None
    left = {n for part in (*breaks, *leave) for n in within(part)}
    if any(isinstance(n, _LEAVES) for part in loop.body for n in within(part) if n not in left):
        return None
    return (rounds or LoopRounds)(place, source, function, loop, breaks, *leave).found()


def _loop_of(place: Place) -> ast.For | ast.While | None:
    node: ast.AST | None = place.statement
    while node is not None and not isinstance(node, (ast.For, ast.While, Function)):
        node = place.source.parents.get(node)
    return node if isinstance(node, (ast.For, ast.While)) else None


class LoopRounds(Inner):
    """One loop, while it is rewritten."""

    def __init__(
        self,
        place: Place,
        source: Source,
        function: Function,
        loop: ast.For | ast.While,
        breaks: list[ast.stmt],
        leave: ast.If | None = None,
    ) -> None:
        self.leave = leave
        self.place, self.source, self.function, self.loop, self.breaks = place, source, function, loop, breaks
        inside = set(ast.walk(loop)) - {n for part in loop.orelse for n in ast.walk(part)}
        loads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        nested = source.parents.get(loop) not in (function, source.parents.get(function.body[0]))
        nested = nested and not isinstance(source.parents.get(loop), ast.With)
        end = loop.body[-1].end_lineno or loop.lineno
        self.behind = {n.id for n in loads if n not in inside and (nested or n.lineno > end)}
        self.known = known_before(function, loop)
        self.taken = names_in(source.tree) | locals_of(function)
        self.done = self._fresh("done")
        self.edits: list[Edit] = []
        self.before = [f"{self.done} = torch.zeros((), dtype=torch.bool, device={place.device})"]
        self.handed: dict[str, str] = {}
        self.lines: list[str] = []
        self.nested = nested
        self.counters = set[str]()
        self.numbers = set[str]()  # names that were numbers of the host's, and are tensors now
        self.swaps: dict[str, str] = {}
        self.cuts = True
        self.asked = set[str]()  # what a ``while`` asks of the device
        self.empty = emptied(place, loop, breaks)
        self.round = ""  # whether this is the first round, as Python asks

    def found(self) -> Ending | None:
        """The whole loop rewritten."""
        if self.leave is not None:
            self.behind = set[str]()  # where the function is left, nothing else is read
        counts = self._head()
        if counts is None:
            return None
        self._take_numbers()
        for part in self.loop.body:
            if part in self.breaks:
                if not self._ends(part):
                    return None
            elif isinstance(part, ast.If) and part is self.leave:
                if not is_pure(self.place, part.test) or not self._leave(part):
                    return None
            elif part not in counts and not self._step(part):
                return None
        if self.handed and (self.nested or not self.cuts):
            return None
        self._starts()
        if line := else_of(self.source, self.loop):  # what is done where no round was the last: asked behind them
            at = len(self.source.indent(self.loop))
            self.edits.append(Edit(line, at, line, at + len("else"), f"if not {self.done}"))
        self.edits.append(self.source.before(self.loop, self.before))
        return Ending(self.source, self.loop, self.edits, self.handed, self.lines, self.leave)

    def _take_numbers(self) -> None:
        """``token = x.argmax().item()`` stays on the device, also where ``torch.tensor([token])`` reads it."""
        for part in self.loop.body:
            value, name = part.value if isinstance(part, ast.Assign) else None, name_of(part)
            if not isinstance(value, ast.Call) or called(value) != "item" or not isinstance(value.func, ast.Attribute):
                continue
            if name and self._is_own(name):
                self.asked.add(name)
                self.numbers.add(name)
                given = value.func.value
                while isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and called(given) == "cpu":
                    given = given.func.value
                inner = self.source.bracketed(given)
                more = as_python_has_it(self.place, value, given)
                self.swaps[self.place.text(value)] = f"{inner}.detach().squeeze(){more}"
        for call in (n for part in self.loop.body for n in within(part) if isinstance(n, ast.Call)):
            for name in self.numbers:
                edits = divided_by_name(self.place, name, [call])
                self.swaps |= {self.place.text(call): edit.text for edit in edits}
            listed, sizes = call.args[0] if len(call.args) == 1 and called(call) == "tensor" else None, list[str]()
            while isinstance(listed, (ast.List, ast.Tuple)) and len(listed.elts) == 1:
                listed = listed.elts[0]
                sizes.append("1")
            if isinstance(listed, ast.Name) and listed.id in self.numbers and path_of(call.func) == "torch.tensor":
                self.swaps[self.place.text(call)] = f"{listed.id}.reshape({', '.join(sizes) or '()'})"

    def _text(self, node: ast.expr) -> str:
        """An expression as it is written, with numbers that stay on the device."""
        text = self.place.text(node)
        for old, new in self.swaps.items():
            text = text.replace(old, new)
        return text

    def _leave(self, part: ast.If) -> bool:
        """``if c: return x``: what it reads is handed over as it was in the round in which the function was left."""
        stored_here = {n.id for n in within(self.loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        counter, lines = counted_by(self.loop), list[str]()
        if self.nested:
            return False
        kept = list[str]()
        for name in (name for name in read_in(part) if self._is_own(name)):
            if name not in stored_here:
                if name in self.place.tensors:
                    self.handed[name] = name
                elif name not in arguments_of(self.function):
                    return False
                continue
            then = self._fresh(f"{name}_then")
            new, start = name, "None"
            if name == counter:
                new = f"torch.full((), {name}, device={self.place.device})"
            elif name not in self.place.tensors:
                return False
            first = begun_at(self.loop, counter) or f"{then} is None"
            if not begun_at(self.loop, counter):
                self.before.append(f"{then} = {start}")
            kept.append(f"{then} = {new} if {first} else torch.where({self.done}, {then}, {new})")
            self.handed[then] = then
            lines.append(f"    {name} = {f'int({then})' if name == counter else then}")
        test = condition_of(self.place, part.test).replace(".item()", "")
        test = test if isinstance(part.test, SIMPLE) else f"({test})"
        self._replace(part, [*kept, f"{self.done} = {self.done} | {test}"])
        self.handed[self.done] = self.done
        self.lines += [f"if bool({self.done}):", *lines, *lines_of(self.source, part)]
        return True

    def _end(self, test: ast.expr) -> list[str]:
        """What ends a loop, as a value of the device; what the host asks first is asked first."""
        first = list[ast.expr]()
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            rest = list(test.values)
            while len(rest) > 1 and (self._is_counted(rest[0]) or unset_in(rest[0])):
                first.append(rest.pop(0))
            test = ast.copy_location(ast.BoolOp(ast.And(), rest), test) if len(rest) > 1 else rest[0]
        text = condition_of(self.place, test).replace(".item()", "")
        text = text if isinstance(test, SIMPLE) else f"({text})"
        line = f"{self.done} = {self.done} | {text}"
        if not first:
            return [line]
        return [f"if {' and '.join(map(self.place.text, first))}:", f"    {line}"]

    def _is_counted(self, node: ast.expr) -> bool:
        """Whether a test asks how many rounds there were, or how long a list is."""
        lengths = [n for n in ast.walk(node) if isinstance(n, ast.Call) and called(n) == "len"]
        inside = {n for each in lengths for n in ast.walk(each)}
        free = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n not in inside}
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and n not in inside]
        return isinstance(node, ast.Compare) and not calls and free <= self.counters

    def _head(self) -> list[ast.stmt] | None:
        """What counts the rounds, which goes; of a ``while`` loop with a ``for`` in its place."""
        loop, source = self.loop, self.source
        if isinstance(loop, ast.For):
            names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
            call = loop.iter
            counted = isinstance(call, ast.Call) and called(call) == "range" and isinstance(loop.target, ast.Name)
            if names & self.behind and not (counted and self._keep_the_round(names)):
                return None
            self.counters |= names
            if counted and isinstance(call, ast.Call) and len(call.args) < 3:
                first = self.place.text(call.args[0]) if len(call.args) == 2 else "0"
                self.round = f"{self.place.text(loop.target)} == {first}"
            return []
        if isinstance(loop.test, ast.Constant) and loop.test.value:
            return self._count_rounds(loop)
        parts = (
            loop.test.values if isinstance(loop.test, ast.BoolOp) and isinstance(loop.test.op, ast.And) else [loop.test]
        )
        adding = {name_of(part) for part in loop.body if isinstance(part, ast.AugAssign)}
        bounds = [part for part in parts if (found := bound_of(self.place, part)) and found[0] in adding]
        rest = [part for part in parts if part not in bounds]
        if len(bounds) != 1 or not all(is_pure(self.place, part) for part in rest):
            return None
        counter, most = bound_of(self.place, bounds[0]) or ("", "")
        counts = [part for part in loop.body if isinstance(part, ast.AugAssign) and name_of(part) == counter]
        others = given_to(self.function, counter)
        if len(counts) != 1 or len(others) != 1 or others[0][0].lineno > loop.lineno:
            return None
        one, begun = counts[0], integer(others[0][1])
        later = loop.body[loop.body.index(one) + 1 :]
        if not (isinstance(one.op, ast.Add) and integer(one.value) == 1) or begun is None:
            return None
        if any(counter in names_in(part) for part in later):
            return None
        begin = "" if begun == 0 else f"{begun}, "
        head, line = source.replace(loop.test, ""), source.lines[loop.lineno - 1]
        at = len(line) - len(line.lstrip())
        self.edits.append(
            Edit(loop.lineno, at, head.end_line, head.end_column, f"for {counter} in range({begin}{most})")
        )
        self.edits.append(source.without(one))
        self.counters.add(counter)
        self.round = f"{counter} == {begun}"
        tests = [condition_of(self.place, ast.copy_location(ast.UnaryOp(ast.Not(), part), part)) for part in rest]
        lines = [f"{self.done} = {self.done} | {test}" for test in tests]
        if counter in self.behind:
            last = self._last(counter, str(begun))
            if last is None:
                return None
            lines.append(f"{last} = torch.where({self.done}, {last}, {counter} + 1)")
        self.edits += [source.before(loop.body[0], lines, rank=-1)] if lines else []
        self.asked = {name for part in rest for name in names_in(part)}
        return [one]

    def _count_rounds(self, loop: ast.While) -> list[ast.stmt] | None:
        """``while True`` with what counts to an end in it."""
        found = bounded(self.place, loop, self.breaks, self.known)
        if found is None:
            return None
        counter, most, one = found
        start, end = self.source.indent(loop), self.source.replace(loop.test, "")
        text = f"for _ in range({most})"
        self.edits.append(Edit(loop.lineno, len(start), end.end_line, end.end_column, text))
        self.counters.add(counter)
        self.cuts = False
        if counter in self.behind:
            last = self._last(counter, self.place.text(given_to(self.function, counter)[0][1]))
            if last is None:
                return None
            self._replace(one, [self.place.text(one), f"{last} = torch.where({self.done}, {last}, {counter})"])
        return [one]

    def _last(self, counter: str, begun: str) -> str | None:
        """A tensor for what a loop has counted, which is read behind it; None where something else is written there."""
        last = self._fresh(f"last_{counter}")
        behind = self.loop.end_lineno or self.loop.lineno
        every = [n for n in ast.walk(self.function) if isinstance(n, ast.Name) and n.id == counter]
        if any(n.lineno > behind and isinstance(n.ctx, ast.Store) for n in every):
            return None
        self.before.append(f"{last} = torch.full((), {begun}, device={self.place.device})")
        self.edits += [self.source.replace(n, last) for n in every if n.lineno > behind]
        self.cuts = False
        return last

    def _keep_the_round(self, names: set[str]) -> bool:
        """What the loop counts with is read behind it: it is the number of the round in which it ended."""
        name = next(iter(names))
        end = self.loop.end_lineno or self.loop.lineno
        loads = [n for n in ast.walk(self.function) if isinstance(n, ast.Name) and n.id == name and n.lineno > end]
        if self.nested or any(isinstance(n.ctx, ast.Store) for n in loads):
            return False
        last = self._fresh(f"last_{name}".replace("__", "_"))
        self.before.append(f"{last} = torch.zeros((), dtype=torch.long, device={self.place.device})")
        line = f"{last} = torch.where({self.done}, {last}, {name})"
        self.edits.append(self.source.before(self.loop.body[0], [line], rank=-1))
        self.edits += [self.source.replace(n, f"int({last})" if is_listed(self.source, n) else last) for n in loads]
        self.cuts = False  # what is behind is rewritten where it stands
        return True

    def _starts(self) -> None:
        """What the loop's test asks is a tensor from the beginning."""
        for node, value in (pair for name in sorted(self.asked) for pair in given_to(self.function, name)):
            if node.lineno < self.loop.lineno and _is_plain(value):
                text = f"torch.full((), {self.place.text(value)}, device={self.place.device})"
                self.edits.append(self.source.replace(value, text))

    def _step(self, part: ast.stmt) -> bool:
        """One statement of a round; whether it may run after the end."""
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            return self._call(part, part.value)
        if isinstance(part, (ast.Assign, ast.AugAssign)) and self._is_pure(part, part.value):
            target = target_of(part)
            target = part.target if isinstance(part, ast.AugAssign) else target
            if isinstance(target, ast.Name):
                return self._name(part, target)
            if isinstance(target, ast.Tuple) and isinstance(part, ast.Assign):
                return self._names(part, target)
            if mask_of_put(part) in self.empty:
                return True
            return isinstance(target, ast.Subscript) and isinstance(part, ast.Assign) and self._place(part, target)
        if isinstance(part, (ast.For, ast.If)):
            return self._is_of_round(part) or self._inside(part)
        return isinstance(part, ast.Pass)

    def _value(self, part: ast.Assign | ast.AugAssign, name: str) -> str:
        text = self._text(part.value)
        return text if isinstance(part, ast.Assign) else combined(part, name, text)

    def _name(self, part: ast.Assign | ast.AugAssign, target: ast.Name) -> bool:
        name = target.id
        if not self._is_own(name):
            return False
        if name not in self.behind:
            if (text := self._text(part.value)) != self.place.text(part.value):
                self.edits.append(self.source.replace(part.value, text))
            # In place it would write into what it was before the loop.
            return isinstance(part, ast.Assign) or self._is_fresh(name, part)
        if (dim := self._grows(part, name)) is not None:
            left = self._count(part)
            self.handed[name] = name
            self.lines.append(f"{name} = {name}.narrow({dim}, 0, {name}.shape[{dim}] - int({left}))")
            return True
        if not (value := self._value(part, name)):
            return False
        if name in self.known and isinstance(part.value, (ast.List, ast.ListComp)):  # of as many as before
            old, new = self._fresh("old"), self._fresh("new")
            each = f"torch.where({self.done}, {old}, {new}) for {old}, {new} in zip({name}, {value}, strict=True)"
            text = f"{name} = [{each}]"
        elif name in self.known:
            first = f"{value} if {name} is None else " if self._begins_as_none(name) else ""
            text = f"{name} = {first}torch.where({self.done}, {name}, {value})"
        elif self.below:
            return False
        elif isinstance(part, ast.Assign):
            text = f"{name} = {value} if {self._first(name)} else torch.where({self.done}, {name}, {value})"
        else:
            return False
        self.edits.append(self.source.replace(part, text))
        return True

    def _first(self, name: str) -> str:
        """What asks whether a name has no value yet."""
        if self.round:
            return self.round
        self.before.append(f"{name} = None")
        return f"{name} is None"

    def _names(self, part: ast.Assign, target: ast.Tuple) -> bool:
        names = [each.id for each in target.elts if isinstance(each, ast.Name)]
        if len(names) != len(target.elts) or not all(map(self._is_own, names)):
            return False
        kept = [name for name in names if name in self.behind]
        if not kept:
            if (text := self._text(part.value)) != self.place.text(part.value):
                self.edits.append(self.source.replace(part.value, text))
            return True
        new = {name: self._fresh(f"new_{name}") for name in kept}
        heads = ", ".join(new.get(name, name) for name in names)
        lines = [f"{heads} = {self._text(part.value)}"]
        for name in kept:
            first = "" if name in self.known else f"{new[name]} if {self._first(name)} else "
            lines.append(f"{name} = {first}torch.where({self.done}, {name}, {new[name]})")
        self._replace(part, lines)
        return True

    def _place(self, part: ast.Assign, target: ast.Subscript) -> bool:
        path = path_of(target.value)
        name = path.partition(".")[0]
        if not path:
            return False
        local = isinstance(target.value, ast.Name) and self._is_own(name)
        if local and name not in self.behind and self._is_fresh(name, part):
            return True
        old = self.place.text(target)
        if (mask := mask_in(target.slice, self._is_mask)) is not None:
            self.edits.append(self.source.replace(mask, f"({self.place.text(mask)}) & ~{self.done}"))
            return True
        text = f"{old} = torch.where({self.done}, {old}, {self.place.text(part.value)})"
        self.edits.append(self.source.replace(part, text))
        return True

    def _is_mask(self, index: ast.expr) -> bool:
        given = self.place.tensors.get(index.id) if isinstance(index, ast.Name) else None
        asked = any(isinstance(n, (ast.Compare, ast.Invert)) for n in ast.walk(index))
        return asked or (given is not None and given.dtype is torch.bool)

    def _call(self, part: ast.Expr, call: ast.Call) -> bool:
        plain = isinstance(call.func, ast.Attribute) and path_of(call.func.value) and called(call) in _IN_PLACE
        if not plain and called(call).endswith("_") and self._written(part, call):
            return True
        if not isinstance(call.func, ast.Attribute) or len(call.args) != 1 or call.keywords:
            return False
        value, owner, name = call.args[0], call.func.value, call.func.attr
        if name == "append" and isinstance(owner, ast.Name) and self._is_own(owner.id):
            if not is_pure(self.place, value):
                return False
            if owner.id not in self.behind:
                return True
            return self._append(part, value, owner.id)
        if name not in _IN_PLACE or not path_of(owner) or not is_pure(self.place, value):
            return False
        x, text = self.place.text(owner), self.place.text(value)
        if name in ("copy_", "fill_"):
            new = f"{x}.copy_(torch.where({self.done}, {x}, {text}))"
        else:
            new = f"{x}.{name}(torch.where({self.done}, {_IN_PLACE[name]}, {text}))"
        self.edits.append(self.source.replace(part, new))
        return True

    def _replace(self, part: ast.stmt, lines: list[str]) -> None:
        self.edits.append(self.source.replace(part, f"\n{self.source.indent(part)}".join(lines)))


def _is_plain(value: ast.expr) -> bool:
    """Whether an expression is a number of the host's as its text tells."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "float"
    return is_number(value) or path_of(value) in ("math.inf", "np.inf", "torch.inf")
