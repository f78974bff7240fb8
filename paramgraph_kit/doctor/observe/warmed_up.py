"""Warm-ups of programs that capture by themselves: what they move for good, ahead of the first replay."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from paramgraph_kit.doctor.explain.syntax import defines, last_name, tree_of
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.places import Place, is_call, line_of
from paramgraph_kit.doctor.observe.states_between import zeros_begin
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver.files import is_library

_weak: Any = StorageWeakRef  # torch leaves it untyped
MOVES = ("add_", "sub_", "mul_", "div_", "lerp_", "addcmul_", "addcdiv_", "index_add_", "scatter_add_")
_FILLS = ("copy_", "replay", "append", "next", "item")  # what a loop has that trains
_FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
_PLACES = ("index_copy_", "index_put_", "_index_put_impl_", "index_fill_", "scatter_")
_STATE, _BEGUN = "state", "state from its first step on"
_MOST = 20_000  # writes of one call
_STATES = (torch.nn.Module, torch.Tensor, torch.optim.Optimizer, list, tuple)


@dataclass(frozen=True, slots=True)
class _Write:
    """One operation outside of all captures that has written to something."""

    keys: frozenset[int]
    moves: bool  # it goes on from what was there
    places: bool  # it writes to places that tensors tell
    at: Place | None


@dataclass(slots=True)
class _Span:
    """What one capture has done, and how many writes were seen ahead of it, and of its first replay."""

    begun: int
    written: set[int]
    met: set[int]
    added: set[int]
    asked: set[int]  # what it has read ahead of all that it writes there
    reads: set[int]  # and what it has read at any time
    codes: Collection[CodeType]
    launched: int | None = None
    said: bool = False


@dataclass(slots=True)
class WrittenAhead:
    """What is written outside of captures while a program is watched, in its order."""

    writes: list[_Write] = field(default_factory=list)
    held: dict[int, Any] = field(default_factory=dict)  # weak references, which keep a key from being given anew
    spans: dict[int, _Span] = field(default_factory=dict)

    def begin(
        self,
        graph: object,
        written: set[int],
        met: set[int],
        added: set[int],
        asked: set[int],
        reads: set[int],
        codes: Collection[CodeType],
    ) -> None:
        """A capture begins here; what it is given is filled while it lasts."""
        self.spans[id(graph)] = _Span(len(self.writes), written, met, added, asked, reads, codes)

    def wrote(self, name: str, tensors: Iterable[torch.Tensor], at: Place) -> None:
        """An operation outside of all captures has written to these."""
        if len(self.writes) >= _MOST:
            return
        keys = set()
        for tensor in tensors:
            if key := storage_key(tensor):
                keys.add(key)
                if key not in self.held:
                    self.held[key] = _weak(tensor.untyped_storage())
        moves = name.removeprefix("_foreach_") in MOVES or name in _FUSED
        self.writes.append(_Write(frozenset(keys), moves, name in _PLACES, at))

    def replayed(self, graph: object, written: Collection[int]) -> None:
        """A graph is replayed, which writes to these."""
        span = self.spans.get(id(graph))
        if span is not None and span.launched is None:
            span.launched = len(self.writes)
        self.writes.append(_Write(frozenset(written), False, False, None))

    def notes(self, regions: Iterable[Region]) -> Iterator[str]:
        """What warm-ups have moved that nothing has put back ahead of the first replay, in words, once."""
        said = set()
        for region in regions:
            span = self.spans.get(id(region.graph))
            if span is None or span.said or len(self.writes) >= _MOST or (region.whole and span.launched is None):
                continue
            with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
                if (line := idle_warm_up(region)) is None or (region.code, line.lineno) in said:
                    continue
                moved = self._moved(region, span, line)
                names = [*_named(region, span, moved)] if moved else []
                if names:
                    said.add((region.code, line.lineno))
                    yield _told(names, line.lineno, region.whole)

    def at_launch(self, graph: object, regions: Iterable[Region]) -> Iterator[str]:
        """The same where a graph is replayed for the first time, while all has its names."""
        span = self.spans.get(id(graph))
        if span is not None and not span.said:
            yield from self.notes(regions)
            span.said = True

    def moved_by(self, region: Region, call: ast.Call) -> set[int]:
        """Memory that a call has written ahead of a capture there, and that nothing has written to since."""
        span = self.spans.get(id(region.graph))
        if span is None or len(self.writes) >= _MOST:
            return set()
        moved = set[int]()
        for number, write in enumerate(self.writes):
            spots = write.at.stack if write.at is not None else ()
            runs = any(code is region.code and is_call(code, spot, call) for code, spot in spots)
            moved = moved | write.keys if runs and number < span.begun else moved - write.keys
        return moved

    def _moved(self, region: Region, span: _Span, block: ast.stmt) -> set[int]:
        """Memory that the warm-up goes on from, and that nothing else writes to ahead of the first replay."""
        own = {code for code in span.codes if not is_library(code.co_filename) and code is not region.code}
        lines = _same_lines(region, block)
        moved, spoiled, filled = set[int](), set[int](), set[int]()
        states = span.written & span.asked
        end = span.launched if span.launched is not None else len(self.writes)
        for number, write in enumerate(self.writes[:end]):
            at = write.at if number < span.begun else None
            if at is not None and _is_of(at, region.code, block, lines, own):
                goes_on = write.keys if write.moves else write.keys & states
                moved |= goes_on
                spoiled |= write.keys - goes_on if not write.places else set()
                filled |= write.keys if write.places else set()
                put_back = set[int]()
            elif at is not None and write.moves and _is_called_in(at, region.code, block):
                moved |= write.keys & states  # by whatever names a function does there what is captured
                put_back = set[int]()
            else:
                put_back = {*write.keys}
            moved -= put_back
            filled -= put_back
        moved -= spoiled
        return moved | (filled & span.reads) if moved else moved  # else it has filled the same places as ever


def _same_lines(region: Region, block: ast.stmt) -> set[int]:
    """Lines of a warm-up that are captured, too."""
    alike = {ast.unparse(s) for s in region.body}
    same = [s for s in ast.walk(block) if isinstance(s, ast.stmt) and ast.unparse(s) in alike]
    return {n for s in same for n in range(s.lineno, (s.end_lineno or s.lineno) + 1)}


def is_of_warm_up(at: Place, region: Region, block: ast.stmt, own: set[CodeType]) -> bool:
    """Whether something was run by the warm-up of a capture; ``own``: functions that it has captured."""
    return _is_of(at, region.code, block, _same_lines(region, block), own)


def _is_of(at: Place, where: CodeType, block: ast.stmt, lines: set[int], own: set[CodeType]) -> bool:
    """Whether it was run by the warm-up, in lines that are captured, too, or by a function that is."""
    for number, (code, spot) in enumerate(at.stack):
        if code is where and block.lineno <= (line := line_of(code, spot)) <= (block.end_lineno or 0):
            return line in lines or any(each in own for each, _ in at.stack[number + 1 :])
    return False


def _is_called_in(at: Place, where: CodeType, block: ast.stmt) -> bool:
    """Whether a function of the user's has run it that the warm-up calls."""
    for number, (code, spot) in enumerate(at.stack):
        if code is where and block.lineno <= line_of(code, spot) <= (block.end_lineno or 0):
            return any(not is_library(each.co_filename) for each, _ in at.stack[number + 1 :])
    return False


def warmed_in(region: Region, block: ast.stmt) -> list[ast.Call]:
    """The calls of a capture that its warm-up makes, too: by itself, or through a function of the file."""
    captured = {ast.unparse(n): n for s in region.body for n in ast.walk(s) if isinstance(n, ast.Call)}
    same = [n for n in ast.walk(block) if isinstance(n, ast.Call) and ast.unparse(n) in captured]
    return same or list(_through_others(region, block, [*captured.values()]))


def _through_others(
    region: Region, block: ast.stmt, captured: list[ast.Call], *, repeats: bool = False
) -> Iterator[ast.Call]:
    """Captured calls whose functions another function calls, by the same name or as it is given them.

    ``repeats``: where it does so in a loop, or on another stream.
    """
    tree = tree_of(region.code.co_filename)
    makes = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)} if tree is not None else {}
    for call in (n for n in ast.walk(block) if isinstance(n, ast.Call)):
        other = makes.get(last_name(call.func))
        if other is None or defines(other, region.code) or any(last_name(c.func) == other.name for c in captured):
            continue
        stored = {n.id for n in ast.walk(other) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        own = [a.arg for a in (*other.args.posonlyargs, *other.args.args)]
        given = own[1:] if isinstance(call.func, ast.Attribute) and own[:1] == ["self"] else own
        means = {name: ast.unparse(value) for name, value in zip(given, call.args, strict=False)}
        means |= {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg}
        means |= {name: "" for name in stored | {*own} if name not in means and name != "self"}
        parts = [n for n in ast.walk(other) if isinstance(n, (ast.For, ast.With))] if repeats else [other]
        inner = [n.func for part in parts for n in ast.walk(part) if isinstance(n, ast.Call)]
        paths = {means.get(each.id, each.id) for each in inner if isinstance(each, ast.Name)}
        paths |= {text for each in inner if (text := ast.unparse(each)).startswith("self.")}
        yield from (each for each in captured if ast.unparse(each.func) in paths)


def warm_up_of(region: Region) -> ast.stmt | None:
    """The last block on another stream ahead of a capture, in the function that captures, or what is meant as one."""
    tree = tree_of(region.code.co_filename)
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.With)] if tree is not None else []
    first = region.code.co_firstlineno if region.code.co_name != "<module>" else 0
    ahead = [
        n
        for n in blocks
        if first <= n.lineno and (n.end_lineno or n.lineno) < region.line
        if any(isinstance(i.context_expr, ast.Call) and last_name(i.context_expr.func) == "stream" for i in n.items)
    ]
    body = _body_of(tree, region.code) if tree is not None and not ahead else []
    before = [n for n in body if (n.end_lineno or n.lineno) < region.line]
    calls = [n for part in region.body for n in ast.walk(part) if isinstance(n, ast.Call)] if before else []
    plain = [n for n in before if _is_meant_so(n)] or [
        n for n in before if isinstance(n, ast.Expr) and any(_through_others(region, n, calls, repeats=True))
    ]
    return max([*ahead, *plain], key=lambda n: n.lineno, default=None)


def idle_warm_up(region: Region) -> ast.stmt | None:
    """The same where it only warms up: first steps of the program's are in a branch apart from the capture."""
    block, tree = warm_up_of(region), tree_of(region.code.co_filename)
    if block is None or tree is None:
        return block
    for test in (n for n in ast.walk(tree) if isinstance(n, ast.If)):
        for branch, other in ((test.body, test.orelse), (test.orelse, test.body)):
            leaves = bool(branch) and isinstance(branch[-1], (ast.Return, ast.Continue))
            apart = _holds(branch, block.lineno) and not _holds(branch, region.line)
            if apart and (leaves or _holds(other, region.line)):
                return None
    return block


def _holds(branch: list[ast.stmt], line: int) -> bool:
    return any(n.lineno <= line <= (n.end_lineno or n.lineno) for n in branch)


def _body_of(tree: ast.Module, code: CodeType) -> list[ast.stmt]:
    """The statements of a function, or of the file, and those in its branches."""
    found = [tree] if code.co_name == "<module>" else [n for n in ast.walk(tree) if defines(n, code)]
    body = list[ast.stmt](getattr(found[-1], "body", [])) if found else []
    return [*body, *(n for each in body if isinstance(each, ast.If) for n in (*each.body, *each.orelse))]


def _is_meant_so(node: ast.stmt) -> bool:
    """Whether it is ``for _ in range(3): step()``, or a call of what is called a warm-up."""
    if isinstance(node, ast.For):
        ranged = isinstance(node.iter, ast.Call) and last_name(node.iter.func) == "range"
        names = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        used = {n.id for part in node.body for n in ast.walk(part) if isinstance(n, ast.Name)}
        fills = any(isinstance(n, ast.Call) and last_name(n.func) in _FILLS for n in ast.walk(node))
        return ranged and names.isdisjoint(used) and not fills
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and "warm" in last_name(call.func).lower()


def _named(region: Region, span: _Span, moved: set[int]) -> Iterator[str]:
    """What the program calls what was moved."""
    known: dict[str, Any] = {}
    local = region.own if region.code.co_name != "<module>" else ()
    there = {n: v for n, v in region.space.items() if n not in local and v is not region.names.get("self", region)}
    held = {n: v for n, v in region.names.items() if n in region.own or n not in region.space}
    for name, value in {**there, **held}.items():
        known[name] = value
        if not is_a(value, torch.nn.Module) and not is_a(value, torch.Tensor) and hasattr(value, "__dict__"):
            parts_of = attributes_of(value).items()
            own = {f"{name}.{part}": each for part, each in parts_of if name == "self" or not part.startswith("_")}
            known |= {**{n: v for path, each in own.items() for n, v in _inner(path, each)}, **own}
        elif name == "self":
            known |= {f"self.{part}": each for part, each in attributes_of(value).items()}
    known = dict(sorted(known.items(), key=lambda each: "." in each[0]))  # names of its own go first
    writes = span.written if region.whole else None
    modules = [(n, v) for n, v in known.items() if is_a(v, torch.nn.Module)]
    told = set[int]()
    for name, value in sorted(modules, key=lambda each: -len([*each[1].parameters()])):
        weights = {storage_key(p) for p in value.parameters()}
        buffers = {storage_key(b) for b in value.buffers()}
        sums = {storage_key(p.grad) for p in value.parameters() if p.grad is not None} & span.added
        used = (weights | buffers) & span.met
        for keys, what in ((weights, "weights"), (buffers, "buffers"), (sums if region.whole else set(), "gradients")):
            new = keys & moved - told if used else set()
            if writes is not None:
                new &= writes
            told |= new
            if new:
                yield f"`{name}`'s {what}"
    for name, value in known.items():
        if is_a(value, torch.optim.Optimizer):
            weights = {storage_key(p) for group in value.param_groups for p in group["params"]}
            parts = (t for each in value.state.values() for t in each.values() if is_a(t, torch.Tensor))
            new = {storage_key(t) for t in parts} & moved - told
            if new := (new & writes if writes is not None else new if weights & span.met else set()):
                told |= new
                yield f"`{name}`'s {_STATE if zeros_begin(value) else _BEGUN}"
    for name, value in known.items():
        listed = value if is_a(value, (list, tuple)) else ()
        new = {storage_key(t) for t in listed if is_a(t, torch.Tensor) and not t.requires_grad} & moved - told
        if new and writes is not None and new <= writes:
            told |= new
            yield f"`{name}`'s tensors"
    read = {n for code in span.codes for n in (*code.co_freevars, *code.co_names)}
    for name, value in known.items():
        if not is_a(value, torch.Tensor) or (key := storage_key(value)) not in moved - told:
            continue
        if key in writes if writes is not None else name.rpartition(".")[2] in read:
            told.add(key)
            yield f"`{name}`"
    for key, name in region.called.items():  # variables that it has let go
        if key in (moved - told) & (writes or set()):
            yield f"`{name}`"


def _inner(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What an object of the user's holds that another one has, or a dictionary: ``self.ema.shadow``."""
    if type(value) is dict:
        yield from ((f"{path}[{key!r}]", part) for key, part in value.items() if is_a(part, torch.Tensor))
    elif not is_a(value, (torch.nn.Module, torch.Tensor, torch.optim.Optimizer, type)):
        yield from ((f"{path}.{part}", each) for part, each in attributes_of(value).items() if is_a(each, _STATES))


def named_as_moved(
    region: Region, block: ast.stmt, moved: set[int], left: Collection[torch.Tensor] = ()
) -> Iterator[str]:
    """The sentence for memory that a warm-up has moved, where its lines tell that; ``left``: with these gradients."""
    added = {storage_key(p.grad) for p in left if p.grad is not None}
    moved, met = moved | added, moved | {storage_key(p) for p in left}
    if names := [*_named(region, _Span(0, moved, met, added, set(), set(), ()), moved)]:
        yield _told(names, block.lineno, True)


def tensors_moved(region: Region, moved: set[int]) -> list[str]:
    """What a program calls tensors of its own that a capture moves, and that are none of modules and optimizers."""
    named = _named(region, _Span(0, moved, moved, set(), set(), set(), ()), moved)
    return [each.strip("`") for each in named if each.endswith("`")]


def _told(names: list[str], line: int, whole: bool) -> str:
    """The sentence."""
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    until = "the first replay" if whole else "the capture"
    them = "copy_ it back" if len(names) == 1 and names[0].endswith("`") else "copy_ them back"
    zero = " (zero the gradients)" if any(each.endswith("gradients") for each in names) else ""
    zero = " (zero_ what was not there before)" if any(each.endswith(_STATE) for each in names) and not zero else zero
    first = any(each.endswith(_BEGUN) for each in names)
    back = f"keep copies ahead of it, and {them} in place{zero} ahead of the first replay"
    if first:  # no zeros are such a state before its first step
        back = "let it take the first steps, on the first batches, and replays go on behind them"
    return (
        f"the warm-up at line {line} has moved {listed}, and nothing puts that back ahead of {until}: {back}, "
        "if replays are to begin where eager code would"
    )
