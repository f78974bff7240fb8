# %% the model keeps its last activation in an attribute, clean -> step
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(2, 2), nn.Linear(2, 4)
        self.x = None
    def forward(self, inp):
        res = self.linear1(inp)
        self.x = res  # may: output-alias
        return self.linear2(res)

model = Model().to(device)
args = (torch.ones(2, 2, device=device),)
penalty = torch.zeros((), device=device)

@torch.no_grad()
def step(inp):
    out = model(inp)
    return out.sum()
# %% previous hidden state fed back through an attribute -> step
class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.register_buffer("h", torch.zeros(2, 4))
    def forward(self, x):
        self.h = self.cell(x, self.h)  #- expect: stale-input|output-alias|host-counter
        #+ self.h.copy_(self.cell(x, self.h))
        return self.h  #-
        #+ return self.h.clone()

net = Stateful().to(device)
args = (torch.randn(2, 3, device=device),)

@torch.no_grad()
def step(x):
    return net(x)
# %% unique experts of a routing, as in serving engines -> route
gate = nn.Linear(4, 3).to(device)
experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
args = (torch.randn(6, 4, device=device),)

@torch.no_grad()
def route(hidden):
    topk_ids = gate(hidden).argmax(-1)
    out = torch.zeros_like(hidden)
    for e in topk_ids.unique().tolist():  #- expect: dynamic-shape copy-to-cpu|sync-item
    #+ for e in range(len(experts)):
        sel = (topk_ids == e).nonzero(as_tuple=True)[0]  #- expect: dynamic-shape
        #+ sel = (topk_ids == e)[:, None]
        out[sel] = experts[e](hidden[sel])  #-
        #+ out = torch.where(sel, experts[e](hidden), out)
    return out
# %% rope tables are made again for a longer sequence -> attend
class Rotary(nn.Module):
    def __init__(self, dim=4, base=10000.0):
        super().__init__()
        self.dim, self.base, self.max_len = dim, base, 8
        self.register_buffer("inv_freq", 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim)))
    def forward(self, x, position_ids):
        seq_len = torch.max(position_ids) + 1
        if seq_len > self.max_len:  #- expect: data-dependent-branch
            self.max_len = int(seq_len)  #- may: sync-item host-counter
        freqs = position_ids[:, :, None].float() * self.inv_freq
        return torch.cat((freqs, freqs), dim=-1).cos() * x

rotary = Rotary().to(device)
args = (torch.randn(1, 5, 4, device=device), torch.arange(5, device=device)[None])

def attend(x, position_ids):
    return rotary(x, position_ids)
# %% an attention mask that is left out where nothing is padded -> forward
attn = nn.MultiheadAttention(4, 2, batch_first=True).to(device).eval()
args = (torch.randn(2, 3, 4, device=device), torch.tensor([[1, 1, 1], [1, 1, 0]], device=device))
def feed(i):
    return torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([[1, 1, 1], [1, 1, i % 2]]).to(device)

@torch.no_grad()
def forward(x, attention_mask):
    if torch.all(attention_mask == 1):  #- expect: data-dependent-branch
        mask = None  #-
    else:  #-
        mask = attention_mask == 0  #-
    #+ mask = attention_mask == 0
    return attn(x, x, x, key_padding_mask=mask, need_weights=False)[0]
# %% list of lengths gives the last token of each row -> last_hidden
args = (torch.randn(3, 5, 4, device=device), torch.tensor([2, 5, 3], device=device))
def feed(i):
    return torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([2, 5, 3]).roll(i).to(device)

def last_hidden(hidden, lengths):
    last = [hidden[b, n - 1] for b, n in enumerate(lengths.tolist())]  #- expect: copy-to-cpu|sync-item
    #+ last = hidden[torch.arange(3, device=device), lengths - 1]
    return torch.stack(last)  #- may: branch-frozen scalar-frozen size-frozen
    #+ return last
# %% warm-up factor read from a Python step counter -> train_step
model = nn.Linear(4, 1).to(device)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)  #-
#+ opt = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2, device=device), capturable=True)
step_num, warmup, base_lr = 0, 5, 1e-2
args = (torch.randn(4, 4, device=device),)

def train_step(x):
    global step_num  #-
    step_num += 1  #- expect: host-counter
    for g in opt.param_groups:  #-
        g["lr"] = base_lr * min(1.0, step_num / warmup)  #- may: learning-rate-frozen scalar-frozen host-counter
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()  # expect: learning-rate-frozen
    return loss.detach()
#+ def set_lr(n):
#+     global step_num
#+     step_num = n
#+     for g in opt.param_groups:
#+         g["lr"].fill_(base_lr * min(1.0, n / warmup))
#+ def feed(i):
#+     set_lr(i + 1)
#+     return (torch.randn(4, 4, generator=torch.Generator().manual_seed(i)).to(device),)
ignore = {"result", "model"}
# %% torch.cuda.synchronize around a stopwatch in a decorator -> infer
import functools
timings = []
def timed(fn):
    @functools.wraps(fn)
    def wrapper(*a, **k):
        cuda.synchronize()  #- expect: synchronize
        start = time.perf_counter()
        out = fn(*a, **k)
        cuda.synchronize()  #- expect: synchronize
        timings.append(time.perf_counter() - start)  #- may: host-counter
        return out
    return wrapper
ignore = {"timings"}
model = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)

@timed
@torch.no_grad()
def infer(x):
    return model(x).softmax(-1)
# %% events measure a block and are read at once -> infer
model = nn.Linear(4, 2).to(device)
ms = []
ignore = {"ms"}
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def infer(x):
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)  #-
    start.record()  #- may: timed-event
    y = model(x)
    end.record()  #- may: timed-event
    end.synchronize()  #- expect: synchronize|captured-event
    ms.append(start.elapsed_time(end))  #- may: synchronize query host-counter captured-event
    return y
# %% random crop offsets by torch.randint on the CPU and item (random) -> crop_batch
args = (torch.rand(2, 3, 8, 8, device=device),)

def crop_batch(img):
    top = torch.randint(0, 3, (1,)).item()  #-
    left = torch.randint(0, 3, (1,)).item()  #-
    return img[:, :, top:top + 6, left:left + 6]  #- expect: host-random may: size-frozen scalar-frozen
    #+ top, left = torch.randint(0, 3, (1,), device=device), torch.randint(0, 3, (1,), device=device)
    #+ r = torch.arange(6, device=device)
    #+ return img.index_select(2, r + top).index_select(3, r + left)
# %% dropout probability that is annealed by calls -> forward
class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.lin = 0, nn.Linear(4, 4)
        #+ self.register_buffer("scale", torch.ones(()))
    def forward(self, x):
        self.calls += 1  #- expect: host-counter
        return self.lin(x) * (1.0 - 0.01 * self.calls)  #- expect: scalar-frozen
        #+ self.scale -= 0.01
        #+ return self.lin(x) * self.scale

net = Annealed().to(device)
args = (torch.randn(2, 4, device=device),)
ignore = {"net"}

@torch.no_grad()
def forward(x):
    return net(x)
# %% masked mean with an emptiness check -> pooled
args = (torch.randn(4, 3, device=device), torch.tensor([True, False, True, True], device=device))

def pooled(x, keep):
    if not keep.any():  #- expect: data-dependent-branch
        return torch.zeros(3, device=x.device)  #-
    return x[keep].mean(0)  #- expect: dynamic-shape
    #+ n = keep.sum()
    #+ return torch.where(n > 0, (x * keep[:, None]).sum(0) / n.clamp(min=1), torch.zeros(3, device=x.device))
# %% an assertion about token ids -> embed
emb = nn.Embedding(10, 4).to(device)
args = (torch.randint(0, 10, (2, 3), device=device),)

@torch.no_grad()
def embed(ids):
    assert ids.max() < emb.num_embeddings, "token id out of range"  #- expect: data-dependent-branch
    assert ids.min() >= 0  #- expect: data-dependent-branch
    return emb(ids)
# %% float of a loss in an f-string of a logger -> train_step
import logging
logger = logging.getLogger("train")
logger.addHandler(logging.NullHandler())
logger.setLevel(logging.INFO)
logger.propagate = False
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device),)

def train_step(x):
    loss = model(x).square().mean()
    opt.zero_grad(set_to_none=False)
    loss.backward()
    gn = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    logger.info(f"loss={float(loss):.3f} grad_norm={gn:.3f}")  #- expect: sync-item may: print
    return loss.detach()
