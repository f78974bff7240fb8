# %% a diffusion step whose scheduler keeps its tables on the CPU -> denoise
class TimeEmbedding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, t):
        half = self.width // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half) / half).to(t.device)
        angles = t[:, None].float() * freqs[None]
        return torch.cat([angles.sin(), angles.cos()], dim=1)


class UNet(nn.Module):
    def __init__(self, channels=4, width=8):
        super().__init__()
        time = [TimeEmbedding(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)]
        self.embed = nn.Sequential(*time)
        self.down = nn.Conv2d(channels, width, 3, padding=1)
        self.mid = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(2, width)
        self.up = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x, t):
        h = self.down(x) + self.embed(t)[:, :, None, None]
        h = h + F.silu(self.norm(self.mid(h)))
        return self.up(h)


class Scheduler:
    def __init__(self, steps=1000):
        betas = torch.linspace(1e-4, 0.02, steps)
        self.alphas_cumprod = torch.cumprod(1.0 - betas, dim=0) #-
        #+ self.alphas_cumprod = torch.cumprod(1.0 - betas, dim=0).to(device)
        #+ self.one = torch.ones((), device=device)
        self.stride = 100

    def step(self, noise, t, sample):
        prev_t = t - self.stride
        alpha = self.alphas_cumprod[t] #-
        alpha_prev = self.alphas_cumprod[prev_t] if prev_t >= 0 else torch.tensor(1.0) #-
        #+ alpha = self.alphas_cumprod[t.reshape(1)][0]
        #+ alpha_prev = torch.where(prev_t >= 0, self.alphas_cumprod[prev_t.reshape(1)][0], self.one)
        pred = (sample - (1 - alpha) ** 0.5 * noise) / alpha**0.5
        return alpha_prev**0.5 * pred.clamp(-1, 1) + (1 - alpha_prev) ** 0.5 * noise


unet = UNet().to(device).eval()
scheduler = Scheduler()


@torch.no_grad()
def denoise(sample, timestep):
    noise = unet(sample, timestep.expand(sample.shape[0]))
    sample = scheduler.step(noise, timestep.item(), sample) #-
    #+ sample = scheduler.step(noise, timestep, sample)
    assert not torch.isnan(sample).any(), "diverged"
    print("step", timestep.item(), "std", sample.std().item())
    return sample


args = (torch.randn(2, 4, 8, 8, device=device), torch.tensor(500, device=device))
