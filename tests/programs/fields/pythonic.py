# %% a dataclass as configuration and state -> update
from dataclasses import dataclass, field
@dataclass
class TrainState:
    step: int = 0
    ema_loss: float = 0.0
    best: float = float("inf")

state = TrainState()
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device),)

def update(x):
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    state.step += 1  #- expect: host-counter
    state.ema_loss = 0.9 * state.ema_loss + 0.1 * loss.item()  #- expect: sync-item may: host-counter
    if (value := loss.item()) < state.best:  #- expect: sync-item|data-dependent-branch
        state.best = value  #- may: host-counter
    return loss.detach()
#+ def after(loss, i):
#+     state.step += 1
#+     state.ema_loss = 0.9 * state.ema_loss + 0.1 * loss.item()
#+     if (value := loss.item()) < state.best:
#+         state.best = value
# %% match on a mode, clean -> forward
mode = "gelu"
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def forward(x):
    match mode:
        case "gelu":
            return F.gelu(lin(x))
        case "relu":
            return F.relu(lin(x))
        case _:
            raise ValueError(mode)
# %% match on a phase that turns with the calls -> step
phase, calls = "warm", 0
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def step(x):
    global phase, calls  #-
    calls += 1  #- expect: host-counter
    phase = "warm" if calls <= 3 else "hot"  #- may: host-counter branch-frozen
    match phase:  #- expect: branch-frozen
        case "warm":  #- may: branch-frozen
            return lin(x) * 0.5  #- may: scalar-frozen branch-frozen
        case "hot":  #- may: branch-frozen
            return lin(x)  #-
    #+ return lin(x) * scale
#+ scale = torch.full((), 0.5, device=device)
#+ def feed(i):
#+     global phase, calls
#+     calls = i + 1
#+     phase = "warm" if calls <= 3 else "hot"
#+     scale.fill_(0.5 if phase == "warm" else 1.0)
#+     return (torch.randn(2, 4, generator=torch.Generator().manual_seed(i)).to(device),)
ignore = {"result"}
# %% a property that reads the device -> forward
class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_t = nn.Parameter(torch.zeros(()))
    @property
    def value(self):
        return self.log_t.exp().item()  #- expect: sync-item
        #+ return self.log_t.exp()
    def forward(self, logits):
        return logits / self.value  # may: scalar-frozen

temp = Temperature().to(device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def forward(logits):
    return temp(logits).softmax(-1)
# %% cached masks by functools.lru_cache -> attend
import functools
@functools.lru_cache(maxsize=None)
def causal_mask(n):
    return torch.triu(torch.full((n, n), float("-inf"), device=device), diagonal=1)
args = (torch.randn(1, 4, 8, device=device),)

def attend(x):
    scores = x @ x.transpose(1, 2) / math.sqrt(x.size(-1))
    return (scores + causal_mask(x.size(1))).softmax(-1) @ x
# %% a generator of chunks, clean -> forward
lin = nn.Linear(4, 4).to(device)
def chunks(x, n):
    for start in range(0, x.size(0), n):
        yield x[start:start + n]
args = (torch.randn(6, 4, device=device),)

@torch.no_grad()
def forward(x):
    return torch.cat([lin(c) for c in chunks(x, 2)])
# %% an outer generator of temperatures -> sample
def temperatures():
    t = 1.0
    while True:
        yield t
        t *= 0.9
schedule = temperatures()
args = (torch.randn(2, 5, device=device),)
#+ t_in = torch.ones((), device=device)

def sample(logits):
    t = next(schedule)  #- may: host-counter
    return (logits / t).softmax(-1)  #- expect: scalar-frozen
    #+ return (logits / t_in).softmax(-1)
#+ def feed(i):
#+     t_in.fill_(next(schedule))
#+     return (torch.randn(2, 5, generator=torch.Generator().manual_seed(i)).to(device),)
ignore = {"result", "t_in"}
# %% a context manager that counts and times -> infer
from contextlib import contextmanager
class Meter:
    def __init__(self):
        self.count, self.total = 0, 0.0
meter = Meter()
@contextmanager
def measure(m):
    t0 = time.time()
    try:
        yield
    finally:
        cuda.current_stream().synchronize()  #- expect: synchronize
        m.count += 1  #- expect: host-counter
        m.total += time.time() - t0  #- may: host-counter
        #+ pass
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def infer(x):
    with measure(meter):  #-
        return lin(x)  #-
    #+ return lin(x)
#+ def after(out, i):
#+     meter.count += 1
# %% functools.partial of a loss with reduction -> loss_step
from functools import partial
huber = partial(F.huber_loss, delta=0.5, reduction="sum")
model = nn.Linear(4, 1).to(device)
args = (torch.randn(4, 4, device=device), torch.randn(4, 1, device=device))

def loss_step(x, y):
    model.zero_grad()
    loss = huber(model(x), y)
    loss.backward()
    return loss.detach(), model.weight.grad.clone()
# %% a callable class with __slots__ and a step number -> schedule_and_mix
class LinearRamp:
    __slots__ = ("step", "end")
    def __init__(self, end):
        self.step, self.end = 0, end
    def __call__(self):
        self.step += 1  # expect: host-counter
        return min(1.0, self.step / self.end)

ramp = LinearRamp(20)
args = (torch.randn(3, device=device), torch.randn(3, device=device))
#+ w_in = torch.zeros((), device=device)

def schedule_and_mix(a, b):
    w = ramp()  #- may: host-counter
    return torch.lerp(a, b, w)  #- expect: scalar-frozen
    #+ return torch.lerp(a, b, w_in)
#+ def feed(i):
#+     w_in.fill_(ramp())
#+     g = torch.Generator().manual_seed(i)
#+     return torch.randn(3, generator=g).to(device), torch.randn(3, generator=g).to(device)
ignore = {"result", "w_in"}
# %% try and except around a factorization -> precondition
args = (torch.eye(3, device=device) * 2 + 0.1,)
def feed(i):
    return (torch.eye(3).mul(2 + i / 4).to(device),)

def precondition(cov):
    try:
        L = torch.linalg.cholesky(cov)  #- expect: linalg-check
        #+ L = torch.linalg.cholesky_ex(cov)[0]
    except RuntimeError:
        L = torch.linalg.cholesky(cov + 1e-3 * torch.eye(3, device=cov.device))
    return L @ L.T
# %% an exception of CUDA swallowed by a bare except -> metric
fallback = 0.0
lin = nn.Linear(3, 1).to(device)
args = (torch.randn(4, 3, device=device),)

@torch.no_grad()
def metric(x):
    y = lin(x)
    try:
        value = float(y.mean())  #- expect: sync-item
        #+ value = y.mean()
    except Exception:
        value = fallback
    return y - value
# %% sorted by a key that reads values -> order
args = (torch.randn(4, device=device),)

def order(scores):
    ranked = sorted(range(4), key=lambda j: scores[j].item())  #- expect: sync-item
    return torch.stack([scores[j] for j in ranked])  #- may: branch-frozen scalar-frozen size-frozen
    #+ return scores.sort().values
# %% any() and all() over tensors -> check
args = (torch.randn(2, 3, device=device), torch.randn(2, 3, device=device))

def check(a, b):
    tensors = (a, b)
    if any(t.isnan().any() for t in tensors):  #- expect: data-dependent-branch
        a = torch.zeros_like(a)  #-
    #+ bad = torch.stack([t.isnan().any() for t in tensors]).any()
    #+ a = torch.where(bad, torch.zeros_like(a), a)
    return a + b
# %% async server handler around one forward, clean -> handle
model = nn.Linear(4, 2).to(device)
args = (torch.randn(1, 4, device=device),)
def handle(x):
    async def inner():
        with torch.inference_mode():
            return model(x).argmax(-1)
    coroutine = inner()
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
