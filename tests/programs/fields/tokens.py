# %% top-p sampling with a removal mask and a shift (random) -> sample
lm = nn.Linear(6, 10).to(device)
args = (torch.randn(2, 6, device=device),)

@torch.no_grad()
def sample(h):
    logits = lm(h) / 0.7
    sorted_logits, sorted_idx = torch.sort(logits, descending=True)
    probs = sorted_logits.softmax(-1).cumsum(-1)
    remove = probs > 0.9
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = 0  # may: copy-to-gpu
    for b in range(logits.size(0)):
        logits[b, sorted_idx[b][remove[b]]] = -float("inf")  #- expect: dynamic-shape may: copy-to-gpu
        #+ logits[b] = logits[b].masked_fill(remove[b].scatter(0, sorted_idx[b], remove[b]), -float("inf"))
    return torch.multinomial(logits.softmax(-1), 1)
# %% a growing cache as a list of pairs -> decode
wq, wk, wv = (nn.Linear(6, 6).to(device) for _ in range(3))
past = []  #-
#+ cache_k, cache_v = torch.zeros(16, 6, device=device), torch.zeros(16, 6, device=device)
#+ pos = torch.zeros(1, dtype=torch.long, device=device)
args = (torch.randn(1, 6, device=device),)
ignore = ("past",)  #-

@torch.no_grad()
def decode(x):
    q, k, v = wq(x), wk(x), wv(x)
    past.append((k, v))  #- expect: output-alias|host-counter|stale-input
    keys = torch.cat([p[0] for p in past])  #- may: size-frozen stale-input branch-frozen
    values = torch.cat([p[1] for p in past])  #- may: size-frozen stale-input branch-frozen
    #+ cache_k.index_copy_(0, pos, k)
    #+ cache_v.index_copy_(0, pos, v)
    #+ pos.add_(1)
    #+ keys, values = cache_k, cache_v
    scores = q @ keys.T / 6 ** 0.5
    #+ scores = scores.masked_fill(torch.arange(16, device=device) >= pos, -torch.inf)
    return scores.softmax(-1) @ values  # may: stale-input
# %% keys and values are concatenated to an attribute -> forward
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.k_cache = self.v_cache = None  #-
        #+ self.register_buffer("k_cache", torch.zeros(1, 16, 4))
        #+ self.register_buffer("v_cache", torch.zeros(1, 16, 4))
        #+ self.register_buffer("pos", torch.zeros(1, dtype=torch.long))
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.k_cache is not None:  #- may: branch-frozen
            k = torch.cat([self.k_cache, k], dim=1)  #- expect: stale-input
            v = torch.cat([self.v_cache, v], dim=1)  #- expect: stale-input
        self.k_cache, self.v_cache = k, v  #-
        #+ self.k_cache.index_copy_(1, self.pos, k)
        #+ self.v_cache.index_copy_(1, self.pos, v)
        #+ self.pos.add_(1)
        #+ seen = torch.arange(16, device=device) < self.pos
        #+ return F.scaled_dot_product_attention(q, self.k_cache, self.v_cache, attn_mask=seen)
        return F.scaled_dot_product_attention(q, k, v)  #-

attn = Attention().to(device).eval()
ignore = ("attn",)
args = (torch.randn(1, 1, 4, device=device),)

@torch.no_grad()
def forward(x):
    return attn(x)
# %% beam search keeps its hypotheses in Python -> step
vocab = 6
lm = nn.Embedding(vocab, vocab).to(device)
args = (torch.randint(0, vocab, (3, 2), device=device), torch.randn(3, device=device))

@torch.no_grad()
def step(seqs, scores):
    logp = lm(seqs[:, -1]).log_softmax(-1)
    total = (scores[:, None] + logp).view(-1)
    best, idx = total.topk(3)
    new = []
    for s, i in zip(best, idx):
        beam, tok = divmod(i.item(), vocab)  #- expect: sync-item
        #+ beam, tok = i.view(1) // vocab, i.view(1) % vocab
        new.append(torch.cat([seqs[beam], torch.tensor([tok], device=device)]))  #- may: copy-to-gpu scalar-frozen tensor-literal
        #+ new.append(torch.cat([seqs[beam][0], tok]))
    return torch.stack(new), best
# %% no token of the prompt may come twice -> block
args = (torch.randn(2, 8, device=device), torch.randint(0, 8, (2, 4), device=device))

@torch.no_grad()
def block(logits, ids):
    for b in range(2):  #-
        for t in ids[b].unique():  #- expect: dynamic-shape|sync-item
            logits[b, t] = logits[b, t] / 1.3 if logits[b, t] > 0 else logits[b, t] * 1.3  #- may: sync-item data-dependent-branch copy-to-gpu tensor-bound
    #+ hit = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, ids, True)
    #+ logits.copy_(torch.where(hit, torch.where(logits > 0, logits / 1.3, logits * 1.3), logits))
    return logits.clone()
# %% min-p filter with a Python threshold from the best probability (random) -> pick
args = (torch.randn(3, 12, device=device),)

def pick(logits):
    probs = logits.softmax(-1)
    for row in range(3):
        threshold = 0.1 * float(probs[row].max())  #- expect: sync-item
        #+ threshold = 0.1 * probs[row].max()
        probs[row] = torch.where(probs[row] < threshold, 0, probs[row])
    return torch.multinomial(probs / probs.sum(-1, keepdim=True), 1)
# %% generation stops when every row has seen the end -> generate
eos, V = 1, 6
emb, out = nn.Embedding(V, 8).to(device), nn.Linear(8, V).to(device)
args = (torch.randint(2, V, (2, 1), device=device),)

@torch.no_grad()
def generate(ids):
    unfinished = torch.ones(2, 1, dtype=torch.long, device=device)
    for _ in range(5):
        nxt = out(emb(ids[:, -1:])).argmax(-1)
        nxt = nxt * unfinished + eos * (1 - unfinished)
        ids = torch.cat([ids, nxt], 1)
        unfinished = unfinished * (nxt != eos).long()
        if unfinished.max() == 0:  #- expect: data-dependent-branch
            break  #-
    return ids  #-
    #+ return ids
ignore = ("result",)
# %% experts are chosen by where and an if for those that are idle -> moe
experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
router = nn.Linear(4, 3).to(device)
args = (torch.randn(6, 4, device=device),)

def moe(x):
    weights, chosen = router(x).softmax(-1).topk(2)
    out = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        tok, k = torch.where(chosen == e)  #- expect: dynamic-shape
        if tok.numel() == 0:  #- may: branch-frozen
            continue  #-
        out.index_add_(0, tok, weights[tok, k, None] * expert(x[tok]))  #-
        #+ out = out + (weights * (chosen == e)).sum(-1, keepdim=True) * expert(x)
    return out
# %% experts in a loop over masks with any -> sparse_mlp
experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
gate = nn.Linear(4, 3).to(device)
args = (torch.randn(6, 4, device=device),)

def sparse_mlp(x):
    idx = gate(x).argmax(-1)
    y = torch.zeros_like(x)
    for e in range(3):
        mask = idx == e
        if mask.any():  #- expect: data-dependent-branch
            y[mask] = experts[e](x[mask])  #- may: dynamic-shape mask-assignment
        #+ y = torch.where(mask[:, None], experts[e](x), y)
    return y
# %% lengths decide how the padded batch is cut -> encode
rnn = nn.GRU(4, 4, batch_first=True).to(device)
args = (torch.randn(3, 8, 4, device=device), torch.tensor([5, 8, 3], device=device))

def encode(x, lengths):
    x = x[:, : lengths.max()]  #- expect: tensor-bound
    out, _ = rnn(x)
    last = out[torch.arange(len(x)), lengths - 1]  #- expect: cpu-index|copy-to-gpu
    #+ last = out[torch.arange(len(x), device=device), lengths - 1]
    return last
# %% tokens are masked for masked language modelling in one line (random) -> mask_tokens
args = (torch.randint(5, 20, (3, 8), device=device),)

def mask_tokens(inputs):
    labels = inputs.clone()
    masked = torch.bernoulli(torch.full(labels.shape, 0.15)).bool().to(device)  #- expect: copy-to-gpu
    #+ masked = torch.bernoulli(torch.full(labels.shape, 0.15, device=device)).bool()
    labels[~masked] = -100  # may: copy-to-gpu
    replaced = torch.bernoulli(torch.full(labels.shape, 0.8)).bool().to(device) & masked  #- expect: copy-to-gpu
    #+ replaced = torch.bernoulli(torch.full(labels.shape, 0.8, device=device)).bool() & masked
    inputs = torch.where(replaced, 4, inputs)
    return inputs, labels
# %% two masked assignments in one line -> split_sign
args = (torch.randn(10, device=device), torch.randn(10, device=device))

def split_sign(x, y):
    a, b = torch.zeros_like(x), torch.zeros_like(x)
    m = x > 0
    a[m], b[~m] = x[m], y[~m]  #- expect: dynamic-shape mask-assignment
    #+ a, b = torch.where(m, x, a), torch.where(m, b, y)
    return a.exp() + b
# %% a prompt's pads are cut off row by row before pooling -> pool
emb = nn.Embedding(10, 4).to(device)
args = (torch.randint(0, 10, (3, 6), device=device),)

def pool(ids):
    vecs = []
    for row in ids:
        toks = row[row != 0]  #- expect: dynamic-shape
        vecs.append(emb(toks).mean(0))  #-
        #+ there = row != 0
        #+ vecs.append(torch.where(there[:, None], emb(row), 0).sum(0) / there.sum())
    return torch.stack(vecs)
