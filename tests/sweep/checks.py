"""What is asked of one operator: its numbers on the device, in a capture, and from this backend's graphs."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from paramgraph_kit import parameterize, report
from paramgraph_kit.backend import paramgraph
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.driver.select import device, twin
from tests.sweep.samples import Sample, Tensor, difference

CALLS = 4
MORE = 4  # times as many, where graphs give other bits: does the code itself?

EQUAL = "equal"
REFUSED = "refused"  # with the reasons why
NOTHING = "nothing to graph"
FAILS = "fails alone"  # without any graph too
UNLIKE_EAGER = "unlike eager"  # graphs equal the compiled code without them, which is not what eager computes
TORCHS = "torch's compiler alone is unlike eager"
UNORDERED = re.compile(
    "conv|bilinear|pad_replicate|put|gather|index_|repeat_interleave|scatter|take|cumsum|cummax|cummin"
)
ROUNDED = "last bits differ: sums in no fixed order"
DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one check: a word, and why."""

    word: str
    why: str = ""
    graphed: int = 0  # launches from graphs

    @property
    def bad(self) -> bool:
        """Whether somebody has to look at it."""
        return self.word in (DIFFERS, UNLIKE_EAGER)


Program = Callable[[Sample], Any]  # what is run: an operator on a sample, with gradients or without


def program_of(op: Any) -> Program:
    """The operator alone; results first, then the arguments, which it may have written to."""
    function = op.get_op()

    def run(sample: Sample) -> Any:
        return function(sample.input, *sample.args, **sample.kwargs), sample.tensors()

    return run


def gradients_of(op: Any) -> Program:
    """Its results and the gradients of every argument that wants one, for fixed gradients of the results."""
    function = op.get_op()

    def run(sample: Sample) -> Any:
        results = function(sample.input, *sample.args, **sample.kwargs)
        return results, _gradients(results, sample)

    return run


def _gradients(results: Any, sample: Sample, *, captured: bool = False) -> Any:
    roots = [y for y in tree_leaves(results) if isinstance(y, Tensor) and y.requires_grad]
    wanted = [x for x in sample.tensors() if x.requires_grad]
    if not roots or not wanted:
        return None
    where = [y.device if captured else torch.device("cpu") for y in roots]  # no capture takes copies from the host
    seeds = [
        torch.linspace(0.5, 1.5, y.numel(), device=at).to(y.dtype).reshape(y.shape).to(y.device)
        for y, at in zip(roots, where, strict=True)
    ]
    return torch.autograd.grad(roots, wanted, seeds, allow_unused=True)


def check_eager(op: Any, sample: Sample) -> Verdict:
    """On the simulated device as on the CPU: numbers, layouts and lazy bits."""
    run = program_of(op)
    expected, refusal = attempt(run, sample.on(torch.device("cpu")))
    got, error = attempt(run, sample.on(device()))
    if refusal or error:
        return Verdict(EQUAL if bool(refusal) == bool(error) else DIFFERS, f"device: {error}; host: {refusal}")
    unlike = difference(got, expected)
    if unlike and difference(attempt(run, sample.on(torch.device("cpu")))[0], expected):
        unlike = difference(got, expected, exact=False)  # the host's own numbers depend on where its memory lies
    return _verdict(unlike)


def check_captured(op: Any, pair: tuple[Sample, Sample]) -> Verdict:
    """Captured by hand on the simulated device, replayed on other values, as eager there."""
    run, cuda = program_of(op), twin()
    static, fresh = pair[0].on(device()), pair[1].on(device())
    expected, error = attempt(run, pair[1].on(device()))
    if error:
        return Verdict(FAILS, error)
    graph = cuda.CUDAGraph()
    got, error = attempt(_captured, run, static, graph)
    if error:
        cuda.recover()
        return Verdict(REFUSED, error)
    for old, new in zip(static.tensors(), fresh.tensors(), strict=True):
        old.detach().copy_(new)
    torch.manual_seed(7)
    graph.replay()
    return _verdict(difference(got, expected))


def _captured(run: Program, static: Sample, graph: Any) -> Any:
    with twin().graph(graph):
        # The graph needs a node even where the operator has none.
        return torch.zeros(1, device=device()) is not None and run(static)


def check_compiled(op: Any, pair: tuple[Sample, Sample], *, backward: bool) -> Verdict:
    """Compiled by this backend: four calls at other addresses against the same code ungraphed, and against eager.

    The same code has to give the same bits, wherever it does so ungraphed; eager may round otherwise.
    """
    plain = gradients_of(op) if backward else program_of(op)
    eager = [attempt(plain, sample.on(device())) for sample in pair]
    unordered = partial(_rounds, _name_of(op), lambda: (attempt(plain, pair[0].on(device())), None))
    verdict = _graphed(compiled(op, backward, paramgraph), pair, eager, unordered)
    for backend in ("aot_eager", "inductor")[: 1 + (device().type == "cuda")] if verdict.bad else ():
        alone = compiled(op, backward, backend)
        calls = [attempt(alone, pair[k % 2].on(device()))[0] for k in range(CALLS)]
        if any(difference(got, eager[k % 2][0], layouts=False, exact=False) for k, got in enumerate(calls)):
            return Verdict(TORCHS, f"{backend}: {verdict.why}", verdict.graphed)
    return verdict


def check_step(op: Any, pair: tuple[Sample, Sample]) -> Verdict:
    """Torch's own kernels, as a whole step: results and gradients of five calls at other addresses, as ungraphed."""
    function = op.get_op()

    def plain(value: Any, args: Any, kwargs: Any) -> Any:
        value, args, kwargs = tree_map_only(Tensor, _leaf, (value, args, kwargs))
        sample = Sample(value, args, kwargs)
        results = function(value, *args, **kwargs)
        gradients = _gradients(results, sample, captured=True) if op.supports_autograd else None
        return tree_map_only(Tensor, Tensor.detach, (results, gradients))

    step = parameterize(plain, state=(), verify="off")
    kept: list[Tensor] = []
    values = [pair[k % 2] for k in range(CALLS + 1)]
    calls = []
    for call, sample in enumerate(values):
        moved = sample.on(device())
        kept += poison(call)
        calls.append((attempt(step, moved.input, moved.args, moved.kwargs), moved.tensors()))
    alone = [_alone(plain, sample) for sample in values]
    found = report(step)
    launches, reasons = sum(row.launches or 0 for row in found.rows), sorted({reason.code for reason in found.reasons})
    rounded = False
    for number, (((got, error), written), ((expected, refusal), kept_alone)) in enumerate(
        zip(calls, alone, strict=True), 1
    ):
        if error or refusal:
            unlike = "" if bool(error) == bool(refusal) else f"call {number}: {error}; ungraphed: {refusal}"
            return Verdict(DIFFERS if unlike else FAILS, unlike or refusal, launches)
        unlike = difference((got, written), (expected, kept_alone))
        if unlike:  # sums in no fixed order are mostly the same
            more = [_alone(plain, sample)[0] for sample in values[:2] * MORE * CALLS]
            if not _stable(more) or _rounds(_name_of(op), partial(_alone, plain, values[0])):
                unlike = difference((got, written), (expected, kept_alone), exact=False)
                rounded = rounded or not unlike
        if unlike:
            return Verdict(DIFFERS, f"call {number}: {unlike}", launches)
    return Verdict(EQUAL if launches else REFUSED, ", ".join([*reasons, *[ROUNDED] * rounded]), launches)


def _alone(plain: Callable[..., Any], sample: Sample) -> tuple[tuple[Any, str], list[Tensor]]:
    fresh = sample.on(device())
    return attempt(plain, fresh.input, fresh.args, fresh.kwargs), fresh.tensors()


def _leaf(tensor: Tensor) -> Tensor:
    floating = tensor.is_floating_point() or tensor.is_complex()
    return tensor.detach().requires_grad_() if floating else tensor


def compiled(op: Any, backward: bool, backend: Any) -> Program:
    """The operator, or its gradients, compiled by a backend that nothing else has used since."""
    torch._dynamo.reset()
    gc.collect()
    function = op.get_op()

    def called(value: Any, args: Any, kwargs: Any) -> Any:
        return function(value, *args, **kwargs)

    whole: Callable[..., Any] = torch.compile(called, backend=backend, dynamic=False)

    def run(sample: Sample) -> Any:
        results = whole(sample.input, sample.args, sample.kwargs)
        return results, _gradients(results, sample) if backward else sample.tensors()

    return run


def _graphed(
    run: Program, pair: tuple[Sample, Sample], eager: Sequence[tuple[Any, str]], unordered: Callable[[], bool]
) -> Verdict:
    before = set(compiled_graphs())
    kept: list[Tensor] = []
    values = [pair[k % 2] for k in range(CALLS)]
    found = []
    for call, sample in enumerate(values):
        moved = sample.on(device())
        kept += poison(call)
        found.append(attempt(run, moved))
    graphs = [graph for graph in compiled_graphs() if graph not in before]
    launchers = [launcher for graph in graphs for launcher in graph.launchers]
    with _paused(launchers):
        ungraphed = [attempt(run, sample.on(device())) for sample in values]
    launches = sum(v.state.launches for x in launchers for v in x.variants.values() if v is not None)
    reasons = sorted({reason.code for graph in graphs for reason in graph.reasons}
                     | {reason.code for launcher in launchers for reason in launcher.reasons})  # fmt: skip
    rounded = False
    for number, ((got, error), (expected, refusal)) in enumerate(zip(found, list(ungraphed), strict=True), 1):
        if error or refusal:
            if bool(error) == bool(refusal):
                return Verdict(FAILS, refusal, launches)
            return Verdict(
                DIFFERS, f"call {number}: {error or 'no error'}; ungraphed: {refusal or 'no error'}", launches
            )
        unlike = difference(got, expected)
        if unlike and _stable(ungraphed):  # so far: sums in no fixed order are mostly the same
            with _paused(launchers):
                ungraphed += [attempt(run, sample.on(device())) for sample in values * MORE]
        if unlike and (not _stable(ungraphed) or unordered()):
            unlike = difference(got, expected, exact=False)
            rounded = rounded or not unlike
        if unlike:
            return Verdict(DIFFERS, f"call {number}: {unlike}", launches)
    for (got, _), (expected, error) in zip(ungraphed, eager, strict=False):  # each sample once
        if not error and (unlike := difference(got, expected, layouts=False, exact=False)):
            return Verdict(UNLIKE_EAGER, unlike, launches)
    if launches:
        return Verdict(EQUAL, ", ".join([*reasons, *[ROUNDED] * rounded]), launches)
    if not graphs:
        return Verdict(REFUSED, "Dynamo compiles nothing of it")
    return Verdict(REFUSED if reasons else NOTHING, ", ".join(reasons))


def _verdict(unlike: str) -> Verdict:
    return Verdict(DIFFERS if unlike else EQUAL, unlike)


def attempt(run: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    """(result, "") or (None, the error in one line)."""
    torch.manual_seed(7)
    try:
        return run(*args), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _stable(results: Sequence[tuple[Any, str]]) -> bool:
    """Whether the same code gives the same bits for the same values."""
    return all(not difference(results[k][0], results[k - 2][0]) for k in range(2, len(results)))


def _name_of(op: Any) -> str:
    return f"{op.name} {op.variant_test_name}"  # "nn.functional.interpolate bilinear"


def _rounds(name: str, alone: Callable[[], tuple[tuple[Any, str], Any]]) -> bool:
    return device().type == "cuda" and is_unordered(name, alone)  # the simulated device adds in one order


def is_unordered(name: str, alone: Callable[[], tuple[tuple[Any, str], Any]]) -> bool:
    """Whether torch itself says that an operator's kernels give no fixed bits, which few runs may not show.

    It refuses them where ``torch.use_deterministic_algorithms`` is on, or chooses other kernels then: of which, its
    documentation of that function lists. Gradients of bilinear interpolations and of running maxima add atomically.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        return bool(UNORDERED.search(name)) or "does not have a deterministic implementation" in alone()[0][1]
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def _paused(launchers: Sequence[Any]) -> Iterator[None]:
    for launcher in launchers:
        launcher.pause()
    try:
        yield
    finally:
        for launcher in launchers:
            launcher.resume()


def poison(call: int) -> list[Tensor]:
    """Fill free memory of every size with NaN; some of it stays taken, so that the next addresses are others."""
    blocks = [torch.empty(512 << k, dtype=torch.uint8, device=device()).fill_(255) for k in range(12) for _ in range(3)]
    return blocks[call % 3 :: 7]
