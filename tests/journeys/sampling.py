# %% a sampler that guards itself with branches and a table on the CPU -> sample_step
class Denoiser(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, width))
        self.net = nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, width))

    def forward(self, x, t):
        frequencies = torch.tensor([1.0, 10.0, 100.0, 1000.0], device=x.device)
        emb = torch.sin(t.float().unsqueeze(-1) / frequencies)
        return self.net(x + self.time(emb))


model = Denoiser().to(device)
betas = torch.linspace(1e-4, 0.02, 50)
alphas = torch.cumprod(1 - betas, 0)
skipped = 0 #-
#+ skipped = torch.zeros((), dtype=torch.long, device=device)


def sample_step(x, t):
    """One step of a sampler, guarded against what blows up."""
    global skipped #-
    a = alphas[t.cpu()].to(device).unsqueeze(-1)
    noise = model(x, t)
    if torch.isnan(noise).any(): #-
        skipped += 1 #-
        noise = torch.zeros_like(noise) #-
    #+ bad = torch.isnan(noise).any()
    #+ skipped.add_(bad)
    #+ noise = torch.where(bad, torch.zeros_like(noise), noise)
    x0 = (x - (1 - a).sqrt() * noise) / a.sqrt()
    limit = x0.abs().max().item()
    if limit > 3.0:
        x0 = x0 * (3.0 / limit)
    assert torch.isfinite(x0).all(), "not finite"
    return a.sqrt() * x0 + (1 - a).sqrt() * noise


args = (torch.randn(4, 8, device=device), torch.randint(0, 50, (4,), device=device))
