# %% a tabular model with embeddings of categories, class weights and an early stop -> train_batch
CARD = [5, 7, 3]


class TabularModel(nn.Module):
    def __init__(self, cont=4, hidden=32):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(c, min(50, (c + 1) // 2)) for c in CARD])
        n = sum(e.embedding_dim for e in self.embeds)
        self.bn = nn.BatchNorm1d(cont)
        self.layers = nn.Sequential(nn.Linear(n + cont, hidden), nn.ReLU(), nn.BatchNorm1d(hidden), nn.Linear(hidden, 2))

    def forward(self, cat, cont):
        x = [e(cat[:, i]) for i, e in enumerate(self.embeds)]
        return self.layers(torch.cat(x + [self.bn(cont)], 1))


class EarlyStopping:
    def __init__(self, patience=5):
        self.patience, self.counter, self.best, self.stop = patience, 0, None, False

    def __call__(self, value):
        if self.best is None or value < self.best:
            self.best, self.counter = value, 0
        else:
            self.counter += 1
            self.stop = self.counter >= self.patience


model = TabularModel().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
stopper = EarlyStopping()
history = {"loss": [], "acc": [], "auc": []}


def train_batch(cat, cont, y):
    model.train()
    if (cat < 0).any():
        raise ValueError("unknown category")
    counts = np.bincount(y.cpu().numpy(), minlength=2)
    weight = torch.tensor(counts.sum() / (2.0 * np.maximum(counts, 1)), dtype=torch.float32).to(y.device)
    cont = torch.where(torch.isnan(cont), torch.zeros_like(cont), cont)
    out = model(cat, cont)
    loss = F.cross_entropy(out, y, weight=weight)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    pred = out.argmax(1)
    acc = (pred == y).sum().item() / len(y)
    history["loss"].append(loss.item())
    history["acc"].append(acc)
    stopper(loss.item())
    return loss


args = (
    torch.stack([torch.randint(0, c, (12,)) for c in CARD], 1).to(device),
    torch.randn(12, 4, device=device),
    torch.randint(0, 2, (12,), device=device),
)
