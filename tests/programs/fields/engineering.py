# %% a context manager that times with events -> forward
from contextlib import contextmanager
timings = {}
@contextmanager
def timer(name):
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    yield
    end.record()
    end.synchronize()  #- expect: synchronize|captured-event
    timings[name] = start.elapsed_time(end)  #- expect: query|timed-event|captured-event may: host-counter

model = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)
ignore = {"timings"}

@torch.no_grad()
def forward(x):
    with timer("forward"):  #-
        y = model(x)  #-
    #+ y = model(x)
    return y.relu()
# %% peak memory by memory_stats -> train_step
memory = []
model = nn.Linear(4, 1).to(device)
args = (torch.randn(4, 4, device=device),)
ignore = {"memory"}

def train_step(x):
    loss = model(x).square().mean()
    memory.append(cuda.memory_stats().get("allocated_bytes.all.peak", 0))  #- expect: host-counter
    return loss.detach()
# %% two towers in a thread pool -> embed
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)
towers = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)]).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def embed(x):
    a, b = pool.map(lambda tower: tower(x), towers)  #- expect: work-elsewhere|default-stream|not-forked|legacy-launch
    #+ a, b = map(lambda tower: tower(x), towers)
    return a @ b.T
# %% a coroutine behind a call -> handle
import asyncio
model = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

async def predict(x):
    await asyncio.sleep(0)
    return model(x)

@torch.no_grad()
def handle(x):
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(predict(x))
    finally:
        loop.close()
# %% chunks from a generator, through partials and lambdas -> forward
from functools import partial
ops = [partial(torch.add, other=1.0), lambda t: t * 2, torch.relu, nn.Linear(4, 4).to(device)]
args = (torch.randn(4, 4, device=device),)

def chunks(x, n):
    for piece in x.chunk(n):
        yield piece

@torch.no_grad()
def forward(x):
    outs = []
    for piece in chunks(x, 2):
        for op in ops:
            piece = op(piece)
        outs.append(piece)
    return torch.cat(outs)
# %% a mask that a property makes once -> forward
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self._mask = nn.Linear(4, 4), None
    @property
    def mask(self):
        if self._mask is None:
            self._mask = torch.tril(torch.ones(3, 3, device=device)).bool()
        return self._mask
    def forward(self, x):
        scores = self.proj(x) @ x.transpose(-1, -2)
        return scores.masked_fill(~self.mask, -float("inf")).softmax(-1) @ x

attention = Attention().to(device)
args = (torch.randn(2, 3, 4, device=device),)

@torch.no_grad()
def forward(x):
    return attention(x)
# %% a table that a cache keeps by its size -> forward
from functools import lru_cache
@lru_cache(maxsize=None)
def positions(n):
    return torch.arange(n, device=device)[:, None] - torch.arange(n, device=device)[None]

bias = nn.Embedding(9, 1).to(device)
args = (torch.randn(5, 5, device=device),)

@torch.no_grad()
def forward(scores):
    return scores + bias(positions(scores.size(0)) + 4).squeeze(-1)
# %% a lazy layer, made at the first call -> forward
net = nn.Sequential(nn.Flatten(), nn.LazyLinear(3), nn.ReLU())
net(torch.zeros(1, 2, 2))
net.to(device)
args = (torch.randn(2, 2, 2, device=device),)

@torch.no_grad()
def forward(x):
    return net(x)
# %% spectral normalization -> train_step
critic = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).to(device)
opt = torch.optim.SGD(critic.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device),)

def train_step(x):
    loss = critic(x).relu().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% try a factorization, and try again with jitter -> whiten
args = (torch.randn(8, 3, device=device),)

def whiten(x):
    cov = x.T @ x / len(x) + 0.1 * torch.eye(3, device=x.device)
    try:  #-
        L = torch.linalg.cholesky(cov)  #- expect: linalg-check
    except torch.linalg.LinAlgError:  #-
        L = torch.linalg.cholesky(cov + 1e-3 * torch.eye(3, device=x.device))  #-
    #+ L, info = torch.linalg.cholesky_ex(cov)
    #+ again, _ = torch.linalg.cholesky_ex(cov + 1e-3 * torch.eye(3, device=x.device))
    #+ L = torch.where(info > 0, again, L)
    return torch.linalg.solve_triangular(L, x.T, upper=False)
# %% a state that a named tuple hands on -> step
from typing import NamedTuple
class State(NamedTuple):
    momentum: torch.Tensor
    count: int

state = State(torch.zeros(4, device=device), 0)  #-
#+ momentum, count = torch.zeros(4, device=device), torch.zeros((), device=device)
args = (torch.randn(4, device=device),)
ignore = {"state", "momentum", "count"}

def step(grad):
    global state  #-
    momentum = 0.9 * state.momentum + grad  #- expect: stale-input
    state = State(momentum, state.count + 1)  #- expect: host-counter|stale-input may: host-counter stale-input output-alias
    return momentum / (1 - 0.9**state.count)  #- expect: scalar-frozen
    #+ momentum.mul_(0.9).add_(grad)
    #+ count.add_(1)
    #+ return momentum / (1 - 0.9**count)
# %% a step size in a closure's variable -> step
def make_step():
    calls = 0  #-
    #+ calls = torch.zeros((), device=device)
    def step(x):
        nonlocal calls  #-
        calls += 1  #- expect: host-counter
        return x / math.sqrt(calls)  #- expect: scalar-frozen
        #+ calls.add_(1)
        #+ return x / calls.sqrt()
    return step

step = make_step()
args = (torch.randn(4, device=device),)
# %% a copy stream with record_stream, forked and joined -> forward
side = cuda.Stream()
a, b = nn.Linear(4, 4).to(device), nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def forward(x):
    here = cuda.current_stream()
    side.wait_stream(here)
    with cuda.stream(side):
        left = a(x)
    right = b(x)
    here.wait_stream(side)
    left.record_stream(here)
    return left + right
# %% a function that was compiled before -> forward
def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))

fast_gelu = torch.compile(gelu, backend="eager")
args = (torch.randn(2, 4, device=device),)
fast_gelu(*args)

@torch.no_grad()
def forward(x):
    return fast_gelu(x)
# %% convolutions under cuDNN's benchmark -> forward
torch.backends.cudnn.benchmark = True
net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 1, 1)).to(device).eval()
args = (torch.randn(1, 1, 6, 6, device=device),)

@torch.inference_mode()
def forward(x):
    return net(x)
torch.backends.cudnn.benchmark = False
# %% assertions on labels and on results -> train_step
model = nn.Linear(4, 3).to(device)
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))

def train_step(x, y):
    assert y.min() >= 0 and y.max() < 3, f"labels out of range: {y}"  #- expect: data-dependent-branch
    logits = model(x)
    assert not torch.isnan(logits).any(), "NaN in the logits"  #- expect: data-dependent-branch
    return F.cross_entropy(logits, y)
# %% an observer that is a dataclass with a method that moves its device -> forward
from dataclasses import dataclass, field
@dataclass
class Normalizer:
    shift: list = field(default_factory=lambda: [0.5, 0.25])
    scale: torch.Tensor = field(default_factory=lambda: torch.tensor([2.0, 4.0]))
    #+ def __post_init__(self):
    #+     self.shift, self.scale = torch.tensor(self.shift).to(device), self.scale.to(device)
    def __call__(self, x):
        shift = x.new_tensor(self.shift)  #- expect: tensor-literal|copy-to-gpu
        #+ shift = self.shift
        return (x - shift) * self.scale.to(x.device)  # expect: copy-to-gpu

normalizer = Normalizer()
args = (torch.randn(3, 2, device=device),)

def forward(x):
    return normalizer(x)
# %% collect garbage now and then -> train_step
import gc
calls = 0
model = nn.Linear(4, 1).to(device)
args = (torch.randn(4, 4, device=device),)

def train_step(x):
    global calls  #-
    loss = model(x).square().mean()
    calls += 1  #- expect: host-counter
    if calls % 50 == 0:  #- expect: branch-frozen
        gc.collect()  #-
    return loss.detach()
#+ def after(loss, i):
#+     global calls
#+     calls += 1
# %% the weights' norm kept by a method with a list of handles -> forward
class Watcher:
    def __init__(self, module):
        self.norms = {}
        self.handles = [m.register_forward_hook(partial_hook(self, n)) for n, m in module.named_modules() if n]

def partial_hook(watcher, name):
    def hook(module, inputs, output):
        watcher.norms[name] = output.detach().norm().item()  #- expect: sync-item may: host-counter
        #+ pass
    return hook

model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(device)
watcher = Watcher(model)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def forward(x):
    return model(x)
