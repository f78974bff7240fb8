# %% per-sample gradients by vmap over grad, clean -> per_sample
from torch.func import functional_call, grad, vmap
net = nn.Linear(3, 1).to(device)
params = {k: v.detach() for k, v in net.named_parameters()}
args = (torch.randn(4, 3, device=device), torch.randn(4, 1, device=device))

def loss_of(p, x, y):
    return (functional_call(net, p, (x[None],)) - y[None]).square().mean()

def per_sample(x, y):
    grads = vmap(grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    return norms
# %% an ensemble by stack_module_state, clean -> ensemble
from torch.func import functional_call, stack_module_state, vmap
members = [nn.Linear(3, 2).to(device) for _ in range(3)]
stacked, buffers = stack_module_state(members)
args = (torch.randn(4, 3, device=device),)

@torch.no_grad()
def ensemble(x):
    return vmap(lambda p, b: functional_call(members[0], (p, b), (x,)))(stacked, buffers).mean(0)
# %% a Function's backward reads a norm -> clip_backward
class ClipGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.view_as(x)
    @staticmethod
    def backward(ctx, g):
        n = g.norm().item()  #- expect: sync-item
        return g * min(1.0, ctx.limit / (n + 1e-6)), None  #- may: scalar-frozen
        #+ return g * (ctx.limit / (g.norm() + 1e-6)).clamp(max=1.0), None

lin = nn.Linear(3, 2).to(device)
args = (torch.randn(4, 3, device=device),)
def clip_backward(x):
    lin.zero_grad()
    loss = ClipGrad.apply(lin(x), 0.1).square().sum()
    loss.backward()
    return lin.weight.grad.clone()
# %% a tensor hook prints when gradients explode -> train
lin = nn.Linear(3, 2).to(device)
args = (torch.randn(4, 3, device=device),)

def watch(g):
    if g.abs().max() > 1e6:  #- expect: data-dependent-branch
        print("exploding")  #- may: host-counter
    return g

def train(x):
    lin.zero_grad()
    h = lin(x)
    h.register_hook(watch)
    h.square().mean().backward()
    return lin.weight.grad.clone()
# %% forward hooks gather activations on the CPU -> features
lin1, lin2 = nn.Linear(3, 4).to(device), nn.Linear(4, 2).to(device)
net = nn.Sequential(lin1, nn.ReLU(), lin2)
store = {}
ignore = {"store"}
args = (torch.randn(4, 3, device=device),)
for i, layer in enumerate(net):
    layer.register_forward_hook(lambda m, inp, out, i=i: store.__setitem__(i, out.detach().cpu()))  #- expect: copy-to-cpu may: host-counter
    #+ pass

@torch.no_grad()
def features(x):
    return net(x)
# %% hooks accumulate means in place, clean -> features
class Stats(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.register_buffer("mean", torch.zeros(4))
        inner.register_forward_hook(self.update)
    def update(self, module, inputs, out):
        self.mean.mul_(0.9).add_(out.detach().mean(0), alpha=0.1)
    def forward(self, x):
        return self.inner(x) - self.mean

net = Stats(nn.Linear(3, 4)).to(device)
args = (torch.randn(5, 3, device=device),)
@torch.no_grad()
def features(x):
    return net(x)
# %% a debugging decorator checks every result for NaN -> forward
import functools
def nan_guard(fn):
    @functools.wraps(fn)
    def inner(*a, **k):
        out = fn(*a, **k)
        if torch.isnan(out).any():  #- expect: data-dependent-branch
            raise FloatingPointError(fn.__name__)  #-
        return out
    return inner

lin = nn.Linear(3, 2).to(device)
args = (torch.randn(4, 3, device=device),)

@nan_guard
@torch.no_grad()
def forward(x):
    return lin(x)
# %% a cached property computes a mask of the host once, clean -> forward
from functools import cached_property
class Causal(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n
    @cached_property
    def mask(self):
        return torch.ones(self.n, self.n, dtype=torch.bool, device=device).tril()
    def forward(self, s):
        return s.masked_fill(~self.mask, float("-inf")).softmax(-1)

layer = Causal(4)
args = (torch.randn(4, 4, device=device),)
def forward(s):
    return layer(s)
# %% a lambda in a dictionary of losses reads its weight -> total
weights = {"l1": torch.tensor(0.3, device=device), "l2": torch.tensor(0.7, device=device)}
losses = {
    "l1": lambda a, b: (a - b).abs().mean() * float(weights["l1"]),  #- expect: sync-item may: scalar-frozen
    #+ "l1": lambda a, b: (a - b).abs().mean() * weights["l1"],
    "l2": lambda a, b: (a - b).square().mean() * weights["l2"],
}
args = (torch.randn(4, device=device), torch.randn(4, device=device))
def total(a, b):
    return sum(f(a, b) for f in losses.values())
# %% a class keeps a running maximum through a closure with nonlocal -> track
def make_tracker():
    peak = 0.0
    #+ peak_in = torch.zeros((), device=device)
    def track(x):
        nonlocal peak  #-
        peak = max(peak, x.abs().max().item())  #- expect: sync-item may: host-counter
        return x / (peak + 1e-6)  #- may: scalar-frozen
        #+ peak_in.copy_(torch.maximum(peak_in, x.abs().max()))
        #+ return x / (peak_in + 1e-6)
    return track

track = make_tracker()
args = (torch.randn(4, device=device),)
# %% singledispatch moves plain lists to the device -> total
from functools import singledispatch
@singledispatch
def as_device(v):
    return v
@as_device.register
def _(v: list):
    return torch.tensor(v, device=device)  #- expect: tensor-literal
    #+ return bias
bias_list = [0.1, 0.2, 0.3]
#+ bias = torch.tensor(bias_list, device=device)
args = (torch.randn(3, device=device),)
def total(x):
    return as_device(x) + as_device(bias_list)
# %% ExitStack enters inference contexts, clean -> forward
from contextlib import ExitStack
net = nn.Linear(3, 2).to(device)
args = (torch.randn(4, 3, device=device),)
def forward(x):
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(device_type=device.type, dtype=torch.bfloat16, cache_enabled=False))
        return net(x).float()
# %% checkpointed blocks keep the random state, clean -> train
from torch.utils.checkpoint import checkpoint
block = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).to(device)
args = (torch.randn(4, 3, device=device),)
def train(x):
    block.zero_grad()
    y = checkpoint(block, x, use_reentrant=False)
    y.square().mean().backward()
    return block[0].weight.grad.clone()
# %% double backward for a Hessian-vector product, clean -> hvp
w = torch.randn(3).to(device).requires_grad_()
args = (torch.randn(5, 3, device=device), torch.randn(3, device=device))
def hvp(x, v):
    loss = (x @ w).tanh().square().mean()
    (g,) = torch.autograd.grad(loss, w, create_graph=True)
    (h,) = torch.autograd.grad(g @ v, w)
    return h
# %% a context manager swaps in EMA weights for evaluation -> evaluate
from contextlib import contextmanager
net = nn.Linear(3, 2).to(device)
shadow = [p.detach().clone() + 0.1 for p in net.parameters()]
args = (torch.randn(4, 3, device=device),)

@contextmanager
def averaged(module):
    kept = [p.data for p in module.parameters()]
    #+ kept = [p.data.clone() for p in module.parameters()]
    for p, s in zip(module.parameters(), shadow):
        p.data = s  #- may: parameter-rebound
        #+ p.data.copy_(s)
    try:
        yield
    finally:
        for p, k in zip(module.parameters(), kept):
            p.data = k  #- may: parameter-rebound
            #+ p.data.copy_(k)

@torch.no_grad()
def evaluate(x):
    with averaged(net):
        return net(x)
