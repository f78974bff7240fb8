"""Programs that are no functions: cells of a notebook, captures by hand, and what was compiled; marked like functions.

What stands before ``# cell:`` was run in an earlier cell.
"""

from __future__ import annotations

CELLS = {
    "a cell with AdamW, item, print and numpy": """
net = nn.Linear(3, 1).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
x = torch.randn(4, 3, device=device)
# cell:
opt.zero_grad()
loss = net(x).pow(2).mean()
loss.backward()
opt.step()  # problem: optimizer-not-capturable
value = loss.item()  # problem: sync-item
print(loss)  # problem: print
arr = net.weight.detach().cpu().numpy()  # problem: copy-to-cpu
""",
    "a cell with a loop over batches": """
net = nn.Linear(3, 1).to(device)
data = torch.randn(6, 3)
# cell:
total = 0.0
for i in range(3):
    xb = data[2 * i:2 * i + 2].to(device)  # problem: copy-to-gpu
    total += net(xb).sum().item()  # problem: sync-item
total
""",
    "a cell that defines a function and calls it": """
x = torch.randn(4, device=device)
# cell:
def norm(v):
    return v / v.norm().item()  # problem: sync-item
y = norm(x)
y
""",
    "a cell of one call of an earlier function": """
x = torch.randn(4, device=device)
def g(v):
    return v[v > 0].mean()  # problem: dynamic-shape
# cell:
out = g(x)
""",
    "a clean cell": """
x = torch.randn(4, 4, device=device)
w = torch.randn(4, 4, device=device)
# cell:
y = F.relu(x @ w)
z = y.softmax(-1)
z
""",
    "a cell with a class and a comprehension": """
x = torch.randn(4, device=device)
# cell:
class Head(nn.Module):
    def forward(self, v):
        return {k: float(getattr(v, k)()) for k in ("min", "max")}  # problem: sync-item
head = Head()
head(x)
""",
    "a cell with an inline if on tensors and an assert": """
x = torch.randn(4, device=device)
# cell:
assert torch.isfinite(x).all()  # problem: data-dependent-branch
y = x * 2 if x.sum() > 0 else x  # problem: data-dependent-branch
""",
    "a cell that appends to a list from an earlier cell": """
x = torch.randn(4, device=device)
losses = []
# cell:
y = (x * 2).sum()
losses.append(y)  # problem: output-alias
""",
    "a cell that counts epochs and scales by it": """
x = torch.randn(4, device=device)
epoch = 0
# cell:
epoch += 1  # problem: host-counter
y = x * epoch  # problem: scalar-frozen
""",
    "a cell with a magic in it": """
x = torch.randn(4, device=device)
# cell:
%time y = x * 2
n = y.sum().item()  # problem: sync-item
""",
    "a cell with %%time below": """
x = torch.randn(4, device=device)
# cell:
import math
def f(a):
    b = a.tolist()  # problem: copy-to-cpu
    return math.fsum(b)
s = f(x)
y = x + s
""",
    "a cell with a lambda and a with block": """
net = nn.Linear(3, 2).to(device)
x = torch.randn(4, 3, device=device)
# cell:
probe = lambda t: t.abs().max().item()  # problem: sync-item
with torch.no_grad():
    y = net(x)
    m = probe(y)
""",
    "a cell that calls a compiled function": """
x = torch.randn(4, device=device)
def _k(v):
    return v * v.sum().item()  # problem: sync-item
k = torch.compile(_k, backend="eager")
# cell:
k(x)
""",
    "a clean training cell with capturable Adam": """
net = nn.Linear(3, 1).to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=True)
x = torch.randn(4, 3, device=device)
# cell:
opt.zero_grad()
loss = net(x).pow(2).mean()
loss.backward()
opt.step()
loss
""",
    "a cell whose bar formats a loss": """
x = torch.randn(4, device=device)
# cell:
loss = x.square().mean()
status = f"{loss:.4f}"  # problem: print
""",
    "a cell that only plots numbers of a tensor": """
x = torch.randn(4, device=device)
# cell:
points = [(i, v.item()) for i, v in enumerate(x)]  # problem: sync-item
""",
    "a cell that times a wait": """
x = torch.randn(4, device=device)
# cell:
y = x * 2
%time n = y.sum().item()  # problem: sync-item
""",
    "a cell with timeit": """
x = torch.randn(4, device=device)
# cell:
y = x * 2
%timeit -n 1 -r 1 y.tolist()  # problem: copy-to-cpu
""",
}

BY_HAND = {
    "capture of an item inside a helper": """
x = torch.randn(4, device=device)
def stat(t):
    return t.mean().item()  # problem: sync-item
g = cuda.CUDAGraph()
with cuda.graph(g):
    y = x * 2
    z = y - stat(y)
""",
    "capture in a try that logs and re-raises from": """
x = torch.randn(4, device=device)
g = cuda.CUDAGraph()
try:
    with cuda.graph(g):
        y = x * 2
        y = y[y > 0]  # problem: dynamic-shape
except Exception as e:
    raise RuntimeError("graph capture failed, falling back") from e
""",
    "capture where the print comes from a decorator": """
import functools
def verbose(fn):
    @functools.wraps(fn)
    def inner(*a):
        out = fn(*a)
        print(fn.__name__, out)  # problem: print
        return out
    return inner
@verbose
def act(x):
    return x.relu()
x = torch.randn(4, device=device)
g = cuda.CUDAGraph()
with cuda.graph(g):
    act(x)
""",
    "capture with a forgotten join": """
x = torch.randn(4, device=device)
s = cuda.Stream()
g = cuda.CUDAGraph()
with cuda.graph(g):
    s.wait_stream(cuda.current_stream())
    with cuda.stream(s):
        y = x * 2  # problem: unjoined-work
    z = x + 1
""",
    "capture of a training step with plain Adam": """
net = nn.Linear(3, 1).to(device)
opt = torch.optim.Adam(net.parameters())
x = torch.randn(4, 3, device=device)
s = cuda.Stream()
s.wait_stream(cuda.current_stream())
with cuda.stream(s):
    for _ in range(3):
        opt.zero_grad(set_to_none=True)
        net(x).sum().backward()
        opt.step()
cuda.current_stream().wait_stream(s)
g = cuda.CUDAGraph()
opt.zero_grad(set_to_none=True)
with cuda.graph(g):
    net(x).sum().backward()
    opt.step()  # problem: optimizer-not-capturable
""",
    "capture in a context manager of one's own": """
from contextlib import contextmanager
@contextmanager
def captured(graph):
    with cuda.graph(graph):
        yield graph
x = torch.randn(4, device=device)
with captured(cuda.CUDAGraph()):
    a = x.sum()
    b = x / a
    idx = torch.tensor([0, 2], device=device)  # problem: tensor-literal
    c = b[idx]
""",
    "capture via a class with begin and end by hand": """
class Runner:
    def __init__(self):
        self.g = cuda.CUDAGraph()
        self.s = cuda.Stream()
    def record(self, fn, x):
        with cuda.stream(self.s):
            self.g.capture_begin()
            try:
                out = fn(x)
            finally:
                self.g.capture_end()
        return out
def body(x):
    return x / x.abs().max().cpu()  # problem: copy-to-cpu
Runner().record(body, torch.randn(4, device=device))
""",
    "capture of a lambda from a dictionary of ops": """
ops = {
    "norm": lambda t: t / t.norm(),
    "clip": lambda t: t.clamp(max=float(t.quantile(0.9))),  # problem: sync-item
}
x = torch.randn(4, device=device)
with cuda.graph(cuda.CUDAGraph()):
    for name, op in ops.items():
        x = op(x)
""",
    "capture with a blocking copy to pinned memory": """
x = torch.randn(4, device=device)
host = torch.empty(4).pin_memory()
g = cuda.CUDAGraph()
with cuda.graph(g):
    y = x * 2
    host.copy_(y)  # problem: blocking-copy
""",
    "capture around a generator of one's own": """
gen = torch.Generator(device=device)
gen.manual_seed(0)
x = torch.randn(4, device=device)
with cuda.graph(cuda.CUDAGraph()):
    y = x + torch.rand(4, device=device, generator=gen)  # problem: unregistered-generator
""",
    "capture of synchronize in __exit__ of a timer": """
class Timer:
    def __enter__(self):
        self.t = time.time(); return self
    def __exit__(self, *exc):
        cuda.synchronize()  # problem: synchronize
        self.dt = time.time() - self.t
x = torch.randn(4, device=device)
x @ x
with cuda.graph(cuda.CUDAGraph()):
    with Timer():
        y = x @ x
""",
    "capture that swallows the first error": """
x = torch.randn(4, device=device)
with cuda.graph(cuda.CUDAGraph()):
    try:
        n = int(x.sum())
    except Exception:
        n = 1
    y = x * n  # problem: invalidated
""",
    "capture on a warm stream with an eager event from outside": """
x = torch.randn(4, device=device)
ev = cuda.Event()
x.add_(1)
ev.record()
with cuda.graph(cuda.CUDAGraph()):
    cuda.current_stream().wait_event(ev)  # problem: isolation
    y = x * 2
""",
    "second capture into the same graph": """
x = torch.randn(4, device=device)
g = cuda.CUDAGraph()
with cuda.graph(g):
    y = x * 2
with cuda.graph(g):  # problem: graph-has-capture
    y = x * 3
""",
    "linear algebra in a nested comprehension": """
ms = torch.eye(3, device=device).repeat(2, 1, 1)
torch.linalg.inv(ms[0])
with cuda.graph(cuda.CUDAGraph()):
    inv = [torch.linalg.inv(m) for m in ms]  # problem: linalg-check
""",
    "a module on the CPU by mistake": """
net = nn.Linear(3, 2)
x = torch.randn(4, 3, device=device)
with cuda.graph(cuda.CUDAGraph()):
    y = net(x)  # problem: mixed-devices
""",
    "make_graphed_callables on a module with a bool branch": """
class B(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
    def forward(self, x):
        y = self.l(x)
        if y.mean() > 0:  # problem: data-dependent-branch
            y = y * 2
        return y
m = B().to(device)
cuda.make_graphed_callables(m, (torch.randn(2, 3, device=device),))
""",
}

# With the name that is compiled, which is called with ``args``.
COMPILED = {
    "a compiled module with a mask index -> model": """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
    def forward(self, x):
        y = self.l(x)
        return y[y > 0].sum()  # problem: dynamic-shape
model = torch.compile(M().to(device), backend="eager")
args = (torch.randn(4, 3, device=device),)
""",
    "a compiled block without a problem, clean -> block": """
block = torch.compile(nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 3)).to(device), backend="paramgraph")
args = (torch.randn(4, 3, device=device),)
""",
    "a compiled function reads a table of the host -> g": """
table = torch.linspace(0, 1, 4)
def _g(x):
    t = table.to(x.device)  # problem: copy-to-gpu
    return x * t
g = torch.compile(_g, backend="paramgraph")
args = (torch.randn(4, device=device),)
""",
}
