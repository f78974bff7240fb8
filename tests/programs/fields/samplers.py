# %% ancestral sampling that adds no noise at the end -> p_sample
T = 10
betas = torch.linspace(1e-4, 0.02, T).to(device)
model = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device), torch.full((2,), 3, dtype=torch.long, device=device))
ignore = {"result"}

@torch.no_grad()
def p_sample(x, t):
    beta = betas[t][:, None]
    mean = (x - beta * model(x)) / (1 - beta).sqrt()
    if t[0] > 0:  #- expect: data-dependent-branch
        mean = mean + beta.sqrt() * torch.randn_like(x)  #-
    #+ mean = torch.where((t > 0)[:, None], mean + beta.sqrt() * torch.randn_like(x), mean)
    return mean
# %% coefficients gathered on the CPU -> q_sample
T = 10
alphas_cumprod = torch.cumprod(1 - torch.linspace(1e-4, 0.02, T), 0)
#+ alphas_cumprod = alphas_cumprod.to(device)
args = (torch.randn(2, 4, device=device), torch.randint(0, T, (2,), device=device), torch.randn(2, 4, device=device))

def extract(a, t, x_shape):
    out = a.gather(-1, t.cpu())  #- expect: copy-to-cpu
    #+ out = a.gather(-1, t)
    return out.reshape(t.shape[0], *((1,) * (len(x_shape) - 1))).to(t.device)  # expect: copy-to-gpu

def q_sample(x, t, noise):
    a = extract(alphas_cumprod, t, x.shape)
    return a.sqrt() * x + (1 - a).sqrt() * noise
# %% timesteps drawn beside the loop and sent over (random) -> p_losses
model = nn.Linear(5, 4).to(device)
args = (torch.randn(3, 4, device=device),)

def p_losses(x):
    t = torch.randint(0, 10, (x.shape[0],)).to(x.device)  #- expect: copy-to-gpu may: host-random
    #+ t = torch.randint(0, 10, (x.shape[0],), device=x.device)
    noise = torch.randn_like(x)
    keep = 1 - t[:, None] / 10
    noisy = keep.sqrt() * x + (1 - keep).sqrt() * noise
    return F.mse_loss(model(torch.cat([noisy, t[:, None] / 10], 1)), noise)
# %% rectified flow in a loop of Euler steps -> sample
steps = 4
net = nn.Linear(5, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.inference_mode()
def sample(x):
    for i in range(steps):
        t = torch.full((x.size(0), 1), i / steps, device=x.device)
        x = x + net(torch.cat([x, t], dim=1)) / steps
    return x
# %% condition on its own estimate half of the time (random) -> train_loss
net = nn.Linear(8, 4).to(device)
args = (torch.randn(2, 4, device=device),)

def train_loss(x):
    noisy = x + torch.randn_like(x)
    estimate = torch.zeros_like(x)
    if random.random() < 0.5:  #- expect: branch-frozen|host-random
        with torch.no_grad():  #-
            estimate = net(torch.cat([noisy, estimate], 1)).detach_()  #-
    #+ with torch.no_grad():
    #+     estimate = torch.where(torch.rand((), device=x.device) < 0.5, net(torch.cat([noisy, estimate], 1)), estimate)
    return F.mse_loss(net(torch.cat([noisy, estimate], 1)), x)
# %% drop the label by a draw on the device (random) -> forward
null = nn.Parameter(torch.zeros(4).to(device))
net, table = nn.Linear(4, 4).to(device), nn.Embedding(5, 4).to(device)
args = (torch.randn(2, 4, device=device), torch.randint(0, 5, (2,), device=device))

def forward(x, label):
    cond = table(label)
    if torch.rand(1, device=x.device) < 0.1:  #- expect: data-dependent-branch
        cond = null.expand_as(cond)  #-
    #+ cond = torch.where(torch.rand(1, device=x.device) < 0.1, null.expand_as(cond), cond)
    return net(x + cond)
# %% clamp by the largest of a quantile and one -> threshold
args = (torch.randn(2, 3, 4, device=device) * 2,)

def threshold(x0):
    s = torch.quantile(x0.abs().flatten(), 0.95)
    s = max(s, 1.0)  #- expect: data-dependent-branch|sync-item
    #+ s = s.clamp(min=1.0)
    return (x0 / s).clamp(-1, 1)
# %% a multistep solver that remembers its outputs -> step
class Solver:
    def __init__(self, order=2):
        self.outputs, self.lower_order, self.order = [None] * order, 0, order  #-
        #+ self.last, self.first = torch.zeros(2, 4, device=device), torch.ones((), device=device)
    def step(self, eps, x):
        self.outputs[:-1] = self.outputs[1:]  #- may: stale-input host-counter output-alias
        self.outputs[-1] = eps  #- may: stale-input host-counter output-alias
        if self.lower_order < self.order - 1:  #- may: branch-frozen
            x = x - 0.1 * eps  #-
        else:  #-
            x = x - 0.1 * (1.5 * eps - 0.5 * self.outputs[0])  #- expect: stale-input may: stale-input
        self.lower_order = min(self.lower_order + 1, self.order)  #- may: host-counter
        #+ x = torch.where(self.first > 0, x - 0.1 * eps, x - 0.1 * (1.5 * eps - 0.5 * self.last))
        #+ self.last.copy_(eps)
        #+ self.first.zero_()
        return x

solver, net = Solver(), nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def step(x):
    return solver.step(net(x), x)
# %% keep the known part -> inpaint_step
net = nn.Conv2d(1, 1, 3, padding=1).to(device)
args = (torch.randn(1, 1, 6, 6, device=device), torch.rand(1, 1, 6, 6, device=device).gt(0.5), torch.randn(1, 1, 6, 6, device=device))

@torch.no_grad()
def inpaint_step(x, known, image):
    return torch.where(known, image + 0.1 * torch.randn_like(image), x - 0.1 * net(x))
# %% an embedding of the timestep whose frequencies are made anew -> forward
net = nn.Linear(8, 4).to(device)
freqs_of = torch.exp(-math.log(10000) * torch.arange(0, 4, dtype=torch.float32) / 4).to(device)
args = (torch.randint(0, 100, (3,), device=device),)

def timestep_embedding(timesteps, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(0, half, dtype=torch.float32) / half).to(device=timesteps.device)  #- expect: copy-to-gpu
    #+ freqs = freqs_of
    angles = timesteps[:, None].float() * freqs[None]
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)

@torch.no_grad()
def forward(t):
    return net(timestep_embedding(t, 8))
# %% previews while sampling -> sample
previews = []
net = nn.Linear(4, 4).to(device)
args = (torch.randn(1, 4, device=device),)

@torch.no_grad()
def sample(x):
    for i in range(4):
        x = x - 0.25 * net(x)
        if i % 2 == 0:  #-
            previews.append(x.cpu().numpy())  #- expect: copy-to-cpu may: host-counter
    return x
ignore = {"previews"}
