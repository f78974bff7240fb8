# %% edges of an adjacency matrix -> forward
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(5, 4, device=device), torch.rand(5, 5, device=device).gt(0.6).float())

@torch.no_grad()
def forward(x, adj):
    h = lin(x)
    row, col = adj.nonzero().t()  #- expect: dynamic-shape
    return torch.zeros_like(h).index_add_(0, row, h[col])  #- may: size-frozen
    #+ return (adj != 0).float() @ h
# %% scatter whose size is the largest index -> forward
num_nodes = 6
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(9, 4, device=device), torch.tensor([0, 1, 2, 3, 4, 5, 0, 2, 5], device=device))
def feed(i):
    index = torch.tensor([0, 1, 2, 3, 4, 5, 0, 2, 5]).roll(i)
    return torch.randn(9, 4, generator=torch.Generator().manual_seed(i)).to(device), index.to(device)

@torch.no_grad()
def forward(src, index):
    dim_size = int(index.max()) + 1  #- expect: sync-item
    out = torch.zeros(dim_size, src.size(1), device=src.device)  #- may: size-frozen
    #+ out = torch.zeros(num_nodes, src.size(1), device=src.device)
    return out.index_add_(0, index, lin(src))
# %% a batch vector from counts -> readout
args = (torch.randn(6, 4, device=device), torch.tensor([1, 2, 3], device=device))
def feed(i):
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([1, 2, 3]).roll(i).to(device)

def readout(x, num_atoms):
    batch = torch.repeat_interleave(num_atoms)  #- expect: hidden-size|dynamic-shape
    #+ batch = torch.searchsorted(num_atoms.cumsum(0), torch.arange(x.size(0), device=x.device), right=True)
    return torch.zeros(3, 4, device=x.device).index_add_(0, batch, x)
# %% remove self-loops -> conv
weight = nn.Parameter(torch.randn(4, 4).to(device))
args = (torch.randn(5, 4, device=device), torch.randint(0, 5, (2, 12), device=device))

@torch.no_grad()
def conv(x, edge_index):
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]  #- expect: dynamic-shape
    row, col = edge_index
    message = (x @ weight)[col]
    #+ message = message * (row != col)[:, None]
    return torch.zeros_like(x).index_add_(0, row, message)
# %% an equivariant layer -> layer
class EGNN(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * dim + 1, dim), nn.SiLU())
        self.coord, self.node = nn.Linear(dim, 1), nn.Linear(2 * dim, dim)
    def forward(self, h, pos, edge_index):
        row, col = edge_index
        diff = pos[row] - pos[col]
        m = self.edge(torch.cat([h[row], h[col], diff.square().sum(-1, keepdim=True)], -1))
        pos = pos.index_add(0, row, diff * self.coord(m).tanh())
        return h + self.node(torch.cat([h, torch.zeros_like(h).index_add_(0, row, m)], -1)), pos

egnn = EGNN().to(device)
args = (torch.randn(5, 4, device=device), torch.randn(5, 3, device=device), torch.randint(0, 5, (2, 10), device=device))

@torch.no_grad()
def layer(h, pos, edge_index):
    return egnn(h, pos, edge_index)
# %% energies with a smooth cutoff, and forces -> energy_and_forces
centers = torch.linspace(0, 5, 8).to(device)
net = nn.Sequential(nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 1)).to(device)
args = (torch.randn(5, 3, device=device),)
off = ~torch.eye(5, dtype=torch.bool).to(device)

def energy_and_forces(positions):
    positions = positions.detach().requires_grad_(True)
    d = (positions[:, None] - positions[None]).square().sum(-1).add(1e-6).sqrt()
    smear = torch.exp(-10.0 * (d[..., None] - centers) ** 2)
    cutoff = 0.5 * (torch.cos(d * math.pi / 5.0) + 1.0) * (d < 5.0) * off
    energy = (net(smear).squeeze(-1) * cutoff).sum()
    (gradient,) = torch.autograd.grad(energy, positions)
    return energy.detach(), -gradient
# %% a dense batch as large as the largest graph -> to_dense
counts_max = 3
args = (torch.randn(6, 4, device=device), torch.tensor([0, 1, 1, 2, 2, 2], device=device))
def feed(i):
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([0, 1, 1, 2, 2, 2]).to(device)

def to_dense(x, batch):
    counts = torch.zeros(3, dtype=torch.long, device=x.device).scatter_add_(0, batch, torch.ones_like(batch))
    start = counts.cumsum(0) - counts
    max_nodes = int(counts.max())  #- expect: sync-item
    #+ max_nodes = counts_max
    at = torch.arange(x.size(0), device=x.device) - start[batch]
    out = torch.zeros(3, max_nodes, x.size(1), device=x.device)  # may: size-frozen
    out[batch, at] = x
    return out
# %% merge duplicate edges -> coalesce
args = (torch.randint(0, 4, (2, 10), device=device), torch.randn(10, device=device))
ignore = {"result"}

def coalesce(edge_index, weight):
    ids = edge_index[0] * 4 + edge_index[1]
    unique, inverse = torch.unique(ids, return_inverse=True)  #- expect: dynamic-shape
    return torch.zeros(unique.numel(), device=weight.device).index_add_(0, inverse, weight)  #- may: size-frozen
    #+ return torch.zeros(16, device=weight.device).index_add_(0, ids, weight)
# %% a virtual node and a jumping connection -> forward
layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
head = nn.Linear(12, 2).to(device)
args = (torch.randn(6, 4, device=device), torch.randint(0, 6, (2, 14), device=device), torch.tensor([0, 0, 0, 1, 1, 1], device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    return torch.randn(6, 4, generator=g).to(device), torch.randint(0, 6, (2, 14), generator=g).to(device), torch.tensor([0, 0, 0, 1, 1, 1]).to(device)

@torch.no_grad()
def forward(x, edge_index, batch):
    outs, virtual = [], x.new_zeros(2, 4)
    for layer in layers:
        x = x + virtual[batch]
        x = layer(x.index_add(0, edge_index[1], x[edge_index[0]])).relu()
        virtual = virtual.index_add(0, batch, x)
        outs.append(x)
    return head(torch.cat(outs, dim=-1))
