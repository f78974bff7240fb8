from __future__ import annotations

import collections
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.corpus.strangers.program import program


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lo):
        ctx.lo = lo; ctx.save_for_backward(x)
        m = x > lo
        ctx.mark_non_differentiable(m)
        return x.clamp(min=lo), m
    @staticmethod
    def backward(ctx, g, _):
        x, = ctx.saved_tensors
        return g * (x > ctx.lo) * 2, None

class Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.set_materialize_grads(False)
        return b * 2, a * 3
    @staticmethod
    def backward(ctx, ga, gb):
        return (None if gb is None else gb * 3), (None if ga is None else ga * 2)

class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x); x.mul_(2); return x
    @staticmethod
    def backward(ctx, g): return g * 2

@program()
def custom_functions_more(way):
    def f(x, y, lo):
        a, m = Clamp.apply(x, lo)
        b, c = Swap.apply(a, y)
        d = InPlace.apply(c.clone())
        return (b * m).sum() + d.sum()
    g = way(f)
    for k in range(10):
        x, y = way.randn(k, 5).requires_grad_(), way.randn(k + 1, 5).requires_grad_()
        out = g(x, y, 0.1 * (k // 4))
        out.backward()
        yield out.detach(), x.grad, y.grad

class Eps(nn.Module):
    def __init__(s):
        super().__init__(); s.t = nn.Embedding(20, 8); s.a = nn.Linear(4 + 8, 16); s.b = nn.Linear(16, 4)
    def forward(s, x, t): return s.b(F.silu(s.a(torch.cat([x, s.t(t)], -1))))

@program()
def ddpm_sampler(way):
    net = way.build(Eps); call = way(net)
    betas = torch.linspace(1e-3, 0.2, 20).to(way.device); al = (1 - betas).cumprod(0)
    with torch.no_grad():
        x = way.randn(0, 6, 4)
        for t in reversed(range(10)):
            e = call(x, torch.full((6,), t, device=way.device, dtype=torch.long))
            x = (x - betas[t] / (1 - al[t]).sqrt() * e) / (1 - betas[t]).sqrt()
            yield x

@program()
def ddpm_train_step(way):
    net = way.build(Eps); ema = way.build(Eps)
    ema.load_state_dict(net.state_dict())
    opt = torch.optim.AdamW(net.parameters(), 1e-2, capturable=True)
    betas = torch.linspace(1e-3, 0.2, 20).to(way.device); al = (1 - betas).cumprod(0)
    def step(x, t, n):
        a = al[t][:, None]
        loss = F.mse_loss(net(a.sqrt() * x + (1 - a).sqrt() * n, t), n)
        opt.zero_grad(); loss.backward(); opt.step()
        with torch.no_grad():
            for p, q in zip(ema.parameters(), net.parameters()): p.lerp_(q, 0.1)
        return loss.detach()
    s = way.step(step, net, opt, ema)
    for k in range(10):
        yield s(way.randn(k, 6, 4), way.ints(k, 20, 6), way.randn(k + 50, 6, 4)), [p.detach().clone() for p in ema.parameters()]

@program()
def lion_by_hand(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))
    state = {p: torch.zeros_like(p) for p in net.parameters()}
    cfg = {"lr": 0.01}
    def step(x, y):
        loss = F.mse_loss(net(x), y)
        grads = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, g in zip(net.parameters(), grads):
                m = state[p]
                p.add_((0.9 * m + 0.1 * g).sign(), alpha=-cfg["lr"])
                m.mul_(0.99).add_(g, alpha=0.01)
        return loss.detach()
    s = way.step(step, net, state)
    for k in range(12):
        if k == 6: cfg["lr"] = 0.1
        yield s(way.randn(k, 3, 4), way.randn(k + 9, 3, 2)), [p.detach().clone() for p in net.parameters()]

class Muon(torch.optim.Optimizer):
    def __init__(s, ps, lr=0.02, mu=0.9): super().__init__(ps, dict(lr=lr, mu=mu))
    @torch.no_grad()
    def step(s):
        for g in s.param_groups:
            for p in g["params"]:
                if p.grad is None: continue
                st = s.state[p]
                if "b" not in st: st["b"] = torch.zeros_like(p)
                st["b"].mul_(g["mu"]).add_(p.grad)
                u = st["b"]
                if u.ndim == 2:
                    u = u / (u.norm() + 1e-7)
                    for _ in range(3):
                        a = u @ u.T
                        u = 3.4445 * u + (-4.775 * a + 2.0315 * a @ a) @ u
                p.add_(u, alpha=-g["lr"])

@program()
def muon_optimizer(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    opt = Muon(net.parameters())
    sched = torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)
    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y); loss.backward(); opt.step()
        return loss.detach()
    s = way.step(step, net, opt)
    for k in range(12):
        yield s(way.randn(k, 5, 4), way.ints(k, 3, 5)), net[0].weight.detach().clone()
        sched.step()

@program()
def accumulation_counter(way):
    net = way.build(lambda: nn.Linear(4, 2)); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    counter = {"n": 0}
    def step(x):
        loss = net(x).pow(2).mean() / 2
        loss.backward()
        counter["n"] += 1
        if counter["n"] % 2 == 0:
            opt.step(); opt.zero_grad()
        return loss.detach()
    s = way.step(step, net, opt)
    for k in range(12):
        yield s(way.randn(k, 3, 4)), net.weight.detach().clone(), counter["n"]

@program()
def accumulation_outside(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)))
    opt = torch.optim.Adam(net.parameters(), 0.05)
    def step(x, y):
        loss = F.cross_entropy(net(x), y); loss.backward(); return loss.detach()
    s = way.step(step, net)
    for k in range(12):
        l = s(way.randn(k, 6, 4), way.ints(k, 2, 6))
        if k % 2: opt.step(); opt.zero_grad(set_to_none=k % 4 == 3)
        yield l, net[0].weight.detach().clone(), net[1].running_var.clone(), net[1].num_batches_tracked.clone()

class Stateful(nn.Module):
    def __init__(s):
        super().__init__(); s.e = nn.Embedding(9, 5); s.c = nn.GRUCell(5, 5); s.o = nn.Linear(5, 9); s.h = None
    def forward(s, i):
        h = s.h if s.h is not None else torch.zeros(i.size(0), 5, device=i.device)
        outs = []
        for t in range(i.size(1)):
            h = s.c(s.e(i[:, t]), h); outs.append(s.o(h))
        s.h = h.detach()
        return torch.stack(outs, 1)

@program(changes_model=True)
def stateful_rnn(way):
    net = way.build(Stateful); call = way(net)
    for k in range(12):
        i = way.ints(k, 9, 2, 4)
        if k == 6: net.h = None
        y = call(i); loss = F.cross_entropy(y.flatten(0, 1), i.flatten()); loss.backward()
        yield loss.detach(), net.h.clone(), net.o.weight.grad.clone()
        net.zero_grad()

@program()
def stateful_rnn_step(way):
    net = way.build(Stateful); opt = torch.optim.SGD(net.parameters(), 0.1)
    def step(i):
        y = net(i); loss = F.cross_entropy(y.flatten(0, 1), i.flatten())
        opt.zero_grad(); loss.backward(); opt.step(); return loss.detach()
    s = way.step(step, net, opt)
    for k in range(12):
        if k == 7: net.h = None
        yield s(way.ints(k, 9, 2, 4)), net.h.clone()

class Cached(nn.Module):
    def __init__(s, d=8, n=16):
        super().__init__(); s.q = nn.Linear(d, 3 * d); s.o = nn.Linear(d, d)
        s.register_buffer("k", torch.zeros(2, n, d)); s.register_buffer("v", torch.zeros(2, n, d))
    def forward(s, x, pos):
        q, k, v = s.q(x).chunk(3, -1)
        s.k.index_copy_(1, pos, k); s.v.index_copy_(1, pos, v)
        mask = torch.arange(s.k.size(1), device=x.device)[None, :] <= pos[:, None]
        return s.o(F.scaled_dot_product_attention(q, s.k, s.v, attn_mask=mask))

@program()
def static_cache_decoder(way):
    net = way.build(Cached); call = way(net)
    with torch.inference_mode():
        net.k.zero_(); 
        x = way.randn(0, 2, 4, 8)
        pos = torch.arange(4, device=way.device)
        y = call(x, pos)
        yield y.clone()
        for k in range(4, 14):
            y = call(y[:, -1:], torch.tensor([k], device=way.device))
            yield y.clone(), net.k.clone()

@program()
def server_with_buckets(way):
    net = way.build(lambda: nn.Sequential(nn.Embedding(50, 8), nn.Flatten(1), nn.Linear(32, 4)))
    call = way(net)
    queue = collections.deque()
    done = {}
    with torch.inference_mode():
        for k in range(14):
            for r in range(k % 4 + 1): queue.append((len(done) + len(queue), way.ints(k * 7 + r, 50, 4)))
            batch = [queue.popleft() for _ in range(min(len(queue), 4))]
            size = 1 << (len(batch) - 1).bit_length()
            x = torch.stack([b for _, b in batch] + [torch.zeros(4, dtype=torch.long, device=way.device)] * (size - len(batch)))
            y = call(x)
            for (i, _), row in zip(batch, y): done[i] = row
            yield [done[i] for i in sorted(done)]

@program()
def top_p_sampling(way):
    def sample(logits, temperature, p):
        probs = (logits / temperature).softmax(-1)
        s, i = probs.sort(-1, descending=True)
        c = s.cumsum(-1) - s
        s = s.masked_fill(c > p, 0.0); s = s / s.sum(-1, keepdim=True)
        j = torch.multinomial(s, 1)
        return i.gather(-1, j), s
    f = way(sample)
    torch.manual_seed(3)
    for k in range(10):
        yield f(way.randn(k, 3, 12), 0.7 + 0.1 * (k // 5), 0.9)[1]

@program()
def gumbel_and_seeds(way):
    def f(x):
        u = torch.rand_like(x)
        return (x - (-u.log()).log()).argmax(-1), F.dropout(x, 0.5, True), torch.randperm(5, device=x.device), torch.randint(0, 9, (3,), device=x.device)
    g = way(f)
    for k in range(10):
        torch.manual_seed(k // 3)
        x = way.randn(k, 4, 6)
        a = g(x); b = g(x)
        yield (torch.equal(a[1], b[1]), a[1].shape, (a[1] == 0).sum() > 0)

@program()
def a2c_distribution(way):
    net = way.build(lambda: nn.Linear(4, 3)); val = way.build(lambda: nn.Linear(4, 1))
    from torch.distributions import Categorical, Normal, kl_divergence
    def loss(obs, act, ret):
        d = Categorical(logits=net(obs))
        v = val(obs).squeeze(-1)
        adv = (ret - v).detach()
        return -(d.log_prob(act) * adv).mean() + F.mse_loss(v, ret) - 0.01 * d.entropy().mean()
    f = way(loss)
    for k in range(9):
        l = f(way.randn(k, 6, 4), way.ints(k, 3, 6), way.randn(k + 1, 6))
        l.backward()
        yield l.detach(), net.weight.grad.clone(), val.weight.grad.clone()
        net.zero_grad(); val.zero_grad()

@program()
def gae_scan(way):
    def gae(r, v, d, gamma=0.99, lam=0.95):
        adv = torch.zeros_like(r); last = torch.zeros_like(r[0])
        for t in reversed(range(r.size(0))):
            nv = v[t + 1]
            delta = r[t] + gamma * nv * (1 - d[t]) - v[t]
            last = delta + gamma * lam * (1 - d[t]) * last
            adv[t] = last
        return adv, adv + v[:-1]
    f = way(gae)
    with torch.no_grad():
        for k in range(9):
            yield f(way.randn(k, 5, 3), way.randn(k + 1, 6, 3), (way.randn(k + 2, 5, 3) > 1).float(), gamma=0.99 if k < 5 else 0.9)
