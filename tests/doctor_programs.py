"""Functions with planted problems, each marked at its line, and sound ones: for the simulator and for a GPU alike.

A program defines ``f`` and ``inputs``; ``# problem: CODE`` stands at the line that the doctor has to name.
"""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

HEAD = """\
import random
import time
import torch
from torch import nn
from torch.nn import functional as F
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()
x = torch.randn(4, 4, device=device)
inputs = (x,)
"""


def program(text: str, file: Path) -> dict[str, Any]:
    """Run a program from a file of its own; returns its names."""
    file.write_text(HEAD + text)
    linecache.checkcache(str(file))
    names: dict[str, Any] = {"__name__": "planted"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return names


def marked(text: str) -> set[tuple[str, int]]:
    """(code, line) of every planted problem."""
    lines = (HEAD + text).splitlines()
    return {
        (code, n)
        for n, line in enumerate(lines, 1)
        if (mark := re.search(r"# problem: (.+)$", line))
        for code in mark[1].split()
    }


SEVEN = """
side = cuda.Stream()
kept = []

def f(x):
    mean = x.mean().item()  # problem: sync-item
    y = x * mean
    y = y[y > 0]  # problem: dynamic-shape
    table = torch.tensor([1.0, 2.0], device=device)  # problem: tensor-literal
    cuda.synchronize()  # problem: synchronize
    y = y * random.random()  # problem: host-random
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        z = x * 2  # problem: unjoined-work
    kept.append(y)  # problem: output-alias
    return y.sum() * table
"""

PLANTED = {
    "branch on the device": """
def f(x):
    if x.sum() > 100:  # problem: data-dependent-branch
        x = x + 1
    return x
""",
    "branch on a counter": """
step = 0
def f(x):
    global step
    step += 1  # problem: host-counter
    if step % 2:  # problem: branch-frozen
        x = x.relu()
    return x * 2
""",
    "counter as a number": """
step = 0
def f(x):
    global step
    step += 1  # problem: host-counter
    return x * step  # problem: scalar-frozen
""",
    "attribute": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, x):
        self.calls += 1  # problem: host-counter
        return x * self.calls  # problem: scalar-frozen
f = Model()
""",
    "size": """
n = 1
def f(x):
    global n
    n = n % 3 + 1  # problem: host-counter
    return x[:n].sum()  # problem: size-frozen
""",
    "loop": """
n = 1
def f(x):
    global n
    n = n % 3 + 1  # problem: host-counter
    for _ in range(n):  # problem: branch-frozen
        x = x + 1
    return x
""",
    "time": """
def f(x):
    return x * time.time()  # problem: scalar-frozen
""",
    "a CPU tensor of one element": """
k = torch.tensor(2.0)
def f(x):
    return x * k  # problem: cpu-scalar-frozen
""",
    "host random numbers in a tensor": """
def f(x):
    return x * torch.rand(()).item()  # problem: host-random
""",
    "another input at each call": """
batches = iter([torch.randn(4, 4, device=device) for _ in range(9)])
def f(x):
    return x + next(batches)  # problem: stale-input
""",
    "state that is exchanged": """
state = torch.zeros(4, 4, device=device)
def f(x):
    global state
    state = state * 0.9 + x  # problem: stale-input
    return state
""",
    "print": """
def f(x):
    print("loss")  # problem: host-counter
    return x * 2
""",
    "print of a tensor": """
def f(x):
    print(x)  # problem: print
    return x * 2
""",
    "copy to the CPU": """
def f(x):
    y = x * 2
    y.cpu()  # problem: copy-to-cpu
    return y
""",
    "copy to the GPU": """
c = torch.randn(4, 4)
def f(x):
    return x + c.to(device, non_blocking=True)  # problem: copy-to-gpu
""",
    "pinned, but blocking": """
c = torch.randn(4, 4).pin_memory()
def f(x):
    y = x.clone()
    y.copy_(c)  # problem: blocking-copy
    return y
""",
    "a list as index": """
def f(x):
    return x[[2, 0, 1]]  # problem: cpu-index
""",
    "a list in a variable as index": """
places = [2, 0, 1]
def f(x):
    return x[places]  # problem: cpu-index
""",
    "assignment through a mask": """
v = torch.zeros(int((x > 0).sum()), device=device)
def f(x):
    y = x.clone()
    y[x > 0] = v  # problem: mask-assignment
    return y
""",
    "a size that is counted": """
i = torch.tensor([0, 2], device=device)
def f(x):
    return F.one_hot(i), x * 2  # problem: hidden-size
""",
    "linear algebra": """
a = torch.eye(4, device=device)
def f(x):
    return torch.linalg.inv(a) @ x  # problem: linalg-check
""",
    "events": """
e = cuda.Event()
def f(x):
    y = x * 2
    e.record()
    e.query()  # problem: captured-event
    return y
""",
    "the default stream": """
def f(x):
    with cuda.stream(cuda.default_stream()):
        y = x * 2  # problem: work-elsewhere
    return y
""",
    "a stream that was never forked": """
side = cuda.Stream()
def f(x):
    with cuda.stream(side):
        y = x * 2  # problem: work-elsewhere
    cuda.current_stream().wait_stream(side)  # problem: isolation
    return y
""",
    "counters of every kind": """
from collections import Counter
class Statistics:
    total = 0
    def __init__(self):
        self.n = 0
counts, statistics = Counter(), Statistics()
def f(x, log=[]):
    counts["calls"] += 1  # problem: host-counter
    Statistics.total += 1  # problem: host-counter
    statistics.n += 1  # problem: host-counter
    f.calls = getattr(f, "calls", 0) + 1  # problem: host-counter
    return x * 2
f.calls = 0
""",
    "a list that is an argument": """
seen = []
inputs = (x, seen)
def f(x, log):
    log.append("called")  # problem: host-counter
    return x * 2
""",
    "a random number drawn a line before": """
def f(x):
    k = random.randint(1, 10**6)
    return x * k  # problem: host-random
""",
    "a random branch": """
def f(x):
    for _ in range(random.randint(1, 10**3)):  # problem: branch-frozen
        x = x + 1
    return x
""",
    "numpy": """
import numpy as np
def f(x):
    noise = np.random.randn(4).astype("float32")
    return x + torch.from_numpy(noise).to(device)  # problem: copy-to-gpu
""",
    "an assertion": """
def f(x):
    assert x.isfinite().all()  # problem: data-dependent-branch
    return x * 2
""",
    "a log": """
import logging
def f(x):
    y = x * 2
    logging.getLogger("train").warning("loss is %s", "low")  # problem: host-counter
    return y
""",
    "text": """
def f(x):
    y = x.sum()
    text = f"{y:.3f}"  # problem: print
    return y
""",
    "a capture inside": """
g = cuda.CUDAGraph()
def f(x):
    y = x * 2
    with cuda.graph(cuda.CUDAGraph()):  # problem: nested-capture
        z = x + 1
    return y
""",
    "an optimizer": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.Adam([p], lr=0.1)
def f(x):
    opt.zero_grad()
    (p * x).sum().backward()
    opt.step()  # problem: optimizer-not-capturable
""",
    "gradients from outside": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1)
(p * x).sum().backward()
def f(x):
    opt.step()  # problem: gradients-rebound
""",
    "a schedule": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1)
rate = 0.1
def f(x):
    global rate
    rate *= 0.5  # problem: host-counter
    opt.param_groups[0]["lr"] = rate
    opt.zero_grad()
    (p * x).sum().backward()
    opt.step()  # problem: learning-rate-frozen
""",
    "code that knows of captures": """
def f(x):
    if cuda.is_current_stream_capturing():  # problem: capture-aware-code
        return x
    return x * 2
""",
    "seeding": """
def f(x):
    torch.manual_seed(0)  # problem: reseeded
    return F.dropout(x)
""",
    "a loss from outside": """
p = nn.Parameter(torch.ones(4, 4, device=device))
loss = (p * x).sum()
def f(x):
    loss.backward(retain_graph=True)  # problem: legacy-stream
    return x * 2
""",
    "a copy with gradients from outside": """
p = nn.Parameter(torch.ones(4, 4, device=device))
before = p.clone()
def f(x):
    p.grad = None
    (p * x).sum().backward()  # problem: legacy-stream
""",
    "gradients set to None by the loop around": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1)
def f(x):
    loss = (p * x).sum()
    loss.backward()
    return loss.detach()
def train():
    for _ in range(9):
        opt.zero_grad()  # problem: gradients-rebound
        f(x)
        opt.step()
""",
    "gradients set to None between replays": """
p = nn.Parameter(torch.ones(4, 4, device=device))
def f(x):
    (p * x).sum().backward()
def train(g):
    p.grad = None
    with cuda.graph(g):
        f(x)
    g.replay()
    p.grad = None  # problem: gradients-rebound
    g.replay()
""",
    "gradients that add up in a graph, and are set to None outside": """
m = nn.Linear(4, 4).to(device)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
for q in m.parameters():
    q.grad = torch.zeros_like(q)
def f(x):
    m(x).sum().backward()
    opt.step()
def train():
    while True:
        m.zero_grad(set_to_none=True)  # problem: gradients-rebound
        f(x)
""",
    "a replay inside": """
g = cuda.CUDAGraph()
with cuda.graph(g):
    y = x + 1
def f(x):
    g.replay()  # problem: replay-in-capture
    return y * 2
""",
    "a coin": """
def f(x):
    if random.random() < 0.5:  # problem: branch-frozen
        return x * 2
    return x + 1
""",
    "a list that grows": """
cache = []
def f(x):
    cache.append(x * 2)  # problem: output-alias
    return torch.cat(cache).sum()  # problem: size-frozen
""",
    "a scheduler": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1)
schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
def f(x):
    opt.zero_grad()
    (p * x).sum().backward()
    opt.step()  # problem: learning-rate-frozen
    schedule.step()
""",
    "a scheduler inside, with a rate on the device": """
p = nn.Parameter(torch.ones(4, device=device))
opt = torch.optim.Adam([p], lr=torch.tensor(0.1, device=device), capturable=True)
sched = torch.optim.lr_scheduler.StepLR(opt, 30)
def f(x):
    opt.zero_grad()
    (x @ p).sum().backward()
    opt.step()
    sched.step()  # problem: learning-rate-frozen
    return x * 2
""",
    "a cosine inside": """
p = nn.Parameter(torch.ones(4, device=device))
opt = torch.optim.AdamW([p], lr=torch.tensor(0.1, device=device), capturable=True)
sched = torch.optim.lr_scheduler.SequentialLR(
    opt, [torch.optim.lr_scheduler.LinearLR(opt, 0.1), torch.optim.lr_scheduler.CosineAnnealingLR(opt, 9)], [3]
)
def f(x):
    opt.zero_grad()
    (x @ p).sum().backward()
    opt.step()
    sched.step()  # problem: learning-rate-frozen
    return x * 2
""",
    "a random branch beside random numbers": """
def f(x):
    x = x * random.random()  # problem: host-random
    if random.random() < 0.5:  # problem: branch-frozen
        x = x.flip(0)
    return x + 1
""",
    "two random branches": """
def f(x):
    if random.random() < 0.5:  # problem: branch-frozen
        x = x.flip(0)
    if random.random() < 0.5:  # problem: branch-frozen
        x = x.flip(1)
    return x + 1
""",
    "a class that counts": """
class Model:
    calls = 0
    def __call__(self, x):
        Model.calls += 1  # problem: host-counter
        return x * Model.calls  # problem: scalar-frozen
f = Model()
""",
    "a decorated method": """
import functools
def counted(method):
    @functools.wraps(method)
    def inner(self, x):
        inner.calls += 1  # problem: host-counter
        return method(self, x)
    inner.calls = 0
    return inner
class Model:
    @counted
    def __call__(self, x):
        return x * x.max().item()  # problem: sync-item
f = Model()
""",
    "a hook on a gradient": """
w = nn.Parameter(torch.ones(4, device=device))
norms = []
def log(grad):
    norms.append(float(grad.norm()))  # problem: sync-item host-counter
w.register_hook(log)
def f(x):
    w.grad = None
    (x @ w).sum().backward()
    return x * 2
""",
    "a Function of one's own": """
class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        if grad.norm() > 1:  # problem: data-dependent-branch
            grad = grad / 2
        return grad
w = nn.Parameter(torch.ones(4, device=device))
def f(x):
    w.grad = None
    Clip.apply(x @ w).sum().backward()
    return x * 2
""",
    "a mask in a forward pass": """
w = nn.Parameter(torch.ones(4, device=device))
def f(x):
    w.grad = None
    y = x @ w
    loss = y[y > 0].sum()  # problem: dynamic-shape
    loss.backward()
    return loss.detach()
""",
    "checked distributions": """
def f(x):
    d = torch.distributions.Normal(x, x.exp(), validate_args=True)  # problem: argument-check
    return d.log_prob(x)  # problem: argument-check
""",
    "a number through an index": """
i = torch.tensor([0, 2], device=device)
def f(x):
    y = x.clone()
    y[i] = 5.0  # problem: scalar-assignment
    return y
""",
    "a loss of lengths": """
targets, lengths = torch.tensor([[1, 2], [2, 1]], device=device), torch.tensor([4, 4], device=device)
sizes = torch.tensor([2, 2], device=device)
def f(x):
    p = x[:, None, :3].expand(4, 2, 3).log_softmax(-1)
    return F.ctc_loss(p, targets, lengths, sizes)  # problem: ctc-loss
""",
    "a file": """
import os
def f(x):
    with open(os.devnull, "a") as log:  # problem: host-counter
        log.write("step")
    return x * 2
""",
    "a list in which a tensor chooses": """
factors = [1.0, 2.0, 3.0]
place = torch.tensor(1, device=device)
def f(x):
    return x * factors[place]  # problem: sync-item
""",
    "a column up to a tensor": """
n = torch.tensor(2, device=device)
def f(x):
    return x[:, :n] * 2  # problem: tensor-bound
""",
    "experts": """
experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to(device)
def f(x):
    chosen, y = x.argmax(-1) % 2, torch.zeros_like(x)
    for number, expert in enumerate(experts):
        rows = torch.where(chosen == number)[0]  # problem: dynamic-shape
        y[rows] = expert(x[rows])
    return y
""",
    "a scale from a shape": """
def f(x):
    scale = torch.tensor(x.shape[-1] ** -0.5, device=x.device)  # problem: tensor-literal
    return x * scale
""",
    "through a helper": """
def helper(a):
    return a.max().item()  # problem: sync-item

class Wrapped(nn.Module):
    def forward(self, x):
        return x / helper(x)

f = Wrapped()
""",
}

SOUND = {
    "a dictionary of the latest": """
latest = {"y": None}
def f(x):
    latest["y"] = x * 2
    return latest["y"]
""",
    "an outer module that remembers its sizes": """
class Model(nn.Module):
    def forward(self, x):
        self.size = tuple(x.shape)
        self.last = x * 2
        return self.last
f = Model()
""",
    "compiled parts": """
part = torch.compile(lambda a: a * 2, backend="eager")
def f(x):
    return part(x) + 1
""",
    "a module": """
f = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4)).to(device)
""",
    "masks with numbers": """
def f(x):
    y = x.clone()
    y[y > 0] = -1.0
    return torch.where(y < 0, y, 0.0).masked_fill(y > 1, 2.0)
""",
    "a fork that is joined": """
side = cuda.Stream()
def f(x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        y = x * 2
    z = x + 1
    cuda.current_stream().wait_stream(side)
    return y + z
""",
    "events that fork and join": """
side, begin, end = cuda.Stream(), cuda.Event(), cuda.Event()
def f(x):
    begin.record()
    side.wait_event(begin)
    with cuda.stream(side):
        y = x * 2
        end.record()
    cuda.current_stream().wait_event(end)
    return y + 1
""",
    "random numbers of the device": """
def f(x):
    return x * torch.rand(4, 4, device=device) + torch.randn_like(x)
""",
    "a step": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1, momentum=0.9)
def f(x):
    loss = (p * x).sum()
    loss.backward()
    opt.step()
    opt.zero_grad()
    return loss.detach()
""",
    "gradients that add up, and clipping": """
m = nn.Linear(4, 4).to(device)
def f(x):
    loss = m(x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    return loss
""",
    "something that is made once": """
class Cached(nn.Module):
    cache = None
    def forward(self, x):
        if self.cache is None:
            self.cache = torch.arange(4.0, device=x.device)
            self.most = self.cache.max().item()
        return x + self.cache
f = Cached()
""",
    "a copy to pinned memory": """
pinned = torch.zeros(4, 4).pin_memory()
def f(x):
    y = x * 2
    pinned.copy_(y, non_blocking=True)
    return y
""",
    "in place": """
buffer = torch.zeros(4, 4, device=device)
def f(x):
    buffer.mul_(0.9).add_(x)
    return buffer * 2
""",
    "shapes are no values": """
def f(x):
    if x.shape[0] > 2 and x.dim() == 2:
        x = x.reshape(-1)
    return x.softmax(0)
""",
    "a backward through a fork": """
side = cuda.Stream()
p = nn.Parameter(torch.ones(4, 4, device=device))
def f(x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        y = p * x * 2
    z = p + 1
    cuda.current_stream().wait_stream(side)
    (y * z).sum().backward()
""",
    "the parameters before, detached": """
p = nn.Parameter(torch.ones(4, 4, device=device))
before = p.detach().clone()
def f(x):
    p.grad = None
    (p * x).sum().backward()
""",
    "gradients that the loop around sets to zero": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1)
def f(x):
    (p * x).sum().backward()
def train():
    for _ in range(9):
        opt.zero_grad(set_to_none=False)
        f(x)
        opt.step()
""",
    "gradients set to None before the capture alone": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1)
def f(x):
    (p * x).sum().backward()
def train(g):
    for _ in range(3):
        opt.zero_grad()
        (p * x).sum().backward()
        opt.step()
    opt.zero_grad()
    with cuda.graph(g):
        f(x)
    for _ in range(9):
        g.replay()
        opt.step()
""",
    "gradients set to None inside and outside": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1)
def f(x):
    opt.zero_grad()
    (p * x).sum().backward()
def train():
    for _ in range(9):
        p.grad = None
        f(x)
        opt.step()
""",
    "a step with the optimizer inside, and a loop that sets gradients to None": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1)
def f(x):
    (p * x).sum().backward()
    opt.step()
def train():
    for _ in range(9):
        opt.zero_grad()
        f(x)
""",
    "two optimizers": """
maker, judge = nn.Linear(4, 4).to(device), nn.Linear(4, 1).to(device)
first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (maker, judge))
def f(x):
    made = maker(torch.randn_like(x))
    second.zero_grad()
    (F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()).backward()
    second.step()
    first.zero_grad()
    F.softplus(-judge(made)).mean().backward()
    first.step()
""",
    "a convolution's step": """
m = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)).to(device)
opt = torch.optim.Adam(m.parameters(), lr=1e-3, capturable=True)
target = torch.randint(0, 5, (2,), device=device)
inputs = (torch.randn(2, 3, 8, 8, device=device),)
def f(x):
    opt.zero_grad()
    loss = F.cross_entropy(m(x), target)
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    opt.step()
    return loss.detach()
""",
    "a cache that a position on the device fills": """
cache, place = torch.zeros(8, 4, device=device), torch.zeros(1, dtype=torch.long, device=device)
def f(x):
    cache.index_copy_(0, place, x[:1])
    place.add_(1)
    return torch.where((torch.arange(8, device=x.device) < place)[:, None], cache, 0.0).sum()
""",
    "gradients of gradients": """
m = nn.Linear(4, 1).to(device)
def f(x):
    x = x.detach().requires_grad_()
    g, = torch.autograd.grad(m(x).square().sum(), x, create_graph=True)
    return g.square().sum()
""",
    "functions of functions": """
m = nn.Linear(4, 4).to(device)
def f(x):
    g = torch.func.grad(lambda a: m(a).square().sum())(x)
    return torch.vmap(lambda row: row.softmax(0))(g)
""",
    "autocast": """
m = nn.Linear(4, 4).to(device)
def f(x):
    with torch.autocast(device.type, dtype=torch.bfloat16):
        return m(x)
""",
    "a transformer's layer": """
m = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).to(device)
inputs = (torch.randn(2, 3, 4, device=device),)
def f(x):
    return m(x)
""",
    "a file that is read": """
import os
def f(x):
    with open(os.devnull) as file:
        file.read()
    return x * 2
""",
    "checkpoint": """
from torch.utils.checkpoint import checkpoint
m = nn.Linear(4, 4).to(device)
def f(x):
    checkpoint(lambda a: F.dropout(m(a)), x, use_reentrant=False).sum().backward()
""",
}

# Compiled with mode="reduce-overhead", whose reasons Inductor swallows: for a GPU only.
COMPILED = {
    "an argument that a compiled function writes to": """
@torch.compile(mode="reduce-overhead")
def f(x):
    x.add_(1)  # problem: mutated-input
    return x * 2
""",
    "a compiled function that branches on the device": """
@torch.compile(mode="reduce-overhead")
def f(x):
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))  # problem: control-flow
""",
}
LOSES_THE_DEVICE = """
places = torch.full((4,), 99, device=device)
def f(x):
    return x[places] * 2
"""
