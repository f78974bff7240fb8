from __future__ import annotations

import dataclasses
import enum
import functools
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.corpus.strangers.program import program

DYNAMO = "Dynamo does not see this change"


@dataclasses.dataclass
class Config:
    scale: float = 1.0
    act: str = "relu"
    dims: tuple = (0, 1)
    table: dict = dataclasses.field(default_factory=dict)

@program(changes_model=True)
def dataclass_config_changes(way):
    cfg = Config(table={"a": 1.0})
    def f(x):
        y = getattr(F, cfg.act)(x) * cfg.scale
        return y.sum(cfg.dims) + cfg.table["a"], y
    g = way(f)
    for k in range(12):
        if k == 3: cfg.scale = 2.0
        if k == 5: cfg.act = "gelu"
        if k == 7: cfg.dims = (1,)
        if k == 8: cfg.table["a"] = 5.0
        if k == 10: cfg.table = {"a": -1.0}
        yield g(way.randn(k, 3, 4))

class Act(enum.Enum):
    A = "relu"; B = "tanh"

@program(changes_model=True)
def enum_and_match(way):
    class Net(nn.Module):
        def __init__(s): super().__init__(); s.act = Act.A; s.l = nn.Linear(4, 4)
        def forward(s, x):
            match s.act:
                case Act.A: return s.l(x).relu()
                case Act.B: return s.l(x).tanh()
    net = way.build(Net); f = way(net)
    with torch.no_grad():
        for k in range(10):
            if k == 5: net.act = Act.B
            if k == 8: net.act = Act.A
            yield f(way.randn(k, 2, 4))

class Temperature:
    default = 1.0
    def __get__(s, obj, kind=None): return obj.__dict__.get("_t", Temperature.default)
    def __set__(s, obj, v): obj.__dict__["_t"] = v

@program(changes_model=True, skip={"compiled": DYNAMO, "dynamo": DYNAMO, "verified": DYNAMO})
def descriptor_and_property(way):
    class Sampler(nn.Module):
        t = Temperature()
        def __init__(s): super().__init__(); s.k = 3; s.w = nn.Parameter(torch.randn(5))
        @property
        def top(s): return s.k * 1.0
        def forward(s, x): return (x * s.w / s.t).softmax(-1) * s.top
    net = way.build(Sampler); f = way(net)
    with torch.no_grad():
        for k in range(12):
            if k == 3: net.t = 2.0
            if k == 5: net.k = 7
            if k == 7: Temperature.default = 3.0
            if k == 9: del net.__dict__["_t"]
            yield f(way.randn(k, 2, 5))
    Temperature.default = 1.0

@program()
def registry_of_callables(way):
    ops = {"a": torch.relu, "b": functools.partial(torch.add, alpha=2, other=torch.ones(()).to(way.device))}
    order = ["a", "b"]
    def f(x):
        for name in order:
            x = ops[name](x)
        return x
    g = way(f)
    for k in range(12):
        if k == 4: order.append("a")
        if k == 6: ops["a"] = torch.tanh
        if k == 8: order[:] = ["b"]
        if k == 10: ops["b"] = lambda x: x * x
        yield g(way.randn(k, 6))

@program()
def views_written(way):
    def f(x, i):
        a = x[:, ::2]
        a.mul_(2)
        x.t()[1].add_(1)
        x.view(-1)[i] = 7.0
        b = x.unfold(1, 2, 1)
        return b.sum(-1), a, x.narrow(0, 1, 2)
    g = way(f)
    for k in range(9):
        x = way.randn(k, 4, 6)
        out = g(x, k % 3)
        yield out, x

@program()
def overlapping_and_strided_inputs(way):
    def f(x, y): return x * 2 + y.sum(), x.contiguous().view(-1)[:3], (x @ y.transpose(-1, -2))
    g = way(f)
    base = way.randn(99, 40)
    for k in range(10):
        x = base[k % 3:].as_strided((3, 4), (2, 1))
        y = way.randn(k, 4, 3).t() if k % 2 else way.randn(k, 3, 4)
        base.add_(0.1)
        yield g(x, y)

@program()
def half_and_complex_mix(way):
    def f(x, h, c):
        y = (x * h).to(torch.float16)
        z = torch.view_as_real(c * torch.exp(1j * x[..., 0].to(torch.complex64)))
        return y.float().mean(), z.permute(1, 0), c.conj() @ c, c.abs().half()
    g = way(f)
    for k in range(9):
        x = way.randn(k, 4, 2); h = way.randn(k + 1, 4, 2).half()
        c = torch.complex(way.randn(k + 2, 4), way.randn(k + 3, 4))
        if k % 3 == 2: c = c.conj()
        yield g(x, h, c)

@program()
def dtype_changes_between_calls(way):
    net = way.build(lambda: nn.Linear(4, 3)); f = way(lambda x, w, b: F.linear(x, w, b).softmax(-1))
    with torch.no_grad():
        for k in range(12):
            dt = (torch.float32, torch.bfloat16, torch.float64)[(k // 4) % 3]
            yield f(way.randn(k, 2, 4).to(dt), net.weight.to(dt), net.bias.to(dt))

@program(changes_model=True)
def model_half_then_float(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)))
    f = way(net)
    with torch.no_grad():
        for k in range(12):
            if k == 4: net.bfloat16()
            if k == 8: net.float()
            x = way.randn(k, 3, 4).to(next(net.parameters()).dtype)
            yield f(x)

@program(changes_model=True)
def weights_tied_and_untied(way):
    class LM(nn.Module):
        def __init__(s):
            super().__init__(); s.e = nn.Embedding(11, 6); s.o = nn.Linear(6, 11, bias=False); s.o.weight = s.e.weight
        def forward(s, i): return s.o(s.e(i).cumsum(1))
    net = way.build(LM); f = way(net)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for k in range(12):
        i = way.ints(k, 11, 2, 5)
        loss = F.cross_entropy(f(i).flatten(0, 1), i.flatten())
        opt.zero_grad(); loss.backward(); opt.step()
        yield loss.detach(), net.e.weight.detach().clone()
        if k == 6:
            net.o.weight = nn.Parameter(net.e.weight.detach().clone())
            opt = torch.optim.SGD(net.parameters(), 0.1)
