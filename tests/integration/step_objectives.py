"""Steps for ``test_step_sim_forums``: objectives of papers, with what they carry from step to step."""

# People write steps without types.
# mypy: ignore-errors
from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.integration.step_parts import Data, Program, batch, device, mlp
from tests.integration.step_recipes import adamw


def sgd(parameters: Any, **how: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.05, **how)


def gradient_penalty() -> Program:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).to(device())
    maker = nn.Linear(8, 4).to(device())
    c_opt, m_opt = adamw(critic.parameters()), adamw(maker.parameters())

    def step(x, y):
        fake = maker(x).detach()
        mix = torch.rand(y.shape[0], 1, device=y.device)
        between = (mix * y + (1 - mix) * fake).requires_grad_(True)
        score = critic(between)
        (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True, retain_graph=True)
        penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
        c_loss = critic(fake).mean() - critic(y).mean() + 10 * penalty
        c_opt.zero_grad()
        c_loss.backward()
        c_opt.step()
        m_opt.zero_grad()
        m_loss = -critic(maker(x)).mean()
        m_loss.backward()
        m_opt.step()
        return c_loss.detach(), m_loss.detach()

    return Program(step, (critic, maker, c_opt, m_opt), nn.ModuleList([critic, maker]), batch)


def gan_with_labels() -> Program:
    torch.manual_seed(0)
    maker, critic = nn.Linear(8, 4).to(device()), nn.Linear(4, 1).to(device())
    m_opt, c_opt = adamw(maker.parameters()), adamw(critic.parameters())
    loss_of = nn.BCEWithLogitsLoss()

    def step(x, y):
        real = torch.full((y.shape[0],), 0.9, device=y.device)
        fake = torch.zeros(y.shape[0], device=y.device)
        critic.zero_grad()
        e_real = loss_of(critic(y).view(-1), real)
        e_real.backward()
        made = maker(x)
        e_fake = loss_of(critic(made.detach()).view(-1), fake)
        e_fake.backward()
        c_opt.step()
        maker.zero_grad()
        e = loss_of(critic(made).view(-1), real)
        e.backward()
        m_opt.step()
        return (e_real + e_fake).detach(), e.detach()

    return Program(step, (maker, critic, m_opt, c_opt), nn.ModuleList([maker, critic]), batch)


def ppo() -> Program:
    torch.manual_seed(0)
    body, actor, critic = nn.Linear(8, 16).to(device()), nn.Linear(16, 4).to(device()), nn.Linear(16, 1).to(device())
    model = nn.ModuleList([body, actor, critic])
    optimizer = adamw(model.parameters(), eps=1e-5)

    def step(x, actions, old, advantages, returns):
        hidden = torch.tanh(body(x))
        dist = torch.distributions.Categorical(logits=actor(hidden), validate_args=False)
        ratio = (dist.log_prob(actions) - old).exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.2)).mean()
        value = 0.5 * (critic(hidden).view(-1) - returns).pow(2).mean()
        loss = policy - 0.01 * dist.entropy().mean() + 0.5 * value
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return {"policy": policy.detach(), "value": value.detach()}

    def batches(number: int) -> Data:
        x, y = batch(number, 5)
        return x, y.argmax(-1), -y[:, 0].abs(), y[:, 1], y[:, 2]

    return Program(step, (model, optimizer), model, batches)


def dqn() -> Program:
    model = mlp()
    target = copy.deepcopy(model)
    optimizer = adamw(model.parameters())

    def step(x, y):
        with torch.no_grad():
            wanted = y[:, 0] + 0.99 * target(x).max(1).values * (y[:, 1] > 0)
        q = model(x).gather(1, y.argmax(1, keepdim=True)).squeeze(1)
        loss = F.smooth_l1_loss(q, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 100)
        optimizer.step()
        with torch.no_grad():
            for t, p in zip(target.parameters(), model.parameters(), strict=True):
                t.copy_(0.005 * p + (1 - 0.005) * t)
        return loss.detach()

    return Program(step, (model, target, optimizer), model, batch, extra=[target])


def dqn_state_dicts() -> Program:
    model = mlp()
    target = copy.deepcopy(model)
    optimizer = adamw(model.parameters())

    def step(x, y):
        with torch.no_grad():
            wanted = y[:, 0] + 0.99 * target(x).max(1).values
        loss = F.smooth_l1_loss(model(x).gather(1, y.argmax(1, keepdim=True)).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        theirs, mine = target.state_dict(), model.state_dict()
        for key in mine:
            theirs[key] = mine[key] * 0.005 + theirs[key] * (1 - 0.005)
        target.load_state_dict(theirs)
        return loss.detach()

    return Program(step, (model, target, optimizer), model, batch, extra=[target])


def moco() -> Program:
    torch.manual_seed(0)

    class MoCo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = nn.Linear(8, 4), nn.Linear(8, 4)
            self.k.load_state_dict(self.q.state_dict())
            self.k.requires_grad_(False)
            self.register_buffer("queue", F.normalize(torch.randn(4, 20), dim=0))
            self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

        def forward(self, x):
            q = F.normalize(self.q(x), dim=1)
            with torch.no_grad():
                for a, b in zip(self.q.parameters(), self.k.parameters(), strict=True):
                    b.data = b.data * 0.99 + a.data * 0.01
                k = F.normalize(self.k(x + 0.1), dim=1)
            positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
            logits = torch.cat([positive, q @ self.queue.clone().detach()], 1) / 0.07
            with torch.no_grad():
                place = (self.ptr + torch.arange(x.shape[0], device=x.device)) % 20
                self.queue.index_copy_(1, place, k.T)
                self.ptr.add_(x.shape[0]).remainder_(20)
            return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=x.device))

    model = MoCo().to(device())
    optimizer = sgd([p for p in model.parameters() if p.requires_grad], momentum=0.9)

    def step(x, y):
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer), model, batch)


def diffusion() -> Program:
    model = mlp()
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = adamw(model.parameters())
    alphas = torch.linspace(1, 0.1, 50, device=device()).cumprod(0)

    def step(x, y):
        t = torch.randint(0, 50, (y.shape[0],), device=y.device)
        noise = torch.randn_like(y)
        noisy = alphas[t].sqrt()[:, None] * y + (1 - alphas[t]).sqrt()[:, None] * noise
        angle = t[:, None] * torch.exp(-math.log(1e4) * torch.arange(2, device=y.device) / 2)
        loss = F.mse_loss(model(torch.cat([noisy, angle.sin(), angle.cos()], 1)), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters(), strict=True):
                e.mul_(0.999).add_(p.data, alpha=0.001)
            for e, b in zip(ema.buffers(), model.buffers(), strict=True):
                e.copy_(b)
        return loss.detach()

    return Program(step, (model, ema, optimizer), model, batch, extra=[ema])


def vae() -> Program:
    torch.manual_seed(0)

    class VAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enc, self.dec = nn.Linear(8, 6), nn.Linear(3, 8)

        def forward(self, x):
            mu, logvar = self.enc(x).chunk(2, 1)
            return self.dec(mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)), mu, logvar

    model = VAE().to(device())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)

    def step(x, y):
        optimizer.zero_grad()
        back, mu, logvar = model(x)
        bce = F.binary_cross_entropy_with_logits(back, x.sigmoid(), reduction="sum")
        loss = bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer), model, batch)


def vae_distributions() -> Program:
    torch.manual_seed(0)
    enc, dec = nn.Linear(8, 6).to(device()), nn.Linear(3, 8).to(device())
    model = nn.ModuleList([enc, dec])
    optimizer = adamw(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        mu, logvar = enc(x).chunk(2, 1)
        q = torch.distributions.Normal(mu, (0.5 * logvar).exp(), validate_args=False)
        prior = torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(mu), validate_args=False)
        loss = F.mse_loss(dec(q.rsample()), x) + torch.distributions.kl_divergence(q, prior).sum(1).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer), model, batch)


def smoothed_and_mixed() -> Program:
    model = mlp(0.1)
    optimizer = adamw(model.parameters(), fused=True)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)

    def step(x, y):
        labels = y.argmax(1)
        lam = torch.distributions.Beta(torch.tensor(0.4, device=x.device), torch.tensor(0.4, device=x.device)).sample()
        order = torch.randperm(x.size(0), device=x.device)
        out = model(lam * x + (1 - lam) * x[order])
        loss = lam * loss_of(out, labels) + (1 - lam) * loss_of(out, labels[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer), model, batch)


def mixed_uniform() -> Program:
    model = mlp(0.1)
    optimizer = adamw(model.parameters(), fused=True)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)

    def step(x, y):
        labels = y.argmax(1)
        lam = torch.rand((), device=x.device)
        order = torch.rand(x.size(0), device=x.device).argsort()
        out = model(torch.lerp(x[order], x, lam))
        loss = lam * loss_of(out, labels) + (1 - lam) * loss_of(out, labels[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer), model, batch)


def mixup_of_numpy() -> Program:
    import numpy as np

    model = mlp()
    optimizer = sgd(model.parameters())

    def step(x, y):
        lam = np.random.beta(0.2, 0.2)
        loss = F.mse_loss(model(lam * x + (1 - lam) * x.flip(0)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer), model, batch)


def distilled() -> Program:
    model, teacher = mlp(), mlp(norm=True).eval()
    optimizer = adamw(model.parameters())

    def step(x, y):
        with torch.inference_mode():
            wanted = teacher(x)
        out = model(x)
        soft = F.kl_div(F.log_softmax(out / 2, 1), F.softmax(wanted / 2, 1), reduction="batchmean") * 4
        loss = 0.5 * soft + 0.5 * F.cross_entropy(out, y.argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer), model, batch, extra=[teacher])


def uncertain() -> Program:
    model = mlp()
    weights = nn.Parameter(torch.zeros(2, device=device()))
    optimizer = adamw([{"params": model.parameters()}, {"params": [weights], "weight_decay": 0.0}])

    def step(x, y):
        out = model(x)
        losses = torch.stack([F.mse_loss(out, y), F.l1_loss(out, y)])
        loss = (torch.exp(-weights) * losses + weights).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), losses.detach()

    return Program(step, (model, optimizer), model, batch, extra=[weights])


def functional_gradients() -> Program:
    model = mlp()
    parameters = {k: v.detach().clone() for k, v in model.named_parameters()}
    moments = {k: torch.zeros_like(v) for k, v in parameters.items()}

    def loss_of(parameters, x, y):
        return F.mse_loss(torch.func.functional_call(model, parameters, (x,)), y)

    def step(x, y):
        gradients = torch.func.grad(loss_of)(parameters, x, y)
        for k, g in gradients.items():
            moments[k].mul_(0.9).add_(g)
            parameters[k] -= 0.01 * moments[k]
        return loss_of(parameters, x, y)

    return Program(step, (parameters, moments, model), model, batch, extra=[parameters, moments])


def per_sample() -> Program:
    """Differentially private: gradients of each sample, clipped, with noise."""
    model = mlp()

    def step(x, y):
        held = {k: v.detach() for k, v in model.named_parameters()}

        def one(p, a, b):
            return F.mse_loss(torch.func.functional_call(model, p, (a[None],)), b[None])

        rows = torch.func.vmap(torch.func.grad(one), (None, 0, 0))(held, x, y)
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in rows.values()]).norm(dim=0)
        factor = (1 / (norm + 1e-6)).clamp(max=1)
        with torch.no_grad():
            for k, p in model.named_parameters():
                g = torch.einsum("n,n...->...", factor, rows[k]) + 0.1 * torch.randn_like(p)
                p -= 0.05 * g / x.shape[0]
        return norm.mean()

    return Program(step, (model,), model, batch)


def meta() -> Program:
    model = mlp()
    optimizer = adamw(model.parameters())

    def step(x, y):
        fast = dict(model.named_parameters())
        for _ in range(2):
            inner = F.mse_loss(torch.func.functional_call(model, fast, (x[:3],)), y[:3])
            gradients = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {k: v - 0.1 * g for (k, v), g in zip(fast.items(), gradients, strict=True)}
        loss = F.mse_loss(torch.func.functional_call(model, fast, (x[3:],)), y[3:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer), model, batch)


def byol(differentiable: bool = False) -> Program:
    online = mlp(norm=True)
    predictor = nn.Linear(4, 4).to(device())
    target = copy.deepcopy(online)
    for p in target.parameters():
        p.requires_grad = False
    optimizer = adamw([*online.parameters(), *predictor.parameters()])

    def step(x, y):
        a, b = x + 0.1 * torch.randn_like(x), x.roll(1, 1)
        with torch.no_grad():
            z1, z2 = target(a), target(b)
        loss = (
            4
            - F.cosine_similarity(predictor(online(a)), z2).mean()
            - F.cosine_similarity(predictor(online(b)), z1).mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.set_grad_enabled(differentiable):  # forgotten, the target's weights keep a graph that grows
            torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 0.01)
        return loss.detach()

    return Program(step, (online, predictor, target, optimizer), online, batch, extra=[target, predictor])
