# %% message passing with index_add -> gcn_layer
num_nodes = 6
lin = nn.Linear(4, 4, bias=False).to(device)
edge_index = torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]], device=device)
args = (torch.randn(num_nodes, 4, device=device),)

def gcn_layer(x):
    src, dst = edge_index
    deg = torch.zeros(num_nodes, device=x.device).index_add_(0, dst, torch.ones(dst.size(0), device=x.device))
    norm = deg.clamp(min=1).pow(-0.5)
    messages = lin(x)[src] * (norm[src] * norm[dst])[:, None]
    return torch.zeros_like(x).index_add_(0, dst, messages).relu()
# %% degrees by bincount -> mean_aggregate
edge_index = torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]], device=device)
args = (torch.randn(6, 4, device=device),)

def mean_aggregate(x):
    src, dst = edge_index
    out = torch.zeros_like(x).index_add_(0, dst, x[src])
    deg = torch.bincount(dst, minlength=6)  #- expect: hidden-size
    #+ deg = torch.zeros(6, dtype=torch.long, device=x.device).scatter_add_(0, dst, torch.ones_like(dst))
    return out / deg.clamp(min=1)[:, None]
# %% global pooling over a batch of graphs -> readout
batch = torch.tensor([0, 0, 0, 1, 1, 2], device=device)
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(6, 4, device=device),)

def readout(x):
    size = int(batch.max()) + 1  #- expect: sync-item
    #+ size = 3
    out = torch.zeros(size, x.size(1), device=x.device)  # may: size-frozen
    out.scatter_add_(0, batch[:, None].expand_as(x), x)
    return lin(out)
# %% drop edges (random) -> dropped
edge_index = torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]], device=device)
p = 0.2
args = (torch.randn(6, 4, device=device),)

def dropped(x):
    keep = torch.rand(edge_index.size(1), device=x.device) >= p
    src, dst = edge_index[:, keep]  #- expect: dynamic-shape
    return torch.zeros_like(x).index_add_(0, dst, x[src])  #-
    #+ src, dst = edge_index
    #+ return torch.zeros_like(x).index_add_(0, dst, x[src] * keep[:, None])
# %% pool by clusters -> cluster_pool
args = (torch.randn(6, 4, device=device), torch.tensor([7, 7, 3, 3, 9, 9], device=device))
def feed(i):
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([7, 7, 3, 3, 9, 9]).to(device)

def cluster_pool(x, cluster):
    ids, inverse = torch.unique(cluster, return_inverse=True)  #- expect: dynamic-shape
    out = torch.zeros(ids.numel(), x.size(1), device=x.device)  #-
    out = out.index_add_(0, inverse, x)  #-
    #+ out = torch.zeros(10, x.size(1), device=x.device).index_add_(0, cluster, x)
    return out.pow(2).sum()
# %% neighbours sampled in Python (random) -> sage
neighbours = {0: [1, 2], 1: [0, 3], 2: [0, 3], 3: [1, 2]}
lin = nn.Linear(8, 4).to(device)
args = (torch.randn(4, 4, device=device),)
#+ table = torch.tensor([neighbours[v] for v in range(4)], device=device)

def sage(x):
    picked = [random.choice(neighbours[v]) for v in range(4)]  #-
    h = x[picked]  #- expect: cpu-index|host-random may: host-random cpu-index
    #+ picked = table.gather(1, torch.randint(0, 2, (4, 1), device=x.device))
    #+ h = x[picked[:, 0]]
    return lin(torch.cat([x, h], dim=1)).relu()
# %% attention over edges with a softmax per target -> gat
edge_index = torch.tensor([[0, 1, 2, 3, 0, 2], [1, 2, 3, 0, 2, 0]], device=device)
w, att = nn.Linear(4, 4, bias=False).to(device), nn.Parameter(torch.randn(8, device=device))
args = (torch.randn(4, 4, device=device),)

def gat(x):
    h = w(x)
    src, dst = edge_index[0], edge_index[1]
    e = F.leaky_relu((torch.cat([h[src], h[dst]], 1) * att).sum(1), 0.2)
    top = torch.full((4,), -1e9, device=x.device).scatter_reduce(0, dst, e, reduce="amax")
    e = (e - top[dst]).exp()
    z = torch.zeros(4, device=x.device).index_add(0, dst, e)
    return torch.zeros_like(h).index_add(0, dst, h[src] * (e / z[dst])[:, None])
# %% edges within a radius -> radius_graph
lin = nn.Linear(3, 3).to(device)
args = (torch.rand(5, 3, device=device),)

def radius_graph(pos):
    dist = torch.cdist(pos, pos)
    src, dst = (dist < 0.7).nonzero(as_tuple=True)  #- expect: dynamic-shape
    return torch.zeros_like(pos).index_add_(0, dst, lin(pos)[src])  #-
    #+ return (dist < 0.7).float().T @ lin(pos)
# %% self loops and a dense adjacency -> dense_gcn
weight = nn.Parameter(torch.randn(4, 3, device=device))
args = (torch.randn(5, 4, device=device), (torch.rand(5, 5, device=device) > 0.5).float())

def dense_gcn(x, adj):
    adj = adj + torch.eye(adj.size(0), device=adj.device)
    d = adj.sum(1).rsqrt()
    return (d[:, None] * adj * d[None]) @ x @ weight
# %% repeat each graph's vector for its nodes -> broadcast
num_nodes_per_graph = torch.tensor([3, 2, 1], device=device)
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device), torch.randn(6, 4, device=device))

def broadcast(u, x):
    return x + lin(u).repeat_interleave(num_nodes_per_graph, dim=0)  #- expect: dynamic-shape
    #+ return x + lin(u).repeat_interleave(num_nodes_per_graph, dim=0, output_size=6)
# %% train on the masked nodes -> train
model = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=5e-4)
train_mask = torch.tensor([True, False, True, True, False, False], device=device)
y = torch.tensor([0, 1, 2, 0, 1, 2], device=device)
args = (torch.randn(6, 4, device=device),)
#+ train_nodes = train_mask.nonzero().squeeze(1)

def train(x):
    opt.zero_grad()
    out = F.log_softmax(model(x), dim=1)
    loss = F.nll_loss(out[train_mask], y[train_mask])  #- expect: dynamic-shape
    #+ loss = F.nll_loss(out[train_nodes], y[train_nodes])
    loss.backward()
    opt.step()
    return float(loss.detach())  #- expect: sync-item
    #+ return loss.detach()
# %% top-k pooling with a ratio -> topk_pool
score = nn.Linear(4, 1).to(device)
args = (torch.randn(6, 4, device=device),)

def topk_pool(x):
    s = score(x).squeeze(-1).tanh()
    perm = s.topk(math.ceil(0.5 * x.size(0))).indices
    return x[perm] * s[perm, None]
# %% a sparse adjacency is built in forward -> propagate
rows, cols = torch.tensor([0, 1, 2], device=device), torch.tensor([1, 2, 0], device=device)
args = (torch.randn(3, 4, device=device), torch.rand(3, device=device))

def propagate(x, weights):
    adj = torch.zeros(3, 3, device=x.device)
    adj[rows, cols] = weights
    return adj @ x
# %% negative edges (random) -> link_loss
pos_edges = torch.tensor([[0, 1, 2], [1, 2, 3]], device=device)
known = {(0, 1), (1, 2), (2, 3)}
args = (torch.randn(4, 4, device=device),)
#+ others = torch.tensor([(a, b) for a in range(4) for b in range(4) if (a, b) not in known], device=device)

def link_loss(z):
    negatives = []  #-
    while len(negatives) < 3:  #-
        pair = (random.randrange(4), random.randrange(4))  #-
        if pair not in known:  #-
            negatives.append(pair)  #-
    neg = torch.tensor(negatives, device=z.device).t()  #- expect: tensor-literal may: host-random
    #+ neg = others[torch.randint(0, len(others), (3,), device=z.device)].t()
    logit = lambda e: (z[e[0]] * z[e[1]]).sum(-1)
    return F.softplus(-logit(pos_edges)).mean() + F.softplus(logit(neg)).mean()
