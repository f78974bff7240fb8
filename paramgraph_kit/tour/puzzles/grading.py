"""Runs an answer on inputs that are drawn just now, measures it, and compares every result."""

from __future__ import annotations

import gc
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import paramgraph_kit as pgk
from paramgraph_kit.driver.replaced import replaced
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.tour.puzzles.problems import CALLS, PUZZLES, Puzzle, Random, Steps, off
from paramgraph_kit.tour.puzzles.verdict import Limit, Verdict
from paramgraph_kit.trace import ParamgraphError, Trace
from paramgraph_kit.trace.errors import CaptureError, UnsupportedError
from paramgraph_kit.trace.model import Capture
from paramgraph_kit.trace.wording import kind_text, one_line

WARM_UP = 2
LATER = 24  # calls after those whose results are looked at, which may not write over these
# What moves no data and computes nothing.
FREE = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias"))
COPIES = frozenset(("copy_", "clone", "_to_copy", "_copy_from"))


class WrongError(Exception):
    """An answer is none, and why."""


def grade(number: int, answer: Callable[..., Any]) -> Verdict:
    """Measure an answer to a puzzle.

    Args:
        number: of the puzzle, 1 to 10.
        answer: what the puzzle asks for, a function.

    Raises:
        ParamgraphError: there is no such puzzle, or the answer cannot be called.
    """
    puzzle = PUZZLES.get(number)
    if puzzle is None:
        raise ParamgraphError(f"there is no puzzle {number!r}: choose one of {min(PUZZLES)} to {max(PUZZLES)}")
    if not callable(answer):
        raise ParamgraphError(f"grade takes a function as the answer, not {kind_text(answer)}")
    pgk.device()
    measure: Any = _steps if isinstance(puzzle, Steps) else _graph  # each takes its own kind
    try:
        with warnings.catch_warnings():  # of captures that record nothing; the verdict says more
            warnings.simplefilter("ignore")
            values, trace = measure(puzzle, answer)
    except WrongError as wrong:
        return Verdict(number, puzzle.title, str(wrong))
    except Exception as error:
        return Verdict(number, puzzle.title, f"{type(error).__name__}: {one_line(str(error))}"[:300])
    finally:
        pgk.diagnose.repair()
    limits = tuple(Limit(name, values[name], most) for name, most in puzzle.limits.items())
    return Verdict(number, puzzle.title, "", limits, trace)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(random.SystemRandom().getrandbits(48))


# one graph


@torch.no_grad()
def _graph(puzzle: Puzzle, function: Callable[..., Any]) -> tuple[dict[str, int], Trace]:
    """Capture an answer, and replay it with inputs of its own for each call."""
    cuda, generator = pgk.cuda, _generator()
    static = _to_device(puzzle.inputs(generator))
    gc.collect()
    begun = cuda.memory_allocated()
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(WARM_UP):
            out = function(*_to_device(puzzle.inputs(generator)))
    if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(out)):
        raise WrongError(f"it returns {kind_text(out)}: return the result, a tensor")
    del out
    cuda.current_stream().wait_stream(side)
    cuda.synchronize()
    outside = _storages(static)  # alive from here on: nothing that is freed makes up for what a capture takes
    if static[0].is_cuda:
        torch_name("_cuda_clearCublasWorkspaces")()
    kept_before = cuda.memory_allocated() - begun  # made while warming up, and kept by whatever holds it
    every = _of_every_graph()
    before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    graph = cuda.CUDAGraph(keep_graph=True)
    try:
        with pgk.diagnose.capture(graph, lines=True):
            out = function(*static)
    except CaptureError as error:
        line = f": {error.failure.frame.text}" if error.failure.frame else ""
        raise WrongError(f"the capture fails: {error.failure.title}{line}") from error
    memory = cuda.max_memory_allocated() - before - every
    try:
        trace = pgk.explore(graph).trace
    except UnsupportedError as error:
        raise WrongError("nothing of it runs on the device, so its graph is empty") from error
    scratch, earlier = set[int](), list[list[Tensor]]()
    for call in range(CALLS):
        inputs = puzzle.inputs(generator)
        kept = {key: tensor.clone() for key, tensor in outside.items()}
        for held, value in zip(static, inputs, strict=True):
            held.copy_(value)
        _spoil(out, static)
        graph.replay()
        cuda.synchronize()
        scratch |= {key for key, tensor in outside.items() if not torch.equal(tensor, kept[key])}
        results = [leaf.cpu() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if wrong := puzzle.judge(inputs, [held.cpu() for held in static], results, earlier):
            raise WrongError(f"{wrong}, in replay {call + 1} with new inputs")
        earlier.append(results)
    if isinstance(puzzle, Random) and not _follows_its_seed(graph, out):
        raise WrongError("seeded again it does not draw the same: each replay has to draw from the device's generator")
    # Memory that somebody made before, to write to.
    hidden = max(kept_before, sum(outside[key].numel() for key in scratch))
    (capture,) = trace.captures
    return {"nodes": len(capture.nodes), "depth": _depth(capture), "memory": memory + hidden}, trace


def _of_every_graph() -> int:
    """Bytes that a graph takes which holds nothing: of generators."""
    cuda = pgk.cuda
    before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        pass
    taken: int = cuda.max_memory_allocated() - before
    graph.reset()
    return taken


def _follows_its_seed(graph: Any, out: Any) -> bool:
    """Whether replays from one seed draw the same, and those from another do not."""
    cuda, drawn = pgk.cuda, []
    state = cuda.get_rng_state()
    for seed in (1, 2, 1):
        cuda.manual_seed_all(seed)
        graph.replay()
        drawn.append([leaf.cpu() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)])
    cuda.set_rng_state(state)
    one, other, again = drawn
    return all(map(torch.equal, one, again)) and not all(map(torch.equal, one, other))


def _spoil(out: Any, static: tuple[Tensor, ...]) -> None:
    """What a replay does not write is not there."""
    own = {tensor.untyped_storage().data_ptr() for tensor in static}
    for leaf in tree_leaves(out):
        if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in own:
            leaf.fill_(float("nan") if leaf.is_floating_point() else 77)


def _storages(static: tuple[Tensor, ...]) -> dict[int, Tensor]:
    """All memory on the device that anybody holds, but the inputs, as bytes."""
    own = {tensor.untyped_storage().data_ptr() for tensor in static}
    found: dict[int, Tensor] = {}
    for each in gc.get_objects():
        if type(each) not in (Tensor, torch.nn.Parameter) or each.device.type != pgk.device().type:
            continue
        try:
            storage = each.untyped_storage()
            key = storage.data_ptr()
        except RuntimeError:  # one that somebody traced with, without memory
            continue
        if key and key not in own and key not in found:
            found[key] = torch.empty(0, dtype=torch.uint8, device=each.device).set_(storage)
    return found


def _depth(capture: Capture) -> int:
    """Nodes on the longest way through a graph."""
    before: dict[int, list[int]] = {}
    for a, b in capture.edges:
        before.setdefault(b, []).append(a)
    depth: dict[int, int] = {}
    for node in capture.nodes:  # a node comes after those that it waits for
        depth[node.index] = 1 + max((depth[each] for each in before.get(node.index, ())), default=0)
    return max(depth.values(), default=0)


def _to_device(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.to(pgk.device()) for tensor in tensors)


# what is called again and again


class Operations(TorchDispatchMode):
    """Counts what is computed and copied on the device outside of any graph."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.count = self.copied = 0
        self.host = False  # whether anything went through the CPU

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.rpartition("::")[2]
        touched = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        devices = {x.device.type for x in touched}
        self.host |= len(devices) > 1
        if pgk.device().type in devices and not func.is_view and name not in FREE:
            self.count += 1
            if name in COPIES and isinstance(out, Tensor):
                self.copied += out.nbytes
        return out


def _steps(puzzle: Steps, make: Callable[..., Any]) -> tuple[dict[str, int], Trace]:
    """Let an answer make what is called, call it with inputs at new addresses, and look at all results at the end."""
    generator = _generator()
    given, reference = puzzle.model(generator, pgk.device())
    inputs = [puzzle.inputs(generator) for _ in range(CALLS + WARM_UP)]
    with pgk.watch(puzzle.title) as trace, torch.set_grad_enabled(puzzle.trains):
        step = make(given, *_to_device(puzzle.inputs(generator)))
        replayed = True
        if puzzle.by_hand:
            results, values, replayed = _by_hand(step, inputs)
        else:
            results, values = _launched(step, inputs, trace)
    for call, (one, result) in enumerate(zip(inputs, results, strict=True), 1):
        expected = reference(*one)
        if result.shape != expected.shape:
            raise WrongError(f"call {call} gives {tuple(result.shape)}, not {tuple(expected.shape)}")
        if not torch.allclose(result.detach().cpu(), expected, rtol=1e-3, atol=1e-5):
            text = f"the result of call {call} is not right, or a later call has written over it"
            raise WrongError(f"{text}: {off(result.detach().cpu(), expected)}")
    if not replayed and all(values[name] <= most for name, most in puzzle.limits.items()):
        raise WrongError("not every call replays a graph, and nothing else is counted")
    return values, trace


@contextmanager
def counted(replays: list[int]) -> Iterator[None]:
    """Note each replay of a graph, and let nobody work on a thread where nothing is counted."""

    def replay(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any) -> Any:
            replays.append(1)
            return inner(self)

        return call

    def start(_: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any) -> Any:
            raise WrongError("something runs on a thread of its own, where nothing is counted")

        return call

    with replaced(pgk.cuda.CUDAGraph, "replay", replay), replaced(threading.Thread, "start", start):
        yield


def _by_hand(step: Any, inputs: list[tuple[Tensor, ...]]) -> tuple[list[Tensor], dict[str, int], bool]:
    mode, results, replays, cuda = Operations(), [], list[int](), pgk.cuda
    for one in inputs:
        at_new_addresses = _to_device(one)
        before = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        with mode, counted(replays):
            results.append(step(*at_new_addresses))
    # Of the last call, which captures nothing any more: what lies between two layers is in the graph's memory.
    between = cuda.max_memory_allocated() - before - results[-1].nbytes
    for one in inputs[:1] * LATER:  # whoever has many graphs in turns comes to the first again
        step(*_to_device(one))
    if mode.host or any(result.device.type != pgk.device().type for result in results):
        raise WrongError("something is computed on the CPU")
    values = {"operations a call": mode.count // len(inputs), "copied a call": mode.copied // len(inputs)}
    return results, values, len(replays) >= len(inputs) and between < results[-1].nbytes


def _launched(step: Any, inputs: list[tuple[Tensor, ...]], trace: Trace) -> tuple[list[Tensor], dict[str, int]]:
    """Call what paramgraph_kit made: it knows what it did, and a function around it could do anything."""
    try:
        rows = pgk.report(step).rows
    except ParamgraphError:
        rows = None
    # A compiled function is one of torch's, whatever names it took over from the user's.
    home = step.__globals__["__name__"] if isinstance(step, FunctionType) else type(step).__module__
    if rows is None or home.partition(".")[0] not in ("paramgraph_kit", "torch"):
        raise WrongError("give back what pgk.parameterize or pgk.compile returned, itself")
    results = [step(*_to_device(one)) for one in inputs]
    report = pgk.report(step)
    if not trace.launches:
        reason = next((reason.message for reason in report.reasons), "nothing was captured")
        raise WrongError(f"no call was launched from a graph: {one_line(reason)}")
    graphed, kernels = report.kernels
    calls = len({launch.call for launch in trace.launches})
    return results, {
        "kernels outside": kernels - graphed if kernels is not None else len(inputs),
        "calls ungraphed": len(inputs) - calls,
        "launches a call": -(-len(trace.launches) // calls),
    }
