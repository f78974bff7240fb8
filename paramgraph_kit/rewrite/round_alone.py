"""A loop that no graph holds, with one round of it as a function: cut out, tried, and rewritten like any other step."""

from __future__ import annotations

import ast
import gc
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from paramgraph_kit.doctor.observe.examine import examine
from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.rewrite.behind import OF_STEPS
from paramgraph_kit.rewrite.counting import advance, elsewhere, given_rates, optimizers
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.loops import group_numbers
from paramgraph_kit.rewrite.loops.met import changes_in_branch
from paramgraph_kit.rewrite.loops.one_round import Round, Rounds, cut, kept_for_later, loops_around
from paramgraph_kit.rewrite.loops.rest_ahead import rest_ahead
from paramgraph_kit.rewrite.loops.round_numbers import heads, lend_all, zeroed
from paramgraph_kit.rewrite.loops.spans import KEPT, Block
from paramgraph_kit.rewrite.loops.split_reads import Split, split
from paramgraph_kit.rewrite.loops.states import hand_over
from paramgraph_kit.rewrite.loops.unbound import none_before, unbound, zeros_before
from paramgraph_kit.rewrite.planning import between_rounds
from paramgraph_kit.rewrite.proving.closeness import GRADIENTS
from paramgraph_kit.rewrite.proving.launches import Launches, Layout, kind_of, layout, plainly
from paramgraph_kit.rewrite.proving.proof import Around, Truth
from paramgraph_kit.rewrite.proving.worth import ENOUGH
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.rewriting import rewrite
from paramgraph_kit.rewrite.round_around import moved_in, numbers_read, still_anew
from paramgraph_kit.rewrite.round_captured import captured
from paramgraph_kit.rewrite.round_later import later
from paramgraph_kit.rewrite.round_left import OTHERS, left_of, moved_text
from paramgraph_kit.rewrite.round_loaders import through_loaders
from paramgraph_kit.rewrite.round_parts import (
    READS,
    TELLS,
    Asked,
    Lines,
    asks_what_was_read,
    behind,
    bodies,
    computes,
    ended,
    from_step,
    has_own_gradients,
    holds,
    is_done,
    keeps,
    optimizes,
    parts,
    trains,
    trains_behind,
)
from paramgraph_kit.rewrite.round_run import Given, Run, context_now, does, same, written_anywhere
from paramgraph_kit.rewrite.round_shown import calls_itself, shown_of, with_anew, with_its_lines
from paramgraph_kit.rewrite.rounds import LIMIT_S
from paramgraph_kit.rewrite.source.borrow import codes_in, compiled
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, first_line, locals_of, within
from paramgraph_kit.rewrite.source.given import OfLoop
from paramgraph_kit.rewrite.source.pure import is_pure
from paramgraph_kit.rewrite.truths import Known
from paramgraph_kit.rewrite.ways import Ways
from paramgraph_kit.trace.model import Failure

MOST_LOOPS = 4  # of a function, of which each is tried
_TOLD = ast.Pass()  # stands for what a statement tells


class _Half(ast.Pass):
    """Stands for what a statement computes, and then tells."""

    def __init__(self, of: ast.stmt) -> None:
        super().__init__()
        self.of = of


def rounds_of(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    failures: Sequence[Failure],
    *,
    of_loader: bool,
    known: Known,
    others: Collection[str] = (),
    left: list[Rewriting] | None = None,
    varying: Collection[str] = (),
    called: bool = False,
) -> list[Rewriting]:
    """The function with one round of a loop cut out and rewritten whole, once for each of its loops where one is.

    Args:
        of_loader: of a loop over a DataLoader, of which nobody wants a graph of all rounds, or of any other one.
        known: what others have seen of the function.
        others: what rounds of other functions are called.
        left: is given a round that is a function, and no graph yet.
        varying: arguments that are other numbers in later calls, and numbers that are set around all of it.
        called: whether another function calls it, and may keep what it returns.
    """
    left = [] if left is None else left
    whole = Ways(function, args, kwargs, known.prover())
    at, whole.is_called = whole._definition(cells=True), called
    if at is None or whole.entry is None:
        return []
    source, definition = at
    places = [(f, place[1]) for f in failures if (place := whole.place(f)) is not None and place[0] is source]
    loops = loops_around(source, definition, [node for _, node in places])
    found = list[Rewriting]()
    try:
        loaded = through_loaders(whole, definition, loops, known)
        loops = [loop for loop in loops if (loop in loaded) is of_loader][:MOST_LOOPS]
        if not loops and of_loader:
            return found
        lines = Lines(whole.entry.__code__)
        with lines:
            truth = known.truth_of(whole.prover, whole.watched, makes_one=any(f.code in OF_STEPS for f in failures))
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

        steps = [(f, n) for f, n in places if f.code == "optimizer-not-capturable"]
        owners = (source.function_of(n) for f, n in places if f.code in TELLS)
        helpers = {each.name for each in owners if each is not None and each is not definition}
        copied = {n for f, n in places if f.code in ("copy-to-gpu", "blocking-copy")}
        done, seen = list[Block](), set[tuple[str, ...]]()
        every = [(body, None) for body in chain.from_iterable(bodies(each, works, tells) for each in loops)]
        tries, rest = [*every, *parts(definition, loops, works, tells, lines)], list[tuple[Block, ast.stmt]]()
        for number, (loop, begin) in enumerate(tries, 1):  # which grow
            if known.is_late() or any(is_done(loop, begin, inner) for inner in done):
                continue
            taken = [*others, *(fix.alone for fix in found)]
            halves = split(source, loop, works, helpers, whole._value, copied, whole.tensors, lines.arrays)
            forms = [halves, Split()] if halves.before or halves.edits else [halves]
            steps_of = (
                from_step(loop) if isinstance(loop, ast.For | ast.While) else []
            )  # of a function, words bring it in
            asking = asks_what_was_read(loop, [n for f, n in places if f.code in READS], tells)
            cuts = list(product((False, True) if steps_of else (False,), forms, (False, True)))
            for ends, half, way in [*cuts, *product((False,), forms if asking else (), (None,))]:
                only_telling = bool(way)
                telling = (lambda node: reads(node) if works(node) else tells(node)) if only_telling else tells
                telling = asking if asking is not None and way is None else telling
                asked: Asked = works, telling, lambda node: node in copied and not works(node)
                asked = ended(asked, steps_of) if ends else asked
                of_block = whole, source, definition, loop, asked, truth, failures, varying
                stepped = [f for f, n in steps if holds(loop, n) and not ends]
                cutting = _Cutting(*of_block, stepped, only_telling, half, taken, left, of_loader, begin, seen, ends)
                cutting.known = known.further()
                if not known.is_late() and (fix := cutting.tried()) is not None:
                    fix.worth = lines.worth(cutting.part)
                    found.append(fix)
                    done.append(loop)
                    more = behind(loops, loop, works) if begin is None else []
                    rest, tries[number:number] = [*rest, *more], more
                    break
            if begin is not None and found and (loop, begin) not in rest:
                break
    except KeyboardInterrupt:
        raise  # it is the user's
    except Exception:  # what cannot be run alone is no answer
        return found
    finally:
        whole.prover.forget()
    return found


@dataclass(slots=True)
class _Cutting:
    """One loop of a function, of which one round is cut out and tried."""

    whole: Ways
    source: Source
    definition: Function
    loop: Block
    asked: Asked  # whether a statement computes, whether it only tells, and whether it copies to the device
    truth: Truth
    failures: Sequence[Failure]  # of the function as it is
    varying: Collection[str]  # of what it is given, numbers that are others in later calls
    stepped: Sequence[Failure]  # steps of optimizers in it that are not made for a capture
    only_telling: bool  # what else the host does in the middle of a round stays there
    halves: Split  # statements that compute and tell are cut in two
    others: Sequence[str]  # what rounds of other loops are called
    left: list[Rewriting]  # rounds that are functions, and no graphs yet
    of_loader: bool  # only such a one is shown as a function that is no graph yet
    begin: ast.stmt | None  # where only a part of the block is wanted, the first of that
    seen: set[tuple[str, ...]]  # the lines of the file with all that was tried so far
    ends: bool = False  # optimizers step behind it, where the host calls them
    known: Known | None = None  # of the round, in the time that is left
    part: Sequence[ast.stmt] = ()  # what is cut out, as it stood
    rates: list[Edit] = field(default_factory=list)  # fill them, for they are tensors
    zeros: list[Edit] = field(default_factory=list)  # keep the memory of gradients, where rounds have several graphs
    lent: list[Edit] = field(default_factory=list)  # find numbers before a round that are others in each
    anew: tuple[str, ...] = ()  # attributes of what is bound that the function makes before the loop, in each call
    begun: list[Edit] = field(default_factory=list)  # give what a way not taken would make a value
    later: Sequence[Failure] = ()  # steps with a rate that is another one in a later epoch, which no trial has come to
    told: list[Edit] = field(default_factory=list)  # copy what only tells, and has another value further down
    held: list[Edit] = field(default_factory=list)  # hand over what others hold
    behind: dict[int, int] = field(default_factory=dict)  # how many statements are new behind one of the loop's
    before: dict[int, int] = field(default_factory=dict)  # how many statements are new before one of the loop's
    old: dict[int, ast.stmt | None] = field(default_factory=dict)  # by what the loop has with edits: what it was

    def tried(self) -> Rewriting | None:
        """A round rewritten whole."""
        copied = kept_for_later(self.source, self.loop, self.asked[0], self.asked[1], self.whole.tensors)
        copied = {node: edits for node, edits in copied.items() if node not in self.halves}
        self.told = [*chain.from_iterable(copied.values())]
        self.before = {self.loop.body.index(n): edits[0].text.count("\n") for n, edits in copied.items()}
        if self.begin is None and not self.told:
            self.told, self.behind = rest_ahead(self.source, self.loop, self.definition, self._is_pure)
        if (plain := self._cut()) is None or changes_in_branch(plain.part, self.whole._value):
            return None
        part = [node for node in self.loop.body if self._is_of(node, plain)]
        self.part = [old for each in plain.part if (old := self._was(each)) is not None]
        self._hand_over(part)
        held = numbers_read(self.source, self.definition, self.loop, part, self.whole, self.varying)
        self.lent = self._lend(part, held)
        self.rates = self._rates(part)
        if not self.rated and not self.ends and any(".fill_(" in edit.text for edit in self.rates):
            self.later = [replace(each, code="learning-rate-frozen") for each in self.stepped]
            self.rates += self._makers()
        self.rates = self.rates if self.rated else []
        self.whole.steps = self.whole.rate = bool(self.rated)
        if (found := self._cut()) is None or (key := (*found.lines, str(self.ends))) in self.seen:
            return None  # it comes to the same as another way
        self.seen.add(key)
        run = self._run(found)
        if run is None and self.begun and (found := self._cut()) is not None:
            run = self._run(found)
        if found is None or run is None:
            return None
        if sums := zeros_before(self.source, self.definition, self.loop, run.sums, self.whole.device):
            self.begun += sums
            if (found := self._cut()) is None or (run := self._run(found)) is None:
                return None
        name, begun = moved_in(self.whole, self.definition, found, run, self.varying, rates=bool(self.rates))
        self.anew = tuple(sorted(each[1:] for each in begun if run.has(each)))
        if name := name or min((each for each in begun if not run.has(each)), default=""):
            self._leave(found, run, why=moved_text(name))
            return None  # it may move by so little that no trial shows what a graph keeps
        run.varying |= {*self.varying} & {*found.parameters}
        if run.varying or run.arrays:
            self.lent = self._lend(part, held, run.varying, run.arrays)
            if not self.lent or (found := self._cut()) is None or (run := self._run(found)) is None:
                return None
        sources = self.whole.sources.values()
        if not run.is_steady() or trains_behind(self.definition, self.loop, self.part, run.graded, sources):
            return None
        host_steps = self.ends or any(f.code == "grad-scaler" for f in self.failures)
        if (len(run.decided()) > 1 or host_steps) and (found.trains or trains(found.part, self._ran())):
            self.zeros = zeroed(self.source, self._ran(), part, anywhere=host_steps)
            if not self.zeros or (found := self._cut()) is None or (run := self._run(found)) is None:
                return None
        let_go = run.graded if found.trains else {}  # no gradients go through a launch
        if let_go or found.kept & run.tensors or list(run.bound) != list(found.parameters[: len(run.bound)]):
            found = self._cut(let_go, run.bound, run.tensors)
            if found is None or (run := self._run(found)) is None or not run.is_steady():
                return None
        return self._whole(found, run) if not self.truth.is_late() else None

    @property
    def rated(self) -> list[Failure]:
        """Learning rates that are others in a later round."""
        return [] if self.ends else [f for f in self.failures if f.code == "learning-rate-frozen"] or [*self.later]

    def _lend(self, part: Sequence[ast.stmt], *wanted: Collection[str]) -> list[Edit]:
        """Have a part given some numbers, held by others or by names, and arrays, in tensors."""
        known = self.whole._host_test(self.definition), self.whole.device, self.whole.tensors
        found = lend_all(self.source, self.definition, part, wanted, *known)
        self._shift(part, heads(found) - heads(self.lent))
        return found

    def _shift(self, part: Sequence[ast.stmt], lines: int) -> None:
        """Note that so many more are new before a part."""
        at = self.loop.body.index(part[0]) if part else 0
        self.before[at] = self.before.get(at, 0) + lines

    def _hand_over(self, part: Sequence[ast.stmt]) -> None:
        """Have a part of a block given what others hold, and rebind."""
        loop = self.loop if self.begin is None else None
        self.held, ahead, behind = hand_over(self.source, self.definition, part, self.whole._value, loop)
        self.held += [self.source.before(part[0], ahead, KEPT)] if ahead else []
        self._shift(part, len(ahead))
        if behind:
            self.held.append(self.source.after(part[-1], behind))
            self.behind[self.loop.body.index(part[-1])] = len(behind)

    def _ran(self) -> list[Function]:
        """The functions of the file that ran."""
        ran = {(code.co_name, code.co_firstlineno) for code in self.whole.ran}
        every = [n for n in ast.walk(self.source.tree) if isinstance(n, Function)]
        return [n for n in every if (n.name, first_line(n)) in ran or n is self.definition]

    def _is_of(self, node: ast.stmt, plain: Round) -> bool:
        """Whether a statement of the loop, as it stands, is one of the round's."""
        return any((self.old[id(each)] if self.old else each) is node for each in plain.part)

    def _makers(self) -> list[Edit]:
        """Optimizers that the function makes in each call, with rates that are tensors."""
        names = {optimizers.stepped(n) for part in self.loop.body for n in ast.walk(part) if isinstance(n, ast.Expr)}
        space = self.whole.entry.__globals__ if self.whole.entry is not None else {}
        names &= locals_of(self.definition)
        return elsewhere.rated(self.source, names, self.whole.sources, space, self.whole.device)

    def _rates(self, part: Sequence[ast.stmt]) -> list[Edit]:
        """What fills learning rates beside a round, and keeps them as numbers."""
        inside = {id(n) for node in part for n in ast.walk(node)}
        every = [n for top in self._ran() for n in within(top) if isinstance(n, ast.Assign)]
        own = [n for n in within(self.definition) if isinstance(n, ast.Expr | ast.Assign) and id(n) not in inside]
        kept = [edit for node in own for edit in advance.rates_as_numbers(self.source, node)]
        return [*given_rates.rates(self.source, [n for n in every if id(n) not in inside], self.whole._value), *kept]

    def _edited(self) -> tuple[Source, Function, Block, Asked]:
        """The function with what is done around its rounds, and the same loop in it."""
        edits = [*self.begun, *self.told, *self.halves.edits, *self.rates, *self.zeros, *self.held, *self.lent]
        if not edits and not self.halves.before:
            return self.source, self.definition, self.loop, self.asked
        source = self.source.edited(edits)
        definition = same(self.source.tree, source.tree, self.definition)
        loop = same(self.definition, definition, self.loop)
        olds: list[ast.stmt | None] = []
        for number, node in enumerate(self.loop.body):
            olds += [*[None] * self.before.get(number, 0), *self._new(node), node]
            olds += [*[_TOLD] * self.halves.after.get(node, 0), *[None] * self.behind.get(number, 0)]
        self.old = old = dict(zip(map(id, loop.body), olds, strict=True))

        def asks(number: int) -> Callable[[ast.stmt], bool]:
            return lambda node: (one := old[id(node)]) is not None and self._asked(number, one)

        return source, definition, loop, (asks(0), asks(1), asks(2))

    def _new(self, node: ast.stmt) -> list[ast.stmt | None]:
        """What stands for the statements that are new before one: copies, and what it computes before it tells."""
        return [
            *[None] * self.halves.copies.get(node, 0),
            *(_Half(node) for _ in range(self.halves.before.get(node, 0))),
        ]

    def _asked(self, number: int, node: ast.stmt) -> bool:
        """The same of a statement as it was, or of the halves that it was cut in: one computes, and one tells."""
        half = isinstance(node, _Half)
        if half or node is _TOLD or node in self.halves:
            return number < 2 and (half or node in self.halves.after) is (number == 0)
        return self.asked[number](node)

    def _cut(self, graded: Mapping[str, str] = MappingProxyType({}), *of: Collection[str]) -> Round | None:
        bound, copies = of or ((), ())
        source, definition, loop, asked = self._edited()
        closed = self.whole.entry.__code__.co_freevars if self.whole.entry is not None else ()
        found = cut(
            *(source, definition, loop, asked[0], asked[1], graded, bound),
            closed=closed,
            taken=self.others,
            only_telling=self.only_telling,
            begins=self._begins if self.begin is not None else None,
            pure=lambda node: self._is_pure(self.old[id(node)] if self.old else node),
            brings=asked[2],
            copies=copies,
            called=self.whole.is_called,
        )
        return replace(found, lines=tuple(source.apply(found.edits))) if found is not None else None

    def _begins(self, node: ast.stmt) -> bool:
        """Whether a statement is the first of the part that is wanted, or comes of that."""
        return self._was(node) is self.begin

    def _was(self, node: ast.stmt) -> ast.stmt | None:
        """What a statement of the loop was before it was cut, or None for a new one."""
        old = self.old[id(node)] if self.old else node
        return old.of if isinstance(old, _Half) else old

    def _is_pure(self, node: ast.stmt | None) -> bool:
        """Whether a statement of the user's gives names what it computes, and does nothing else."""
        if not isinstance(node, ast.Assign) or not self.failures:
            return False
        targets = chain.from_iterable(each.elts if isinstance(each, ast.Tuple) else [each] for each in node.targets)
        place = self.whole._place_of(self.source, node, self.failures[0])
        return all(isinstance(each, ast.Name) for each in targets) and is_pure(place, node.value)

    def _run(self, found: Round) -> Run | None:
        """The round, where the function gives with it what it gave."""
        if self.truth.is_late():
            return None
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
            if not run.given or does(values) > does(run.given):  # a round that does most of what rounds do
                run.given = values  # of the others only what they are: they may hold a backward pass
                run.has_now = [(each, {**vars(each)}) for each in values if hasattr(each, "__dict__")]
            run.context = context_now()
            run.bound = tuple(n for n, each in zip(found.parameters, run.given, strict=True) if not layout(each))
            run.calls[-1].append(kind_of(values))
            for name, value in zip(found.parameters, values, strict=True):
                run.note(name, value)
                run.arrays |= {name} if isinstance(value, np.ndarray) else set()
                if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
                    seen.setdefault((name, layout(values)), set()).add(value)
            with run.watched(whole.sources):
                results = run.made(*values)
            run.gives(found, [results] if len(found.results) < 2 else results)
            return results

        try:
            with applied() as call:
                call(noted)
                begin = Around(before=lambda _: run.calls.append([]))
                wrong = self.truth.wrong(whole.prover.from_now().eager(begin))
        except Exception as error:  # it needs what it is not given, as what a round before has left
            name = unbound(error, found.parameters)
            self.begun += none_before(self.source, self.definition, self.loop, name) if name else []
            gc.collect()  # the frames of that hold a loss
            return None
        run.varying = {name for (name, _), values in seen.items() if len(values) > 1}
        return None if wrong else run

    def _whole(self, found: Round, run: Run) -> Rewriting | None:
        """The round rewritten like any other step, where the function that launches it so gives what it gave."""
        run.given = tree_map_only(torch.Tensor, written_anywhere, run.given)
        with run.applied() as call, run.as_it_was(self.anew):
            inputs = run.given[(bound := len(run.bound)) :]
            step = OfLoop(run.made, *run.given[:bound]) if bound else run.made
            with torch.no_grad() if run.context else nullcontext():  # as its callers do: its lines tell nothing
                looked_at = examine(step, inputs, {}, limit_s=LIMIT_S)
                if looked_at.operations < ENOUGH:
                    return None  # not worth a launch
                problems = [*looked_at.problems, *(between_rounds(f, self.source, run.texts) for f in self.rated)]
                more: dict[str, Any] = {"part": True, "known": self.known}
                fix = rewrite(step, inputs, {}, problems, **more) if problems else captured(step, inputs)
            self.anew = still_anew(self.anew, found, run, fix.texts, self.source.file)
            launches, wrong = Launches(run.made, fix.around, bound, self.anew), list[str]()
            if fix.complete:
                with with_its_lines(self.whole, fix):
                    given = Given(run.made)
                    call(plainly(given, fix.around, bound))
                    self.whole.prover.from_now().eager()  # what these lines write is put back, also after launches
                    if given.moves:
                        return None
                    for each in (launches, Launches(run.made, fix.around, bound, self.anew, handed=True)):
                        call(each)
                        wrong = wrong or self.truth.wrong(self.whole.prover.from_now().launched(self.whole.function))
                    apart = run.leaves_out() and has_own_gradients(self.part, self.whole.sources.values())
                    wrong = [each for each in wrong if not (apart and each.startswith(GRADIENTS))]
        if fix.complete and self.rates and not elsewhere.gives_rates(run.texts, fix.texts, self.whole.prover.state):
            return None  # its optimizer steps behind it, as it was made, with a number
        wrong = wrong or later(self.whole, self.truth, run, fix, self.anew)
        if not fix.complete or wrong or not launches.replays or (fix.worth.behind and not fix.worth.inside):
            self._leave(found, run, fix, OTHERS.format(wrong=wrong[0]) if wrong else "")
            return None
        shown = shown_of(self.whole, self.source, found, fix, run, self.truth, self.loop)
        return with_anew(shown, self.anew, self.definition.name, own_gradients=apart) if shown is not None else None

    def _leave(self, found: Round, run: Run, fix: Rewriting | None = None, why: str = "") -> None:
        """Note a round that is a function, and no graph yet."""
        whole_but_one = fix is not None and fix.complete  # only what its loop sets is left, which is told in lines
        of_loader = self.of_loader and isinstance(self.loop, Rounds)
        if not of_loader or (self.left and (self.left[0].left or not whole_but_one)):
            return
        texts = {self.source.file: run.texts}
        if fix is not None and (lines := calls_itself(self.whole, found, fix, run, self.truth)):
            texts |= {file.removesuffix(REWRITTEN): text for file, text in fix.texts.items()}
            texts[self.source.file] = lines
        whole, functions = self.whole, self._ran()
        why = group_numbers.told(self.source, functions, found.part, found.name, whole._value, whole.device) or why
        self.left[:] = [left_of(whole.entry_name, found.name, texts, self.loop.lineno, fix, why)]
