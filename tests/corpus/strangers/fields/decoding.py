from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.corpus.strangers.program import program


# --- a decoder with a growing KV cache in a list of tuples, greedy, then beams ---------------------------------------
class TinyGPT(nn.Module):
    def __init__(self, vocab=17, d=16, layers=2, heads=2, ctx=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "ln1": nn.LayerNorm(d),
                    "qkv": nn.Linear(d, 3 * d),
                    "proj": nn.Linear(d, d),
                    "ln2": nn.LayerNorm(d),
                    "mlp": nn.Sequential(nn.Linear(d, 4 * d), nn.GELU("tanh"), nn.Linear(4 * d, d)),
                }
            )
            for _ in range(layers)
        )
        self.ln, self.heads = nn.LayerNorm(d), heads
        self.head = nn.Linear(d, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids, past=None, use_cache=True):
        off = past[0][0].shape[2] if past is not None else 0
        x = self.wte(ids) + self.wpe(torch.arange(off, off + ids.shape[1], device=ids.device))
        present = []
        for i, b in enumerate(self.blocks):
            q, k, v = b["qkv"](b["ln1"](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            if past is not None:
                k, v = torch.cat([past[i][0], k], 2), torch.cat([past[i][1], v], 2)
            present.append((k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
            x = x + b["proj"](y.transpose(1, 2).flatten(2))
            x = x + b["mlp"](b["ln2"](x))
        return self.head(self.ln(x)), present if use_cache else None


@program(dynamic=True)
def kv_cache_growth(way):
    net = way.build(TinyGPT).eval()
    call = way(net)
    with torch.inference_mode():
        ids, past = way.ints(0, 17, 1, 4), None
        out = ids
        for _ in range(10):
            logits, past = call(ids, past)
            ids = logits[:, -1:].argmax(-1)
            out = torch.cat([out, ids], 1)
            yield out, [k.clone() for k, _ in past]


@program(dynamic=True)
def speculative_decoding(way):
    big, small = way.build(TinyGPT).eval(), way.build(lambda: TinyGPT(layers=1), 1).eval()
    target, draft = way(big), way(small)
    with torch.no_grad():
        ids = way.ints(3, 17, 1, 4)
        for _ in range(4):
            prop = ids
            for _ in range(3):
                prop = torch.cat([prop, draft(prop, use_cache=False)[0][:, -1:].argmax(-1)], 1)
            best = target(prop, use_cache=False)[0].argmax(-1)
            n = 0
            while n < 3 and bool(best[0, ids.shape[1] - 1 + n] == prop[0, ids.shape[1] + n]):
                n += 1
            ids = torch.cat([prop[:, : ids.shape[1] + n], best[:, ids.shape[1] - 1 + n][:, None]], 1)
            yield ids, n


@program()
def beam_step(way):
    def beam(logprobs, scores, beams, lengths, alpha: float = 0.6):
        b, n, v = logprobs.shape
        total = (scores[..., None] + logprobs).view(b, -1)
        penal = ((5 + lengths) / 6) ** alpha
        top, idx = (total / penal[:, None]).topk(n, dim=-1)
        src, tok = torch.div(idx, v, rounding_mode="floor"), idx % v
        beams = torch.cat([beams.gather(1, src[..., None].expand(-1, -1, beams.size(-1)))[..., 1:], tok[..., None]], -1)
        return top * penal[:, None], beams, tok

    call = way(beam)
    scores, beams = torch.zeros(2, 3, device=way.device), torch.zeros(2, 3, 6, dtype=torch.long, device=way.device)
    for k in range(10):
        lp = way.randn(k, 2, 3, 7).log_softmax(-1)
        lengths = torch.full((2,), k + 1.0, device=way.device)
        scores, beams, tok = call(lp, scores, beams, lengths) if k % 4 else call(lp, scores, beams, lengths, alpha=0.0)
        yield scores, beams, tok


# --- speech: CTC over a convolutional front end, lengths on the device ---------------------------------------------
@program()
def ctc(way):
    net = way.build(lambda: nn.Sequential(nn.Conv1d(4, 8, 3, 2, 1), nn.ReLU(), nn.Conv1d(8, 6, 1)))
    call = way(net)
    for k in range(10):
        lp = call(way.randn(k, 2, 4, 24)).permute(2, 0, 1).log_softmax(-1)
        loss = F.ctc_loss(
            lp.cpu(),
            torch.randint(1, 6, (2, 4), generator=torch.Generator().manual_seed(k)),
            torch.tensor([12, 10]),
            torch.tensor([4, 3]),
        )
        loss.backward()
        yield loss.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


# --- an encoder-decoder of torch's own with masks made each call ----------------------------------------------------
@program()
def seq2seq_transformer(way):
    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.src, self.tgt = nn.Embedding(12, 8, padding_idx=0), nn.Embedding(12, 8, padding_idx=0)
            self.t = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)
            self.gen = nn.Linear(8, 12)

        def forward(self, s, t):
            causal = nn.Transformer.generate_square_subsequent_mask(t.size(1), device=t.device)
            h = self.t(
                self.src(s) * 8**0.5,
                self.tgt(t) * 8**0.5,
                tgt_mask=causal,
                src_key_padding_mask=(s == 0).float().masked_fill(s == 0, float("-inf")),
            )
            return self.gen(h)

    net = way.build(Translator)
    model = way(net)
    opt = torch.optim.Adam(net.parameters(), lr=torch.tensor(1e-3, device=way.device), capturable=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) ** -0.5, (s + 1) / 4))

    def step(s, t):
        logits = model(s, t[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 12), t[:, 1:].reshape(-1), ignore_index=0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    step = way.step(step, net, opt)
    for k in range(10):
        torch.manual_seed(k // 2)
        yield step(way.ints(k, 12, 2, 5), way.ints(k + 9, 12, 2, 6)), net.gen.weight.detach().clone()
        sched.step()


# --- a text classifier: bags, n-gram convolutions, padding and packing ---------------------------------------------
@program()
def text_cnn(way):
    class TextCNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(30, 6, max_norm=1.0)
            self.convs = nn.ModuleList(nn.Conv1d(6, 4, n) for n in (2, 3, 4))
            self.fc = nn.Linear(12, 2)

        def forward(self, ids):
            x = self.emb(ids).transpose(1, 2)
            return self.fc(torch.cat([F.relu(c(x)).max(-1).values for c in self.convs], 1))

    net = way.build(TextCNN)
    call = way(net)
    for k in range(10):
        loss = F.cross_entropy(call(way.ints(k, 30, 3, 9)), way.ints(k + 1, 2, 3))
        loss.backward()
        yield loss.detach(), net.emb.weight.detach().clone(), net.fc.weight.grad.clone()
        net.zero_grad()
