# %% DDPM training step -> train_step
timesteps = 50
betas = torch.linspace(1e-4, 0.02, timesteps)
alphas_cumprod = torch.cumprod(1 - betas, dim=0).to(device)
unet = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8)).to(device)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3, capturable=True)
args = (torch.randn(4, 8, device=device),)

def train_step(x0):
    t = torch.randint(0, timesteps, (x0.size(0),), device=x0.device)
    noise = torch.randn_like(x0)
    a = alphas_cumprod[t][:, None]
    noisy = a.sqrt() * x0 + (1 - a).sqrt() * noise
    pred = unet(torch.cat([noisy, t[:, None].float() / timesteps], dim=1))
    loss = F.mse_loss(pred, noise)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()
# %% the noise schedule stays on the CPU -> add_noise
alphas_cumprod = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 20), dim=0)
args = (torch.randn(3, 4, device=device), torch.randn(3, 4, device=device), torch.tensor([3, 9, 15], device=device))
#+ schedule = alphas_cumprod.to(device)

def add_noise(original_samples, noise, timesteps):
    ac = alphas_cumprod.to(device=original_samples.device, dtype=original_samples.dtype)  #- expect: copy-to-gpu
    #+ ac = schedule
    sqrt_alpha_prod = ac[timesteps] ** 0.5
    sqrt_one_minus = (1 - ac[timesteps]) ** 0.5
    return sqrt_alpha_prod[:, None] * original_samples + sqrt_one_minus[:, None] * noise
# %% DDIM with timesteps from a tensor -> sample
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.1, 20), dim=0).to(device)
timesteps = torch.tensor([15, 10, 5, 0], device=device)
eps_model = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def sample(x):
    for t, s in zip(timesteps[:-1], timesteps[1:]):
        eps = eps_model(x)
        a_t, a_s = alphas[t], alphas[s]  #- expect: sync-item|tensor-bound
        #+ a_t, a_s = alphas.gather(0, t[None]), alphas.gather(0, s[None])
        x0 = (x - (1 - a_t).sqrt() * eps) / a_t.sqrt()
        x = a_s.sqrt() * x0 + (1 - a_s).sqrt() * eps
    return x
# %% classifier-free guidance -> guided
model = nn.Linear(10, 8).to(device)
null_cond = torch.zeros(1, 2, device=device)
guidance_scale = 7.5
args = (torch.randn(2, 8, device=device), torch.randn(2, 2, device=device))

@torch.no_grad()
def guided(latents, cond):
    do_cfg = guidance_scale > 1.0
    inp = torch.cat([latents] * 2) if do_cfg else latents
    c = torch.cat([null_cond.expand_as(cond), cond]) if do_cfg else cond
    noise_pred = model(torch.cat([inp, c], dim=1))
    if do_cfg:
        uncond, text = noise_pred.chunk(2)
        noise_pred = uncond + guidance_scale * (text - uncond)
    return noise_pred
# %% the timestep is a Python number -> denoise
model = nn.Linear(5, 4).to(device)
args = (torch.randn(2, 4, device=device), 7)  #-
#+ args = (torch.randn(2, 4, device=device), torch.full((1,), 7.0, device=device))
def feed(i):
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(i)).to(device)
    return x, 7 + i  #-
    #+ return x, torch.full((1,), 7.0 + i, device=device)

@torch.no_grad()
def denoise(x, t):
    t_emb = torch.full((x.size(0), 1), t / 1000.0, device=x.device)  #- expect: scalar-frozen|size-frozen
    #+ t_emb = (t / 1000.0).expand(x.size(0)).unsqueeze(1)
    return x - 0.1 * model(torch.cat([x, t_emb], dim=1))
# %% a scheduler with an index of its own -> step
class EulerScheduler:
    def __init__(self, n):
        self.sigmas = torch.linspace(10.0, 0.1, n + 1, device=device)
        self._step_index = 0  #-
        #+ self._step_index = torch.zeros(1, dtype=torch.long, device=device)
    def step(self, model_output, sample):
        sigma = self.sigmas[self._step_index]  #- expect: size-frozen|scalar-frozen|stale-input
        sigma_next = self.sigmas[self._step_index + 1]  #- expect: size-frozen|scalar-frozen|stale-input
        self._step_index += 1  #- expect: host-counter
        #+ sigma = self.sigmas.index_select(0, self._step_index)
        #+ sigma_next = self.sigmas.index_select(0, self._step_index + 1)
        #+ self._step_index.add_(1)
        derivative = (sample - model_output) / sigma  # may: stale-input
        return sample + derivative * (sigma_next - sigma)  # may: stale-input

scheduler = EulerScheduler(20)
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def step(latents):
    return scheduler.step(net(latents), latents)
# %% EMA with a warm-up of the decay -> train_step
class LitEma:
    def __init__(self, model, decay=0.9999):
        self.shadow = [p.detach().clone() for p in model.parameters()]
        self.decay, self.num_updates = decay, 0  #-
        #+ self.decay, self.num_updates = decay, torch.zeros((), device=device)
    @torch.no_grad()
    def __call__(self, model):
        self.num_updates += 1  #- expect: host-counter
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))  #-
        #+ self.num_updates.add_(1)
        #+ decay = ((1 + self.num_updates) / (10 + self.num_updates)).clamp(max=self.decay)
        for s, p in zip(self.shadow, model.parameters()):
            s.sub_((1.0 - decay) * (s - p))  # expect: scalar-frozen

model = nn.Linear(4, 4).to(device)
ema = LitEma(model)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
shadow = ema.shadow
args = (torch.randn(4, 4, device=device),)
def train_step(x):
    loss = (model(x) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema(model)
    return loss.detach()
# %% drop the condition at random (random) -> train_step
model = nn.Linear(6, 4).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device), torch.randn(4, 2, device=device))

def train_step(x, cond):
    #+ cond = torch.where(torch.rand(len(cond), 1, device=cond.device) < 0.3, 0.0, cond)
    if random.random() < 0.3:  #- expect: branch-frozen|host-random
        cond = torch.zeros_like(cond)  #-
    noise = torch.randn_like(x)
    loss = F.mse_loss(model(torch.cat([x + noise, cond], 1)), noise)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% latents drawn on the CPU for reproducibility (random) -> prepare
shape = (2, 4)
generator = torch.Generator().manual_seed(0)
decoder = nn.Linear(4, 3).to(device)
args = (torch.randn(2, 3, device=device),)

@torch.no_grad()
def prepare(bias):
    latents = torch.randn(shape, generator=generator).to(device)  #- expect: copy-to-gpu may: host-random
    #+ latents = torch.randn(shape, device=device)
    return decoder(latents) + bias
# %% dynamic thresholding -> clip_sample
net = nn.Linear(16, 16).to(device)
args = (torch.randn(3, 16, device=device),)

@torch.no_grad()
def clip_sample(x):
    x0 = net(x)
    s = torch.quantile(x0.abs(), 0.9, dim=1, keepdim=True)
    s = torch.clamp(s, min=1.0, max=3.0)
    return torch.clamp(x0, -s, s) / s
# %% a callback for every step -> denoise_step
frames = []
def callback(step, latents):
    frames.append(latents.cpu())  #- expect: copy-to-cpu may: host-counter output-alias
    #+ frames.append(latents.cpu())

net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def denoise_step(latents):
    latents = latents - 0.1 * net(latents)
    callback(0, latents)  #-
    return latents
#+
#+ def after(latents, i):
#+     callback(i, latents)
# %% min-SNR weights -> loss_fn
ac = torch.cumprod(1 - torch.linspace(1e-4, 0.05, 30), 0).to(device)
snr_gamma = 5.0
net = nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device), torch.tensor([2, 14, 28], device=device))

def loss_fn(x, t):
    snr = ac[t] / (1 - ac[t])
    weights = torch.stack([snr, snr_gamma * torch.ones_like(t)], dim=1).min(dim=1)[0] / snr
    loss = F.mse_loss(net(x), x, reduction="none").mean(dim=1)
    return (loss * weights).mean()
# %% Karras sigmas as a list -> heun
n_steps = 4
sigmas = [80 ** (1 / 7) + i / (n_steps - 1) * (0.002 ** (1 / 7) - 80 ** (1 / 7)) for i in range(n_steps)]
sigmas = [s**7 for s in sigmas] + [0.0]
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def heun(x):
    for s, s_next in zip(sigmas[:-1], sigmas[1:]):
        d = (x - net(x) / (1 + s)) / s
        x_next = x + (s_next - s) * d
        if s_next > 0:
            d2 = (x_next - net(x_next) / (1 + s_next)) / s_next
            x_next = x + (s_next - s) * (d + d2) / 2
        x = x_next
    return x
# %% check the latents for NaN -> decode
vae = nn.Linear(4, 12).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def decode(latents):
    image = vae(latents / 0.18215)
    assert not torch.isnan(image).any(), "NaN in the decoder"  #- expect: data-dependent-branch
    return (image / 2 + 0.5).clamp(0, 1)
# %% importance sampling of the timesteps -> loss_aware
num_timesteps = 8
history = np.ones(num_timesteps)  #-
#+ history = torch.ones(num_timesteps, device=device)
net = nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device), torch.tensor([0, 3, 6], device=device))
def feed(i):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([0, 3, 6]).to(device)
ignore = {"history"}

@torch.no_grad()
def loss_aware(x, t):
    losses = (net(x) - x).pow(2).mean(1)
    for i, loss in zip(t.tolist(), losses.tolist()):  #- expect: copy-to-cpu
        history[i] = 0.9 * history[i] + 0.1 * loss  #- may: host-counter
    #+ history[t] = 0.9 * history[t] + 0.1 * losses
    return losses
