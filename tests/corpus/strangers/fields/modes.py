from __future__ import annotations

import copy
import functools
import io
import pickle
import threading
from dataclasses import dataclass
from typing import NamedTuple, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.corpus.strangers.program import program


# --- modes of torch ------------------------------------------------------------------------------------------------------
@program(changes_model=True)
def modes(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.Linear(6, 2)))
    call = way(net)
    contexts = [torch.no_grad, torch.inference_mode, torch.enable_grad]
    for k in range(18):
        net.train(k % 6 < 3)
        torch.manual_seed(k)
        x = way.randn(k, 5, 4)
        with contexts[k % 3]():
            y = call(x)
        yield y.requires_grad, y.is_inference(), y.detach().clone(), [b.clone() for b in net.buffers()]
        if y.requires_grad:
            y.sum().backward()
            yield [p.grad.clone() for p in net.parameters()]
            net.zero_grad()


@program()
def autocast_outside(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))
    call = way(net)
    for k in range(12):
        x = way.randn(k, 4, 8)
        if k % 3 == 0:
            y = call(x)
        else:
            with torch.autocast(way.device.type, dtype=torch.bfloat16, enabled=k % 3 == 1):
                y = call(x)
        y.float().sum().backward()
        yield y.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


@program()
def dropout_seeds(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 8), nn.Dropout1d(0.2)))
    call = way(net)
    torch.manual_seed(5)
    for k in range(4):
        yield call(way.randn(k, 4, 8)).detach()
    for k in range(4):
        torch.manual_seed(1)
        yield call(way.randn(1, 4, 8)).detach()
    for k in range(2):
        noise = torch.randn(3, device=way.device)
        yield call(way.randn(k, 4, 8)).detach(), noise


@program(changes_model=True)
def requires_grad_of_inputs(way):
    net = way.build(lambda: nn.Linear(4, 3))
    call = way(lambda x, w: (net(x) * w).sum(-1))
    for k in range(12):
        x, w = way.randn(k, 2, 4).requires_grad_(k % 2 == 0), way.randn(k + 1, 3).requires_grad_(k % 3 == 0)
        y = call(x, w)
        y.sum().backward(retain_graph=k % 4 == 0)
        if k % 4 == 0:
            y.sum().backward()
        yield y.detach(), x.grad, w.grad, net.weight.grad.clone()
        net.weight.grad = None if k % 5 == 0 else net.weight.grad


# --- errors in the user's code, and going on -------------------------------------------------------------------------------
@program()
def errors_and_going_on(way):
    def f(x, n):
        if n == 3:
            raise KeyError("the author's own")
        if n == 5:
            return x @ x
        try:
            if n == 7:
                raise StopIteration
            return x * 2
        except StopIteration:
            return x * 5
        finally:
            x = None

    call = way(f)
    for k in range(10):
        try:
            yield call(way.randn(k, 2, 3), k)
        except (KeyError, RuntimeError) as e:
            yield type(e).__mro__[-3].__name__ if not isinstance(e, (KeyError, RuntimeError)) else "error"


@program()
def data_dependent(way):
    def f(x):
        if x.sum() > 0:
            return x * 2
        y = x[x > 0]
        n = int((x > 0).sum())
        return y.sum() + n + x.unique().numel()

    call = way(f)
    for k in range(10):
        yield call(way.randn(k, 5))


@program()
def prints_and_generators(way):
    def pieces(x):
        for n in range(3):
            yield x[n] * n

    def tree(x, depth):
        return x if depth == 0 else tree(x * 2, depth - 1) + tree(x + 1, depth - 1)

    def f(x):
        total = sum(pieces(x))
        it = iter([total, total * 2])
        a = next(it)
        (b,) = it
        return tree(a, 3), {k: v for k, v in zip("ab", (a, b))}, [*map(torch.sin, (a, b))]

    call = way(f)
    for k in range(8):
        yield call(way.randn(k, 3, 4))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k, mode):
        ctx.k, ctx.mode, ctx.shape = k, mode, x.shape
        ctx.mark_non_differentiable(ids := x.argmax(-1))
        ctx.save_for_backward(x if mode == "x" else None)
        return x * k, ids

    @staticmethod
    def backward(ctx, g, _):
        (x,) = ctx.saved_tensors
        return (g * ctx.k if x is None else g * x.sign()), None, None


@program()
def custom_function(way):
    call = way(lambda x, k, mode: Scaled.apply(x.sin(), k, mode))
    for k in range(12):
        x = way.randn(k, 3, 4).requires_grad_()
        y, ids = call(x, 1.0 + k // 6, "xn"[k % 2])
        y.sum().backward()
        yield y.detach(), ids, x.grad


@program()
def zero_sizes_and_scalars(way):
    def f(x, i):
        e = x[:0]
        return e.sum(), e @ x.new_ones(x.size(1), 2), x[i], x.mean(), torch.cat([e, x]), x.new_tensor(3.0) * x.max()

    call = way(f)
    for k in range(10):
        yield call(way.randn(k, 3, 4), k % 3 if k < 5 else torch.tensor(k % 3, device=way.device))


@program(changes_model=True)
def buffers_replaced(way):
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("count", torch.tensor(0.0), persistent=False)

        def forward(self, x):
            self.count += 1
            self.mean = self.mean + (x.mean(0) - self.mean) / self.count
            return x - self.mean

    net = way.build(Norm)
    call = way(net)
    for k in range(10):
        yield call(way.randn(k, 4, 3)), net.mean.clone(), net.count.clone()
        if k == 5:
            net.count.zero_()
        if k == 7:
            net.mean = torch.ones(3, device=way.device)


@program()
def iterative_refinement(way):
    # RAFT and friends: the output is the next input, detached, and lookups by index
    class Refine(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRUCell(6, 5)
            self.head = nn.Linear(5, 2)

        def forward(self, feat, flow, h):
            idx = (flow.clamp(0, 3.99)).long()
            look = feat[torch.arange(feat.size(0), device=feat.device), :, idx[:, 0], idx[:, 1]]
            h = self.gru(torch.cat([look, flow], -1), h)
            return flow + self.head(h), h

    net = way.build(Refine)
    call = way(net)
    flow, h = torch.zeros(3, 2, device=way.device), torch.zeros(3, 5, device=way.device)
    for k in range(10):
        flow, h = call(way.randn(k // 5, 3, 4, 4, 4), flow.detach(), h)
        yield flow, h
        if k % 5 == 4:
            flow.sum().backward()
            yield [p.grad.clone() for p in net.parameters()]
            h = h.detach()
            net.zero_grad()
