"""Warm-ups of programs that capture by themselves: what they move for good, ahead of the first replay."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.places import Place, is_call, line_of
from paramgraph_kit.doctor.observe.states_between import zeros_begin
from paramgraph_kit.doctor.observe.warm_up_blocks import warm_ups_of
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref
from paramgraph_kit.driver.files import is_library

MOVES = ("add_", "sub_", "mul_", "div_", "lerp_", "addcmul_", "addcdiv_", "index_add_", "scatter_add_")
_KEEPS = (  # they go on from what is there, too, and may leave it as it is: a box, bounds
    *("remainder_", "fmod_", "clamp_", "clamp_min_", "clamp_max_", "abs_", "neg_", "round_", "floor_", "masked_fill_"),
    *("tanh_", "sigmoid_", "relu_", "pow_", "sqrt_", "triu_", "tril_"),
)
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
    keeps: bool  # it makes no state of a sum, and spoils none
    at: Place | None


@dataclass(slots=True)
class _Span:
    """What one capture has done, and how many writes were seen ahead of it, and of its first replay."""

    begun: int
    written: set[int]
    met: set[int]
    added: set[int]
    asked: set[int]  # what it has read ahead of all that it writes there
    stepped: set[int]  # what it adds to, or scales, ahead of all else that it writes there
    reads: set[int]  # and what it has read at any time
    codes: Collection[CodeType]
    launched: int | None = None
    said: bool = False
    beside: set[int] = field(default_factory=set)  # what its warm-up has moved that it does not write, but reads


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
        stepped: set[int],
        reads: set[int],
        codes: Collection[CodeType],
    ) -> None:
        """A capture begins here; what it is given is filled while it lasts."""
        self.spans[id(graph)] = _Span(len(self.writes), written, met, added, asked, stepped, reads, codes)

    def wrote(self, name: str, tensors: Iterable[torch.Tensor], at: Place) -> None:
        """An operation outside of all captures has written to these."""
        if len(self.writes) >= _MOST:
            return
        keys = set()
        for tensor in tensors:
            if key := storage_key(tensor):
                keys.add(key)
                if key not in self.held:
                    self.held[key] = storage_ref(tensor.untyped_storage())
        self.writes.append(_Write(frozenset(keys), is_moving(name), name in _PLACES, name in _KEEPS, at))

    def replayed(self, graph: object, written: Collection[int]) -> None:
        """A graph is replayed, which writes to these."""
        span = self.spans.get(id(graph))
        if span is not None and span.launched is None:
            span.launched = len(self.writes)
        self.writes.append(_Write(frozenset(written), False, False, False, None))

    def notes(self, regions: Iterable[Region]) -> Iterator[str]:
        """What warm-ups have moved that nothing has put back ahead of the first replay, in words, once."""
        said = set()
        for region in regions:
            span = self.spans.get(id(region.graph))
            if span is None or span.said or len(self.writes) >= _MOST or (region.whole and span.launched is None):
                continue
            with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
                for there, block in ((each.region, each.block) for each in warm_ups_of(region)):
                    moved = self._moved(there, span, block)
                    if (at := (there.code, block.lineno)) not in said and (names := [*_named(there, span, moved)]):
                        said.add(at)
                        yield _told(names, block.lineno, region.whole)
                        break

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
        moved, spoiled, filled, beside = set[int](), set[int](), set[int](), set[int]()
        states = span.written & span.asked
        stepped = states | (span.written & span.stepped)
        end = span.launched if span.launched is not None else len(self.writes)
        for number, write in enumerate(self.writes[:end]):
            at = write.at if number < span.begun else None
            if at is not None and _is_of(at, region.code, block, lines, own):
                goes_on = write.keys if write.moves else write.keys & states
                moved |= goes_on
                spoiled |= write.keys - goes_on if not (write.places or write.keeps) else set()
                filled |= write.keys if write.places else set()
                put_back = set[int]()
            elif at is not None and write.moves and _is_called_in(at, region.code, block):
                moved |= write.keys & stepped  # by whatever names a function does there what is captured
                beside |= write.keys
                put_back = set[int]()
            elif at is not None and write.moves and _is_in(at, region.code, block):
                put_back = set[int]()  # beside what is captured, as an optimizer that steps outside of the graph does
                beside |= write.keys
            elif at is not None and write.keeps and _is_in(at, region.code, block):
                put_back = set[int]()
            else:
                put_back = {*write.keys}
            moved -= put_back
            filled -= put_back
            beside -= put_back
        moved -= spoiled
        span.beside = beside if not beside.isdisjoint(span.reads) else set()
        moved |= span.beside
        return moved | (filled & span.reads) if moved else moved  # else it has filled the same places as ever


def is_moving(name: str) -> bool:
    """Whether an operation goes on from what is there in what it writes, as an optimizer's step does."""
    return name.removeprefix("_foreach_") in MOVES or name in _FUSED


def _same_lines(region: Region, block: ast.stmt) -> set[int]:
    """Lines of a warm-up that are captured, too, whatever gets what they give: ``net(x)`` ahead of ``y = net(x)``."""
    alike = {text for s in region.body for text in _texts(s)}
    same = [s for s in ast.walk(block) if isinstance(s, ast.stmt) and not alike.isdisjoint(_texts(s))]
    return {n for s in same for n in range(s.lineno, (s.end_lineno or s.lineno) + 1)}


def _texts(line: ast.stmt) -> set[str]:
    """A line, and what it calls, without what that is given to."""
    value = getattr(line, "value", None)
    return {ast.unparse(line), *([ast.unparse(value)] if isinstance(value, ast.Call) else [])}


def is_of_warm_up(at: Place, region: Region, block: ast.stmt, own: set[CodeType]) -> bool:
    """Whether something was run by the warm-up of a capture; ``own``: functions that it has captured."""
    return _is_of(at, region.code, block, _same_lines(region, block), own)


def _is_of(at: Place, where: CodeType, block: ast.stmt, lines: set[int], own: set[CodeType]) -> bool:
    """Whether it was run by the warm-up, in lines that are captured, too, or by a function that is."""
    for number, (code, spot) in enumerate(at.stack):
        if code is where and block.lineno <= (line := line_of(code, spot)) <= (block.end_lineno or 0):
            return line in lines or any(each in own for each, _ in at.stack[number + 1 :])
    return False


def _is_in(at: Place, where: CodeType, block: ast.stmt) -> bool:
    """Whether something was run in the lines of a warm-up, by whatever these call."""
    return any(code is where and block.lineno <= line_of(code, s) <= (block.end_lineno or 0) for code, s in at.stack)


def _is_called_in(at: Place, where: CodeType, block: ast.stmt) -> bool:
    """Whether a function of the user's has run it that the warm-up calls."""
    for number, (code, spot) in enumerate(at.stack):
        if code is where and block.lineno <= line_of(code, spot) <= (block.end_lineno or 0):
            return any(not is_library(each.co_filename) for each, _ in at.stack[number + 1 :])
    return False


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
    writes = span.written | span.beside if region.whole else None
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
    if names := [*_named(region, _Span(0, moved, met, added, set(), set(), set(), ()), moved)]:
        yield _told(names, block.lineno, True)


def tensors_moved(region: Region, moved: set[int]) -> list[str]:
    """What a program calls tensors of its own that a capture moves, and that are none of modules and optimizers."""
    named = _named(region, _Span(0, moved, moved, set(), set(), set(), set(), ()), moved)
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
