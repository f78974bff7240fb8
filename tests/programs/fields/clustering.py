# %% Lloyd's iterations until the centres stay -> kmeans
centers0 = torch.randn(3, 2).to(device)
args = (torch.randn(12, 2, device=device),)
ignore = {"result"}

def assign(x, c):
    return torch.cdist(x, c).argmin(1)

def kmeans(x):
    c = centers0.clone()
    for _ in range(4):
        label = assign(x, c)
        new = torch.stack([x[label == k].mean(0) for k in range(3)])  #- expect: dynamic-shape
        #+ one = F.one_hot(label, num_classes=3).float()
        #+ new = (one.T @ x) / one.sum(0).clamp(min=1)[:, None]
        if torch.allclose(new, c):  #- expect: compare-on-cpu|data-dependent-branch|sync-item
            break  #-
        c = new
    return c
# %% a soft EM of a mixture, clean -> em_step
mu = torch.randn(3, 2).to(device)
log_var = torch.zeros(3, 2, device=device)
log_pi = torch.full((3,), -math.log(3)).to(device)
args = (torch.randn(10, 2, device=device),)

def log_gauss(x):
    d = (x[:, None] - mu).square() / log_var.exp()
    return -0.5 * (d + log_var + math.log(2 * math.pi)).sum(-1)

@torch.no_grad()
def em_step(x):
    joint = log_gauss(x) + log_pi
    resp = (joint - joint.logsumexp(1, keepdim=True)).exp()
    n = resp.sum(0).clamp(min=1e-3)
    mu.copy_((resp.T @ x) / n[:, None])
    var = (resp.T @ x.square()) / n[:, None] - mu.square()
    log_var.copy_(var.clamp(min=1e-3).log())
    log_pi.copy_((n / n.sum()).log())
    return joint.logsumexp(1).mean()
# %% full covariances through MultivariateNormal -> log_likelihood
from torch.distributions import MultivariateNormal
cov = torch.eye(2).to(device) * 2
args = (torch.randn(5, 2, device=device),)

class Component:
    def __init__(self, loc, cov):
        self.loc, self.cov = loc, cov
    def log_prob(self, x):
        dist = MultivariateNormal(self.loc, covariance_matrix=self.cov)  #- expect: argument-check|data-dependent-branch|linalg-check may: linalg-check argument-check data-dependent-branch linalg-host
        return dist.log_prob(x)  #- expect: argument-check|data-dependent-branch may: linalg-check
        #+ L = torch.linalg.cholesky_ex(self.cov)[0]
        #+ z = torch.linalg.solve_triangular(L, (x - self.loc).T, upper=False)
        #+ return -0.5 * z.square().sum(0) - L.diagonal().log().sum() - math.log(2 * math.pi)

comp = Component(torch.zeros(2, device=device), cov)
def log_likelihood(x):
    return comp.log_prob(x).mean()
# %% an EM loop stops by a lower bound's growth -> fit
mu = torch.randn(2, 2).to(device)
args = (torch.randn(8, 2, device=device),)
ignore = {"result", "mu"}

class EarlyStop:
    def __init__(self, tol):
        self.tol, self.last = tol, -math.inf
    def __call__(self, bound):
        done = bound - self.last < self.tol
        self.last = bound  #- may: host-counter output-alias stale-input
        return done

@torch.no_grad()
def fit(x):
    stop = EarlyStop(1e-7)
    for _ in range(4):
        d = -torch.cdist(x, mu).square()
        r = d.softmax(1)
        mu.copy_((r.T @ x) / r.sum(0)[:, None])
        if stop(d.logsumexp(1).mean()):  #- expect: data-dependent-branch
            break  #-
    return mu.sum()
# %% entropy picks the points to label -> acquire
head = nn.Linear(3, 4).to(device)
pool = set(range(8))
args = (torch.randn(8, 3, device=device),)
ignore = {"pool"}

def entropy(p):
    return -(p * p.clamp(min=1e-9).log()).sum(-1)

@torch.no_grad()
def acquire(x):
    h = entropy(head(x).softmax(-1))
    picked = h.topk(2).indices.cpu().tolist()  #- expect: copy-to-cpu
    for i in picked:  #-
        pool.discard(i)  #- may: host-counter
    return h
# %% Monte Carlo dropout for uncertainty, clean (random) -> predict
net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)).to(device).train()
args = (torch.randn(4, 3, device=device),)
ignore = {"result"}

@torch.no_grad()
def predict(x):
    draws = torch.stack([net(x).softmax(-1) for _ in range(4)])
    return draws.mean(0), draws.var(0)
# %% DBSCAN counts neighbours and walks them -> core_points
args = (torch.randn(6, 2, device=device),)
ignore = {"result"}

def neighbours(x, i, eps=1.0):
    return (torch.cdist(x[i:i + 1], x)[0] < eps).nonzero().flatten()  #- expect: dynamic-shape
    #+ return (torch.cdist(x[i:i + 1], x)[0] < eps)

def core_points(x):
    return [i for i in range(len(x)) if len(neighbours(x, i)) >= 2]  #- may: branch-frozen size-frozen
    #+ return torch.stack([neighbours(x, i).sum() >= 2 for i in range(len(x))])
# %% silhouettes by masks and sums, clean -> silhouette
args = (torch.randn(6, 2, device=device), torch.tensor([0, 0, 1, 1, 2, 2], device=device))
def feed(i):
    return torch.randn(6, 2, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([0, 0, 1, 1, 2, 2]).roll(i).to(device)

def silhouette(x, y):
    d = torch.cdist(x, x)
    onehot = F.one_hot(y, num_classes=3).float()
    n = onehot.sum(0)
    mean = d @ onehot / n
    own = mean.gather(1, y[:, None]).squeeze(1) * 2
    other = mean.masked_fill(onehot.bool(), float("inf")).amin(1)
    return ((other - own) / torch.maximum(own, other)).mean()
# %% labels are permuted to agree by scipy's assignment -> matched_accuracy
args = (torch.randint(0, 3, (8,), device=device), torch.randint(0, 3, (8,), device=device))
ignore = {"result"}

def hungarian(cost):
    cost = cost.detach().cpu().numpy()  #- expect: copy-to-cpu
    return cost.argmax(0)  #-
    #+ return cost.argmax(0)

def matched_accuracy(pred, true):
    table = (F.one_hot(pred, num_classes=3).float().T @ F.one_hot(true, num_classes=3).float())
    perm = torch.from_numpy(hungarian(table)).to(device)  #- expect: copy-to-gpu
    #+ perm = hungarian(table)
    return (perm[true] == pred).float().mean()
# %% an empty cluster is seeded again from a random point -> reseed
centers = torch.randn(3, 2).to(device)
args = (torch.randn(6, 2, device=device),)
ignore = {"result", "centers"}

@torch.no_grad()
def reseed(x):
    counts = torch.bincount(torch.cdist(x, centers).argmin(1), minlength=3)  #- expect: hidden-size
    #+ counts = F.one_hot(torch.cdist(x, centers).argmin(1), num_classes=3).sum(0)
    for k in range(3):
        if not counts[k]:  #- expect: data-dependent-branch
            centers[k] = x[torch.randint(len(x), (1,)).item()]  #- may: host-random scalar-frozen size-frozen branch-frozen
        #+ pick = x[torch.randint(len(x), (1,), device=x.device)][0]
        #+ centers[k] = torch.where(counts[k] == 0, pick, centers[k])
    return centers.sum()
