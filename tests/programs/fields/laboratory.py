# %% weights are tied by a straight-through Function on the parameter itself, clean -> step
class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return w.sign()
    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * (w.abs() <= 1)

w = nn.Parameter(torch.randn(3, 2, device=device))
opt = torch.optim.SGD([w], lr=0.1)
args = (torch.randn(4, 3, device=device),)
def step(x):
    loss = (x @ Sign.apply(w)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% the model is copied by deepcopy for a lookahead, clean -> lookahead
import copy
model = nn.Linear(3, 1).to(device)
args = (torch.randn(4, 3, device=device),)
@torch.no_grad()
def lookahead(x):
    fast = copy.deepcopy(model)
    for p in fast.parameters():
        p.sub_(0.1 * p.sign())
    for slow, quick in zip(model.parameters(), fast.parameters()):
        slow.lerp_(quick, 0.5)
    return model(x)
# %% an average of weights by torch's own class with a device, its count on the GPU -> train
from torch.optim.swa_utils import AveragedModel
model = nn.Linear(3, 1).to(device)
ema = AveragedModel(model, device=device)
args = (torch.randn(4, 3, device=device),)
ignore = {"ema"}
def train(x):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01)
    ema.update_parameters(model)  #- expect: averaged-model may: host-counter copy-to-gpu
    #+ for e, p in zip(ema.module.parameters(), model.parameters()):
    #+     e.data.lerp_(p.data, 0.1)
    return model(x).detach()
# %% a counter tensor on the CPU decides the decay -> update
count = torch.zeros((), dtype=torch.long)
avg = torch.zeros(3, device=device)
args = (torch.randn(3, device=device),)
ignore = {"result", "avg", "count"}
#+ decay_in = torch.zeros((), device=device)
def decay():
    return min(0.99, (1 + count.item()) / (10 + count.item()))
@torch.no_grad()
def update(x):
    d = decay()  #-
    avg.mul_(d).add_(x, alpha=1 - d)  #- expect: scalar-frozen|cpu-scalar-frozen
    #+ avg.mul_(decay_in).add_(x * (1 - decay_in))
    count.add_(1)  #- expect: host-counter
    return avg.clone()
#+ def feed(i):
#+     count.fill_(i)
#+     decay_in.fill_(decay())
#+     return (torch.randn(3, generator=torch.Generator().manual_seed(i)).to(device),)
# %% a nested loop reads many values in a helper -> table
args = (torch.randn(3, 4, device=device),)
ignore = {"result"}
def value(m, i, j):
    return round(float(m[i, j]), 3)  #- expect: sync-item
    #+ return None
def table(m):
    return [[value(m, i, j) for j in range(m.size(1))] for i in range(m.size(0))]  #-
    #+ return m.round(decimals=3)
# %% pairs whose distance is small are merged while any is left -> merge
args = (torch.randn(4, 2, device=device),)
ignore = {"result"}
def too_close(x):
    d = torch.cdist(x, x) + torch.eye(len(x), device=x.device) * 9
    return (d < 0.01).any()
def merge(x):
    rounds = 0  #-
    while too_close(x) and rounds < 3:  #- expect: data-dependent-branch
        x = x + 0.1 * torch.randn_like(x)  #-
        rounds += 1  #-
    #+ x = torch.where(too_close(x), x + 0.1 * torch.randn_like(x), x)
    return x
# %% a Kalman filter with a Cholesky factor of its innovations -> filter_step
P = torch.eye(3).to(device)
H = torch.randn(2, 3).to(device)
args = (torch.randn(2, device=device),)
class Filter:
    def __init__(self): self.x = torch.zeros(3, device=device)
    def gain(self):
        S = H @ P @ H.T + torch.eye(2, device=device)
        L = torch.linalg.cholesky(S)  #- expect: linalg-check
        #+ L = torch.linalg.cholesky_ex(S)[0]
        return torch.cholesky_solve(H @ P, L).T
    def update(self, z):
        self.x.add_(self.gain() @ (z - H @ self.x))
        return self.x.clone()
kf = Filter()
@torch.no_grad()
def filter_step(z):
    return kf.update(z)
# %% bins of energies by bucketize on edges of the host -> spectrum
edges = torch.linspace(-2, 2, 5)
args = (torch.randn(10, device=device),)
#+ edges_gpu = edges.to(device)
def spectrum(e):
    which = torch.bucketize(e, edges.to(e.device))  #- expect: copy-to-gpu
    #+ which = torch.bucketize(e, edges_gpu)
    return torch.zeros(6, device=e.device).index_add_(0, which, torch.ones_like(e))
# %% symmetric eigenvalues only for a report every hundredth step -> step
n = 0
w = torch.eye(3).to(device)
ignore = {"n"}
args = (torch.randn(3, device=device),)
def report(m):
    return torch.linalg.eigvalsh(m).max()  # may: linalg-host
def step(x):
    global n  #-
    n += 1  #- expect: host-counter
    if n % 100 == 0:  #- expect: branch-frozen
        print(report(w))  #- may: print
    return w @ x
# %% tensors of three devices' worth of noise are stacked, clean (random) -> noise
args = (torch.ones(3, device=device),)
def noise(scale):
    a = torch.randn(3, device=device)
    b = torch.empty(3, device=device).uniform_(-1, 1)
    c = torch.bernoulli(torch.full((3,), 0.5, device=device))
    return torch.stack([a, b, c]) * scale
