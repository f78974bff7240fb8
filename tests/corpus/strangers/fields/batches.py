from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.corpus.strangers.program import program

CASTS = "eager casts a weight once, and adds its gradients up in that type"


@program()
def graphsage_changing(way):
    class Sage(nn.Module):
        def __init__(s): super().__init__(); s.l = nn.Linear(8, 5); s.o = nn.Linear(5, 2)
        def forward(s, x, e):
            agg = torch.zeros_like(x).scatter_reduce(0, e[1][:, None].expand(-1, x.size(1)), x[e[0]], "mean", include_self=False)
            return s.o(F.normalize(s.l(torch.cat([x, agg], 1)).relu(), dim=1))
    net = way.build(Sage); f = way(net)
    for k in range(12):
        n = 6 + k // 4
        y = f(way.randn(k, n, 4), way.ints(k, n, 2, 14 + k % 2)); y.pow(2).sum().backward()
        yield y.detach(), net.l.weight.grad.clone(); net.zero_grad()

@program()
def topk_pooling(way):
    class Pool(nn.Module):
        def __init__(s): super().__init__(); s.p = nn.Parameter(torch.randn(4))
        def forward(s, x, ratio):
            sc = (x @ s.p) / s.p.norm()
            v, i = sc.topk(max(1, int(ratio * x.size(0))))
            return x[i] * v.tanh()[:, None], i
    net = way.build(Pool); f = way(net)
    for k in range(10):
        y, i = f(way.randn(k, 8, 4), 0.5 if k < 6 else 0.25); y.sum().backward()
        yield y.detach(), i, net.p.grad.clone(); net.p.grad = None

@program(changes_model=True)
def mha_with_masks(way):
    net = way.build(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True))
    f = way(net)
    for k in range(10):
        x = way.randn(k, 2, 5, 8)
        pad = torch.zeros(2, 5, dtype=torch.bool).to(way.device); pad[1, 3:] = k % 2 == 0
        if k == 6: net.eval()
        y = f(x, src_key_padding_mask=pad if k < 8 else None)
        y.sum().backward()
        yield y.detach(), net.linear1.weight.grad.clone(); net.zero_grad()

@program(changes_model=True)
def plain_tensor_attributes(way):
    class Coupling(nn.Module):
        def __init__(s, dev):
            super().__init__(); s.net = nn.Linear(4, 8); s.mask = torch.tensor([1., 0., 1., 0.]).to(dev)
        def forward(s, x):
            a, b = s.net(x * s.mask).chunk(2, -1)
            y = x * s.mask + (1 - s.mask) * (x * a.tanh().exp() + b)
            return y, (a.tanh() * (1 - s.mask)).sum(-1)
    net = way.build(lambda: Coupling(way.device)); f = way(net)
    for k in range(10):
        y, ld = f(way.randn(k, 3, 4)); (y.sum() + ld.sum()).backward()
        yield y.detach(), ld.detach(), net.net.weight.grad.clone(); net.zero_grad()
        if k == 5: net.mask.copy_(1 - net.mask)
        if k == 7: net.mask = torch.ones(4).to(way.device)

@program()
def host_and_device(way):
    lut = torch.linspace(0, 1, 11)
    def f(x, i, cpu):
        y = x * cpu.mean().item() if False else x
        return y + lut.to(x.device)[i], (cpu * 2).sum(), cpu.to(x.device) @ x
    g = way(f)
    for k in range(9):
        if k == 5: lut.mul_(2)
        yield g(way.randn(k, 3), way.ints(k, 11, 3), torch.randn(2, 3, generator=torch.Generator().manual_seed(k)))

@program(changes_model=True, skip={"compiled": CASTS, "dynamo": CASTS, "verified": CASTS, "parameterized": CASTS})
def autocast_inside_toggle(way):
    class Net(nn.Module):
        def __init__(s): super().__init__(); s.l = nn.Linear(4, 4); s.amp = True
        def forward(s, x):
            with torch.autocast(x.device.type, torch.bfloat16, enabled=s.amp):
                return s.l(s.l(x)).float()
    net = way.build(Net); f = way(net)
    for k in range(10):
        if k == 5: net.amp = False
        if k == 8: net.amp = True
        y = f(way.randn(k, 3, 4)); y.sum().backward()
        yield y.detach(), net.l.weight.grad.clone(); net.zero_grad()

@program(changes_model=True)
def grad_mode_dance(way):
    net = way.build(lambda: nn.Linear(4, 3)); f = way(net)
    for k in range(12):
        x = way.randn(k, 2, 4)
        cm = (torch.no_grad, torch.enable_grad, torch.inference_mode)[k % 3]
        with cm(): y = f(x)
        yield y.detach().clone(), y.requires_grad, y.is_inference()
        if k == 6: net.weight.requires_grad_(False)
        if k == 9: net.requires_grad_(False)

@program()
def checkpointed_blocks(way):
    from torch.utils.checkpoint import checkpoint
    class Net(nn.Module):
        def __init__(s): super().__init__(); s.b = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))
        def forward(s, x):
            for b in s.b: x = checkpoint(b, x, use_reentrant=False)
            return x
    net = way.build(Net); f = way(net)
    for k in range(9):
        x = way.randn(k, 3, 4).requires_grad_()
        y = f(x); y.sum().backward()
        yield y.detach(), x.grad, net.b[0][0].weight.grad.clone(); net.zero_grad()

@program()
def step_many_things(way):
    from torch.utils.checkpoint import checkpoint
    a = way.build(lambda: nn.Linear(4, 8)); b = way.build(lambda: nn.Linear(8, 2), 3)
    oa = torch.optim.AdamW(a.parameters(), 0.02, capturable=True); ob = torch.optim.SGD(b.parameters(), 0.1, momentum=0.9, nesterov=True)
    sch = torch.optim.lr_scheduler.LambdaLR(ob, lambda e: 1 / (1 + e // 3))
    def step(x, y):
        h = checkpoint(a, x, use_reentrant=False).relu()
        loss = F.cross_entropy(b(h), y, label_smoothing=0.1)
        loss.backward()
        n = nn.utils.clip_grad_norm_([*a.parameters(), *b.parameters()], 0.5)
        for o in (oa, ob): o.step(); o.zero_grad()
        return loss.detach(), n
    s = way.step(step, a, b, oa, ob)
    for k in range(12):
        yield s(way.randn(k, 5, 4), way.ints(k, 2, 5)), b.weight.detach().clone(); sch.step()

@program()
def step_last_batch_smaller(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.ReLU(), nn.Linear(6, 2)))
    opt = torch.optim.RMSprop(net.parameters(), 0.01, capturable=True)
    def step(x, y):
        opt.zero_grad(); loss = F.cross_entropy(net(x), y); loss.backward(); opt.step(); return loss.detach(), (net(x).argmax(-1) == y).float().mean()
    s = way.step(step, net, opt)
    torch.manual_seed(0)
    net.eval()
    for k in range(16):
        n = 3 if k % 5 == 4 else 8
        yield s(way.randn(k, n, 4), way.ints(k, 2, n))

@program()
def projected_gradient_attack(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    def attack(x, y, eps, steps):
        d = torch.zeros_like(x, requires_grad=True)
        for _ in range(steps):
            loss = F.cross_entropy(net(x + d), y)
            g, = torch.autograd.grad(loss, d)
            d = (d + 0.1 * g.sign()).clamp(-eps, eps).detach().requires_grad_()
        return (x + d).detach(), net(x + d).argmax(-1)
    f = way(attack); s = way.step(attack, net)
    for k in range(10):
        yield f(way.randn(k, 4, 6), way.ints(k, 3, 4), 0.3, 3), s(way.randn(k, 4, 6), way.ints(k, 3, 4), 0.3 if k < 6 else 0.1, 2)

@program(changes_model=True)
def swap_weights_for_eval(way):
    net = way.build(lambda: nn.Linear(4, 2)); f = way(net)
    ema = [p.detach().clone() for p in net.parameters()]
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for k in range(10):
        y = f(way.randn(k, 3, 4)); y.pow(2).mean().backward(); opt.step(); opt.zero_grad()
        for e, p in zip(ema, net.parameters()): e.lerp_(p.detach(), 0.3)
        if k % 3 == 2:
            back = [p.data for p in net.parameters()]
            for p, e in zip(net.parameters(), ema): p.data = e
            with torch.no_grad(): yield f(way.randn(k, 3, 4)).clone()
            for p, q in zip(net.parameters(), back): p.data = q
        yield y.detach()

@program(changes_model=True)
def reload_weights(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))); f = way(net)
    other = way.build(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), 9)
    with torch.no_grad():
        for k in range(12):
            if k == 4: net.load_state_dict(other.state_dict())
            if k == 7: net.load_state_dict({n: v * 2 for n, v in other.state_dict().items()}, assign=True)
            if k == 9: nn.init.ones_(net[0].weight)
            if k == 10: nn.utils.vector_to_parameters(torch.arange(30.).to(way.device) / 30, net.parameters())
            yield f(way.randn(k, 2, 4))

@program()
def global_switches(way):
    def f(x):
        return torch.tensor([1.5, 2.5]).to(x.device) * x, torch.arange(2, device=x.device) / 2, torch.zeros(2, device=x.device)
    g = way(f)
    for k in range(9):
        old = torch.get_default_dtype()
        if k in (4, 5): torch.set_default_dtype(torch.float64)
        try: yield g(way.randn(k, 2).float())
        finally: torch.set_default_dtype(old)

@program()
def odd_shapes(way):
    def f(x, y): return x + y, (x * y).sum(), x.expand(3, *x.shape)[1], y.reshape(-1)[:0]
    g = way(f)
    shapes = [((2, 3), (3,)), ((), (1,)), ((0, 3), (3,)), ((1, 3), (2, 1)), ((2, 3), (3,)), ((4,), ())]
    for k in range(14):
        a, b = shapes[k % 6]
        yield g(way.randn(k, *a), way.randn(k + 1, *b))

@program(changes_model=True)
def layer_drop(way):
    class Net(nn.Module):
        def __init__(s): super().__init__(); s.ls = nn.ModuleList(nn.Linear(4, 4) for _ in range(4)); s.keep = [True] * 4
        def forward(s, x):
            outs = []
            for n, (l, keep) in enumerate(zip(s.ls, s.keep)):
                if not keep: continue
                x = x + l(x) / (n + 1); outs.append(x)
            return x, outs
    net = way.build(Net); f = way(net)
    with torch.no_grad():
        for k in range(12):
            if k == 3: net.keep[1] = False
            if k == 5: net.keep = [True, False, False, True]
            if k == 7: del net.ls[3]
            if k == 9: net.ls.insert(0, way.build(lambda: nn.Linear(4, 4), 8))
            yield f(way.randn(k, 2, 4))
