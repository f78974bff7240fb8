# %% a learned scheduler reads the loss of the last steps from a deque -> step
from collections import deque
net = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
window = deque(maxlen=4)
args = (torch.randn(8, 4, device=device), torch.randint(0, 2, (8,), device=device))

def step(x, y):
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    window.append(loss.detach())  #- expect: output-alias|host-counter|results-kept
    opt.step()
    return torch.stack(list(window)).mean()  #- may: size-frozen stale-input
    #+ return loss.detach()
#+ def seen(out):
#+     window.append(out.clone())
#+     return torch.stack(list(window)).mean()
# %% losses of tasks weighted by their ratio to the first -> gradnorm
net, heads = nn.Linear(4, 4).to(device), nn.ModuleList(nn.Linear(4, 1) for _ in range(2)).to(device)
opt = torch.optim.SGD([*net.parameters(), *heads.parameters()], lr=0.05)
first = None  #-
ignore = ("first",)
#+ first = torch.zeros(2, device=device)
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device))

def gradnorm(x, y):
    global first  #-
    h = net(x).relu()
    losses = [F.mse_loss(head(h)[:, 0], y[:, i]) for i, head in enumerate(heads)]
    if first is None:  #-
        first = [l.item() for l in losses]  #-
    #+ first.copy_(torch.where(first == 0, torch.stack(losses).detach(), first))
    ratios = [l.item() / f for l, f in zip(losses, first)]  #- expect: sync-item
    #+ ratios = [l.detach() / f for l, f in zip(losses, first)]
    total = sum(r * l for r, l in zip(ratios, losses))
    opt.zero_grad()
    total.backward()
    opt.step()
    return total.detach()
# %% a triplet loss mines the hardest pairs with a mask -> triplet
net = nn.Linear(6, 4).to(device)
args = (torch.randn(8, 6, device=device), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3], device=device))
labels_ = args[1]
def feed(i):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(i)).to(device), labels_

def triplet(x, labels):
    e = F.normalize(net(x))
    d = torch.cdist(e, e)
    same = labels[:, None] == labels[None]
    hardest_pos = (d * same).max(1).values
    hardest_neg = (d + 10.0 * same).min(1).values
    losses = F.relu(hardest_pos - hardest_neg + 0.2)
    active = losses > 0
    if active.sum() == 0:  #- expect: data-dependent-branch
        return losses.sum()  #-
    return losses[active].mean()  #- expect: dynamic-shape
    #+ return losses.sum() / active.sum().clamp(min=1)
# %% a depth-limited tree walk decides by thresholds -> predict
feature, threshold = torch.tensor([0, 1, 2], device=device), torch.tensor([0.0, 0.5, -0.5], device=device)
leaves = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)
args = (torch.randn(5, 3, device=device),)

def predict(x):
    out = []
    for row in x:
        node = 0  #-
        #+ node = torch.zeros(1, dtype=torch.long, device=device)
        for _ in range(2):
            if row[feature[node]] > threshold[node]:  #- expect: data-dependent-branch sync-item may: tensor-bound
                node = 2 * node + 2  #-
            else:  #-
                node = 2 * node + 1  #-
            if node >= 3:  #-
                break  #-
            #+ node = torch.where(row[feature[node]] > threshold[node], 2 * node + 2, 2 * node + 1)
        out.append(leaves[node - 3])  #-
        #+ out.append(leaves[node - 3][0])
    return torch.stack(out)
# %% a soft update only when an average improves -> evaluate
net, best = nn.Linear(4, 1).to(device), nn.Linear(4, 1).to(device)
best_loss = torch.tensor(float("inf"), device=device)
args = (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))

@torch.no_grad()
def evaluate(x, y):
    global best_loss  #-
    loss = F.mse_loss(net(x), y)
    if loss < best_loss:  #- expect: data-dependent-branch
        best_loss = loss  #- may: stale-input output-alias
        for b, p in zip(best.parameters(), net.parameters()):  #-
            b.copy_(p)  #-
    #+ better = loss < best_loss
    #+ best_loss.copy_(torch.where(better, loss, best_loss))
    #+ for b, p in zip(best.parameters(), net.parameters()):
    #+     b.copy_(torch.where(better, p, b))
    for p in net.parameters():
        p.add_(x.mean() * 0.1)
    return best_loss
# %% pseudo-labels with a queue of class counts on the host -> pseudo
net = nn.Linear(4, 3).to(device)
counts = [1, 1, 1]
args = (torch.randn(8, 4, device=device),)

@torch.no_grad()
def pseudo(x):
    probs = net(x).softmax(-1)
    conf, label = probs.max(-1)
    for c, l in zip(conf.tolist(), label.tolist()):  #- expect: copy-to-cpu
        if c > 0.5:  #-
            counts[l] += 1  #- expect: host-counter
    return label, conf
#+ def after(out, i):
#+     for c, l in zip(out[1].tolist(), out[0].tolist()):
#+         if c > 0.5:
#+             counts[l] += 1
# %% weights of classes by their inverse frequency in the batch -> weighted
net = nn.Linear(4, 3).to(device)
args = (torch.randn(12, 4, device=device), torch.randint(0, 3, (12,), device=device))

def weighted(x, y):
    freq = torch.bincount(y, minlength=3).float()  #- expect: hidden-size
    w = torch.tensor([1.0 / max(f.item(), 1.0) for f in freq], device=device)  #- expect: sync-item tensor-literal
    #+ freq = F.one_hot(y, 3).float().sum(0)
    #+ w = 1.0 / freq.clamp(min=1.0)
    return F.cross_entropy(net(x), y, weight=w / w.sum())
# %% a warm start copies teacher weights for the first steps -> step
teacher, student = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
calls = 0  #-
#+ calls = torch.zeros((), device=device)
#+ student.load_state_dict(teacher.state_dict())
args = (torch.randn(8, 4, device=device), torch.randint(0, 2, (8,), device=device))

def step(x, y):
    global calls  #-
    if calls == 0:  #- expect: branch-frozen
        student.load_state_dict(teacher.state_dict())  #-
    calls += 1  #- expect: host-counter
    #+ calls.add_(1)
    alpha = 0.9 ** calls
    loss = (1 - alpha) * F.cross_entropy(student(x), y) + alpha * F.mse_loss(student(x), teacher(x).detach())  #- expect: scalar-frozen
    #+ loss = (1 - alpha) * F.cross_entropy(student(x), y) + alpha * F.mse_loss(student(x), teacher(x).detach())
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% patches are kept by their largest attention, and merged one by one -> merge
args = (torch.randn(2, 6, 4, device=device), torch.rand(2, 6, device=device))

def merge(x, score):
    out = []
    for b in range(x.size(0)):
        keep = score[b] >= score[b].median()
        tokens = x[b][keep]  #- expect: dynamic-shape
        rest = x[b][~keep]  #- expect: dynamic-shape
        if len(rest):  #- may: branch-frozen
            tokens = torch.cat([tokens, rest.mean(0, keepdim=True)])  #-
        out.append(tokens.mean(0))  #-
        #+ n, left = keep.sum(), (~keep).sum()
        #+ rest = torch.where(keep[:, None], 0, x[b]).sum(0) / left.clamp(min=1)
        #+ out.append((torch.where(keep[:, None], x[b], 0).sum(0) + rest) / (n + (left > 0)))
    return torch.stack(out)
# %% an adaptive computation time loop -> ponder
cell, halt = nn.GRUCell(4, 4).to(device), nn.Linear(4, 1).to(device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def ponder(x):
    h, total = torch.zeros_like(x), torch.zeros(3, 1, device=device)
    steps = 0  #-
    while steps < 5:  #-
    #+ done = torch.zeros((), dtype=torch.bool, device=device)
    #+ for _ in range(5):
        h = cell(x, h)  #-
        total = total + torch.sigmoid(halt(h))  #-
        steps += 1  #-
        if (total > 0.99).all():  #- expect: data-dependent-branch
            break  #-
        #+ h = torch.where(done, h, cell(x, h))
        #+ total = torch.where(done, total, total + torch.sigmoid(halt(h)))
        #+ done = done | (total > 0.99).all()
    return h, total
# %% the learning rate is cut when gradients point apart -> rprop
w = torch.randn(4, 1, device=device, requires_grad=True)
last = torch.zeros(4, 1, device=device)
size = torch.full((4, 1), 0.1, device=device)
args = (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))

def rprop(x, y):
    global last  #-
    loss = F.mse_loss(x @ w, y)
    (g,) = torch.autograd.grad(loss, w)
    with torch.no_grad():
        agree = g * last  #- expect: stale-input
        #+ agree = g * last
        size[agree > 0] *= 1.2  #- expect: dynamic-shape mask-assignment
        size[agree < 0] *= 0.5  #- expect: dynamic-shape mask-assignment
        #+ size.mul_(torch.where(agree > 0, 1.2, torch.where(agree < 0, 0.5, 1.0)))
        w.sub_(size * g.sign())
        last = g.clone()  #-
        #+ last.copy_(g)
    return loss.detach()
# %% images of a batch are erased at boxes that Python draws (random) -> erase
args = (torch.rand(4, 3, 8, 8, device=device),)

def erase(x):
    x = x.clone()  #-
    for i in range(len(x)):  #-
        if random.random() < 0.5:  #- expect: branch-frozen|host-random
            top, left = random.randint(0, 4), random.randint(0, 4)  #-
            x[i, :, top : top + 4, left : left + 4] = torch.randn(3, 4, 4, device=device)  #- may: size-frozen host-random scalar-frozen
    #+ at, (top, left) = torch.arange(8, device=device), torch.randint(0, 5, (2, len(x), 1), device=device)
    #+ rows, columns = (at >= top) & (at < top + 4), (at >= left) & (at < left + 4)
    #+ inside = rows[:, None, :, None] & columns[:, None, None] & (torch.rand(len(x), 1, 1, 1, device=device) < 0.5)
    #+ x = torch.where(inside, torch.randn_like(x), x)
    return x
# %% a speech encoder subsamples by lengths and masks -> subsample
conv = nn.Conv1d(4, 4, 3, stride=2, padding=1).to(device)
args = (torch.randn(2, 4, 16, device=device), torch.tensor([16, 10], device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    return torch.randn(2, 4, 16, generator=g).to(device), torch.tensor([16, 8 + i % 4], device=device)

@torch.no_grad()
def subsample(x, lengths):
    h = conv(x)
    lengths = (lengths - 1) // 2 + 1
    mask = torch.arange(lengths.max(), device=device)[None] < lengths[:, None]  #- expect: tensor-bound
    #+ mask = torch.arange(h.shape[-1], device=device)[None] < lengths[:, None]
    return (h * mask[:, None]).sum(-1) / lengths[:, None]
# %% a graph's nodes are coarsened by the largest score of their cluster -> coarsen
args = (torch.randn(8, 3, device=device), torch.randn(8, device=device), torch.tensor([0, 0, 1, 1, 1, 2, 2, 0], device=device))
cluster_ = args[2]
def feed(i):
    g = torch.Generator().manual_seed(i)
    return torch.randn(8, 3, generator=g).to(device), torch.randn(8, generator=g).to(device), cluster_

def coarsen(x, score, cluster):
    rows = []
    for c in cluster.unique():  #- expect: dynamic-shape
        member = (cluster == c).nonzero().view(-1)  #- expect: dynamic-shape
        rows.append(x[member[score[member].argmax()]])  #- may: tensor-bound sync-item
    #+ for c in range(3):
    #+     rows.append(x[score.masked_fill(cluster != c, -torch.inf).argmax(0, keepdim=True)][0])
    return torch.stack(rows)
# %% actions that are not allowed are masked by a list of the host's rules -> policy
net = nn.Linear(4, 5).to(device)
forbidden = {0: [1, 2], 1: [4]}
#+ table = torch.tensor([[a in forbidden[r] for a in range(5)] for r in range(2)], device=device)
args = (torch.randn(3, 4, device=device), torch.tensor([0, 1, 0], device=device))

@torch.no_grad()
def policy(obs, room):
    logits = net(obs)
    for i in range(3):  #-
        for a in forbidden[int(room[i])]:  #- expect: sync-item
            logits[i, a] = -1e9  #- may: scalar-assignment copy-to-gpu
    #+ logits = logits.masked_fill(table[room], -1e9)
    return logits.argmax(-1)
