# %% a custom Function keeps a count in its class -> step
class CountedReLU(torch.autograd.Function):
    calls = 0
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        CountedReLU.calls += 1  #- expect: host-counter
        return x.clamp(min=0)
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0)

w = torch.randn(4, 4).to(device).requires_grad_(True)
args = (torch.randn(3, 4, device=device),)

def step(x):
    loss = CountedReLU.apply(x @ w).sum()
    (g,) = torch.autograd.grad(loss, w)
    return g
# %% a backward that checks its gradient -> step
class Guarded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        if torch.isnan(g).any():  #- expect: data-dependent-branch
            g = torch.zeros_like(g)  #-
        #+ g = torch.where(torch.isnan(g).any(), torch.zeros_like(g), g)
        return g * 2

w = torch.randn(4, 4).to(device).requires_grad_(True)
args = (torch.randn(3, 4, device=device),)

def step(x):
    loss = Guarded.apply(x @ w).square().sum()
    (g,) = torch.autograd.grad(loss, w)
    return g
# %% hooks by a decorator that appends norms -> train_step
norms = []
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
def watch(module):
    def hook(mod, inputs, output):
        norms.append(output.norm().item())  #- expect: sync-item may: host-counter
        #+ norms.append(output.norm())  # may: output-alias host-counter
    module.register_forward_hook(hook)  #-
    return module
watch(model[0])
args = (torch.randn(3, 4, device=device),)
ignore = {"norms"}

@torch.no_grad()
def train_step(x):
    return model(x)
# %% gradient hook that scales by a tensor, clean -> step
scale = torch.full((), 0.5, device=device)
lin = nn.Linear(4, 2).to(device)
lin.weight.register_hook(lambda g: g * scale)
args = (torch.randn(3, 4, device=device),)

def step(x):
    lin.zero_grad()
    lin(x).square().sum().backward()
    return lin.weight.grad.clone()
# %% tensor hooks that clip with the norm as a number -> step
lin = nn.Linear(4, 2).to(device)
def clip(g):
    n = g.norm().item()  #- expect: sync-item
    return g / n if n > 1.0 else g  #- may: branch-frozen scalar-frozen
    #+ n = g.norm()
    #+ return torch.where(n > 1.0, g / n, g)
lin.weight.register_hook(clip)
args = (torch.randn(3, 4, device=device),)

def step(x):
    lin.zero_grad()
    lin(x).square().sum().backward()
    return lin.weight.grad.clone()
# %% WGAN-GP with a python loop of critics -> critic_steps
gen, critic = nn.Linear(3, 4).to(device), nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)).to(device)
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))  #- 
#+ opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9), capturable=True)
args = (torch.randn(5, 4, device=device),)
losses = []

def critic_steps(real):
    for _ in range(2):
        fake = gen(torch.randn(5, 3, device=device)).detach()
        eps = torch.rand(5, 1, device=device)
        mid = (eps * real + (1 - eps) * fake).requires_grad_(True)
        (g,) = torch.autograd.grad(critic(mid).sum(), mid, create_graph=True)
        gp = ((g.norm(2, dim=1) - 1) ** 2).mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * gp
        opt_c.zero_grad()
        loss.backward()
        opt_c.step()  # expect: optimizer-not-capturable
        losses.append(loss.item())  #- expect: sync-item may: host-counter
    return loss.detach()
ignore = {"losses"}
# %% MAML with functional updates, clean -> maml_loss
w = torch.randn(3, 1).to(device).requires_grad_(True)
args = (torch.randn(5, 3, device=device), torch.randn(5, 1, device=device))

def maml_loss(x, y):
    fast = w
    for _ in range(2):
        inner = F.mse_loss(x @ fast, y)
        (g,) = torch.autograd.grad(inner, fast, create_graph=True)
        fast = fast - 0.1 * g
    outer = F.mse_loss(x @ fast, y)
    (meta,) = torch.autograd.grad(outer, w)
    return outer.detach(), meta
# %% a physics-informed loss with adaptive weights as numbers -> pinn_step
net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
lambda_bc = 1.0
args = (torch.rand(6, 1, device=device), torch.zeros(1, 1, device=device))

def pinn_step(x, xb):
    global lambda_bc  #-
    x = x.detach().requires_grad_(True)
    u = net(x)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    loss_r, loss_b = (du + u).square().mean(), (net(xb) - 1).square().mean()
    gr = torch.autograd.grad(loss_r, net[0].weight, retain_graph=True)[0].abs().max()
    gb = torch.autograd.grad(loss_b, net[0].weight, retain_graph=True)[0].abs().mean()
    lambda_bc = 0.9 * lambda_bc + 0.1 * (gr / (gb + 1e-8)).item()  #- expect: sync-item may: host-counter
    #+ lam.mul_(0.9).add_(0.1 * (gr / (gb + 1e-8)))
    loss = loss_r + lambda_bc * loss_b  #- may: scalar-frozen
    #+ loss = loss_r + lam * loss_b
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
#+ lam = torch.ones((), device=device)
#+ def after(out, i):
#+     global lambda_bc
#+     lambda_bc = lam.item()
# %% vector quantization revives dead codes -> quantize
codebook, usage = torch.randn(6, 4).to(device), torch.ones(6, device=device)
args = (torch.randn(10, 4, device=device),)

@torch.no_grad()
def quantize(z):
    idx = torch.cdist(z, codebook).argmin(-1)
    onehot = F.one_hot(idx, 6).float()
    usage.mul_(0.9).add_(onehot.sum(0), alpha=0.1)
    dead = usage < 0.2
    if dead.any():  #- expect: data-dependent-branch
        codebook[dead] = z[torch.randint(0, 10, (int(dead.sum()),), device=z.device)]  #- may: sync-item mask-assignment dynamic-shape
    #+ codebook.copy_(torch.where(dead[:, None], z[torch.randint(0, 10, (6,), device=z.device)], codebook))
    return codebook[idx]
ignore = {"codebook", "result"}
# %% perplexity of a codebook, clean -> perplexity
codebook = torch.randn(6, 4).to(device)
args = (torch.randn(10, 4, device=device),)

@torch.no_grad()
def perplexity(z):
    idx = torch.cdist(z, codebook).argmin(-1)
    p = F.one_hot(idx, 6).float().mean(0)
    return torch.exp(-(p * (p + 1e-10).log()).sum()), codebook[idx]
# %% observers of a post-training quantization -> calibrate
class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.min_val, self.max_val = float("inf"), float("-inf")
    def forward(self, x):
        self.min_val = min(self.min_val, x.min().item())  #- expect: sync-item may: host-counter
        self.max_val = max(self.max_val, x.max().item())  #- expect: sync-item may: host-counter
        return x

obs, lin = Observer().to(device), nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device),)
ignore = {"obs"}

@torch.no_grad()
def calibrate(x):
    return obs(lin(x))
# %% weights rebuilt in the forward of a hypernetwork, clean -> forward
hyper = nn.Linear(2, 12).to(device)
args = (torch.randn(5, 3, device=device), torch.randn(2, device=device))

@torch.no_grad()
def forward(x, z):
    return x @ hyper(z).view(3, 4)
# %% spectral norm by power iteration with a convergence test -> spectral
u = F.normalize(torch.randn(4), dim=0).to(device)
args = (torch.randn(4, 3, device=device),)

@torch.no_grad()
def spectral(W):
    for _ in range(10):
        v = F.normalize(W.T @ u, dim=0)
        new = F.normalize(W @ v, dim=0)
        delta = (new - u).norm()
        u.copy_(new)
        if delta < 1e-12:  #- expect: data-dependent-branch
            break  #-
    return W / (u @ W @ v)
# %% Sinkhorn until it converges -> transport
args = (torch.rand(4, 4, device=device),)

def transport(cost):
    K = torch.exp(-cost / 0.5)
    u = torch.ones(4, device=cost.device)
    err = 1.0
    it = 0
    while err > 1e-7 and it < 5:  #- expect: data-dependent-branch
    #+ while it < 5:
        v = 0.25 / (K.T @ u)
        new = 0.25 / (K @ v)
        err = (new - u).abs().max()  #-
        u = new
        it += 1
    return u[:, None] * K * v
