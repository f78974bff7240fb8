"""Functions as strangers write them, without a problem: whatever the doctor finds in one is wrong."""

from __future__ import annotations

SOUND_STRANGE = {
    "partial with a step number in keywords": """
from functools import partial
def anneal(x, *, step, total):
    frac = step / total
    return x * (1 - frac)
run = partial(anneal, step=3, total=10)
inputs = (torch.randn(4, device=device),)
f = run
""",
    "debug logging that is switched off": """
import logging
log2 = logging.getLogger("train.quiet")
log2.setLevel(logging.WARNING)
inputs = (torch.randn(4, device=device),)
def step(x):
    y = x.relu()
    log2.debug("mean %.3f", y.mean())
    return y
f = step
""",
    "try except around an unsafe route with a safe fallback by type": """
inputs = (torch.randn(4, device=device),)
def f(x):
    try:
        import nonexistent_fused_kernels as k
        return k.gelu(x)
    except ImportError:
        return F.gelu(x)
""",
    "yield from in nested generators": """
inputs = (torch.randn(6, 3, device=device),)
def halves(x):
    yield from x.chunk(2)
def quarters(x):
    for h in halves(x):
        yield from h.split(1)
def f(x):
    return torch.stack([q.sum() for q in quarters(x)])
""",
    "a static method that validates shapes": """
class Check:
    @staticmethod
    def same(a, b):
        if a.shape != b.shape:
            raise ValueError(f"{a.shape} {b.shape}")
inputs = (torch.randn(4, device=device), torch.randn(4, device=device))
def f(a, b):
    Check.same(a, b)
    return a.dot(b)
""",
    "metric states in tensors in place": """
class MeanMetric:
    def __init__(self):
        self.value = torch.zeros((), device=device)
        self.weight = torch.zeros((), device=device)
    def __call__(self, v):
        self.value += v.sum()
        self.weight += v.numel()
        return self.value / self.weight
mm = MeanMetric()
inputs = (torch.randn(4, 3, device=device),)
def f(x):
    return mm(x)
""",
    "sum over dict of losses with python float weights": """
w = {"a": 1.0, "b": 0.5}
inputs = (torch.randn(4, device=device),)
def f(x):
    losses = dict(a=x.square().mean(), b=x.abs().mean())
    return sum(w[k] * v for k, v in losses.items())
""",
    "einsum, unfold and a fold with numbers known": """
inputs = (torch.randn(1, 2, 6, 6, device=device),)
def f(x):
    p = F.unfold(x, 3, padding=1)
    q = torch.einsum("bcl,bdl->bcd", p, p)
    return F.fold(p, (6, 6), 3, padding=1), q
""",
    "numpy scalar types as arguments of ops": """
import math
import numpy as np
inputs = (torch.randn(4, device=device),)
scale = np.float32(0.5)
def f(x):
    return x * float(scale) + np.pi
""",
    "contextvars pick a mode": """
import contextvars
mode = contextvars.ContextVar("mode", default="mean")
inputs = (torch.randn(4, device=device),)
def f(x):
    return x.mean() if mode.get() == "mean" else x.sum()
""",
    "a singleton registry created lazily with a literal": """
class Singleton:
    _inst = None
    @classmethod
    def get(cls):
        if cls._inst is None:
            cls._inst = cls()
        return cls._inst
    def __init__(self):
        self.table = torch.arange(4, device=device).float()
inputs = (torch.randn(4, device=device),)
def f(x):
    return x + Singleton.get().table
""",
    "nan_to_num, searchsorted, bucketize on device edges": """
edges = torch.linspace(-2, 2, 5, device=device)
inputs = (torch.randn(6, device=device),)
def f(x):
    b = torch.bucketize(x.nan_to_num(), edges)
    return torch.zeros(6, device=x.device).scatter_add_(0, b, x)
""",
    "multinomial draws and gather": """
inputs = (torch.rand(2, 5, device=device),)
def f(p):
    i = torch.multinomial(p, 1)
    return p.gather(1, i)
""",
    "custom op that writes its argument": """
@torch.library.custom_op("finding_lib3::acc", mutates_args=("out",))
def acc(x: torch.Tensor, out: torch.Tensor) -> None:
    out.add_(x * 2)
buf = torch.zeros(4, device=device)
inputs = (torch.randn(4, device=device),)
def f(x):
    acc(x, buf)
    return buf + 1
""",
    "custom op under vmap-free nested call of another": """
@torch.library.custom_op("finding_lib5::inner", mutates_args=())
def inner(x: torch.Tensor) -> torch.Tensor:
    return x.sin()
@torch.library.custom_op("finding_lib5::outer", mutates_args=())
def outer(x: torch.Tensor, k: float) -> torch.Tensor:
    return inner(x) * k
inputs = (torch.randn(4, device=device),)
def f(x):
    return outer(x, 2.0) + 1
""",
    "a symbolically traced module": """
import torch.fx
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
    def forward(self, x): return self.l(x).relu() + 1
gm = torch.fx.symbolic_trace(M()).to(device)
inputs = (torch.randn(2, 3, device=device),)
def f(x):
    return gm(x)
""",
    "parametrized orthogonal weights or told": """
from torch.nn.utils.parametrizations import weight_norm
net = weight_norm(nn.Linear(3, 3)).to(device)
inputs = (torch.randn(4, 3, device=device),)
def f(x):
    return net(x)
""",
    "exception text with a tensor only on the bad path": """
inputs = (torch.randn(4, 3, device=device),)
def f(x):
    if x.dim() != 2:
        raise ValueError(f"expected 2d, got {x}")
    return x.mean(0)
""",
    "assertion helper torch._assert_async": """
inputs = (torch.rand(4, device=device),)
def f(x):
    torch._assert_async((x >= 0).all())
    return x.sqrt()
""",
    "a typing.NamedTuple state through a scan": """
from typing import NamedTuple
class S(NamedTuple):
    h: torch.Tensor
    n: torch.Tensor
inputs = (torch.randn(5, 3, device=device),)
def f(xs):
    s = S(torch.zeros(3, device=xs.device), torch.zeros((), device=xs.device))
    for x in xs:
        s = s._replace(h=torch.tanh(s.h + x), n=s.n + 1)
    return s.h / s.n
""",
    "diff, cumsum and boundaries without sizes": """
inputs = (torch.tensor([1, 1, 2, 3, 3], device=device),)
def f(x):
    starts = torch.cat([torch.ones(1, dtype=torch.bool, device=x.device), x[1:] != x[:-1]])
    return starts.long().cumsum(0)
""",
    "rotary embeddings whose base grows past a length": """
class Rope(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv", 1.0 / (100 ** (torch.arange(0, 4, 2).float() / 4)))
        self.original = 8
    def forward(self, pos):
        seq = pos.shape[-1]
        inv = self.inv if seq <= self.original else self.inv * 0.5
        a = pos[..., None].float() * inv
        return a.cos(), a.sin()
rope = Rope().to(device)
inputs = (torch.arange(4, device=device)[None],)
def f(p):
    return rope(p)
""",
    "torch.as_tensor of a device tensor": """
inputs = (torch.randn(4, device=device),)
def f(x):
    return torch.as_tensor(x, dtype=torch.float64).sum()
""",
}
