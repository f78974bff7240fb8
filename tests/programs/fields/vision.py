# %% GAN with two optimizers -> gan_step
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6)).to(device)
D = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
g_opt = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999), capturable=True)
d_opt = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999), capturable=True)
bce = nn.BCEWithLogitsLoss()
args = (torch.randn(4, 6, device=device),)
def gan_step(real):
    z = torch.randn(real.size(0), 4, device=real.device)
    fake = G(z)
    d_loss = bce(D(real), torch.ones(4, 1, device=device)) + bce(D(fake.detach()), torch.zeros(4, 1, device=device))
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()
    g_loss = bce(D(fake), torch.ones(4, 1, device=device))
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
    return d_loss.detach(), g_loss.detach()
# %% a random horizontal flip of the batch (random) -> augment_and_train
model = nn.Conv2d(3, 2, 3, padding=1).to(device)
args = (torch.rand(2, 3, 4, 4, device=device),)
def augment_and_train(img):
    #+ img = torch.where(torch.rand((), device=img.device) < 0.5, img.flip(-1), img)
    if torch.rand(1) < 0.5:  #- expect: branch-frozen|host-random
        img = img.flip(-1)  #-
    return model(img).mean((2, 3)).detach()
# %% a random crop (random) -> crop
args = (torch.rand(2, 3, 8, 8, device=device),)
def crop(img):
    top = random.randint(0, 4)  #-
    left = random.randint(0, 4)  #-
    return img[:, :, top : top + 4, left : left + 4] * 1.0  #- expect: size-frozen|host-random
    #+ rows = torch.randint(0, 5, (1,), device=img.device) + torch.arange(4, device=img.device)
    #+ cols = torch.randint(0, 5, (1,), device=img.device) + torch.arange(4, device=img.device)
    #+ return img.index_select(2, rows).index_select(3, cols)
# %% colour jitter on the device -> jitter
args = (torch.rand(2, 3, 4, 4, device=device),)
def jitter(img):
    factor = torch.empty(img.size(0), 1, 1, 1, device=img.device).uniform_(0.6, 1.4)
    gray = img.mean(1, keepdim=True)
    return (factor * img + (1 - factor) * gray).clamp(0, 1)
# %% VAE with the KL weight annealed -> vae_step
enc, dec = nn.Linear(6, 8).to(device), nn.Linear(4, 6).to(device)
opt = torch.optim.SGD([*enc.parameters(), *dec.parameters()], lr=1e-2)
step_count = 0
args = (torch.randn(4, 6, device=device),)
#+ beta = torch.tensor(0.1, device=device)
def vae_step(x):
    global step_count  #-
    step_count += 1  #- expect: host-counter
    beta = min(1.0, step_count / 10)  #-
    mu, logvar = enc(x).chunk(2, dim=1)
    z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
    kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    loss = F.mse_loss(dec(z), x) + beta * kld  # expect: scalar-frozen
    opt.zero_grad()
    loss.backward()  # may: scalar-frozen
    opt.step()
    return loss.detach()
#+
#+ def after(loss, i):
#+     global step_count
#+     step_count += 1
#+     beta.fill_(min(1.0, (step_count + 1) / 10))
# %% MoCo's queue with a pointer -> contrast
queue = F.normalize(torch.randn(16, 4), dim=1).to(device)
ptr = 0  #-
#+ ptr = torch.zeros(1, dtype=torch.long, device=device)
enc = nn.Linear(6, 4).to(device)
args = (torch.randn(4, 6, device=device),)
ignore = {"ptr"}
@torch.no_grad()
def contrast(x):
    global ptr  #-
    k = F.normalize(enc(x), dim=1)
    logits = k @ queue.t()
    queue[ptr : ptr + 4] = k  #- expect: size-frozen|scalar-frozen|stale-input
    ptr = (ptr + 4) % 16  #- expect: host-counter
    #+ queue.index_copy_(0, ptr + torch.arange(4, device=x.device), k)
    #+ ptr.copy_((ptr + 4) % 16)
    return logits
# %% Hungarian matching on the CPU -> match
def assign(cost):  # a stand-in for scipy's linear_sum_assignment
    taken, out = set(), []
    for row in cost:
        best = min((j for j in range(len(row)) if j not in taken), key=lambda j: row[j])
        taken.add(best)
        out.append(best)
    return out
boxes_head = nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device), torch.randn(3, 4, device=device))
@torch.no_grad()
def match(queries, targets):
    pred = boxes_head(queries)
    cost = torch.cdist(pred, targets, p=1)
    indices = assign(cost.cpu().numpy())  #- expect: copy-to-cpu
    return F.l1_loss(pred, targets[indices])  #- expect: cpu-index
    #+ taken = torch.zeros(3, device=device)
    #+ picks = []
    #+ for row in cost:
    #+     pick = (row + taken).argmin()
    #+     taken = taken.scatter(0, pick[None], 1e9)
    #+     picks.append(pick)
    #+ return F.l1_loss(pred, targets[torch.stack(picks)])
# %% segmentation loss that ignores unlabelled pixels -> seg_loss
net = nn.Conv2d(3, 4, 1).to(device)
args = (torch.randn(1, 3, 4, 4, device=device), torch.randint(-1, 4, (1, 4, 4), device=device))
def seg_loss(img, mask):
    logits = net(img).permute(0, 2, 3, 1)
    valid = mask != -1
    return F.cross_entropy(logits[valid], mask[valid]).detach()  #- expect: dynamic-shape
    #+ return F.cross_entropy(logits.flatten(0, 2), mask.flatten(), ignore_index=-1).detach()
# %% paint the masked pixels with noise -> inpaint
args = (torch.rand(1, 1, 4, 4, device=device), torch.rand(1, 1, 4, 4, device=device) > 0.5, torch.rand(1, 1, 4, 4, device=device))
def inpaint(img, mask, noise):
    out = img.clone()
    out[mask] = noise[mask]  #- expect: mask-assignment|dynamic-shape may: mask-assignment dynamic-shape
    #+ out = torch.where(mask, noise, out)
    return out
# %% a histogram with bounds -> equalize
args = (torch.rand(1, 8, 8, device=device),)
def equalize(img):
    hist = torch.histc(img, bins=8, min=0, max=1)
    cdf = hist.cumsum(0) / img.numel()
    return cdf[(img * 7).long()]
# %% a histogram whose bounds are found -> spread
args = (torch.rand(1, 8, 8, device=device),)
def spread(img):
    hist = torch.histc(img, bins=8)  #- expect: hidden-size
    #+ low, high = img.min(), img.max()
    #+ bins = ((img - low) / (high - low) * 8).long().clamp(0, 7).flatten()
    #+ hist = torch.zeros(8, device=img.device).index_add_(0, bins, torch.ones_like(bins, dtype=torch.float32))
    p = hist / hist.sum()
    return -(p * (p + 1e-9).log()).sum()
# %% batch normalization whose momentum is its own counter -> bn_step
bn = nn.BatchNorm1d(4, momentum=None).to(device)
args = (torch.randn(8, 4, device=device),)
def bn_step(x):
    return bn(x).detach()  #- expect: sync-item|scalar-frozen|counter-read
    #+ bn.num_batches_tracked.add_(1)
    #+ factor = 1.0 / bn.num_batches_tracked
    #+ with torch.no_grad():
    #+     bn.running_mean.lerp_(x.mean(0), factor)
    #+     bn.running_var.lerp_(x.var(0), factor)
    #+ return F.batch_norm(x, None, None, bn.weight, bn.bias, training=True, eps=bn.eps).detach()
# %% CTC loss with lengths on the device -> ctc_step
enc = nn.Linear(4, 5).to(device)
ctc = nn.CTCLoss(blank=0, zero_infinity=True)
args = (torch.randn(6, 2, 4, device=device), torch.tensor([[1, 2, 3], [2, 3, 4]], device=device))
ignore = {"enc"}
#+ def nll(logp, targets):
#+     ext = torch.zeros(targets.size(0), 2 * targets.size(1) + 1, dtype=torch.long, device=device)
#+     ext[:, 1::2] = targets
#+     emit = logp.gather(2, ext.expand(logp.size(0), -1, -1))
#+     skip = F.pad((ext[:, 2:] != ext[:, :-2]) & (ext[:, 2:] != 0), (2, 0))
#+     alpha = torch.full_like(emit[0], -1e30)
#+     alpha[:, :2] = emit[0, :, :2]
#+     for t in range(1, len(emit)):
#+         one = F.pad(alpha, (1, 0), value=-1e30)[:, :-1]
#+         two = F.pad(alpha, (2, 0), value=-1e30)[:, :-2].masked_fill(~skip, -1e30)
#+         alpha = torch.stack([alpha, one, two]).logsumexp(0) + emit[t]
#+     return -(alpha[:, -2:].logsumexp(1) / targets.size(1)).mean()
def feed(i):
    return torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([[1, 2, 3], [2, 3, 4]]).to(device)

def ctc_step(x, targets):
    logp = enc(x).log_softmax(-1)
    input_lengths = torch.full((2,), 6, dtype=torch.long, device=x.device)  #-
    target_lengths = torch.full((2,), 3, dtype=torch.long, device=x.device)  #-
    return ctc(logp, targets, input_lengths, target_lengths).detach()  #- expect: hidden-size|copy-to-cpu|ctc-loss
    #+ return nll(logp, targets).detach()
