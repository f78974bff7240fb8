# %% a network over batches of molecules that pools by graph and drops edges -> train_step
def scatter_mean(values, index, size):
    total = torch.zeros(size, values.size(1), device=values.device).index_add_(0, index, values)
    count = torch.zeros(size, device=values.device).index_add_(0, index, torch.ones_like(index, dtype=torch.float))
    return total / count.clamp(min=1).unsqueeze(1)


class GIN(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, h, edge_index): #-
    #+ def forward(self, h, edge_index, keep):
        src, dst = edge_index
        around = torch.zeros_like(h).index_add(0, dst, h[src]) #-
        #+ around = torch.zeros_like(h).index_add(0, dst, h[src] * keep[:, None])
        return self.mlp((1 + self.eps) * h + around)


class Molecules(nn.Module):
    def __init__(self, kinds=5, width=8):
        super().__init__()
        self.embed = nn.Embedding(kinds, width)
        self.convs = nn.ModuleList([GIN(width) for _ in range(3)])
        self.out = nn.Linear(width, 1)

    def drop_edges(self, edge_index, p=0.2):
        keep = torch.rand(edge_index.size(1), device=edge_index.device) > p
        return edge_index[:, keep] #-
        #+ return edge_index, keep

    def forward(self, kinds, edge_index, batch): #-
    #+ def forward(self, kinds, edge_index, batch, graphs):
        h = self.embed(kinds)
        if self.training:
            edge_index = self.drop_edges(edge_index) #-
            #+ edge_index, keep = self.drop_edges(edge_index)
        for conv in self.convs:
            h = F.relu(conv(h, edge_index)) + h #-
            #+ h = F.relu(conv(h, edge_index, keep)) + h
        pooled = scatter_mean(h, batch, batch.max().item() + 1) #-
        #+ pooled = scatter_mean(h, batch, graphs)
        return self.out(pooled).squeeze(-1)


model = Molecules().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
mae_history = []


def train_step(kinds, edge_index, batch, y):
    model.train()
    optimizer.zero_grad(set_to_none=True)
    prediction = model(kinds, edge_index, batch) #-
    #+ prediction = model(kinds, edge_index, batch, len(y))
    loss = F.l1_loss(prediction, y)
    loss.backward()
    optimizer.step()
    mae_history.append(loss.detach().cpu().item())
    scheduler.step(loss.item())
    return loss


n = 12
args = (
    torch.randint(0, 5, (n,), device=device),
    torch.randint(0, n, (2, 20), device=device),
    torch.arange(n, device=device) // 4,
    torch.randn(3, device=device),
)
