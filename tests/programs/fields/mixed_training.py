# %% a Trainer with config, metrics and a schedule -> run_step
from dataclasses import dataclass
@dataclass
class Config:
    lr: float = 1e-2
    log_every: int = 1
    clip: float = 1.0

class Trainer:
    def __init__(self, model, cfg):
        self.model, self.cfg, self.step, self.history = model, cfg, 0, []
        self.opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)  #-
        #+ self.opt = torch.optim.AdamW(model.parameters(), lr=torch.tensor(cfg.lr, device=device), capturable=True)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: 1.0 / (1 + s))
    def train_step(self, batch):
        self.opt.zero_grad()
        loss = F.cross_entropy(self.model(batch["x"]), batch["y"])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
        self.opt.step()  # expect: optimizer-not-capturable may: learning-rate-frozen
        self.sched.step()  #- may: learning-rate-frozen host-counter
        self.step += 1  #- expect: host-counter
        if self.step % self.cfg.log_every == 0:  #-
            self.history.append(loss.item())  #- expect: sync-item may: host-counter
        return loss.detach()
    #+ def finish(self, loss):
    #+     self.sched.step()
    #+     self.step += 1
    #+     if self.step % self.cfg.log_every == 0:
    #+         self.history.append(loss.item())

model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)).to(device)
trainer = Trainer(model, Config())
run_step = trainer.train_step
args = ({"x": torch.randn(4, 6, device=device), "y": torch.randint(0, 3, (4,), device=device)},)
#+ def after(loss, i):
#+     trainer.finish(loss)
# %% a student with a teacher, a queue and a temperature schedule -> distill
teacher, student = nn.Linear(4, 3).to(device).eval(), nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
confident = []
epoch_fraction = 0.0
args = (torch.randn(6, 4, device=device),)
#+ T = torch.tensor(4.0, device=device)

def distill(x):
    global epoch_fraction  #-
    T = 4.0 * (1 - epoch_fraction) + 1.0 * epoch_fraction  #-
    with torch.no_grad():
        t = F.softmax(teacher(x) / T, dim=-1)  # expect: scalar-frozen
    s = F.log_softmax(student(x) / T, dim=-1)  # expect: scalar-frozen
    loss = F.kl_div(s, t, reduction="batchmean") * T * T  # may: scalar-frozen
    opt.zero_grad()
    loss.backward()  # may: scalar-frozen
    opt.step()
    confident.append((t.max(-1).values > 0.5).sum().item())  #- expect: sync-item may: host-counter output-alias
    epoch_fraction += 0.05  #- expect: host-counter
    return loss.detach()  #-
    #+ return loss.detach(), (t.max(-1).values > 0.5).sum()
#+
#+ def after(out, i):
#+     global epoch_fraction
#+     confident.append(out[1].item())
#+     epoch_fraction += 0.05
#+     T.fill_(4.0 * (1 - epoch_fraction) + 1.0 * epoch_fraction)
def seen(out):
    return out[0] if isinstance(out, tuple) else out
# %% contrastive learning with hard negatives and a learned scale -> clip_step
img_enc, txt_enc = nn.Linear(6, 4).to(device), nn.Linear(5, 4).to(device)
logit_scale = nn.Parameter(torch.tensor(2.0, device=device))
opt = torch.optim.Adam([*img_enc.parameters(), *txt_enc.parameters(), logit_scale], lr=1e-3)  #-
#+ opt = torch.optim.Adam([*img_enc.parameters(), *txt_enc.parameters(), logit_scale], lr=1e-3, capturable=True)
args = (torch.randn(4, 6, device=device), torch.randn(4, 5, device=device))
#+ labels = torch.arange(4, device=device)

def clip_step(img, txt):
    a, b = F.normalize(img_enc(img), dim=-1), F.normalize(txt_enc(txt), dim=-1)
    scale = logit_scale.exp()
    if scale > 100:  #- expect: data-dependent-branch
        scale = scale * 0 + 100  #-
    #+ scale = scale.clamp(max=100)
    logits = scale * a @ b.t()
    labels = torch.arange(len(img)).to(img.device)  #- expect: copy-to-gpu
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()  # expect: optimizer-not-capturable
    return loss.detach()
# %% language modelling with truncated backpropagation -> lm_step
emb, rnn, out = nn.Embedding(11, 8).to(device), nn.LSTM(8, 8, batch_first=True).to(device), nn.Linear(8, 11).to(device)
params = [*emb.parameters(), *rnn.parameters(), *out.parameters()]
opt = torch.optim.SGD(params, lr=0.5)
hidden = (torch.zeros(1, 2, 8, device=device), torch.zeros(1, 2, 8, device=device))
total_loss, batches = 0.0, 0
args = (torch.randint(0, 11, (2, 5), device=device), torch.randint(0, 11, (2, 5), device=device))
ignore = {"hidden"}

def lm_step(data, targets):
    global hidden, total_loss, batches  #-
    h, c = hidden
    y, (h, c) = rnn(emb(data), (h.detach(), c.detach()))  # expect: stale-input
    loss = F.cross_entropy(out(y).flatten(0, 1), targets.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, 0.25)
    opt.step()
    hidden = (h, c)  #- may: stale-input
    total_loss += loss.item()  #- expect: sync-item may: host-counter
    batches += 1  #- expect: host-counter
    #+ with torch.no_grad():
    #+     hidden[0].copy_(h)
    #+     hidden[1].copy_(c)
    return loss.detach()
#+
#+ def after(loss, i):
#+     global total_loss, batches
#+     total_loss += loss.item()
#+     batches += 1
# %% detection head with matching by threshold -> detection_loss
anchors = torch.rand(8, 4, device=device)
cls_head, reg_head = nn.Linear(4, 2).to(device), nn.Linear(4, 4).to(device)
positives = []
args = (torch.randn(8, 4, device=device), torch.rand(3, 4, device=device))

def detection_loss(features, gt):
    distance = torch.cdist(anchors, gt)
    best, matched = distance.min(dim=1)
    pos = best < 0.6
    positives.append(int(pos.sum()))  #- expect: sync-item may: host-counter
    cls = cls_head(features)
    reg = reg_head(features)[pos]  #- expect: dynamic-shape
    target = gt[matched[pos]]  #- expect: dynamic-shape
    reg_loss = F.smooth_l1_loss(reg, target, reduction="sum") / max(reg.shape[0], 1)  #-
    #+ each = F.smooth_l1_loss(reg_head(features), gt[matched], reduction="none").sum(1)
    #+ reg_loss = torch.where(pos, each, 0.0).sum() / pos.sum().clamp(min=1)
    cls_loss = F.cross_entropy(cls, pos.long())
    return (cls_loss + reg_loss).detach()  #-
    #+ return (cls_loss + reg_loss).detach(), pos.sum()
#+
#+ def after(out, i):
#+     positives.append(int(out[1]))
def seen(out):
    return out[0] if isinstance(out, tuple) else out
# %% scheduled sampling in a sequence model (random) -> decode_train
cell, head, emb = nn.GRUCell(4, 8).to(device), nn.Linear(8, 6).to(device), nn.Embedding(6, 4).to(device)
sampling_prob = 0.3
args = (torch.randint(0, 6, (2, 4), device=device),)

def decode_train(tokens):
    h = torch.zeros(2, 8).to(device)  #- expect: copy-to-gpu
    #+ h = torch.zeros(2, 8, device=device)
    x, loss = tokens[:, 0], 0.0
    for t in range(1, tokens.size(1)):
        h = cell(emb(x), h)
        logits = head(h)
        loss = loss + F.cross_entropy(logits, tokens[:, t])
        x = logits.argmax(-1) if random.random() < sampling_prob else tokens[:, t]  #- expect: branch-frozen|host-random
        #+ x = torch.where(torch.rand((), device=device) < sampling_prob, logits.argmax(-1), tokens[:, t])
    if loss != loss:  #- expect: data-dependent-branch
        raise FloatingPointError("the loss is not a number")  #-
    return loss.detach()
# %% a progressive resizing curriculum -> step
net = nn.Conv2d(3, 4, 3, padding=1).to(device)
head = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.05)
sizes, it = [8, 6, 4], 0
sums = {"loss": 0.0}
args = (torch.rand(2, 3, 8, 8, device=device), torch.tensor([0, 1], device=device))
#+ def feed(i):
#+     g = torch.Generator().manual_seed(i)
#+     return torch.rand(2, 3, 8, 8, generator=g).to(device), torch.tensor([0, 1]).to(device)
def step(img, y):
    global it  #-
    size = sizes[it % 3]  #-
    img = F.interpolate(img, size=(size, size), mode="nearest")  #- expect: size-frozen|scalar-frozen
    logits = head(net(img).relu().mean((2, 3)))
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sums["loss"] += loss.item()  #- expect: sync-item may: host-counter
    it += 1  #- expect: host-counter
    return loss.detach()
def seen(loss):
    return None
#+ def after(loss, i):
#+     sums["loss"] += loss.item()
ignore = {"sums", "it", "net", "head"}
# %% pseudo-labels above a confidence -> fixmatch_step
model = nn.Linear(5, 3).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
threshold = 0.5
used = 0
args = (torch.randn(4, 5, device=device), torch.randint(0, 3, (4,), device=device), torch.randn(6, 5, device=device))
#+ used = torch.zeros((), dtype=torch.long, device=device)

def fixmatch_step(x, y, u):
    global used  #-
    with torch.no_grad():
        conf, pseudo = model(u).softmax(-1).max(-1)
    mask = conf > threshold
    loss = F.cross_entropy(model(x), y)
    if mask.any():  #- expect: data-dependent-branch
        loss = loss + F.cross_entropy(model(u[mask]), pseudo[mask])  #- expect: dynamic-shape may: dynamic-shape
    used += mask.sum().item()  #- expect: sync-item may: host-counter
    #+ each = F.cross_entropy(model(u), pseudo, reduction="none")
    #+ loss = loss + torch.where(mask, each, 0.0).sum() / mask.sum().clamp(min=1)
    #+ used.add_(mask.sum())
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% Lookahead around another optimizer -> step
model = nn.Linear(4, 2).to(device)
slow = [p.detach().clone() for p in model.parameters()]
fast_opt = torch.optim.NAdam(model.parameters(), lr=1e-2)  #-
#+ fast_opt = torch.optim.NAdam(model.parameters(), lr=1e-2, capturable=True)
k, counter = 3, 0
args = (torch.randn(4, 4, device=device), torch.randn(4, 2, device=device))

def step(x, y):
    global counter  #-
    fast_opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    fast_opt.step()  # expect: optimizer-not-capturable
    counter += 1  #- expect: host-counter
    if counter % k == 0:  #- expect: branch-frozen
        with torch.no_grad():  #-
            for s, p in zip(slow, model.parameters()):  #-
                s.add_(p - s, alpha=0.5)  #-
                p.copy_(s)  #-
    return loss.detach()
#+
#+ def after(loss, i):
#+     global counter
#+     counter += 1
#+     if counter % k == 0:
#+         with torch.no_grad():
#+             for s, p in zip(slow, model.parameters()):
#+                 s.add_(p - s, alpha=0.5)
#+                 p.copy_(s)
# %% everything done right -> train_step
class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

model = nn.Sequential(nn.Embedding(13, 8), Block(8), Block(8), nn.Linear(8, 13)).to(device)
ema = [p.detach().clone() for p in model.parameters()]
lr = torch.tensor(1e-3, device=device)
opt = torch.optim.AdamW(model.parameters(), lr=lr, capturable=True, foreach=True)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.5)
loss_sum, norm_max = torch.zeros((), device=device), torch.zeros((), device=device)
logged = []
args = (torch.randint(0, 13, (2, 6), device=device),)

def train_step(tokens):
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    torch._foreach_lerp_(ema, [p.detach() for p in model.parameters()], 0.01)
    loss_sum.add_(loss.detach())
    norm_max.copy_(torch.maximum(norm_max, norm))
    return loss.detach()
def after(loss, i):
    sched.step()
    logged.append(loss.item())
