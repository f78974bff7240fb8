# %% training a diffusion model with tables, guidance and an average of the weights -> training_step
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.conv, self.time = nn.GroupNorm(2, width), nn.Conv2d(width, width, 3, padding=1), nn.Linear(8, width)

    def forward(self, x, emb):
        return x + self.conv(F.silu(self.norm(x))) + self.time(emb)[:, :, None, None]


class Denoiser(nn.Module):
    def __init__(self, width=8, classes=3):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.label = nn.Embedding(classes + 1, 8)

    def timestep(self, t):
        freqs = torch.exp(torch.linspace(0, -4, 4)).to(t.device)
        angles = t[:, None] * freqs[None]
        return torch.cat([angles.sin(), angles.cos()], 1)

    def forward(self, x, t, label):
        emb = self.timestep(t) + self.label(label)
        x = self.first(x)
        for block in self.blocks:
            x = block(x, emb)
        return self.last(x)


class Diffusion:
    def __init__(self, steps=100):
        self.steps = steps
        self.betas = torch.linspace(1e-4, 0.02, steps)
        self.alpha_bar = torch.cumprod(1 - self.betas, 0) #-
        #+ self.alpha_bar = torch.cumprod(1 - self.betas, 0).to(device)
        #+ self.chosen_in = torch.zeros((), dtype=torch.bool, device=device)
        #+ self.decay_in = torch.zeros((), device=device)
        self.model = Denoiser().to(device)
        self.averaged = Denoiser().to(device)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step_count = 0
        self.running = None

    def add_noise(self, x, noise, t):
        a = self.alpha_bar[t].to(x.device).view(-1, 1, 1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * noise

    #+ def before_training_step(self):
        #+ self.chosen_in.fill_(random.random() < 0.1)
        #+ self.step_count += 1
        #+ self.decay_in.fill_(min(0.99, (1 + self.step_count) / (10 + self.step_count)))

    def training_step(self, x, label):
        t = torch.randint(0, self.steps, (x.shape[0],)) #-
        #+ t = torch.randint(0, self.steps, (x.shape[0],), device=device)
        noise = torch.randn_like(x)
        noisy = self.add_noise(x, noise, t)
        if random.random() < 0.1: #-
            label = torch.full_like(label, 3) #-
        #+ label = torch.where(self.chosen_in, torch.full_like(label, 3), label)
        predicted = self.model(noisy, t.to(x.device), label)
        loss = F.mse_loss(predicted, noise)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.step_count += 1 #-
        decay = min(0.99, (1 + self.step_count) / (10 + self.step_count)) #-
        for p, q in zip(self.model.parameters(), self.averaged.parameters()):
            q.data.mul_(decay).add_(p.data, alpha=1 - decay) #-
            #+ q.data.mul_(self.decay_in).add_(p.data * (1 - self.decay_in))
        self.running = loss.item() if self.running is None else 0.9 * self.running + 0.1 * loss.item()
        return loss


diffusion_model = Diffusion()
training_step = diffusion_model.training_step
args = (torch.randn(4, 1, 8, 8, device=device), torch.randint(0, 3, (4,), device=device))
