# %% decode until all sequences are done -> generate
eos = 0
emb, head = nn.Embedding(6, 8).to(device), nn.Linear(8, 6).to(device)
args = (torch.randint(1, 6, (2,), device=device),)

@torch.no_grad()
def generate(tok):
    done = torch.zeros_like(tok, dtype=torch.bool)
    out = torch.zeros(2, 4, dtype=torch.long, device=tok.device)
    step = 0  #-
    while step < 4 and not done.all():  #- expect: data-dependent-branch
    #+ for step in range(4):
        tok = torch.where(done, tok, head(emb(tok)).argmax(-1))
        out[:, step] = torch.where(done, 0, tok)
        done = done | (tok == eos)
        step += 1  #-
    return out
# %% a few tokens in one go, appended by cat -> generate
emb, head = nn.Embedding(6, 8).to(device), nn.Linear(8, 6).to(device)
args = (torch.randint(0, 6, (2, 3), device=device),)

@torch.no_grad()
def generate(ids):
    for _ in range(4):
        logits = head(emb(ids).mean(1)) / 0.8
        v, _ = torch.topk(logits, 3)
        logits = logits.masked_fill(logits < v[:, -1:], -float("inf"))
        ids = torch.cat([ids, torch.multinomial(F.softmax(logits, -1), 1)], dim=1)
    return ids
# %% stopping criteria in a list -> decode_step
class EosCriteria:
    def __call__(self, ids):
        return (ids[:, -1] == 0).all()

class LengthCriteria:
    def __call__(self, ids):
        return ids.shape[1] >= 32

criteria = [LengthCriteria(), EosCriteria()]
head = nn.Linear(8, 6).to(device)
finished = []
args = (torch.randint(1, 6, (2, 5), device=device), torch.randn(2, 8, device=device))

@torch.no_grad()
def decode_step(ids, hidden):
    ids = torch.cat([ids, head(hidden).argmax(-1, keepdim=True)], dim=1)
    if any(c(ids) for c in criteria):  #- expect: data-dependent-branch
        finished.append(True)  #- may: host-counter
    return ids
#+ def after(ids, i):
#+     if any(c(ids) for c in criteria):
#+         finished.append(True)
# %% a dynamic cache of keys and values -> decode_one
class DynamicCache:
    def __init__(self):
        self.key_cache, self.value_cache, self.seen_tokens = [], [], 0
    def update(self, k, v, layer):
        if layer == 0:
            self.seen_tokens += k.shape[-2]  # expect: host-counter
        if len(self.key_cache) <= layer:
            self.key_cache.append(k)  # may: host-counter stale-input output-alias
            self.value_cache.append(v)  # may: host-counter stale-input output-alias
        else:
            self.key_cache[layer] = torch.cat([self.key_cache[layer], k], dim=-2)  # expect: stale-input|size-frozen may: size-frozen stale-input
            self.value_cache[layer] = torch.cat([self.value_cache[layer], v], dim=-2)  # expect: stale-input|size-frozen may: size-frozen stale-input
        return self.key_cache[layer], self.value_cache[layer]

class StaticCache:
    def __init__(self, length=16):
        self.k, self.v = torch.zeros(1, length, 4, device=device), torch.zeros(1, length, 4, device=device)
        self.at, self.slots = torch.zeros(1, dtype=torch.long, device=device), torch.arange(length, device=device)
    def update(self, k, v, layer):
        self.k.index_copy_(1, self.at, k)
        self.v.index_copy_(1, self.at, v)
        self.at.add_(1)
        return self.k, self.v, (self.slots < self.at)[None, None]

cache = DynamicCache()  #-
#+ cache = StaticCache()
wk, wv = nn.Linear(4, 4).to(device), nn.Linear(4, 4).to(device)
args = (torch.randn(1, 1, 4, device=device),)
ignore = {"cache"}

@torch.no_grad()
def decode_one(x):
    k, v = cache.update(wk(x), wv(x), 0)  #-
    return F.scaled_dot_product_attention(x, k, v)  #- may: size-frozen
    #+ k, v, mask = cache.update(wk(x), wv(x), 0)
    #+ return F.scaled_dot_product_attention(x, k, v, attn_mask=mask)
# %% rotary angles and a cache by a start position -> forward
max_len, dim = 16, 4
angles = torch.outer(torch.arange(max_len).float(), torch.tensor([1.0, 0.1]))
cos, sin = angles.cos().to(device), angles.sin().to(device)
cache_k = torch.zeros(1, max_len, dim, device=device)
wk = nn.Linear(dim, dim).to(device)
args = (torch.randn(1, 1, dim, device=device), 3)  #-
#+ slots = torch.arange(max_len, device=device)
#+ args = (torch.randn(1, 1, dim, device=device), torch.full((1,), 3, dtype=torch.long, device=device))
def feed(i):
    x = torch.randn(1, 1, dim, generator=torch.Generator().manual_seed(i)).to(device)
    return x, i  #-
    #+ return x, torch.tensor([i]).to(device)

def rotate(x, c, s):
    a, b = x.chunk(2, -1)
    return torch.cat([a * c - b * s, a * s + b * c], -1)

@torch.no_grad()
def forward(x, start_pos):
    seqlen = x.size(1)
    c, s = cos[start_pos : start_pos + seqlen], sin[start_pos : start_pos + seqlen]  #- expect: size-frozen|scalar-frozen
    cache_k[:, start_pos : start_pos + seqlen] = rotate(wk(x), c, s)  #- expect: size-frozen|scalar-frozen
    keys = cache_k[:, : start_pos + seqlen]  #- expect: size-frozen|scalar-frozen
    return (rotate(x, c, s) @ keys.transpose(1, 2)).softmax(-1) @ keys  #- may: size-frozen
    #+ c, s = cos[start_pos], sin[start_pos]
    #+ cache_k.index_copy_(1, start_pos, rotate(wk(x), c, s))
    #+ score = (rotate(x, c, s) @ cache_k.transpose(1, 2)).masked_fill(slots > start_pos, -float("inf"))
    #+ return score.softmax(-1) @ cache_k
# %% min-p sampling -> sample
args = (torch.randn(2, 12, device=device),)

def sample(logits, min_p=0.1):
    probs = logits.softmax(-1)
    keep = probs >= min_p * probs.amax(-1, keepdim=True)
    probs = probs * keep
    return torch.multinomial(probs / probs.sum(-1, keepdim=True), num_samples=1)
# %% nucleus sampling through shifted masks and a scatter -> sample
args = (torch.randn(2, 12, device=device),)

def sample(logits, top_p=0.9):
    sorted_logits, sorted_indices = torch.sort(logits, descending=True)
    remove = sorted_logits.softmax(-1).cumsum(-1) > top_p
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = 0
    remove = remove.scatter(1, sorted_indices, remove)
    logits = logits.clone()
    logits[remove] = -float("inf")
    return torch.multinomial(F.softmax(logits, dim=-1), 1)
# %% a presence penalty by counting -> penalize
vocab = 8
args = (torch.randn(8, device=device), torch.randint(0, 8, (10,), device=device))

def penalize(logits, output_ids):
    counts = torch.bincount(output_ids, minlength=vocab)  #- expect: hidden-size
    #+ counts = torch.zeros(vocab, dtype=torch.long, device=logits.device).scatter_add_(0, output_ids, torch.ones_like(output_ids))
    return logits - 0.5 * (counts > 0) - 0.1 * counts
# %% reorder a cache for the best beams -> reorder
past = [torch.randn(3, 2, 4, device=device) for _ in range(2)]
args = (torch.randn(3, 5, device=device),)

@torch.no_grad()
def reorder(scores):
    best = scores.max(-1).values.topk(3).indices
    order = best.tolist()  #- expect: copy-to-cpu
    return [layer[order] for layer in past]  #- expect: cpu-index|copy-to-gpu may: host-random
    #+ return [layer.index_select(0, best) for layer in past]
# %% accept a prefix of the draft -> verify
target = nn.Linear(4, 6).to(device)
args = (torch.randn(5, 4, device=device), torch.randint(0, 6, (5,), device=device))
ignore = {"result"}

@torch.no_grad()
def verify(hidden, draft):
    choice = target(hidden).argmax(-1)
    n = (choice == draft).long().cumprod(0).sum()
    return choice[:n]  #- expect: tensor-bound|sync-item
    #+ return choice, n
# %% a mask as long as the longest prompt -> encode
emb = nn.Embedding(10, 4).to(device)
args = (torch.randint(0, 10, (2, 6), device=device), torch.tensor([4, 6], device=device))
def feed(i):
    ids = torch.randint(0, 10, (2, 6), generator=torch.Generator().manual_seed(i))
    return ids.to(device), torch.tensor([1 + i % 6, 6]).to(device)

@torch.no_grad()
def encode(ids, lengths):
    mask = torch.arange(lengths.max(), device=ids.device)[None] < lengths[:, None]  #- expect: sync-item|tensor-bound
    #+ mask = torch.arange(ids.size(1), device=ids.device)[None] < lengths[:, None]
    h = emb(ids[:, : mask.size(1)]) * mask[..., None]  # may: size-frozen
    return h.sum(1) / lengths[:, None]
# %% collapse repeats and drop blanks -> greedy_ctc
net = nn.Linear(4, 5).to(device)
args = (torch.randn(9, 4, device=device),)
ignore = {"result"}

@torch.no_grad()
def greedy_ctc(frames):
    best = net(frames).argmax(-1)
    best = torch.unique_consecutive(best)  #- expect: dynamic-shape
    return best[best != 0]  #- expect: dynamic-shape
    #+ keep = torch.cat([best[:1] != 0, (best[1:] != best[:-1]) & (best[1:] != 0)])
    #+ return best, keep
