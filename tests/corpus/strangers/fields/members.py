from __future__ import annotations

import collections
import contextvars
import copy
import numpy as np
import threading
import torch
import torch.nn as nn
import torch.nn.functional as F
import types

from tests.corpus.strangers.program import program

LATER = "Dynamo does not see hooks that are added later"
DYNAMO = "Dynamo does not see this change"


@program(changes_model=True, skip={"compiled": LATER, "dynamo": LATER, "verified": LATER})
def hooks_that_change_outputs(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    box = {"a": 1.0}
    h = net[0].register_forward_hook(lambda m, i, o: o * box["a"])
    f = way(net)
    with torch.no_grad():
        for k in range(12):
            if k == 3: box["a"] = 2.0
            if k == 5: h.remove()
            if k == 7: p = net[2].register_forward_pre_hook(lambda m, i: (i[0] + 1,))
            if k == 10: p.remove()
            yield f(way.randn(k, 3, 4))

@program(changes_model=True, skip={"compiled": LATER, "dynamo": LATER, "verified": LATER})
def gradient_hooks(way):
    net = way.build(lambda: nn.Linear(4, 3)); f = way(net)
    seen = []
    h = net.weight.register_hook(lambda g: g * 2)
    for k in range(12):
        x = way.randn(k, 2, 4).requires_grad_()
        if k == 4: x.register_hook(lambda g: g * 5)
        if k == 6: h.remove()
        if k == 8: hh = net.register_full_backward_hook(lambda m, gi, go: (gi[0] * 10,))
        if k == 10: hh.remove()
        y = f(x); y.retain_grad(); y.pow(2).sum().backward()
        yield y.detach(), x.grad, net.weight.grad.clone(), y.grad.clone()
        net.zero_grad()

@program(changes_model=True)
def forward_replaced(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))); f = way(net)
    with torch.no_grad():
        for k in range(12):
            if k == 4: net[0].forward = types.MethodType(lambda s, x: x * 3, net[0])
            if k == 7: del net[0].forward
            if k == 9: net[1] = way.build(lambda: nn.Linear(4, 2), 5)
            if k == 10: net.append(nn.Tanh())
            yield f(way.randn(k, 3, 4))

@program(changes_model=True)
def normalizer_buffers(way):
    class Norm(nn.Module):
        def __init__(s):
            super().__init__()
            s.register_buffer("mean", torch.zeros(4)); s.register_buffer("var", torch.ones(4)); s.register_buffer("n", torch.zeros(()))
            s.frozen = False
        def forward(s, x):
            if not s.frozen:
                s.n += 1
                d = x.mean(0) - s.mean
                s.mean = s.mean + d / s.n
                s.var.lerp_(x.var(0), 1 / s.n.item() if False else 0.1)
            return (x - s.mean) / (s.var + 1e-5).sqrt()
    net = way.build(Norm); f = way(net)
    for k in range(12):
        if k == 6: net.frozen = True
        if k == 8: net.frozen = False
        if k == 9: net.mean.zero_()
        if k == 10: net.var = torch.ones(4).to(way.device) * 2
        yield f(way.randn(k, 5, 4)), net.mean.clone(), net.var.clone(), net.n.clone()

@program()
def memory_bank(way):
    bank = [way.randn(100 + i, 4) for i in range(3)]
    def f(x):
        m = torch.stack(bank)
        return (x @ m.t()).softmax(-1) @ m
    g = way(f)
    for k in range(12):
        if k in (4, 5): bank.append(way.randn(200 + k, 4))
        if k == 7: bank[0] = way.randn(300, 4)
        if k == 9: bank.pop(0)
        if k == 10: bank[1].zero_()
        yield g(way.randn(k, 2, 4))

MODE = contextvars.ContextVar("mode", default="plain")

LOCAL = threading.local(); LOCAL.gain = 1.0

LOCAL = threading.local(); LOCAL.gain = 1.0

@program()
def context_and_thread_local(way):
    LOCAL.gain = 1.0
    def f(x):
        y = x * LOCAL.gain
        return y.exp() if MODE.get() == "exp" else y
    g = way(f)
    for k in range(10):
        if k == 3: LOCAL.gain = 2.0
        if k == 5: tok = MODE.set("exp")
        if k == 8: MODE.reset(tok)
        yield g(way.randn(k, 4))
    LOCAL.gain = 1.0

EVENT = threading.Event()

@program(changes_model=True)
def event_flag(way):
    EVENT.clear()
    def f(x): return x * 2 if EVENT.is_set() else x + 1
    g = way(f)
    for k in range(10):
        if k == 4: EVENT.set()
        if k == 8: EVENT.clear()
        yield g(way.randn(k, 4))

@program()
def is_compiling_branch(way):
    def f(x):
        if torch.compiler.is_compiling(): return (x * 2).contiguous()
        return x * 2
    g = way(f)
    for k in range(9): yield g(way.randn(k, 3, 4))

@program()
def string_of_tensor(way):
    names = []
    def f(x):
        if len(names) < 2: names.append(f"shape {tuple(x.shape)} {x.dtype}")
        return x * len(names)
    g = way(f)
    for k in range(9): yield g(way.randn(k, 3, 4)), len(names)

@program()
def scatter_family_step(way):
    w = way.randn(1, 4, 6).requires_grad_()
    def step(x, i):
        y = torch.slice_scatter(w * 2, x[:, :2], 1, 2, 4)
        z = torch.select_scatter(y, x[0], 0, 1)
        d = torch.diagonal_scatter(z, x[:, 0])
        a = torch.as_strided(d, (3, 2), (6, 1), 5)
        b = d.scatter(1, i, 0.5).scatter_add(1, i, x)
        loss = (a.sum() + b.pow(2).sum())
        g, = torch.autograd.grad(loss, w)
        with torch.no_grad(): w.sub_(0.01 * g)
        return loss.detach(), g
    s = way.step(step, w)
    for k in range(10):
        yield s(way.randn(k, 4, 6), way.ints(k, 6, 4, 3)), w.detach().clone()

@program()
def as_strided_scatter_f(way):
    def f(x, y):
        z = torch.as_strided_scatter(x, y, (2, 2), (3, 1), 1)
        return z, torch.as_strided(x.clone(), (2, 2), (1, 2), 2), x.diagonal(1)
    g = way(f)
    for k in range(9):
        big = way.randn(k, 5, 4)
        yield g(big[k % 2:][:3], way.randn(k + 1, 2, 2))

@program()
def boolean_masks(way):
    def f(x):
        y = x.clone(); y[y > 0.5] = 0; y[:, 1] += 1
        return y, x[x > 0].sum(), torch.where(x.isnan(), 0.0, x), (x > 0).nonzero().size(0)
    g = way(f)
    for k in range(9): yield g(way.randn(k, 4, 5))

@program(changes_model=True, skip={"compiled": DYNAMO, "dynamo": DYNAMO, "verified": DYNAMO})
def siamese_and_copy(way):
    class Sia(nn.Module):
        def __init__(s):
            super().__init__(); s.a = nn.Linear(3, 4); s.b = nn.Sequential(s.a, nn.ReLU()); s.c = s.a
        def forward(s, x, y): return F.cosine_similarity(s.b(x), s.c(y)) + (s.a is s.c)
    net = way.build(Sia); f = way(net)
    for k in range(10):
        if k == 4: net.c = copy.deepcopy(net.a)
        if k == 7: net.c = net.a
        d = f(way.randn(k, 2, 3), way.randn(k + 1, 2, 3)); d.sum().backward()
        yield d.detach(), net.a.weight.grad.clone(), (net.c.weight.grad.clone() if net.c.weight.grad is not None else None)
        net.zero_grad()

@program(changes_model=True)
def bn_settings_change(way):
    net = way.build(lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()))
    f = way(net)
    for k in range(14):
        if k == 3: net[1].momentum = 0.5
        if k == 5: net[1].eps = 0.1
        if k == 6: net.eval()
        if k == 8: net[1].track_running_stats = False
        if k == 9: net.train()
        if k == 10: net[1].track_running_stats = True
        if k == 11: net[1].momentum = None
        if k == 12: net[0].padding = (0, 0)
        yield f(way.randn(k, 2, 2, 4, 4)).detach(), net[1].running_mean.clone(), net[1].num_batches_tracked.clone()

Batch = collections.namedtuple("Batch", "x mask")

@program()
def scalars_of_all_kinds(way):
    def f(x, a, n, b, z, c): return x * a + n if b else (x - float(z)) * c
    g = way(f)
    for k in range(12):
        yield g(way.randn(k, 4), 0.1 * k, k // 3, k % 4 != 3, np.float32(0.5 * (k // 4)), torch.tensor(1.0 + k))
