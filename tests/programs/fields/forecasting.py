# %% scheduled sampling whose ratio falls with the batches (random) -> decode
lstm, out = nn.LSTMCell(1, 6).to(device), nn.Linear(6, 1).to(device)
batches_seen, cl_decay = 0, 10
ignore = {"batches_seen"}
args = (torch.randn(2, 4, 1, device=device),)

@torch.no_grad()
def decode(targets):
    global batches_seen  #-
    h = c = torch.zeros(2, 6, device=targets.device)
    inp, outs = targets[:, 0], []
    for t in range(4):
        h, c = lstm(inp, (h, c))
        y = out(h)
        outs.append(y)
        threshold = cl_decay / (cl_decay + math.exp(batches_seen / cl_decay))  #-
        if np.random.uniform(0, 1) < threshold:  #- expect: host-random|branch-frozen
            inp = targets[:, t]  #-
        else:  #-
            inp = y  #-
        #+ inp = torch.where(torch.rand((), device=device) < 0.5, targets[:, t], y)
    batches_seen += 1  #- expect: host-counter
    return torch.stack(outs, 1)
# %% instance normalization kept on self, reversible -> forecast
class RevIN(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))
    def forward(self, x, mode):
        if mode == "norm":
            self.mean = x.mean(1, keepdim=True).detach()  # may: output-alias host-counter
            self.stdev = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()  # may: output-alias host-counter
            return (x - self.mean) / self.stdev * self.weight + self.bias
        return (x - self.bias) / (self.weight + 1e-10) * self.stdev + self.mean

revin, lin = RevIN(2).to(device), nn.Linear(6, 6).to(device)
args = (torch.randn(3, 6, 2, device=device),)

@torch.no_grad()
def forecast(x):
    y = revin(x, "norm")
    return revin(lin(y.transpose(1, 2)).transpose(1, 2), "denorm")
# %% top periods of a spectrum become shapes -> period_block
args = (torch.randn(2, 8, 3, device=device),)
def feed(i):
    t = torch.arange(8).float()[None, :, None]
    return ((torch.sin(2 * math.pi * t / 4) + 0.01 * torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(i))).to(device),)

def period_block(x):
    xf = torch.fft.rfft(x, dim=1).abs().mean(0).mean(-1)
    xf[:1] = 0
    _, top = torch.topk(xf, 1)
    period = x.shape[1] // top.detach().cpu().numpy()  #- expect: copy-to-cpu
    p = int(period[0])  #- may: size-frozen
    #+ p = 4
    return x.reshape(2, x.shape[1] // p, p, 3).mean(1)  # may: size-frozen
# %% an error metric that drops missing values -> masked_mae
args = (torch.randn(4, 5, device=device), torch.tensor([[0.0, 1, 2, 0, 3]] * 4, device=device))

def masked_mae(preds, labels):
    mask = labels != 0.0
    mask = mask.float() / mask.float().mean()
    loss = torch.abs(preds - labels) * mask
    loss[loss != loss] = 0  #- may: scalar-assignment mask-assignment
    #+ loss = torch.nan_to_num(loss)
    return loss.mean()
# %% NaN labels selected away -> loss_fn
args = (torch.randn(6, device=device), torch.randn(6, device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    labels = torch.randn(6, generator=g)
    labels[i % 6] = float("nan")
    return torch.randn(6, generator=g).to(device), labels.to(device)

def loss_fn(preds, labels):
    valid = ~torch.isnan(labels)
    return F.mse_loss(preds[valid], labels[valid])  #- expect: dynamic-shape
    #+ return torch.where(valid, preds - labels, torch.zeros_like(preds)).square().sum() / valid.sum()
# %% a ring of the last observations in a list -> predict
window, horizon = [], nn.Linear(12, 3).to(device)
for _ in range(4):
    window.append(torch.zeros(3, device=device))
args = (torch.randn(3, device=device),)
#+ ring = torch.zeros(4, 3, device=device)

@torch.no_grad()
def predict(obs):
    window.append(obs)  #- expect: host-counter|stale-input|output-alias
    if len(window) > 4:  #- may: branch-frozen
        window.pop(0)  #- may: host-counter
    return horizon(torch.cat(window))  #- may: stale-input
    #+ ring.copy_(torch.cat([ring[1:], obs[None]]))
    #+ return horizon(ring.flatten())
ignore = {"window"}
# %% a Kalman filter in a loop, clean -> filter_step
Fm, H = torch.eye(2).to(device), torch.ones(1, 2).to(device)
state, P = torch.zeros(2, 1, device=device), torch.eye(2, device=device)
args = (torch.randn(1, 1, device=device),)

def filter_step(z):
    prior = Fm @ state
    Pp = Fm @ P @ Fm.T + 0.01
    S = H @ Pp @ H.T + 0.1
    K = Pp @ H.T / S
    state.copy_(prior + K @ (z - H @ prior))
    P.copy_(Pp - K @ H @ Pp)
    return state.clone()
# %% a Kalman filter with a matrix inverse -> filter_step
Fm, H = torch.eye(2).to(device), torch.eye(2).to(device)
args = (torch.randn(2, 1, device=device), torch.eye(2, device=device))
def feed(i):
    return torch.randn(2, 1, generator=torch.Generator().manual_seed(i)).to(device), (torch.eye(2) * (1 + i / 5)).to(device)

def filter_step(z, P):
    S = H @ P @ H.T + 0.1 * torch.eye(2, device=P.device)
    K = P @ H.T @ torch.inverse(S)  #- expect: linalg-check
    #+ K = P @ H.T @ torch.linalg.inv_ex(S)[0]
    return K @ z
# %% a sampled horizon from a Student distribution without checks (random) -> sample
head = nn.Linear(4, 3).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def sample(h):
    df, loc, scale = head(h).chunk(3, -1)
    dist = torch.distributions.Normal(loc, F.softplus(scale) + 1e-3, validate_args=False)
    return dist.rsample((5,)).mean(0)
# %% a day-of-week embedding chosen by the clock of the host -> forward
emb = nn.Embedding(7, 4).to(device)
lin = nn.Linear(4, 1).to(device)
today = 0
#+ day_in = torch.zeros(1, dtype=torch.long, device=device)
args = (torch.randn(2, 4, device=device),)
ignore = {"result", "today", "day_in"}

@torch.no_grad()
def forward(x):
    global today  #-
    today = (today + 1) % 7  #- expect: host-counter
    day = torch.tensor([today]).to(device)  #- expect: copy-to-gpu|tensor-literal|cpu-scalar-frozen
    return lin(x + emb(day))  #-
    #+ return lin(x + emb(day_in))
#+ def feed(i):
#+     day_in.fill_((i + 1) % 7)
#+     return (torch.randn(2, 4, generator=torch.Generator().manual_seed(i)).to(device),)
# %% quantile loss over a list of quantiles, clean -> quantile_loss
quantiles = [0.1, 0.5, 0.9]
args = (torch.randn(4, 3, device=device), torch.randn(4, device=device))

def quantile_loss(preds, target):
    losses = []
    for i, q in enumerate(quantiles):
        errors = target - preds[:, i]
        losses.append(torch.max((q - 1) * errors, q * errors).unsqueeze(1))
    return torch.cat(losses, dim=1).sum(dim=1).mean()
# %% early stopping copies the best weights -> validate
import copy
best_loss, best_state = float("inf"), None
model = nn.Linear(4, 1).to(device)
args = (torch.randn(5, 4, device=device), torch.randn(5, 1, device=device))

@torch.no_grad()
def validate(x, y):
    global best_loss, best_state  #-
    val = F.l1_loss(model(x), y)
    if val.item() < best_loss:  #- expect: sync-item|data-dependent-branch
        best_loss = val.item()  #- expect: sync-item may: host-counter
        best_state = copy.deepcopy(model.state_dict())  #- may: host-counter output-alias
    return val
#+ def after(val, i):
#+     global best_loss, best_state
#+     if val.item() < best_loss:
#+         best_loss = val.item()
#+         best_state = copy.deepcopy(model.state_dict())
