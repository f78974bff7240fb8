"""The twin of ``torch.cuda.make_graphed_callables``: static input buffers, a forward and a backward graph each.

This is the usual technique, with its costs: every call copies its inputs into the buffers, the pool stays reserved,
and outputs are overwritten by the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .allocator import PoolId
from .capture import CUDAGraph
from .capturing import graph, graph_pool_handle, synchronize
from .stream import Stream


class _Graphed:
    """One callable: its buffers and its two graphs."""

    def __init__(self, call: Callable[..., Any], args: Sequence[Tensor], pool: PoolId) -> None:
        self.call = call
        self.args = tuple(args)
        self.pool = pool
        parameters = tuple(call.parameters()) if isinstance(call, nn.Module) else ()
        self.inputs = self.args + parameters
        self.forward_graph, self.backward_graph = CUDAGraph(), CUDAGraph()
        self.outputs: tuple[Tensor, ...] = ()
        self.single = True
        self.grad_outputs: tuple[Tensor | None, ...] = ()
        self.grad_inputs: tuple[Tensor | None, ...] = ()

    def _gradients(self, outputs: Sequence[Tensor], allow_unused: bool) -> tuple[Tensor | None, ...]:
        wanted = [x for x in self.inputs if x.requires_grad]
        roots = [y for y in outputs if y.requires_grad]
        if not wanted or not roots:
            return ()
        seeds = [g for g in self.grad_outputs if g is not None] or [torch.empty_like(y) for y in roots]
        return torch.autograd.grad(roots, wanted, seeds, allow_unused=allow_unused)

    def run(self) -> tuple[Tensor, ...]:
        found = self.call(*self.args)
        self.single = isinstance(found, Tensor)
        return (found,) if isinstance(found, Tensor) else tuple(found)

    def warm_up(self, times: int, allow_unused: bool) -> None:
        for _ in range(times):
            self._gradients(self.run(), allow_unused)

    def capture_forward(self) -> None:
        with graph(self.forward_graph, pool=self.pool):
            self.outputs = self.run()

    def capture_backward(self, allow_unused: bool) -> None:
        if not any(y.requires_grad for y in self.outputs) or not any(x.requires_grad for x in self.inputs):
            self.outputs = tuple(y.detach() for y in self.outputs)
            return
        self.grad_outputs = tuple(torch.empty_like(y) if y.requires_grad else None for y in self.outputs)
        with graph(self.backward_graph, pool=self.pool):
            found = iter(self._gradients(self.outputs, allow_unused))
        self.grad_inputs = tuple(next(found) if x.requires_grad else None for x in self.inputs)
        self.outputs = tuple(y.detach() for y in self.outputs)

    def __call__(self, *args: Tensor) -> Any:
        apply: Any = _Replay.apply
        outputs = apply(self, *args, *self.inputs[len(self.args) :])
        return outputs[0] if self.single else outputs


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graphed: _Graphed, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.graphed = graphed
        for static, given in zip(graphed.args, inputs, strict=False):
            if static.data_ptr() != given.data_ptr():
                static.copy_(given)
        graphed.forward_graph.replay()
        return tuple(y.detach() for y in graphed.outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        graphed: _Graphed = ctx.graphed
        for static, grad in zip(graphed.grad_outputs, grads, strict=True):
            if static is not None and static.data_ptr() != grad.data_ptr():
                static.copy_(grad)
        graphed.backward_graph.replay()
        return (None, *(g.detach() if g is not None else None for g in graphed.grad_inputs))


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: PoolId | None = None,
) -> Any:
    """Graph one callable or a tuple of them, to be called in that order; modules get a new ``forward``.

    >>> step = make_graphed_callables(model, (x,))  # doctest: +SKIP
    >>> y = step(x)  # doctest: +SKIP
    """
    one = not isinstance(callables, (tuple, list))
    calls = [callables] if one else list(callables)
    samples = [sample_args] if one else list(sample_args)
    for args in samples:
        if not all(isinstance(a, Tensor) for a in args):
            raise AssertionError(  # torch's own choice
                "In the beta API, sample_args for each callable must contain only Tensors. Other types are not allowed."
            )
    pool = pool or graph_pool_handle()
    made = [_Graphed(call, args, pool) for call, args in zip(calls, samples, strict=True)]
    synchronize()
    with Stream():
        for each in made:
            each.warm_up(num_warmup_iters, allow_unused_input)
    for each in made:
        each.capture_forward()
    for each in reversed(made):
        each.capture_backward(allow_unused_input)
    results = [
        _install(call, each) if isinstance(call, nn.Module) else each for call, each in zip(calls, made, strict=True)
    ]
    return results[0] if one else tuple(results)


def _install(module: nn.Module, graphed: _Graphed) -> nn.Module:
    """Make a module run its graphs in the mode (training or not) that they were captured in."""
    plain, mode = module.forward, module.training

    def forward(*args: Any) -> Any:
        return graphed(*args) if module.training == mode else plain(*args)

    graphed.call = plain
    module.forward = forward
    return module
