from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.corpus.strangers.program import program


# --- an LSTM cell by hand, and truncated backpropagation through time ----------------------------------------------
class LSTMCell(nn.Module):
    def __init__(self, i, h):
        super().__init__()
        self.x2h, self.h2h = nn.Linear(i, 4 * h), nn.Linear(h, 4 * h, bias=False)
        self.ln = nn.LayerNorm(h)

    def forward(self, x, state):
        h, c = state
        i, f, g, o = (self.x2h(x) + self.h2h(h)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * self.ln(c).tanh()
        return h, (h, c)


class CharRNN(nn.Module):
    def __init__(self, vocab=11, d=8):
        super().__init__()
        self.emb, self.cell, self.out = nn.Embedding(vocab, d), LSTMCell(d, d), nn.Linear(d, vocab)
        self.d = d

    def init(self, b, device):
        return (torch.zeros(b, self.d, device=device),) * 2

    def forward(self, tokens, state):
        outs = []
        for t in range(tokens.shape[1]):
            h, state = self.cell(self.emb(tokens[:, t]), state)
            outs.append(self.out(h))
        return torch.stack(outs, 1), state


@program()
def char_rnn(way):
    net = way.build(CharRNN)
    call = way(net)
    opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
    state = net.init(3, way.device)
    for k in range(10):
        tok = way.ints(k, 11, 3, 6)
        logits, state = call(tok[:, :-1], state)
        loss = F.cross_entropy(logits.reshape(-1, 11), tok[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        state = tuple(s.detach() for s in state)
        yield loss.detach(), state


@program()
def lstm_step(way):
    net = way.build(CharRNN)
    model = way(net)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2, capturable=True)
    hidden = {"state": net.init(3, way.device)}

    def step(tok):
        logits, state = model(tok[:, :-1], hidden["state"])
        loss = F.cross_entropy(logits.flatten(0, 1), tok[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        hidden["state"] = tuple(s.detach() for s in state)
        return loss.detach()

    step = way.step(step, net, opt, hidden)
    for k in range(10):
        loss = step(way.ints(k, 11, 3, 6))
        yield loss, hidden["state"]
        if k == 5:
            hidden["state"] = net.init(3, way.device)


# --- nn.LSTM / nn.GRU as they come ---------------------------------------------------------------------------------
@program()
def torch_lstm(way):
    net = way.build(lambda: nn.LSTM(5, 7, num_layers=2, batch_first=True, bidirectional=True))
    call = way(net)
    hc = None
    for k in range(10):
        x = way.randn(k, 2, 4 + k % 2, 5)
        y, hc = call(x, hc) if k % 3 else call(x)
        yield y, hc
        hc = tuple(s.detach() for s in hc)


@program()
def torch_gru_training(way):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.fc = nn.GRU(5, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x):
            return self.fc(self.gru(x)[0])

    net = way.build(Tagger)
    call = way(net)
    for k in range(10):
        loss = F.cross_entropy(call(way.randn(k, 2, 5, 5)).flatten(0, 1), way.ints(k, 3, 10))
        loss.backward()
        yield loss.detach(), [p.grad.clone() for p in net.parameters()]
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad
                p.grad = None


# --- Transformer-XL: memory that is carried, relative positions ------------------------------------------------------
class XLLayer(nn.Module):
    def __init__(self, d=8, heads=2):
        super().__init__()
        self.h, self.dh = heads, d // heads
        self.q, self.kv, self.r, self.o = (nn.Linear(d, n * d, bias=False) for n in (1, 2, 1, 1))
        self.u, self.v = nn.Parameter(torch.zeros(heads, self.dh)), nn.Parameter(torch.ones(heads, self.dh) * 0.1)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(inplace=True), nn.Linear(2 * d, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    @staticmethod
    def rel_shift(x):
        b, h, q, k = x.shape
        x = torch.cat([x.new_zeros(b, h, q, 1), x], -1).view(b, h, k + 1, q)
        return x[:, :, 1:].reshape(b, h, q, k)

    def forward(self, x, mem, pos):
        cat = x if mem is None else torch.cat([mem, x], 1)
        split = lambda t: t.unflatten(-1, (self.h, self.dh)).transpose(1, 2)
        q = split(self.q(x))
        k, v = map(split, self.kv(cat).chunk(2, -1))
        r = self.r(pos).unflatten(-1, (self.h, self.dh)).transpose(0, 1)
        ac = torch.einsum("bhqd,bhkd->bhqk", q + self.u[:, None], k)
        bd = self.rel_shift(torch.einsum("bhqd,hkd->bhqk", q + self.v[:, None], r))
        i, j = q.shape[2], k.shape[2]
        mask = torch.ones(i, j, dtype=torch.bool, device=x.device).triu(1 + j - i)
        att = ((ac + bd) / math.sqrt(self.dh)).masked_fill(mask, -1e9).softmax(-1)
        x = self.n1(x + self.o((att @ v).transpose(1, 2).flatten(2)))
        return self.n2(x + self.ff(x))


class TransformerXL(nn.Module):
    def __init__(self, vocab=13, d=8, layers=2, mem=4):
        super().__init__()
        self.emb, self.mem_len = nn.Embedding(vocab, d), mem
        self.layers = nn.ModuleList(XLLayer(d) for _ in range(layers))
        self.register_buffer("inv_freq", 1 / (10000 ** (torch.arange(0.0, d, 2.0) / d)))

    def forward(self, tok, *mems):
        klen = tok.shape[1] + (mems[0].shape[1] if mems else 0)
        seq = torch.arange(klen - 1, -1, -1.0, device=tok.device)
        ang = torch.outer(seq, self.inv_freq)
        pos = torch.cat([ang.sin(), ang.cos()], -1)
        x, new = self.emb(tok), []
        for i, layer in enumerate(self.layers):
            mem = mems[i] if mems else None
            with torch.no_grad():
                new.append((x if mem is None else torch.cat([mem, x], 1))[:, -self.mem_len :].detach())
            x = layer(x, mem, pos)
        return F.linear(x, self.emb.weight), new


@program()
def transformer_xl(way):
    net = way.build(TransformerXL)
    call = way(net)
    opt = torch.optim.SGD(net.parameters(), 0.05)
    mems = ()
    for k in range(10):
        tok = way.ints(k, 13, 2, 5)
        logits, mems = call(tok[:, :-1], *mems)
        loss = F.cross_entropy(logits.transpose(1, 2), tok[:, 1:])
        loss.backward()
        opt.step()
        opt.zero_grad()
        yield loss.detach(), list(mems)


# --- Perceiver: latents that attend to bytes; latents are a parameter that is repeated -------------------------------
class Perceiver(nn.Module):
    def __init__(self, d=12, n=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(n, d))
        self.cross = nn.MultiheadAttention(d, 2, kdim=6, vdim=6, batch_first=True)
        self.selfs = nn.TransformerEncoderLayer(d, 2, 24, 0.0, batch_first=True, norm_first=True, activation="gelu")
        self.depth = 3

    def forward(self, x, key_padding_mask=None, return_attention=False):
        z = self.latents.unsqueeze(0).expand(x.size(0), -1, -1)
        a, w = self.cross(z, x, x, key_padding_mask=key_padding_mask, need_weights=return_attention)
        z = z + a
        for _ in range(self.depth):
            z = self.selfs(z)
        return (z.mean(1), w) if return_attention else z.mean(1)


@program(changes_model=True)
def perceiver(way):
    net = way.build(Perceiver)
    call = way(net)
    for k in range(10):
        x = way.randn(k, 2, 7, 6)
        pad = (torch.arange(7) >= 5).expand(2, 7).to(way.device)
        if k == 6:
            net.depth = 1
        out = call(x, pad) if k % 3 == 0 else call(x, key_padding_mask=None, return_attention=k % 3 == 1)
        yield out
        if k == 3:
            net.eval()
    net.train()
    call(way.randn(40, 2, 7, 6)).sum().backward()
    yield [p.grad for p in net.parameters() if p.grad is not None]


# --- a selective scan, as a loop and as a parallel prefix -------------------------------------------------------------
class Mamba(nn.Module):
    def __init__(self, d=6, n=4):
        super().__init__()
        self.inp, self.conv = nn.Linear(d, 2 * d), nn.Conv1d(d, d, 3, padding=2, groups=d)
        self.xp, self.dt = nn.Linear(d, 1 + 2 * n), nn.Linear(1, d)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, n + 1, dtype=torch.float32).repeat(d, 1)))
        self.D = nn.Parameter(torch.ones(d))
        self.out, self.n = nn.Linear(d, d), n

    def forward(self, u, parallel=False):
        x, z = self.inp(u).chunk(2, -1)
        x = F.silu(self.conv(x.mT)[..., : u.shape[1]].mT)
        dt, B, C = self.xp(x).split([1, self.n, self.n], -1)
        dt = F.softplus(self.dt(dt))
        dA = torch.exp(dt[..., None] * -self.A_log.exp())
        dBx = (dt * x)[..., None] * B[:, :, None]
        if parallel:
            a, s = dA, dBx
            shift = 1
            while shift < u.shape[1]:  # Hillis and Steele
                s = torch.cat([s[:, :shift], s[:, shift:] + a[:, shift:] * s[:, :-shift]], 1)
                a = torch.cat([a[:, :shift], a[:, shift:] * a[:, :-shift]], 1)
                shift *= 2
            hs = s
        else:
            h, hs = torch.zeros_like(dBx[:, 0]), []
            for t in range(u.shape[1]):
                h = dA[:, t] * h + dBx[:, t]
                hs.append(h)
            hs = torch.stack(hs, 1)
        y = torch.einsum("bldn,bln->bld", hs, C) + self.D * x
        return self.out(y * F.silu(z))


@program()
def mamba(way):
    net = way.build(Mamba)
    call = way(net)
    for k in range(10):
        u = way.randn(k, 2, 6, 6).requires_grad_()
        y = call(u, parallel=k % 2 == 1)
        y.square().sum().backward()
        yield y.detach(), u.grad, [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


# --- RWKV's time mixing: a running maximum, state in buffers -----------------------------------------------------------
class RWKV(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.k, self.v, self.r, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.decay, self.first = nn.Parameter(torch.linspace(-2, 1, d)), nn.Parameter(torch.full((d,), 0.3))
        for name in ("prev", "aa", "bb"):
            self.register_buffer(name, torch.zeros(1, d), persistent=False)
        self.register_buffer("pp", torch.full((1, d), -1e30), persistent=False)

    def forward(self, x):
        k, v, r = self.k(x + 0.5 * self.prev), self.v(x), torch.sigmoid(self.r(x))
        ww = self.first + k
        p = torch.maximum(self.pp, ww)
        e1, e2 = torch.exp(self.pp - p), torch.exp(ww - p)
        out = (e1 * self.aa + e2 * v) / (e1 * self.bb + e2)
        ww = self.pp - self.decay.exp()
        p = torch.maximum(ww, k)
        e1, e2 = torch.exp(ww - p), torch.exp(k - p)
        self.aa.mul_(e1).add_(e2 * v)
        self.bb.copy_(e1 * self.bb + e2)
        self.pp = p  # an assignment of a buffer
        self.prev[:] = x
        return self.o(r * out)


@program()
def rwkv(way):
    net = way.build(RWKV)
    call = way(net)
    with torch.no_grad():
        for k in range(10):
            yield call(way.randn(k, 1, 8)), net.aa.clone(), net.pp.clone(), net.prev.clone()


# --- S4D: a state-space kernel, convolved by FFT ------------------------------------------------------------------------
class S4D(nn.Module):
    def __init__(self, d=4, n=8, l_max=16):
        super().__init__()
        self.C = nn.Parameter(torch.randn(d, n, 2))
        self.log_dt = nn.Parameter(torch.rand(d) - 3)
        self.register_buffer("A", torch.complex(-0.5 * torch.ones(n), math.pi * torch.arange(n).float()))
        self.D = nn.Parameter(torch.ones(d))

    def kernel(self, L):
        dtA = self.A * self.log_dt.exp()[:, None]
        C = torch.view_as_complex(self.C) * (dtA.exp() - 1) / self.A
        k = dtA[..., None] * torch.arange(L, device=dtA.device)
        return 2 * torch.einsum("hn,hnl->hl", C, torch.exp(k)).real

    def forward(self, u):
        L = u.size(-1)
        kf = torch.fft.rfft(self.kernel(L), n=2 * L)
        uf = torch.fft.rfft(u, n=2 * L)
        return F.gelu(torch.fft.irfft(uf * kf, n=2 * L)[..., :L] + u * self.D.unsqueeze(-1))


@program()
def s4_by_fft(way):
    net = way.build(S4D)
    call = way(net)
    for k in range(10):
        y = call(way.randn(k, 2, 4, 16 if k < 7 else 12))
        (y - 1).pow(2).mean().backward()
        yield y.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
