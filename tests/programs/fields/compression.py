# %% fake quantization with a straight-through Function, clean -> qat_step
class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return torch.clamp((x / scale).round(), -128, 127) * scale
    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        inside = (x / scale).abs() <= 127
        return grad * inside, None

lin = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(lin.parameters(), lr=0.1)
args = (torch.randn(5, 4, device=device),)

def qat_step(x):
    scale = lin.weight.detach().abs().max() / 127
    y = F.linear(x, Round.apply(lin.weight, scale), lin.bias)
    loss = y.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% an observer keeps its range as Python floats -> observe
class MinMaxObserver(nn.Module):
    def __init__(self):
        super().__init__()
        self.lo, self.hi = float("inf"), float("-inf")  #-
        #+ self.register_buffer("lo", torch.tensor(float("inf")))
        #+ self.register_buffer("hi", torch.tensor(float("-inf")))
    def forward(self, x):
        self.lo = min(self.lo, x.min().item())  #- expect: sync-item may: host-counter
        self.hi = max(self.hi, x.max().item())  #- expect: sync-item may: host-counter
        #+ self.lo.copy_(torch.minimum(self.lo, x.min()))
        #+ self.hi.copy_(torch.maximum(self.hi, x.max()))
        return x
    @property
    def scale(self):
        return (self.hi - self.lo) / 255

obs = MinMaxObserver().to(device)
ignore = {"obs"}
args = (torch.randn(4, 4, device=device),)

@torch.no_grad()
def observe(x):
    obs(x)
    return (x / obs.scale).round() * obs.scale  #- may: scalar-frozen
    #+ return (x / obs.scale).round() * obs.scale
# %% per-channel scales go through numpy -> quantize_weight
lin = nn.Linear(4, 3).to(device)
args = (torch.randn(3, 4, device=device),)

def scales_of(w):
    w = w.detach().cpu().numpy()  #- expect: copy-to-cpu
    #+ w = w.detach()
    return np.abs(w).max(axis=1) / 127  #-
    #+ return w.abs().amax(1) / 127

def quantize_weight(w):
    s = torch.from_numpy(scales_of(w)).to(device)[:, None]  #- expect: copy-to-gpu
    #+ s = scales_of(w)[:, None]
    return (w / s).round().clamp(-128, 127).to(torch.int8)
# %% magnitude pruning by a threshold from kthvalue, clean -> prune_step
lin = nn.Linear(6, 4).to(device)
mask = torch.ones(4, 6, device=device)
args = (torch.randn(3, 6, device=device),)

@torch.no_grad()
def prune_step(x):
    flat = lin.weight.abs().flatten()
    cut = flat.kthvalue(12).values
    mask.copy_((lin.weight.abs() > cut).float())
    return F.linear(x, lin.weight * mask, lin.bias)
# %% sparsity grows by a schedule in Python -> prune_step
lin = nn.Linear(6, 4).to(device)
step = 0
args = (torch.randn(3, 6, device=device),)
ignore = {"result"}

def sparsity_at(n, final=0.8, total=20):
    return final * (1 - (1 - min(n / total, 1.0)) ** 3)

@torch.no_grad()
def prune_step(x):
    global step  #-
    step += 1  #- expect: host-counter
    k = int(sparsity_at(step) * lin.weight.numel()) + 1  #-
    cut = lin.weight.abs().flatten().kthvalue(k).values  #- expect: scalar-frozen|size-frozen
    #+ order = lin.weight.abs().flatten().sort().values
    #+ cut = order.gather(0, k_in)
    return F.linear(x, lin.weight * (lin.weight.abs() > cut), lin.bias)
#+ k_in = torch.zeros(1, dtype=torch.long, device=device)
#+ def feed(i):
#+     global step
#+     step = i + 1
#+     k_in.fill_(int(sparsity_at(step) * 24))
#+     return (torch.randn(3, 6, generator=torch.Generator().manual_seed(i)).to(device),)
# %% sparsity is reported by count_nonzero and a format -> report
lin = nn.Linear(6, 4).to(device)
lines = []
ignore = {"lines"}
args = (torch.randn(2, 6, device=device),)

def sparsity(module):
    total = sum(p.numel() for p in module.parameters())
    zeros = sum(int((p == 0).sum()) for p in module.parameters())  #- expect: sync-item
    return zeros / total

@torch.no_grad()
def report(x):
    lines.append(f"sparsity {sparsity(lin):.2%}")  #- may: host-counter
    return lin(x)
# %% LoRA adapters are chosen by name, clean -> forward
class LoRALinear(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.ParameterDict({n: nn.Parameter(torch.randn(r, base.in_features)) for n in ("en", "de")})
        self.B = nn.ParameterDict({n: nn.Parameter(torch.zeros(base.out_features, r)) for n in ("en", "de")})
        self.active = "en"
    def forward(self, x):
        return self.base(x) + x @ self.A[self.active].T @ self.B[self.active].T

layer = LoRALinear(nn.Linear(4, 3)).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def forward(x):
    return layer(x)
# %% the adapter alternates by requests -> forward
import itertools
names = itertools.cycle(["en", "de"])
adapters = {"en": torch.randn(3, 4).to(device), "de": torch.randn(3, 4).to(device)}
args = (torch.randn(2, 4, device=device),)
#+ weight_in = torch.zeros(3, 4, device=device)
ignore = {"result", "weight_in"}

@torch.no_grad()
def forward(x):
    name = next(names)  #- may: host-counter
    return x @ adapters[name].T  #- expect: stale-input may: branch-frozen
    #+ return x @ weight_in.T
#+ def feed(i):
#+     weight_in.copy_(adapters[next(names)])
#+     return (torch.randn(2, 4, generator=torch.Generator().manual_seed(i)).to(device),)
# %% merged weights are assigned through .data -> merge_and_run
base = nn.Linear(4, 4, bias=False).to(device)
A, B = torch.randn(2, 4).to(device), torch.randn(4, 2).to(device) * 0.01
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def merge_and_run(x):
    base.weight.data = base.weight.data + B @ A  #- expect: parameter-rebound|stale-input
    #+ base.weight.data.add_(B @ A)
    return base(x)
# %% outlier columns are kept in higher precision -> int8_matmul
weight = torch.randn(3, 4).to(device)
args = (torch.randn(5, 4, device=device) * 3,)

def int8_matmul(x):
    outlier = x.abs().amax(0) > 6.0
    cols = torch.where(outlier)[0]  #- expect: dynamic-shape
    high = x[:, cols] @ weight[:, cols].T  #-
    low = x.clone()
    low[:, cols] = 0  #- expect: scalar-assignment
    #+ high = (x * outlier) @ weight.T
    #+ low = low * ~outlier
    s = low.abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
    return high + ((low / s).round() * s) @ weight.T
