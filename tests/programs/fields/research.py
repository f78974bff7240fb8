# %% the rate falls when a window of losses rises -> train_step
losses = []
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)  #-
#+ opt = torch.optim.SGD(net.parameters(), lr=torch.tensor(0.1, device=device), fused=True)
args = (torch.randn(8, 4, device=device),)

def train_step(x):
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()  # may: learning-rate-frozen
    losses.append(loss.item())  #- expect: sync-item may: host-counter
    if len(losses) > 3 and losses[-1] > losses[-3]:  #- may: branch-frozen
        for g in opt.param_groups:  #-
            g["lr"] *= 0.5  #-
    return loss.detach()
#+
#+ def after(loss, i):
#+     losses.append(loss.item())
#+     if len(losses) > 3 and losses[-1] > losses[-3]:
#+         for g in opt.param_groups:
#+             g["lr"] *= 0.5
# %% hidden states carried across chunks of a text -> train_chunk
rnn, head = nn.GRU(4, 6, batch_first=True).to(device), nn.Linear(6, 4).to(device)
opt = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
hidden = torch.zeros(1, 2, 6, device=device)
args = (torch.randn(2, 5, 4, device=device), torch.randn(2, 5, 4, device=device))

def train_chunk(x, y):
    global hidden  #-
    hidden = hidden.detach()  #- expect: stale-input
    out, hidden = rnn(x, hidden)  #- may: stale-input
    #+ out, last = rnn(x, hidden)
    loss = F.mse_loss(head(out), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    #+ hidden.copy_(last.detach())
    return loss.detach()
# %% a dice loss that skips absent classes -> dice_loss
args = (torch.randn(2, 4, 5, 5, device=device), torch.randint(0, 4, (2, 5, 5), device=device))

def dice_loss(logits, target):
    probs = logits.softmax(1)
    loss, n = 0.0, 0
    for c in range(4):
        t = (target == c).float()
        if t.sum() == 0:  #- expect: data-dependent-branch
            continue  #-
        #+ there = t.sum() > 0
        p = probs[:, c]
        loss = loss + 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)  #-
        #+ loss = loss + torch.where(there, 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1), 0.0)
        n += 1  #-
        #+ n = n + there.long()
    return loss / max(n, 1)  #-
    #+ return loss / n.clamp(min=1)
# %% an observer that begins at infinity -> forward
class Observer(nn.Module):
    def __init__(self, c=0.1):
        super().__init__()
        self.c = c
        self.register_buffer("lo", torch.tensor(float("inf")))
    def forward(self, x):
        lo = x.min()
        if self.lo == float("inf"):  #- expect: data-dependent-branch
            self.lo.copy_(lo)  #-
        else:  #-
            self.lo.add_(self.c * (lo - self.lo))  #-
        #+ self.lo.copy_(torch.where(self.lo == float("inf"), lo, self.lo + self.c * (lo - self.lo)))
        return x - self.lo

obs = Observer().to(device)
args = (torch.randn(4, 6, device=device),)

def forward(x):
    return obs(x)
# %% hard negatives by a ratio of positives -> multibox
args = (torch.randn(12, 2, device=device), torch.randint(0, 2, (12,), device=device))

def multibox(conf, target):
    loss_all = F.cross_entropy(conf, target, reduction="none")
    pos = target > 0
    n_pos = pos.sum()
    loss_neg = loss_all.masked_fill(pos, 0.0).sort(descending=True).values
    k = min(int(3 * n_pos), 12)  #- expect: sync-item
    #+ k = (3 * n_pos).clamp(max=12)
    #+ negative = torch.where(torch.arange(12, device=device) < k, loss_neg, 0).sum()
    return (loss_all[pos].sum() + loss_neg[:k].sum()) / max(n_pos, 1)  #- expect: dynamic-shape data-dependent-branch may: size-frozen
    #+ return ((loss_all * pos).sum() + negative) / n_pos.clamp(min=1)
# %% opacities of a ray multiplied up in training -> train_step
net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
args = (torch.randn(4, 6, 3, device=device), torch.randn(4, device=device))

def train_step(points, wanted):
    sigma, color = net(points).unbind(-1)
    alpha = 1 - torch.exp(-F.relu(sigma) * 0.1)
    light = torch.cumprod(1 - alpha + 1e-10, dim=-1)  #- expect: sync-item
    #+ light = torch.exp(torch.cumsum(torch.log(1 - alpha + 1e-10), dim=-1))
    loss = F.mse_loss((alpha * light * color).sum(-1), wanted)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
