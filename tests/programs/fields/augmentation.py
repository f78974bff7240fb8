# %% CutMix (random) -> cutmix
model = nn.Conv2d(3, 2, 3, padding=1).to(device)
args = (torch.rand(4, 3, 8, 8, device=device),)

@torch.no_grad()
def cutmix(x):
    lam = np.random.beta(1.0, 1.0)  #-
    side = int(8 * math.sqrt(1 - lam))  #-
    cy, cx = np.random.randint(8), np.random.randint(8)  #-
    y1, y2, x1, x2 = max(cy - side // 2, 0), min(cy + side // 2, 8), max(cx - side // 2, 0), min(cx + side // 2, 8)  #-
    mixed = x.clone()  #-
    mixed[:, :, y1:y2, x1:x2] = x.flip(0)[:, :, y1:y2, x1:x2]  #- expect: size-frozen|host-random
    #+ lam, centre = torch.rand((), device=device), torch.randint(0, 8, (2,), device=device)
    #+ half, at = 4 * (1 - lam).sqrt(), torch.arange(8, device=device)
    #+ inside = ((at - centre[0]).abs() < half)[:, None] & ((at - centre[1]).abs() < half)[None, :]
    #+ mixed = torch.where(inside, x.flip(0), x)
    return model(mixed)
# %% random erasing with a probability (random) -> erase
args = (torch.rand(4, 3, 6, 6, device=device),)

def erase(x, p=0.5):
    #+ erased = x.clone()
    #+ erased[:, :, 1:4, 1:4] = 0.0
    #+ return torch.where(torch.rand((), device=device) > p, x, erased)
    if random.random() > p:  #- expect: branch-frozen|host-random
        return x  #-
    x = x.clone()  #-
    x[:, :, 1:4, 1:4] = 0.0  #-
    return x  #-
# %% mean and deviation as a constant tensor in forward -> forward
mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
#+ mean_t, std_t = torch.tensor(mean).to(device), torch.tensor(std).to(device)
net = nn.Conv2d(3, 4, 3).to(device)
args = (torch.rand(2, 3, 6, 6, device=device),)

@torch.inference_mode()
def forward(img):
    m = torch.tensor(mean, device=img.device).view(1, 3, 1, 1)  #- expect: tensor-literal
    s = torch.as_tensor(std, device=img.device).view(1, 3, 1, 1)  #- expect: tensor-literal
    #+ m, s = mean_t.view(1, 3, 1, 1), std_t.view(1, 3, 1, 1)
    return net((img - m) / s)
# %% flips and brightness on the device -> augment
scale = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1).to(device)
args = (torch.rand(4, 3, 6, 6, device=device),)

def augment(x):
    flip = torch.rand(x.size(0), 1, 1, 1, device=x.device) < 0.5
    x = torch.where(flip, x.flip(-1), x)
    brightness = 1 + 0.2 * (torch.rand(x.size(0), 1, 1, 1, device=x.device) - 0.5)
    return (x * brightness).clamp(0, 1) / scale
# %% rotate by an angle that Python draws (random) -> rotate
args = (torch.rand(2, 1, 6, 6, device=device),)

def rotate(x):
    angle = random.uniform(-0.2, 0.2)  #-
    c, s = math.cos(angle), math.sin(angle)  #-
    theta = torch.tensor([[c, -s, 0.0], [s, c, 0.0]], device=x.device).expand(x.size(0), 2, 3)  #- expect: tensor-literal may: host-random
    #+ angle = (torch.rand((), device=x.device) - 0.5) * 0.4
    #+ c, s, zero = angle.cos(), angle.sin(), torch.zeros((), device=x.device)
    #+ theta = torch.stack([c, -s, zero, s, c, zero]).view(1, 2, 3).expand(x.size(0), 2, 3)
    return F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=False), align_corners=False)
# %% a multiple of eight by padding -> forward
net = nn.Conv2d(1, 1, 3, padding=1).to(device)
args = (torch.rand(1, 1, 6, 7, device=device),)

@torch.no_grad()
def forward(x):
    h, w = x.shape[-2:]
    pad_h, pad_w = (-h) % 8, (-w) % 8
    if pad_h or pad_w:
        x = F.pad(x, (0, pad_w, 0, pad_h), mode="constant", value=0.0)
    return net(x)[..., :h, :w]
# %% several scales, one at a time (random) -> forward
net = nn.Conv2d(1, 2, 3).to(device)
args = (torch.rand(1, 1, 8, 8, device=device),)

@torch.no_grad()
def forward(x):
    size = random.choice([4, 6, 8])  #-
    #+ size = 6
    x = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)  #- expect: size-frozen|host-random|scalar-frozen
    #+ x = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
    return net(x).mean((2, 3))
# %% soft targets by one-hot -> loss_fn
model = nn.Linear(4, 3).to(device)
args = (torch.randn(6, 4, device=device), torch.tensor([0, 1, 2, 0, 1, 2], device=device))
def feed(i):
    generator = torch.Generator().manual_seed(i)
    return torch.randn(6, 4, generator=generator).to(device), torch.tensor([0, 1, 2, 0, 1, 2]).roll(i).to(device)

def loss_fn(x, y):
    targets = F.one_hot(y).float() * 0.9 + 0.1 / 3  #- expect: hidden-size|sync-item
    #+ targets = F.one_hot(y, num_classes=3).float() * 0.9 + 0.1 / 3
    return -(targets * model(x).log_softmax(-1)).sum(-1).mean()
# %% mixup with a distribution of torch's on the CPU (random) -> mixup
beta = torch.distributions.Beta(0.4, 0.4)  #-
#+ beta = torch.distributions.Beta(torch.full((), 0.4, device=device), torch.full((), 0.4, device=device), validate_args=False)
args = (torch.randn(4, 3, device=device),)

def mixup(x):
    lam = beta.sample()
    return lam * x + (1 - lam) * x.flip(0)  # expect: cpu-scalar-frozen|host-random
    #+ return lam * x + (1 - lam) * x.flip(0)
# %% shuffle with a permutation of the CPU (random) -> shuffle
model = nn.Linear(4, 2).to(device)
args = (torch.randn(6, 4, device=device),)

@torch.no_grad()
def shuffle(x):
    perm = torch.randperm(x.size(0))  #-
    x = x[perm]  #- expect: cpu-index|copy-to-gpu may: host-random
    #+ x = x[torch.rand(x.size(0), device=x.device).argsort()]
    return model(x)
# %% a batch cut from a long text on the device (random) -> get_batch
data = torch.randint(0, 16, (64,), device=device)
block_size, batch_size = 8, 4
#+ offsets = torch.arange(block_size, device=device)
embedding = nn.Embedding(16, 4).to(device)
args = ()

@torch.no_grad()
def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))  #-
    x = torch.stack([data[i : i + block_size] for i in ix])  #- expect: size-frozen|host-random
    #+ ix = torch.randint(len(data) - block_size, (batch_size,), device=device)
    #+ x = data[ix[:, None] + offsets]
    return embedding(x)
# %% tokens masked by bernoulli draws -> mask_tokens
mask_token_id = 3
embedding = nn.Embedding(16, 4).to(device)
args = (torch.randint(4, 16, (2, 8), device=device),)

@torch.no_grad()
def mask_tokens(inputs):
    labels = inputs.clone()
    probability = torch.full(labels.shape, 0.15, device=labels.device)
    masked = torch.bernoulli(probability).bool()
    labels[~masked] = -100
    inputs = inputs.masked_fill(masked, mask_token_id)
    return embedding(inputs), labels
