# %% two towers with in-batch negatives -> train_step
user, item = nn.EmbeddingBag(20, 6, mode="mean").to(device), nn.Embedding(30, 6).to(device)
opt = torch.optim.Adagrad([*user.parameters(), *item.parameters()], lr=0.05)
log_q = torch.full((30,), -3.4, device=device)
args = (torch.randint(0, 20, (4, 3), device=device), torch.randint(0, 30, (4,), device=device))

def train_step(history, positive):
    u, v = F.normalize(user(history), dim=-1), F.normalize(item(positive), dim=-1)
    logits = u @ v.T / 0.1 - log_q[positive]
    loss = F.cross_entropy(logits, torch.arange(logits.size(0), device=logits.device))
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% deduplicate ids before the lookup -> lookup
table = nn.Embedding(12, 4).to(device)
args = (torch.randint(0, 12, (9,), device=device),)

@torch.no_grad()
def lookup(ids):
    unique, inverse = ids.unique(return_inverse=True)  #- expect: dynamic-shape
    return table(unique)[inverse]  #-
    #+ return table(ids)
# %% chunks of a corpus with a heap in Python -> search
import heapq
corpus = torch.randn(24, 5, device=device)
args = (torch.randn(5, device=device),)

def search(query, k=3):
    heap = []  #-
    #+ best = []
    for start in range(0, 24, 8):
        values, index = (corpus[start : start + 8] @ query).topk(k)
        for v, i in zip(values.tolist(), index.tolist()):  #- expect: copy-to-cpu
            heapq.heappush(heap, (v, i + start))  #- may: host-counter
        #+ best.append(values)
    return [v for v, _ in heapq.nlargest(k, heap)]  #-
    #+ return torch.cat(best).topk(k).values

def seen(out):
    return torch.as_tensor(out)
# %% popularity counted with a Counter -> recommend
from collections import Counter
popular = Counter()
scorer = nn.Linear(4, 6).to(device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def recommend(x):
    top = scorer(x).topk(2).indices
    popular.update(top.flatten().tolist())  #- expect: copy-to-cpu may: host-counter
    return top
#+
#+ def after(top, i):
#+     popular.update(top.flatten().tolist())
# %% hash buckets of features -> features
buckets = torch.tensor([7, 11], device=device)
tables = nn.ModuleList(nn.Embedding(n, 3) for n in (7, 11)).to(device)
args = (torch.randint(0, 1000, (5, 2), device=device),)

@torch.no_grad()
def features(raw):
    ids = raw % buckets
    return torch.cat([table(ids[:, i]) for i, table in enumerate(tables)], dim=1)
# %% negatives drawn by numpy with a distribution (random) -> loss_fn
weights = np.arange(1.0, 31.0) ** 0.75
emb = nn.Embedding(30, 4).to(device)
args = (torch.randint(0, 30, (5,), device=device),)
#+ chances = torch.as_tensor(weights / weights.sum()).float().to(device)

def loss_fn(center):
    negatives = np.random.choice(30, size=(5, 3), p=weights / weights.sum())  #- may: host-random
    neg = emb(torch.as_tensor(negatives, device=center.device))  #- expect: copy-to-gpu|tensor-literal may: host-random
    #+ neg = emb(torch.multinomial(chances, 15, replacement=True).view(5, 3))
    return F.logsigmoid(-(neg @ emb(center)[:, :, None])).mean().detach()
# %% a cache of users that are served often -> serve
class Server:
    def __init__(self):
        self.cache, self.hits = {}, 0
        self.net = nn.Linear(4, 4).to(device)
    @torch.no_grad()
    def serve(self, key, x):
        if key in self.cache:
            self.hits += 1  #- expect: host-counter
            return self.cache[key]
        self.cache[key] = self.net(x)  #-
        return self.cache[key]  #-
        #+ return self.net(x)

server = Server()
serve = server.serve
args = ("ada", torch.randn(2, 4, device=device))
ignore = ("result",)
# %% dot products clipped to the number of candidates -> rank
args = (torch.randn(8, device=device), torch.tensor(5, device=device))

def rank(scores, count):
    order = scores[:count].argsort(descending=True)  #- expect: tensor-bound|sync-item
    #+ order = scores.masked_fill(torch.arange(8, device=scores.device) >= count, -1e9).argsort(descending=True)
    return order  #-
    #+ return order

def seen(order):
    return order[:3]
# %% calibration by temperature on the device -> calibrate
log_t = torch.zeros((), device=device, requires_grad=True)
opt = torch.optim.Adam([log_t], lr=0.01, capturable=True)
args = (torch.randn(6, 4, device=device), torch.randint(0, 4, (6,), device=device))

def calibrate(logits, labels):
    opt.zero_grad()
    loss = F.cross_entropy(logits / log_t.exp(), labels)
    loss.backward()
    opt.step()
    return loss.detach(), log_t.detach().exp()
# %% diversify greedily by maximal marginal relevance -> diversify
args = (torch.rand(6, device=device), torch.rand(6, 6, device=device))

def diversify(relevance, similarity):
    chosen = []  #-
    #+ taken, order = torch.zeros(6, dtype=torch.bool, device=relevance.device), []
    for _ in range(3):
        penalty = similarity[:, chosen].max(dim=1).values if chosen else 0.0  #- expect: cpu-index
        score = relevance - 0.5 * penalty  #-
        if chosen:  #-
            score[chosen] = -1.0  #- expect: cpu-index may: scalar-assignment
        chosen.append(int(score.argmax()))  #- expect: sync-item
        #+ penalty = torch.where(taken[None, :], similarity, -1e9).max(dim=1).values
        #+ score = relevance - 0.5 * torch.where(taken.any(), penalty, 0.0)
        #+ best = score.masked_fill(taken, -1e9).argmax(0, keepdim=True)
        #+ taken = taken.scatter(0, best, True)
        #+ order.append(best)
    return torch.tensor(chosen)  #-
    #+ return torch.cat(order)
