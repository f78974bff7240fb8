"""Each program in each way: what every call gives, at other addresses, against the same code ungraphed and eager."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

import paramgraph_kit as pgk
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.driver.spread import BEYOND_NUMBERS, Apart, beyond, distance
from tests.corpus.strangers.program import Program, Way
from tests.sweep.checks import poison
from tests.sweep.samples import difference

Tensor = torch.Tensor
BAD = ("WRONG", "ERROR")


@dataclass(frozen=True)
class How:
    """A way by name: how it wraps, and what its numbers are compared with."""

    make: Callable[[Program], Way]
    like: str  # "eager" or "never": the same code ungraphed


def _compiled(**options: Any) -> Callable[[Program], Way]:
    return lambda program: Way(lambda fn: pgk.compile(fn, **options))


def _torch(program: Program) -> Way:
    return Way(lambda fn: torch.compile(fn, backend="paramgraph", dynamic=program.notes.get("dynamic")))


def _parameterized(**options: Any) -> Callable[[Program], Way]:
    return lambda program: Way(lambda fn: pgk.parameterize(fn, **options))


def _step(**options: Any) -> Callable[[Program], Way]:
    return lambda program: Way(step=lambda fn, state: pgk.parameterize(fn, state=state, **options))


EAGER = How(lambda program: Way(), "eager")
NEVER = How(_compiled(select="never"), "never")
WAYS: dict[str, How] = {
    "compiled": How(_torch, "never"),
    "dynamo": How(_compiled(guards="dynamo"), "never"),
    "inputs": How(_compiled(guards="inputs"), "never"),
    "verified": How(_compiled(verify="always"), "never"),
    "parameterized": How(_parameterized(), "eager"),
    "parameterized verified": How(_parameterized(verify="always"), "eager"),
    "step": How(_step(), "eager"),
    "step verified": How(_step(verify="always"), "eager"),
}


@dataclass(frozen=True)
class Outcome:
    """What a program gave in one way."""

    values: Sequence[Any]  # of each call, on the host, copied at once
    late: Sequence[Any]  # the same objects, copied at the end
    error: str = ""
    launches: int = 0
    reasons: tuple[str, ...] = ()
    wrapped: int = 0


def outcome(program: Program, how: How) -> Outcome:
    """Run it, with free memory full of NaN between calls."""
    torch.compiler.reset()
    gc.collect()
    torch.manual_seed(0)
    before = set(map(id, compiled_graphs()))
    way, held, found, kept, error = how.make(program), list[Any](), list[Any](), list[Any](), ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for step, value in enumerate(program.run(way)):
                held.append(poison(step)[:2])
                kept.append(value)
                found.append(_on_host(value))
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}".splitlines()[0][:300]
            if not isinstance(raised, (AssertionError,)):
                raised.__traceback__ = None
    graphs = [graph for graph in compiled_graphs() if id(graph) not in before]
    launchers = [launcher for graph in graphs for launcher in graph.launchers]
    launches = sum(v.state.launches for x in launchers for v in list(x.variants.values()) if v is not None)
    texts = {f"{r.code}: {r.label()}" for graph in graphs for r in graph.reasons}
    texts |= {f"{r.code}: {r.label()}" for launcher in launchers for r in launcher.reasons}
    for each in way.wrapped:
        if hasattr(each, "graphed") or type(each).__name__ == "Step":
            report = pgk.report(each)
            launches += sum(row.launches for row in report.rows)
            texts |= {f"{r.code}: {r.label()}" for r in report.reasons}
    return Outcome(found, [_on_host(value) for value in kept], error, launches, tuple(sorted(texts)), len(way.wrapped))


def _on_host(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda x: x.detach().to("cpu", copy=True), value)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    program: str
    way: str
    word: str  # equal, unordered, nearly, ungraphed, skipped, WRONG, ERROR; of Inductor alone, on a GPU: inductor
    why: str = ""
    launches: int = 0

    def __str__(self) -> str:
        return f"{self.program:24} {self.way:22} {self.word:10} {self.launches:4}  {self.why}".rstrip()


@dataclass(slots=True)
class Alone:
    """What the ungraphed code gave, and gives when it runs again."""

    program: Program
    how: How
    first: Outcome
    _again: list[Outcome] = field(default_factory=list)

    def wrong(self, found: Outcome) -> bool:
        """Whether a result is farther off than ungraphed runs are from one another."""
        runs = iter(self._again)  # those that another way has asked for, first

        def again() -> dict[_Place, Apart]:
            if (run := next(runs, None)) is None:
                self._again.append(run := outcome(self.program, self.how))
            return _apart(run, self.first)

        return bool(beyond(_apart(found, self.first), again))


_Place = tuple[bool, int, int]  # whether as copied at the end, the value, its part


def _apart(found: Outcome, expected: Outcome) -> dict[_Place, Apart]:
    """How far what differs in any bit is off."""
    apart: dict[_Place, Apart] = {}
    for late, a, b in ((False, found.values, expected.values), (True, found.late, expected.late)):
        for step, (x, y) in enumerate(zip(a, b, strict=True)):
            ones, others = pytree.tree_leaves(x), pytree.tree_leaves(y)
            if len(ones) != len(others):
                apart[late, step, -1] = BEYOND_NUMBERS
                continue
            parts = enumerate(zip(ones, others, strict=True))
            apart |= {(late, step, n): distance(*pair) for n, pair in parts if difference(*pair)}
    return apart


def rows(program: Program, ways: Sequence[str] = tuple(WAYS)) -> Iterator[Row]:
    """The program in each of these ways."""
    eager = Alone(program, EAGER, outcome(program, EAGER))
    if eager.first.error:
        yield Row(program.name, "eager", "ERROR", eager.first.error)
        return
    never: Alone | None = None
    for name in ways:
        how = WAYS[name]
        if name == "inputs" and program.notes.get("changes_model"):
            continue
        for part, why in program.notes.get("skip", {}).items():
            if name.startswith(part):
                yield Row(program.name, name, "skipped", why)
                break
        else:
            if how.like == "never" and never is None:
                never = Alone(program, NEVER, outcome(program, NEVER))
                yield _row(program, "never", never.first, eager)
            got = outcome(program, how)
            if not got.wrapped:
                continue
            expected = never if how.like == "never" else eager
            assert expected is not None
            yield _row(program, name, got, expected)


def _row(program: Program, name: str, got: Outcome, alone: Alone) -> Row:
    expected, exact = alone.first, name != "never"  # Inductor's kernels round as they like
    if got.error or expected.error:
        same = got.error.split(":")[0] == expected.error.split(":")[0]
        word = "ungraphed" if same and exact else "ERROR"
        return Row(
            program.name, name, word, f"{got.error or 'no error'} | {expected.error or 'no error'}", got.launches
        )
    for what, a, b in (("", got.values, expected.values), ("later ", got.late, expected.late)):
        for step, (x, y) in enumerate(zip(a, b, strict=True)):
            unlike = difference(x, y, layouts=exact, exact=exact)
            if not unlike:
                continue
            why = f"{what}value {step}: {unlike}"
            if not exact:  # nothing of ours ran, but for what is simulated
                return Row(program.name, name, "inductor" if torch.cuda.is_available() else "WRONG", why, got.launches)
            if not alone.wrong(got):
                return Row(program.name, name, "unordered", why, got.launches)
            near = name.startswith("parameterized") and not difference(x, y, layouts=False, exact=False)
            word = "nearly" if near else "WRONG"  # gradients are added up in another order
            return Row(program.name, name, word, why, got.launches)
    return Row(program.name, name, "equal" if got.launches else "ungraphed", "; ".join(got.reasons)[:300], got.launches)
