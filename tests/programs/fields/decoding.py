# %% top-k filter as in small GPTs -> sample_next
temperature, top_k = 0.8, 3
lm_head = nn.Linear(8, 12).to(device)
args = (torch.randn(2, 8, device=device),)

@torch.no_grad()
def sample_next(h):
    logits = lm_head(h) / temperature
    v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
    logits[logits < v[:, [-1]]] = -float("inf")  #- expect: cpu-index
    #+ logits[logits < v[:, -1:]] = -float("inf")
    probs = F.softmax(logits, dim=-1)
    return torch.multinomial(probs, num_samples=1)
# %% nucleus sampling -> sample_next
lm_head = nn.Linear(8, 12).to(device)
args = (torch.randn(2, 8, device=device),)

@torch.no_grad()
def sample_next(h, top_p=0.9):
    probs = lm_head(h).softmax(-1)
    sorted_probs, sorted_idx = probs.sort(dim=-1, descending=True)
    drop = sorted_probs.cumsum(-1) - sorted_probs > top_p
    sorted_probs = sorted_probs.masked_fill(drop, 0.0)
    q = torch.empty_like(sorted_probs).exponential_(1)
    choice = (sorted_probs / q).argmax(-1, keepdim=True)
    return sorted_idx.gather(-1, choice)
# %% a cache that grows by concatenation -> decode
class Layer(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.k = self.v = None  #-
        #+ self.register_buffer("k", torch.zeros(1, 16, dim))
        #+ self.register_buffer("v", torch.zeros(1, 16, dim))
        #+ self.register_buffer("pos", torch.zeros(1, dtype=torch.long))
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        #+ self.k.index_copy_(1, self.pos, k)
        #+ self.v.index_copy_(1, self.pos, v)
        #+ mask = torch.arange(16, device=x.device) <= self.pos
        #+ self.pos.add_(1)
        #+ return self.out(F.scaled_dot_product_attention(q, self.k, self.v, attn_mask=mask[None, None]))
        self.k = k if self.k is None else torch.cat([self.k, k], dim=1)  #- expect: stale-input|size-frozen may: size-frozen
        self.v = v if self.v is None else torch.cat([self.v, v], dim=1)  #- expect: stale-input|size-frozen may: size-frozen
        return self.out(F.scaled_dot_product_attention(q, self.k, self.v))  #- may: size-frozen

layer = Layer().to(device)
args = (torch.randn(1, 1, 8, device=device),)
ignore = {"layer"}

@torch.no_grad()
def decode(x):
    return layer(x)
# %% a cache with a position in Python -> decode_one
dim, max_len = 4, 16
wk = nn.Linear(dim, dim, bias=False).to(device)
cache = torch.zeros(max_len, dim, device=device)
pos = 0  #-
#+ pos = torch.zeros(1, dtype=torch.long, device=device)
args = (torch.randn(1, dim, device=device),)
ignore = {"pos"}

@torch.no_grad()
def decode_one(x):
    global pos  #-
    cache[pos] = wk(x)[0]  #- expect: size-frozen|scalar-frozen|stale-input
    pos += 1  #- expect: host-counter
    scores = cache[:pos] @ x[0]  #- expect: size-frozen
    return (scores.softmax(0)[:, None] * cache[:pos]).sum(0)  #- expect: size-frozen
    #+ cache.index_copy_(0, pos, wk(x))
    #+ pos.add_(1)
    #+ scores = (cache @ x[0]).masked_fill(torch.arange(max_len, device=x.device) >= pos, -float("inf"))
    #+ return (scores.softmax(0)[:, None] * cache).sum(0)
# %% a static cache -> decode_one
dim, max_len = 4, 16
wk, wv = nn.Linear(dim, dim, bias=False).to(device), nn.Linear(dim, dim, bias=False).to(device)
k_cache, v_cache = torch.zeros(1, max_len, dim, device=device), torch.zeros(1, max_len, dim, device=device)
positions = torch.arange(max_len, device=device)
args = (torch.randn(1, 1, dim, device=device), torch.zeros(1, dtype=torch.long, device=device))
def feed(i):
    return torch.randn(1, 1, dim, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([i]).to(device)

@torch.no_grad()
def decode_one(x, cache_position):
    k_cache.index_copy_(1, cache_position, wk(x))
    v_cache.index_copy_(1, cache_position, wv(x))
    mask = positions[None, None] <= cache_position
    return F.scaled_dot_product_attention(x, k_cache, v_cache, attn_mask=mask)
# %% stop at the end-of-sequence token -> generate_step
eos_token_id = 3
model = nn.Linear(6, 5).to(device)
unfinished = torch.ones(2, dtype=torch.long, device=device)
args = (torch.randn(2, 6, device=device),)

@torch.no_grad()
def generate_step(hidden):
    next_tokens = model(hidden).argmax(-1)
    next_tokens = next_tokens * unfinished + eos_token_id * (1 - unfinished)
    unfinished.mul_((next_tokens != eos_token_id).long())
    if unfinished.max() == 0:  #- expect: data-dependent-branch
        return next_tokens, True  #-
    return next_tokens, False  #-
    #+ return next_tokens, unfinished.max() == 0

def seen(out):
    return out[0], float(out[1])
# %% repetition penalty over a set -> penalize
model = nn.Linear(6, 8).to(device)
generated = torch.tensor([1, 2, 2, 5], device=device)
args = (torch.randn(6, device=device),)

@torch.no_grad()
def penalize(h):
    logits = model(h)
    for token in set(generated.tolist()):  #- expect: copy-to-cpu
        logits[token] /= 1.3  #- may: size-frozen
    #+ score = logits.gather(0, generated) / 1.3
    #+ logits = logits.scatter(0, generated, score)
    return logits
# %% beam search -> beam_step
num_beams, vocab = 3, 7
proj = nn.Linear(4, vocab).to(device)
args = (torch.randn(num_beams, 4, device=device), torch.zeros(num_beams, device=device))

@torch.no_grad()
def beam_step(states, beam_scores):
    scores = proj(states).log_softmax(-1) + beam_scores[:, None]
    best, flat = scores.view(-1).topk(num_beams)
    parents = torch.div(flat, vocab, rounding_mode="floor")
    new_states = torch.stack([states[i] for i in parents.tolist()])  #- expect: copy-to-cpu
    #+ new_states = states.index_select(0, parents)
    return new_states, best, flat % vocab
# %% speculative decoding accepts a prefix -> verify
head = nn.Linear(6, 9).to(device)
draft = torch.tensor([1, 4, 2, 7], device=device)
args = (torch.randn(4, 6, device=device),)

@torch.no_grad()
def verify(hidden):
    target = head(hidden).argmax(-1)
    accepted = (draft == target).long().cumprod(0).sum().item()  #- expect: sync-item
    tokens = torch.where(torch.arange(4, device=device) < accepted, draft, target)  #- may: scalar-frozen
    #+ accepted = (draft == target).long().cumprod(0).sum()
    #+ tokens = torch.where(torch.arange(4, device=device) < accepted, draft, target)
    return tokens, accepted
# %% each request has its seed (random) -> sample_request
seed_of_request = 42
lm_head = nn.Linear(6, 9).to(device)
args = (torch.randn(1, 6, device=device),)

@torch.no_grad()
def sample_request(h):
    torch.manual_seed(seed_of_request)  #- expect: reseeded
    return torch.multinomial(lm_head(h).softmax(-1), 1)
# %% stream tokens to the user -> stream_step
class Streamer:
    def __init__(self):
        self.ids = []
    def put(self, ids):
        self.ids.append(ids)  # may: host-counter output-alias

streamer = Streamer()
lm_head = nn.Linear(6, 9).to(device)
args = (torch.randn(1, 6, device=device),)

@torch.no_grad()
def stream_step(h):
    next_token = lm_head(h).argmax(-1)
    streamer.put(next_token.cpu())  #- expect: copy-to-cpu may: host-counter output-alias
    return next_token
#+
#+ def after(next_token, i):
#+     streamer.put(next_token.cpu())
# %% the temperature falls with every token -> sample_next
class Sampler:
    def __init__(self):
        self.temperature = 1.5  #-
        #+ self.temperature = torch.tensor(1.5, device=device)
        self.lm_head = nn.Linear(6, 9).to(device)
    @torch.no_grad()
    def __call__(self, h):
        logits = self.lm_head(h) / self.temperature  #- expect: scalar-frozen
        self.temperature = max(0.1, self.temperature * 0.95)  #- expect: host-counter
        #+ logits = self.lm_head(h) / self.temperature
        #+ self.temperature.mul_(0.95).clamp_(min=0.1)
        return logits.softmax(-1)

sample_next = Sampler()
args = (torch.randn(1, 6, device=device),)
# %% only some tokens are allowed -> constrained
vocab_size = 10
allowed_tokens = [2, 3, 7]
head = nn.Linear(6, vocab_size).to(device)
args = (torch.randn(2, 6, device=device),)
#+ mask = torch.full((vocab_size,), -float("inf"))
#+ mask[allowed_tokens] = 0
#+ mask = mask.to(device)

@torch.no_grad()
def constrained(h):
    logits = head(h)
    mask = torch.full_like(logits, -float("inf"))  #-
    mask[:, allowed_tokens] = 0  #- expect: cpu-index
    return (logits + mask).argmax(-1)
# %% rotary embedding from a table -> rotary_attention
def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)

inv_freq = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
freqs = torch.outer(torch.arange(32).float(), inv_freq)
cos, sin = torch.cat((freqs, freqs), -1).cos().to(device), torch.cat((freqs, freqs), -1).sin().to(device)
args = (torch.randn(2, 4, 8, device=device), torch.arange(4, device=device))

@torch.no_grad()
def rotary_attention(q, position_ids):
    c, s = cos[position_ids], sin[position_ids]
    q = q * c + rotate_half(q) * s
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)
# %% rotary table that grows when needed -> forward
table = torch.zeros(0, 4, device=device)
def grow(n):
    global table
    t = torch.arange(n, device=device).float()
    table = torch.outer(t, 1.0 / 100 ** (torch.arange(0, 4, device=device).float() / 4)).cos()

args = (torch.randn(3, 4, device=device),)
def forward(x):
    if x.size(0) > table.size(0):
        grow(8)
    return x * table[: x.size(0)]
# %% mixture of experts by looping over the routed tokens -> moe
experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
gate = nn.Linear(4, 3, bias=False).to(device)
args = (torch.randn(6, 4, device=device),)

@torch.no_grad()
def moe(hidden_states):
    routing = gate(hidden_states).softmax(-1)
    weight, selected = routing.topk(1, dim=-1)
    out = torch.zeros_like(hidden_states)
    for idx, expert in enumerate(experts):
        #+ out = out + torch.where(selected == idx, weight * expert(hidden_states), 0.0)
        top_x, _ = torch.where(selected == idx)  #- expect: dynamic-shape
        if top_x.numel() == 0:  #- may: branch-frozen
            continue  #-
        out.index_add_(0, top_x, expert(hidden_states[top_x]) * weight[top_x])  #-
    return out
# %% sort a continuous batch by length -> schedule
emb = nn.Embedding(10, 4).to(device)
args = (torch.randint(0, 10, (4, 5), device=device), torch.tensor([2, 5, 1, 3], device=device))

@torch.no_grad()
def schedule(ids, lengths):
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])  #- expect: data-dependent-branch|sync-item may: sync-item
    h = emb(ids)[order]  #- expect: cpu-index
    #+ order = lengths.argsort(descending=True, stable=True)
    #+ h = emb(ids)[order]
    return h.cumsum(1)
# %% perplexity of a prompt -> score_prompt
model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11)).to(device).eval()
args = (torch.randint(0, 11, (2, 7), device=device),)

@torch.inference_mode()
def score_prompt(input_ids):
    logits = model(input_ids)[:, :-1]
    nll = F.cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten(), ignore_index=0)
    return math.exp(nll)  #- expect: sync-item
    #+ return nll.exp()
