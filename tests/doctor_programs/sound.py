"""Functions without a problem: whatever the doctor finds in one is wrong."""

from __future__ import annotations

SOUND = {
    "a replay of a graph of before": """
g = cuda.CUDAGraph()
with cuda.graph(g):
    y = x + 1
def f(x):
    g.replay()
    return y * 2
""",
    "an argument that is kept until the call ends": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.x, self.seen = torch.zeros(3, device=device), None
    def inner(self):
        return self.x * 2
    def forward(self, x):
        self.x = x
        y = self.inner()
        self.seen = x
        return y
f = Model()
""",
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
