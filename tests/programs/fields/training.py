# %% log the loss of every step -> train_step
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
losses = []
args = (torch.randn(4, 8, device=device), torch.randn(4, 1, device=device))

def train_step(data, target):
    optimizer.zero_grad()
    loss = F.mse_loss(model(data), target)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())  #- expect: sync-item may: host-counter output-alias
    #+ return loss.detach()
#+
#+ def after(loss, i):
#+     losses.append(loss.item())
def seen(loss):
    return None
# %% cosine schedule inside the step -> train_step
model = nn.Linear(8, 4).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05)  #-
#+ optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2, device=device), weight_decay=0.05, capturable=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
criterion = nn.CrossEntropyLoss()
args = (torch.randn(4, 8, device=device), torch.randint(0, 4, (4,), device=device))

def train_step(images, labels):
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()  # expect: optimizer-not-capturable learning-rate-frozen
    scheduler.step()  #- may: learning-rate-frozen host-counter
    return loss.detach()
#+
#+ def after(loss, i):
#+     scheduler.step()
# %% accumulate gradients over four micro-batches -> training_step
net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
accumulation_steps = 4
global_step = 0
args = (torch.randn(3, 6, device=device), torch.randn(3, 2, device=device))
#+ for p in net.parameters():
#+     p.grad = torch.zeros_like(p)

def training_step(x, y):
    global global_step  #-
    loss = F.mse_loss(net(x), y) / accumulation_steps
    loss.backward()
    global_step += 1  #- expect: host-counter
    if global_step % accumulation_steps == 0:  #- expect: branch-frozen
        opt.step()  #- may: gradients-rebound
        opt.zero_grad()  #- may: gradients-rebound
    return loss.detach()
#+
#+ def after(loss, i):
#+     global global_step
#+     global_step += 1
#+     if global_step % accumulation_steps == 0:
#+         opt.step()
#+         opt.zero_grad(set_to_none=False)
# %% skip batches whose loss is not finite -> step
model = nn.Linear(5, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
args = (torch.randn(4, 5, device=device), torch.randn(4, 1, device=device))

def step(x, y):
    opt.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    if not torch.isfinite(loss):  #- expect: data-dependent-branch
        return loss.detach()  #-
    loss.backward()
    #+ fine = torch.isfinite(loss)
    #+ for p in model.parameters():
    #+     p.grad = torch.where(fine, p.grad, 0.0)
    opt.step()
    return loss.detach()
# %% label smoothing, clipping and AdamW -> train_one_batch
torch.manual_seed(7)
backbone = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 5)).to(device)
optimizer = torch.optim.AdamW(backbone.parameters(), lr=3e-4, capturable=True)
loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
args = (torch.randn(6, 8, device=device), torch.randint(0, 5, (6,), device=device))

def train_one_batch(inputs, targets):
    logits = backbone(inputs)
    loss = loss_fn(logits, targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(backbone.parameters(), max_norm=1.0)
    optimizer.step()
    return loss.detach(), grad_norm
# %% a progress bar with the loss -> train_step
class Progress:
    def __init__(self, total):
        self.total, self.n, self.postfix = total, 0, {}
    def update(self, n=1):
        self.n += n  #- expect: host-counter
        #+ self.n += n
    def set_postfix(self, **kwargs):
        self.postfix = kwargs

pbar = Progress(total=100)
model = nn.Linear(8, 1).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
args = (torch.randn(4, 8, device=device), torch.randn(4, 1, device=device))

def train_step(x, y):
    optimizer.zero_grad()
    loss = F.l1_loss(model(x), y)
    loss.backward()
    optimizer.step()
    pbar.set_postfix(loss=f"{loss.item():.4f}")  #- expect: sync-item|print may: host-counter
    pbar.update(1)  #-
    #+ return loss.detach()

#+ def after(loss, i):
#+     pbar.set_postfix(loss=f"{loss.item():.4f}")
#+     pbar.update(1)
def seen(loss):
    return None
# %% stop early when the loss no longer falls -> step
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
best_loss, patience = float("inf"), 0
args = (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))

def step(x, y):
    global best_loss, patience  #-
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    if loss.item() < best_loss:  #- expect: sync-item|data-dependent-branch may: branch-frozen
        best_loss = loss.item()  #- expect: sync-item may: host-counter
        patience = 0  #- may: host-counter
    else:  #-
        patience += 1  #- may: host-counter
    return loss.detach()
#+
#+ def after(loss, i):
#+     global best_loss, patience
#+     if loss.item() < best_loss:
#+         best_loss, patience = loss.item(), 0
#+     else:
#+         patience += 1
# %% take the next batch from the loader in the step -> train_step
dataset = torch.utils.data.TensorDataset(torch.randn(160, 6), torch.randint(0, 3, (160,)))
loader = torch.utils.data.DataLoader(dataset, batch_size=4)
data_iter = iter(loader)
model = nn.Linear(6, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
args = ()  #-
#+ args = (torch.zeros(4, 6, device=device), torch.zeros(4, dtype=torch.long, device=device))
#+ def feed(i):
#+     xb, yb = next(data_iter)
#+     return xb.to(device), yb.to(device)

def train_step():  #-
#+ def train_step(xb, yb):
    xb, yb = next(data_iter)  #- may: stale-input
    xb, yb = xb.to(device), yb.to(device)  #- expect: copy-to-gpu may: stale-input
    loss = F.cross_entropy(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
# %% running accuracy -> train_batch
model = nn.Linear(10, 4).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
correct, total = 0, 0  #-
#+ correct, total = torch.zeros((), device=device), 0
args = (torch.randn(5, 10, device=device), torch.randint(0, 4, (5,), device=device))

def train_batch(inputs, targets):
    global correct, total  #-
    optimizer.zero_grad()
    outputs = model(inputs)
    loss = criterion(outputs, targets)
    loss.backward()
    optimizer.step()
    _, predicted = outputs.max(1)
    total += targets.size(0)  #- expect: host-counter
    correct += predicted.eq(targets).sum().item()  #- expect: sync-item may: host-counter
    #+ correct.add_(predicted.eq(targets).sum())
    return loss.detach()
#+
#+ def after(loss, i):
#+     global total
#+     total += 5
# %% L-BFGS with a closure -> train_step
model = nn.Linear(3, 1).to(device)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=1)
args = (torch.randn(10, 3, device=device), torch.randn(10, 1, device=device))
#+ for p in model.parameters():
#+     p.grad = torch.zeros_like(p)

def train_step(x, y):
    def closure():  #-
        optimizer.zero_grad()  #-
        loss = F.mse_loss(model(x), y)  #-
        loss.backward()  #-
        return loss  #-
    return optimizer.step(closure).detach()  #- expect: optimizer-sync|sync-item may: gradients-rebound
    #+ optimizer.zero_grad(set_to_none=False)
    #+ loss = F.mse_loss(model(x), y)
    #+ loss.backward()
    #+ return loss.detach()
#+
#+ def after(loss, i):
#+     optimizer.step(lambda: loss)
# %% print every second step -> train_step
model = nn.Linear(6, 2).to(device)
optimizer = torch.optim.RAdam(model.parameters(), lr=1e-2, capturable=True)
iteration = 0
log_interval = 2
args = (torch.randn(4, 6, device=device), torch.randn(4, 2, device=device))

def train_step(x, y):
    global iteration  #-
    optimizer.zero_grad()
    loss = F.smooth_l1_loss(model(x), y)
    loss.backward()
    optimizer.step()
    iteration += 1  #- expect: host-counter
    if iteration % log_interval == 0:  #- may: branch-frozen
        print(f"iter {iteration}: loss {loss:.3f}")  #- expect: print may: host-counter
    return loss.detach()
#+
#+ def after(loss, i):
#+     global iteration
#+     iteration += 1
#+     if iteration % log_interval == 0:
#+         print(f"iter {iteration}: loss {loss:.3f}")
# %% sharpness-aware minimization -> sam_step
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
base = torch.optim.SGD(model.parameters(), lr=0.05)
rho = 0.05
args = (torch.randn(4, 6, device=device), torch.randn(4, 1, device=device))

def sam_step(x, y):
    base.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    params = list(model.parameters())
    grad_norm = torch.norm(torch.stack([p.grad.norm(2) for p in params]), 2)
    scale = rho / (grad_norm.item() + 1e-12)  #- expect: sync-item
    #+ scale = rho / (grad_norm + 1e-12)
    e_ws = []
    with torch.no_grad():
        for p in params:
            e_w = p.grad * scale  # may: scalar-frozen
            p.add_(e_w)
            e_ws.append(e_w)
    base.zero_grad()
    F.mse_loss(model(x), y).backward()
    with torch.no_grad():
        for p, e_w in zip(params, e_ws):
            p.sub_(e_w)
    base.step()
    return loss.detach()
# %% stochastic weight averaging -> swa_step
model = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device), torch.randn(4, 2, device=device))
average = [p.detach().clone() for p in model.parameters()]
n_averaged = torch.ones((), device=device)

def swa_step(x, y):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    with torch.no_grad():
        n_averaged.add_(1)
        for a, p in zip(average, model.parameters()):
            a.add_((p - a) / n_averaged)
    return loss.detach()
# %% torch's AveragedModel -> swa_step
model = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
averaged = torch.optim.swa_utils.AveragedModel(model)
args = (torch.randn(4, 4, device=device), torch.randn(4, 2, device=device))

def swa_step(x, y):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    averaged.update_parameters(model)  #- expect: averaged-model may: host-counter
    return loss.detach()
#+
#+ def after(loss, i):
#+     averaged.update_parameters(model)
# %% linear warm-up by hand -> train_step
model = nn.Linear(5, 2).to(device)
base_lr, warmup = 0.1, 6
optimizer = torch.optim.SGD(model.parameters(), lr=base_lr)  #-
#+ lr = torch.tensor(base_lr / warmup, device=device)
it = 0
args = (torch.randn(4, 5, device=device), torch.randn(4, 2, device=device))

def train_step(x, y):
    global it  #-
    it += 1  #- expect: host-counter
    for group in optimizer.param_groups:  #-
        group["lr"] = base_lr * min(1.0, it / warmup)  #- may: learning-rate-frozen
    model.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()  #- expect: learning-rate-frozen
    #+ with torch.no_grad():
    #+     for p in model.parameters():
    #+         p.sub_(lr * p.grad)
    return loss.detach()
#+
#+ def after(loss, i):
#+     global it
#+     it += 1
#+     lr.fill_(base_lr * min(1.0, (it + 1) / warmup))
# %% gradient noise -> train_step
model = nn.Linear(5, 5).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
args = (torch.randn(4, 5, device=device), torch.randint(0, 5, (4,), device=device))

def train_step(x, y):
    optimizer.zero_grad(set_to_none=True)
    loss = F.nll_loss(F.log_softmax(model(x), dim=1), y)
    loss.backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad.add_(torch.randn_like(p.grad), alpha=0.01)
    optimizer.step()
    return loss.detach()
# %% mixup with numpy (random) -> mixup_step
model = nn.Linear(6, 3).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
alpha = 0.4
args = (torch.randn(4, 6, device=device), torch.randint(0, 3, (4,), device=device))

def mixup_step(x, y):
    lam = np.random.beta(alpha, alpha)  #- may: host-random
    index = torch.randperm(x.size(0)).to(x.device)  #- expect: copy-to-gpu
    #+ lam = torch.rand((), device=x.device)
    #+ index = torch.rand(x.size(0), device=x.device).argsort()
    mixed_x = lam * x + (1 - lam) * x[index]  # expect: host-random
    out = model(mixed_x)
    loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[index])  # may: host-random
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% focal loss with class weights from a list -> train_step
model = nn.Linear(6, 3).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
class_weights = [1.0, 2.0, 0.5]
gamma = 2.0
args = (torch.randn(4, 6, device=device), torch.randint(0, 3, (4,), device=device))
#+ weight = torch.tensor(class_weights, device=device)

def train_step(x, y):
    logits = model(x)
    weight = torch.tensor(class_weights, device=x.device)  #- expect: tensor-literal
    ce = F.cross_entropy(logits, y, weight=weight, reduction="none")
    pt = torch.exp(-ce)
    loss = ((1 - pt) ** gamma * ce).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% only the hardest examples -> train_step
model = nn.Linear(6, 3).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
args = (torch.randn(8, 6, device=device), torch.randint(0, 3, (8,), device=device))

def train_step(x, y):
    losses = F.cross_entropy(model(x), y, reduction="none")
    hard = losses > losses.mean()
    loss = losses[hard].mean()  #- expect: dynamic-shape
    #+ loss = torch.where(hard, losses, 0.0).sum() / hard.sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% top-k of the losses instead -> train_step
model = nn.Linear(6, 3).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
keep = 0.5
args = (torch.randn(8, 6, device=device), torch.randint(0, 3, (8,), device=device))

def train_step(x, y):
    losses = F.cross_entropy(model(x), y, reduction="none")
    k = int(keep * losses.numel())
    loss = losses.topk(k).values.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
