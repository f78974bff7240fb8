"""Steps with planted problems, and loops around them."""

from __future__ import annotations

TRAINING = {
    "an optimizer": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.Adam([p], lr=0.1)
def f(x):
    opt.zero_grad()
    (p * x).sum().backward()
    opt.step()  # problem: optimizer-not-capturable
""",
    "gradients from outside": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1)
(p * x).sum().backward()
def f(x):
    opt.step()  # problem: gradients-rebound
""",
    "a schedule": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1)
rate = 0.1
def f(x):
    global rate
    rate *= 0.5  # problem: host-counter
    opt.param_groups[0]["lr"] = rate
    opt.zero_grad()
    (p * x).sum().backward()
    opt.step()  # problem: learning-rate-frozen
""",
    "a loss from outside": """
p = nn.Parameter(torch.ones(4, 4, device=device))
loss = (p * x).sum()
def f(x):
    loss.backward(retain_graph=True)  # problem: legacy-stream
    return x * 2
""",
    "a copy with gradients from outside": """
p = nn.Parameter(torch.ones(4, 4, device=device))
before = p.clone()
def f(x):
    p.grad = None
    (p * x).sum().backward()  # problem: legacy-stream
""",
    "gradients set to None by the loop around": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1)
def f(x):
    loss = (p * x).sum()
    loss.backward()
    return loss.detach()
def train():
    for _ in range(9):
        opt.zero_grad()  # problem: gradients-rebound
        f(x)
        opt.step()
""",
    "gradients set to None between replays": """
p = nn.Parameter(torch.ones(4, 4, device=device))
def f(x):
    (p * x).sum().backward()
def train(g):
    p.grad = None
    with cuda.graph(g):
        f(x)
    g.replay()
    p.grad = None  # problem: gradients-rebound
    g.replay()
""",
    "gradients that add up in a graph, and are set to None outside": """
m = nn.Linear(4, 4).to(device)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
for q in m.parameters():
    q.grad = torch.zeros_like(q)
def f(x):
    m(x).sum().backward()
    opt.step()
def train():
    while True:
        m.zero_grad(set_to_none=True)  # problem: gradients-rebound
        f(x)
""",
    "a scheduler": """
p = nn.Parameter(torch.ones(4, 4, device=device))
opt = torch.optim.SGD([p], lr=0.1)
schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
def f(x):
    opt.zero_grad()
    (p * x).sum().backward()
    opt.step()  # problem: learning-rate-frozen
    schedule.step()
""",
    "a scheduler inside, with a rate on the device": """
p = nn.Parameter(torch.ones(4, device=device))
opt = torch.optim.Adam([p], lr=torch.tensor(0.1, device=device), capturable=True)
sched = torch.optim.lr_scheduler.StepLR(opt, 30)
def f(x):
    opt.zero_grad()
    (x @ p).sum().backward()
    opt.step()
    sched.step()  # problem: learning-rate-frozen
    return x * 2
""",
    "a cosine inside": """
p = nn.Parameter(torch.ones(4, device=device))
opt = torch.optim.AdamW([p], lr=torch.tensor(0.1, device=device), capturable=True)
sched = torch.optim.lr_scheduler.SequentialLR(
    opt, [torch.optim.lr_scheduler.LinearLR(opt, 0.1), torch.optim.lr_scheduler.CosineAnnealingLR(opt, 9)], [3]
)
def f(x):
    opt.zero_grad()
    (x @ p).sum().backward()
    opt.step()
    sched.step()  # problem: learning-rate-frozen
    return x * 2
""",
    "a hook on a gradient": """
w = nn.Parameter(torch.ones(4, device=device))
norms = []
def log(grad):
    norms.append(float(grad.norm()))  # problem: sync-item host-counter
w.register_hook(log)
def f(x):
    w.grad = None
    (x @ w).sum().backward()
    return x * 2
""",
    "a Function of one's own": """
class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        if grad.norm() > 1:  # problem: data-dependent-branch
            grad = grad / 2
        return grad
w = nn.Parameter(torch.ones(4, device=device))
def f(x):
    w.grad = None
    Clip.apply(x @ w).sum().backward()
    return x * 2
""",
    "a mask in a forward pass": """
w = nn.Parameter(torch.ones(4, device=device))
def f(x):
    w.grad = None
    y = x @ w
    loss = y[y > 0].sum()  # problem: dynamic-shape
    loss.backward()
    return loss.detach()
""",
}
