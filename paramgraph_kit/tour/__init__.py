"""The main job in the terminal: broken, diagnosed, fixed, frozen, parameterized, proved. Every claim is checked."""

from __future__ import annotations

import linecache
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import driver
from paramgraph_kit.explore import to_html
from paramgraph_kit.ledger import Ledger
from paramgraph_kit.trace import Trace
from paramgraph_kit.trace.errors import TourError

MODEL = "tour_model.py"
LAYERS = 6
CALLS = 6
ROWS = 512
AGAINST = "a launch against no graph"


def user_code() -> dict[str, Any]:
    """The layers as a user's own code.

    A diagnosis never points into this package, so they are compiled under a name outside of it.
    """
    source = Path(__file__).with_name("model.py").read_text(encoding="utf-8")
    linecache.cache[MODEL] = (len(source), None, source.splitlines(keepends=True), MODEL)
    scope: dict[str, Any] = {"__name__": "tour_model"}
    exec(compile(source, MODEL, "exec"), scope)
    return scope


class Tour:
    """Runs the steps in order; ``say`` prints a line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.device, self.cuda = pgk.device(), pgk.cuda
        torch.manual_seed(0)
        model = user_code()
        self.width: int = model["WIDTH"]
        self.layer: type[nn.Module] = model["Fixed"]
        self.broken, self.fixed = model["Broken"]().to(self.device), self.layer().to(self.device)
        self.fixed.load_state_dict(self.broken.state_dict())
        self.x = self.fresh()

    def run(self) -> dict[str, Trace]:
        """All steps, and what was watched in each.

        Raises:
            TourError: a claim does not hold.
        """
        tell = {
            "broken": self.fails,
            "fixed": self.fix,
            "frozen": self.frozen,
            "parameterized": self.parameterized,
            "memory": self.memory,
        }
        steps: dict[str, Trace] = {}
        with torch.no_grad():
            self.say(driver().source().label())
            for name, step in tell.items():
                with pgk.watch(name) as trace:
                    step(trace)
                steps[name] = trace
                if name == "parameterized":
                    self.prove(trace)
        return steps

    def fresh(self) -> Tensor:
        """A new input at a new address."""
        return torch.randn(ROWS, self.width).to(self.device)

    def fails(self, trace: Trace) -> None:
        """1: a capture that fails, and why."""
        self.say("\n1. A capture that fails")
        self.broken(self.x)
        graph = self.cuda.CUDAGraph()
        try:
            with self.cuda.graph(graph):
                self.broken(self.x)
        except RuntimeError as error:
            found = error
        else:
            raise TourError(".item() inside a capture did not fail: this is no longer the error that the tour is about")
        finally:
            self.cuda.set_stream(self.cuda.default_stream())  # a failed capture leaves its own stream current
        diagnosis = pgk.diagnose(found)
        self.say(f"   what arrives   {str(found).strip().splitlines()[0]}")
        self.say("   what it means")
        self.say(_indented(str(diagnosis), 5))
        frame = diagnosis.failure.frame
        _check(frame is not None and ".item()" in frame.text, "the diagnosis names the line with .item()")
        _check(any(known.code == diagnosis.failure.code for known in trace.failures), "watch keeps the failure")

    def fix(self, trace: Trace) -> None:
        """2: the fixed layer captures."""
        self.say("\n2. The fix captures: torch.where(h.max() > 1.0, h * 0.5, h)")
        expected = self.fixed(self.x)
        _check(torch.equal(expected, self.broken(self.x)), "the fix computes the same")
        graph = self.cuda.CUDAGraph(keep_graph=True)
        with self.cuda.graph(graph):
            y = self.fixed(self.x)
        graph.replay()
        _check(trace.compare(AGAINST, y, expected).equal, "the replay computes the same")
        self.say("   captured and replayed: the same bits as without a graph")

    def frozen(self, trace: Trace) -> None:
        """3: such a graph goes on reading the old input."""
        self.say("\n3. But the graph is frozen: it reads the tensor that it was captured with")
        graph = self.cuda.CUDAGraph(keep_graph=True)
        with self.cuda.graph(graph):
            y = self.fixed(self.x)
        new = self.fresh()
        graph.replay()
        expected = self.fixed(new)
        _check(not trace.compare(AGAINST, y, expected).equal, "the frozen graph is wrong for a new input")
        _check(torch.equal(y, self.fixed(self.x)), "what it returns belongs to the old input")
        right, got = expected.sum().item(), y.sum().item()
        self.say(f"   sum for a new input: {right:.3f}, and the frozen graph says {got:.3f}: wrong")

    def parameterized(self, trace: Trace) -> None:
        """4: the right numbers at new addresses."""
        self.say('\n4. torch.compile(layer, backend="paramgraph"): addresses are patched before each launch')
        self.compiled = compiled = pgk.compile(self.fixed)
        inputs = [self.fresh() for _ in range(CALLS)]
        outputs = [compiled(x) for x in inputs]
        self.calls = list(zip(inputs, outputs, strict=True))
        moved = sum(launch.moved > 0 for launch in trace.launches)
        _check(
            moved == CALLS - 1, f"all {CALLS - 1} launches after the capturing call were at new addresses, not {moved}"
        )
        _check(sum(launch.bytes_copied for launch in trace.launches) == 0, "no input is copied")
        _check(len({output.data_ptr() for output in outputs}) == CALLS, "outputs have addresses of their own")
        words = max(launch.words_patched for launch in trace.launches)
        self.say(
            f"   {CALLS} inputs at {CALLS} addresses, {moved} launches, {words} words patched each, 0 bytes copied"
        )

    def prove(self, trace: Trace) -> None:
        """5: the proof, and what it costs; nobody watches, for the code without graphs is none of that step."""
        plain = pgk.compile(self.fixed, select="never")
        # Only now, so that an output that a later call had overwritten would show.
        proof = trace.compare(AGAINST, [output for _, output in self.calls], [plain(x) for x, _ in self.calls])
        _check(proof.equal, "every output is that of the same code without a graph, bit for bit")
        self.say("   every output the same bits as without graphs, and all of them still valid")
        self.say("\n5. The report")
        report = pgk.report(self.compiled)
        _check(report.kernels[0] == report.kernels[1] and report.kernels[0] > 0, "all kernels are in graphs")
        self.say(_indented(str(report), 3))

    def memory(self, trace: Trace) -> None:
        """6: what graphs hold on to, layer by layer."""
        self.say(f"\n6. Memory that {LAYERS} layers' graphs keep between calls")
        layers = [self.layer().to(self.device) for _ in range(LAYERS)]
        for layer in layers:
            layer(self.x)

        def frozen(layer: nn.Module) -> Any:
            graph = self.cuda.CUDAGraph()
            with self.cuda.graph(graph):
                return graph, layer(self.x)

        def parameterized(layer: nn.Module) -> Any:
            fast = pgk.compile(layer)
            return fast, fast(self.x), fast(self.x)

        kept, other = self.grow(frozen, layers), self.grow(parameterized, layers)
        pools, borrowed = kept.growth.reserved, other.growth.reserved
        _check(
            pools > borrowed, f"frozen graphs hold more ({pools:,} bytes) than parameterized ones ({borrowed:,} bytes)"
        )
        self.say(f"   frozen graphs, a private pool each   {pools:>12,} bytes more reserved")
        self.say(f"   parameterized                        {borrowed:>12,} bytes more reserved")
        events = kept.pool_events("frozen graphs")
        trace.pool_events[:] = events + other.pool_events("parameterized", start=len(events))

    def grow(self, make: Callable[[nn.Module], Any], layers: list[nn.Module]) -> Ledger:
        """Memory after each layer's graph, above what was held before the first."""
        kept: list[Any] = []
        self.cuda.empty_cache()
        with Ledger(driver()) as ledger:
            for n, layer in enumerate(layers):
                kept.append(make(layer))
                self.cuda.empty_cache()  # what is left is what the graphs and their results hold on to
                ledger.mark(f"layer {n}")
        first = ledger.readings[0]
        ledger.readings[:] = [reading - first for reading in ledger.readings]
        return ledger


def run(page: Path, say: Callable[[str], None]) -> Path:
    """The whole tour; writes the page and returns its path.

    Raises:
        TourError: a claim does not hold.
        TraceError: the page cannot be written.
    """
    started = time.perf_counter()
    steps = Tour(say).run()
    written = to_html(steps, page, title="paramgraph_kit tour")
    say(f"\nall claims checked in {time.perf_counter() - started:.0f} s ({steps['memory'].source.origin})")
    return written


def _check(holds: bool, claim: str) -> None:
    if not holds:
        raise TourError(f"the tour claims that {claim}, and on this machine that is false")


def _indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.splitlines())
