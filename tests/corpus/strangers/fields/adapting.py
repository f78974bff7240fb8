from __future__ import annotations

import copy
import math
from collections import namedtuple
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations, parametrize

from tests.corpus.strangers.program import program


# --- hypernetwork: the weights are outputs; functional conv with groups -------------------------------------------------
class Hyper(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(3, 2 * 2 * 9 + 2)

    def forward(self, x, z):
        p = self.h(z)
        w, b = p[:, :36].reshape(-1, 2, 3, 3), p[:, 36:].reshape(-1)
        n = x.size(0)
        y = F.conv2d(x.reshape(1, -1, *x.shape[2:]), w, b, padding=1, groups=n)
        return y.view(n, 2, *x.shape[2:])


@program()
def hypernetwork(way):
    net = way.build(Hyper)
    call = way(net)
    for k in range(10):
        x, z = way.randn(k, 3, 2, 6, 6), way.randn(k + 1, 3, 3).requires_grad_()
        y = call(x[:, :, ::1] if k % 2 else x.flip(0), z)
        y.relu().sum().backward()
        yield y.detach(), z.grad, net.h.weight.grad.clone()
        net.zero_grad()


# --- LoRA that wraps a frozen model, merged and unmerged, saved and loaded ------------------------------------------------
class LoRA(nn.Module):
    def __init__(self, base, r=2, alpha=4):
        super().__init__()
        self.base, self.scale, self.merged = base, alpha / r, False
        base.requires_grad_(False)
        self.A, self.B = (
            nn.Parameter(torch.randn(r, base.in_features) * 0.1),
            nn.Parameter(torch.zeros(base.out_features, r)),
        )

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else y + (x @ self.A.t() @ self.B.t()) * self.scale

    @torch.no_grad()
    def merge(self):
        self.base.weight += self.scale * self.B @ self.A
        self.merged = True


@program(changes_model=True)
def lora(way):
    net = way.build(lambda: nn.Sequential(LoRA(nn.Linear(6, 8)), nn.GELU(), LoRA(nn.Linear(8, 6))))
    model = way(net)
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2, capturable=True)

    def step(x):
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss.detach()

    step = way.step(step, net, opt)
    for k in range(8):
        yield step(way.randn(k, 5, 6)), net[0].B.detach().clone()
    saved = copy.deepcopy(net.state_dict())
    for layer in (net[0], net[2]):
        layer.merge()
    with torch.no_grad():
        for k in range(3):
            yield model(way.randn(k, 5, 6))
    net.load_state_dict(saved)
    net[0].merged = net[2].merged = False
    with torch.no_grad():
        for k in range(3):
            yield model(way.randn(k, 5, 6))
    yield step(way.randn(30, 5, 6))


# --- parametrizations that come and go ---------------------------------------------------------------------------------
class Symmetric(nn.Module):
    def forward(self, X):
        return X.triu() + X.triu(1).transpose(-1, -2)


@program(changes_model=True)
def parametrized(way):
    net = way.build(lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(5, 5)), nn.Tanh(), nn.Linear(5, 5)))
    call = way(net)
    for k in range(12):
        if k == 4:
            parametrize.register_parametrization(net[2], "weight", Symmetric().to(way.device))
        if k == 8:
            parametrize.remove_parametrizations(net[2], "weight")
        if k == 10:
            net[0].parametrizations.weight.original0.data.mul_(2)
        y = call(way.randn(k, 3, 5))
        y.sum().backward()
        yield y.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad(set_to_none=True)


# --- fake quantisation: observers in buffers, straight-through by a custom Function ---------------------------------------
class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, qmax):
        ctx.qmax = qmax
        q = (x / scale).round()
        ctx.save_for_backward(q.abs() <= qmax)
        return q.clamp(-qmax, qmax) * scale

    @staticmethod
    def backward(ctx, g):
        (inside,) = ctx.saved_tensors
        return g * inside * (1.0 if ctx.qmax > 7 else 0.5), None, None


class QLinear(nn.Linear):
    def __init__(self, i, o, bits=8):
        super().__init__(i, o)
        self.bits = bits
        self.register_buffer("amax", torch.tensor(0.0))
        self.observe = True

    def forward(self, x):
        if self.observe:
            self.amax.copy_(torch.maximum(self.amax * 0.99, x.detach().abs().max()))
        qmax = 2 ** (self.bits - 1) - 1
        w = RoundSTE.apply(self.weight, self.weight.detach().abs().amax(1, keepdim=True) / qmax, qmax)
        return F.linear(RoundSTE.apply(x, self.amax / qmax, qmax), w, self.bias)


@program(changes_model=True)
def fake_quant(way):
    net = way.build(lambda: nn.Sequential(QLinear(6, 8), nn.ReLU(), QLinear(8, 3, bits=4)))
    call = way(net)
    for k in range(12):
        if k == 5:
            net[0].observe = False
        if k == 8:
            net[2].bits = 8
        y = call(way.randn(k, 4, 6))
        F.cross_entropy(y, way.ints(k, 3, 4)).backward()
        yield y.detach(), net[0].amax.clone(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


# --- contrastive: SimCLR with all pairs, CLIP with a learnt temperature, a queue (MoCo) ----------------------------------
@dataclass
class ClipOutput:
    loss: torch.Tensor
    logits: torch.Tensor
    scale: torch.Tensor


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(6, 4), nn.EmbeddingBag(11, 4)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image, text):
        a, b = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)
        s = self.logit_scale.exp().clamp(max=100)
        logits = s * a @ b.t()
        y = torch.arange(logits.size(0), device=logits.device)
        return ClipOutput((F.cross_entropy(logits, y) + F.cross_entropy(logits.t(), y)) / 2, logits, s)


@program()
def clip(way):
    net = way.build(CLIP)
    call = way(net)
    for k in range(10):
        out = call(way.randn(k, 4, 6), way.ints(k, 11, 4, 5))
        out.loss.backward()
        yield type(out).__name__, out.loss.detach(), out.logits.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        with torch.no_grad():
            net.logit_scale.clamp_(0, math.log(20))


@program()
def simclr(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)))

    def nt_xent(x1, x2, t=0.5):
        z = F.normalize(torch.cat([net(x1), net(x2)]), dim=1)
        sim = (z @ z.t()) / t
        n = x1.shape[0]
        sim.fill_diagonal_(-9e15)
        labels = torch.cat([torch.arange(n, 2 * n), torch.arange(0, n)]).to(z.device)
        return F.cross_entropy(sim, labels)

    call = way(nt_xent)
    for k in range(10):
        loss = call(way.randn(k, 4 + k % 2, 6), way.randn(k + 1, 4 + k % 2, 6))
        loss.backward()
        yield loss.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


class MoCo(nn.Module):
    def __init__(self, K=12, d=4, m=0.9):
        super().__init__()
        self.q, self.k = nn.Linear(6, d), nn.Linear(6, d)
        self.k.load_state_dict(self.q.state_dict())
        self.k.requires_grad_(False)
        self.m, self.K = m, K
        self.register_buffer("queue", F.normalize(torch.randn(d, K), dim=0))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    def forward(self, xq, xk):
        q = F.normalize(self.q(xq), dim=1)
        with torch.no_grad():
            for a, b in zip(self.q.parameters(), self.k.parameters()):
                b.data = b.data * self.m + a.data * (1 - self.m)
            k = F.normalize(self.k(xk), dim=1)
        pos, neg = (q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()
        with torch.no_grad():
            where = (self.ptr + torch.arange(k.size(0), device=k.device)) % self.K
            self.queue[:, where] = k.T
            self.ptr[0] = (self.ptr + k.size(0)) % self.K
        return torch.cat([pos, neg], 1) / 0.07


@program(changes_model=True)
def moco(way):
    net = way.build(MoCo)
    model = way(net)
    opt = torch.optim.SGD(net.q.parameters(), 0.1, momentum=0.9)

    def step(a, b):
        logits = model(a, b)
        loss = F.cross_entropy(logits, torch.zeros(a.size(0), dtype=torch.long, device=a.device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    step = way.step(step, net, opt)
    for k in range(10):
        yield step(way.randn(k, 3, 6), way.randn(k + 1, 3, 6)), net.queue.clone(), net.ptr.clone(), net.k.weight.clone()
