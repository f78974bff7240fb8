from __future__ import annotations

import copy
import dataclasses
import torch
import torch.nn as nn
import torch.nn.functional as F
import types

from tests.corpus.strangers.program import program


mlp = lambda *d: nn.Sequential(*[m for i, o in zip(d, d[1:]) for m in (nn.Linear(i, o), nn.Tanh())][:-1])

@program()
def step_param_groups_change(way):
    net = way.build(lambda: mlp(4, 6, 2)); opt = torch.optim.SGD([{"params": net[0].parameters(), "lr": 0.1}, {"params": net[2].parameters(), "lr": 0.01}], momentum=0.5)
    def step(x, y):
        opt.zero_grad(); l = F.mse_loss(net(x), y); l.backward(); opt.step(); return l.detach()
    s = way.step(step, net, opt)
    for k in range(14):
        if k == 4: opt.param_groups[0]["lr"] = 0.5
        if k == 6: opt.param_groups[1]["momentum"] = 0.0
        if k == 8: opt.add_param_group({"params": [nn.Parameter(torch.ones(2).to(way.device))], "lr": 1.0})
        if k == 10: opt.state.clear()
        if k == 12: opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        yield s(way.randn(k, 3, 4), way.randn(k + 50, 3, 2)), [p.detach().clone() for p in net.parameters()]

@program()
def step_freeze_unfreeze(way):
    net = way.build(lambda: mlp(4, 6, 2)); opt = torch.optim.Adam(net.parameters(), 0.02, capturable=True)
    def step(x, y):
        opt.zero_grad(); l = F.mse_loss(net(x), y); l.backward(); opt.step(); return l.detach()
    s = way.step(step, net, opt)
    for k in range(14):
        if k == 4: net[0].requires_grad_(False)
        if k == 9: net[0].requires_grad_(True)
        if k == 11: net.eval()
        yield s(way.randn(k, 3, 4), way.randn(k + 50, 3, 2)), [p.detach().clone() for p in net.parameters()], [p.grad is None for p in net.parameters()]

@program()
def step_dropout_rate_changes(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.0), nn.Linear(6, 2)))
    opt = torch.optim.SGD(net.parameters(), 0.1)
    def step(x):
        opt.zero_grad(); l = net(x).pow(2).mean(); l.backward(); opt.step(); return l.detach()
    s = way.step(step, net, opt)
    for k in range(12):
        if k == 4: net[1] = nn.Identity()
        if k == 6: net[1] = nn.ReLU()
        if k == 9: net[2].bias = None
        yield s(way.randn(k, 3, 4)), net[0].weight.detach().clone()

@program()
def step_returns_structures(way):
    @dataclasses.dataclass
    class Out: loss: torch.Tensor; logits: torch.Tensor; n: int
    net = way.build(lambda: mlp(4, 3)); opt = torch.optim.SGD(net.parameters(), 0.1)
    log = []
    def step(x, n):
        opt.zero_grad(); z = net(x); l = z.pow(2).mean(); l.backward(); opt.step()
        return {"loss": l.detach(), "z": (z.detach(), z.detach()[:1]), "n": n, "none": None}
    s = way.step(step, net, opt)
    for k in range(12):
        r = s(way.randn(k, 3, 4), k // 4); log.append(r)
        yield r, [e["loss"] for e in log]

@program()
def step_kept_views_of_state(way):
    net = way.build(lambda: nn.BatchNorm1d(4)); opt = torch.optim.SGD(net.parameters(), 0.1)
    def step(x):
        opt.zero_grad(); y = net(x); l = (y ** 3).mean(); l.backward(); opt.step()
        return net.weight, net.running_mean, net.weight.detach()[:2], y.detach()
    s = way.step(step, net, opt)
    for k in range(10):
        w, m, v, y = s(way.randn(k, 5, 4))
        yield w.detach().clone(), m.clone(), v.clone(), y, w is net.weight, m is net.running_mean, w.grad.clone()

@program()
def step_arguments_written(way):
    def step(x, cache, pos):
        cache[:, pos] = x.sum(-1)
        x.mul_(2)
        cache2 = cache.clone(); cache2[:, 0] = 0
        return cache2.sum(), x[:, 1:]
    s = way.step(step); f = way(step)
    cache = way.randn(9, 3, 12)
    for k in range(12):
        x = way.randn(k, 3, 4)
        yield s(x, cache, k % 3), x, cache.clone(), f(way.randn(k, 3, 4), cache, k % 3), cache.clone()

@program()
def step_two_share_state(way):
    g = way.build(lambda: mlp(3, 5, 2)); d = way.build(lambda: mlp(2, 5, 1), 4)
    og, od = torch.optim.Adam(g.parameters(), 0.01, capturable=True), torch.optim.Adam(d.parameters(), 0.01, capturable=True)
    def dstep(x, z):
        od.zero_grad(); l = F.softplus(-d(x)).mean() + F.softplus(d(g(z).detach())).mean(); l.backward(); od.step(); return l.detach()
    def gstep(z):
        og.zero_grad(); l = F.softplus(-d(g(z))).mean(); l.backward(); og.step(); return l.detach()
    sd, sg = way.step(dstep, d, g, od), way.step(gstep, d, g, og)
    for k in range(12):
        yield sd(way.randn(k, 4, 2), way.randn(k, 4, 3)), (sg(way.randn(k, 4, 3)) if k % 2 else None), d[0].weight.grad.clone(), g[0].weight.detach().clone()
        if k == 7: d.load_state_dict({n: v * 0.5 for n, v in d.state_dict().items()})

@program()
def step_in_class_with_counters(way):
    class Trainer:
        def __init__(s):
            s.net = way.build(lambda: mlp(4, 5, 2)); s.opt = torch.optim.SGD(s.net.parameters(), 0.1); s.losses = torch.zeros(()).to(way.device); s.temp = torch.ones(()).to(way.device); s.scale = 1.0
        def __call__(s, x):
            s.opt.zero_grad(set_to_none=False)
            l = s.net(x).pow(2).mean() * s.scale / s.temp
            l.backward(); s.opt.step()
            s.losses = s.losses + l.detach(); s.temp.mul_(1.1)
            return l.detach()
    t = Trainer(); s = way.step(t, t)
    for k in range(12):
        if k == 5: t.scale = 2.0
        if k == 8: t.temp = torch.ones(()).to(way.device)
        if k == 9: t.losses.zero_()
        if k == 10: t.net = way.build(lambda: mlp(4, 5, 2), 7); t.opt = torch.optim.SGD(t.net.parameters(), 0.1)
        yield s(way.randn(k, 3, 4)), t.losses.clone(), t.temp.clone()

@program()
def step_ema_rebound_dict(way):
    net = way.build(lambda: mlp(3, 2)); ema = {n: p.detach().clone() for n, p in net.named_parameters()}
    opt = torch.optim.SGD(net.parameters(), 0.1)
    hist = {"best": torch.full((), 1e9).to(way.device)}
    def step(x):
        opt.zero_grad(); l = net(x).pow(2).mean(); l.backward(); opt.step()
        for n, p in net.named_parameters(): ema[n] = ema[n] * 0.9 + p.detach() * 0.1
        hist["best"] = torch.minimum(hist["best"], l.detach())
        return l.detach()
    s = way.step(step, net, opt, ema, hist)
    for k in range(12):
        yield s(way.randn(k, 3, 3)), {n: v.clone() for n, v in ema.items()}, hist["best"].clone()
        if k == 6: ema = {}; ema.update({n: p.detach().clone() for n, p in net.named_parameters()})
        if k == 8: hist["best"] = torch.full((), 1e9).to(way.device)

@program()
def function_of_lists_of_tensors(way):
    def f(xs, ws, opts):
        out = []
        for x, w in zip(xs, ws): out.append(F.linear(x, w).relu() * opts.get("s", 1))
        xs[0].add_(1)
        return out, torch._foreach_add(xs, 1.0), torch.stack([o.sum() for o in out])
    g = way(f); s = way.step(f)
    for k in range(12):
        n = 2 + (k // 4) % 2
        xs = [way.randn(k + i, 2, 3) for i in range(n)]; ws = [way.randn(k + i + 9, 4, 3) for i in range(n)]
        if k % 4 == 3: ws = [ws[0]] * n
        o = {"s": 2} if k > 8 else {}
        yield g(xs, ws, o), xs, s([x.clone() for x in xs], ws, o)

@program()
def conv_transpose_and_upsample(way):
    net = way.build(lambda: nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.SiLU(), nn.ConvTranspose2d(4, 2, 4, 2, 1), nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveAvgPool2d(3), nn.Flatten()))
    f = way(net)
    for k in range(10):
        x = way.randn(k, 2, 2, 8, 8 + 2 * (k // 5)).to(memory_format=torch.channels_last if k % 2 else torch.contiguous_format)
        y = f(x); y.sum().backward()
        yield y.detach(), net[0].weight.grad.clone(); net.zero_grad()

@program()
def embeddings_and_padding(way):
    class Net(nn.Module):
        def __init__(s):
            super().__init__(); s.e = nn.Embedding(10, 4, padding_idx=0, max_norm=None, scale_grad_by_freq=False); s.b = nn.EmbeddingBag(10, 4, mode="mean"); s.l = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        def forward(s, i, lens):
            h = nn.utils.rnn.pack_padded_sequence(s.e(i), lens, batch_first=True, enforce_sorted=False) if False else s.e(i)
            y, (a, b) = s.l(h)
            return y.sum(1) + 0, s.b(i), a[-1]
    net = way.build(Net); f = way(net)
    for k in range(9):
        i = way.ints(k, 10, 3, 5); y, b, a = f(i, None); (y.sum() + b.pow(2).sum() + a.sum()).backward()
        yield y.detach(), b.detach(), net.e.weight.grad.clone(), net.b.weight.grad.clone(); net.zero_grad()

@program(changes_model=True)
def module_containers_change(way):
    class Net(nn.Module):
        def __init__(s):
            super().__init__(); s.d = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)}); s.order = ["a", "b"]; s.w = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)]); s.pd = nn.ParameterDict({"g": nn.Parameter(torch.ones(3) * 2)})
        def forward(s, x):
            for n in s.order: x = s.d[n](x).relu()
            for w in s.w: x = x * w
            return x + sum(p for p in s.pd.values())
    net = way.build(Net); f = way(net)
    with torch.no_grad():
        for k in range(14):
            if k == 3: net.order = ["b", "a"]
            if k == 5: net.order.append("a")
            if k == 7: net.w.append(nn.Parameter(torch.ones(3).to(way.device) * 3))
            if k == 9: net.pd["h"] = nn.Parameter(torch.ones(3).to(way.device))
            if k == 11: del net.pd["g"]
            if k == 12: net.d["a"] = nn.Linear(3, 3).to(way.device); nn.init.ones_(net.d["a"].weight); nn.init.zeros_(net.d["a"].bias)
            yield f(way.randn(k, 2, 3))

@program()
def complex_autograd_and_fft(way):
    w = None
    class Net(nn.Module):
        def __init__(s): super().__init__(); s.w = nn.Parameter(torch.randn(5, dtype=torch.complex64)); s.g = nn.Parameter(torch.ones(8))
        def forward(s, x):
            z = torch.fft.rfft(x * s.g) * s.w
            return torch.fft.irfft(z, n=8), z.abs().mean(), z.conj().imag.sum()
    net = way.build(Net); f = way(net); opt = torch.optim.SGD(net.parameters(), 0.1)
    def step(x):
        opt.zero_grad(); y, a, b = net(x); (y.pow(2).mean() + a + b).backward(); opt.step(); return y.detach()
    s = way.step(step, net, opt)
    for k in range(9):
        y, a, b = f(way.randn(k, 2, 8)); (y.pow(2).mean() + a + b).backward()
        yield y.detach(), a.detach(), b.detach(), net.w.grad.clone(), net.g.grad.clone(); net.zero_grad()
        yield s(way.randn(k, 2, 8)), net.w.detach().clone()

@program()
def distill_with_ema_teacher_and_hooks(way):
    s_, t = way.build(lambda: mlp(4, 6, 3)), way.build(lambda: mlp(4, 6, 3), 5)
    feats = {}
    s_[0].register_forward_hook(lambda m, i, o: feats.__setitem__("s", o)); t[0].register_forward_hook(lambda m, i, o: feats.__setitem__("t", o))
    opt = torch.optim.SGD(s_.parameters(), 0.1); cfg = types.SimpleNamespace(T=2.0, alpha=0.5)
    def step(x):
        opt.zero_grad()
        with torch.no_grad(): tl = t(x)
        l = F.kl_div(F.log_softmax(s_(x) / cfg.T, -1), F.softmax(tl / cfg.T, -1), reduction="batchmean") + cfg.alpha * F.mse_loss(feats["s"], feats["t"])
        l.backward(); opt.step()
        with torch.no_grad():
            for p, q in zip(t.parameters(), s_.parameters()): p.mul_(0.99).add_(q, alpha=0.01)
        return l.detach()
    s = way.step(step, s_, t, opt, feats)
    for k in range(12):
        if k == 5: cfg.T = 1.0
        if k == 8: cfg.alpha = 0.0
        yield s(way.randn(k, 3, 4)), t[0].weight.detach().clone()
