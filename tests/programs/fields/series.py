# %% NaNs are dropped before a mean -> robust_mean
args = (torch.where(torch.rand(4, 6) < 0.3, torch.tensor(float("nan")), torch.randn(4, 6)).to(device),)

def drop_nan(row):
    return row[~torch.isnan(row)]  #- expect: dynamic-shape
    #+ return row

def robust_mean(x):
    return torch.stack([drop_nan(row).mean() for row in x])  #-
    #+ return x.nanmean(1)
# %% gaps are filled forward by a scan of maxima, clean -> ffill
args = (torch.where(torch.rand(3, 8) < 0.3, torch.tensor(float("nan")), torch.randn(3, 8)).to(device),)

def ffill(x):
    known = ~x.isnan()
    idx = torch.where(known, torch.arange(8, device=x.device), 0).cummax(1).values
    return x.gather(1, idx).nan_to_num(0.0)
# %% missing values are filled in by a loop in Python -> ffill
args = (torch.where(torch.rand(2, 4) < 0.3, torch.tensor(float("nan")), torch.randn(2, 4)).to(device),)

def is_missing(v):
    return math.isnan(v)  #- expect: sync-item
    #+ return v.isnan()

def ffill(x):
    x = x.clone()
    for i in range(x.size(0)):
        for t in range(1, x.size(1)):
            if is_missing(x[i, t]):  #- may: branch-frozen data-dependent-branch
                x[i, t] = x[i, t - 1]  #- may: branch-frozen
            #+ x[i, t] = torch.where(is_missing(x[i, t]), x[i, t - 1], x[i, t])
    return x
# %% scheduled sampling flips a coin per step (random) -> decode
cell, out = nn.GRUCell(1, 4).to(device), nn.Linear(4, 1).to(device)
args = (torch.randn(2, 3, 1, device=device),)

@torch.no_grad()
def decode(target):
    h, x = torch.zeros(2, 4, device=target.device), target[:, 0]
    outputs = []
    for t in range(target.size(1)):
        h = cell(x, h)
        y = out(h)
        outputs.append(y)
        x = target[:, t] if random.random() < 0.5 else y  #- expect: host-random|branch-frozen may: host-random branch-frozen
        #+ x = torch.where(torch.rand((), device=y.device) < 0.5, target[:, t], y)
    return torch.stack(outputs, 1)
# %% reversible instance normalization stores statistics as attributes -> forecast
class RevIN(nn.Module):
    def forward(self, x, mode):
        if mode == "norm":
            self.mean, self.std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5  # may: output-alias
            return (x - self.mean) / self.std
        return x * self.std + self.mean

revin, lin = RevIN(), nn.Linear(6, 2).to(device)
args = (torch.randn(3, 6, 1, device=device),)
@torch.no_grad()
def forecast(x):
    y = lin(revin(x, "norm").transpose(1, 2)).transpose(1, 2)
    return revin(y, "denorm")
# %% frames of a clip are chosen by linspace of the host -> clip
lin = nn.Linear(5, 3).to(device)
args = (torch.randn(2, 8, 5, device=device),)
#+ frames = torch.linspace(0, 7, 4).long().to(device)

def pick(n, k):
    return torch.linspace(0, n - 1, k).long()

@torch.no_grad()
def clip(video):
    return lin(video[:, pick(8, 4)]).mean(1)  #- expect: cpu-index
    #+ return lin(video[:, frames]).mean(1)
# %% scene cuts by a threshold on differences -> scenes
args = (torch.rand(6, 3, 4, 4, device=device),)
ignore = {"result"}

def cuts(video):
    d = (video[1:] - video[:-1]).abs().mean((1, 2, 3))
    return torch.nonzero(d > d.mean()).flatten() + 1  #- expect: dynamic-shape
    #+ return d > d.mean()

def scenes(video):
    marks = [0] + cuts(video).tolist() + [len(video)]  #- expect: copy-to-cpu
    return [video[a:b].mean() for a, b in zip(marks, marks[1:])]  #- may: size-frozen branch-frozen
    #+ return cuts(video)
# %% optical flow warps by grid_sample, clean -> warp
base = F.affine_grid(torch.eye(2, 3)[None], (1, 1, 4, 4), align_corners=False).to(device)
args = (torch.rand(2, 1, 4, 4, device=device), torch.randn(2, 4, 4, 2, device=device) * 0.1)

def warp(img, flow):
    return F.grid_sample(img, base + flow, align_corners=False)
# %% an equivariant layer with edge vectors by index_add, clean -> layer
src = torch.tensor([0, 1, 2, 3, 0]).to(device)
dst = torch.tensor([1, 2, 3, 0, 2]).to(device)
phi = nn.Sequential(nn.Linear(9, 8), nn.SiLU(), nn.Linear(8, 1)).to(device)
args = (torch.randn(4, 4, device=device), torch.randn(4, 3, device=device))

@torch.no_grad()
def layer(h, x):
    rel = x[src] - x[dst]
    d2 = rel.square().sum(-1, keepdim=True)
    w = phi(torch.cat([h[src], h[dst], d2], -1))
    return x.index_add(0, dst, rel * w.tanh())
# %% a radius graph is built in every forward -> energy
args = (torch.randn(5, 3, device=device),)

class RadiusGraph:
    def __init__(self, r):
        self.r = r
    def __call__(self, pos):
        d = torch.cdist(pos, pos)
        close = (d < self.r) & ~torch.eye(len(pos), dtype=torch.bool, device=pos.device)
        return close.nonzero().unbind(1)  #- expect: dynamic-shape
        #+ return close

graph = RadiusGraph(1.5)
def energy(pos):
    i, j = graph(pos)  #-
    return (pos[i] - pos[j]).square().sum()  #- may: size-frozen
    #+ return ((pos[:, None] - pos[None]).square().sum(-1) * graph(pos)).sum()
# %% block-sparse attention from a layout of tuples -> attend
layout = [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)]
args = (torch.randn(6, 4, device=device),)
#+ qi, ki = (torch.tensor(v, device=device) for v in zip(*layout))
ignore = {"qi", "ki"}

def attend(x):
    blocks = x.view(3, 2, 4)
    rows, cols = zip(*layout)  #-
    scores = torch.einsum("nqd,nkd->nqk", blocks[list(rows)], blocks[torch.tensor(cols)])  #- expect: cpu-index may: cpu-index
    #+ scores = torch.einsum("nqd,nkd->nqk", blocks[qi], blocks[ki])
    return scores.softmax(-1)
# %% a seasonal profile is looked up by the hour of the clock -> adjust
profile = torch.randn(24).to(device)
hour = 5
args = (torch.randn(3, device=device),)
ignore = {"result", "hour"}
#+ hour_in = torch.zeros(1, dtype=torch.long, device=device)

class Clock:
    def tick(self):
        global hour
        hour = (hour + 1) % 24  # expect: host-counter
        return hour

clock = Clock()
def adjust(x):
    return x + profile[clock.tick()]  #- expect: size-frozen|stale-input|scalar-frozen
    #+ return x + profile[hour_in]
#+ def feed(i):
#+     hour_in.fill_(clock.tick())
#+     return (torch.randn(3, generator=torch.Generator().manual_seed(i)).to(device),)
