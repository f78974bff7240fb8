# %% callbacks and a decorated step -> run_batch
import functools
def counted(fn):
    @functools.wraps(fn)
    def wrapper(*a, **k):
        wrapper.calls += 1  #- expect: host-counter
        return fn(*a, **k)
    wrapper.calls = 0
    return wrapper

class History:
    def __init__(self):
        self.losses = []
    def on_batch_end(self, loss):
        self.losses.append(float(loss))  #- expect: sync-item may: host-counter
        #+ self.losses.append(float(loss))

class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.callbacks = model, callbacks
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
    @counted
    def run_batch(self, x, y):
        self.opt.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.opt.step()
        for callback in self.callbacks:  #-
            callback.on_batch_end(loss)  #-
        return loss.detach()

net, history = nn.Linear(3, 1).to(device), History()
losses = history.losses
run_batch = Trainer(net, [history]).run_batch
args = (torch.randn(4, 3, device=device), torch.randn(4, 1, device=device))
#+ def after(loss, i):
#+     history.on_batch_end(loss)
# %% patience in a dataclass -> validate
from dataclasses import dataclass

@dataclass
class Patience:
    best: float = float("inf")
    bad: int = 0
    limit: int = 3
    def update(self, value):
        if value < self.best - 1e-4:  #- expect: data-dependent-branch|sync-item
            self.best, self.bad = float(value), 0  #- expect: sync-item may: host-counter
        #+ if value < self.best - 1e-4:
        #+     self.best, self.bad = float(value), 0
        else:
            self.bad += 1  # may: host-counter
        return self.bad >= self.limit

patience, model = Patience(), nn.Linear(3, 1).to(device)
args = (torch.randn(4, 3, device=device), torch.randn(4, 1, device=device))

@torch.no_grad()
def validate(x, y):
    loss = F.mse_loss(model(x), y)
    patience.update(loss)  #-
    return loss
#+
#+ def after(loss, i):
#+     patience.update(loss)
# %% a curriculum of learning rates in a closure -> step
def make_step(model, schedule):
    opt = torch.optim.SGD(model.parameters(), lr=schedule[0])
    number = 0  #-
    def step(x, y):
        nonlocal number  #-
        for group in opt.param_groups:  #-
            group["lr"] = schedule[number % len(schedule)]  #- may: learning-rate-frozen
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()  #- expect: learning-rate-frozen
        number += 1  #- expect: host-counter
        #+ with torch.no_grad():
        #+     for p in model.parameters():
        #+         p.sub_(rate * p.grad)
        return loss.detach()
    return step

net = nn.Linear(3, 1).to(device)
_schedule = [0.1, 0.05, 0.2]
step = make_step(net, _schedule)
args = (torch.randn(4, 3, device=device), torch.randn(4, 1, device=device))
#+ rate = torch.full((), 0.1, device=device)
#+ ignore = ("rate",)
#+ def after(loss, i):
#+     rate.fill_(_schedule[(i + 1) % 3])
# %% one cycle, bfloat16 and clipping, done right -> train_step
model = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 3)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3, device=device), capturable=True)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=8)
args = (torch.randn(4, 6, device=device), torch.randint(0, 3, (4,), device=device))

def train_step(x, y):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()

def after(loss, i):
    scheduler.step()
# %% hooks that clamp gradients -> train_step
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
for p in model.parameters():
    p.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, capturable=True)
args = (torch.randn(4, 4, device=device), torch.randn(4, 1, device=device))

def train_step(x, y):
    optimizer.zero_grad()
    loss = (model(x) - y).abs().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
# %% the optimizer steps in the backward pass -> train_step
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}

def optimizer_hook(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()

for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)
optimizers_ = None
ignore = ("optimizers",)
args = (torch.randn(4, 4, device=device), torch.randn(4, 1, device=device))

def train_step(x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss.detach()
# %% tasks weighted by learned uncertainty -> train_step
class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(5, 8)
        self.heads = nn.ModuleDict({"depth": nn.Linear(8, 1), "normal": nn.Linear(8, 3)})
        self.log_vars = nn.Parameter(torch.zeros(2))
    def forward(self, x):
        h = torch.relu(self.trunk(x))
        return {name: head(h) for name, head in self.heads.items()}

model = MultiTask().to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, foreach=True)
args = (torch.randn(4, 5, device=device), {"depth": torch.randn(4, 1, device=device), "normal": torch.randn(4, 3, device=device)})

def train_step(x, targets):
    opt.zero_grad()
    losses = torch.stack([F.l1_loss(out, targets[name]) for name, out in model(x).items()])
    total = (losses * torch.exp(-model.log_vars) + model.log_vars).sum()
    total.backward()
    opt.step()
    return {"total": total.detach(), "tasks": losses.detach()}
# %% a metric with a confusion matrix by bincount -> update
class ConfusionMatrix(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n, self.updates = n, 0
        self.register_buffer("confmat", torch.zeros(n, n, dtype=torch.long))
    def update(self, preds, target):
        unique_mapping = target * self.n + preds
        bins = torch.bincount(unique_mapping, minlength=self.n**2)  #- expect: hidden-size
        #+ bins = torch.zeros(self.n**2, dtype=torch.long, device=preds.device)
        #+ bins.scatter_add_(0, unique_mapping, torch.ones_like(unique_mapping))
        self.confmat = self.confmat + bins.view(self.n, self.n)  #- expect: stale-input
        self.updates += 1  #- expect: host-counter
        #+ self.confmat.add_(bins.view(self.n, self.n))

metric = ConfusionMatrix(3).to(device)
args = (torch.randint(0, 3, (8,), device=device), torch.randint(0, 3, (8,), device=device))

def update(preds, target):
    metric.update(preds, target)
    return metric.confmat
# %% a mean teacher with a ramp-up -> train_step
student, teacher = nn.Linear(4, 3).to(device), nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
global_step = 0
args = (torch.randn(5, 4, device=device), torch.randn(5, 4, device=device))
#+ consistency, alpha = torch.zeros((), device=device), torch.zeros((), device=device)
#+ ignore = ("consistency", "alpha")
def rampup(step, length=8):
    return float(np.exp(-5.0 * (1 - min(step, length) / length) ** 2))
#+ def set_scalars():
#+     consistency.fill_(10.0 * rampup(global_step))
#+     alpha.fill_(min(1 - 1 / (global_step + 1), 0.99))
#+ set_scalars()

def train_step(x, x2):
    global global_step  #-
    consistency = 10.0 * rampup(global_step)  #-
    out = student(x)
    with torch.no_grad():
        target = teacher(x2).softmax(-1)
    loss = out.square().mean() + consistency * F.mse_loss(out.softmax(-1), target)  # expect: scalar-frozen
    opt.zero_grad()
    loss.backward()
    opt.step()
    alpha = min(1 - 1 / (global_step + 1), 0.99)  #-
    with torch.no_grad():
        for t, s in zip(teacher.parameters(), student.parameters()):
            t.mul_(alpha).add_(s * (1 - alpha))  # expect: scalar-frozen
    global_step += 1  #- expect: host-counter
    return loss.detach()
#+
#+ def after(loss, i):
#+     global global_step
#+     global_step += 1
#+     set_scalars()
# %% a sampler that follows the losses -> train_step
weights = torch.ones(16)
data = torch.randn(16, 4, device=device)
net = nn.Linear(4, 1).to(device)
args = (torch.randint(0, 16, (6,), device=device),)

def feed(i):
    return (torch.arange(6, device=device) + i,)

def train_step(index):
    losses = net(data[index]).square().mean(1)
    weights[index.cpu()] = losses.detach().cpu()  #- expect: copy-to-cpu may: host-counter
    return losses.mean().detach()  #-
    #+ return index, losses.detach()
#+
#+ def after(out, i):
#+     weights[out[0].cpu()] = out[1].cpu()
def seen(out):
    return None
# %% a queue of metrics for a writer's thread -> step
import queue
_metrics = queue.Queue()
model = nn.Linear(3, 3).to(device)
args = (torch.randn(2, 3, device=device),)

def step(x):
    loss = model(x).square().mean().detach()
    _metrics.put(loss)  #- expect: output-alias|host-counter
    return loss
#+
#+ def after(loss, i):
#+     _metrics.put(loss.clone())
