# %% a trainer with callbacks in another file -> step
# file: my_callbacks.py
class Callback:
    def on_batch_end(self, trainer, loss):
        pass

class LossLogger(Callback):
    def __init__(self):
        self.history = []
    def on_batch_end(self, trainer, loss):
        self.history.append(loss.item())  #- expect: sync-item may: host-counter
        #+ pass

class StepCounter(Callback):
    def on_batch_end(self, trainer, loss):
        trainer.global_step += 1  # expect: host-counter
# file: the program
from my_callbacks import LossLogger, StepCounter
class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.callbacks, self.global_step = model, callbacks, 0
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
    def training_step(self, x):
        loss = self.model(x).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        for cb in self.callbacks:
            cb.on_batch_end(self, loss)
        return loss.detach()

trainer = Trainer(nn.Linear(4, 1).to(device), [LossLogger(), StepCounter()])
#+ trainer.callbacks = trainer.callbacks[:1]
args = (torch.randn(4, 4, device=device),)

def step(x):
    return trainer.training_step(x)
# %% helpers of a package of two files -> forward
# file: my_ops.py
import torch
def safe_norm(x):
    n = x.norm()
    if n > 0:  #- expect: data-dependent-branch
        return x / n  #-
    return x  #-
    #+ return torch.where(n > 0, x / n, x)
# file: my_layers.py
from torch import nn
from my_ops import safe_norm
class Normed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lin = nn.Linear(width, width)
    def forward(self, x):
        return safe_norm(self.lin(x))
# file: the program
from my_layers import Normed
net = Normed(4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def forward(x):
    return net(x)
# %% early stopping on a validation loss -> epoch_end
class EarlyStopping:
    def __init__(self, patience=3):
        self.best, self.bad, self.patience = float("inf"), 0, patience
    def step(self, value):
        if value < self.best:  #- expect: data-dependent-branch
            self.best, self.bad = value, 0  #- may: host-counter output-alias stale-input
        else:  #-
            self.bad += 1  #- may: host-counter
        return self.bad >= self.patience

stopper = EarlyStopping()
head = nn.Linear(4, 1).to(device)
args = (torch.randn(6, 4, device=device),)

@torch.no_grad()
def epoch_end(x):
    loss = head(x).square().mean()
    stopper.step(loss)  #-
    return loss
# %% a learning-rate finder multiplies the rate each step -> probe
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=1e-3)  #-
#+ opt = torch.optim.SGD(model.parameters(), lr=torch.tensor(1e-3, device=device), fused=True)
args = (torch.randn(4, 4, device=device),)

class LRFinder:
    def __init__(self, optimizer, factor=1.3):
        self.optimizer, self.factor = optimizer, factor
    def advance(self):
        for group in self.optimizer.param_groups:
            group["lr"] *= self.factor  #- may: host-counter learning-rate-frozen
            #+ group["lr"].mul_(self.factor)

finder = LRFinder(opt)
def probe(x):
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()  # expect: learning-rate-frozen
    finder.advance()
    return loss.detach()
# %% a curriculum lengthens sequences with the step -> train_step
model = nn.Linear(4, 1).to(device)
class Curriculum:
    step = 0
    def length(self):
        self.step += 1  #- expect: host-counter
        #+ pass
        return min(2 + self.step // 2, 6)
curriculum = Curriculum()
args = (torch.randn(3, 6, 4, device=device),)
ignore = {"result"}
#+ length_in = torch.full((), 2, device=device)

@torch.no_grad()
def train_step(x):
    n = curriculum.length()  #-
    return model(x[:, :n]).mean()  #- expect: size-frozen
    #+ keep = (torch.arange(6, device=x.device) < length_in)[None, :, None]
    #+ return (model(x) * keep).sum() / (3 * length_in)
# %% exponential loss smoothing in a tqdm postfix -> step
class Bar:
    def __init__(self):
        self.postfix = ""
    def set_postfix(self, **values):
        self.postfix = ", ".join(f"{k}={v:.3f}" for k, v in values.items())  # may: print sync-item host-counter
    def update(self, n=1):
        pass

bar = Bar()
model = nn.Linear(4, 1).to(device)
smooth = torch.zeros((), device=device)
args = (torch.randn(4, 4, device=device),)

@torch.no_grad()
def step(x):
    loss = model(x).square().mean()
    smooth.lerp_(loss, 0.1)
    bar.set_postfix(loss=smooth.item())  #- expect: sync-item may: host-counter
    bar.update()
    return loss
# %% a wandb-like run object flushes every n calls -> log_step
class Run:
    def __init__(self):
        self.rows, self.flushed = [], 0
    def log(self, metrics, step):
        self.rows.append({k: float(v) for k, v in metrics.items()} | {"step": step})  #- expect: sync-item may: host-counter
        if len(self.rows) >= 4:  #- may: branch-frozen
            self.flushed += len(self.rows)  #- may: host-counter
            self.rows.clear()  #- may: host-counter
        #+ pass

run, global_step = Run(), 0
model = nn.Linear(4, 1).to(device)
args = (torch.randn(4, 4, device=device),)
ignore = {"global_step"}

@torch.no_grad()
def log_step(x):
    global global_step  #-
    y = model(x)
    run.log({"mean": y.mean(), "std": y.std()}, global_step)  #-
    global_step += 1  #- expect: host-counter
    return y
# %% the best weights are kept by deepcopy when a metric improves -> validate
import copy
model = nn.Linear(4, 1).to(device)
best = {"acc": -1.0, "weights": None}
ignore = {"best"}
args = (torch.randn(6, 4, device=device), torch.randint(0, 2, (6,), device=device))

def accuracy(logits, y):
    return ((logits.squeeze(1) > 0) == y.bool()).float().mean().item()  #- expect: sync-item
    #+ return ((logits.squeeze(1) > 0) == y.bool()).float().mean()

@torch.no_grad()
def validate(x, y):
    acc = accuracy(model(x), y)
    if acc > best["acc"]:  #- may: branch-frozen
        best.update(acc=acc, weights=copy.deepcopy(model.state_dict()))  #- may: host-counter output-alias
    return torch.full((), 1.0, device=x.device) * acc  #- may: scalar-frozen
    #+ return torch.full((), 1.0, device=x.device) * acc
# %% gradient accumulation by a modulus in a method -> step
class Accumulator:
    def __init__(self, model, every=2):
        self.model, self.every, self.micro = model, every, 0
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
    def __call__(self, x):
        loss = self.model(x).square().mean() / self.every
        loss.backward()  #- may: gradients-accumulate gradients-rebound
        self.micro += 1  #- expect: host-counter
        if self.micro % self.every == 0:  #- expect: branch-frozen
            self.opt.step()  #- may: branch-frozen gradients-rebound
            self.opt.zero_grad(set_to_none=False)  #- may: branch-frozen
        #+ self.opt.step()
        #+ self.opt.zero_grad(set_to_none=False)
        return loss.detach()

accumulate = Accumulator(nn.Linear(4, 1).to(device))
args = (torch.randn(4, 4, device=device),)
ignore = {"result"}
def step(x):
    return accumulate(x)
# %% EMA through swa_utils -> train_step
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
model = nn.Linear(4, 1).to(device)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device),)
ignore = {"ema"}

def train_step(x):
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update_parameters(model)  #- expect: averaged-model|copy-to-gpu may: host-counter
    #+ for e, p in zip(ema.module.parameters(), model.parameters()):
    #+     e.data.lerp_(p.data, 0.1)
    return loss.detach()
# %% a distributed sampler orders indices by epoch -> fetch
from torch.utils.data import DistributedSampler
data = torch.arange(12).float().view(12, 1)
on_device = data.to(device)
sampler = DistributedSampler(range(12), num_replicas=2, rank=0, shuffle=True, seed=1)
epoch = 0
ignore = {"epoch", "result"}
args = (torch.ones((), device=device),)
#+ index_in = torch.zeros(6, dtype=torch.long, device=device)

def fetch(scale):
    global epoch  #-
    sampler.set_epoch(epoch)  #-
    epoch += 1  #- expect: host-counter
    indices = list(sampler)  #- may: host-random host-counter
    return on_device[indices] * scale  #- expect: cpu-index may: host-random
    #+ return on_device[index_in] * scale
# %% a dataclass of hyperparameters is replaced during training -> step
import dataclasses
@dataclasses.dataclass(frozen=True)
class HP:
    weight_decay: float = 0.01
hp = HP()
w = torch.randn(3).to(device)
args = (torch.randn(3, device=device),)
ignore = {"result", "w"}
#+ decay_in = torch.full((), 0.01, device=device)

@torch.no_grad()
def step(g):
    global hp  #-
    w.mul_(1 - hp.weight_decay).sub_(g, alpha=0.1)  #- expect: scalar-frozen
    hp = dataclasses.replace(hp, weight_decay=hp.weight_decay * 0.9)  #- expect: host-counter
    #+ w.mul_(1 - decay_in).sub_(g, alpha=0.1)
    return w.clone()
