"""The verb ``story``: one function of the user's from a broken capture to a parameterized one, live and proved."""

from __future__ import annotations

import io
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from paramgraph_kit.trace.errors import CaptureError, ParamgraphError
from paramgraph_kit.trace.model import Failure, Proof, Trace
from paramgraph_kit.trace.wording import bytes_text, frame_text, kind_text, one_line
from paramgraph_kit.verbs._loop import is_cell, is_written, lines_of, state_of

if TYPE_CHECKING:
    from paramgraph_kit.doctor.diagnosis import Diagnosis
    from paramgraph_kit.explore import Explorer
    from paramgraph_kit.rewrite.proving.proof import Around, Prover, Seen, Truth
    from paramgraph_kit.rewrite.result import Rewriting

Say = Callable[[str], None]
NEW_INPUT = "a call on new inputs, against eager"
COPIED = "a replay after copies into its inputs, against eager"
MOST_NODES = 8
COUNTED = (
    "That tensor is the host's, and no graph writes it: keep it on the device, or write it behind the launch; an "
    "optimizer that counts its steps there has to take capturable=True, as torch.optim.Adam, or fused=True, as Adagrad"
)
LATER = (
    "Functions that are kept for later have the tensors of one call: the captured graph can be used as it is, with "
    "what comes after it behind each replay; for launches, return the tensors that they read, and do their work with "
    "these"
)
CARRIED = (
    "A graph captured by hand would need today's tensor copied into the one that it has read before each replay; a\n"
    "parameterized launch reads the one that is there, so the story goes on with it."
)


@dataclass(slots=True)
class Story:
    """What happened to a function, step by step; in a notebook the explorer walks through it.

    ``traces`` has a step each, ``diagnosis`` what was found, ``complete`` says that it ended parameterized and equal.
    """

    function: str
    traces: dict[str, Trace] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    diagnosis: Diagnosis | None = None
    complete: bool = False
    stopped: str = ""  # why it did not go on, and what to do

    @property
    def fix(self) -> Rewriting | None:
        """The rewritten lines, where there are any."""
        return cast("Rewriting | None", self.diagnosis.fix) if self.diagnosis is not None else None

    def explore(self) -> Explorer:
        """The steps side by side."""
        from paramgraph_kit.verbs import explore

        return explore(self.traces)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        end = "parameterized, equal to eager" if self.complete else f"stopped: {self.stopped}"
        return one_line(f"Story({self.function}: {', '.join(self.traces)}; {end})")

    def _ipython_display_(self) -> None:
        if not self.traces:
            raise NotImplementedError  # IPython then asks for the bundle
        self.explore()._ipython_display_()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        if not self.traces:
            return {"text/plain": repr(self)}
        return self.explore()._repr_mimebundle_(include, exclude)


class _Stopped(Exception):  # noqa: N818 - no error: the story ends here, and says why
    """The story cannot go on."""


class _Teller:
    """Tells the story of one function; everything that a step changes is put back after it."""

    def __init__(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], say: Say, caller: dict[str, Any]
    ) -> None:
        from paramgraph_kit.doctor.explain.naming import name_of
        from paramgraph_kit.rewrite.proving.proof import Prover

        self.function, self.args, self.kwargs = function, args, kwargs
        self.out = Story(name_of(function))
        self.print = say
        self.caller = caller  # the names of whoever has the story told
        self.number = 0
        self.prover: Prover = Prover(function, args, kwargs)
        self.truth: Truth
        self.failure: Failure | None = None  # of the capture as it is
        self.carried = False  # all that is left are tensors that each call makes anew, which a launch takes as they are

    # saying

    def chapter(self, title: str) -> None:
        self.number += 1
        self.say(("\n" if self.number > 1 else "") + f"{self.number}. {title}")

    def say(self, text: str, by: int = 0) -> None:
        text = textwrap.indent(text, " " * by)
        self.out.lines.append(text)
        self.print(text)

    def stop(self, why: str) -> _Stopped:
        self.out.stopped = why
        self.say(f"\nThe story stops here: {why}")
        return _Stopped(why)

    # telling

    def tell(self) -> Story:
        try:
            self.eager()
            if not self.broken():
                self.found()
            elif (fix := self.out.fix) is not None:
                self.chapter("To launch it as a step, in your own words")
                self.say(str(fix), 3)
            if self.truth.unsteady:
                raise self.stop(
                    "what it returns cannot be compared, so nothing would be proved: take what changes by itself out "
                    "of the function, or give it as an argument"
                )
            fix = self.out.fix
            with fix.applied() if fix is not None else nullcontext() as made:
                if fix is not None and made is not None:
                    self.one_round(made, fix)
                self.prover = self.prover.from_now()
                if not self.carried:
                    self.captured()
                    self.frozen()
                else:  # what the rewritten lines write is put back after each way of launching them
                    self.prover.eager(self.around())
                self.parameterized()
        except _Stopped:
            pass
        return self.out

    def step(self, name: str, title: str) -> AbstractContextManager[Trace]:
        from paramgraph_kit.verbs import watch

        return _kept(watch(title), self.out.traces, name)

    def eager(self) -> None:
        """The original, which everything after is compared with."""
        from paramgraph_kit.doctor import explain
        from paramgraph_kit.driver.select import driver
        from paramgraph_kit.rewrite.proving.proof import RETURNS, STEPS, Truth
        from paramgraph_kit.rewrite.rewriting import UNSTEADY

        self.chapter(f"{self.out.function} as it is, on {driver().source().label()}")
        try:
            with self.step("eager", "eager"):
                self.truth = Truth(self.prover)
        except Exception as error:
            text = str(error).strip().partition("\n")[0].rstrip(".")
            found = explain(error)
            instead = found.fix.splitlines()[-1].removeprefix("after").strip()
            hint = f": {instead}" if found.code == "not-simulated" else ""
            raise self.stop(
                f"it does not run eagerly: {type(error).__name__}: {text}. Make it run first{hint}"
            ) from error
        sizes = {name: sum(value.numel() for value in each) for name, each in self.truth.measured().items()}
        results = sizes.pop(RETURNS, 0)
        self.say(f"{STEPS} calls with inputs of their own, to compare with: {results:,} values of results", 3)
        self.say(f"and {sum(sizes.values()):,} of what it changes; all of that is put back after each step", 3)
        if self.prover.kept:
            self.say(f"{self.prover.kept}: less is proved so", 3)
        if self.truth.unsteady:
            self.say(f"{UNSTEADY} ({self.truth.unsteady}): it keeps or draws what cannot be put back", 3)

    def broken(self) -> bool:
        """Its capture as it is; whether it works and replays what eager computes."""
        from paramgraph_kit.verbs._left_over import let_go

        self.chapter("A capture of it")
        try:
            wrong, self.failure = self.as_it_is()
            if self.failure is not None and self.failure.code == "legacy-stream" and (gone := let_go()):
                self.say(gone, 3)
                wrong, self.failure = self.as_it_is()
        except Exception as error:
            self.say(f"it raises      {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", 3)
            return False
        if self.failure is not None:
            self.say(f"CUDA says      {one_line(self.failure.message)}", 3)
            self.say(f"which means    {self.failure.title} [{self.failure.code}]", 3)
            self.say(f"at             {frame_text(self.failure.frame)}", 3)
            return False
        replays = f"but replays go wrong: {wrong[0]}" if wrong else "and replays give eager's numbers"
        self.say(f"it captures, {replays}", 3)
        return not wrong and not self.look()

    def as_it_is(self) -> tuple[list[str], Failure | None]:
        """Capture it: where replays go wrong, or why it fails, without what an exception holds of the call."""
        from paramgraph_kit.rewrite.proving.exchanged import ExchangedError

        try:
            with self.step("captured as it is", "captured as it is") as trace:
                seen = self.prover.captured()
                wrong = self.truth.wrong(seen)
                self.compare(trace, COPIED, seen)
        except CaptureError as error:
            return [], error.failure
        except ExchangedError as error:
            return [str(error)], None
        return wrong, None

    def look(self) -> bool:
        """Look for what a capture does not tell, too."""
        from paramgraph_kit.rewrite.rewriting import rewrite
        from paramgraph_kit.verbs import diagnose

        with redirect_stdout(io.StringIO()):  # what it prints is no line of the story
            found = self.out.diagnosis = diagnose(self.function, *self.args, fix=True, **self.kwargs)
        if not found and state_of(self.function)[0]:  # a capture has nothing against a loss that needs gradients
            fix = rewrite(self.function, self.args, self.kwargs, ())
            found.fix = fix if fix.complete and fix.diff else None
        return bool(found)

    def found(self) -> None:
        """Every problem at its line, and the fix."""
        from paramgraph_kit.verbs._left_over import WHY

        found = self.out.diagnosis
        if found is None:
            self.look()
            found = self.out.diagnosis
        assert found is not None
        if not found.failures and self.failure is not None:  # what only a capture shows, in no call that was looked at
            found.failures = (self.failure,)
        self.chapter(f"What is wrong: {len(found)} problem{'' if len(found) == 1 else 's'}")
        if "captured as it is" in self.out.traces:
            told = self.out.traces["captured as it is"].failures
            own = {(f.code, f.frame): f for f in found.failures}  # with the user's own lines
            told[:] = [*(own.pop((f.code, f.frame), f) for f in told), *own.values()]
        for failure in found.failures:
            self.say(f"{frame_text(failure.frame)}\n   {failure.title} [{failure.code}]", 3)
        for note in found.notes:
            if WHY in note:
                self.say(note, 3)
        fix = found.fix
        if not found.failures:
            raise self.stop("its replays are wrong, and the doctor does not know why: compare the traces step by step")
        self.chapter("The fix, in your own words")
        self.say(str(fix) if fix is not None else "none is known", 3)
        counted = [note for note in found.notes if "counts its steps on the CPU" in note]
        if counted and (fix is None or not (fix.complete or "fused=True" in fix.diff)):  # or it is told a round later
            self.say(f"by hand  {counted[0].partition(' ')[0]}: {COUNTED[0].lower()}{COUNTED[1:]}", 5)
        if fix is not None and fix.left and all(failure.code == "stale-input" for failure in fix.left):
            self.carried = not fix.complete and not self.truth.unsteady
        if self.carried:
            self.say(CARRIED, 3)
        elif fix is None or not (fix.complete or fix.alone):
            left = fix.left if fix is not None else list(found.failures)
            places = len({failure.frame for failure in left})
            where = f" ({places} place{'' if places == 1 else 's'})" if left else ""
            for failure in fix.unsaid if fix is not None else left:
                if failure.fix:
                    self.say(f"{frame_text(failure.frame)}\n{textwrap.indent(failure.fix, '   ')}", 3)
            if not left and fix is not None and not fix.instead:
                raise self.stop(
                    f"the rewritten function is not proved: {fix.verified[-1]}. {_unproved(fix.verified[-1])}"
                )
            raise self.stop(
                f"no safe rewrite is known for all of it{where}: change these lines as said, and call story again"
                + ("; till then it can be launched in pieces, as said" if fix is not None and fix.pieces else "")
            )

    def one_round(self, made: Any, fix: Rewriting) -> None:
        """The story goes on with what of a loop can be a graph."""
        from paramgraph_kit.rewrite.proving.proof import Prover, Truth

        of_it = "One round of its loop" if fix.is_of_loop else "A part of it"
        what = "The cell's lines as a function" if is_cell(self.function) else of_it
        self.chapter(f"{what}, {fix.alone}: from here on the story is about that")
        self.function = partial(made, *fix.given[: fix.bound]) if fix.bound else made
        self.args, self.kwargs, fix.given = fix.given[fix.bound :], {}, ()
        self.prover = Prover(self.function, self.args, self.kwargs)
        self.truth = Truth(self.prover, fix.around)  # its lines leave out by now what comes around a launch

    def around(self) -> Around:
        """What the fix has moved out of the function."""
        from paramgraph_kit.rewrite.proving.proof import NOTHING

        return self.out.fix.around if self.out.fix is not None else NOTHING

    def captured(self) -> None:
        """The graph, and replays that are told of their inputs."""
        import torch
        from torch.utils._pytree import tree_leaves

        from paramgraph_kit.backend.tracing import trace_of_graph

        self.chapter("The captured graph")
        graphs: list[Trace] = []
        with self.step("captured", "captured by hand, with static inputs") as trace:
            seen = self.prover.captured(
                self.around(),
                look=lambda graph: graphs.append(trace_of_graph(graph, "captured by hand, with static inputs")),
            )
            if graphs and not trace.captures:
                trace.partitions += graphs[0].partitions
                trace.captures += graphs[0].captures
            proof = self.compare(trace, COPIED, seen)
        given = [x.nbytes for x in tree_leaves(self.prover.inputs) if isinstance(x, torch.Tensor)]
        trace.launches[:] = [replace(each, bytes_copied=sum(given)) for each in trace.launches]
        for line in _nodes(graphs[0]) if graphs else ():
            self.say(line, 3)
        self.say(f"replays after a copy into its inputs, {bytes_text(sum(given))} each: {proof.text()}", 3)
        if not proof.equal and not self.close(seen):
            raise self.stop("the replays of the captured graph are not eager's numbers")

    def frozen(self) -> None:
        """The same graph, which nobody tells of a new input."""
        if not self.prover.moves:
            return  # a graph that nobody told would be right by chance
        self.chapter("The same graph with an input that moved")
        with self.step("frozen", "a replay that nobody told of the new input") as trace:
            seen = self.prover.captured(self.around(), told=False)
            proof = self.compare(trace, NEW_INPUT, seen)
        if proof.equal:
            self.say(f"the result does not depend on its inputs: {proof.text()}", 3)
        else:
            self.say(f"it reads the memory that it was captured with, so it is wrong: {proof.text()}", 3)

    def parameterized(self) -> None:
        """Launched at the addresses that come."""
        import torch

        from paramgraph_kit.rewrite.source.borrow import as_written
        from paramgraph_kit.verbs import parameterize, report

        self.chapter("Parameterized: launched where the inputs are")
        around = self.around()
        trains, state = state_of(self.function)
        values = [*state.values()]
        # A function is traced, a training step runs under capture itself; so does what reaches tensors of its own,
        # and that without gradients, for no backward goes through such a launch.
        ways = [(True, False)] if trains else [(False, False), (True, False), (True, True)]
        for whole, plain in ways:
            function = as_written(self.function)
            step = parameterize(function, state=values) if whole else parameterize(function)
            mode = torch.no_grad() if plain else nullcontext()
            with mode, self.step("parameterized", "parameterized: any address, no copies") as trace:
                seen = self.prover.launched(step, around)
                proof = self.compare(trace, NEW_INPUT, seen)
            if trace.launches:
                break
        if plain and trace.launches:
            self.say("under torch.no_grad(): it reaches tensors of its own, and is launched as a step", 3)
        moved = sum(launch.moved > 0 for launch in trace.launches)
        words = max((launch.words_patched for launch in trace.launches), default=0)
        copied = sum(launch.bytes_copied for launch in trace.launches)
        self.say(
            f"{len(trace.launches)} launches, {moved} at new addresses, {words} words patched in each, "
            f"{copied} bytes copied",
            3,
        )
        self.say(f"results against eager: {proof.text()}", 3)
        if not trace.launches:
            self.say(str(report(step)), 3)
            fix = self.out.fix
            why = "; ".join(reason.message for reason in report(step).reasons) or "the report above says why"
            raise self.stop(f"it runs ungraphed: {why}" + (f". {LATER}" if fix and _keeps_later(fix.diff) else ""))
        if not proof.equal and not self.close(seen):
            raise self.stop("the parameterized results are not eager's: report this, and use the captured graph")
        self.out.complete = True
        loop = "In your own loop" + (", with the cell's lines in a function" if is_cell(self.function) else "")
        name = self.out.fix.alone if self.out.fix is not None and self.out.fix.alone else self.out.function
        self.say(f"\n{name} is parameterized, and gives eager's results at every step. {loop}:")
        named = [name for name, value in state.items() if is_written(self.function, name, value, self.caller)]
        for line in lines_of(self.function, named if whole else None, self.out.fix):
            self.say(line, 3)
        if plain:
            self.say("under torch.no_grad()", 3)

    # comparing

    def close(self, seen: Seen) -> bool:
        """Whether what a rounding leaves is all that differs."""
        wrong = self.truth.wrong(seen)
        said = wrong[0] if wrong else f"all {self.truth.closeness()}: the lines round otherwise"
        self.say(said, 3)
        step = [*self.out.traces.values()][-1]  # where only the bits are counted
        step.title = f"{step.title}; values that differ: {said}"
        return not wrong

    def compare(self, trace: Trace, label: str, seen: Seen) -> Proof:
        """Compare bits and shapes with the original's."""
        pairs: list[tuple[Any, Any]] = []
        for name in sorted(self.truth.measured().keys() & seen.keys()):
            got, expected = seen[name], self.truth.seen[name]
            if [tuple(t.shape) for t in got] != [tuple(t.shape) for t in expected]:
                what, shapes = name.partition("#")[0], [str([tuple(t.shape) for t in e[:3]]) for e in (got, expected)]
                raise self.stop(f"{what}: other shapes than eager's, {shapes[0]} instead of {shapes[1]}")
            pairs += zip(got, expected, strict=True)
        same = [(a, b) if a.dtype == b.dtype else (a.double(), b.double()) for a, b in pairs]
        return trace.compare(label, [a for a, _ in same], [b for _, b in same])


class _kept:  # noqa: N801 - used like a function
    """A watch whose trace becomes a step of the story, also where something is raised."""

    def __init__(self, watch: AbstractContextManager[Trace], steps: dict[str, Trace], name: str) -> None:
        self.watch, self.steps, self.name = watch, steps, name

    def __enter__(self) -> Trace:
        trace = self.steps[self.name] = self.watch.__enter__()
        return trace

    def __exit__(self, *error: Any) -> Any:
        return self.watch.__exit__(*error)


def _nodes(trace: Trace) -> list[str]:
    nodes = [node for capture in trace.captures for node in capture.nodes]
    kinds = Counter(str(node.kind) for node in nodes)
    edges = sum(len(capture.edges) for capture in trace.captures)
    lines = [f"{len(nodes)} nodes ({', '.join(f'{n} {kind}' for kind, n in kinds.items())}), {edges} edges"]
    for node in nodes[:MOST_NODES]:
        where = f"  <- {one_line(node.frame.text)}" if node.frame is not None and node.frame.text else ""
        lines.append(f"  {node.name}{where}")
    return [*lines, *([f"  ... {len(nodes) - MOST_NODES} more"] if len(nodes) > MOST_NODES else [])]


def _unproved(said: str) -> str:
    """What to do about a fix that gives other numbers."""
    return COUNTED if "on the CPU, which no replay writes" in said else "Compare the traces step by step"


def _keeps_later(diff: str) -> bool:
    """Whether a fix keeps functions for after the launch."""
    return any(line.startswith("+") and "later.append(work)" in line for line in diff.splitlines())


def story(fn: Any, *args: Any, say: Say | None = print, **kwargs: Any) -> Story:
    """One function from a broken capture to a fixed, parameterized one: live, each step compared with the original.

    Eager, the capture that fails and what CUDA says, every problem at its line, the fix as a diff in your own words,
    the captured graph, the same graph with an input that moved, and the parameterized launch. Where no rewrite is
    safe it stops, and says what to do: change the function, and call it again. What the steps change is put back.

    Args:
        fn: a function, a method or a module on ``device()``.
        args: what it is called with; further inputs are drawn from their values.
        say: gets each line as it happens; None says nothing, and ``str(story)`` has all lines. Printed in a notebook
            they are chapters that fold, above the view.

    Raises:
        ParamgraphError: ``fn`` or ``say`` cannot be called, or a capture is under way.

    Examples:
        >>> import torch
        >>> import paramgraph_kit as pgk
        >>> def f(x):
        ...     return x * 2 + 1
        >>> pgk.story(f, torch.ones(4, device=pgk.device()), say=None)
        Story(f: eager, captured as it is, captured, frozen, parameterized; parameterized, equal to eager)
    """
    from paramgraph_kit.doctor.observe.one_call import check_free
    from paramgraph_kit.explore.told import Told, is_live
    from paramgraph_kit.verbs._device import device

    if not callable(say) and say is not None:
        raise ParamgraphError(f"say= takes a function that gets each line, or None, not {kind_text(say)}")
    if not callable(fn):
        raise ParamgraphError(f"story takes a function and its arguments, not {kind_text(fn)}")
    device()
    check_free("story(fn)")
    caller = sys._getframe(1).f_globals
    if str(caller.get("__name__", "")).startswith(__name__.partition(".")[0]):  # it was the magic
        caller = vars(sys.modules["__main__"])
    if say is not print or not is_live():
        return _Teller(fn, args, kwargs, say or (lambda text: None), caller).tell()
    told = Told()
    complete = False
    try:
        complete = (out := _Teller(fn, args, kwargs, told, caller).tell()).complete
    finally:
        told.end(last=not complete)
    return out
