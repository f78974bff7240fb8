# %% silence is trimmed by the first and last loud frame -> trim
args = (torch.randn(64, device=device),)

def trim(wav):
    frames = wav.view(16, 4).pow(2).mean(1)
    loud = (frames > 0.5).nonzero()  #- expect: dynamic-shape
    if len(loud) == 0:  #- may: branch-frozen
        return wav.sum()  #-
    start, end = loud[0].item() * 4, (loud[-1].item() + 1) * 4  #- expect: sync-item may: sync-item
    return wav[start:end].sum()  #- may: size-frozen
    #+ n = torch.arange(16, device=device)
    #+ loud = frames > 0.5
    #+ start, end = torch.where(loud, n, 16).min() * 4, (torch.where(loud, n, -1).max() + 1) * 4
    #+ at = torch.arange(64, device=device)
    #+ return torch.where(loud.any(), torch.where((at >= start) & (at < end), wav, 0).sum(), wav.sum())
# %% mel features are normalized with statistics of the host -> features
mean = np.linspace(-1, 1, 8).astype("float32")
std = np.ones(8, dtype="float32") * 2
#+ mean, std = torch.from_numpy(mean).to(device), torch.from_numpy(std).to(device)
args = (torch.randn(2, 8, 10, device=device),)

def features(mel):
    m = torch.from_numpy(mean).to(device)  #- expect: copy-to-gpu
    s = torch.from_numpy(std).to(device)  #- expect: copy-to-gpu
    return (mel - m[None, :, None]) / s[None, :, None]  #-
    #+ return (mel - mean[None, :, None]) / std[None, :, None]
# %% SpecAugment with widths from torch's CPU generator (random) -> spec_augment
args = (torch.randn(2, 8, 20, device=device),)

def spec_augment(spec):
    spec = spec.clone()
    for _ in range(2):
        t = int(torch.randint(0, 5, (1,)))  #- may: scalar-frozen size-frozen host-random
        t0 = int(torch.randint(0, 20 - t, (1,)))  #- may: scalar-frozen size-frozen host-random
        spec[:, :, t0 : t0 + t] = 0  #- expect: size-frozen|scalar-frozen|host-random may: size-frozen
        #+ t = torch.randint(0, 5, (1,), device=device)
        #+ t0 = (torch.rand(1, device=device) * (20 - t)).long()
        #+ at = torch.arange(20, device=device)
        #+ spec = torch.where((at >= t0) & (at < t0 + t), 0.0, spec)
    return spec
# %% CTC decoding by unique_consecutive -> decode
args = (torch.randn(1, 12, 5, device=device),)

@torch.no_grad()
def decode(logits):
    best = logits.argmax(-1)[0]
    collapsed = torch.unique_consecutive(best)  #- expect: dynamic-shape
    return collapsed[collapsed != 0]  #- expect: dynamic-shape
    #+ keep = torch.cat([best.new_ones(1, dtype=torch.bool), best[1:] != best[:-1]]) & (best != 0)
    #+ return best, keep
#+ def seen(out):
#+     return out[0][out[1]]
# %% the gain is limited only where the peak clips -> limit
args = (torch.randn(2, 32, device=device),)

def limit(wav):
    peak = wav.abs().max()
    if peak > 1.0:  #- expect: data-dependent-branch
        wav = wav / peak  #-
    #+ wav = torch.where(peak > 1.0, wav / peak, wav)
    rms = wav.pow(2).mean().sqrt()
    gain = min(10 ** (-20 / 20) / (rms.item() + 1e-9), 4.0)  #- expect: sync-item
    #+ gain = (10 ** (-20 / 20) / (rms + 1e-9)).clamp(max=4.0)
    return wav * gain
# %% windows of a series are cut at the host's offsets -> windows
series = torch.randn(100, device=device).cumsum(0)
offsets = [3, 20, 41, 77]
args = (torch.randn(4, device=device),)

def windows(weight):
    idx = torch.tensor(offsets)[:, None] + torch.arange(8)
    batch = series[idx]  #- expect: cpu-index|copy-to-gpu
    #+ batch = series[idx.to(device)]
    return (batch * weight[:, None]).sum(1)
#+ idx = (torch.tensor(offsets)[:, None] + torch.arange(8)).to(device)
#+ def windows(weight):
#+     batch = series[idx]
#+     return (batch * weight[:, None]).sum(1)
# %% a forecaster feeds its prediction back and keeps it in a list of floats -> forecast
cell, out = nn.GRUCell(1, 4).to(device), nn.Linear(4, 1).to(device)
args = (torch.randn(3, 5, 1, device=device),)

@torch.no_grad()
def forecast(x):
    h = torch.zeros(3, 4, device=device)
    for t in range(5):
        h = cell(x[:, t], h)
    y, preds = x[:, -1], []
    for _ in range(4):
        h = cell(y, h)
        y = out(h)
        preds.append(y.cpu().numpy())  #- expect: copy-to-cpu|sync-item
        #+ preds.append(y)
    return np.concatenate(preds, 1)  #-
    #+ return torch.cat(preds, 1)
#+ def seen(out):
#+     return out.cpu().numpy()
# %% missing values are filled with the mean of those that are there -> impute
args = (torch.tensor([[1.0, float("nan"), 3.0], [4.0, 5.0, float("nan")]], device=device),)

def impute(x):
    x = x.clone()
    missing = torch.isnan(x)
    mean = x[~missing].mean()  #- expect: dynamic-shape
    #+ mean = torch.where(missing, 0, x).sum() / (~missing).sum()
    x[missing] = mean  #- expect: mask-assignment
    #+ x = torch.where(missing, mean, x)
    return x
# %% level shifts are found where the deviation is large -> shifts
args = (torch.randn(50, device=device),)

def shifts(x):
    z = (x - x.mean()) / x.std()
    where = z.abs() > 1.5
    n = int(where.sum())  #- expect: sync-item
    if n > 0:  #- may: branch-frozen
        x = torch.where(where, x.median(), x)  #-
    #+ x = torch.where(where, x.median(), x)
    return x.mean(), n  #-
    #+ return x.mean(), where.sum()
# %% messages are passed along edges until nothing changes -> label_propagation
edges = torch.tensor([[0, 1, 2, 4], [1, 2, 3, 5]], device=device)
args = (torch.arange(6, device=device).float(),)

def label_propagation(labels):
    for _ in range(10):
        new = labels.scatter_reduce(0, edges[1], labels[edges[0]], "amin")
        if torch.equal(new, labels):  #- expect: compare-on-cpu
            break  #-
        labels = new
    return labels
# %% a graph batch is pooled with a size from its largest index -> readout
args = (torch.randn(9, 4, device=device), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2], device=device))
feed_batch = args[1]

def feed(i):
    return torch.randn(9, 4, generator=torch.Generator().manual_seed(i)).to(device), feed_batch

def readout(h, batch):
    size = int(batch.max()) + 1  #- expect: sync-item
    #+ size = 3
    out = torch.zeros(size, 4, device=device)  #- may: size-frozen
    #+ out = torch.zeros(size, 4, device=device)
    return out.index_add_(0, batch, h)
# %% edges are dropped at random by a mask (random) -> drop_edge
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(6, 4, device=device), torch.randint(0, 6, (2, 12), device=device))

def drop_edge(x, edge_index):
    keep = torch.rand(edge_index.size(1), device=device) > 0.2
    src, dst = edge_index[:, keep]  #- expect: dynamic-shape
    agg = torch.zeros_like(x).index_add_(0, dst, x[src])  #-
    #+ src, dst = edge_index
    #+ agg = torch.zeros_like(x).index_add_(0, dst, x[src] * keep[:, None])
    return F.relu(lin(agg))
# %% degrees are clamped by Python's max over a list -> norm_adj
args = (torch.randint(0, 2, (5, 5), device=device).float(),)

def norm_adj(adj):
    deg = adj.sum(1)
    inv = torch.tensor([1.0 / max(d, 1.0) for d in deg.tolist()], device=device)  #- expect: sync-item|copy-to-cpu may: copy-to-gpu scalar-frozen tensor-literal
    #+ inv = 1.0 / deg.clamp(min=1.0)
    return adj * inv[:, None]
# %% attention over neighbours with a softmax by group and a loop over nodes -> gat_loop
edges = torch.tensor([[0, 1, 2, 3, 0], [1, 1, 0, 2, 3]], device=device)
args = (torch.randn(4, 3, device=device), torch.randn(5, device=device))

def gat_loop(h, e):
    out = torch.zeros_like(h)
    for n in range(4):
        incoming = edges[1] == n
        if incoming.sum() > 0:  #- expect: data-dependent-branch
            a = e[incoming].softmax(0)  #- may: dynamic-shape
            out[n] = (a[:, None] * h[edges[0][incoming]]).sum(0)  #- may: dynamic-shape
        #+ a = e.masked_fill(~incoming, -torch.inf).softmax(0).nan_to_num(0.0)
        #+ out[n] = (a[:, None] * h[edges[0]]).sum(0)
    return out
