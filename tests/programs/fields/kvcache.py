# %% a static cache written by index_copy at a tensor position, clean -> decode
cache_k = torch.zeros(1, 8, 4, device=device)
pos = torch.zeros(1, dtype=torch.long, device=device)
wk, wq = nn.Linear(4, 4).to(device), nn.Linear(4, 4).to(device)
args = (torch.randn(1, 1, 4, device=device),)

@torch.no_grad()
def decode(x):
    cache_k.index_copy_(1, pos % 8, wk(x))
    visible = torch.arange(8, device=x.device) <= pos
    scores = (wq(x) @ cache_k.mT).masked_fill(~visible, float("-inf"))
    pos.add_(1)
    return scores.softmax(-1) @ cache_k
# %% DynamicCache that concatenates in update -> decode
class DynamicCache:
    def __init__(self):
        self.key_cache = []
    def update(self, k, layer):
        if len(self.key_cache) <= layer:  #- may: branch-frozen
            self.key_cache.append(k)  #- may: host-counter output-alias
        else:  #-
            self.key_cache[layer] = torch.cat([self.key_cache[layer], k], dim=1)  #- expect: stale-input|size-frozen|host-counter|output-alias
        return self.key_cache[layer]

cache = DynamicCache()
cache.key_cache.append(torch.zeros(1, 1, 4, device=device))
proj = nn.Linear(4, 4).to(device)
args = (torch.randn(1, 1, 4, device=device),)
ignore = {"result"}

@torch.no_grad()
def decode(x):
    keys = cache.update(proj(x), 0)  #-
    return x @ keys.mT  #- may: size-frozen stale-input
    #+ return x @ proj(x).mT
# %% paged blocks through a table on the host -> read_pages
pages = torch.randn(6, 2, 4).to(device)
block_table = [[0, 3], [5, 1]]
#+ table_gpu = torch.tensor(block_table, device=device)
args = (torch.randn(2, 4, device=device),)

def gather(seq):
    return torch.cat([pages[b] for b in block_table[seq]])

@torch.no_grad()
def read_pages(q):
    keys = pages[block_table, :].flatten(1, 2)  #- expect: cpu-index
    #+ keys = pages[table_gpu].flatten(1, 2)
    own = torch.stack([gather(0), gather(1)])
    return torch.einsum("bd,btd->bt", q, keys + own)
# %% slots are allocated from a free list in Python -> append_token
free = list(range(8))
slots = torch.zeros(8, 4, device=device)
args = (torch.randn(4, device=device),)
#+ slot_in = torch.zeros(1, dtype=torch.long, device=device)
ignore = {"free", "slot_in", "result", "slots"}
class Allocator:
    def take(self):
        slot = free.pop()  # may: host-counter
        free.insert(0, slot)  # expect: host-counter
        return slot

alloc = Allocator()
@torch.no_grad()
def append_token(k):
    slots[alloc.take()] = k  #- expect: size-frozen|scalar-frozen
    #+ slots.index_copy_(0, slot_in, k[None])
    return slots.sum()
#+ def feed(i):
#+     slot_in.fill_(alloc.take())
#+     return (torch.randn(4, generator=torch.Generator().manual_seed(i)).to(device),)
# %% speculative decoding counts accepted tokens on the host -> verify
draft_head, target_head = nn.Linear(4, 6).to(device), nn.Linear(4, 6).to(device)
args = (torch.randn(3, 4, device=device),)
ignore = {"result"}

@torch.no_grad()
def verify(h):
    proposed = draft_head(h).argmax(-1)
    checked = target_head(h).argmax(-1)
    n = 0  #-
    for a, b in zip(proposed, checked):  #-
        if a != b:  #- expect: data-dependent-branch
            break  #-
        n += 1  #- may: branch-frozen
    return torch.cat([proposed[:n], checked[n:n + 1]])  #- may: size-frozen
    #+ n = (proposed == checked).long().cumprod(0).sum()
    #+ return torch.where(torch.arange(3, device=h.device) < n, proposed, checked)
# %% rejection sampling of drafts by cumprod of flags, clean -> verify
args = (torch.rand(4, 5, device=device), torch.rand(4, 5, device=device), torch.randint(0, 5, (4,), device=device), torch.rand(4, device=device))

def verify(p, q, tokens, u):
    ratio = p.gather(1, tokens[:, None]) / q.gather(1, tokens[:, None]).clamp(min=1e-6)
    ok = u < ratio.squeeze(1).clamp(max=1)
    accepted = ok.long().cumprod(0).sum()
    rest = (p - q).clamp(min=0)
    return accepted, (rest / rest.sum(-1, keepdim=True).clamp(min=1e-6)).argmax(-1)
# %% beam search with finished beams in a Python list -> beam_step
head = nn.Linear(4, 5).to(device)
finished = []
args = (torch.randn(3, 4, device=device), torch.zeros(3, device=device))
ignore = {"finished"}

@torch.no_grad()
def beam_step(h, scores):
    logp = head(h).log_softmax(-1) + scores[:, None]
    best = logp.flatten().topk(3)
    beam = best.indices // 5
    token = best.indices % 5
    for s, t in zip(best.values, token):
        if t.item() == 0:  #- expect: sync-item|data-dependent-branch
            finished.append(s.item())  #- expect: sync-item may: host-counter
        #+ pass
    return h[beam], best.values, token
# %% stop strings are checked on decoded text each step -> generate
vocab = "abcdef."
emb, head = nn.Embedding(7, 4).to(device), nn.Linear(4, 7).to(device)
args = (torch.randint(0, 7, (1, 2), device=device),)

def decode(ids):
    return "".join(vocab[i] for i in ids)

class StopOnString:
    def __init__(self, stop): self.stop = stop
    def __call__(self, ids):
        return self.stop in decode(ids[0].tolist())  #- expect: copy-to-cpu
        #+ return False

stopping = StopOnString("#")
@torch.no_grad()
def generate(ids):
    for _ in range(2):
        nxt = head(emb(ids).mean(1)).argmax(-1, keepdim=True)
        ids = torch.cat([ids, nxt], 1)
        if stopping(ids):  #- may: branch-frozen
            break  #-
    return ids
# %% min-p sampling with a temperature of each request -> sample
from dataclasses import dataclass
@dataclass
class Request:
    temperature: float
    min_p: float
requests = [Request(0.7, 0.1), Request(1.0, 0.05)]
args = (torch.randn(2, 6, device=device),)
#+ temps, floors = (torch.tensor([getattr(r, n) for r in requests], device=device)[:, None] for n in ("temperature", "min_p"))
ignore = {"temps", "floors"}

def field_of(name):
    return torch.tensor([getattr(r, name) for r in requests], device=device)[:, None]  #- expect: tensor-literal
    #+ return None

def sample(logits):
    probs = (logits / field_of("temperature")).softmax(-1)  #-
    #+ probs = (logits / temps).softmax(-1)
    floor = field_of("min_p") * probs.amax(-1, keepdim=True)  #-
    #+ floor = floors * probs.amax(-1, keepdim=True)
    return probs.masked_fill(probs < floor, 0.0)
# %% pinned staging of the next step's inputs, clean -> decode
stage = torch.zeros(2, dtype=torch.long).pin_memory()
ids = torch.zeros(2, dtype=torch.long, device=device)
emb = nn.Embedding(6, 4).to(device)
args = (torch.ones((), device=device),)
def feed(i):
    stage.fill_(i % 6)
    return (torch.full((), 1.0 + i).to(device),)

@torch.no_grad()
def decode(scale):
    ids.copy_(stage, non_blocking=True)
    return emb(ids) * scale
