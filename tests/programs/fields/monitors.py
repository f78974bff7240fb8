# %% log every tenth iteration, as small GPTs do -> train_step
iter_num, log_interval = 0, 10
model = nn.Linear(4, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))

def train_step(x, y):
    global iter_num  #-
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if iter_num % log_interval == 0:  #- expect: branch-frozen
        lossf = loss.item() * 4  #- expect: sync-item
        print(f"iter {iter_num}: loss {lossf:.4f}")  #- may: print host-counter
    iter_num += 1  #- expect: host-counter
    return loss.detach()
#+
#+ def after(loss, i):
#+     global iter_num
#+     if iter_num % log_interval == 0:
#+         lossf = loss.item() * 4
#+         print(f"iter {iter_num}: loss {lossf:.4f}")
#+     iter_num += 1
# %% a smoothed loss in a recorder's attributes -> one_batch
class Recorder:
    def __init__(self, beta=0.9):
        self.beta, self.avg, self.n = beta, 0.0, 0
    def add(self, value):
        self.n += 1  # may: host-counter
        self.avg = self.beta * self.avg + (1 - self.beta) * value  # may: host-counter
        self.smooth = self.avg / (1 - self.beta**self.n)  # may: host-counter scalar-frozen

recorder = Recorder()
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
args = (torch.randn(4, 4, device=device), torch.randn(4, 1, device=device))

def one_batch(xb, yb):
    loss = F.l1_loss(model(xb), yb)
    loss.backward()
    opt.step()
    opt.zero_grad()
    recorder.add(loss.item())  #- expect: sync-item
    return loss.detach()
#+
#+ def after(loss, i):
#+     recorder.add(loss.item())
# %% the gradient norm of every layer in a dictionary -> train_step
records = []
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
args = (torch.randn(4, 4, device=device),)

def train_step(x):
    opt.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    stats = {f"grad/{name}": p.grad.norm().item() for name, p in model.named_parameters()}  #- expect: sync-item
    #+ stats = {f"grad/{name}": p.grad.norm() for name, p in model.named_parameters()}
    stats["loss"] = loss.item()  #- expect: sync-item
    records.append(stats)  #- may: host-counter output-alias
    opt.step()
    return loss.detach()  #-
    #+ return loss.detach(), stats
#+ def after(out, i):
#+     records.append({name: value.item() for name, value in out[1].items()} | {"loss": out[0].item()})
def seen(out):
    return out[0] if isinstance(out, tuple) else out
# %% stop at a loss that is not a number -> train_step
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
args = (torch.randn(4, 4, device=device),)

def train_step(x):
    loss = model(x).square().mean()
    if torch.isnan(loss) or torch.isinf(loss):  #- expect: data-dependent-branch
        raise FloatingPointError("loss diverged")  #-
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
#+ def after(loss, i):
#+     if torch.isnan(loss) or torch.isinf(loss):
#+         raise FloatingPointError("loss diverged")
# %% a progress bar with a postfix -> train_step
class tqdm:
    def __init__(self):
        self.n, self.postfix = 0, ""
    def set_postfix(self, **values):
        self.postfix = ", ".join(f"{k}={v}" for k, v in values.items())  # may: host-counter
    def update(self, n=1):
        self.n += n  # expect: host-counter
        #+ pass

pbar = tqdm()
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
args = (torch.randn(4, 4, device=device),)

def train_step(x):
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    pbar.set_postfix(loss=f"{loss:.4f}", lr=opt.param_groups[0]["lr"])  #- expect: sync-item|print
    pbar.update()  #-
    return loss.detach()
#+ def after(loss, i):
#+     pbar.set_postfix(loss=f"{loss:.4f}", lr=opt.param_groups[0]["lr"])
#+     pbar.update()
# %% an early-stopping callback that is called with the loss -> validate
class EarlyStopping:
    def __init__(self, patience=3, min_delta=0.0):
        self.patience, self.min_delta, self.counter = patience, min_delta, 0
        self.best, self.stop = float("inf"), False
    def __call__(self, val_loss):
        if val_loss < self.best - self.min_delta:
            self.best, self.counter = val_loss, 0  # may: host-counter
        else:
            self.counter += 1  # may: host-counter
            self.stop = self.counter >= self.patience  # may: host-counter

stopper = EarlyStopping()
model = nn.Linear(4, 1).to(device)
args = (torch.randn(4, 4, device=device), torch.randn(4, 1, device=device))

@torch.no_grad()
def validate(x, y):
    val_loss = F.mse_loss(model(x), y)
    stopper(val_loss.item())  #- expect: sync-item
    return val_loss
#+ def after(val_loss, i):
#+     stopper(val_loss.item())
# %% plateau scheduler at the end of the step -> train_step
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)  #-
#+ opt = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.05, device=device), fused=True)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1)
args = (torch.randn(4, 4, device=device),)

def train_step(x):
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()  # expect: learning-rate-frozen
    scheduler.step(loss)  #- expect: sync-item may: host-counter
    return loss.detach()
#+ def after(loss, i):
#+     scheduler.step(loss)
# %% tokens per second with a synchronized clock -> train_step
def now():
    cuda.synchronize()  #- expect: synchronize
    return time.perf_counter()

throughput = []
model = nn.Linear(4, 4).to(device)
args = (torch.randn(8, 4, device=device),)
ignore = {"throughput"}

def train_step(x):
    t0 = now()  #-
    y = model(x).relu()
    dt = now() - t0  #-
    throughput.append(x.numel() / dt)  #- may: host-counter
    return y
# %% weights kept for a plot -> train_step
snapshots = []
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
args = (torch.randn(4, 4, device=device),)

def train_step(x):
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    snapshots.append(model.weight.detach().cpu().numpy().copy())  #- expect: copy-to-cpu may: host-counter
    return loss.detach()
#+ def after(loss, i):
#+     snapshots.append(model.weight.detach().cpu().numpy().copy())
# %% losses summed on the device, read once an epoch -> train_step
total_loss, batches = torch.zeros((), device=device), torch.zeros((), device=device)
model = nn.Linear(4, 3).to(device)
opt = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3, device=device), capturable=True)
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))

def train_step(x, y):
    opt.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    opt.step()
    total_loss.add_(loss.detach())
    batches.add_(1)
    return loss.detach()
# %% callbacks that do nothing in between -> run_batch
class Callback:
    def before_batch(self, learner): ...
    def after_loss(self, learner): ...

class GradientClip(Callback):
    def after_loss(self, learner):
        nn.utils.clip_grad_value_(learner.model.parameters(), 0.5)

class Learner:
    def __init__(self, model, callbacks):
        self.model, self.callbacks = model, callbacks
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    def __call__(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self)

learner = Learner(nn.Linear(4, 1).to(device), [Callback(), GradientClip()])
model = learner.model
args = (torch.randn(4, 4, device=device), torch.randn(4, 1, device=device))

def run_batch(x, y):
    learner("before_batch")
    loss = F.mse_loss(learner.model(x), y)
    learner.opt.zero_grad()
    loss.backward()
    learner("after_loss")
    learner.opt.step()
    return loss.detach()
# %% reduce over ranks where there are ranks -> train_step
import torch.distributed as dist
model = nn.Linear(4, 1).to(device)
args = (torch.randn(4, 4, device=device),)

def is_main():
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0

def train_step(x):
    loss = model(x).square().mean()
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(loss)
        loss = loss / dist.get_world_size()
    return loss.detach() if is_main() else None
