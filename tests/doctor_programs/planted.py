"""Functions with planted problems, where nothing is trained."""

from __future__ import annotations

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
    "an argument that is kept": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.older = torch.zeros(4, device=device), None
    def forward(self, x):
        d = x - self.last
        if self.older is not None:
            d = d + self.older
        self.last = x[0]  # problem: stale-input
        self.older = x  # problem: stale-input
        return d
f = Model()
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
def louder():
    k.mul_(2)
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
