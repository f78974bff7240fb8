# %% early stopping on a patience inside the step -> train_step
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
best, bad, stop = float("inf"), 0, False
args = (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))

def train_step(x, y):
    global best, bad, stop  #-
    loss = F.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    val = loss.item()  #- expect: sync-item
    if val < best - 1e-4:  #- may: branch-frozen
        best, bad = val, 0  #- may: host-counter
    else:  #-
        bad += 1  #- may: host-counter
        stop = bad >= 3  #-
    return loss.detach()
#+ def after(loss, i):
#+     global best, bad, stop
#+     val = loss.item()
#+     if val < best - 1e-4:
#+         best, bad = val, 0
#+     else:
#+         bad += 1
#+         stop = bad >= 3
# %% a running loss over the epoch, divided and printed every few batches -> train_batch
model = nn.Linear(4, 3).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
running_loss, i = 0.0, 0
history = []
args = (torch.randn(8, 4, device=device), torch.randint(0, 3, (8,), device=device))

def train_batch(inputs, labels):
    global running_loss, i  #-
    optimizer.zero_grad()
    outputs = model(inputs)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()
    running_loss += loss.item()  #- expect: sync-item may: host-counter
    if i % 4 == 3:  #- may: branch-frozen
        history.append(running_loss / 4)  #- may: host-counter
        print(f"[{i + 1:5d}] loss: {running_loss / 4:.3f}")  #- may: print
        running_loss = 0.0  #-
    i += 1  #- may: host-counter
    return outputs.detach()  #-
    #+ return outputs.detach(), loss.detach()
#+ def seen(out):
#+     return out[0]
#+ def after(out, n):
#+     global running_loss, i
#+     running_loss += out[1].item()
#+     if i % 4 == 3:
#+         history.append(running_loss / 4)
#+         running_loss = 0.0
#+     i += 1
# %% a batch from a loader with pinned memory is fetched in the step -> step
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
it = iter(loader)  #-
args = ()  #-
#+ args = tuple(t.to(device) for t in data[:8])
ignore = ("it",)
#+ def feed(i):
#+     return tuple(t.to(device) for t in data[i % 8 * 8 : i % 8 * 8 + 8])

def step():  #-
    global it  #-
#+ def step(x, y):
    try:  #-
        x, y = next(it)  #- may: host-counter
    except StopIteration:  #-
        it = iter(loader)  #-
        x, y = next(it)  #-
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)  #- expect: copy-to-gpu may: copy-to-gpu
    loss = F.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% a GAN trains its critic several times before the generator -> train
G, D = nn.Linear(2, 4).to(device), nn.Linear(4, 1).to(device)
opt_g, opt_d = torch.optim.SGD(G.parameters(), lr=0.01), torch.optim.SGD(D.parameters(), lr=0.01)
batches_done = 0
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device))

def train(real, z):
    global batches_done  #-
    opt_d.zero_grad()
    d_loss = -D(real).mean() + D(G(z).detach()).mean()
    d_loss.backward()
    opt_d.step()
    for p in D.parameters():
        p.data.clamp_(-0.01, 0.01)
    if batches_done % 2 == 0:  #- expect: branch-frozen
        opt_g.zero_grad()  #-
        g_loss = -D(G(z)).mean()  #-
        g_loss.backward()  #-
        opt_g.step()  #-
    #+ opt_g.zero_grad()
    #+ (-D(G(z)).mean()).backward()
    #+ opt_g.step()
    batches_done += 1  #- expect: host-counter
    return d_loss.detach()
ignore = ("G", "D", "result", "batches_done")
# %% the discriminator rests while it is too good -> gan_step
G, D = nn.Linear(2, 4).to(device), nn.Linear(4, 1).to(device)
og, od = torch.optim.SGD(G.parameters(), lr=0.05), torch.optim.SGD(D.parameters(), lr=0.05)
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device))

def gan_step(real, z):
    fake = G(z)
    acc = ((D(real) > 0).float().mean() + (D(fake) < 0).float().mean()) / 2
    d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
    od.zero_grad()
    d_loss.backward()
    if acc < 0.8:  #- expect: data-dependent-branch
        od.step()  #-
    #+ for p in D.parameters():
    #+     p.grad.copy_(torch.where(acc < 0.8, p.grad, 0))
    #+ od.step()
    g_loss = F.softplus(-D(fake)).mean()
    og.zero_grad()
    g_loss.backward()
    og.step()
    return d_loss.detach(), g_loss.detach()
# %% losses are kept in a dictionary of running sums as numbers -> step
net = nn.Linear(4, 2).to(device)
meters = {"l1": 0.0, "l2": 0.0, "n": 0}
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device))

def step(x, y):
    pred = net(x)
    losses = {"l1": F.l1_loss(pred, y), "l2": F.mse_loss(pred, y)}
    total = sum(losses.values())
    for name, value in losses.items():  #-
        meters[name] += value.item()  #- expect: sync-item may: host-counter
    meters["n"] += 1  #- may: host-counter
    return total.detach()  #-
    #+ return total.detach(), losses
#+ def seen(out):
#+     return out[0]
#+ def after(out, i):
#+     for name, value in out[1].items():
#+         meters[name] += value.item()
#+     meters["n"] += 1
# %% metrics are computed by sklearn-like numpy code in the step -> evaluate
clf = nn.Linear(4, 3).to(device)
correct, seen_n = 0, 0
args = (torch.randn(10, 4, device=device), torch.randint(0, 3, (10,), device=device))

@torch.no_grad()
def evaluate(x, y):
    global correct, seen_n  #-
    logits = clf(x)
    pred = logits.argmax(1).cpu().numpy()  #- expect: copy-to-cpu|sync-item
    correct += int((pred == y.cpu().numpy()).sum())  #- expect: copy-to-cpu|sync-item may: host-counter
    seen_n += len(pred)  #- may: host-counter
    return logits
#+ def after(logits, i):
#+     global correct, seen_n
#+     correct += int((logits.argmax(1) == labels_of[i]).sum())
#+     seen_n += 10
#+ labels_of = {}
#+ def feed(i):
#+     g = torch.Generator().manual_seed(i)
#+     x, y = torch.randn(10, 4, generator=g).to(device), torch.randint(0, 3, (10,), generator=g).to(device)
#+     labels_of[i] = y
#+     return x, y
ignore = ("correct", "result")
# %% activations are watched by hooks that keep a mean -> forward
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
stats = {}
def watch(name):
    def hook(mod, inp, out):
        stats[name] = out.mean().item()  #- expect: sync-item may: sync-item
        #+ stats[name].copy_(out.mean())
    return hook

#+ stats = {"0": torch.zeros((), device=device), "2": torch.zeros((), device=device)}
for name, mod in net.named_children():
    if isinstance(mod, nn.Linear):
        mod.register_forward_hook(watch(name))
args = (torch.randn(3, 4, device=device),)
ignore = ("stats",)

@torch.no_grad()
def forward(x):
    return net(x)
# %% a best metric is kept with a checkpoint in memory -> validate
net = nn.Linear(4, 2).to(device)
best_acc, best_state = 0.0, None
args = (torch.randn(12, 4, device=device), torch.randint(0, 2, (12,), device=device))

@torch.no_grad()
def validate(x, y):
    global best_acc, best_state  #-
    acc = (net(x).argmax(1) == y).float().mean()
    if acc > best_acc:  #- expect: data-dependent-branch
        best_acc = acc.item()  #- may: sync-item host-counter
        best_state = {k: v.clone() for k, v in net.state_dict().items()}  #- may: host-counter
    return acc
#+ def after(acc, i):
#+     global best_acc, best_state
#+     if acc > best_acc:
#+         best_acc = acc.item()
#+         best_state = {k: v.clone() for k, v in net.state_dict().items()}
ignore = ("best_state",)
# %% an autograd Function clips its gradient by a number it reads -> step
class ClipGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.view_as(x)
    @staticmethod
    def backward(ctx, g):
        n = g.norm().item()  #- expect: sync-item
        if n > ctx.limit:  #- may: branch-frozen
            g = g * (ctx.limit / n)  #-
        #+ n = g.norm()
        #+ g = torch.where(n > ctx.limit, g * (ctx.limit / n), g)
        return g, None

w = torch.randn(4, 4, device=device, requires_grad=True)
args = (torch.randn(4, 4, device=device),)

def step(x):
    loss = ClipGrad.apply(x @ w, 0.05).pow(2).sum()
    (g,) = torch.autograd.grad(loss, w)
    return g
# %% an ELBO with torch.distributions and a KL warm-up (random) -> elbo_step
enc, dec = nn.Linear(6, 4).to(device), nn.Linear(2, 6).to(device)
opt = torch.optim.SGD([*enc.parameters(), *dec.parameters()], lr=0.01)
epoch_step = 0  #-
#+ epoch_step = torch.zeros((), device=device)
args = (torch.rand(5, 6, device=device),)

def elbo_step(x):
    global epoch_step  #-
    mu, logvar = enc(x).chunk(2, -1)
    q = torch.distributions.Normal(mu, torch.exp(0.5 * logvar))  #- expect: argument-check
    #+ q = torch.distributions.Normal(mu, torch.exp(0.5 * logvar), validate_args=False)
    p = torch.distributions.Normal(0.0, 1.0)
    #+ p = torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(mu), validate_args=False)
    z = q.rsample()
    kl = torch.distributions.kl_divergence(q, p).sum(-1).mean()  #- may: copy-to-gpu cpu-scalar-frozen
    #+ kl = torch.distributions.kl_divergence(q, p).sum(-1).mean()
    beta = min(1.0, epoch_step / 5)  #-
    #+ beta = (epoch_step / 5).clamp(max=1.0)
    loss = F.binary_cross_entropy_with_logits(dec(z), x) + beta * kl  #- expect: scalar-frozen
    #+ loss = F.binary_cross_entropy_with_logits(dec(z), x) + beta * kl
    opt.zero_grad()
    loss.backward()
    opt.step()
    epoch_step += 1  #- expect: host-counter
    #+ epoch_step.add_(1)
    return loss.detach()
# %% a diffusion sampler walks a list of timesteps with numbers of a table -> sample
T = 6
betas = torch.linspace(0.01, 0.2, T)
alphas_bar = torch.cumprod(1 - betas, 0)
net = nn.Linear(5, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def sample(x):
    for t in reversed(range(T)):
        tt = torch.full((2, 1), t / T, device=device)
        eps = net(torch.cat([x, tt], 1))
        ab = alphas_bar[t]
        prev = alphas_bar[t - 1] if t > 0 else torch.tensor(1.0)
        x0 = (x - (1 - ab).sqrt() * eps) / ab.sqrt()
        x = prev.sqrt() * x0 + (1 - prev).sqrt() * eps
    return x
# %% noise levels of a batch are looked up on the CPU -> train_loss
sqrt_ab = torch.cumprod(torch.linspace(0.99, 0.8, 10), 0).sqrt()
#+ sqrt_ab = sqrt_ab.to(device)
net = nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device), torch.randn(3, 4, device=device), torch.tensor([1, 5, 7], device=device))

def train_loss(x0, noise, t):
    a = sqrt_ab[t.cpu()].to(device)[:, None]  #- expect: copy-to-cpu|sync-item copy-to-gpu
    #+ a = sqrt_ab[t][:, None]
    xt = a * x0 + (1 - a ** 2).sqrt() * noise
    return F.mse_loss(net(xt), noise)
# %% classifier-free guidance is left out when its weight is one -> guided
scale = 1.0
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device), torch.randn(2, 4, device=device), torch.tensor(3.0, device=device))

@torch.no_grad()
def guided(x, cond, w):
    if w == 1:  #- expect: data-dependent-branch
        return net(x + cond)  #-
    e_c, e_u = net(torch.cat([x + cond, x])).chunk(2)
    return e_u + w * (e_c - e_u)  #-
    #+ return torch.where(w == 1, net(x + cond), e_u + w * (e_c - e_u))
