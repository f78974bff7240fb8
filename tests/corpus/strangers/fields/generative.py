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


# --- VAE with reparameterisation and a KL weight that warms up as a Python number ----------------------------------
class VAE(nn.Module):
    def __init__(self, d=12, z=3):
        super().__init__()
        self.enc, self.mu, self.lv, self.dec = (
            nn.Linear(d, 8),
            nn.Linear(8, z),
            nn.Linear(8, z),
            nn.Sequential(nn.Linear(z, 8), nn.ReLU(), nn.Linear(8, d)),
        )

    def reparameterize(self, mu, logvar):
        if self.training:
            std = torch.exp(0.5 * logvar)
            eps = torch.randn_like(std)
            return mu + eps * std
        return mu

    def forward(self, x):
        h = F.elu(self.enc(x))
        mu, lv = self.mu(h), self.lv(h).clamp(-4, 4)
        return self.dec(self.reparameterize(mu, lv)), mu, lv


@program(changes_model=True)
def vae(way):
    net = way.build(VAE)
    model = way(net)
    opt = torch.optim.Adam(net.parameters(), 1e-3, capturable=True)
    beta = torch.zeros((), device=way.device)

    def step(x):
        rec, mu, lv = model(x)
        kl = -0.5 * torch.mean(1 + lv - mu**2 - lv.exp())
        loss = F.mse_loss(rec, x) + beta * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        return {"loss": loss.detach(), "kl": kl.detach()}

    step = way.step(step, net, opt, beta)
    for k in range(10):
        torch.manual_seed(k)
        beta.fill_(min(1.0, k / 5))
        yield step(way.randn(k, 4, 12)), net.mu.weight.detach().clone()
        if k == 5:
            net.eval()
            with torch.no_grad():
                yield model(way.randn(77, 4, 12))
            net.train()


# --- GAN alternation, two optimizers, WGAN-GP's gradient penalty (double backward) -----------------------------------
@program(skip={"parameterized": "a second derivative"})
def wgan_gp(way):
    gen = way.build(lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6)))
    critic = way.build(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), 1)
    og = torch.optim.Adam(gen.parameters(), 1e-3, betas=(0.0, 0.9), capturable=True)
    oc = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.0, 0.9), capturable=True)
    make = way(gen)  # compiled: the critic needs a double backward, which compiled code has not

    def train_critic(real, z, eps):
        fake = make(z).detach()
        mix = (eps * real + (1 - eps) * fake).requires_grad_()
        (g,) = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)
        penalty = ((g.norm(2, dim=1) - 1) ** 2).mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        oc.zero_grad()
        loss.backward()
        oc.step()
        return loss.detach(), penalty.detach()

    def train_gen(z):
        loss = -critic(make(z)).mean()
        og.zero_grad()
        loss.backward()
        og.step()
        return loss.detach()

    train_critic, train_gen = way.step(train_critic, gen, critic, oc), way.step(train_gen, gen, critic, og)
    for k in range(10):
        yield train_critic(way.randn(k, 4, 6), way.randn(k + 1, 4, 3), torch.rand(4, 1).to(way.device) * 0 + 0.3)
        if k % 2:
            yield train_gen(way.randn(k + 2, 4, 3)), gen[0].weight.detach().clone()


@program()
def gan_alternation(way):
    class D(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = parametrizations.spectral_norm(nn.Linear(6, 8))
            self.o = nn.Linear(8, 1)

        def forward(self, x):
            return self.o(F.leaky_relu(self.f(x), 0.2))

    G, Dn = (
        way.build(lambda: nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))),
        way.build(D),
    )
    g, d = way(G), way(Dn)
    og, od = torch.optim.RMSprop(G.parameters(), 5e-4), torch.optim.RMSprop(Dn.parameters(), 5e-4)
    for k in range(10):
        z, real = way.randn(k, 5, 3), way.randn(k + 1, 5, 6)
        od.zero_grad(set_to_none=True)
        fake = g(z)
        ld = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        ld.backward()
        od.step()
        og.zero_grad(set_to_none=True)
        lg = F.softplus(-d(fake)).mean()
        lg.backward()
        og.step()
        yield (
            ld.detach(),
            lg.detach(),
            fake.detach(),
            [b.clone() for b in G.buffers()],
            [b.clone() for b in Dn.buffers()],
        )


# --- VQ-VAE: nearest code, straight through, codebook by moving averages in buffers -----------------------------------
class VQ(nn.Module):
    def __init__(self, k=6, d=4):
        super().__init__()
        embed = torch.randn(k, d)
        self.register_buffer("embed", embed)
        self.register_buffer("size", torch.zeros(k))
        self.register_buffer("avg", embed.clone())

    def forward(self, x):
        dist = x.pow(2).sum(1, keepdim=True) - 2 * x @ self.embed.t() + self.embed.pow(2).sum(1)
        ind = dist.argmin(1)
        hot = F.one_hot(ind, self.embed.size(0)).to(x.dtype)
        q = F.embedding(ind, self.embed)
        if self.training:
            self.size.data.mul_(0.9).add_(hot.detach().sum(0), alpha=0.1)
            self.avg.data.mul_(0.9).add_(hot.detach().t() @ x.detach(), alpha=0.1)
            n = self.size.sum()
            self.embed.data.copy_(self.avg / ((self.size + 1e-5) / (n + 6e-5) * n).unsqueeze(1))
        return x + (q - x).detach(), (q.detach() - x).pow(2).mean(), ind


@program(changes_model=True)
def vqvae(way):
    net = way.build(lambda: VQ())
    call = way(net)
    for k in range(10):
        x = way.randn(k, 8, 4).requires_grad_()
        q, commit, ind = call(x)
        (q.sum() + commit).backward()
        yield q.detach(), commit.detach(), ind, x.grad, net.embed.clone(), net.size.clone()
        if k == 6:
            net.eval()


# --- normalizing flow: coupling layers, log-determinants, inverse with reversed() -------------------------------------
class Coupling(nn.Module):
    def __init__(self, d, flip):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d // 2, 8), nn.Tanh(), nn.Linear(8, d))
        self.flip = flip

    def forward(self, x, reverse=False):
        a, b = x.chunk(2, -1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, -1)
        s = torch.tanh(s)
        b = (b - t) * torch.exp(-s) if reverse else b * torch.exp(s) + t
        out = torch.cat((b, a) if self.flip else (a, b), -1)
        return out, (-s if reverse else s).sum(-1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(6, bool(n % 2)) for n in range(3))
        self.W = nn.Parameter(torch.linalg.qr(torch.randn(6, 6))[0])

    def log_prob(self, x):
        ld = torch.linalg.slogdet(self.W)[1].expand(x.size(0))
        x = x @ self.W
        for layer in self.layers:
            x, d = layer(x)
            ld = ld + d
        return torch.distributions.Normal(0.0, 1.0).log_prob(x).sum(-1) + ld

    def sample(self, z):
        for layer in reversed(self.layers):
            z, _ = layer(z, reverse=True)
        return torch.linalg.solve(self.W.t(), z.t()).t()


@program()
def normalizing_flow(way):
    net = way.build(Flow)
    density = way(net.log_prob)  # bound methods
    sampler = way(net.sample)
    opt = torch.optim.SGD(net.parameters(), 1e-2)
    for k in range(10):
        loss = -density(way.randn(k, 5, 6)).mean()
        loss.backward()
        yield loss.detach(), [p.grad.clone() for p in net.parameters()]
        opt.step()
        opt.zero_grad()
        with torch.no_grad():
            yield sampler(way.randn(k + 3, 2, 6))


# --- NeRF: positional encoding, stratified samples, alpha compositing ---------------------------------------------------
class NeRF(nn.Module):
    def __init__(self, L=4):
        super().__init__()
        self.freqs = [2.0**n * math.pi for n in range(L)]
        self.mlp = nn.Sequential(nn.Linear(3 + 6 * L, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def encode(self, x):
        return torch.cat([x] + [fn(x * f) for f in self.freqs for fn in (torch.sin, torch.cos)], -1)

    def forward(self, o, d, near=2.0, far=6.0, n=8, perturb=True):
        t = torch.linspace(0.0, 1.0, n, device=o.device)
        z = (near * (1 - t) + far * t).expand(o.size(0), n)
        if perturb:
            mids = 0.5 * (z[..., 1:] + z[..., :-1])
            upper, lower = torch.cat([mids, z[..., -1:]], -1), torch.cat([z[..., :1], mids], -1)
            z = lower + (upper - lower) * torch.rand(z.shape, device=z.device)
        pts = o[..., None, :] + d[..., None, :] * z[..., :, None]
        raw = self.mlp(self.encode(pts))
        rgb, sigma = torch.sigmoid(raw[..., :3]), F.relu(raw[..., 3])
        delta = torch.cat([z[..., 1:] - z[..., :-1], torch.full_like(z[..., :1], 1e10)], -1)
        alpha = 1 - torch.exp(-sigma * delta)
        T = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        w = alpha * T
        Out = namedtuple("Out", "rgb depth acc")
        return Out((w[..., None] * rgb).sum(1), (w * z).sum(-1), w.sum(-1))._asdict()


@program()
def nerf(way):
    net = way.build(NeRF)
    call = way(net)
    for k in range(10):
        torch.manual_seed(k)
        out = call(way.randn(k, 5, 3), F.normalize(way.randn(k + 1, 5, 3), dim=-1), perturb=k % 3 != 2)
        F.mse_loss(out["rgb"], torch.full_like(out["rgb"], 0.5)).backward()
        yield dict(out), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


# --- SIREN with the gradient of its output inside of the loss, under the whole step -----------------------------------
class Sine(nn.Module):
    def __init__(self, i, o, w0=30.0, first=False):
        super().__init__()
        self.lin, self.w0 = nn.Linear(i, o), w0
        b = 1 / i if first else math.sqrt(6 / i) / w0
        nn.init.uniform_(self.lin.weight, -b, b)

    def forward(self, x):
        return torch.sin(self.w0 * self.lin(x))


@program(skip={"parameterized": "a second derivative"})
def siren_eikonal(way):
    net = way.build(lambda: nn.Sequential(Sine(2, 16, first=True), Sine(16, 16), nn.Linear(16, 1)))
    opt = torch.optim.Adam(net.parameters(), 1e-4, capturable=True)

    def step(xy):
        xy = xy.clone().requires_grad_(True)
        sdf = net(xy)
        g = torch.autograd.grad(sdf, xy, torch.ones_like(sdf), create_graph=True)[0]
        loss = (g.norm(dim=-1) - 1).abs().mean() + sdf.abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    step = way.step(step, net, opt)
    for k in range(10):
        yield step(way.randn(k, 6, 2)), net[2].weight.detach().clone()


# --- energy-based model: Langevin sampling inside of the forward -------------------------------------------------------
@program()
def langevin(way):
    energy = way.build(lambda: nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1)))

    def sample(x, steps=3):
        for _ in range(steps):
            g = torch.func.grad(lambda z: energy(z).sum())(x)
            x = x - 0.1 * g + 0.02 * torch.randn_like(x)
        return x

    call = way(sample)
    for k in range(10):
        torch.manual_seed(k)
        with torch.no_grad():
            yield call(way.randn(k, 3, 4))
        with torch.no_grad():
            energy[0].weight.mul_(1.01)
