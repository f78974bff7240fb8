# %% scalars for TensorBoard every step -> train_step
class SummaryWriter:
    def __init__(self):
        self.scalars = {}
    def add_scalar(self, tag, value, step):
        self.scalars.setdefault(tag, []).append((step, float(value)))  # may: sync-item host-counter

writer, global_step = SummaryWriter(), 0
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device), torch.randn(4, 1, device=device))

def train_step(x, y):
    global global_step  #-
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    writer.add_scalar("loss", loss.item(), global_step)  #- expect: sync-item may: host-counter
    writer.add_scalar("grad_norm", grad_norm.item(), global_step)  #- expect: sync-item may: host-counter
    global_step += 1  #- expect: host-counter
    return loss.detach()  #-
    #+ return loss.detach(), grad_norm
#+
#+ def after(out, i):
#+     global global_step
#+     writer.add_scalar("loss", out[0].item(), global_step)
#+     writer.add_scalar("grad_norm", out[1].item(), global_step)
#+     global_step += 1
def seen(out):
    return out[0] if isinstance(out, tuple) else out
# %% a metrics dictionary like wandb's -> train_step
history = []
def log(metrics):
    history.append(metrics)  # may: host-counter output-alias

model = nn.Linear(4, 3).to(device)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
args = (torch.randn(4, 4, device=device), torch.randint(0, 3, (4,), device=device))
def train_step(x, y):
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    acc = (logits.argmax(-1) == y).float().mean()
    log({"loss": loss.item(), "acc": acc.item(), "lr": opt.param_groups[0]["lr"]})  #- expect: sync-item may: host-counter output-alias
    #+ return loss.detach(), acc
#+ def after(out, i):
#+     log({"loss": out[0].item(), "acc": out[1].item(), "lr": opt.param_groups[0]["lr"]})
def seen(out):
    return None
# %% Python's logging -> step
import logging
logger = logging.getLogger("trainer")
model = nn.Linear(4, 1).to(device)
args = (torch.randn(2, 4, device=device),)
def step(x):
    y = model(x).mean()
    logger.info("mean output %.4f", y.item())  #- expect: sync-item may: host-counter print
    return y.detach()
# %% a profiler's ranges -> step
from torch.profiler import record_function
model = nn.Linear(4, 4).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(2, 4, device=device),)
def step(x):
    with record_function("forward"):
        loss = model(x).square().sum()
    with record_function("backward"):
        opt.zero_grad()
        loss.backward()
    with record_function("optimizer"):
        opt.step()
    return loss.detach()
# %% memory in the log -> step
peaks = []
model = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)
ignore = {"peaks"}
def step(x):
    y = model(x).relu()
    peaks.append(cuda.memory_allocated() / 2**20)  #- expect: host-counter
    return y
# %% an average meter -> step
class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0  #-
        #+ self.sum, self.count = torch.zeros((), device=device), torch.zeros((), device=device)
    def update(self, val, n=1):
        self.sum += val * n  #- expect: host-counter
        self.count += n  #- expect: host-counter
        #+ self.sum.add_(val * n)
        #+ self.count.add_(n)
    @property
    def avg(self):
        return self.sum / max(self.count, 1)

meter = AverageMeter()
model = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device), torch.randn(3, 2, device=device))
@torch.no_grad()
def step(x, y):
    loss = F.mse_loss(model(x), y)
    meter.update(loss.item(), x.size(0))  #- expect: sync-item
    #+ meter.update(loss, x.size(0))
    return loss
# %% a confusion matrix with numpy -> evaluate
confusion = np.zeros((3, 3), dtype=int)  #-
#+ confusion = torch.zeros(3, 3, dtype=torch.long, device=device)
model = nn.Linear(4, 3).to(device)
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))
@torch.no_grad()
def evaluate(x, y):
    pred = model(x).argmax(1)
    np.add.at(confusion, (y.cpu().numpy(), pred.cpu().numpy()), 1)  #- expect: copy-to-cpu may: host-counter
    #+ confusion.view(-1).index_add_(0, y * 3 + pred, torch.ones_like(y))
    return pred
# %% print shapes only -> forward
model = nn.Linear(4, 3).to(device)
verbose = False
args = (torch.randn(6, 4, device=device),)
def forward(x):
    if verbose:
        print("input", tuple(x.shape), x.dtype)
    out = model(x)
    assert out.shape == (x.size(0), 3), f"got {tuple(out.shape)}"
    return out
# %% warn about large gradients -> step
import warnings
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
args = (torch.randn(4, 4, device=device),)
def step(x):
    opt.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    if total > 100:  #- expect: data-dependent-branch
        warnings.warn(f"gradient norm {total}")  #- expect: print
    opt.step()
    return loss.detach()
# %% a moving average of the loss -> step
smoothed = None  #-
#+ smoothed = torch.full((), float("nan"), device=device)
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
args = (torch.randn(4, 4, device=device),)
ignore = {"smoothed"}
def step(x):
    global smoothed  #-
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    smoothed = loss.detach() if smoothed is None else 0.9 * smoothed + 0.1 * loss.detach()  #- expect: stale-input
    #+ smoothed.copy_(torch.where(smoothed.isnan(), loss.detach(), 0.9 * smoothed + 0.1 * loss.detach()))
    return smoothed
# %% save a checkpoint when the loss is best -> step
import io
best = float("inf")
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
args = (torch.randn(4, 4, device=device),)
ignore = {"best"}
def step(x):
    global best  #-
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if loss < best:  #- expect: data-dependent-branch|sync-item may: branch-frozen
        best = float(loss)  #- may: sync-item host-counter
        torch.save(model.state_dict(), io.BytesIO())  #- expect: copy-to-cpu may: host-counter
    return loss.detach()
#+
#+ def after(loss, i):
#+     global best
#+     if loss < best:
#+         best = float(loss)
#+         torch.save(model.state_dict(), io.BytesIO())
