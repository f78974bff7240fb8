# %% a logger with levels that formats tensors -> step
import logging as _logging
_log = _logging.getLogger("pipelines")
_log.setLevel(_logging.DEBUG)
_log.addHandler(_logging.NullHandler())
net = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def step(x):
    y = net(x)
    _log.debug("mean=%s", y.mean().item())  #- expect: sync-item may: host-counter print
    return y
# %% a csv of losses -> train_step
import io as _io
import csv as _csv
_file = _io.StringIO()
_writer = _csv.writer(_file)
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
args = (torch.randn(3, 4, device=device),)

def train_step(x):
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    _writer.writerow([loss.item()])  #- expect: sync-item may: host-counter
    return loss.detach()
# %% gradients scaled by the norm of each layer -> lars_step
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
args = (torch.randn(3, 4, device=device), torch.randn(3, 2, device=device))

def lars_step(x, y):
    loss = F.mse_loss(net(x), y)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    with torch.no_grad():
        for p, g in zip(net.parameters(), grads):
            trust = p.norm() / (g.norm() + 1e-9)
            trust = trust if trust > 0 else 1.0  #- expect: data-dependent-branch
            #+ trust = torch.where(trust > 0, trust, 1.0)
            p.add_(-0.01 * trust * g)  #-
            #+ p.add_(-0.01 * trust * g)
    return loss.detach()
# %% a dropout rate that is scheduled -> train_step
class Scheduled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.rate = nn.Linear(4, 4), 0.0
    def forward(self, x):
        return self.fc(x) * (1.0 - self.rate)  #- expect: scalar-frozen
        #+ return self.fc(x) * (1.0 - rate)

net = Scheduled().to(device)
#+ rate = torch.zeros((), device=device)
#+ ignore = ("rate",)
args = (torch.randn(3, 4, device=device),)

def train_step(x):
    y = net(x)
    net.rate = min(net.rate + 0.05, 0.5)  #- expect: host-counter
    return y.detach()
#+
#+ def after(y, i):
#+     rate.add_(0.05).clamp_(max=0.5)
# %% checkpoints in memory by deepcopy -> step
import copy
net = nn.Linear(3, 3).to(device)
_best = {"state": None, "score": torch.tensor(-1e9, device=device)}
args = (torch.randn(4, 3, device=device),)

@torch.no_grad()
def step(x):
    score = net(x).mean()
    if score > _best["score"]:  #- expect: data-dependent-branch
        _best["state"] = copy.deepcopy(net.state_dict())  #- may: output-alias
        _best["score"] = score  #- may: stale-input host-counter
    return score
# %% masked language modelling with masks on the device (random) -> mask_tokens
args = (torch.randint(5, 30, (4, 8), device=device),)

def mask_tokens(ids, mask_id=3):
    labels = ids.clone()
    chance = torch.full(labels.shape, 0.15, device=ids.device)
    masked = torch.bernoulli(chance).bool()
    labels[~masked] = -100
    replaced = torch.bernoulli(torch.full(labels.shape, 0.8)).bool().to(ids.device) & masked  #- expect: copy-to-gpu may: host-random
    #+ replaced = torch.bernoulli(torch.full(labels.shape, 0.8, device=ids.device)).bool() & masked
    ids = ids.masked_fill(replaced, mask_id)
    return ids, labels
# %% mixed precision with a scaler that is asked for its scale -> train_step
net = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scale = torch.full((), 1024.0, device=device)
good_steps = 0
args = (torch.randn(3, 4, device=device),)

def train_step(x):
    global good_steps  #-
    loss = net(x).square().mean()
    opt.zero_grad()
    (loss * scale).backward()
    for p in net.parameters():
        p.grad.div_(scale)
    opt.step()
    good_steps += 1  #- expect: host-counter
    if good_steps % 3 == 0:  #- expect: branch-frozen
        scale.mul_(2.0)  #-
    return loss.detach()
#+
#+ def after(loss, i):
#+     global good_steps
#+     good_steps += 1
#+     if good_steps % 3 == 0:
#+         scale.mul_(2.0)
# %% an attention module with a registered cache and a position tensor -> decode
class Attention(nn.Module):
    def __init__(self, d=4, size=8):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.register_buffer("k", torch.zeros(1, size, d))
        self.register_buffer("v", torch.zeros(1, size, d))
        self.register_buffer("pos", torch.zeros(1, dtype=torch.long))
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        self.k.index_copy_(1, self.pos, k)
        self.v.index_copy_(1, self.pos, v)
        mask = torch.arange(self.k.size(1), device=x.device) <= self.pos
        out = F.scaled_dot_product_attention(q, self.k, self.v, attn_mask=mask[None, None, :].expand(1, 1, -1)[0])
        self.pos.add_(1).remainder_(self.k.size(1))
        return out

attention = Attention().to(device)
args = (torch.randn(1, 1, 4, device=device),)

@torch.no_grad()
def decode(x):
    return attention(x)
# %% frames in a ring buffer with a Python pointer -> track
ring, at = torch.zeros(4, 3, device=device), 0  #-
#+ ring, at = torch.zeros(4, 3, device=device), torch.zeros((), dtype=torch.long, device=device)
args = (torch.randn(3, device=device),)

def track(frame):
    global at  #-
    ring[at] = frame  #- expect: size-frozen|scalar-frozen|stale-input
    at = (at + 1) % 4  #- expect: host-counter
    #+ ring.index_copy_(0, at[None], frame[None])
    #+ at.add_(1).remainder_(4)
    return ring.mean(0)
# %% everything of a small trainer, done for capture -> train_step
torch.manual_seed(5)
model = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(32, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4)).to(device)
averaged = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3, capturable=True)
running = torch.zeros((), device=device)
args = (torch.randint(0, 20, (6, 4), device=device), torch.randint(0, 4, (6,), device=device))

def train_step(ids, labels):
    loss = F.cross_entropy(model(ids), labels, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(averaged, list(model.parameters()), 0.1)
        running.lerp_(loss, 0.05)
    return loss.detach(), running.clone()
