# %% farthest point sampling (random) -> sample_points
args = (torch.rand(2, 12, 3, device=device),)

def sample_points(xyz, npoint=4):
    B, N, C = xyz.shape
    centroids = torch.zeros(B, npoint, dtype=torch.long, device=xyz.device)
    distance = torch.ones(B, N, device=xyz.device) * 1e10
    farthest = torch.randint(0, N, (B,), dtype=torch.long).to(xyz.device)  #- expect: copy-to-gpu|host-random may: host-random copy-to-gpu
    batch_indices = torch.arange(B, dtype=torch.long).to(xyz.device)  #- expect: copy-to-gpu
    #+ farthest = torch.randint(0, N, (B,), dtype=torch.long, device=xyz.device)
    #+ batch_indices = torch.arange(B, dtype=torch.long, device=xyz.device)
    for i in range(npoint):
        centroids[:, i] = farthest
        centroid = xyz[batch_indices, farthest, :].view(B, 1, 3)
        dist = torch.sum((xyz - centroid) ** 2, -1)
        mask = dist < distance
        distance[mask] = dist[mask]  #- expect: mask-assignment|dynamic-shape may: mask-assignment dynamic-shape
        #+ distance = torch.where(mask, dist, distance)
        farthest = torch.max(distance, -1)[1]
    return centroids
# %% volume rendering with stratified samples -> render
class Field(nn.Module):
    def __init__(self, bands=3):
        super().__init__()
        self.bands = bands
        self.net = nn.Sequential(nn.Linear(3 + 6 * bands, 16), nn.ReLU(), nn.Linear(16, 4))
    def encode(self, x):
        out = [x]
        for band in range(self.bands):
            out += [torch.sin(2.0**band * x), torch.cos(2.0**band * x)]
        return torch.cat(out, dim=-1)
    def forward(self, x):
        return self.net(self.encode(x))

field = Field().to(device)
args = (torch.randn(4, 3, device=device), torch.randn(4, 3, device=device))

@torch.no_grad()
def render(origins, directions, near=2.0, far=6.0, n=8):
    t = torch.linspace(0.0, 1.0, n, device=origins.device)
    z = (near * (1 - t) + far * t).expand(origins.size(0), n)
    mids = 0.5 * (z[..., 1:] + z[..., :-1])
    upper, lower = torch.cat([mids, z[..., -1:]], -1), torch.cat([z[..., :1], mids], -1)
    z = lower + (upper - lower) * torch.rand(z.shape, device=z.device)
    raw = field(origins[:, None] + directions[:, None] * z[..., None])
    rgb, sigma = torch.sigmoid(raw[..., :3]), F.relu(raw[..., 3])
    dists = torch.cat([z[..., 1:] - z[..., :-1], torch.full_like(z[..., :1], 1e10)], -1)
    alpha = 1.0 - torch.exp(-sigma * dists)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * trans
    return (weights[..., None] * rgb).sum(-2), (weights * z).sum(-1)
# %% rays resampled where the density is -> resample
args = (torch.linspace(0.0, 1.0, 7, device=device).repeat(3, 1), torch.rand(3, 6, device=device))

def feed(i):
    return torch.linspace(0.0, 1.0 + i, 7, device=device).repeat(3, 1), torch.linspace(0.1, 1.0, 6, device=device).repeat(3, 1) + i

def resample(bins, weights, n=5):
    pdf = (weights + 1e-5) / (weights + 1e-5).sum(-1, keepdim=True)
    cdf = torch.cumsum(pdf, -1)
    cdf = torch.cat([torch.zeros_like(cdf[..., :1]), cdf], -1)
    u = torch.linspace(0.0, 1.0, steps=n)
    u = u.expand(list(cdf.shape[:-1]) + [n]).to(bins.device).contiguous()  #- expect: copy-to-gpu
    #+ u = torch.linspace(0.0, 1.0, steps=n, device=bins.device).expand(list(cdf.shape[:-1]) + [n]).contiguous()
    inds = torch.searchsorted(cdf, u, right=True)
    below, above = (inds - 1).clamp(min=0), inds.clamp(max=cdf.shape[-1] - 1)
    cdf_b, cdf_a = cdf.gather(-1, below), cdf.gather(-1, above)
    bins_b, bins_a = bins.gather(-1, below), bins.gather(-1, above)
    denom = cdf_a - cdf_b
    denom = torch.where(denom < 1e-5, torch.ones_like(denom), denom)
    return bins_b + (u - cdf_b) / denom * (bins_a - bins_b)
# %% align two point sets -> register
args = (torch.randn(8, 2, device=device), torch.randn(8, 2, device=device))

def register(source, target):
    a, b = source - source.mean(0), target - target.mean(0)
    H = a.T @ b
    U, _, Vh = torch.linalg.svd(H)  #- expect: linalg-check|linalg-host
    R = Vh.T @ U.T  #-
    if torch.linalg.det(R) < 0:  #- expect: data-dependent-branch may: linalg-check linalg-host
        Vh = torch.stack([Vh[0], -Vh[1]])  #-
        R = Vh.T @ U.T  #-
    #+ angle = torch.atan2(H[0, 1] - H[1, 0], H[0, 0] + H[1, 1])
    #+ c, s = angle.cos(), angle.sin()
    #+ R = torch.stack([torch.stack([c, -s]), torch.stack([s, c])])
    return source @ R.T + (target.mean(0) - source.mean(0) @ R.T)
# %% meshes of different sizes in one batch -> normals
sizes = [3, 5, 4]
args = (torch.randn(12, 3, device=device),)

def normals(vertices):
    means = [part.mean(0, keepdim=True).expand_as(part) for part in torch.split(vertices, sizes)]
    centred = vertices - torch.cat(means)
    return F.normalize(centred, dim=-1)
# %% ragged sequences split by counts -> pooled
args = (torch.randn(9, 3, device=device), torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2], device=device))

def feed(i):
    return torch.randn(9, 3, generator=torch.Generator().manual_seed(i)).to(device), args[1]

def pooled(x, owner):
    _, counts = torch.unique_consecutive(owner, return_counts=True)  #- expect: dynamic-shape
    parts = torch.split(x, counts.tolist())  #- expect: copy-to-cpu may: size-frozen
    return torch.stack([part.mean(0) for part in parts])  #-
    #+ total = torch.zeros(3, 3, device=x.device).index_add_(0, owner, x)
    #+ return total / torch.zeros(3, device=x.device).index_add_(0, owner, torch.ones_like(x[:, 0]))[:, None]
# %% voxels counted in a dictionary -> occupied
grid = {}
args = (torch.rand(6, 3, device=device),)

def occupied(points):
    cells = (points * 4).long()
    for cell in cells.cpu().numpy():  #- expect: copy-to-cpu
        key = tuple(cell)  #-
        grid[key] = grid.get(key, 0) + 1  #- may: host-counter
    return cells
#+
#+ def after(cells, i):
#+     for cell in cells.cpu().numpy():
#+         grid[tuple(cell)] = grid.get(tuple(cell), 0) + 1
