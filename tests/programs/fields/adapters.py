# %% LoRA trained with AdamW -> train_step
class LoRALinear(nn.Module):
    def __init__(self, base, r=2, alpha=4, dropout=0.0):
        super().__init__()
        self.base, self.scaling, self.merged = base, alpha / r, False
        self.base.weight.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) * 0.02)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        self.dropout = nn.Dropout(dropout)
    def forward(self, x):
        out = self.base(x)
        if not self.merged:
            out = out + (self.dropout(x) @ self.lora_A.T @ self.lora_B.T) * self.scaling
        return out

model = nn.Sequential(LoRALinear(nn.Linear(6, 6)), nn.SiLU(), LoRALinear(nn.Linear(6, 3))).to(device)
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=1e-3, capturable=True)
args = (torch.randn(4, 6, device=device), torch.randint(0, 3, (4,), device=device))

def train_step(x, y):
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trainable, 1.0)
    optimizer.step()
    return loss.detach()
# %% LoRA merged for the time of a call -> infer
class Merged:
    def __init__(self, base, r=2):
        self.base, self.scaling = base, 0.5
        self.A, self.B = torch.randn(r, 5, device=device), torch.randn(5, r, device=device)
    def delta(self):
        return self.B @ self.A * self.scaling
    def merge(self):
        self.base.weight.data = self.base.weight.data + self.delta()  #- expect: parameter-rebound|stale-input
        #+ self.base.weight.data += self.delta()
    def unmerge(self):
        self.base.weight.data = self.base.weight.data - self.delta()  #- expect: parameter-rebound|stale-input
        #+ self.base.weight.data -= self.delta()

linear = nn.Linear(5, 5).to(device)
lora = Merged(linear)
args = (torch.randn(3, 5, device=device),)

@torch.no_grad()
def infer(x):
    lora.merge()
    y = linear(x)
    lora.unmerge()
    return y
# %% fake quantization whose observer is frozen later -> qat_forward
class FakeQuant(nn.Module):
    def __init__(self, freeze_at=6):
        super().__init__()
        self.register_buffer("amax", torch.zeros(()))
        self.seen_batches, self.freeze_at = 0, freeze_at  #-
        #+ self.freeze_at = freeze_at
        #+ self.register_buffer("seen_batches", torch.zeros((), dtype=torch.long))
    def forward(self, x):
        #+ observing = self.seen_batches < self.freeze_at
        #+ self.amax.copy_(torch.where(observing, torch.maximum(self.amax, x.detach().abs().max()), self.amax))
        #+ self.seen_batches.add_(observing)
        if self.training and self.seen_batches < self.freeze_at:  #- expect: branch-frozen
            self.amax = torch.maximum(self.amax, x.detach().abs().max())  #- expect: stale-input
            self.seen_batches += 1  #- expect: host-counter
        scale = self.amax.clamp(min=1e-8) / 127
        q = torch.clamp(torch.round(x / scale), -128, 127) * scale
        return x + (q - x).detach()

ignore = ("quant",)
quant, layer = FakeQuant().to(device).train(), nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device),)

def qat_forward(x):
    return layer(quant(x)).detach()
# %% scales of weight groups as a list -> quantize
weight = torch.randn(4, 16, device=device)
args = (torch.randn(2, 4, device=device),)

def quantize(x):
    groups = weight.split(4, dim=1)
    scales = [g.abs().max().item() / 7 for g in groups]  #- expect: sync-item
    scales = torch.tensor(scales, device=x.device)  #- expect: tensor-literal
    #+ scales = torch.stack([g.abs().max() / 7 for g in groups])
    q = torch.round(weight.view(4, 4, 4) / scales[None, :, None]).clamp(-8, 7)
    return x @ (q * scales[None, :, None]).view(4, 16)
# %% weight normalization by parametrization -> forward
net = nn.Sequential(
    nn.utils.parametrizations.weight_norm(nn.Linear(5, 7)), nn.GELU(), nn.utils.parametrizations.weight_norm(nn.Linear(7, 2))
).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
args = (torch.randn(4, 5, device=device), torch.randn(4, 2, device=device))

def forward(x, y):
    opt.zero_grad()
    loss = F.smooth_l1_loss(net(x), y)
    loss.backward()
    nn.utils.clip_grad_value_(net.parameters(), 0.5)
    opt.step()
    return loss.detach()
# %% adapters chosen by name -> forward
from dataclasses import dataclass

@dataclass
class AdapterConfig:
    names: tuple = ("en", "de")
    hidden: int = 3
    scale: float = 0.7

class WithAdapters(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.active = config, config.names[0]
        self.body = nn.Linear(6, 6)
        self.adapters = nn.ModuleDict({n: nn.Sequential(nn.Linear(6, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 6)) for n in config.names})
    def forward(self, x):
        h = self.body(x)
        return h + self.config.scale * self.adapters[self.active](h)

model = WithAdapters(AdapterConfig()).to(device)
args = (torch.randn(2, 6, device=device),)

def forward(x):
    with torch.no_grad():
        return model(x)
