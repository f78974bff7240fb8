"""A loop that no graph holds, with one round of it as a function: cut out, tried, and rewritten like any other step."""

from __future__ import annotations

import ast
import gc
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from paramgraph_kit.doctor.observe.examine import examine
from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.driver.select import driver
from paramgraph_kit.rewrite.counting import advance
from paramgraph_kit.rewrite.counting.counted import counters
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.loops import group_numbers
from paramgraph_kit.rewrite.loops.one_round import Loop, Round, cut, kept_for_later, loops_around
from paramgraph_kit.rewrite.loops.round_numbers import lend, lend_arrays, together, zeroed
from paramgraph_kit.rewrite.loops.split_reads import Split, split
from paramgraph_kit.rewrite.planning import between_rounds
from paramgraph_kit.rewrite.proving.launches import Launches, Layout, kind_of, layout, plainly
from paramgraph_kit.rewrite.proving.proof import STEPS, Around, Prover, Truth
from paramgraph_kit.rewrite.proving.worth import ENOUGH
from paramgraph_kit.rewrite.reads import moved_around
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.rewriting import REPLAYED, rewrite
from paramgraph_kit.rewrite.round_calls import called, named, with_calls
from paramgraph_kit.rewrite.round_left import MOVED, OTHERS, diff_of, left_of
from paramgraph_kit.rewrite.round_parts import (
    TELLS,
    Lines,
    bodies,
    computes,
    goes_through_loader,
    holds,
    keeps,
    optimizes,
)
from paramgraph_kit.rewrite.round_run import Run, graded
from paramgraph_kit.rewrite.rounds import LIMIT_S
from paramgraph_kit.rewrite.source.borrow import borrowed, codes_in, compiled
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, first_line, within
from paramgraph_kit.rewrite.source.given import OfLoop
from paramgraph_kit.rewrite.truths import truth_of
from paramgraph_kit.rewrite.ways import Ways
from paramgraph_kit.trace.errors import CaptureError
from paramgraph_kit.trace.model import Failure

MOST_LOOPS = 4  # of a function, of which each is tried
_HALF, _TOLD = ast.Pass(), ast.Pass()  # stand for what a statement computes, and then tells


def rounds_of(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    failures: Sequence[Failure],
    *,
    of_loader: bool,
    others: Collection[str] = (),
    left: list[Rewriting] | None = None,
) -> list[Rewriting]:
    """The function with one round of a loop cut out and rewritten whole, once for each of its loops where one is.

    Args:
        of_loader: of a loop over a DataLoader, of which nobody wants a graph of all rounds, or of any other one.
        others: what rounds of other functions are called.
        left: is given a round that is a function, and no graph yet.
    """
    left = [] if left is None else left
    whole = Ways(function, args, kwargs)
    at = whole._definition(cells=True)
    if at is None or whole.entry is None:
        return []
    source, definition = at
    places = [(f, place[1]) for f in failures if (place := whole.place(f)) is not None and place[0] is source]
    loops = loops_around(source, definition, [node for _, node in places])
    loops = [loop for loop in loops if goes_through_loader(whole, loop) is of_loader][:MOST_LOOPS]
    found = list[Rewriting]()
    if not loops:
        return found
    try:
        lines = Lines(whole.entry.__code__)
        with lines, whole.watched():
            truth = truth_of(whole.prover)
        if truth.unsteady:
            return found

        def works(node: ast.stmt) -> bool:
            return computes(node, lines.computing) or optimizes(whole, node, lines.optimizing)

        def reads(node: ast.stmt) -> bool:
            """Whether it tells, and not only because the host decides whether it is done."""
            known = [f for f, n in places if f.code in TELLS and holds(node, n)]
            return keeps(whole, definition, node, lines.working) or any(f.code != "branch-frozen" for f in known)

        def tells(node: ast.stmt) -> bool:
            return reads(node) or any(f.code in TELLS and holds(node, n) for f, n in places)

        rated = [f for f in failures if f.code == "learning-rate-frozen"]
        owners = (source.function_of(n) for f, n in places if f.code in TELLS)
        helpers = {each.name for each in owners if each is not None and each is not definition}
        copied = {n for f, n in places if f.code in ("copy-to-gpu", "blocking-copy")}
        done = list[Loop | ast.If]()
        for loop in chain.from_iterable(bodies(each, works, tells) for each in loops):
            if any(holds(loop, inner) or holds(inner, loop) for inner in done):
                continue
            taken = [*others, *(fix.alone for fix in found)]
            halves = split(source, loop, works, helpers, whole._value, copied)
            for half, only_telling in product([halves, Split()] if halves.edits else [halves], (False, True)):
                asked = works, (lambda node: reads(node) if works(node) else tells(node)) if only_telling else tells
                cutting = _Cutting(
                    whole, source, definition, loop, asked, truth, rated, only_telling, half, taken, left
                )
                if (fix := cutting.tried()) is not None:
                    found.append(fix)
                    done.append(loop)
                    break
    except KeyboardInterrupt:
        raise  # it is the user's
    except Exception:  # what cannot be run alone is no answer
        return found
    finally:
        whole.prover.forget()
    return found


Asked = tuple[Callable[[ast.stmt], bool], Callable[[ast.stmt], bool]]


@dataclass(slots=True)
class _Cutting:
    """One loop of a function, of which one round is cut out and tried."""

    whole: Ways
    source: Source
    definition: Function
    loop: Loop | ast.If
    asked: Asked  # whether a statement computes, and whether it only tells
    truth: Truth
    rated: Sequence[Failure]  # learning rates that are others in a later round
    only_telling: bool  # what else the host does in the middle of a round stays there
    halves: Split  # statements that compute and tell are cut in two
    others: Sequence[str]  # what rounds of other loops are called
    left: list[Rewriting]  # rounds that are functions, and no graphs yet
    rates: list[Edit] = field(default_factory=list)  # fill them, for they are tensors
    zeros: list[Edit] = field(default_factory=list)  # keep the memory of gradients, where rounds have several graphs
    lent: list[Edit] = field(default_factory=list)  # find numbers before a round that are others in each
    told: list[Edit] = field(default_factory=list)  # copy what only tells, and has another value further down
    before: dict[int, int] = field(default_factory=dict)  # how many statements are new before one of the loop's

    old: dict[int, ast.stmt | None] = field(default_factory=dict)  # by what the loop has with edits: what it was

    def tried(self) -> Rewriting | None:
        """A round rewritten whole."""
        copied = kept_for_later(self.source, self.loop, *self.asked, self.whole.tensors)
        copied = {node: edits for node, edits in copied.items() if node not in self.halves}
        self.told = [edit for edits in copied.values() for edit in edits]
        self.before = {self.loop.body.index(n): edits[0].text.count("\n") for n, edits in copied.items()}
        plain = self._cut()
        if plain is None:
            return None
        part = [node for node in self.loop.body if self._is_of(node, plain)]
        self.rates = self._rates(part) if self.rated else []
        self.whole.steps = self.whole.rate = bool(self.rated)
        if (found := self._cut()) is None or (run := self._run(found)) is None:
            return None
        containers = {each.name for each in self.whole.prover.state.holders if each.kind == "container"}
        numbers = [(each.holder.kind, each.name, each.holder.name) for each in counters(self.whole.prover)]
        moved = {f".{n}" if kind == "attributes" else of if kind == "container" else n for kind, n, of in numbers}
        if name := moved_around([*found.lines], self.definition.name, found.name, containers, moved):
            self._leave(found, run, why=MOVED.format(name=f"self{name}" if name.startswith(".") else name))
            return None  # it may move by so little that no trial shows what a graph keeps
        if run.varying or run.arrays:
            host, device = self.whole._host_test(self.definition), self.whole.device
            numbers_in = lend(self.source, self.definition, part, run.varying, host, device) if run.varying else []
            self.lent = together(numbers_in, lend_arrays(self.source, part, run.arrays, device))
            if self.lent and part:
                at = self.loop.body.index(part[0])
                self.before[at] = self.before.get(at, 0) + self.lent[0].text.count("\n")
            if not self.lent or (found := self._cut()) is None or (run := self._run(found)) is None:
                return None
        if not run.is_steady():
            return None
        if len(run.decided()) > 1 and found.trains:
            self.zeros = zeroed(self.source, self._ran(), part)
            if not self.zeros or (found := self._cut()) is None or (run := self._run(found)) is None:
                return None
        let_go = run.graded if found.trains else {}  # no gradients go through a launch
        if let_go or list(run.bound) != list(found.parameters[: len(run.bound)]):
            found = self._cut(let_go, run.bound)
            if found is None or (run := self._run(found)) is None or not run.is_steady():
                return None
        return self._whole(found, run)

    def _ran(self) -> list[Function]:
        """The functions of the file that ran."""
        ran = {(code.co_name, code.co_firstlineno) for code in self.whole.ran}
        every = [n for n in ast.walk(self.source.tree) if isinstance(n, Function)]
        return [n for n in every if (n.name, first_line(n)) in ran or n is self.definition]

    def _is_of(self, node: ast.stmt, plain: Round) -> bool:
        """Whether a statement of the loop, as it stands, is one of the round's."""
        if not self.old:
            return node in plain.part
        return any(self.old[id(each)] is node for each in plain.part)

    def _rates(self, part: Sequence[ast.stmt]) -> list[Edit]:
        """What fills learning rates beside a round, and keeps them as numbers."""
        inside = {id(n) for node in part for n in ast.walk(node)}
        every = [n for top in self._ran() for n in within(top) if isinstance(n, ast.Assign)]
        own = [n for n in within(self.definition) if isinstance(n, ast.Expr | ast.Assign) and id(n) not in inside]
        kept = [edit for node in own for edit in advance.rates_as_numbers(self.source, node)]
        return [*advance.rates(self.source, [n for n in every if id(n) not in inside]), *kept]

    def _edited(self) -> tuple[Source, Function, Loop | ast.If, Asked]:
        """The function with what is done around its rounds, and the same loop in it."""
        edits = [*self.told, *self.halves.edits, *self.rates, *self.zeros, *self.lent]
        if not edits:
            return self.source, self.definition, self.loop, self.asked
        source = self.source.edited(edits)
        definition = _same(self.source.tree, source.tree, self.definition)
        loop = _same(self.definition, definition, self.loop)
        olds: list[ast.stmt | None] = []
        for number, node in enumerate(self.loop.body):
            olds += [*[None] * self.before.get(number, 0), *self._new(node), node]
            olds += [_TOLD] * self.halves.after.get(node, 0)
        self.old = old = dict(zip(map(id, loop.body), olds, strict=True))

        def asks(number: int) -> Callable[[ast.stmt], bool]:
            return lambda node: (one := old[id(node)]) is not None and self._asked(number, one)

        return source, definition, loop, (asks(0), asks(1))

    def _new(self, node: ast.stmt) -> list[ast.stmt | None]:
        """What stands for the statements that are new before one: copies, and what it computes before it tells."""
        return [*[None] * self.halves.copies.get(node, 0), *[_HALF] * self.halves.before.get(node, 0)]

    def _asked(self, number: int, node: ast.stmt) -> bool:
        """The same of a statement as it was, or of the halves that it was cut in: one computes, and one tells."""
        if node in (_HALF, _TOLD) or node in self.halves:
            return (node is _HALF or node in self.halves.after) is (number == 0)
        return self.asked[number](node)

    def _cut(self, graded: Mapping[str, str] = MappingProxyType({}), bound: Sequence[str] = ()) -> Round | None:
        source, definition, loop, asked = self._edited()
        closed = self.whole.entry.__code__.co_freevars if self.whole.entry is not None else ()
        found = cut(
            source,
            definition,
            loop,
            *asked,
            graded,
            bound,
            closed=closed,
            taken=self.others,
            only_telling=self.only_telling,
        )
        return replace(found, lines=tuple(source.apply(found.edits))) if found is not None else None

    def _run(self, found: Round) -> Run | None:
        """The round, where the function gives with it what it gave."""
        whole, texts = self.whole, [*found.lines]
        plan = Plan(self.source, [self.source.all_of(texts)], [])
        lent, space = whole.borrow([plan]), whole.entry.__globals__ if whole.entry is not None else {}
        code = next(c for c in codes_in(compiled(self.source.file, texts)) if c.co_name == found.name)

        @contextmanager
        def applied() -> Iterator[Callable[[Any], None]]:
            space[found.name] = run.made
            try:
                with lent():
                    yield partial(space.__setitem__, found.name)
            finally:
                del space[found.name]

        run = Run(types.FunctionType(code, space, found.name), texts, applied)
        seen: dict[tuple[str, Layout], set[Any]] = {}  # a number of a smaller batch's own is no other one

        def noted(*values: Any) -> Any:
            if not run.given or _does(values) > _does(run.given):  # a round that does most of what rounds do
                run.given = values  # of the others only what they are: they may hold a backward pass
            run.bound = tuple(n for n, each in zip(found.parameters, run.given, strict=True) if not layout(each))
            run.calls[-1].append(kind_of(values))
            for name, value in zip(found.parameters, values, strict=True):
                run.arrays |= {name} if isinstance(value, np.ndarray) else set()
                if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
                    seen.setdefault((name, layout(values)), set()).add(value)
            results = run.made(*values)
            run.graded |= graded(found, [results] if len(found.results) < 2 else results)
            return results

        try:
            with applied() as call:
                call(noted)
                begin = Around(before=lambda _: run.calls.append([]))
                wrong = self.truth.wrong(whole.prover.from_now().eager(begin))
        except Exception:  # it needs what it is not given, as what a round before has left
            gc.collect()  # the frames of that hold a loss
            return None
        run.varying = {name for (name, _), values in seen.items() if len(values) > 1}
        return None if wrong else run

    def _whole(self, found: Round, run: Run) -> Rewriting | None:
        """The round rewritten like any other step, where the function that launches it so gives what it gave."""
        run.given = tree_map_only(torch.Tensor, _written_anywhere, run.given)
        with run.applied() as call:
            bound = len(run.bound)
            step = OfLoop(run.made, *run.given[:bound]) if bound else run.made
            looked_at = examine(step, run.given[bound:], {}, limit_s=LIMIT_S)
            if looked_at.operations < ENOUGH:
                return None  # not worth a launch
            problems = [*looked_at.problems, *(between_rounds(f, self.source, run.texts) for f in self.rated)]
            fix = rewrite(step, run.given[bound:], {}, problems) if problems else _captured(step, run.given[bound:])
            launches, wrong = Launches(run.made, fix.around, bound), list[str]()
            if fix.complete:
                with _with_its_lines(self.whole, fix):
                    call(plainly(run.made, fix.around, bound))
                    self.whole.prover.from_now().eager()  # what these lines write is put back, also after launches
                    call(launches)
                    wrong = self.truth.wrong(self.whole.prover.from_now().launched(self.whole.function))
        if not fix.complete or wrong or not launches.replays:
            self._leave(found, run, fix, OTHERS.format(wrong=wrong[0]) if wrong else "")
            return None
        return _shown(self.whole, self.source, found, fix, run, self.truth, self.loop)

    def _leave(self, found: Round, run: Run, fix: Rewriting | None = None, why: str = "") -> None:
        """Note a round that is a function, and no graph yet."""
        whole_but_one = fix is not None and fix.complete  # only what its loop sets is left, which is told in lines
        if not goes_through_loader(self.whole, self.loop) or (self.left and (self.left[0].left or not whole_but_one)):
            return
        texts = {self.source.file: run.texts}
        if fix is not None and (lines := _calls_itself(self.whole, found, fix, run, self.truth)):
            texts |= {file.removesuffix(REWRITTEN): text for file, text in fix.texts.items()}
            texts[self.source.file] = lines
        whole, functions = self.whole, self._ran()
        of_groups = group_numbers.told(self.source, functions, found.part, found.name, whole._value, whole.device)
        why = of_groups or why
        self.left[:] = [left_of(whole.entry_name, found.name, texts, self.loop.lineno, fix, why)]


def _written_anywhere(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the loop's inference mode as one that may be moved outside of it."""
    return value.clone() if value.is_inference() else value


def _does(values: Sequence[Any]) -> int:
    return sum(value is True for value in values)


Node = TypeVar("Node", bound=ast.AST)


def _same(tree: ast.AST, other: ast.AST, node: Node) -> Node:
    """The node of another tree that stands where one does among its kind."""
    rows = ([n for n in ast.walk(each) if isinstance(n, type(node))] for each in (tree, other))
    found: Node = next(b for a, b in zip(*rows, strict=True) if a is node)
    return found


@contextmanager
def _with_its_lines(whole: Ways, fix: Rewriting) -> Iterator[None]:
    """While this lasts the round runs its rewritten lines, and so does the function, which may make what it binds."""
    file = whole.file + REWRITTEN
    codes = {file: compiled(file, fix.texts[file])} if file in fix.texts else {}
    with fix.applied(), borrowed([whole.entry] if whole.entry is not None else [], codes, {}):
        yield


def _captured(made: Any, given: tuple[Any, ...]) -> Rewriting:
    """What comes of a round in which nothing was found."""
    prover = Prover(made, given, {})
    try:
        truth = truth_of(prover)
        seen = prover.from_now().captured()
        wrong = [truth.unsteady] if truth.unsteady else truth.wrong(seen)
        how = "bit for bit" if not wrong and truth.is_bitwise(seen) else truth.closeness()
    except CaptureError as error:
        return Rewriting("", instead=[f"its capture fails: {error.failure.title} [{error.failure.code}]"])
    finally:
        prover.forget()
    if wrong:
        return Rewriting("", instead=[f"replays of one graph differ from eager: {wrong[0]}"])
    return Rewriting("", verified=[REPLAYED.format(how=how, where=driver().source().label())], complete=True)


def _calls_itself(whole: Ways, found: Round, fix: Rewriting, run: Run, truth: Truth) -> list[str]:
    """The lines of the file with these calls, where the function gives what it gave as they stand; else none."""
    file = whole.file + REWRITTEN
    space = whole.entry.__globals__ if whole.entry is not None else {}
    try:
        lines = with_calls(found, fix, fix.texts[file]) if fix.loop else fix.texts[file]
        code = compiled(file, lines)
        called_there = {line.rpartition(" = ")[2].partition("(")[0] for line in fix.loop} - {"launched"}
        made = {c.co_name: types.FunctionType(c, space, c.co_name) for c in codes_in(code) if c.co_name in called_there}
        if made.keys() != called_there or made.keys() & space.keys():
            return []
        with run.applied(), fix.applied():
            space.update(made)
            try:
                both = {file: code, file + REWRITTEN: code}  # where the round comes to it, its lines are lent already
                with borrowed([whole.entry] if whole.entry is not None else [], both, {}):
                    wrong = truth.wrong(whole.prover.from_now().eager())
            finally:
                for name in made:
                    del space[name]
    except KeyboardInterrupt:
        raise  # it is the user's
    except Exception:  # then what to call is told beside the diff
        return []
    return lines if not wrong else []


def _shown(
    whole: Ways, source: Source, found: Round, fix: Rewriting, run: Run, truth: Truth, loop: Loop | ast.If
) -> Rewriting:
    """What is shown of it: one diff from the user's own lines."""
    whole_loop = _calls_itself(whole, found, fix, run, truth) if fix.usage else []
    texts = {file.removesuffix(REWRITTEN): lines for file, lines in fix.texts.items()}
    texts.setdefault(source.file, run.texts)
    shown = {**texts, source.file: whole_loop or texts[source.file]}
    kinds = {layouts for one in run.calls for layouts, _ in one}
    name_of_it = whole.entry_name
    given, run.given = run.given, ()  # whoever keeps the fix may let go of them
    captured = f"partial({', '.join([found.name, *run.bound])})" if run.bound else found.name
    where = "branch" if isinstance(loop, ast.If) else "loop"
    told = [
        f"one round of the {where} of line {loop.lineno} is what a graph holds: capture `{captured}` for the loop",
        f"`{name_of_it}`, with rounds from graphs, gives the original's results and state in {STEPS} steps",
    ]
    if len({tuple(x for x in plain if not isinstance(x, bool)) for one in run.calls for _, plain in one}) > 1:
        told.append(f"capture it where `{name_of_it}` has made what it binds, for each call anew")
    if kept := [n for n, value in zip(run.bound, given, strict=False) if isinstance(value, (int, float, str))]:
        told.append(f"its graph keeps `{'`, `'.join(kept)}`: capture it anew where that changes")
    outer = source.function_of(loop) or loop
    if any(isinstance(n, ast.Attribute) and n.attr in ("requires_grad", "requires_grad_") for n in ast.walk(outer)):
        told.append("its graph keeps what needs gradients: capture it anew where that changes")
    chosen = [n for n, value in zip(run.bound, given, strict=False) if isinstance(value, bool)]
    chosen = chosen if len(run.decided()) > 1 else []
    graph = f"launched[{', '.join(chosen)}]" if chosen else "launched"
    if chosen:
        told.append(
            f"`{'`, `'.join(chosen)}` is true in some rounds and false in others: each has a graph of its own, "
            "captured once such rounds have run as they are"
        )
    if "set_to_none=False" in "".join(run.texts) and chosen:
        told.append("all graphs add to the same gradients: whoever else zeroes them needs `set_to_none=False`, too")
    if len(kinds) > 1:
        told.append(f"its rounds have tensors of {len(kinds)} sizes: each has a graph of its own")
    told += [f"{found.name}: {line}" for line in fix.verified]

    @contextmanager
    def both() -> Iterator[Any]:
        with run.applied(), _with_its_lines(whole, fix):
            yield run.made

    return replace(
        fix,
        function=name_of_it,
        alone=found.name,
        bound=len(run.bound),
        usage=fix.usage if not whole_loop else "",
        loop=[named(line, found).replace("launched(", f"{graph}(") for line in fix.loop]
        if fix.usage
        else [called(found, len(run.bound), graph)],
        given=given,
        capture=captured,
        complete=False,  # of the function itself
        texts=shown,
        run=texts,
        diff=diff_of(shown),
        verified=[line.replace(REWRITTEN, "") for line in told],
        _borrow=both,
    )
