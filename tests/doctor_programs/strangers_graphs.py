"""Functions that capture and replay graphs of their own, as strangers write them: lazily, by shape, in decorators."""

from __future__ import annotations

OWN_GRAPHS = {
    "lazy runner keeps its first input": """
class Runner:
    def __init__(self, model): self.model, self.graph = model, None
    def __call__(self, x):
        if self.graph is None:
            self.static_x = x
            s = cuda.Stream(); s.wait_stream(cuda.current_stream())
            with cuda.stream(s):
                for _ in range(2): self.model(self.static_x)
            cuda.current_stream().wait_stream(s)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.static_y = self.model(self.static_x)
        self.graph.replay()  # problem: stale-input
        return self.static_y.clone()
m = nn.Linear(3, 2).to(device).eval().requires_grad_(False)
f = Runner(m)
inputs = (torch.randn(4, 3, device=device),)
""",
    "lazy runner done right": """
class Runner:
    def __init__(self, model): self.model, self.graph = model, None
    def __call__(self, x):
        if self.graph is None:
            self.static_x = torch.empty_like(x)
            s = cuda.Stream(); s.wait_stream(cuda.current_stream())
            with cuda.stream(s):
                for _ in range(2): self.model(self.static_x)
            cuda.current_stream().wait_stream(s)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.static_y = self.model(self.static_x)
        self.static_x.copy_(x)
        self.graph.replay()
        return self.static_y.clone()
m = nn.Linear(3, 2).to(device).eval().requires_grad_(False)
f = Runner(m)
inputs = (torch.randn(4, 3, device=device),)
""",
    "static input is a local that dies": """
graphs = {}
m = nn.Linear(3, 2).to(device).eval().requires_grad_(False)
inputs = (torch.randn(4, 3, device=device),)
def run(x):
    key = tuple(x.shape)
    if key not in graphs:
        buf = x.clone()
        m(buf)
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            y = m(buf)  # problem: freed-input
        graphs[key] = (g, y)
    g, y = graphs[key]
    g.replay()  # problem: stale-input
    return y.clone()
f = run
""",
    "results in a list in a loop outside": """
class G:
    def __init__(self):
        self.sx = torch.zeros(4, 3, device=device); self.g = None
        self.lin = nn.Linear(3, 2).to(device).requires_grad_(False)
    def run(self, x):
        self.sx.copy_(x)
        if self.g is None:
            self.lin(self.sx)
            self.g = cuda.CUDAGraph()
            with cuda.graph(self.g):
                self.sy = self.lin(self.sx)
        self.g.replay()
        return self.sy
r = G()
def main():
    outs = []
    for i in range(3):
        outs.append(r.run(torch.randn(4, 3, device=device)))  # problem: output-alias
    return outs
f = r.run
inputs = (torch.randn(4, 3, device=device),)
""",
    "decorator that graphs a function": """
import functools
def graphed(fn):
    state = {}
    @functools.wraps(fn)
    def wrapper(*xs):
        if not state:
            state["in"] = [x.clone() for x in xs]
            fn(*state["in"])
            state["g"] = cuda.CUDAGraph()
            with cuda.graph(state["g"]):
                state["out"] = fn(*state["in"])
        for s, x in zip(state["in"], xs): s.copy_(x)
        state["g"].replay()
        return state["out"].clone()
    return wrapper
@graphed
def f(a, b):
    return (a @ b).relu()
inputs = (torch.randn(3, 3, device=device), torch.randn(3, 3, device=device))
""",
    "decorator that copies only the first argument": """
import functools
def graphed(fn):
    state = {}
    @functools.wraps(fn)
    def wrapper(*xs):
        if not state:
            state["in"] = [x.clone() for x in xs]
            fn(*state["in"])
            state["g"] = cuda.CUDAGraph()
            with cuda.graph(state["g"]):
                state["out"] = fn(*state["in"])
        state["in"][0].copy_(xs[0])
        state["g"].replay()  # problem: stale-input
        return state["out"].clone()
    return wrapper
@graphed
def f(a, b):
    return (a @ b).relu()
inputs = (torch.randn(3, 3, device=device), torch.randn(3, 3, device=device))
""",
    "training step with own graph and static batch": """
class Step:
    def __init__(self):
        self.net = nn.Linear(3, 1).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.sx = torch.zeros(4, 3, device=device)
        self.graph = None
    def eager(self):
        self.opt.zero_grad(set_to_none=True)
        loss = self.net(self.sx).square().mean()
        loss.backward()
        self.opt.step()
        return loss
    def __call__(self, x):
        self.sx.copy_(x)
        if self.graph is None:
            s = cuda.Stream(); s.wait_stream(cuda.current_stream())
            with cuda.stream(s):
                for _ in range(3): self.eager()
            cuda.current_stream().wait_stream(s)
            self.graph = cuda.CUDAGraph()
            self.opt.zero_grad(set_to_none=True)
            with cuda.graph(self.graph):
                self.loss = self.eager()
        self.graph.replay()
        return self.loss.detach().clone()
f = Step()
inputs = (torch.randn(4, 3, device=device),)
""",
    "runner object kept outputs at module level": """
class G:
    def __init__(self):
        self.sx = torch.zeros(4, 3, device=device); self.g = None
        self.lin = nn.Linear(3, 2).to(device).requires_grad_(False)
    def __call__(self, x):
        self.sx.copy_(x)
        if self.g is None:
            self.lin(self.sx)
            self.g = cuda.CUDAGraph()
            with cuda.graph(self.g):
                self.sy = self.lin(self.sx)
        self.g.replay()
        return self.sy
f = G()
inputs = (torch.randn(4, 3, device=device),)
outs = []
for i in range(3):
    outs.append(f(torch.randn(4, 3, device=device)))  # problem: output-alias
f.g = None
""",
    "capture in a try with an item inside": """
class T:
    def __init__(self): self.g = None
    def __call__(self, x):
        if self.g is None:
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                self.y = x / x.sum().item()  # problem: sync-item
            self.g = g
        self.g.replay()
        return self.y
f = T()
inputs = (torch.randn(3, device=device),)
""",
    "captured again for every call": """
def f(x):
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = x * 2
    g.replay()
    return y
inputs = (torch.randn(3, device=device),)
""",
    "input rebound as attribute before each replay": """
class S:
    def __init__(self): self.g = None
    def __call__(self, x):
        self.x = x
        if self.g is None:
            self.g = cuda.CUDAGraph()
            with cuda.graph(self.g):
                self.y = self.x.relu()
        self.g.replay()  # problem: stale-input
        return self.y.clone()
f = S()
inputs = (torch.randn(3, device=device),)
""",
    "model runner with dict of batch sizes and padding, copies right": """
class DecodeRunner:
    sizes = (1, 2, 4)
    def __init__(self, model):
        self.model, self.graphs = model, {}
        self.ids = torch.zeros(4, dtype=torch.long, device=device)
        self.out = torch.zeros(4, 5, device=device)
    @torch.inference_mode()
    def capture(self, bs):
        self.out[:bs] = self.model(self.ids[:bs])
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            self.out[:bs] = self.model(self.ids[:bs])
        self.graphs[bs] = g
    @torch.inference_mode()
    def __call__(self, ids):
        n = ids.size(0)
        bs = next(s for s in self.sizes if s >= n)
        if bs not in self.graphs: self.capture(bs)
        self.ids[:n].copy_(ids)
        self.graphs[bs].replay()
        return self.out[:n].clone()
model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5)).to(device)
f = DecodeRunner(model)
inputs = (torch.tensor([1, 2, 3], device=device),)
""",
    "two inputs, positions are never copied": """
class R:
    def __init__(self):
        self.e, self.p = nn.Embedding(9, 4).to(device), nn.Embedding(9, 4).to(device)
        self.graph = None
    @torch.no_grad()
    def step(self, ids, pos):
        if self.graph is None:
            self.ids, self.pos = ids.clone(), pos.clone()
            self.e(self.ids) + self.p(self.pos)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.e(self.ids) + self.p(self.pos)
        self.ids.copy_(ids)
        self.graph.replay()  # problem: stale-input
        return self.out.clone()
r = R()
f = r.step
inputs = (torch.tensor([1, 2], device=device), torch.tensor([0, 1], device=device))
""",
    "begin and end by hand, static input reassigned": """
class H:
    def __init__(self):
        self.g = cuda.CUDAGraph(); self.done = False; self.s = cuda.Stream()
    def __call__(self, x):
        self.inp = x.contiguous()
        if not self.done:
            self.s.wait_stream(cuda.current_stream())
            with cuda.stream(self.s):
                self.g.capture_begin()
                self.out = self.inp * 2 + 1
                self.g.capture_end()
            cuda.current_stream().wait_stream(self.s)
            self.done = True
        self.g.replay()  # problem: stale-input
        return self.out.clone()
f = H()
inputs = (torch.randn(3, device=device),)
""",
    "replay then host postprocess of static output": """
class K:
    def __init__(self): self.g = None
    def __call__(self, x):
        if self.g is None:
            self.x = x.clone(); self.x.topk(2)
            self.g = cuda.CUDAGraph()
            with cuda.graph(self.g):
                self.v, self.i = self.x.topk(2)
        self.x.copy_(x)
        self.g.replay()
        return self.i.tolist()
f = K()
inputs = (torch.randn(5, device=device),)
""",
}
