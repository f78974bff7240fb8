# %% flow matching -> train_step
class Velocity(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 6))
        self.body = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 6))
    def embed(self, t):
        freqs = torch.exp(-math.log(1000) * torch.arange(4, device=t.device) / 4)
        angles = t[:, None] * freqs[None]
        return torch.cat([angles.cos(), angles.sin()], dim=-1)
    def forward(self, x, t):
        return self.body(x + self.time(self.embed(t)))

model = Velocity().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
args = (torch.randn(5, 6, device=device),)

def train_step(x1):
    x0, t = torch.randn_like(x1), torch.rand(x1.size(0), device=x1.device)
    xt = torch.lerp(x0, x1, t[:, None])
    loss = F.mse_loss(model(xt, t), x1 - x0)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    opt.step()
    return loss.detach()
# %% a stochastic sampler with churn -> sample
num_steps, S_churn, S_min, S_max = 4, 2.0, 0.05, 50.0
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def sample(latents):
    step_indices = torch.arange(num_steps, dtype=torch.float64, device=latents.device)
    t_steps = (80 ** (1 / 7) + step_indices / (num_steps - 1) * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7
    t_steps = torch.cat([t_steps, torch.zeros_like(t_steps[:1])])
    x_next = latents.to(torch.float64) * t_steps[0]
    for i, (t_cur, t_next) in enumerate(zip(t_steps[:-1], t_steps[1:])):
        x_cur = x_next
        gamma = min(S_churn / num_steps, np.sqrt(2) - 1) if S_min <= t_cur <= S_max else 0  #- expect: data-dependent-branch
        #+ gamma = torch.where((t_cur >= S_min) & (t_cur <= S_max), min(S_churn / num_steps, float(np.sqrt(2) - 1)), 0.0)
        t_hat = t_cur + gamma * t_cur
        x_hat = x_cur + (t_hat**2 - t_cur**2).sqrt() * torch.randn_like(x_cur)
        denoised = net(x_hat.float() / (1 + t_hat).float()).double()
        d_cur = (x_hat - denoised) / t_hat
        x_next = x_hat + (t_next - t_hat) * d_cur
        if i < num_steps - 1:
            d_prime = (x_next - net(x_next.float() / (1 + t_next).float()).double()) / t_next
            x_next = x_hat + (t_next - t_hat) * (0.5 * d_cur + 0.5 * d_prime)
    return x_next.float()
# %% a codebook that revives dead codes (random) -> quantize
codebook = torch.randn(8, 4, device=device)
usage = torch.zeros(8, device=device)
args = (torch.randn(16, 4, device=device),)

@torch.no_grad()
def quantize(z):
    ids = torch.cdist(z, codebook).argmin(1)
    usage.mul_(0.9).scatter_add_(0, ids, torch.ones_like(ids, dtype=usage.dtype))
    dead = usage < 0.5
    if dead.any():  #- expect: data-dependent-branch
        picked = z[torch.randperm(z.size(0), device=z.device)[: dead.sum()]]  #- expect: tensor-bound|sync-item
        codebook[dead] = picked  #- expect: mask-assignment|dynamic-shape
    #+ picked = z[torch.randint(0, z.size(0), (8,), device=z.device)]
    #+ codebook.copy_(torch.where(dead[:, None], picked, codebook))
    return codebook[ids]
# %% a discriminator with lazy R1 -> d_step
disc = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1)).to(device)
d_opt = torch.optim.SGD(disc.parameters(), lr=0.01)
d_reg_every, iteration = 4, 0
args = (torch.randn(3, 4, device=device), torch.randn(3, 4, device=device))
#+ regularize = torch.ones((), device=device)

def d_step(real, fake):
    global iteration  #-
    d_opt.zero_grad()
    loss = F.softplus(-disc(real)).mean() + F.softplus(disc(fake)).mean()
    if iteration % d_reg_every == 0:  #- expect: branch-frozen
        real = real.detach().requires_grad_(True)  #-
        grad, = torch.autograd.grad(disc(real).sum(), real, create_graph=True)  #-
        loss = loss + 5 * grad.square().sum(1).mean()  #-
    #+ real = real.detach().requires_grad_(True)
    #+ grad, = torch.autograd.grad(disc(real).sum(), real, create_graph=True)
    #+ loss = loss + regularize * 5 * grad.square().sum(1).mean()
    loss.backward()
    d_opt.step()
    iteration += 1  #- expect: host-counter
    return loss.detach()
#+
#+ def after(loss, i):
#+     global iteration
#+     iteration += 1
#+     regularize.fill_(float(iteration % d_reg_every == 0))
# %% sample with the averaged weights, and swap back -> sample
class EMA:
    def __init__(self, model):
        self.model = model
        self.shadow = [p.detach().clone() * 0.5 for p in model.parameters()]
    def __enter__(self):
        self.backup = [p.data for p in self.model.parameters()]
        for p, s in zip(self.model.parameters(), self.shadow):
            p.data = s
    def __exit__(self, *exc):
        for p, b in zip(self.model.parameters(), self.backup):
            p.data = b
        del self.backup

model = nn.Linear(4, 4).to(device)
ema = EMA(model)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def sample(noise):
    with ema:
        for _ in range(3):
            noise = noise - 0.1 * model(noise)
    return noise
# %% guidance by a classifier's gradient -> cond_fn
classifier = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
classifier_scale = 2.0
args = (torch.randn(5, 4, device=device), torch.randint(0, 3, (5,), device=device))

def cond_fn(x, y):
    with torch.enable_grad():
        x_in = x.detach().requires_grad_(True)
        logits = classifier(x_in)
        log_probs = F.log_softmax(logits, dim=-1)
        selected = log_probs[range(len(logits)), y.view(-1)]  #- expect: cpu-index
        #+ selected = log_probs.gather(1, y.view(-1, 1)).squeeze(1)
        return torch.autograd.grad(selected.sum(), x_in)[0] * classifier_scale
# %% jump back and forth in time, as a schedule says -> inpaint
schedule = [3, 2, 1, 2, 1, 0]
betas = torch.linspace(0.1, 0.4, 4, device=device)
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device), torch.rand(2, 4, device=device).round())

@torch.no_grad()
def inpaint(known, mask):
    x = torch.randn_like(known)
    for before, now in zip(schedule, schedule[1:]):
        if now < before:
            noisy = known + betas[now] * torch.randn_like(known)
            x = mask * noisy + (1 - mask) * (x - betas[now] * net(x))
        else:
            x = torch.sqrt(1 - betas[now]) * x + torch.sqrt(betas[now]) * torch.randn_like(x)
    return x
# %% style mixing with a probability (random) -> mapping
args = (torch.randn(3, 6, 4, device=device), torch.randn(3, 6, 4, device=device))

def mapping(w1, w2):
    if random.random() < 0.7:  #- expect: branch-frozen|host-random
        crossover = random.randint(1, 5)  #- may: host-random
        w1 = torch.cat([w1[:, :crossover], w2[:, crossover:]], dim=1)  #- expect: size-frozen|host-random may: size-frozen host-random
    #+ crossover = torch.randint(1, 6, (), device=w1.device)
    #+ mix = (torch.rand((), device=w1.device) < 0.7) & (torch.arange(6, device=w1.device) >= crossover)
    #+ w1 = torch.where(mix[:, None], w2, w1)
    return w1 * 0.5
