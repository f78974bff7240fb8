# %% SpecAugment draws its bands in Python (random) -> augment
class SpecAugment(nn.Module):
    def __init__(self, freq_mask=4):
        super().__init__()
        self.freq_mask = freq_mask
    def forward(self, spec):
        spec = spec.clone()
        f = random.randint(1, self.freq_mask)  #-
        f0 = random.randint(0, spec.size(1) - f)  #-
        spec[:, f0:f0 + f, :] = 0  #- expect: size-frozen|host-random
        #+ f0 = (torch.rand(spec.size(0), 1, device=spec.device) * spec.size(1)).long()
        #+ bands = torch.arange(spec.size(1), device=spec.device)[None, :]
        #+ spec = spec.masked_fill(((bands >= f0) & (bands < f0 + 2))[:, :, None], 0.0)
        return spec

augment = SpecAugment()
args = (torch.rand(2, 12, 6, device=device),)
# %% a log-mel front end -> features
class LogMel(nn.Module):
    def __init__(self, n_fft=16, hop=4, n_mels=5):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("filters", torch.rand(n_mels, n_fft // 2 + 1))
    def forward(self, wave):
        frames = wave.unfold(-1, self.n_fft, self.hop) * self.window
        power = torch.fft.rfft(frames, dim=-1).abs().square()
        mel = torch.matmul(power, self.filters.t())
        return torch.log(torch.clamp(mel, min=1e-5))

features = LogMel().to(device)
args = (torch.randn(2, 64, device=device),)
# %% trim the silence -> trim
threshold = 0.1
args = (torch.rand(32, device=device),)

def trim(wave):
    energy = wave.abs()
    active = torch.nonzero(energy > threshold).flatten()  #- expect: dynamic-shape
    start, end = active[0], active[-1]  #-
    return wave[start : end + 1]  #- expect: tensor-bound|sync-item may: dynamic-shape sync-item
    #+ loud = energy > threshold
    #+ begun = loud.long().cumsum(0) > 0
    #+ not_over = loud.flip(0).long().cumsum(0).flip(0) > 0
    #+ return torch.where(begun & not_over, wave, 0.0)

def seen(out):
    return out.sum()
# %% greedy transducer decoding -> decode
torch.manual_seed(3)
emb, cell, joint = nn.Embedding(5, 6).to(device), nn.GRUCell(6, 6).to(device), nn.Linear(12, 5).to(device)
blank = 0
args = (torch.randn(4, 6, device=device),)

@torch.no_grad()
def decode(encoded):
    hyp, state = [blank], torch.zeros(1, 6, device=encoded.device)  #-
    #+ token, state, said = torch.zeros(1, dtype=torch.long, device=encoded.device), torch.zeros(1, 6, device=encoded.device), []
    for frame in encoded:
        token = torch.tensor([hyp[-1]], device=encoded.device)  #- expect: tensor-literal
        new = cell(emb(token), state)
        best = joint(torch.cat([frame[None], new], dim=-1)).argmax(-1)
        #+ spoken = best != blank
        #+ said.append(best)
        #+ token = torch.where(spoken, best, token)
        #+ state = torch.where(spoken[:, None], new, state)
        if best.item() != blank:  #- expect: sync-item|data-dependent-branch
            hyp.append(best.item())  #- expect: sync-item
            state = new  #-
    return hyp[1:]  #-
    #+ return torch.cat(said)

def seen(out):
    tokens = out.tolist() if isinstance(out, torch.Tensor) else out
    return [torch.tensor([token for token in tokens if token != blank])]
# %% a gain in decibels that stays on the CPU -> normalize
gain_db = torch.tensor(-20.0)  #-
#+ gain_db = torch.tensor(-20.0, device=device)
args = (torch.randn(2, 16, device=device),)

def normalize(wave):
    rms = wave.square().mean(-1, keepdim=True).sqrt()
    target = 10 ** (gain_db / 20)  # may: cpu-scalar-frozen
    return wave * (target / (rms + 1e-8))  # expect: cpu-scalar-frozen

def after(out, i):
    gain_db.add_(1.0)
# %% a vocoder's upsampling stack -> vocode
class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.ups = nn.ModuleList(nn.ConvTranspose1d(4, 4, 4, stride=2, padding=1) for _ in range(2))
        self.blocks = nn.ModuleList(nn.Conv1d(4, 4, 3, padding=2 ** i, dilation=2 ** i) for i in range(2))
        self.post = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 1, 7, padding=3))
    def forward(self, mel):
        x = mel
        for up, block in zip(self.ups, self.blocks):
            x = up(F.leaky_relu(x, 0.1))
            x = x + block(F.leaky_relu(x, 0.1))
        return torch.tanh(self.post(F.leaky_relu(x)))

generator = Stack().to(device)
args = (torch.randn(2, 4, 6, device=device),)

@torch.inference_mode()
def vocode(mel):
    return generator(mel).squeeze(1)
