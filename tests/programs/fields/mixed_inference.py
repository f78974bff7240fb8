# %% a batching server with a cache, a threshold and a log -> handle
import logging
log = logging.getLogger("server")
class Service:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device).eval()
        self.served, self.latest = 0, None
    @torch.inference_mode()
    def __call__(self, features):
        self.served += len(features)  #- expect: host-counter
        scores = self.model(features).softmax(-1)[:, 1]
        flagged = torch.nonzero(scores > 0.5).flatten()  #- expect: dynamic-shape
        log.info("flagged %d of %d", len(flagged), len(features))  #- may: host-counter
        self.latest = scores.cpu()  #- expect: copy-to-cpu may: host-counter stale-input
        return scores, flagged  #-
        #+ return scores, scores > 0.5

handle = Service()
args = (torch.randn(5, 6, device=device),)
def seen(out):
    return out[0]
# %% generation with a growing mask, penalties and a stop -> generate_step
vocab, limit = 9, 16
emb, head = nn.Embedding(vocab, 6).to(device), nn.Linear(6, vocab).to(device)
ids = torch.zeros(1, 1, dtype=torch.long, device=device)  #-
#+ ids = torch.full((1, limit), -1, dtype=torch.long, device=device)
#+ ids[0, 0] = 0
#+ length = torch.ones(1, dtype=torch.long, device=device)
#+ slots = torch.arange(limit, device=device)
eos = 8
args = (torch.randn(1, 6, device=device),)
ignore = {"ids"}

@torch.no_grad()
def generate_step(context):
    global ids  #-
    #+ filled = slots < length
    #+ h = (emb(ids.clamp(min=0)) * filled[None, :, None]).sum(1) / length + context
    h = emb(ids).mean(1) + context  #- may: size-frozen stale-input
    logits = head(h)
    seen_tokens = set(ids[0].tolist())  #- expect: copy-to-cpu may: stale-input size-frozen
    for token in seen_tokens:  #- may: branch-frozen
        logits[:, token] -= 0.5  #- may: size-frozen
    #+ present = torch.zeros(vocab, device=device).index_add_(0, ids[0].clamp(min=0), filled.float())
    #+ logits = logits - 0.5 * (present > 0)
    token = logits.argmax(-1, keepdim=True)
    ids = torch.cat([ids, token], dim=1)  #- expect: stale-input|size-frozen may: size-frozen
    #+ ids.index_copy_(1, length, token)
    #+ length.add_(1)
    done = bool(token == eos)  #- expect: data-dependent-branch|sync-item
    return logits.softmax(-1), done  #-
    #+ return logits.softmax(-1), token == eos

def seen(out):
    return out[0], float(out[1])
# %% an ensemble that votes in numpy -> vote
members = [nn.Linear(4, 3).to(device) for _ in range(3)]
calls = {"n": 0}
args = (torch.randn(5, 4, device=device),)

@torch.no_grad()
def vote(x):
    calls["n"] += 1  #- expect: host-counter
    votes = np.stack([m(x).argmax(-1).cpu().numpy() for m in members])  #- expect: copy-to-cpu
    majority = torch.from_numpy(np.array([np.bincount(v, minlength=3).argmax() for v in votes.T]))  #-
    return members[0](x)[torch.arange(5), majority]  #- expect: cpu-index may: copy-to-gpu
    #+ counts = F.one_hot(torch.stack([m(x).argmax(-1) for m in members]), num_classes=3).sum(0)
    #+ return members[0](x).gather(1, counts.argmax(-1, keepdim=True)).squeeze(1)
#+
#+ def after(out, i):
#+     calls["n"] += 1
# %% retrieval: normalize, search, rerank -> search
corpus = F.normalize(torch.randn(20, 4), dim=1)
corpus_device = corpus.to(device)
titles = [f"document {i}" for i in range(20)]
encoder, reranker = nn.Linear(6, 4).to(device), nn.Linear(8, 1).to(device)
args = (torch.randn(1, 6, device=device),)

@torch.no_grad()
def search(query):
    q = F.normalize(encoder(query), dim=1)
    sims = q @ corpus.to(device).t()  #- expect: copy-to-gpu
    #+ sims = q @ corpus_device.t()
    top = sims.topk(3).indices[0]
    candidates = corpus_device[top]
    score = reranker(torch.cat([q.expand(3, -1), candidates], dim=1)).squeeze(1)
    best = int(top[score.argmax()])  #- expect: sync-item tensor-bound
    print("best:", titles[best])  #- expect: host-counter may: print
    return score  #-
    #+ return score, top.gather(0, score.argmax()[None])
def seen(out):
    return out[0] if isinstance(out, tuple) else out
# %% audio: normalize, mask silence, classify -> classify_audio
window = torch.hann_window(16)
clf = nn.Linear(9, 3).to(device)
args = (torch.randn(64, device=device),)
#+ window_device = window.to(device)

@torch.no_grad()
def classify_audio(wave):
    wave = wave / wave.abs().max().item()  #- expect: sync-item
    #+ wave = wave / wave.abs().max()
    frames = wave.unfold(0, 16, 8)
    spec = torch.fft.rfft(frames * window.to(wave.device)).abs()  #- expect: copy-to-gpu
    #+ spec = torch.fft.rfft(frames * window_device).abs()
    energy = spec.sum(1)
    voiced = spec[energy > energy.mean()]  #- expect: dynamic-shape
    return clf(voiced.mean(0)).softmax(-1)  #-
    #+ keep = (energy > energy.mean()).float()[:, None]
    #+ return clf((spec * keep).sum(0) / keep.sum()).softmax(-1)
# %% recommender: hash, embed bags, cache the popular -> recommend
table = nn.EmbeddingBag(32, 4, mode="mean").to(device)
popular = {}
offsets_host = torch.tensor([0, 3, 5])
hits = 0
args = (torch.randint(0, 32, (8,), device=device),)
#+ offsets = offsets_host.to(device)

@torch.no_grad()
def recommend(ids):
    global hits  #-
    user = table(ids, offsets_host.to(device))  #- expect: copy-to-gpu
    #+ user = table(ids, offsets)
    key = int(ids[0])  #- expect: sync-item
    if key not in popular:  #- may: branch-frozen
        popular[key] = user.norm().item()  #- may: sync-item host-counter
    hits += 1  #- expect: host-counter
    return F.normalize(user, dim=1)
ignore = {"popular", "hits"}
# %% a tracker with velocities and a lost counter -> track
positions, velocities = torch.zeros(3, 2, device=device), torch.zeros(3, 2, device=device)
lost = [0, 0, 0]
dt = 0.1
args = (torch.rand(3, 2, device=device),)
#+ lost_device = torch.zeros(3, dtype=torch.long, device=device)

@torch.no_grad()
def track(measured):
    global positions, velocities  #-
    predicted = positions + dt * velocities  #- expect: stale-input
    #+ predicted = positions + dt * velocities
    gate = (measured - predicted).norm(dim=1) < 0.8
    for i in range(3):  #-
        if not gate[i]:  #- expect: data-dependent-branch
            lost[i] += 1  #- may: host-counter
    #+ lost_device.add_((~gate).long())
    new = torch.where(gate[:, None], 0.5 * predicted + 0.5 * measured, predicted)
    velocities = (new - positions) / dt  #- may: stale-input
    positions = new  #- may: stale-input
    #+ velocities.copy_((new - positions) / dt)
    #+ positions.copy_(new)
    return new
#+
#+ def after(new, i):
#+     lost[:] = lost_device.tolist()
# %% an image pipeline with timing, resizing and a palette -> colourize
palette = [[0, 0, 0], [255, 0, 0], [0, 255, 0], [0, 0, 255]]
net = nn.Conv2d(3, 4, 3, padding=1).to(device)
elapsed = 0.0
args = (torch.rand(1, 3, 8, 8, device=device),)
ignore = {"elapsed"}
#+ colours = torch.tensor(palette, device=device)

@torch.no_grad()
def colourize(img):
    global elapsed  #-
    t0 = time.perf_counter()  #-
    classes = net(F.interpolate(img, scale_factor=0.5, mode="area")).argmax(1)
    out = torch.tensor(palette, device=img.device)[classes]  #- expect: tensor-literal
    #+ out = colours[classes]
    cuda.synchronize()  #- expect: synchronize
    elapsed += time.perf_counter() - t0  #- expect: host-counter
    return out
# %% speculative decoding with a tree of drafts -> verify_tree
draft, target = nn.Linear(4, 6).to(device), nn.Linear(4, 6).to(device)
parents = [0, 0, 1, 1]
accepted_total = 0
args = (torch.randn(4, 4, device=device),)
#+ parent_index = torch.tensor(parents, device=device)
#+ accepted_total = torch.zeros((), dtype=torch.long, device=device)

@torch.no_grad()
def verify_tree(h):
    global accepted_total  #-
    d, t = draft(h).argmax(-1), target(h).argmax(-1)
    ok = d == t[parents]  #- expect: cpu-index
    #+ ok = d == t[parent_index]
    n = ok.long().cumprod(0).sum()
    accepted_total += int(n)  #- expect: sync-item may: host-counter
    #+ accepted_total.add_(n)
    tokens = d[:n]  #- expect: tensor-bound|sync-item
    return tokens.sum() + t[0]  #-
    #+ return torch.where(torch.arange(4, device=h.device) < n, d, 0).sum() + t[0]
# %% the server done right -> serve
class Server:
    def __init__(self, max_batch=4):
        self.model = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 3)).to(device).eval()
        self.scores = torch.zeros(max_batch, 3, device=device)
        self.calls = torch.zeros((), dtype=torch.long, device=device)
        self.host = torch.empty(max_batch, 3).pin_memory()
    @torch.no_grad()
    def __call__(self, x, valid):
        probs = self.model(x).softmax(-1)
        self.scores.copy_(torch.where(valid[:, None], probs, 0.0))
        self.host.copy_(self.scores, non_blocking=True)
        self.calls.add_(1)
        return self.scores.clone()
serve = Server()
args = (torch.randn(4, 6, device=device), torch.tensor([True, True, False, True], device=device))
