# %% a counter of skipped updates beside a finite check -> train_step
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device),)
skipped = 0

def train_step(x):
    global skipped  #-
    loss = model(x).square().mean()
    opt.zero_grad(set_to_none=False)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    if not torch.isfinite(norm):  #- expect: data-dependent-branch
        skipped += 1  #- may: host-counter
        opt.zero_grad(set_to_none=False)  #-
    opt.step()
    return loss.detach()
# %% statistics of activations in a class decorator's wrapper -> forward
def with_stats(cls):
    original = cls.forward
    def forward(self, x):
        y = original(self, x)
        self.mean_out = 0.99 * self.mean_out + 0.01 * y.mean().item()  #- expect: sync-item may: host-counter
        return y
    cls.forward = forward
    cls.mean_out = 0.0
    return cls

@with_stats
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
    def forward(self, x):
        return self.lin(x).relu()

block = Block().to(device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def forward(x):
    return block(x)
# %% a namedtuple of metrics returned as floats -> evaluate
from collections import namedtuple
Metrics = namedtuple("Metrics", "loss acc")
head = nn.Linear(4, 3).to(device)
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))

@torch.no_grad()
def evaluate(x, y):
    logits = head(x)
    loss = F.cross_entropy(logits, y)
    acc = (logits.argmax(-1) == y).float().mean()
    return Metrics(loss.item(), acc.item())  #- expect: sync-item
    #+ return Metrics(loss, acc)
# %% a tensor clock of steps on the device, clean -> train_step
model = nn.Linear(4, 1).to(device)
step = torch.zeros((), device=device)
args = (torch.randn(4, 4, device=device),)

def train_step(x):
    step.add_(1)
    w = torch.clamp(step / 10, max=1.0)
    model.zero_grad()
    loss = model(x).square().mean() * w
    loss.backward()
    return loss.detach(), model.weight.grad.clone()
# %% neighbours within a cutoff through nonzero in a module -> energies
class Pairs(nn.Module):
    def __init__(self, cutoff=1.0):
        super().__init__()
        self.cutoff = cutoff
    def forward(self, pos):
        d = (pos[:, None] - pos[None]).norm(dim=-1)
        i, j = torch.nonzero((d < self.cutoff) & (d > 0), as_tuple=True)  #- expect: dynamic-shape
        e = torch.zeros(len(pos), device=pos.device)  #-
        return e.index_add_(0, i, 1.0 / d[i, j])  #- may: size-frozen
        #+ near = (d < self.cutoff) & (d > 0)
        #+ return torch.where(near, 1.0 / d.clamp(min=1e-9), 0.0).sum(1)

pairs = Pairs()
args = (torch.randn(5, 3, device=device),)

def energies(pos):
    return pairs(pos)
# %% validation losses in a list comprehension over tensors -> validate
head = nn.Linear(4, 1).to(device)
batches = [torch.randn(2, 4).to(device) for _ in range(3)]
args = (torch.ones((), device=device),)

@torch.no_grad()
def validate(scale):
    losses = [head(b).square().mean().item() for b in batches]  #- expect: sync-item
    #+ losses = [head(b).square().mean() for b in batches]
    return sum(losses) / len(losses) * scale  #- may: scalar-frozen
    #+ return sum(losses) / len(losses) * scale
# %% sliding window attention with a band mask, clean -> attend
args = (torch.randn(1, 6, 8, device=device),)

def attend(x):
    i = torch.arange(6, device=x.device)
    band = (i[:, None] - i[None]).abs() <= 2
    scores = (x @ x.mT / math.sqrt(8)).masked_fill(~band, float("-inf"))
    return scores.softmax(-1) @ x
# %% a percentile by kthvalue of a count in a tensor -> threshold
args = (torch.rand(20, device=device), torch.tensor(0.5, device=device))

def threshold(x, q):
    k = int(q * x.numel())  #- expect: sync-item
    return x.kthvalue(k).values  #-
    #+ k = (q * x.numel()).long()
    #+ return x.sort().values[(k - 1).reshape(1)][0]
def feed(i):
    return torch.rand(20, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor(0.5).to(device)
# %% gradient noise whose scale falls with the step -> train_step
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
state = {"step": 0}
ignore = {"result", "model", "state", "noise_in"}
args = (torch.randn(4, 4, device=device),)
#+ noise_in = torch.ones((), device=device)

def train_step(x):
    loss = model(x).square().mean()
    opt.zero_grad(set_to_none=False)
    loss.backward()
    state["step"] += 1  #- expect: host-counter
    sigma = 0.1 / (1 + state["step"]) ** 0.55  #-
    for p in model.parameters():
        p.grad.add_(torch.randn_like(p) * sigma)  #- expect: scalar-frozen
        #+ p.grad.add_(torch.randn_like(p) * noise_in)
    opt.step()
    return loss.detach()
#+ def feed(i):
#+     noise_in.fill_(0.1 / (2 + i) ** 0.55)
#+     return (torch.randn(4, 4, generator=torch.Generator().manual_seed(i)).to(device),)
# %% a queue of negatives with a pointer in Python -> contrast
queue = F.normalize(torch.randn(8, 4), dim=1).to(device)
ptr = 0
args = (torch.randn(2, 4, device=device),)
#+ at = torch.zeros(1, dtype=torch.long, device=device)
ignore = {"ptr"}

@torch.no_grad()
def contrast(k):
    global ptr  #-
    k = F.normalize(k, dim=1)
    scores = k @ queue.T
    queue[ptr:ptr + 2] = k  #- expect: size-frozen
    ptr = (ptr + 2) % 8  #- expect: host-counter
    #+ queue.index_copy_(0, at + torch.arange(2, device=k.device), k)
    #+ at.copy_((at + 2) % 8)
    return scores
# %% text of a shape and a mean in the log -> forward
import logging
log = logging.getLogger("shape")
log.addHandler(logging.NullHandler())
log.propagate = False
log.setLevel(logging.DEBUG)
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def forward(x):
    y = lin(x)
    log.debug("out %s mean %.3f", tuple(y.shape), y.mean())  #- expect: print|sync-item|host-counter
    return y
# %% moments kept by a recursive class without a module, clean -> update
class Moments:
    def __init__(self):
        self.mean, self.var = torch.zeros(4, device=device), torch.ones(4, device=device)
    def __call__(self, x):
        self.mean.lerp_(x.mean(0), 0.1)
        self.var.lerp_(x.var(0), 0.1)
        return (x - self.mean) / (self.var + 1e-5).sqrt()

moments = Moments()
args = (torch.randn(6, 4, device=device),)

def update(x):
    return moments(x)
# %% an interpolation of knots searched on the CPU -> interpolate
knots = torch.linspace(0, 1, 5)
values = torch.tensor([0.0, 1.0, 0.5, 2.0, 1.0]).to(device)
args = (torch.rand(6, device=device),)

def interpolate(t):
    i = torch.searchsorted(knots, t.cpu()).clamp(1, 4)  #- expect: copy-to-cpu
    i = i.to(device)  #- expect: copy-to-gpu
    left, right = knots.to(device)[i - 1], knots.to(device)[i]  #- expect: copy-to-gpu
    #+ i = torch.searchsorted(knots_on_device, t).clamp(1, 4)
    #+ left, right = knots_on_device[i - 1], knots_on_device[i]
    w = (t - left) / (right - left)
    return values[i - 1] * (1 - w) + values[i] * w
#+ knots_on_device = knots.to(device)
# %% an accumulating confusion matrix by pairs of indices, clean -> update
matrix = torch.zeros(3, 3, device=device)
args = (torch.randint(0, 3, (10,), device=device), torch.randint(0, 3, (10,), device=device))

def update(pred, target):
    matrix.view(-1).index_add_(0, target * 3 + pred, torch.ones_like(pred, dtype=matrix.dtype))
    return matrix.diagonal() / matrix.sum(1).clamp(min=1)
# %% micro batches with a scheduler stepped inside the loop -> accumulate
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)  #-
#+ opt = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1, device=device), fused=True)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.9)
args = (torch.randn(4, 4, device=device),)

def accumulate(x):
    opt.zero_grad(set_to_none=False)
    for part in x.chunk(2):
        (model(part).square().mean() / 2).backward()
    opt.step()  # expect: learning-rate-frozen
    sched.step()  #- may: host-counter
    return model.weight.detach().clone()
#+ def after(out, i):
#+     sched.step()
# %% a set of hard examples by a comparison and tolist -> mine
head = nn.Linear(4, 3).to(device)
hard = set()
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device), torch.arange(6, device=device))
ignore = {"hard"}

@torch.no_grad()
def mine(x, y, ids):
    loss = F.cross_entropy(head(x), y, reduction="none")
    worst = loss.topk(2).indices
    hard.update(ids[worst].tolist())  #- expect: copy-to-cpu may: host-counter
    return loss
# %% weights of ensemble members by a softmax of Python floats -> combine
members = [nn.Linear(4, 2).to(device) for _ in range(3)]
scores = [0.1, 0.7, 0.2]
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def combine(x):
    w = torch.softmax(torch.tensor(scores, device=x.device), 0)  #- expect: tensor-literal
    #+ w = weights
    return sum(w[i] * m(x) for i, m in enumerate(members))
#+ weights = torch.softmax(torch.tensor(scores, device=device), 0)
# %% a residual that loops until it is small, at most five times -> refine
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def refine(x):
    for k in range(5):
        new = torch.tanh(lin(x))
        small = (new - x).abs().max() < 1e-6
        x = new
        if small:  #- expect: data-dependent-branch
            break  #-
    return x
# %% temperatures of a schedule drawn by numpy per call (random) -> sample
head = nn.Linear(4, 5).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def sample(x):
    temperature = float(np.random.choice([0.5, 1.0, 2.0]))  #- may: host-random
    return (head(x) / temperature).softmax(-1)  #- expect: host-random
    #+ return (head(x) / table[torch.randint(0, 3, (1,), device=device)]).softmax(-1)
#+ table = torch.tensor([0.5, 1.0, 2.0]).to(device)
# %% a frozen teacher and a student with a temperature, clean -> distill
teacher, student = nn.Linear(4, 3).to(device).requires_grad_(False), nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
args = (torch.randn(5, 4, device=device),)

def distill(x):
    soft = F.softmax(teacher(x) / 2.0, -1)
    loss = F.kl_div(F.log_softmax(student(x) / 2.0, -1), soft, reduction="batchmean") * 4.0
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% a bank of features indexed by labels of the host -> center_loss
centers = torch.randn(3, 4).to(device)
labels = [0, 2, 1, 0]
args = (torch.randn(4, 4, device=device),)

def center_loss(x):
    return (x - centers[labels]).square().sum(1).mean()  #- expect: cpu-index
    #+ return (x - centers[labels_on_device]).square().sum(1).mean()
#+ labels_on_device = torch.tensor(labels, device=device)
