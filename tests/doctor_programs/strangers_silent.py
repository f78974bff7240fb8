"""Functions whose problems nobody raises, as strangers write them: what the host draws, counts and keeps."""

from __future__ import annotations

SILENT_STRANGE = {
    "scheduled sampling with a coin per step": """
cell = nn.GRUCell(3, 3).to(device)
head = nn.Linear(3, 3).to(device)
inputs = (torch.randn(4, 2, 3, device=device),)
@torch.no_grad()
def f(seq, teacher=0.5):
    h = torch.zeros(2, 3, device=device)
    inp = seq[0]
    outs = []
    for t in range(1, seq.size(0)):
        h = cell(inp, h)
        out = head(h)
        outs.append(out)
        use_teacher = random.random() < teacher
        inp = seq[t] if use_teacher else out  # problem: branch-frozen
    return torch.stack(outs)
""",
    "stochastic depth through functools.partial": """
from functools import partial
def drop_path(x, p, training):
    if training and random.random() < p:  # problem: branch-frozen
        return torch.zeros_like(x)
    return x
class Block(nn.Module):
    def __init__(self, d, p):
        super().__init__()
        self.l = nn.Linear(d, d)
        self.drop = partial(drop_path, p=p)
    def forward(self, x):
        return x + self.drop(self.l(x), training=self.training)
model = nn.Sequential(*[Block(4, 0.5) for _ in range(3)]).to(device)
inputs = (torch.randn(2, 4, device=device),)
f = model
""",
    "logger callback list with lambda": """
logs = []
callbacks = [lambda step, loss: logs.append((step, loss.detach())),]  # problem: output-alias
class State: step = 0
st = State()
net = nn.Linear(3, 1).to(device)
inputs = (torch.randn(4, 3, device=device),)
def f(x):
    loss = net(x).square().mean()
    for cb in callbacks:
        cb(st.step, loss)
    st.step += 1  # problem: host-counter
    return loss
""",
    "trainer with callbacks and early stopping": """
class Callback:
    def on_step_end(self, trainer, loss): ...
class EarlyStop(Callback):
    def __init__(self): self.best = float("inf"); self.bad = 0
    def on_step_end(self, trainer, loss):
        if loss < self.best:  # problem: data-dependent-branch
            self.best = loss.item()  # problem: sync-item
            self.bad = 0
        else:
            self.bad += 1  # problem: host-counter
        trainer.stop = self.bad > 5
class Trainer:
    def __init__(self, model, cbs):
        self.model, self.cbs, self.stop = model, cbs, False
        self.opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    def step(self, x, y):
        self.opt.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.opt.step()
        for cb in self.cbs: cb.on_step_end(self, loss.detach())
        return loss
tr = Trainer(nn.Linear(3, 1).to(device), [EarlyStop()])
inputs = (torch.randn(4, 3, device=device), torch.randn(4, 1, device=device))
f = tr.step
""",
    "a cached function of one tensor": """
from functools import lru_cache
@lru_cache(maxsize=None)
def f(x):
    return x / x.abs().max().item()  # problem: sync-item
""",
    "warmup flag by attribute on the function": """
net = nn.Linear(3, 3).to(device)
inputs = (torch.randn(4, 3, device=device),)
def f(x):
    f.calls = getattr(f, "calls", 0) + 1  # problem: host-counter
    if f.calls > 5:  # problem: branch-frozen
        return net(x).relu()
    return net(x)
""",
}
