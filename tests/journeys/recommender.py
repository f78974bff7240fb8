# %% a recommender that learns from negatives drawn on the host, by popularity -> train_batch
class TwoTower(nn.Module):
    def __init__(self, users, items, dim=16):
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.bias = nn.Embedding(items, 1)
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.item.weight, std=0.05)
        nn.init.zeros_(self.bias.weight)

    def score(self, u, i):
        return (self.user(u).unsqueeze(1) * self.item(i)).sum(-1) + self.bias(i).squeeze(-1)


N_USERS, N_ITEMS, NEG = 50, 80, 4
popularity = np.random.RandomState(0).zipf(1.5, N_ITEMS).astype(float) ** 0.75
popularity /= popularity.sum()
net = TwoTower(N_USERS, N_ITEMS).to(device)
opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
metrics = {"loss": 0.0, "auc": 0.0, "n": 0}
seen_items = torch.zeros(N_ITEMS)


def train_batch(users, pos):
    neg = np.random.choice(N_ITEMS, size=(len(users), NEG), p=popularity)
    neg = torch.from_numpy(neg).to(device)
    pos_score = net.score(users, pos.unsqueeze(1))
    neg_score = net.score(users, neg)
    bpr = -F.logsigmoid(pos_score - neg_score).mean()
    touched = torch.unique(torch.cat([pos, neg.flatten()])) #-
    #+ touched = torch.zeros(N_ITEMS, dtype=torch.bool, device=device)
    #+ touched.index_fill_(0, torch.cat([pos, neg.flatten()]).flatten(), True)
    reg = 1e-3 * net.item(touched).pow(2).sum() / len(users) #-
    #+ reg = 1e-3 * (net.item.weight.pow(2).sum(-1) * touched).sum() / len(users)
    loss = bpr + reg
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        metrics["auc"] += (pos_score > neg_score).float().mean().item()
        metrics["loss"] += loss.item()
        metrics["n"] += 1
        seen_items[pos.cpu()] += 1
    return loss


args = (torch.randint(0, N_USERS, (16,), device=device), torch.randint(0, N_ITEMS, (16,), device=device))
