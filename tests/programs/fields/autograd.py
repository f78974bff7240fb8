# %% a custom Function with a threshold in its backward -> step
class ClipGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        norm = grad.norm()
        if norm > ctx.limit:  #- expect: data-dependent-branch
            grad = grad * (ctx.limit / norm)  #-
        #+ grad = grad * (ctx.limit / norm).clamp(max=1.0)
        return grad, None

w = nn.Parameter(torch.randn(4, 2, device=device))
args = (torch.randn(3, 4, device=device),)
def step(x):
    w.grad = None
    ClipGrad.apply(x @ w, 0.5).pow(2).sum().backward()
    return w.grad
# %% a straight-through estimator -> quantized
class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output

layer = nn.Linear(4, 4).to(device)
opt = torch.optim.SGD(layer.parameters(), lr=0.1)
args = (torch.randn(3, 4, device=device),)
def quantized(x):
    opt.zero_grad()
    loss = (RoundSTE.apply(layer(x) * 8) / 8).square().mean()
    loss.backward()
    opt.step()
    return loss.detach()
# %% a Function that saves a Python number of its input -> step
class Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        scale = x.abs().max().item()  #- expect: sync-item
        #+ scale = x.abs().max()
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x / scale  # may: scalar-frozen
    @staticmethod
    def backward(ctx, grad):
        return grad / ctx.scale  # may: scalar-frozen

lin = nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device),)
def step(x):
    lin.zero_grad()
    Normalize.apply(lin(x)).sum().backward()
    return lin.weight.grad
# %% hooks that record gradient norms -> train_step
norms = []
model = nn.Linear(4, 2).to(device)
def record(grad):
    norms.append(grad.norm().item())  #- expect: sync-item may: host-counter output-alias
    #+ latest.copy_(grad.norm())
model.weight.register_hook(record)
#+ latest = torch.zeros((), device=device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device), torch.randn(4, 2, device=device))
def train_step(x, y):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.detach()
#+
#+ def after(loss, i):
#+     norms.append(latest.item())
# %% activations kept by a forward hook -> forward
activations = {}
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
def save(name):
    def hook(module, inputs, output):
        activations[name] = output.detach()
    return hook
model[1].register_forward_hook(save("relu"))
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def forward(x):
    return model(x), activations["relu"].mean()
# %% a sparsity counter in a forward hook -> forward
stats = {"zeros": 0, "total": 0}
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
def count(module, inputs, output):
    stats["zeros"] += int((output == 0).sum())  #- expect: sync-item may: host-counter
    stats["total"] += output.numel()  #- expect: host-counter
    #+ zeros.add_((output == 0).sum())
model[1].register_forward_hook(count)
#+ zeros = torch.zeros((), dtype=torch.long, device=device)
args = (torch.randn(3, 4, device=device),)
#+ def after(out, i):
#+     stats["zeros"], stats["total"] = int(zeros), stats["total"] + 24

@torch.no_grad()
def forward(x):
    return model(x)
# %% gradient penalty -> critic_step
critic = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
opt = torch.optim.RMSprop(critic.parameters(), lr=1e-3, capturable=True)
args = (torch.randn(4, 4, device=device), torch.randn(4, 4, device=device))

def critic_step(real, fake):
    eps = torch.rand(real.size(0), 1, device=real.device)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
    grads = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    penalty = ((grads.norm(2, dim=1) - 1) ** 2).mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% WGAN weight clipping -> critic_step
critic = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
opt = torch.optim.RMSprop(critic.parameters(), lr=5e-5)  #-
#+ opt = torch.optim.RMSprop(critic.parameters(), lr=5e-5, capturable=True)
args = (torch.randn(4, 4, device=device), torch.randn(4, 4, device=device))

def critic_step(real, fake):
    opt.zero_grad()
    loss = critic(fake).mean() - critic(real).mean()
    loss.backward()
    opt.step()  # expect: optimizer-not-capturable
    for p in critic.parameters():
        p.data.clamp_(-0.01, 0.01)
    return -loss.item()  #- expect: sync-item
    #+ return -loss.detach()
# %% a meta-learning inner loop -> outer_step
w = nn.Parameter(torch.randn(4, 1, device=device) * 0.1)
meta_opt = torch.optim.Adam([w], lr=1e-2)  #-
#+ meta_opt = torch.optim.Adam([w], lr=1e-2, capturable=True)
args = (torch.randn(6, 4, device=device), torch.randn(6, 1, device=device))

def outer_step(x, y):
    fast = w
    for _ in range(3):
        inner = F.mse_loss(x[:3] @ fast, y[:3])
        (g,) = torch.autograd.grad(inner, fast, create_graph=True)
        fast = fast - 0.1 * g
    loss = F.mse_loss(x[3:] @ fast, y[3:])
    meta_opt.zero_grad()
    loss.backward()
    meta_opt.step()  # expect: optimizer-not-capturable
    return loss.detach()
# %% freeze a layer after some steps -> step
body, head = nn.Linear(4, 4).to(device), nn.Linear(4, 1).to(device)
opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
it, freeze_at = 0, 6
args = (torch.randn(4, 4, device=device),)
#+ alive = torch.ones((), device=device)

def step(x):
    global it  #-
    it += 1  #- expect: host-counter
    if it == freeze_at:  #- may: branch-frozen
        body.requires_grad_(False)  #-
    opt.zero_grad()
    loss = head(body(x).relu()).square().mean()
    loss.backward()
    #+ for p in body.parameters():
    #+     p.grad.mul_(alive)
    opt.step()
    return loss.detach()
#+
#+ def after(loss, i):
#+     global it
#+     it += 1
#+     alive.fill_(float(it + 1 < freeze_at))
# %% checkpointed blocks -> step
from torch.utils.checkpoint import checkpoint
blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)).to(device)
opt = torch.optim.SGD(blocks.parameters(), lr=0.1)
args = (torch.randn(4, 6, device=device),)

def step(x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
    loss = x.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% the Jacobian's log-determinant of a flow -> flow_loss
net = nn.Linear(3, 3).to(device)
args = (torch.randn(4, 3, device=device),)

def flow_loss(z):
    y = z + torch.tanh(net(z))
    jac = torch.func.vmap(torch.func.jacrev(lambda v: v + torch.tanh(net(v))))(z)
    logdet = (jac[:, 0, 0] * (jac[:, 1, 1] * jac[:, 2, 2] - jac[:, 1, 2] * jac[:, 2, 1])).abs().log()
    return (0.5 * y.square().sum(1) - logdet).mean().detach()
# %% invert a covariance -> whiten
args = (torch.randn(16, 3, device=device),)

def whiten(x):
    x = x - x.mean(0)
    cov = x.t() @ x / (x.size(0) - 1) + 1e-3 * torch.eye(3, device=x.device)
    chol = torch.linalg.cholesky(torch.linalg.inv(cov))  #- expect: linalg-check
    #+ chol = torch.linalg.cholesky_ex(torch.linalg.inv_ex(cov).inverse).L
    return x @ chol
