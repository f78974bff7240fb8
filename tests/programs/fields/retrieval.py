# %% a MoCo queue in a module with a pointer buffer read by int -> enqueue
class MoCo(nn.Module):
    def __init__(self, dim=4, K=8):
        super().__init__()
        self.K = K
        self.enc = nn.Linear(3, dim)
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        n = keys.shape[0]
        ptr = int(self.queue_ptr)  #- expect: sync-item
        self.queue[:, ptr:ptr + n] = keys.T  #- may: size-frozen
        ptr = (ptr + n) % self.K  #-
        self.queue_ptr[0] = ptr  #- expect: scalar-assignment may: scalar-frozen
        #+ at = (self.queue_ptr + torch.arange(n, device=keys.device)) % self.K
        #+ self.queue.index_copy_(1, at, keys.T)
        #+ self.queue_ptr.copy_((self.queue_ptr + n) % self.K)
    def forward(self, x):
        k = F.normalize(self.enc(x), dim=1)
        logits = k @ self.queue.clone()
        self._dequeue_and_enqueue(k)
        return logits

moco = MoCo().to(device)
args = (torch.randn(2, 3, device=device),)

@torch.no_grad()
def enqueue(x):
    return moco(x)
# %% momentum encoder by a zip over parameters, clean -> update
import copy
q_enc = nn.Linear(3, 4).to(device)
k_enc = copy.deepcopy(q_enc).requires_grad_(False)
opt = torch.optim.SGD(q_enc.parameters(), lr=0.1, momentum=0.9)
args = (torch.randn(4, 3, device=device),)

def update(x):
    sim = F.normalize(q_enc(x), dim=1) @ F.normalize(k_enc(x), dim=1).T
    loss = F.cross_entropy(sim / 0.1, torch.arange(4, device=x.device))
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for pq, pk in zip(q_enc.parameters(), k_enc.parameters()):
            pk.data.mul_(0.99).add_(pq.data, alpha=0.01)
    return loss.detach()
# %% top k documents are looked up in a Python list -> retrieve
docs = ["alpha", "beta", "gamma", "delta"]
index = F.normalize(torch.randn(4, 5), dim=1).to(device)
args = (torch.randn(2, 5, device=device),)
ignore = {"result"}

@torch.no_grad()
def retrieve(q):
    scores = F.normalize(q, dim=1) @ index.T
    top = scores.topk(2, dim=1)
    return [[docs[i] for i in row] for row in top.indices.tolist()]  #- expect: copy-to-cpu
    #+ return top.indices
# %% tokenizer in the loop -> embed_texts
words = {"the": 1, "cat": 2, "sat": 3}
texts = ["the cat", "cat sat the"]
table = nn.Embedding(4, 5, padding_idx=0).to(device)
#+ static_ids = torch.tensor([[1, 2, 0], [2, 3, 1]], device=device)
args = (torch.ones(1, device=device),)

class Tokenizer:
    def __call__(self, batch, return_tensors="pt"):
        rows = [[words[w] for w in t.split()] for t in batch]
        longest = max(map(len, rows))
        return {"input_ids": torch.tensor([r + [0] * (longest - len(r)) for r in rows])}

tokenizer = Tokenizer()

@torch.no_grad()
def embed_texts(scale):
    batch = tokenizer(texts)  #-
    batch = {k: v.to(device) for k, v in batch.items()}  #- expect: copy-to-gpu
    ids = batch["input_ids"]  #-
    #+ ids = static_ids
    return table(ids).mean(1) * scale
# %% hard negatives by masking the diagonal, clean -> triplet
enc = nn.Linear(3, 4).to(device)
args = (torch.randn(5, 3, device=device), torch.randn(5, 3, device=device))

def triplet(a, p):
    enc.zero_grad()
    za, zp = F.normalize(enc(a), dim=1), F.normalize(enc(p), dim=1)
    d = torch.cdist(za, zp)
    pos = d.diagonal()
    neg = d.masked_fill(torch.eye(5, dtype=torch.bool, device=d.device), float("inf")).min(1).values
    loss = F.relu(pos - neg + 0.2).mean()
    loss.backward()
    return loss.detach(), enc.weight.grad.clone()
# %% mean reciprocal rank by nonzero of a comparison -> mrr
args = (torch.rand(4, 6, device=device), torch.randint(0, 6, (4,), device=device))

def mrr(scores, gold):
    order = scores.argsort(dim=1, descending=True)
    ranks = (order == gold[:, None]).nonzero()[:, 1] + 1  #- expect: dynamic-shape
    #+ ranks = (order == gold[:, None]).float().argmax(1) + 1
    return (1.0 / ranks).mean()
# %% an in-memory index grows by torch.cat in a property setter -> add_and_search
class Index:
    def __init__(self):
        self._vectors = torch.randn(3, 4, device=device)
        #+ self.n = 3
    @property
    def vectors(self):
        return self._vectors
    @vectors.setter
    def vectors(self, value):
        self._vectors = value  #- may: stale-input host-counter output-alias
        #+ pass

store = Index()
args = (torch.randn(2, 4, device=device),)
ignore = {"result"}

@torch.no_grad()
def add_and_search(q):
    store.vectors = torch.cat([store.vectors, q])  #- expect: stale-input|size-frozen|output-alias
    return q @ store.vectors[:3].T  #- may: stale-input size-frozen
    #+ return q @ store.vectors[:3].T
# %% deduplicated ids with inverse before an embedding -> dedup_embed
table = nn.Embedding(10, 3).to(device)
args = (torch.randint(0, 10, (8,), device=device),)

@torch.no_grad()
def dedup_embed(ids):
    unique, inverse = torch.unique(ids, return_inverse=True)  #- expect: dynamic-shape
    return table(unique)[inverse]  #-
    #+ return table(ids)
# %% an IVF probe chooses lists by the nearest centroid -> search
centroids = torch.randn(3, 4).to(device)
lists = [torch.randn(5, 4).to(device) for _ in range(3)]
#+ flat = torch.stack(lists)
args = (torch.randn(4, device=device),)

def nearest(q):
    return int((centroids - q).square().sum(1).argmin())  #- expect: sync-item
    #+ return (centroids - q).square().sum(1).argmin()

@torch.no_grad()
def search(q):
    bucket = lists[nearest(q)]  #-
    #+ bucket = flat.index_select(0, nearest(q).reshape(1))[0]
    return (bucket @ q).max()  #- may: stale-input
    #+ return (bucket @ q).max()
# %% gathering features over ranks without a group, clean -> clip_loss
import torch.distributed as dist
img, txt = nn.Linear(3, 4).to(device), nn.Linear(5, 4).to(device)
scale = nn.Parameter(torch.tensor(2.0, device=device))
args = (torch.randn(4, 3, device=device), torch.randn(4, 5, device=device))

def all_gather(z):
    if dist.is_available() and dist.is_initialized():
        out = [torch.zeros_like(z) for _ in range(dist.get_world_size())]
        dist.all_gather(out, z)
        return torch.cat(out)
    return z

@torch.no_grad()
def clip_loss(a, b):
    za, zb = all_gather(F.normalize(img(a), dim=-1)), all_gather(F.normalize(txt(b), dim=-1))
    logits = scale.exp().clamp(max=100) * za @ zb.T
    labels = torch.arange(logits.size(0), device=logits.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
