# %% one client's local epochs with a deep copy -> client_update
import copy
global_model = nn.Linear(4, 2).to(device)
local = copy.deepcopy(global_model)
opt = torch.optim.SGD(local.parameters(), lr=0.1)
epoch_loss = []
args = (torch.randn(6, 4, device=device), torch.randint(0, 2, (6,), device=device))

def client_update(x, y):
    local.load_state_dict(global_model.state_dict())
    batch_loss = []
    for _ in range(2):
        opt.zero_grad()
        loss = F.cross_entropy(local(x), y)
        loss.backward()
        opt.step()
        batch_loss.append(loss.item())  #- expect: sync-item
        #+ batch_loss.append(loss.detach())
    epoch_loss.append(sum(batch_loss) / len(batch_loss))  #- may: host-counter
    return loss.detach()  #-
    #+ return loss.detach(), sum(batch_loss) / len(batch_loss)
#+ def after(out, i):
#+     epoch_loss.append(out[1].item())
def seen(out):
    return out[0] if isinstance(out, tuple) else out
# %% FedAvg over client weights with a list of sizes -> aggregate
clients = [nn.Linear(3, 2).to(device) for _ in range(3)]
server = nn.Linear(3, 2).to(device)
sizes = [10, 20, 30]
args = (torch.zeros(1, device=device),)

@torch.no_grad()
def aggregate(bias):
    total = sum(sizes)
    for name, p in server.named_parameters():
        stacked = torch.stack([dict(c.named_parameters())[name] * (n / total) for c, n in zip(clients, sizes)])
        p.copy_(stacked.sum(0) + bias)
    return server.weight.clone()
# %% FedAvg that assigns state through .data, of which nothing reads the old memory, clean -> aggregate
clients = [nn.Linear(3, 2).to(device) for _ in range(3)]
server = nn.Linear(3, 2).to(device)
args = (torch.ones(1, device=device),)

def aggregate(scale):
    for name, p in server.named_parameters():
        mean = torch.stack([dict(c.named_parameters())[name].data for c in clients]).mean(0)
        p.data = mean * scale  #- may: parameter-rebound
        #+ p.data.copy_(mean * scale)
    return server.weight.detach().clone()
# %% proximal term against the global weights, clean -> prox_step
global_params = [p.detach().clone() for p in nn.Linear(4, 2).to(device).parameters()]
local = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(local.parameters(), lr=0.05)
args = (torch.randn(5, 4, device=device), torch.randint(0, 2, (5,), device=device))

def prox_step(x, y):
    prox = sum((w - w_t).norm(2) for w, w_t in zip(local.parameters(), global_params))
    loss = F.cross_entropy(local(x), y) + 0.005 * prox
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% top-k gradients for a slow link -> compress
k_ratio = 0.25
args = (torch.randn(8, device=device),)
residual = torch.zeros(8, device=device)

def compress(grad):
    acc = grad + residual
    k = max(1, int(acc.numel() * k_ratio))
    values, idx = acc.abs().topk(k)
    mask = torch.zeros_like(acc)
    mask[idx] = 1.0  #- expect: scalar-assignment
    #+ mask.index_fill_(0, idx, 1.0)
    sent = acc * mask
    residual.copy_(acc - sent)
    return sent
# %% weights sent as numpy arrays -> send
model = nn.Linear(3, 2).to(device)
args = (torch.randn(4, 3, device=device),)

def send(x):
    loss = model(x).mean()
    model.zero_grad()
    loss.backward()
    return [p.grad.cpu().numpy() for p in model.parameters()]  #- expect: copy-to-cpu
    #+ return [p.grad.clone() for p in model.parameters()]
# %% clients drawn by random.sample (random) -> round_step
clients = [nn.Linear(3, 2).to(device) for _ in range(4)]
args = (torch.randn(5, 3, device=device),)

@torch.no_grad()
def round_step(x):
    chosen = random.sample(range(4), 2)  #- may: host-random
    return sum(clients[c](x) for c in chosen) / 2  #- expect: host-random may: branch-frozen
    #+ w = torch.zeros(4, device=device).index_fill_(0, torch.randperm(4, device=device)[:2], 1.0)
    #+ return sum(w[c] * clients[c](x) for c in range(4)) / 2
# %% noise for privacy with the round's sigma -> noised_mean
rounds = 0
args = (torch.randn(4, 3, device=device),)
ignore = {"result", "rounds"}
#+ sigma_in = torch.zeros((), device=device)

def noised_mean(updates):
    global rounds  #-
    sigma = 1.0 / (1 + rounds)  #-
    rounds += 1  #- expect: host-counter
    mean = updates.mean(0)
    return mean + torch.randn_like(mean) * sigma  #- expect: scalar-frozen
    #+ return mean + torch.randn_like(mean) * sigma_in
#+ def feed(i):
#+     sigma_in.fill_(1.0 / (1 + i))
#+     return (torch.randn(4, 3, generator=torch.Generator().manual_seed(i)).to(device),)
#+ ignore = {"result", "rounds", "sigma_in"}
# %% secure sum in int64, clean -> masked_sum
args = (torch.randn(3, 4, device=device), torch.randint(0, 1000, (3, 4), device=device))

def masked_sum(updates, masks):
    fixed = (updates * 2**16).round().long() + masks
    return (fixed.sum(0) - masks.sum(0)).float() / 2**16
# %% gradient inversion, one step on a dummy input -> invert
model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, 2)).to(device)
dummy = torch.randn(1, 4).to(device).requires_grad_(True)
label = torch.tensor([1]).to(device)
args = tuple(torch.randn_like(p) for p in model.parameters())

def invert(*original):
    loss = F.cross_entropy(model(dummy), label)
    grads = torch.autograd.grad(loss, model.parameters(), create_graph=True)
    diff = sum(((g - o) ** 2).sum() for g, o in zip(grads, original))
    (gd,) = torch.autograd.grad(diff, dummy)
    with torch.no_grad():
        dummy.sub_(0.1 * gd)
    return diff.detach()
# %% accuracy thresholds decide whether a client takes part -> contribute
server_acc = torch.full((), 0.3, device=device)
args = (torch.rand(3, device=device), torch.randn(3, 4, device=device))

def contribute(acc, updates):
    kept = []
    for i in range(3):  #-
        if acc[i] > server_acc:  #- expect: data-dependent-branch
            kept.append(updates[i])  #-
    return torch.stack(kept).mean(0) if kept else torch.zeros(4, device=device)  #- may: branch-frozen size-frozen
    #+ keep = (acc > server_acc).float()
    #+ return (updates * keep[:, None]).sum(0) / keep.sum().clamp(min=1)
