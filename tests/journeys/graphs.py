# %% a graph network that counts its nodes, masks its labels and keeps its best -> epoch
class SageLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.own, self.other = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, h, edges):
        src, dst = edges
        num_nodes = int(edges.max()) + 1 #-
        #+ num_nodes = h.shape[0]
        out = torch.zeros(num_nodes, h.shape[1], device=h.device)
        out.index_add_(0, dst, h[src])
        degree = torch.bincount(dst, minlength=num_nodes).clamp(min=1) #-
        #+ degree = torch.zeros(num_nodes, dtype=torch.long, device=h.device)
        #+ degree = degree.scatter_add_(0, dst, torch.ones_like(dst)).clamp(min=1)
        return F.relu(self.own(h) + self.other(out / degree[:, None]))


class Sage(nn.Module):
    def __init__(self, width=8, classes=3):
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.layers = nn.ModuleList(SageLayer(width) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, x, edges):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, edges)
        return self.head(h)


model = Sage().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
train_mask = (torch.arange(12) % 3 != 0).to(device)
#+ train_mask_at = train_mask.nonzero().squeeze(-1)
edges = torch.stack([torch.arange(12), (torch.arange(12) * 5 + 3) % 12]).to(device)
best = 0.0


def epoch(x, labels):
    global best
    optimizer.zero_grad()
    out = model(x, edges)
    loss = F.cross_entropy(out[train_mask], labels[train_mask]) #-
    #+ loss = F.cross_entropy(out[train_mask_at], labels[train_mask_at])
    loss.backward()
    optimizer.step()
    acc = (out.argmax(1) == labels).float().mean().item()
    if acc > best:
        best = acc
    return loss


args = (torch.randn(12, 5, device=device), torch.randint(0, 3, (12,), device=device))
