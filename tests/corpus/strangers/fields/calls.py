from __future__ import annotations

import copy
import functools
import io
import pickle
import threading
from dataclasses import dataclass
from typing import NamedTuple, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.corpus.strangers.program import program


# --- results of every kind ------------------------------------------------------------------------------------------
class Result(NamedTuple):
    hidden: torch.Tensor
    extra: Optional[torch.Tensor] = None
    name: str = "r"


class ModelOutput(dict):
    """As transformers has it: a dict with attributes."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as e:
            raise AttributeError(name) from e


@dataclass
class Batch:
    x: torch.Tensor
    mask: Optional[torch.Tensor] = None
    scale: float = 1.0


class Results(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x, *rest, kind="tuple", flag=True, **kw):
        y = self.l(x)
        for r in rest:
            y = y + r
        if kw.get("bias") is not None:
            y = y + kw["bias"]
        if kind == "tuple":
            return y, None, (y * 2, [y.sum(), 3, "a"], {})
        if kind == "named":
            return Result(y, y.t() if flag else None)
        if kind == "dict":
            return {"y": y, "nested": {"z": [y[0], y[:, 1]]}, 7: flag}
        if kind == "same":
            return y, y, y.view(-1), x, x[1:]
        if kind == "generator":
            return list(y * n for n in range(3))
        return None


@program()
def results(way):
    call = way(way.build(Results))
    kinds = ["tuple", "named", "dict", "same", "generator", "nothing"]
    with torch.no_grad():
        for k in range(18):
            x = way.randn(k, 2, 3)
            extra = [way.randn(k + n, 3) for n in range(k % 3)]
            out = call(x, *extra, kind=kinds[k % 6], flag=k % 4 < 2, bias=way.randn(k + 7, 2, 3) if k % 2 else None)
            yield type(out).__name__, out._asdict() if isinstance(out, tuple) and hasattr(out, "_asdict") else out


@program()
def model_output(way):
    lin = way.build(lambda: nn.Linear(3, 3))

    def fwd(x, labels=None):
        logits = lin(x)
        loss = F.cross_entropy(logits, labels) if labels is not None else None
        return ModelOutput(loss=loss, logits=logits)

    call = way(fwd)
    for k in range(10):
        out = call(way.randn(k, 4, 3), labels=way.ints(k, 3, 4) if k % 2 else None)
        yield type(out).__name__, dict(out)


@program()
def dataclass_argument(way):
    lin = way.build(lambda: nn.Linear(3, 3))

    def fwd(b):
        y = lin(b.x) * b.scale
        return y if b.mask is None else y.masked_fill(b.mask, 0.0)

    call = way(fwd)
    with torch.no_grad():
        for k in range(12):
            b = Batch(way.randn(k, 4, 3), way.randn(k, 4, 3) > 0 if k % 3 else None, scale=1.0 if k < 6 else 2.0)
            yield call(b)


# --- inputs of every layout ------------------------------------------------------------------------------------------
@program()
def layouts(way):
    conv = way.build(lambda: nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6).eval(), nn.ReLU()))
    call = way(conv)
    with torch.no_grad():
        for k in range(14):
            x = way.randn(k, 2, 4, 6, 6)
            x = [
                lambda: x,
                lambda: x.contiguous(memory_format=torch.channels_last),
                lambda: x.transpose(2, 3),
                lambda: way.randn(k, 2, 8, 6, 6)[:, ::2],
                lambda: way.randn(k, 2 * 4 * 36 + 1)[1:].view(2, 4, 6, 6),
                lambda: x[:, :1].expand(-1, 4, -1, -1),
                lambda: x.flip(3)[..., :],
            ][k % 7]()
            yield call(x)


@program()
def mixed_dtypes(way):
    def f(a, b, c):
        return (
            a.half() + b,
            (a > 0) & c,
            b.double().sum() + 1,
            (a * 3).to(torch.int32) // 2,
            a.to(torch.bfloat16).sum(-1),
        )

    call = way(f)
    for k in range(10):
        a = way.randn(k, 3, 5)
        yield call(
            a, way.ints(k, 9, 3, 5).to([torch.int16, torch.uint8, torch.float64][k % 3]), way.ints(k, 2, 3, 5).bool()
        )


@program()
def changing_shapes(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    call = way(net)
    for k in range(14):
        n = [1, 2, 3, 5, 8, 1, 0, 13, 4, 2, 3, 7, 1, 6][k]
        x = way.randn(k, n, 4)
        y = call(x)
        yield y.detach()
        if n:
            y.mean().backward()
            yield [p.grad.clone() for p in net.parameters()]


# --- values that Python holds --------------------------------------------------------------------------------------------
SCALE = 2.0
LAYERS = [1.0, 2.0]


class Attributes(nn.Module):
    shared = 1.0

    def __init__(self):
        super().__init__()
        self.l, self.k, self.opts = nn.Linear(3, 3), 1.0, {"gain": [1.0, 2.0], "act": torch.relu}
        self.table = None

    @property
    def gain(self):
        return self.opts["gain"][1] * self.shared

    def forward(self, x):
        y = self.opts["act"](self.l(x)) * self.k * self.gain * SCALE
        if self.table is not None:
            y = y + self.table
        for s in LAYERS:
            y = y - s
        return y


@program(changes_model=True)
def python_values(way):
    global SCALE
    net = way.build(Attributes)
    call = way(net)
    with torch.no_grad():
        for k in range(20):
            if k == 2:
                net.k = 3.0
            if k == 4:
                net.opts["gain"][1] = 5.0
            if k == 6:
                SCALE = 4.0
            if k == 8:
                LAYERS.append(0.5)
            if k == 10:
                Attributes.shared = 2.0
            if k == 12:
                net.opts["act"] = torch.tanh
            if k == 14:
                net.table = way.randn(99, 3)
            if k == 16:
                net.table = way.randn(98, 3)
            if k == 18:
                net.table.mul_(2)
            yield call(way.randn(k, 2, 3))
    SCALE, Attributes.shared = 2.0, 1.0
    LAYERS.pop()


@program()
def closures_and_defaults(way):
    w, count = way.randn(0, 3), [0]
    gain = 1.5

    def f(x, a=2.0, *, b=way.randn(5, 3)):
        return x * w * gain + a * b + len(count)

    call = way(f)
    for k in range(12):
        if k == 4:
            gain = 2.5
        if k == 6:
            w = way.randn(6, 3)
        if k == 8:
            count.append(1)
        yield call(way.randn(k, 2, 3)) if k % 2 else call(way.randn(k, 2, 3), 3.0)
    f.__defaults__ = (4.0,)
    yield call(way.randn(30, 2, 3))
    f.__kwdefaults__["b"] = way.randn(8, 3)
    yield call(way.randn(30, 2, 3))


@program()
def numbers_as_arguments(way):
    def f(x, n, lr, mode):
        for _ in range(n):
            x = x - lr * x.pow(3)
        return x if mode == "a" else -x

    call = way(f)
    for k in range(14):
        yield call(way.randn(k, 3), k % 3, 0.1 * (k % 2), "ab"[k // 7])


# --- side effects ----------------------------------------------------------------------------------------------------------
class Recorder(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.last, self.log, self.n = nn.Linear(3, 3), None, [], 0
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.steps += 1
        self.n += 1
        self.last = self.l(x)
        self.log.append(self.last.detach())
        return self.last * self.steps


@program(changes_model=True)
def side_effects(way):
    net = way.build(Recorder)
    call = way(net)
    with torch.no_grad():
        for k in range(10):
            y = call(way.randn(k, 2, 3))
            yield y, net.last, net.n, list(net.log), net.steps.clone()


@program(changes_model=True)
def hooks(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    seen = {}

    def triple(p):
        p.grad.mul_(3)

    net[0].register_forward_hook(lambda m, i, o: seen.__setitem__("act", o.detach()))
    net[2].register_forward_hook(lambda m, i, o: o * 2)
    net[2].weight.register_hook(lambda g: g * 10)
    net[0].register_full_backward_hook(lambda m, gi, go: seen.__setitem__("grad", go[0]))
    net[1].register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    net[0].bias.register_post_accumulate_grad_hook(triple)
    call = way(net)
    for k in range(8):
        x = way.randn(k, 2, 3)
        y = call(x)
        if k % 2:
            y.register_hook(lambda g: g + 1)
        y.sum().backward()
        yield y.detach(), [p.grad.clone() for p in net.parameters()], dict(seen)
        net.zero_grad()


@program()
def inputs_written(way):
    def f(x, cache, pos):
        cache[:, pos] = x
        x.mul_(2)
        return cache.sum(1), x.add_(1)

    call = way(f)
    cache = torch.zeros(2, 12, device=way.device)
    for k in range(10):
        x = way.randn(k, 2)
        pos = torch.tensor([k], device=way.device)
        x = x if k % 2 else way.randn(k, 4)[::2]
        a, b = call(x[:, None], cache, pos) if False else call(x.unsqueeze(1), cache, pos)
        yield a, b, x, cache.clone()


@program()
def outputs_kept_and_changed(way):
    net = way.build(lambda: nn.Linear(4, 4))
    call = way(lambda x: (net(x), net(x).chunk(2, -1), x.relu()))
    kept = []
    with torch.no_grad():
        for k in range(12):
            y, (a, b), r = call(way.randn(k, 3, 4))
            kept.append((y, a, b, r))
            if k % 3 == 1:
                y.zero_()
                a.add_(5)
                r[0] = 7
            if k % 4 == 3:
                kept[-2][0].resize_(1)
            if k % 5 == 4:
                kept.pop(0)
            yield [t for each in kept for t in each]


# --- models that are two, or the same twice ---------------------------------------------------------------------------------
@program()
def two_that_share(way):
    body = way.build(lambda: nn.Linear(4, 4))
    a, b = nn.Sequential(body, nn.ReLU()), nn.Sequential(body, nn.Tanh())
    fa, fb, again = way(a), way(b), way(a)
    opt = torch.optim.SGD(body.parameters(), 0.1)
    for k in range(10):
        x = way.randn(k, 2, 4)
        (fa(x) * fb(x) + again(x.flip(0))).sum().backward()
        opt.step()
        yield body.weight.grad.clone(), body.weight.detach().clone()
        opt.zero_grad()


@program()
def nested_compiled(way):
    inner = way.build(lambda: nn.Linear(4, 4))
    f = way(lambda x: inner(x).relu())
    g = way(lambda x: f(x) + f(x * 2))
    with torch.no_grad():
        for k in range(8):
            yield g(way.randn(k, 3, 4)), f(way.randn(k, 3, 4))


class Service:
    def __init__(self, net):
        self.net, self.calls, self.bias = net, 0, 1.0

    def predict(self, x, temperature=1.0):
        return (self.net(x) / temperature + self.bias).softmax(-1)

    def __call__(self, x):
        return self.predict(x, 2.0)


@program()
def callables(way):
    net = way.build(lambda: nn.Linear(3, 3))
    s = Service(net)
    method, part, lam = way(s.predict), way(functools.partial(s.predict, temperature=0.5)), way(lambda x: s.predict(x))
    with torch.no_grad():
        for k in range(12):
            if k == 6:
                s.bias = 3.0
            x = way.randn(k, 2, 3)
            yield method(x), method(x, temperature=0.5 + k // 4), part(x), lam(x)
            if k == 8:
                s.net = way.build(lambda: nn.Linear(3, 3), 7)


@program()
def threads(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    call = way(net)
    with torch.no_grad():
        call(way.randn(0, 3, 4))
    found = {}

    def work(n):
        with torch.no_grad():
            found[n] = [call(way.randn(10 * n + k, 3, 4)) for k in range(4)]

    for _ in range(2):
        ts = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        [t.start() for t in ts]
        [t.join() for t in ts]
        yield [found[n] for n in range(3)]


@program(changes_model=True)
def copies(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    call = way(net)
    with torch.no_grad():
        for k in range(4):
            yield call(way.randn(k, 2, 3))
        try:
            other = copy.deepcopy(call)
        except Exception as e:
            other = way(copy.deepcopy(net))
            yield type(e).__name__ and "copied"
        else:
            yield "copied"
        for p in net.parameters():
            p.mul_(2)
        for k in range(4):
            yield call(way.randn(k, 2, 3)), other(way.randn(k, 2, 3))
        file = io.BytesIO()
        torch.save(net.state_dict(), file)
        file.seek(0)
        for p in net.parameters():
            p.zero_()
        yield call(way.randn(4, 2, 3))
        net.load_state_dict(torch.load(file, weights_only=True), assign=True)
        for k in range(3):
            yield call(way.randn(k, 2, 3))
        clone = pickle.loads(pickle.dumps(net))
        yield way(clone)(way.randn(5, 2, 3))


@program(changes_model=True)
def moved_and_cast(way):
    net = way.build(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    call = way(net)
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float32):
            net.to(dtype)
            for k in range(3):
                yield call(way.randn(k, 2, 3).to(dtype))
        net.cpu()
        net.to(way.device)
        for k in range(3):
            yield call(way.randn(k, 2, 3))
        net[2] = nn.Linear(4, 5).to(way.device) if False else way.build(lambda: nn.Linear(4, 5), 3)
        for k in range(3):
            yield call(way.randn(k, 2, 3))
        net.append(nn.Sigmoid())
        for k in range(3):
            yield call(way.randn(k, 2, 3))
        del net[1]
        for k in range(3):
            yield call(way.randn(k, 2, 3))
