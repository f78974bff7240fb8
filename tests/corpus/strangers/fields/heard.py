from __future__ import annotations

import torch
import torch.nn as nn

from tests.corpus.strangers.program import program

DUAL = "Inductor's kernels keep no tangents"


def base(x, w): return torch.tanh(x @ w).sum(-1)

@program()
def vmap_outside2(way):
    f = way(base)
    w = way.randn(1, 4, 3)
    for k in range(9):
        x = way.randn(k, 5, 2, 4)
        yield f(x[0], w)
        if k > 3: yield torch.vmap(f, (0, None))(x, w)

@program()
def grad_outside2(way):
    w = way.randn(1, 4)
    f = way(lambda x, w: (torch.sin(x) * w).sum())
    for k in range(9):
        x = way.randn(k, 4)
        yield f(x, w)
        if k > 3: yield torch.func.grad(f)(x, w), torch.func.jvp(lambda x: f(x, w), (x,), (torch.ones_like(x),))[1]

@program()
def hessian_outside(way):
    f = way(lambda x: (x ** 3).sum())
    for k in range(9):
        x = way.randn(k, 4)
        yield f(x)
        if k > 3: yield torch.func.hessian(f)(x), torch.autograd.functional.jacobian(f, x)

@program(skip={"compiled": DUAL, "dynamo": DUAL, "inputs": DUAL, "verified": DUAL})
def forward_ad_outside2(way):
    import torch.autograd.forward_ad as fwAD
    f = way(lambda x, w: torch.sin(x) * w)
    w = way.randn(1, 4)
    for k in range(8):
        x = way.randn(k, 4)
        plain = f(x, w)
        yield plain
        if k > 2:
            with fwAD.dual_level():
                y = f(fwAD.make_dual(x, torch.ones_like(x)), w)
                p, t = fwAD.unpack_dual(y)
                yield p.clone(), (t.clone() if t is not None else None)

@program()
def function_modes_alternate(way):
    from torch.overrides import TorchFunctionMode
    class Times(TorchFunctionMode):
        def __init__(s, n): super().__init__(); s.n = n; s.seen = 0
        def __torch_function__(s, func, types, args=(), kwargs=None):
            s.seen += 1
            r = func(*args, **(kwargs or {}))
            return r * s.n if func is torch.tanh else r
    f = way(lambda x: torch.tanh(x) + 1)
    g = way.step(lambda x: torch.tanh(x) + 1)
    for k in range(12):
        x = way.randn(k, 4)
        yield f(x), g(x)
        for n in (2, 5):
            with Times(n) as t: yield f(x), g(x)
    try:
        xs = [way.randn(k, 4) for k in range(6)]
        torch.set_default_device(way.device)
        for x in xs: yield f(x), g(x)
    finally: torch.set_default_device(None)

@program()
def dispatch_mode_outside2(way):
    from torch.utils.flop_counter import FlopCounterMode
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    f = way(net); s = way.step(lambda x: net(x).detach(), net)
    with torch.no_grad():
        for k in range(8):
            x = way.randn(k, 3, 4)
            if k in (4, 6):
                with FlopCounterMode(display=False) as m: y = f(x), s(x)
                yield y, m.get_total_flops()
            else: yield f(x), s(x)
