# %% a denoiser of speech that masks a spectrum and mixes its noise at a random level -> step
class MaskNet(nn.Module):
    def __init__(self, n_fft=32, hop=8, hidden=24):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.window = torch.hann_window(n_fft)
        self.rnn = nn.GRU(n_fft // 2 + 1, hidden, batch_first=True)
        self.mask = nn.Linear(hidden, n_fft // 2 + 1)

    def forward(self, wave):
        window = self.window.to(wave.device)
        spec = torch.stft(wave, self.n_fft, self.hop, window=window, return_complex=True)
        magnitude = spec.abs().transpose(1, 2)
        hidden, _ = self.rnn(torch.log1p(magnitude))
        mask = torch.sigmoid(self.mask(hidden)).transpose(1, 2)
        return torch.istft(spec * mask, self.n_fft, self.hop, window=window, length=wave.shape[-1])


def si_snr(estimate, target, eps=1e-8):
    target = target - target.mean(-1, keepdim=True)
    estimate = estimate - estimate.mean(-1, keepdim=True)
    scale = (estimate * target).sum(-1, keepdim=True) / (target.pow(2).sum(-1, keepdim=True) + eps)
    noise = estimate - scale * target
    return 10 * torch.log10((scale * target).pow(2).sum(-1) / (noise.pow(2).sum(-1) + eps) + eps)


denoiser = MaskNet().to(device)
optimizer = torch.optim.Adam(denoiser.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
best = -1e9
history = []


def step(clean, noise):
    global best
    snr_db = random.uniform(-5, 15)
    gain = 10 ** (-snr_db / 20)
    noisy = clean + gain * noise
    peak = noisy.abs().max()
    if peak > 1:
        noisy, clean = noisy / peak, clean / peak
    estimate = denoiser(noisy)
    snr = si_snr(estimate, clean).mean()
    loss = -snr + F.l1_loss(estimate, clean)
    optimizer.zero_grad()
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(denoiser.parameters(), 5.0)
    optimizer.step()
    scheduler.step()
    if snr.item() > best:
        best = snr.item()
    history.append((loss.item(), grad_norm.item(), scheduler.get_last_lr()[0]))
    return loss


args = (torch.randn(2, 128, device=device) * 0.3, torch.randn(2, 128, device=device) * 0.3)
