# %% hierarchical sampling of a radiance field (random) -> sample_pdf
args = (torch.linspace(0, 1, 7, device=device).expand(4, 7).contiguous(), torch.rand(4, 6, device=device))

def sample_pdf(bins, weights):
    weights = weights + 1e-5
    pdf = weights / weights.sum(-1, keepdim=True)
    cdf = torch.cumsum(pdf, -1)
    cdf = torch.cat([torch.zeros_like(cdf[..., :1]), cdf], -1)
    u = torch.rand(list(cdf.shape[:-1]) + [5])  #-
    u = u.to(device).contiguous()  #- expect: copy-to-gpu
    #+ u = torch.rand(list(cdf.shape[:-1]) + [5], device=device)
    inds = torch.searchsorted(cdf, u, right=True)
    below, above = torch.max(torch.zeros_like(inds - 1), inds - 1), torch.min((cdf.shape[-1] - 1) * torch.ones_like(inds), inds)
    g = torch.stack([below, above], -1)
    shape = [g.shape[0], g.shape[1], cdf.shape[-1]]
    cdf_g = torch.gather(cdf.unsqueeze(1).expand(shape), 2, g)
    bins_g = torch.gather(bins.unsqueeze(1).expand(shape), 2, g)
    denom = cdf_g[..., 1] - cdf_g[..., 0]
    denom = torch.where(denom < 1e-5, torch.ones_like(denom), denom)
    return bins_g[..., 0] + (u - cdf_g[..., 0]) / denom * (bins_g[..., 1] - bins_g[..., 0])
# %% volume rendering with a white background, clean -> raw2outputs
white_bkgd = True
args = (torch.randn(4, 6, 4, device=device), torch.linspace(2, 6, 6, device=device).expand(4, 6).contiguous(), torch.randn(4, 3, device=device))

def raw2outputs(raw, z_vals, rays_d):
    dists = z_vals[..., 1:] - z_vals[..., :-1]
    dists = torch.cat([dists, torch.full_like(dists[..., :1], 1e10)], -1) * torch.norm(rays_d[..., None, :], dim=-1)
    rgb, alpha = torch.sigmoid(raw[..., :3]), 1.0 - torch.exp(-F.relu(raw[..., 3]) * dists)
    T = torch.cumprod(torch.cat([torch.ones(alpha.shape[0], 1, device=alpha.device), 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * T
    rgb_map, acc = torch.sum(weights[..., None] * rgb, -2), torch.sum(weights, -1)
    if white_bkgd:
        rgb_map = rgb_map + (1.0 - acc[..., None])
    return rgb_map, acc
# %% the same with a far distance as a literal -> raw2outputs
args = (torch.randn(4, 6, device=device), torch.linspace(2, 6, 6, device=device).expand(4, 6).contiguous())

def raw2outputs(sigma, z_vals):
    dists = z_vals[..., 1:] - z_vals[..., :-1]
    dists = torch.cat([dists, torch.tensor([1e10], device=device).expand(dists[..., :1].shape)], -1)  #- expect: tensor-literal
    #+ dists = torch.cat([dists, torch.full_like(dists[..., :1], 1e10)], -1)
    return 1.0 - torch.exp(-F.relu(sigma) * dists)
# %% PSNR and a decayed learning rate in the step -> train_iter
model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, capturable=True)  #-
#+ optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(5e-4, device=device), capturable=True)
global_step, psnrs, lrate, decay_steps = 0, [], 5e-4, 100
img2mse = lambda x, y: torch.mean((x - y) ** 2)
mse2psnr = lambda x: -10.0 * torch.log(x) / torch.log(torch.Tensor([10.0]).to(device))  #- expect: copy-to-gpu|tensor-literal
#+ mse2psnr = lambda x: -10.0 * torch.log10(x)
args = (torch.randn(6, 3, device=device), torch.rand(6, 3, device=device))

def train_iter(pts, target):
    global global_step  #-
    optimizer.zero_grad()
    loss = img2mse(model(pts), target)
    psnr = mse2psnr(loss)
    loss.backward()
    optimizer.step()  # expect: learning-rate-frozen
    new_lrate = lrate * (0.1 ** (global_step / decay_steps))  #-
    for param_group in optimizer.param_groups:  #-
        param_group["lr"] = new_lrate  #- may: learning-rate-frozen host-counter scalar-frozen
    psnrs.append(psnr.item())  #- expect: sync-item may: host-counter
    global_step += 1  #- expect: host-counter
    return loss.detach()  #-
    #+ return loss.detach(), psnr.detach()
#+ def after(out, i):
#+     global global_step
#+     for param_group in optimizer.param_groups:
#+         param_group["lr"].fill_(lrate * (0.1 ** (global_step / decay_steps)))
#+     psnrs.append(out[1].item())
#+     global_step += 1
def seen(out):
    return out[0] if isinstance(out, tuple) else out
# %% occupancy grid skips empty cells -> query
grid = (torch.arange(64) % 2 == 0).to(device)
field_net = nn.Linear(3, 4).to(device)
args = (torch.rand(10, 3, device=device),)

@torch.no_grad()
def query(xyz):
    idx = (xyz * 4).long().clamp(0, 3)
    flat = idx[:, 0] * 16 + idx[:, 1] * 4 + idx[:, 2]
    occupied = grid[flat]
    out = torch.zeros(xyz.shape[0], 4, device=xyz.device)
    if occupied.any():  #- expect: data-dependent-branch
        out[occupied] = field_net(xyz[occupied])  #- expect: dynamic-shape mask-assignment
    #+ out = torch.where(occupied[:, None], field_net(xyz), out)
    return out
# %% progressive frequencies opened by the step -> encode
class FreqMask(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.n, self.it = n, 0
        self.register_buffer("bands", 2.0 ** torch.arange(n))
        #+ self.register_buffer("step", torch.zeros(()))
    def forward(self, x):
        self.it += 1  #- expect: host-counter
        alpha = self.n * self.it / 20  #-
        k = torch.arange(self.n, device=x.device)
        w = (1 - torch.cos((alpha - k).clamp(0, 1) * math.pi)) / 2  #- expect: scalar-frozen
        #+ self.step += 1
        #+ w = (1 - torch.cos((self.n * self.step / 20 - k).clamp(0, 1) * math.pi)) / 2
        return torch.sin(x[..., None] * self.bands) * w

enc = FreqMask().to(device)
args = (torch.randn(3, 2, device=device),)
ignore = {"enc"}

def encode(x):
    return enc(x)
# %% a hash grid of features, clean -> encode
table = nn.Embedding(64, 2).to(device)
primes = torch.tensor([1, 2654435761, 805459861]).to(device)
args = (torch.rand(5, 3, device=device),)

@torch.no_grad()
def encode(x):
    out = []
    for res in (4, 8):
        cell = (x * res).long()
        key = (cell * primes).sum(-1) % 64
        frac = x * res - cell
        out.append(table(key) * frac.mean(-1, keepdim=True))
    return torch.cat(out, -1)
# %% gaussians sorted by depth and culled -> rasterize
args = (torch.randn(8, 3, device=device), torch.rand(8, device=device), torch.rand(8, 3, device=device))

def rasterize(means, opacity, color):
    visible = means[:, 2] > -0.5
    means, opacity, color = means[visible], opacity[visible], color[visible]  #- expect: dynamic-shape
    #+ opacity = opacity * visible
    order = torch.argsort(means[:, 2], stable=True)
    #+ order = torch.argsort(torch.where(visible, means[:, 2], torch.full_like(means[:, 2], 1e9)), stable=True)
    a = opacity[order]
    T = torch.cumprod(torch.cat([torch.ones(1, device=a.device), 1 - a]), 0)[:-1]
    return ((T * a)[:, None] * color[order]).sum(0)
# %% densify by gradient threshold -> densify
xyz_grad, denom = torch.zeros(6, 1, device=device), torch.zeros(6, 1, device=device)
args = (torch.randn(6, 1, device=device), torch.tensor([True, False, True, True, False, True], device=device))

def densify(grad, visible):
    xyz_grad[visible] += grad[visible].norm(dim=-1, keepdim=True)  #- expect: dynamic-shape mask-assignment
    denom[visible] += 1  #- expect: dynamic-shape mask-assignment
    #+ xyz_grad.add_(grad.norm(dim=-1, keepdim=True) * visible[:, None])
    #+ denom.add_(visible[:, None])
    return xyz_grad / denom.clamp(min=1)
# %% a pixel batch drawn by numpy.random.choice (random) -> ray_batch
image = torch.rand(36, 3).to(device)
rays = torch.randn(36, 3).to(device)
field_net = nn.Linear(3, 3).to(device)
args = (torch.ones(1, device=device),)

@torch.no_grad()
def ray_batch(scale):
    select = np.random.choice(36, size=[8], replace=False)  #- may: host-random
    target = image[select]  #- expect: cpu-index may: host-random
    pred = field_net(rays[select])  #- expect: cpu-index may: host-random
    #+ select = torch.randperm(36, device=device)[:8]
    #+ target, pred = image[select], field_net(rays[select])
    return (pred * scale - target).square().mean()
# %% surface points by bisection with a fixed number of rounds, clean -> intersect
sdf = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 1)).to(device)
args = (torch.randn(5, 3, device=device), torch.randn(5, 3, device=device))

@torch.no_grad()
def intersect(o, d):
    lo, hi = torch.zeros(5, 1, device=o.device), torch.full((5, 1), 4.0, device=o.device)
    for _ in range(6):
        mid = (lo + hi) / 2
        inside = sdf(o + mid * d) < 0
        lo, hi = torch.where(inside, lo, mid), torch.where(inside, mid, hi)
    return o + (lo + hi) / 2 * d
# %% sphere tracing until every ray has arrived -> trace
args = (torch.randn(5, 3, device=device) * 0.1, F.normalize(torch.randn(5, 3, device=device), dim=-1))

def trace(o, d):
    t = torch.zeros(5, 1, device=o.device)
    for i in range(30):
        dist = 1.0 - (o + t * d).norm(dim=-1, keepdim=True)
        t = t + dist
        if (dist.abs() < 1e-5).all():  #- expect: data-dependent-branch
            break  #-
    return o + t * d
