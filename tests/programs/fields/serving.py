# %% a paged cache with block tables in Python -> decode_one
class PagedCache:
    def __init__(self, blocks=4, block=2, dim=4):
        self.block = block
        self.k = torch.zeros(blocks, block, dim, device=device)
        self.tables = [[0, 2], [1, 3]]  #-
        self.lengths = [0, 1]  #-
        #+ self.tables = torch.tensor([[0, 2], [1, 3]], device=device)
        #+ self.lengths = torch.tensor([0, 1], device=device)
    def append(self, sequence, k):
        n = self.lengths[sequence]
        block, offset = self.tables[sequence][n // self.block], n % self.block  #-
        self.k[block, offset] = k  #- expect: size-frozen|scalar-frozen|stale-input
        self.lengths[sequence] = (n + 1) % 4  #- expect: host-counter
        #+ block = self.tables[sequence].gather(0, (n // self.block)[None])
        #+ self.k.index_put_((block, (n % self.block)[None]), k[None])
        #+ self.lengths[sequence].copy_((n + 1) % 4)

cache = PagedCache()
keys = cache.k
wk = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def decode_one(hidden):
    k = wk(hidden)
    for sequence in range(2):
        cache.append(sequence, k[sequence])
    return cache.k.sum(dim=-1)
# %% a causal mask that is made on the CPU -> attend
args = (torch.randn(2, 5, 4, device=device),)

def attend(x):
    length = x.size(1)
    mask = torch.triu(torch.full((length, length), float("-inf")), diagonal=1)
    mask = mask.to(x.device)  #- expect: copy-to-gpu
    #+ mask = causal
    scores = x @ x.transpose(1, 2) / math.sqrt(x.size(-1)) + mask
    return scores.softmax(-1) @ x

#+ causal = torch.triu(torch.full((5, 5), float("-inf")), diagonal=1).to(device)
# %% logits processors in a list -> sample
class MinNewTokens:
    def __init__(self, eos, minimum):
        self.eos, self.minimum = eos, minimum
    def __call__(self, ids, scores):
        if ids.shape[1] < self.minimum:
            scores[:, self.eos] = -float("inf")
        return scores

class TopK:
    def __init__(self, k):
        self.k = k
    def __call__(self, ids, scores):
        remove = scores < torch.topk(scores, min(self.k, scores.size(-1)))[0][..., -1, None]
        return scores.masked_fill(remove, -float("inf"))

class Temperature:
    def __init__(self, value):
        self.value = value
    def __call__(self, ids, scores):
        return scores / self.value

processors = [MinNewTokens(0, 10), Temperature(0.8), TopK(3)]
emb, head = nn.Embedding(9, 6).to(device), nn.Linear(6, 9).to(device)
args = (torch.randint(0, 9, (2, 4), device=device),)

@torch.no_grad()
def sample(ids):
    scores = head(emb(ids).mean(1))
    for processor in processors:
        scores = processor(ids, scores)
    probs = F.softmax(scores, dim=-1)
    return torch.cat([ids, torch.multinomial(probs, num_samples=1)], dim=1)
# %% accept drafts one by one (random) -> accept
args = (torch.rand(4, device=device), torch.rand(4, device=device), torch.randint(0, 9, (4,), device=device))

def accept(p, q, draft):
    n = 0  #-
    for i in range(4):  #-
        if torch.rand((), device=p.device) < p[i] / q[i]:  #- expect: data-dependent-branch
            n += 1  #-
        else:  #-
            break  #-
    return draft[:n].sum()  #- may: size-frozen
    #+ kept = (torch.rand(4, device=p.device) < p / q).long().cumprod(0)
    #+ return (draft * kept).sum()
# %% stop strings in the decoded text -> step
words = ["a", "b", "stop", "c"]
finished = []
lm = nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device),)

def step(h):
    ids = lm(h).argmax(-1)
    text = " ".join(words[i] for i in ids.tolist())  #- expect: copy-to-cpu
    if "stop" in text:  #- may: branch-frozen
        finished.append(text)  #- may: host-counter
    return ids
#+
#+ def after(ids, i):
#+     text = " ".join(words[i] for i in ids.tolist())
#+     if "stop" in text:
#+         finished.append(text)
# %% ban repeated bigrams through a dictionary -> penalize
args = (torch.randint(0, 4, (2, 6), device=device), torch.randn(2, 4, device=device))

def banned_tokens(row):
    pairs = {}
    for a, b in zip(row, row[1:]):
        pairs.setdefault(a, []).append(b)
    return pairs.get(row[-1], [])

def penalize(ids, scores):
    scores = scores.clone()
    #+ banned = torch.zeros_like(scores).scatter_add_(1, ids[:, 1:], (ids[:, :-1] == ids[:, -1:]).float())
    #+ return scores.masked_fill(banned > 0, -1e9)
    for i, row in enumerate(ids.tolist()):  #- expect: copy-to-cpu
        scores[i, banned_tokens(row)] = -1e9  #- expect: cpu-index|scalar-assignment may: cpu-index scalar-assignment
    return scores
# %% pad to a bucket with static buffers -> forward
buckets = (4, 8, 16)
static = {b: torch.zeros(b, 5, device=device) for b in buckets}
net = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2)).to(device).eval()
args = (torch.randn(6, 5, device=device),)

@torch.no_grad()
def forward(x):
    n = x.size(0)
    bucket = next(b for b in buckets if b >= n)
    padded = static[bucket]
    padded[:n].copy_(x)
    padded[n:].zero_()
    return net(padded)[:n]
# %% past keys and values as arguments -> decode
proj = nn.Linear(4, 12).to(device)
args = (torch.randn(1, 1, 4, device=device), (torch.randn(1, 3, 4, device=device), torch.randn(1, 3, 4, device=device)))

@torch.inference_mode()
def decode(hidden, past):
    q, k, v = proj(hidden).chunk(3, dim=-1)
    k, v = torch.cat([past[0], k], dim=1), torch.cat([past[1], v], dim=1)
    out = F.scaled_dot_product_attention(q, k, v)
    return out, (k, v)
# %% beams that are done, as Python flags -> beam_step
done = [False, False]  #-
#+ done = torch.zeros(2, dtype=torch.bool, device=device)
eos, ignore = 3, ("done",)
head = nn.Linear(4, 5).to(device)
args = (torch.randn(2, 4, device=device),)

def beam_step(h):
    tokens = head(h).argmax(-1)
    for b in range(2):
        if tokens[b] == eos:  #- expect: data-dependent-branch
            done[b] = True  #- may: host-counter
        #+ done[b].logical_or_(tokens[b] == eos)
    return tokens

def seen(tokens):
    return tokens
# %% a request batch whose flags live in a dataclass -> serve
from dataclasses import dataclass, field

@dataclass
class Request:
    prompt: torch.Tensor
    tokens: list = field(default_factory=list)
    logprob: float = 0.0

requests = [Request(torch.randn(4, device=device)) for _ in range(2)]
lm = nn.Linear(4, 6).to(device)
args = ()

def serve():
    hidden = torch.stack([r.prompt for r in requests])
    logp = lm(hidden).log_softmax(-1)
    best, ids = logp.max(-1)
    for r, token, lp in zip(requests, ids, best):  #-
        r.tokens.append(int(token))  #- expect: sync-item may: host-counter
        r.logprob += lp.item()  #- expect: sync-item may: host-counter
    return logp.detach()
#+
#+ def after(logp, i):
#+     for r, (lp, token) in zip(requests, zip(*logp.max(-1))):
#+         r.tokens.append(int(token))
#+         r.logprob += lp.item()
