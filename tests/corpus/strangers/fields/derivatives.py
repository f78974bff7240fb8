from __future__ import annotations

import copy
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

from tests.corpus.strangers.fields.learning import mlp
from tests.corpus.strangers.program import program


# --- second order: Hessian-vector products, Gauss-Newton, natural gradient --------------------------------------------------
@program()
def hvp(way):
    net = way.build(lambda: mlp(3, 5, 1))

    def product(x, v):
        def f(w):
            return torch.tanh(net[0](x) @ w).sum() ** 2

        w = net[2].weight[0]
        return jvp(grad(f), (w,), (v,))[1], vjp(f, w)[1](torch.ones((), device=x.device))[0]

    call = way(product)
    with torch.no_grad():
        for k in range(10):
            yield call(way.randn(k, 4, 3), way.randn(k + 1, 5))


@program()
def jacobians(way):
    def f(x):
        return torch.stack([x.pow(2).sum(), x.prod(), (x.sin() * x.cumsum(0)).sum()])

    call = way(lambda x: (jacrev(f)(x), jacfwd(f)(x), hessian(lambda z: f(z).sum())(x)))
    for k in range(10):
        yield call(way.randn(k, 4))


# --- ensembles by vmap over stacked parameters -------------------------------------------------------------------------------
@program()
def vmap_ensemble(way):
    nets = [way.build(lambda: mlp(4, 6, 2), n) for n in range(3)]
    params, buffers = stack_module_state(nets)
    base = copy.deepcopy(nets[0]).to("meta")

    def run(params, buffers, x):
        return vmap(lambda p, b, z: functional_call(base, (p, b), (z,)), in_dims=(0, 0, None), randomness="different")(
            params, buffers, x
        )

    call = way(run)
    for k in range(10):
        y = call(params, buffers, way.randn(k, 5, 4))
        y.var(0).mean().backward()
        yield y.detach(), [p.grad.clone() for p in params.values()]
        for p in params.values():
            p.grad = None


# --- SAM: sharpness-aware, two backward passes in a step, weights moved in place and back ------------------------------------
@program()
def sam(way):
    net = way.build(mlp)
    model = way(net)
    opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def step(x, y):
        F.cross_entropy(model(x), y).backward()
        grads = [p.grad for p in net.parameters()]
        norm = torch.stack([g.norm() for g in grads]).norm()
        moved = [0.05 * g / (norm + 1e-12) for g in grads]
        with torch.no_grad():
            torch._foreach_add_(list(net.parameters()), moved)
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            torch._foreach_sub_(list(net.parameters()), moved)
        opt.step()
        opt.zero_grad()
        return loss.detach(), norm

    step = way.step(step, net, opt)
    for k in range(10):
        yield step(way.randn(k, 5, 4), way.ints(k, 2, 5)), net[0].weight.detach().clone()


# --- averages of weights: torch's AveragedModel, SWA with a schedule, update_bn ------------------------------------------------
@program(changes_model=True)
def swa_and_ema(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)))
    model = way(net)
    ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    opt = torch.optim.SGD(net.parameters(), 0.1)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    step = way.step(step, net, opt)
    averaged = way(ema)
    for k in range(10):
        yield step(way.randn(k, 6, 4), way.ints(k, 2, 6))
        ema.update_parameters(net)
        if k % 3 == 2:
            ema.eval()
            with torch.no_grad():
                yield averaged(way.randn(k + 50, 6, 4)), ema.n_averaged.clone()


# --- gradient accumulation with a scaler by hand, autocast inside, mixed dtypes -------------------------------------------------
@program()
def mixed_precision(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)))

    def forward(x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return net(x)

    model = way(forward)
    opt = torch.optim.AdamW(net.parameters(), 1e-3, capturable=True)
    scale = torch.full((), 1024.0, device=way.device)

    def step(x, y):
        total = 0
        for xs, ys in zip(x.chunk(2), y.chunk(2)):
            loss = F.cross_entropy(model(xs).float(), ys)
            (loss * scale / 2).backward()
            total = total + loss.detach()
        grads = [p.grad for p in net.parameters()]
        torch._foreach_div_(grads, scale)
        finite = torch.stack([g.isfinite().all() for g in grads]).all()
        for g in grads:
            g.copy_(torch.where(finite, g, torch.zeros_like(g)))
        opt.step()
        opt.zero_grad()
        scale.copy_(torch.where(finite, scale * 1.5, scale / 2))
        return total

    step = way.step(step, net, opt, scale)
    for k in range(10):
        yield step(way.randn(k, 8, 8), way.ints(k, 4, 8)), scale.clone(), net[0].weight.detach().clone()


# --- transfer learning: layers frozen and thawed by the epoch ---------------------------------------------------------------------
@program(changes_model=True)
def freezing(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)))
    call = way(net)
    for k in range(12):
        for n in (0, 2):
            net[n].requires_grad_(k // 3 % 2 == (n == 0))
        F.cross_entropy(call(way.randn(k, 5, 4)), way.ints(k, 2, 5)).backward()
        yield [None if p.grad is None else p.grad.clone() for p in net.parameters()]
        if k % 2:
            net.zero_grad()


# --- distillation: a teacher in eval, a student, temperature as an attribute of a plain object ------------------------------------
class Config:
    T = 2.0
    alpha = 0.7


@program(changes_model=True)
def distillation(way):
    teacher, student = way.build(lambda: mlp(4, 16, 3)).eval(), way.build(lambda: mlp(4, 4, 3), 1)
    cfg = Config()

    def loss_fn(x, y):
        with torch.no_grad():
            t = teacher(x)
        s = student(x)
        soft = F.kl_div(F.log_softmax(s / cfg.T, 1), F.softmax(t / cfg.T, 1), reduction="batchmean") * cfg.T**2
        return cfg.alpha * soft + (1 - cfg.alpha) * F.cross_entropy(s, y)

    call = way(loss_fn)
    for k in range(12):
        if k == 5:
            cfg.T = 4.0
        if k == 8:
            Config.alpha = 0.1
        loss = call(way.randn(k, 5, 4), way.ints(k, 3, 5))
        loss.backward()
        yield loss.detach(), [p.grad.clone() for p in student.parameters()]
        student.zero_grad()
    Config.alpha = 0.7


# --- a replay buffer that is a deque of outputs kept from earlier calls -------------------------------------------------------------
@program()
def replay_of_outputs(way):
    net = way.build(lambda: mlp(4, 6, 4))
    call = way(net)
    memory = deque(maxlen=6)
    x = way.randn(0, 2, 4)
    with torch.no_grad():
        for k in range(12):
            x = call(x)
            memory.append(x)
            if k % 3 == 2:
                x = torch.stack(list(memory)).mean(0)
                memory[0].neg_()  # the author's own to change
            yield list(memory)


# --- physics: a complex-valued network, Schroedinger by split steps ------------------------------------------------------------------
class ComplexLinear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.w = nn.Parameter(torch.randn(o, i, dtype=torch.cfloat) * 0.3)

    def forward(self, z):
        return torch.nn.functional.linear(z, self.w)


class CVNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = ComplexLinear(4, 6), ComplexLinear(6, 4)

    def forward(self, z):
        h = self.a(z)
        h = F.relu(h.abs() - 0.1) * torch.exp(1j * h.angle())
        y = self.b(h)
        return y, y.conj(), (y * y.conj()).real, y.mH


@program()
def complex_network(way):
    net = way.build(CVNN)
    call = way(net)
    for k in range(10):
        z = torch.complex(way.randn(k, 3, 4), way.randn(k + 1, 3, 4))
        if k % 3 == 1:
            z = z.conj()
        y, yc, e, yh = call(z)
        (e.sum() + yc.real.sum()).backward()
        yield y.detach(), yc.detach(), e.detach(), yh.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


@program()
def split_step(way):
    n = 16
    kx = torch.fft.fftfreq(n, 0.5).to(way.device) * 2 * torch.pi
    V = torch.linspace(-1, 1, n, device=way.device) ** 2

    def evolve(psi, dt):
        psi = psi * torch.exp(-0.5j * dt * V)
        psi = torch.fft.ifft(torch.exp(-0.5j * dt * kx**2) * torch.fft.fft(psi))
        return psi * torch.exp(-0.5j * dt * V)

    call = way(evolve)
    psi = torch.complex(way.randn(0, n), way.randn(1, n))
    psi = psi / psi.abs().norm()
    for k in range(10):
        psi = call(psi, 0.01 if k % 2 else 0.02)
        yield psi


# --- a Gaussian process: Cholesky, solve, marginal likelihood ------------------------------------------------------------------------
@program()
def gaussian_process(way):
    class GP(nn.Module):
        def __init__(self):
            super().__init__()
            self.ls, self.noise = nn.Parameter(torch.zeros(())), nn.Parameter(torch.tensor(-2.0))

        def forward(self, x, y):
            K = torch.exp(-0.5 * torch.cdist(x, x).pow(2) / self.ls.exp() ** 2) + self.noise.exp() * torch.eye(
                len(x), device=x.device
            )
            L = torch.linalg.cholesky(K)
            a = torch.cholesky_solve(y[:, None], L)
            return 0.5 * (y @ a).squeeze() + L.diagonal().log().sum()

    net = way.build(GP)
    call = way(net)
    opt = torch.optim.Rprop(net.parameters())
    for k in range(10):
        loss = call(way.randn(k, 6, 2), way.randn(k + 1, 6))
        opt.zero_grad()
        loss.backward()
        opt.step()
        yield loss.detach(), net.ls.detach().clone()


# --- a neural ODE with fixed steps (RK4) and a function of time that is a closure -------------------------------------------------------
@program()
def neural_ode(way):
    net = way.build(lambda: mlp(4, 8, 3))

    def odeint(y0, t):
        def f(t, y):
            return net(torch.cat([y, t.expand(y.shape[0], 1)], -1))

        ys = [y0]
        for t0, t1 in zip(t[:-1], t[1:]):
            h, y = t1 - t0, ys[-1]
            k1 = f(t0, y)
            k2 = f(t0 + h / 2, y + h * k1 / 2)
            k3 = f(t0 + h / 2, y + h * k2 / 2)
            ys.append(y + h * (k1 + 2 * k2 + 2 * k3 + f(t1, y + h * k3)) / 6)
        return torch.stack(ys)

    call = way(odeint)
    for k in range(10):
        y0 = way.randn(k, 2, 3).requires_grad_()
        t = torch.linspace(0, 1 + k / 10, 4, device=way.device)
        y = call(y0, t)
        y[-1].sum().backward()
        yield y.detach(), y0.grad
