"""Which tests of the user's functions another call may answer otherwise: they ask for what moves, or for what was read.

What moves is read from the source: what calls change in Python, what is drawn or timed on the host, numbers read back.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name, nodes_of
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.compare import may_draw
from paramgraph_kit.doctor.observe.led import spot_of
from paramgraph_kit.doctor.observe.source_lines import HOST_ONLY, Line, path_of
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.driver.files import display_name

_KINDS = ("isinstance", "hasattr", "callable", "type", "is_tensor", "dim", "size", "numel", "ndimension", "issubclass")
_OF_SHAPE = ("shape", "ndim", "dtype", "device", "requires_grad", "is_cuda", "training")
_DRAWS = re.compile(r"^(?:np|numpy)$|random|rng|rnd")  # names of modules and generators of the host's
_OF_NUMBERS = HOST_ONLY - {"item", "tolist", "float", "int"}
_CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "now")
_OUTSIDE = (  # what answers by what is outside of the program, or by chance
    """exists isfile isdir is_file is_dir getmtime getsize listdir read_text read_bytes urandom uuid1 uuid4 randbelow
    randbits token_bytes token_hex token_urlsafe getrefcount get_count""".split()  # noqa: SIM905 - shorter so
)


@dataclass(frozen=True, slots=True)
class Within:
    """A test in an expression: of ``a if test else b``, of ``test and a``, of the rounds of a comprehension."""

    lineno: int
    col_offset: int
    test: ast.expr
    body: list[ast.expr]  # what is asked for where it is true
    orelse: list[ast.expr]
    asks: bool = False  # whether the value is one or the other, as of ``a if test else b``


Test = ast.If | ast.For | ast.While | Within


@dataclass(slots=True)
class Moving:
    """What moves in some functions."""

    codes: Sequence[CodeType]
    changes: Collection[Change]  # of Python's state, in one call
    waited: Collection[Line]  # where a value was read back
    sized: Collection[Line]  # where the device decides how many there are
    told: Collection[Line]  # tests that are known to go either way
    numbers: Collection[str] = ()  # arguments of the first function that are whole numbers
    callers: Collection[CodeType] = ()  # functions that a call comes to: what others give decides nothing
    names: dict[CodeType, set[str]] = field(default_factory=dict)  # local ones
    counts: dict[CodeType, set[str]] = field(default_factory=dict)  # that are such arguments
    many: dict[CodeType, set[str]] = field(default_factory=dict)  # whose sizes the device decides
    returning: set[str] = field(default_factory=set)  # functions
    read: dict[CodeType, set[str]] = field(default_factory=dict)  # names of what was read from the device

    def tests(self) -> Iterator[tuple[CodeType, Test]]:
        """Branches, and loops that may have no round, and those in expressions."""
        self._settle()
        for code in self.codes:
            file = display_name(code.co_filename)
            for node in nodes_of(code):
                if isinstance(node, ast.If):
                    lines = range(node.lineno, (node.test.end_lineno or node.lineno) + 1)
                    known = any((file, line) in self.told for line in lines) or _named(node.test) & self.many[code]
                    if known or self._moves(node.test, code) or self._counts(node.test, code):
                        yield code, node
                elif isinstance(node, ast.While):
                    if (file, node.lineno) in self.told or self._moves(node.test, code):
                        yield code, node
                elif isinstance(node, ast.For) and (self._moves(node.iter, code) or self._is_sized(node.iter, code)):
                    yield code, node
                for each in _within(node):
                    rounds = isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
                    if self._moves(each.test, code) or (rounds and self._is_sized(each.test, code)):
                        yield code, each

    def is_known(self, part: Iterable[ast.AST]) -> bool:
        """Whether all that is asked for there are the host's numbers, as far as its form tells."""
        return not any(
            (isinstance(n, ast.Call) and last_name(n.func) not in _OF_NUMBERS)
            or (isinstance(n, ast.Compare) and isinstance(n.left, (ast.Name, ast.Attribute)) and not self._is_moved(n))
            for each in part
            for n in ast.walk(each)
        )

    def _is_moved(self, compared: ast.Compare) -> bool:
        """Whether a number is compared that moves on the host."""
        return any(_reads(n, c) for n in ast.walk(compared) for c in self.changes)

    def _settle(self) -> None:
        for code in self.codes:
            self.names[code], self.counts[code], self.many[code], self.read[code] = set(), set(), set(), set()
        if self.codes:
            self.counts[self.codes[0]] |= {*self.numbers}
        for _ in range(8):
            before = self._size()
            for code in self.codes:
                for node in nodes_of(code):
                    self._follow(node, code)
            if self._size() == before:
                return

    def _size(self) -> int:
        return sum(
            map(
                len,
                (*self.names.values(), *self.counts.values(), *self.many.values(), *self.read.values(), self.returning),
            )
        )

    def _follow(self, node: ast.AST, code: CodeType) -> None:
        """What one statement or call makes of what moves."""
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if self._reads_back(node.value, code) or (_is_of_host(node.value) and self._moves(node.value, code)):
                paths = {path for each in targets for t in elements_of(each) if (path := path_of(t))}
                self.names[code] |= paths
                self.read[code] |= paths if self.is_read(node.value, code) else set()
            elif self._is_sized(node.value, code):
                self.many[code] |= {each.id for t in targets for each in elements_of(t) if isinstance(each, ast.Name)}
            elif _is_of_host(node.value) and _named(node.value) & self.counts[code]:
                self.counts[code] |= {each.id for each in targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.For) and self._moves(node.iter, code):
            self.names[code] |= _named(node.target)
            self.read[code] |= _named(node.target) if self.is_read(node.iter, code) else set()
            self._decided(node, code, node.iter)
        elif isinstance(node, (ast.If, ast.While)) and self._moves(node.test, code):
            self._decided(node, code, node.test)
            if _answers(node, code):
                self.returning.add(code.co_name)
        elif isinstance(node, ast.Return) and node.value is not None:
            if self._reads_back(node.value, code) or (_is_of_host(node.value) and self._moves(node.value, code)):
                self.returning.add(code.co_name)
        elif isinstance(node, ast.Call):
            for called in self.codes if last_name(node.func) and code in self.callers else ():
                if called.co_name == last_name(node.func):
                    self._given(node, code, called)

    def _decided(self, node: ast.If | ast.For | ast.While, code: CodeType, by: ast.expr) -> None:
        """Numbers that are counted, or set, where what moves decides whether that is done."""
        counted = [n for part in (*node.body, *node.orelse) for n in ast.walk(part) if isinstance(n, ast.AugAssign)]
        sets = [n for part in (*node.body, *node.orelse) for n in ast.walk(part) if isinstance(n, ast.Assign)]
        targets: list[ast.expr] = [n.target for n in counted if isinstance(n.value, ast.Constant)]
        targets += [target for n in sets if isinstance(n.value, ast.Constant) for target in n.targets]
        paths = {path for target in targets if (path := path_of(target))}
        self.names[code] |= paths
        self.read[code] |= paths if self.is_read(by, code) else set()

    def _given(self, node: ast.Call, code: CodeType, called: CodeType) -> None:
        """A call gives a function what moves."""
        owned = isinstance(node.func, ast.Attribute) and called.co_varnames[:1] in (("self",), ("cls",))
        names = called.co_varnames[owned : called.co_argcount + called.co_kwonlyargcount]
        pairs = [*zip(names, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
        for name, value in pairs:
            if name in names and name is not None:
                if _is_of_host(value) and self._moves(value, code):
                    self.names[called].add(name)
                    self.read[called] |= {name} if self.is_read(value, code) else set()
                if self._is_sized(value, code):
                    self.many[called].add(name)
                if _is_of_host(value) and _named(value) & self.counts[code]:
                    self.counts[called].add(name)

    def is_read(self, value: ast.expr, code: CodeType) -> bool:
        """Whether it is read from the device, which is a problem itself."""
        file = display_name(code.co_filename)
        lines = ((file, n.lineno) for n in ast.walk(value) if isinstance(n, ast.expr))
        names = self.read[code] | self.many[code]
        return any(at in self.waited or at in self.sized for at in lines) or any(
            path_of(n) in names for n in ast.walk(value)
        )

    def is_asked(self, test: ast.expr, code: CodeType) -> bool:
        """Whether a test asks for the value of what was read from the device, and not whether it is there."""
        return self.is_read(test, code) and (self.is_count(test, code) or self._moves(test, code))

    def is_count(self, value: ast.expr, code: CodeType) -> bool:
        """Whether it is how many the device has found: ``len(ids)`` of ``ids = done.nonzero()``."""
        return bool(_named(value) & self.many[code]) and any(map(_asks_for_size, ast.walk(value)))

    def _reads_back(self, value: ast.expr, code: CodeType) -> bool:
        """Whether it is read from the device, drawn or timed."""
        file = display_name(code.co_filename)
        for node in _asked(value):
            if isinstance(node, ast.Call):
                if (file, node.end_lineno or 0) in self.waited or (file, node.lineno) in self.waited:
                    return True
                named = last_name(node.func)
                if named in self.returning or named in _OUTSIDE or (named in _CLOCKS and not node.args):
                    return True
                if may_draw(named) and any(map(_DRAWS.search, path_of(node.func).split(".")[:-1])):
                    return True
        return False

    def _is_sized(self, value: ast.expr, code: CodeType) -> bool:
        """Whether the device decides how many it has, as ``done.nonzero()``, or a list of what has so many."""
        file = display_name(code.co_filename)
        if any(isinstance(n, ast.expr) and (file, n.lineno) in self.sized for n in ast.walk(value)):
            return True
        inner = value
        while isinstance(inner, (ast.Call, ast.Attribute)):
            inner = inner.func if isinstance(inner, ast.Call) else inner.value
        return isinstance(inner, ast.Name) and inner.id in self.many[code]

    def _moves(self, value: ast.expr, code: CodeType) -> bool:
        """Whether another call may find another value."""
        if self._reads_back(value, code):
            return True
        names = self.names[code]
        counted = {id(n.args[0]) for n in _asked(value) if isinstance(n, ast.Call) and _asks_how_many(n)}
        return any(
            path_of(n) in names or any(_reads(n, c) and (id(n) not in counted or _is_longer(c)) for c in self.changes)
            for n in _asked(value)
        )

    def _counts(self, test: ast.expr, code: CodeType) -> bool:
        """Whether it asks a number of the caller's for its share: ``step % 100 == 0``."""
        shares = (n for n in ast.walk(test) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod))
        return any(_named(share.left) & self.counts[code] for share in shares)


def _answers(node: ast.If | ast.While, code: CodeType) -> bool:
    """Whether a branch decides which of some constants its function returns: ``if energy > limit: return True``."""
    results = [n.value for n in nodes_of(code) if isinstance(n, ast.Return)]
    constants = [each.value for each in results if isinstance(each, ast.Constant)]
    returns = any(isinstance(n, ast.Return) for part in (*node.body, *node.orelse) for n in ast.walk(part))
    return returns and len(constants) == len(results) and len({bool(each) for each in constants}) > 1


def _within(node: ast.AST) -> Iterator[Within]:
    """The tests of an expression itself, with what each leads to."""
    if isinstance(node, ast.IfExp):
        yield Within(node.lineno, node.col_offset, node.test, [node.body], [node.orelse], asks=True)
    elif isinstance(node, ast.BoolOp):
        for number, value in enumerate(node.values[:-1]):
            rest = node.values[number + 1 :]
            yield Within(*spot_of(value), value, *((rest, []) if isinstance(node.op, ast.And) else ([], rest)))
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for each in node.generators:
            yield Within(*spot_of(each.iter), each.iter, [*made, *each.ifs], [])


def _asked(value: ast.AST) -> Iterator[ast.AST]:
    """The parts of an expression that it asks for their values, and not for what kind they are."""
    if isinstance(value, ast.Attribute) and value.attr in _OF_SHAPE:
        return
    if isinstance(value, ast.Call) and last_name(value.func) in _KINDS:
        return
    if isinstance(value, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in value.ops):
        return
    if isinstance(value, ast.Lambda):
        return
    yield value
    for part in ast.iter_child_nodes(value):
        yield from _asked(part)


def _asks_for_size(node: ast.AST) -> bool:
    counts = isinstance(node, ast.Call) and (_asks_how_many(node) or last_name(node.func) in ("numel", "size"))
    return counts or (isinstance(node, ast.Attribute) and node.attr == "shape")


def _asks_how_many(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "len" and len(call.args) == 1


def _is_longer(change: Change) -> bool:
    """Whether something has more, or fewer, by now: a dictionary whose values move has as many."""
    sized = (list, dict, set, str, deque)
    both = isinstance(change.before, sized) and isinstance(change.after, sized)
    return not both or len(change.before) != len(change.after)


def _is_of_host(value: ast.expr) -> bool:
    """Whether an expression is one of Python's, as far as its form tells: no call may make a tensor of it."""
    calls = (n for n in ast.walk(value) if isinstance(n, ast.Call))
    return all(last_name(call.func) in HOST_ONLY for call in calls)


def _named(value: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}


def _reads(node: ast.AST, change: Change) -> bool:
    """Whether it reads what a call has changed."""
    if change.kind in ("cell", "global"):
        return isinstance(node, ast.Name) and node.id == change.name
    if change.kind == "attribute":
        return isinstance(node, ast.Attribute) and node.attr == change.name
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return bool(change.key is not None and node.slice.value == change.key)
    return change.key is None and last_name(node) == change.name


def of_host(changes: Iterable[Change]) -> list[Change]:
    """Those that are no tensors: numbers, texts, truths, and lists that have grown."""
    plain = (*NUMBERS, str, type(None), list, dict, set)
    found = [entry for change in changes for entry in change.entries()]
    return [c for c in found if isinstance(c.after, (*plain, deque)) and (_is_longer(c) or not _has_tensors(c.after))]


def _has_tensors(value: object) -> bool:
    """Whether all that a dictionary or a list has are tensors, which no test of the host's asks for."""
    held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, deque)) else ()
    return bool(held) and all(isinstance(each, torch.Tensor) for each in held)
