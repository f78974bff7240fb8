# %% a chat turn ends at an end token asked for with in -> turn
stop_ids = {2, 5}
emb, head = nn.Embedding(8, 4).to(device), nn.Linear(4, 8).to(device)
args = (torch.randint(0, 8, (1, 3), device=device),)

@torch.no_grad()
def turn(ids):
    for _ in range(2):
        token = head(emb(ids).mean(1)).argmax(-1)
        ids = torch.cat([ids, token[:, None]], 1)
        if int(token) in stop_ids and ids.size(1) > 99:  #- expect: sync-item
            break  #-
    return ids
# %% a repetition penalty over a set of seen ids -> penalize
args = (torch.randn(1, 8, device=device), torch.randint(0, 8, (1, 4), device=device))

class RepetitionPenalty:
    def __init__(self, p): self.p = p
    def __call__(self, ids, scores):
        seen = torch.gather(scores, 1, ids)
        seen = torch.where(seen < 0, seen * self.p, seen / self.p)
        return scores.scatter(1, ids, seen)

class NoBadWords:
    def __init__(self, words): self.words = words
    def __call__(self, ids, scores):
        scores = scores.clone()
        for w in self.words:
            scores[0, w] = -float("inf")  #- expect: scalar-assignment
            #+ scores[:, w].fill_(-float("inf"))
        return scores

processors = [RepetitionPenalty(1.2), NoBadWords([3, 7])]
def penalize(scores, ids):
    for p in processors:
        scores = p(ids, scores)
    return scores.softmax(-1)
# %% a sequence's lengths are bumped at one row -> advance
lengths = torch.zeros(4, dtype=torch.long, device=device)
row = 2
args = (torch.randn(4, 3, device=device),)

def advance(x):
    lengths[row] += 1
    return x * lengths[:, None]
# %% a slot's state is reset to zero by its number -> reset
state = torch.ones(4, device=device)
slot = 1
args = (torch.randn(4, device=device),)
def clear(buffer, i):
    buffer[i] = 0  #- expect: scalar-assignment
    #+ buffer[i:i + 1] = 0

def reset(x):
    clear(state, slot)
    state.add_(x.abs())
    return state.clone()
# %% a rolling context window keeps the newest rows, clean -> push
window = torch.zeros(6, 3, device=device)
args = (torch.randn(2, 3, device=device),)

@torch.no_grad()
def push(rows):
    window.copy_(torch.cat([window[rows.size(0):], rows]))
    return window.mean(0)
# %% logits are cached in a dictionary of tensors by name, clean -> tap
class Tap(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
        self.taps = {}
    def forward(self, x):
        h = self.a(x)
        out = self.b(h.relu())
        self.taps = {"hidden": h, "logits": out}
        return out

net = Tap().to(device)
args = (torch.randn(2, 3, device=device),)
@torch.no_grad()
def tap(x):
    return net(x)
# %% a result object of tensors is kept as an attribute, clean -> run
from dataclasses import dataclass
@dataclass
class Output:
    logits: torch.Tensor
    name: str = "out"
class Runner:
    last = None
    def __init__(self): self.lin = nn.Linear(3, 2).to(device)
    def run(self, x):
        self.last = Output(self.lin(x))
        return self.last.logits
runner = Runner()
args = (torch.randn(2, 3, device=device),)
@torch.no_grad()
def run(x):
    return runner.run(x)
# %% tokens per second are counted on a server object -> serve
class Server:
    def __init__(self):
        self.tokens, self.started = 0, time.monotonic()
        self.lin = nn.Linear(3, 5).to(device)
    @property
    def rate(self):
        return self.tokens / max(time.monotonic() - self.started, 1e-9)
    def __call__(self, x):
        ids = self.lin(x).argmax(-1)
        self.tokens += ids.numel()  #- expect: host-counter
        return ids
server = Server()
args = (torch.randn(2, 3, device=device),)
@torch.no_grad()
def serve(x):
    return server(x)
# %% a system prompt's embedding is computed once at the first call, clean -> answer
class Prompted(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.prefix = nn.Embedding(8, 4), None
    def forward(self, ids):
        if self.prefix is None:
            self.prefix = self.emb(torch.arange(3, device=ids.device)).mean(0)
        return self.emb(ids).mean(1) + self.prefix

prompted = Prompted().to(device)
args = (torch.randint(0, 8, (2, 3), device=device),)
@torch.no_grad()
def answer(ids):
    return prompted(ids)
# %% the temperature cools every tenth call -> sample
calls = 0
args = (torch.randn(2, 5, device=device),)
ignore = {"result", "calls"}
#+ t_in = torch.ones((), device=device)

def temperature():
    return 1.0 / (1 + calls // 5)

def sample(logits):
    global calls  #-
    calls += 1  #- expect: host-counter
    return (logits / temperature()).softmax(-1)  #- expect: scalar-frozen
    #+ return (logits / t_in).softmax(-1)
