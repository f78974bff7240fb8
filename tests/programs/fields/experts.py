# %% tokens of each expert as a list of counts -> moe
experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
router = nn.Linear(4, 3).to(device)
args = (torch.randn(8, 4, device=device),)

@torch.no_grad()
def moe(x):
    choice = router(x).argmax(-1)
    order = choice.argsort()  #-
    counts = torch.bincount(choice, minlength=3).tolist()  #- expect: hidden-size may: copy-to-cpu sync-item
    out = torch.empty_like(x)  #-
    chunks = [expert(chunk) for expert, chunk in zip(experts, x[order].split(counts))]  #- may: size-frozen
    out[order] = torch.cat(chunks)  #-
    #+ every = torch.stack([expert(x) for expert in experts], 1)
    #+ out = every.gather(1, choice[:, None, None].expand(-1, 1, 4)).squeeze(1)
    return out
# %% all experts, weighted by the gates -> moe
w1, w2 = nn.Parameter(torch.randn(3, 4, 8).to(device)), nn.Parameter(torch.randn(3, 8, 4).to(device))
router = nn.Linear(4, 3).to(device)
args = (torch.randn(8, 4, device=device),)

def moe(x):
    weight, chosen = router(x).softmax(-1).topk(2)
    gates = torch.zeros(x.size(0), 3, device=x.device).scatter(1, chosen, weight)
    hidden = torch.einsum("td,edh->teh", x, w1).relu()
    return torch.einsum("teh,ehd,te->td", hidden, w2, gates)
# %% a capacity with dropped tokens -> dispatch
capacity = int(1.25 * 8 / 3)
router = nn.Linear(4, 3).to(device)
args = (torch.randn(8, 4, device=device),)

@torch.no_grad()
def dispatch(x):
    gate, index = router(x).softmax(-1).max(-1)
    one_hot = F.one_hot(index, num_classes=3)
    position = (one_hot.cumsum(0) * one_hot).sum(-1) - 1
    kept = (position < capacity).float()
    slots = F.one_hot(position.clamp(max=capacity - 1), num_classes=capacity).float()
    return torch.einsum("te,tc,td->ecd", one_hot * (gate * kept)[:, None], slots, x)
# %% the load of the experts in a list -> route
class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.load = nn.Linear(4, 3), []  #-
        #+ self.gate, self.load = nn.Linear(4, 3), torch.zeros(3, device=device)
    def forward(self, x):
        gates = self.gate(x).softmax(-1)
        self.load.append(gates.mean(0).detach())  #- expect: host-counter|output-alias may: output-alias
        #+ self.load.add_(gates.mean(0).detach())
        return gates

router = Router().to(device)
args = (torch.randn(8, 4, device=device),)

@torch.no_grad()
def route(x):
    return router(x)
# %% auxiliary losses in a dictionary of numbers -> train_step
router = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(router.parameters(), lr=0.1)
log = {}
args = (torch.randn(8, 4, device=device),)
ignore = {"log"}

def train_step(x):
    logits = router(x)
    probs = logits.softmax(-1)
    balance = 3 * (probs.mean(0) * F.one_hot(probs.argmax(-1), 3).float().mean(0)).sum()
    z = logits.logsumexp(-1).square().mean()
    loss = balance + 1e-3 * z
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.update(balance=balance.item(), z=z.item())  #- expect: sync-item may: host-counter
    return loss.detach()
# %% a scale by the largest value -> quantize
weight = torch.randn(4, 4, device=device)
args = (torch.randn(8, 4, device=device),)

@torch.no_grad()
def quantize(x):
    scale = x.abs().max().item() / 127.0  #- expect: sync-item
    #+ scale = x.abs().max() / 127.0
    q = torch.clamp(torch.round(x / scale), -128, 127)
    return (q * scale) @ weight  # may: scalar-frozen
# %% unscale, clip and step with a scaler -> train_step
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
args = (torch.randn(4, 4, device=device),)

def train_step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  #- may: grad-scaler host-counter
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  #-
    scaler.step(optimizer)  #- expect: grad-scaler|sync-item may: host-counter
    scaler.update()  #- may: grad-scaler sync-item host-counter
    return loss.detach()
#+ def after(loss, i):
#+     scaler.unscale_(optimizer)
#+     nn.utils.clip_grad_norm_(model.parameters(), 1.0)
#+     scaler.step(optimizer)
#+     scaler.update()
