from __future__ import annotations

import copy
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

from tests.corpus.strangers.program import program


def mlp(i=4, h=8, o=2):
    return nn.Sequential(nn.Linear(i, h), nn.Tanh(), nn.Linear(h, o))


# --- DQN with a target network that is copied, and Huber loss ----------------------------------------------------------
@program()
def dqn(way):
    q, target = way.build(mlp), way.build(mlp)
    target.load_state_dict(q.state_dict())
    qf, tf = way(q), way(target)
    opt = torch.optim.RMSprop(q.parameters(), 1e-2, centered=True)

    def update(s, a, r, s2, done):
        with torch.no_grad():
            best = qf(s2).argmax(1, keepdim=True)
            y = r + 0.99 * (1 - done) * tf(s2).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(qf(s).gather(1, a[:, None]).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        for p in q.parameters():
            p.grad.data.clamp_(-1, 1)
        opt.step()
        return loss.detach()

    update = way.step(update, q, target, opt)
    for k in range(10):
        yield update(
            way.randn(k, 6, 4),
            way.ints(k, 2, 6),
            way.randn(k + 1, 6),
            way.randn(k + 2, 6, 4),
            way.ints(k + 3, 2, 6).float(),
        )
        if k % 4 == 3:
            target.load_state_dict(q.state_dict())
        yield target[0].weight.detach().clone()


# --- PPO: several epochs over minibatches of a permutation -------------------------------------------------------------
class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pi, self.v = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, s):
        h = torch.tanh(self.body(s))
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class Evaluated(ActorCritic):
    def forward(self, s, a):
        dist, v = super().forward(s)
        return dist.log_prob(a), dist.entropy(), v


@program()
def ppo(way):
    net = way.build(Evaluated)
    model = way(net)
    opt = torch.optim.Adam(net.parameters(), 3e-3, eps=1e-5, capturable=True)

    def update(s, a, adv, ret, old):
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        logp, ent, v = model(s, a)
        ratio = (logp - old).exp()
        pg = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        loss = pg + 0.5 * F.mse_loss(v, ret) - 0.01 * ent.mean()
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        return loss.detach(), norm, (old - logp).mean().detach()

    update = way.step(update, net, opt)
    s, adv, ret, old = way.randn(0, 12, 4), way.randn(1, 12), way.randn(2, 12), way.randn(3, 12) * 0.1 - 1
    a = way.ints(4, 3, 12)
    for epoch in range(4):
        for idx in torch.randperm(12, generator=torch.Generator().manual_seed(epoch)).to(way.device).split(4):
            yield update(s[idx], a[idx], adv[idx], ret[idx], old[idx])


# --- SAC: squashed Gaussian, two critics, Polyak averaging, an entropy temperature that is learnt ------------------------
@program()
def sac(way):
    actor, q1, q2 = (
        way.build(lambda: mlp(3, 8, 4)),
        way.build(lambda: mlp(5, 8, 1), 1),
        way.build(lambda: mlp(5, 8, 1), 2),
    )
    t1 = copy.deepcopy(q1).requires_grad_(False)
    log_alpha = torch.zeros(1, device=way.device, requires_grad=True)
    oa = torch.optim.Adam(actor.parameters(), 1e-3, capturable=True)
    oq = torch.optim.Adam([*q1.parameters(), *q2.parameters()], 1e-3, capturable=True)
    ol = torch.optim.Adam([log_alpha], 1e-3, capturable=True)

    def policy(s):
        mu, ls = actor(s).chunk(2, -1)
        ls = torch.clamp(ls, -5, 2)
        dist = torch.distributions.Normal(mu, ls.exp())
        u = dist.rsample()
        a = torch.tanh(u)
        logp = (dist.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)).sum(-1)
        return a, logp

    act, c1 = way(policy), way(q1)

    def update(s, a, r):
        with torch.no_grad():
            a2, lp2 = act(s)
            y = r + 0.9 * (t1(torch.cat([s, a2], -1)).squeeze(-1) - log_alpha.exp() * lp2)
        sa = torch.cat([s, a], -1)
        lq = F.mse_loss(c1(sa).squeeze(-1), y) + F.mse_loss(q2(sa).squeeze(-1), y)
        oq.zero_grad()
        lq.backward()
        oq.step()
        for p in q1.parameters():
            p.requires_grad = False
        pa, lp = act(s)
        la = (log_alpha.exp().detach() * lp - c1(torch.cat([s, pa], -1)).squeeze(-1)).mean()
        oa.zero_grad()
        la.backward()
        oa.step()
        for p in q1.parameters():
            p.requires_grad = True
        ll = -(log_alpha * (lp + 2).detach()).mean()
        ol.zero_grad()
        ll.backward()
        ol.step()
        with torch.no_grad():
            for p, t in zip(q1.parameters(), t1.parameters()):
                t.mul_(0.99).add_(0.01 * p)
        return lq.detach(), la.detach(), ll.detach()

    update = way.step(update, actor, q1, q2, t1, log_alpha, oa, oq, ol)
    for k in range(10):
        torch.manual_seed(k)
        yield (
            update(way.randn(k, 5, 3), way.randn(k + 1, 5, 2), way.randn(k + 2, 5)),
            log_alpha.detach().clone(),
            t1[0].weight.clone(),
        )


# --- a world model: GRU cell dynamics that are dreamt forward, a symlog head, discrete latents by straight-through --------
class RSSM(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.prior, self.post, self.dec = (
            nn.GRUCell(8, 6),
            nn.Linear(6, 6),
            nn.Linear(6 + 4, 6),
            nn.Linear(12, 4),
        )

    def latent(self, logits):
        p = logits.view(-1, 2, 3).softmax(-1) * 0.99 + 0.01 / 3
        hot = F.one_hot(torch.multinomial(p.flatten(0, 1), 1).view(-1, 2), 3).to(p)
        return (hot + p - p.detach()).flatten(1)

    def forward(self, obs, act):
        h, z = obs.new_zeros(obs.size(1), 6), obs.new_zeros(obs.size(1), 6)
        kl = rec = 0
        for o, a in zip(obs, act):
            h = self.cell(torch.cat([z, a], -1), h)
            prior, post = self.prior(h), self.post(torch.cat([h, o], -1))
            z = self.latent(post)
            kl = kl + F.kl_div(prior.log_softmax(-1), post.log_softmax(-1), log_target=True, reduction="batchmean")
            target = torch.sign(o) * torch.log1p(o.abs())
            rec = rec + F.mse_loss(self.dec(torch.cat([h, z], -1)), target)
        return rec, kl, h


@program()
def world_model(way):
    net = way.build(RSSM)
    call = way(net)
    for k in range(10):
        torch.manual_seed(k)
        rec, kl, h = call(way.randn(k, 3, 2, 4), way.randn(k + 1, 3, 2, 2))
        (rec + 0.1 * kl).backward()
        yield rec.detach(), kl.detach(), h.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


# --- meta-learning: MAML by functional_call and grad ------------------------------------------------------------------------
@program()
def maml(way):
    net = way.build(lambda: mlp(2, 6, 1))

    def inner(params, x, y):
        return F.mse_loss(functional_call(net, params, (x,)), y)

    def task_loss(params, xs, ys, xq, yq):
        g = grad(inner)(params, xs, ys)
        fast = {k: p - 0.1 * g[k] for k, p in params.items()}
        return inner(fast, xq, yq)

    def meta(params, batch):
        return grad(lambda p: vmap(task_loss, in_dims=(None, 0, 0, 0, 0))(p, *batch).mean())(params)

    call = way(meta)
    params = {k: p.detach().clone() for k, p in net.named_parameters()}
    for k in range(10):
        batch = [way.randn(k + n, 3, 5, 2 if n % 2 == 0 else 1) for n in range(4)]
        g = call(params, batch)
        params = {n: p - 0.05 * g[n] for n, p in params.items()}
        yield params
