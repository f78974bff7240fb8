"""Functions with problems, as strangers write them: what hides a line, or moves it somewhere else."""

from __future__ import annotations

STRANGE = {
    "backslashes and semicolons": """
inputs = (torch.randn(4, device=device),)
def f(x):
    y = x * 2; m = y.max().item()  # problem: sync-item
    z = y \\
        + m \\
        + float(x.mean())  # problem: sync-item
    return z
""",
    "a dictionary comprehension of numbers for a report": """
net = nn.Linear(3, 2).to(device)
inputs = (torch.randn(4, 3, device=device),)
def step(x):
    out = net(x)
    stats = {"out": out, "mean": out.mean(), "std": out.std()}
    report = {
        name: round(v.item(), 3)  # problem: sync-item
        for name, v in stats.items()
        if v.dim() == 0
    }
    return out, report
f = step
""",
    "a class decorator that wraps forward and checks finiteness": """
def checked(cls):
    orig = cls.forward
    def forward(self, *a):
        out = orig(self, *a)
        if not torch.isfinite(out).all():  # problem: data-dependent-branch
            raise FloatingPointError(type(self).__name__)
        return out
    cls.forward = forward
    return cls
@checked
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
    def forward(self, x):
        return self.l(x).exp()
model = Model().to(device)
inputs = (torch.randn(2, 3, device=device),)
f = model
""",
    "a lambda that rounds through Python": """
quantize = lambda x, bits=4: (x / x.abs().max().item() * (2 ** bits)).round()  # problem: sync-item
inputs = (torch.randn(4, device=device),)
f = quantize
""",
    "try finally that restores a flag, with a check inside": """
net = nn.Linear(3, 3).to(device)
inputs = (torch.randn(2, 3, device=device),)
def f(x):
    was = net.training
    net.eval()
    try:
        y = net(x)
        assert y.abs().max() < 1e6, "exploded"  # problem: data-dependent-branch
        return y
    finally:
        net.train(was)
""",
    "an async generator streams tokens": """
import asyncio
emb = nn.Embedding(10, 10).to(device)
inputs = (torch.zeros(1, dtype=torch.long, device=device),)
async def stream(tok, n):
    for _ in range(n):
        tok = emb(tok).argmax(-1)
        yield tok.tolist()  # problem: copy-to-cpu
@torch.no_grad()
def collect(tok):
    async def go():
        return [t async for t in stream(tok, 3)]
    asyncio.run(go())
    return emb(tok)
f = collect
""",
    "walrus in a comprehension's condition": """
inputs = (torch.randn(3, 4, device=device),)
def f(x):
    rows = [r * s for r in x if (s := r.norm().item()) > 0]  # problem: sync-item
    return torch.stack(rows)
""",
    "conditional expression on a tensor over lines": """
inputs = (torch.randn(4, device=device),)
def f(x):
    return (
        x * 2
        if x.mean() > 0  # problem: data-dependent-branch
        else x * 3
    )
""",
    "short circuit of two device conditions": """
inputs = (torch.randn(4, device=device), torch.ones(4, device=device))
def f(x, m):
    if x.isnan().any() or m.sum() == 0:  # problem: data-dependent-branch
        x = torch.zeros_like(x)
    return x * m
""",
    "chained comparison of a tensor": """
inputs = (torch.rand(4, device=device),)
def f(x):
    p = x.mean()
    if 0 < p < 1:  # problem: data-dependent-branch
        x = x.log()
    return x
""",
    "match on a tensor's item": """
inputs = (torch.tensor([1, 0, 2], device=device), torch.randn(3, device=device))
def f(kind, x):
    match kind[0].item():  # problem: sync-item
        case 0: return x
        case 1: return x * 2
        case _: return x * 3
""",
    "unpacking a tensor into numbers by a star": """
inputs = (torch.randn(3, device=device), torch.randn(4, device=device))
def f(box, x):
    a, *rest = box.tolist()  # problem: copy-to-cpu
    return x * a + sum(rest)
""",
    "an iterable dataset with pinned batches in the step": """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(64, 3), torch.randint(0, 2, (64,))), batch_size=2)
it = iter(loader)
net = nn.Linear(3, 2).to(device)
inputs = (torch.ones((), device=device),)
def step(scale):
    xb, yb = next(it)
    xb = xb.to(device, non_blocking=True)  # problem: copy-to-gpu
    yb = yb.to(device, non_blocking=True)  # problem: copy-to-gpu
    return F.cross_entropy(net(xb) * scale, yb)
f = step
""",
    "nn.TransformerEncoder in eval with a padding mask": """
enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).to(device).eval()
inputs = (torch.randn(2, 4, 8, device=device), torch.zeros(2, 4, dtype=torch.bool, device=device))
@torch.no_grad()
def f(x, m):
    return enc(x, src_key_padding_mask=m)  # problem: hidden-size
""",
    "pad_sequence of slices by lengths of the host": """
from torch.nn.utils.rnn import pad_sequence
inputs = (torch.randn(3, 5, device=device), torch.tensor([2, 5, 3], device=device))
def f(x, n):
    parts = [row[:k] for row, k in zip(x, n)]  # problem: tensor-bound
    return pad_sequence(parts, batch_first=True)
""",
    "a numpy array multiplied into a tensor": """
import math
import numpy as np
inputs = (torch.randn(4, device=device),)
weights = np.linspace(0, 1, 4, dtype=np.float32)
def f(x):
    return x * torch.from_numpy(weights).to(x.device)  # problem: copy-to-gpu
""",
    "two waits in one expression on one line": """
inputs = (torch.randn(4, device=device),)
def f(x):
    lo, hi = x.min().item(), x.max().item()  # problem: sync-item
    return (x - lo) / (hi - lo)
""",
    "sum of a Python generator over devices' bools": """
inputs = (torch.randn(4, device=device),)
def f(x):
    n = sum(1 for v in x if v > 0)  # problem: data-dependent-branch
    return x / max(n, 1)
""",
    "torch.where with one argument inside a nested function": """
inputs = (torch.randn(6, device=device),)
def f(x):
    def positives():
        return torch.where(x > 0)[0]  # problem: dynamic-shape
    return x[positives()].mean()
""",
    "scatter with index made from a list over lines": """
inputs = (torch.randn(4, device=device),)
def f(x):
    out = torch.zeros(8, device=x.device)
    return out.scatter_(
        0,
        torch.tensor([0, 3, 5, 7], device=x.device),  # problem: tensor-literal
        x,
    )
""",
    "a monkeypatched method adds a print of shape only, its effect frozen": """
net = nn.Linear(3, 2).to(device)
orig = net.forward
def noisy(x):
    print("in", tuple(x.shape))  # problem: host-counter
    return orig(x)
net.forward = noisy
inputs = (torch.randn(4, 3, device=device),)
def f(x):
    return net(x)
""",
    "custom op with autograd and a mask inside": """
@torch.library.custom_op("finding_lib3::relu2", mutates_args=())
def relu2(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[x < 0] = torch.zeros(int((x < 0).sum()), device=x.device)  # problem: sync-item mask-assignment
    return y
def setup(ctx, inputs, output): ctx.save_for_backward(inputs[0])
def back(ctx, g):
    x, = ctx.saved_tensors
    k = (x > 0).sum().item()  # problem: sync-item
    return g * (x > 0) / max(k, 1)
relu2.register_autograd(back, setup_context=setup)
w = nn.Parameter(torch.randn(4, device=device))
inputs = (torch.randn(4, device=device),)
def f(x):
    w.grad = None
    relu2(w * x).sum().backward()
    return w.grad
""",
    "library impl by hand": """
lib = torch.library.Library("finding_lib4", "DEF")
lib.define("shift(Tensor x) -> Tensor")
def shift(x):
    return x - x.mean().cpu().to(x.device)  # problem: copy-to-cpu copy-to-gpu
lib.impl("shift", shift, "CompositeExplicitAutograd")
inputs = (torch.randn(4, device=device),)
def f(x):
    return torch.ops.finding_lib4.shift(x) * 2
""",
    "numpy asks a tensor for its array": """
import math
import numpy as np
inputs = (torch.randn(4, device=device),)
def f(x):
    y = x.detach() * 2
    hist = np.asarray(y.cpu())  # problem: copy-to-cpu
    return y - float(hist.mean())
""",
    "math functions of tensors": """
import math
import numpy as np
inputs = (torch.rand(4, device=device) + 1,)
def f(x):
    s = math.sqrt(x.mean())  # problem: sync-item
    return x / s
""",
    "range over a tensor's number": """
inputs = (torch.tensor(3, device=device), torch.randn(4, device=device))
def f(n, x):
    for k in range(n):  # problem: tensor-bound
        x = x + k
    return x
""",
    "a dictionary keyed by a tensor's number": """
table = {0: 1.0, 1: 2.0, 2: 3.0}
inputs = (torch.tensor(1, device=device), torch.randn(4, device=device))
def f(k, x):
    return x * table[k.item()]  # problem: sync-item
""",
    "membership of a tensor in a list": """
stops = [1, 2]
inputs = (torch.tensor(2, device=device), torch.randn(4, device=device))
def f(t, x):
    return x * 0 if t in stops else x  # problem: data-dependent-branch
""",
    "repeat and view with numbers of the device": """
inputs = (torch.tensor(2, device=device), torch.randn(4, device=device))
def f(n, x):
    y = x.view(int(n), -1)  # problem: sync-item
    return y.sum(0)
""",
    "zeros whose size is a maximum": """
inputs = (torch.tensor([1, 3, 2], device=device),)
def f(ids):
    out = torch.zeros(ids.max() + 1, device=ids.device)  # problem: tensor-bound
    return out.index_add_(0, ids, torch.ones(3, device=ids.device))
""",
    "split by a list of lengths from the device": """
inputs = (torch.tensor([1, 3], device=device), torch.randn(4, device=device))
def f(n, x):
    a, b = x.split(n.tolist())  # problem: copy-to-cpu
    return a.sum() * b.sum()
""",
    "dropout with a probability that is a tensor's item": """
inputs = (torch.tensor(0.5, device=device), torch.randn(4, device=device))
def f(p, x):
    return F.dropout(x, p=p.item())  # problem: sync-item
""",
    "percent formatting of a tensor into a file name": """
inputs = (torch.randn(4, device=device),)
def f(x):
    name = "ckpt-%s.pt" % x.abs().max()  # problem: print
    return x * len(name)
""",
    "allclose as a convergence test in a for with break": """
inputs = (torch.rand(4, 4, device=device),)
def f(x):
    for _ in range(5):
        y = x / x.sum(0, keepdim=True)
        if torch.allclose(x, y, atol=1e-3):  # problem: compare-on-cpu
            break
        x = y
    return x
""",
    "weights as a Python list multiplied into a stack": """
weights = [0.1, 0.2, 0.7]
inputs = (torch.randn(3, 4, device=device),)
def f(x):
    w = x.new_tensor(weights)  # problem: tensor-literal
    return (w[:, None] * x).sum(0)
""",
    "torch.Tensor constructor moved to the device": """
inputs = (torch.randn(3, device=device),)
def f(x):
    w = torch.Tensor([1, 2, 3]).to(x)  # problem: copy-to-gpu
    return x * w
""",
    "default device context with a literal": """
inputs = (torch.randn(3, device=device),)
def f(x):
    with torch.device(x.device):
        w = torch.tensor([1.0, 2.0, 3.0])  # problem: tensor-literal
        z = torch.zeros(3)
    return x * w + z
""",
    "unique consecutive runs for run length": """
inputs = (torch.tensor([1, 1, 2, 3, 3], device=device),)
def f(x):
    v, c = torch.unique_consecutive(x, return_counts=True)  # problem: dynamic-shape
    return c.float().mean()
""",
    "masked scatter differentiated": """
w = nn.Parameter(torch.randn(4, device=device))
inputs = (torch.randn(4, device=device),)
def f(x):
    w.grad = None
    y = x.masked_scatter(x > 0, w)  # problem: dynamic-shape
    y.sum().backward()
    return w.grad
""",
    "a library seeds inside the call": """
import math
import numpy as np
import torch.nn.init
inputs = (torch.randn(4, device=device),)
def set_seed(s):
    random.seed(s); np.random.seed(s)
    torch.manual_seed(s)  # problem: reseeded
def f(x):
    set_seed(0)
    return x + torch.randn_like(x)
""",
    "custom op with a sync inside Python": """
@torch.library.custom_op("finding_lib::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    s = x.abs().max().item()  # problem: sync-item
    return x / s
inputs = (torch.randn(4, device=device),)
def f(x):
    return scaled(x) + 1
""",
    "a warning when a norm is large": """
import warnings
inputs = (torch.randn(4, device=device),)
def f(x):
    n = x.norm()
    if n > 1e3:  # problem: data-dependent-branch
        warnings.warn(f"large {n}")  # problem: print
    return x / n
""",
}
