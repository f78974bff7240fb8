# %% a registry of steps called by name from a config -> run
registry = {}
def register(name):
    def wrap(fn):
        registry[name] = fn
        return fn
    return wrap
@register("scale")
def scale(x, by): return x * by
@register("drop_zeros")
def drop_zeros(x): return x[x != 0]  #- expect: dynamic-shape
#+ def drop_zeros(x): return x
#+ registry["drop_zeros"] = drop_zeros
config = [("scale", {"by": 2.0}), ("drop_zeros", {})]
args = (torch.randn(5, device=device),)
def run(x):
    for name, kw in config:
        x = registry[name](x, **kw)
    return x.sum()
# %% a mixin logs in super() calls -> forward
class LogMixin:
    def forward(self, x):
        y = super().forward(x)
        self.log("norm", y.norm())
        return y
    def log(self, key, value):
        self.logs[key] = value.item()  #- expect: sync-item may: host-counter
        #+ pass
class Net(LogMixin, nn.Linear):
    logs = {}
net = Net(3, 2).to(device)
args = (torch.randn(4, 3, device=device),)
@torch.no_grad()
def forward(x):
    return net(x)
# %% an abstract strategy chosen at construction, clean -> act
from abc import ABC, abstractmethod
class Strategy(ABC):
    @abstractmethod
    def pick(self, q): ...
class Greedy(Strategy):
    def pick(self, q): return q.argmax(-1)
class Boltzmann(Strategy):
    def __init__(self, t): self.t = t
    def pick(self, q): return torch.multinomial((q / self.t).softmax(-1), 1)
strategy: Strategy = Greedy()
q = nn.Linear(3, 4).to(device)
args = (torch.randn(2, 3, device=device),)
@torch.no_grad()
def act(x):
    return strategy.pick(q(x))
# %% a with block of a lock around the step, clean -> step
import threading
lock = threading.Lock()
lin = nn.Linear(3, 2).to(device)
args = (torch.randn(4, 3, device=device),)
@torch.no_grad()
def step(x):
    with lock:
        return lin(x).relu()
# %% a retry decorator catches errors and tries again -> step
import functools
def retry(times):
    def wrap(fn):
        @functools.wraps(fn)
        def inner(*a):
            for _ in range(times):
                try:
                    return fn(*a)
                except ValueError:
                    continue
        return inner
    return wrap
args = (torch.randn(4, device=device),)
@retry(2)
def step(x):
    if x.isinf().any():  #- expect: data-dependent-branch
        raise ValueError("inf")  #-
    return x * 2
# %% metrics of a step are a dictionary turned to floats by a comprehension in another file -> step
# file: metric_tools.py
def to_floats(metrics):
    return {k: v.item() if hasattr(v, "item") else v for k, v in metrics.items()}  #- expect: sync-item
    #+ return metrics
# file: the program
from metric_tools import to_floats
lin = nn.Linear(3, 2).to(device)
args = (torch.randn(4, 3, device=device),)
@torch.no_grad()
def step(x):
    y = lin(x)
    return to_floats({"mean": y.mean(), "max": y.max(), "n": 4})
# %% a queue hands batches from a producer -> consume
import queue
batches = queue.Queue()
for k in range(60):
    batches.put(torch.full((2, 3), float(k)))
lin = nn.Linear(3, 1).to(device)
args = (torch.ones((), device=device),)
#+ batch_in = torch.zeros(2, 3, device=device)
ignore = {"result", "batch_in"}
@torch.no_grad()
def consume(scale):
    batch = batches.get()  #- may: host-counter
    x = batch.to(device)  #- expect: copy-to-gpu
    #+ x = batch_in
    return lin(x).mean() * scale
# %% a generator of windows keeps its place between calls -> consume
signal = torch.randn(64).to(device)
def windows():
    i = 0
    while True:
        yield signal[i % 60:i % 60 + 4]  #- expect: size-frozen
        #+ yield signal[i % 60:i % 60 + 4]
        i += 1
source = windows()
args = (torch.ones((), device=device),)
ignore = {"result", "window_in"}
#+ window_in = torch.zeros(4, device=device)
def consume(scale):
    return next(source).sum() * scale  #- may: host-counter
    #+ return window_in.sum() * scale
# %% two buffers alternate by a flag -> ping_pong
buffers = [torch.zeros(3, device=device), torch.zeros(3, device=device)]
flip = False
args = (torch.randn(3, device=device),)
ignore = {"result", "buffers", "flip"}
def ping_pong(x):
    global flip  #-
    flip = not flip  #- expect: host-counter
    now, then = buffers[flip], buffers[not flip]  #-
    #+ now, then = buffers
    now.copy_(x + then)  #- expect: stale-input
    #+ now.copy_(x + then)
    return now.clone()  #- may: stale-input
    #+ return now.clone()
# %% settings read from the environment, clean -> step
import os
def precision():
    return torch.bfloat16 if os.environ.get("USE_BF16_PLEASE") else torch.float32
lin = nn.Linear(3, 2).to(device)
args = (torch.randn(4, 3, device=device),)
@torch.no_grad()
def step(x):
    return lin(x).to(precision()).sum()
