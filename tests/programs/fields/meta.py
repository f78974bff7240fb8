# %% MAML with an inner loop of functional updates, clean -> outer_step
from torch.func import functional_call
net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
args = (torch.randn(4, 1, device=device), torch.randn(4, 1, device=device))

def outer_step(xs, xq):
    fast = dict(net.named_parameters())
    for _ in range(2):
        loss = (functional_call(net, fast, (xs,)) - xs.sin()).square().mean()
        grads = torch.autograd.grad(loss, tuple(fast.values()), create_graph=True)
        fast = {k: p - 0.1 * g for (k, p), g in zip(fast.items(), grads)}
    outer = (functional_call(net, fast, (xq,)) - xq.sin()).square().mean()
    opt.zero_grad()
    outer.backward()
    opt.step()
    return outer.detach()
# %% Reptile moves weights towards copies through a state dict -> reptile
import copy
net = nn.Linear(2, 1).to(device)
args = (torch.randn(4, 2, device=device),)

def reptile(x):
    before = copy.deepcopy(net.state_dict())
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(2):
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad(set_to_none=False)
        loss.backward()
        opt.step()
    after_ = net.state_dict()
    mixed = {k: before[k] + 0.5 * (after_[k] - before[k]) for k in before}
    net.load_state_dict(mixed)
    return loss.detach()
# %% load_state_dict with assign of what the step itself makes, clean -> restore_and_run
net = nn.Linear(2, 1).to(device)
best = {k: v.clone() for k, v in net.state_dict().items()}
args = (torch.randn(4, 2, device=device),)

@torch.no_grad()
def restore_and_run(x):
    fresh = {k: v + 0.01 for k, v in best.items()}
    net.load_state_dict(fresh, assign=True)
    return net(x)
# %% a gradient penalty on interpolates, clean -> critic_step
critic = nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)).to(device)
opt = torch.optim.RMSprop(critic.parameters(), lr=1e-3, capturable=True)
args = (torch.randn(4, 3, device=device), torch.randn(4, 3, device=device), torch.rand(4, 1, device=device))

def critic_step(real, fake, eps):
    mix = (eps * real + (1 - eps) * fake).requires_grad_(True)
    score = critic(mix)
    (grad,) = torch.autograd.grad(score, mix, torch.ones_like(score), create_graph=True)
    penalty = (grad.norm(2, dim=1) - 1).square().mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% n_critic decides when the generator steps -> gan_step
gen, disc = nn.Linear(2, 3).to(device), nn.Linear(3, 1).to(device)
g_opt = torch.optim.SGD(gen.parameters(), lr=0.1)
iteration, n_critic = 0, 3
args = (torch.randn(4, 2, device=device),)
ignore = {"result", "gen"}

def gan_step(z):
    global iteration  #-
    fake = gen(z)
    iteration += 1  #- expect: host-counter
    if iteration % n_critic == 0:  #- expect: branch-frozen
    #+ if True:
        g_loss = -disc(fake).mean()
        g_opt.zero_grad(set_to_none=False)
        g_loss.backward()
        g_opt.step()
    return fake.detach()
#+ def after(out, i):
#+     global iteration
#+     iteration += 1
# %% a neural ODE with adaptive steps -> integrate
field = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
args = (torch.randn(3, 2, device=device),)
ignore = {"result"}

class Dopri:
    def __init__(self, f, rtol=1e-3):
        self.f, self.rtol = f, rtol
    def error(self, y, h):
        k1 = self.f(y)
        k2 = self.f(y + h * k1)
        return y + h * (k1 + k2) / 2, (h * (k2 - k1) / 2).abs().max()
    def solve(self, y, t_end=1.0):
        t, h = 0.0, 0.25
        while t < t_end:  #- may: branch-frozen
        #+ for _ in range(4):
            new, err = self.error(y, h)
            if err.item() > self.rtol and h > 0.06:  #- expect: sync-item|data-dependent-branch
                h = h / 2  #-
                continue  #-
            y, t = new, t + h  #- may: scalar-frozen
            #+ y = new
            h = min(h * 1.5, t_end - t) or 1e-3  #- may: scalar-frozen
        return y

solver = Dopri(field)
@torch.no_grad()
def integrate(y):
    return solver.solve(y)
# %% fixed-step RK4 through a time grid on the device, clean -> integrate
field = nn.Linear(3, 2).to(device)
grid = torch.linspace(0, 1, 5).to(device)
args = (torch.randn(3, 2, device=device),)

def dynamics(t, y):
    return field(torch.cat([y, t.expand(y.size(0), 1)], 1)).tanh()

@torch.no_grad()
def integrate(y):
    for t0, t1 in zip(grid[:-1], grid[1:]):
        h = t1 - t0
        k1 = dynamics(t0, y)
        k2 = dynamics(t0 + h / 2, y + h / 2 * k1)
        k3 = dynamics(t0 + h / 2, y + h / 2 * k2)
        k4 = dynamics(t1, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y
# %% task sampling by random.sample over a list of tensors (random) -> episode
tasks = [torch.randn(4, 3).to(device) for _ in range(5)]
head = nn.Linear(3, 2).to(device)
#+ bank = torch.stack(tasks)
args = (torch.ones((), device=device),)

@torch.no_grad()
def episode(scale):
    support, query = random.sample(tasks, 2)  #- may: host-random
    return (head(support).mean(0) - head(query).mean(0)) * scale  #- expect: stale-input|host-random may: stale-input
    #+ pick = torch.randperm(5, device=device)[:2]
    #+ support, query = bank.index_select(0, pick)
    #+ return (head(support).mean(0) - head(query).mean(0)) * scale
# %% prototypes by class with a Python loop over unique labels -> prototypes
encoder = nn.Linear(3, 4).to(device)
args = (torch.randn(6, 3, device=device), torch.tensor([0, 1, 2, 0, 1, 2], device=device))
def feed(i):
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([0, 1, 2, 0, 1, 2]).roll(i).to(device)

@torch.no_grad()
def prototypes(x, y):
    z = encoder(x)
    classes = torch.unique(y)  #- expect: dynamic-shape
    #+ classes = torch.arange(3, device=y.device)
    return torch.stack([z[y == c].mean(0) for c in classes])  #- expect: dynamic-shape
    #+ return torch.stack([(z * (y == c)[:, None]).sum(0) / (y == c).sum() for c in classes])
# %% the inner learning rates are tensors that learn, clean -> meta_sgd
w = torch.randn(3, 1).to(device).requires_grad_()
alpha = torch.full((3, 1), 0.1).to(device).requires_grad_()
opt = torch.optim.Adam([w, alpha], lr=1e-3, capturable=True)
args = (torch.randn(5, 3, device=device), torch.randn(5, 1, device=device))

def meta_sgd(x, y):
    inner = (x @ w - y).square().mean()
    (g,) = torch.autograd.grad(inner, w, create_graph=True)
    outer = (x @ (w - alpha * g) - y).abs().mean()
    opt.zero_grad(set_to_none=True)
    outer.backward()
    opt.step()
    return outer.detach()
