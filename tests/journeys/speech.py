# %% a recognizer of words that masks its spectrogram, schedules its rate and logs -> step
class Features(nn.Module):
    def __init__(self, n_fft=32, bands=10):
        super().__init__()
        self.n_fft = n_fft
        self.bank = torch.rand(n_fft // 2 + 1, bands) #-
        #+ self.register_buffer("bank", torch.rand(n_fft // 2 + 1, bands))

    def forward(self, wave):
        window = torch.hann_window(self.n_fft).to(wave.device)
        frames = wave.unfold(1, self.n_fft, 16) * window
        power = torch.fft.rfft(frames).abs() ** 2
        return torch.log(power @ self.bank.to(wave.device) + 1e-6).transpose(1, 2)


#+ f0_in = torch.zeros((), dtype=torch.long, device=device)
#+ t0_in = torch.zeros((), dtype=torch.long, device=device)


#+ def before_step(bands=10, frames=15, most=4):
    #+ f0_in.fill_(random.randint(0, bands - most))
    #+ t0_in.fill_(random.randint(0, frames - most))


def spec_augment(spec, most=4):
    f0 = random.randint(0, spec.size(1) - most) #-
    t0 = random.randint(0, spec.size(2) - most) #-
    spec[:, f0 : f0 + most] = 0.0 #-
    spec[:, :, t0 : t0 + most] = 0.0 #-
    #+ at = torch.arange(spec.shape[1], device=spec.device).view(-1, *[1] * (spec.dim() - 2))
    #+ spec = torch.where((at >= f0_in) & (at < f0_in + most), 0.0, spec)
    #+ at = torch.arange(spec.shape[2], device=spec.device).view(-1, *[1] * (spec.dim() - 3))
    #+ spec = torch.where((at >= t0_in) & (at < t0_in + most), 0.0, spec)
    return spec


class Recognizer(nn.Module):
    def __init__(self, words=5, bands=10):
        super().__init__()
        self.features = Features(bands=bands)
        self.conv1, self.conv2 = nn.Conv1d(bands, 16, 3, padding=1), nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm1d(16)
        self.out = nn.Linear(16, words)

    def forward(self, wave):
        x = spec_augment(self.features(wave))
        x = F.relu(self.norm(self.conv1(x)))
        x = F.dropout(F.relu(self.conv2(x)), 0.1, self.training)
        return self.out(x.mean(-1))


class Writer:
    def __init__(self):
        self.scalars = {}

    def add_scalar(self, tag, value, step):
        self.scalars.setdefault(tag, []).append((step, float(value)))


model = Recognizer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5))
writer = Writer()
global_step = 0
confusion = torch.zeros(5, 5)


def step(wave, label):
    global global_step
    logits = model(wave)
    loss = F.cross_entropy(logits, label, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    total = sum(p.grad.norm() ** 2 for p in model.parameters() if p.grad is not None) ** 0.5
    optimizer.step()
    warmup.step()
    guess = logits.argmax(1)
    for g, l in zip(guess, label):
        confusion[l.item(), g.item()] += 1
    writer.add_scalar("loss", loss, global_step)
    writer.add_scalar("grad", total, global_step)
    writer.add_scalar("lr", optimizer.param_groups[0]["lr"], global_step)
    global_step += 1
    return loss


args = (torch.randn(4, 256, device=device), torch.randint(0, 5, (4,), device=device))
