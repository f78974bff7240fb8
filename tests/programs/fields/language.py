# %% speculative decoding accepts a prefix -> verify
target = nn.Embedding(8, 8).to(device)
args = (torch.randint(0, 8, (4,), device=device), torch.rand(4, 8, device=device).softmax(-1))

@torch.no_grad()
def verify(draft, draft_probs):
    probs = target(draft).softmax(-1)
    n_accepted = 0  #-
    for i in range(4):  #-
        p, q = probs[i, draft[i]], draft_probs[i, draft[i]]  #- may: sync-item tensor-bound
        if p < q:  #- expect: data-dependent-branch
            break  #-
        n_accepted += 1  #-
    return draft[:n_accepted]  #- may: size-frozen
    #+ ok = probs.gather(1, draft[:, None]) >= draft_probs.gather(1, draft[:, None])
    #+ return torch.where(ok.squeeze(1).cumprod(0).bool(), draft, torch.full_like(draft, -1))
ignore = {"result"}
# %% greedy generation into a growing tensor -> generate
emb, head = nn.Embedding(8, 6).to(device), nn.Linear(6, 8).to(device)
eos = 3
args = (torch.randint(0, 8, (1, 3), device=device),)
ignore = {"result"}

@torch.no_grad()
def generate(ids):
    for _ in range(4):
        nxt = head(emb(ids).mean(1)).argmax(-1, keepdim=True)
        ids = torch.cat([ids, nxt], dim=1)
        if nxt.item() == eos:  #- expect: sync-item|data-dependent-branch
            break  #-
    return ids
# %% a repetition penalty over the set of seen tokens -> penalize
args = (torch.randn(8, device=device), torch.randint(0, 8, (5,), device=device))

def penalize(logits, generated):
    logits = logits.clone()
    for token in set(generated.tolist()):  #- expect: copy-to-cpu|sync-item
        logits[token] /= 1.2  #- may: branch-frozen scalar-frozen size-frozen
    #+ seen = torch.zeros(8, dtype=torch.bool, device=device).index_fill_(0, generated, True)
    #+ logits = torch.where(seen, logits / 1.2, logits)
    return logits
# %% packed sequences through an LSTM -> encode
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
lstm = nn.LSTM(3, 4, batch_first=True).to(device)
args = (torch.randn(3, 5, 3, device=device), torch.tensor([5, 3, 2], device=device))
def feed(i):
    return torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([5, 3, 2]).to(device)

@torch.no_grad()
def encode(x, lengths):
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True)  #- expect: copy-to-cpu may: copy-to-gpu
    out, _ = lstm(packed)  #- may: copy-to-gpu size-frozen
    return pad_packed_sequence(out, batch_first=True)[0]  #- may: copy-to-gpu size-frozen
    #+ out, _ = lstm(x)
    #+ return out * (torch.arange(5, device=x.device)[None] < lengths[:, None])[..., None]
# %% perplexity from a summed loss -> evaluate
emb, head = nn.Embedding(8, 6).to(device), nn.Linear(6, 8).to(device)
total = {"nll": 0.0, "tokens": 0}
args = (torch.randint(0, 8, (2, 4), device=device), torch.randint(0, 8, (2, 4), device=device))

@torch.no_grad()
def evaluate(ids, labels):
    loss = F.cross_entropy(head(emb(ids)).flatten(0, 1), labels.flatten(), ignore_index=-100)
    n = (labels != -100).sum().item()  #- expect: sync-item
    #+ n = (labels != -100).sum()
    total["nll"] += loss.item() * n  #- expect: sync-item may: host-counter
    total["tokens"] += n  #- may: host-counter
    return loss  #-
    #+ return loss, n
#+ def after(out, i):
#+     total["nll"] += out[0].item() * out[1].item()
#+     total["tokens"] += out[1].item()
def seen(out):
    return out[0] if isinstance(out, tuple) else out
# %% masked language loss over masked positions only -> mlm_loss
emb, head = nn.Embedding(8, 6).to(device), nn.Linear(6, 8).to(device)
args = (torch.randint(0, 8, (2, 5), device=device), torch.randint(0, 8, (2, 5), device=device), torch.rand(2, 5, device=device) > 0.5)

@torch.no_grad()
def mlm_loss(ids, labels, masked):
    h = emb(ids)[masked]  #- expect: dynamic-shape
    return F.cross_entropy(head(h), labels[masked])  #- expect: dynamic-shape
    #+ per = F.cross_entropy(head(emb(ids)).flatten(0, 1), labels.flatten(), reduction="none")
    #+ return (per * masked.flatten()).sum() / masked.sum()
# %% beam search with fixed beams, clean -> beam_step
head = nn.Embedding(6, 6).to(device)
args = (torch.randint(0, 6, (3,), device=device), torch.randn(3, device=device))

@torch.no_grad()
def beam_step(tokens, scores):
    logp = head(tokens).log_softmax(-1) + scores[:, None]
    best, flat = logp.flatten().topk(3)
    return flat % 6, best, flat // 6
# %% hypotheses in Python tuples -> beam_step
head = nn.Embedding(6, 6).to(device)
args = (torch.randint(0, 6, (3,), device=device), torch.randn(3, device=device))
ignore = {"result"}

@torch.no_grad()
def beam_step(tokens, scores):
    logp = head(tokens).log_softmax(-1)
    candidates = []  #-
    for b in range(3):  #-
        top, ids = logp[b].topk(2)  #-
        for s, t in zip(top, ids):  #-
            candidates.append((scores[b].item() + s.item(), t.item()))  #- expect: sync-item
    candidates.sort(reverse=True)  #-
    return torch.tensor([t for _, t in candidates[:3]], device=device)  #- expect: tensor-literal may: cpu-scalar-frozen scalar-frozen
    #+ best, flat = (logp + scores[:, None]).flatten().topk(3)
    #+ return flat % 6
# %% a tied KV cache in a dataclass with a growing length -> decode
from dataclasses import dataclass
@dataclass
class Cache:
    k: torch.Tensor
    length: int = 0
cache = Cache(torch.zeros(16, 4, device=device))
args = (torch.randn(1, 4, device=device),)
#+ pos = torch.zeros(1, dtype=torch.long, device=device)

@torch.no_grad()
def decode(x):
    cache.k[cache.length] = x[0]  #- expect: scalar-frozen|size-frozen
    cache.length += 1  #- expect: host-counter
    att = (cache.k[:cache.length] @ x[0]).softmax(0)  #- expect: size-frozen
    return att @ cache.k[:cache.length]  #- may: size-frozen
    #+ cache.k.index_copy_(0, pos, x)
    #+ pos.add_(1)
    #+ score = (cache.k @ x[0]).masked_fill(torch.arange(16, device=x.device) >= pos, float("-inf"))
    #+ return score.softmax(0) @ cache.k
# %% label smoothing and a byte table, clean -> loss_fn
emb = nn.Embedding(16, 8).to(device)
args = (torch.randint(0, 16, (2, 4), device=device), torch.randint(0, 16, (2, 4), device=device))

def loss_fn(ids, labels):
    logits = emb(ids) @ emb.weight.T
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1).detach()
# %% tokens to text in the step -> decode_text
vocab = ["a", "b", "c", "d"]
head, texts = nn.Linear(3, 4).to(device), []
args = (torch.randn(5, 3, device=device),)

@torch.no_grad()
def decode_text(h):
    ids = head(h).argmax(-1)
    texts.append("".join(vocab[i] for i in ids))  #- expect: sync-item|tensor-bound|copy-to-cpu may: host-counter
    return ids
#+ def after(ids, i):
#+     texts.append("".join(vocab[i] for i in ids))
# %% bucketed relative positions, clean -> bias
table = nn.Embedding(8, 2).to(device)
args = (torch.randn(1, 2, 5, 5, device=device),)

@torch.no_grad()
def bias(scores):
    q = torch.arange(5, device=scores.device)
    rel = (q[None] - q[:, None]).abs()
    large = 2 + (torch.log(rel.float().clamp(min=1) / 2) / math.log(4) * 6).long()
    bucket = torch.where(rel < 2, rel, large.clamp(max=7))
    return scores + table(bucket).permute(2, 0, 1)[None]
