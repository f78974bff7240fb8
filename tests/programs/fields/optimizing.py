# %% Adam by hand with a step number and bias corrections -> train_step
W = torch.randn(4, 1, device=device, requires_grad=True)
m, v = torch.zeros_like(W), torch.zeros_like(W)
t = 0  #-
#+ t = torch.zeros((), device=device)
args = (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))

def train_step(x, y):
    global t  #-
    loss = ((x @ W - y) ** 2).mean()
    (g,) = torch.autograd.grad(loss, W)
    t += 1  #- expect: host-counter
    #+ t.add_(1)
    with torch.no_grad():
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        m_hat = m / (1 - 0.9 ** t)  # expect: scalar-frozen
        v_hat = v / (1 - 0.999 ** t)  # expect: scalar-frozen
        W.sub_(0.05 * m_hat / (v_hat.sqrt() + 1e-8))
    return loss.detach()
# %% gradients scaled down when their norm is too large -> train_step
model = nn.Linear(4, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
max_norm = 0.5
args = (torch.randn(8, 4, device=device), torch.randn(8, 2, device=device))

def train_step(x, y):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    total = 0.0
    for p in model.parameters():
        total += p.grad.norm().item() ** 2  #- expect: sync-item
        #+ total = total + p.grad.norm() ** 2
    total = total ** 0.5
    if total > max_norm:  #- may: branch-frozen
        for p in model.parameters():  #-
            p.grad.mul_(max_norm / (total + 1e-6))  #-
    #+ scale = torch.where(total > max_norm, max_norm / (total + 1e-6), 1.0)
    #+ for p in model.parameters():
    #+     p.grad.mul_(scale)
    optimizer.step()
    return loss.detach()
# %% clip_grad_norm_ is called and its result compared and logged -> train_step
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
exploded = 0
args = (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))

def train_step(x, y):
    global exploded  #-
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    if norm > 2.0:  #- expect: data-dependent-branch
        exploded += 1  #- may: host-counter
    opt.step()
    return loss.detach()  #-
    #+ return loss.detach(), norm
#+ def seen(out):
#+     return out[0]
#+ def after(out, i):
#+     global exploded
#+     exploded += int(out[1] > 2.0)
# %% warm-up by hand, then the square root's decay -> train_step
model = nn.Linear(6, 3).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)  #-
d_model, warmup = 64, 4
#+ def rate(n):
#+     return d_model ** -0.5 * min(n ** -0.5, n * warmup ** -1.5)
#+ opt = torch.optim.SGD(model.parameters(), lr=torch.tensor(rate(1), device=device), fused=True)
it = 0
args = (torch.randn(8, 6, device=device), torch.randint(0, 3, (8,), device=device))

#+ def after(loss, i):
#+     global it
#+     it += 1
#+     for group in opt.param_groups:
#+         group["lr"].fill_(rate(it + 1))
def train_step(x, y):
    global it  #-
    it += 1  #- expect: host-counter
    lr = d_model ** -0.5 * min(it ** -0.5, it * warmup ** -1.5)  #-
    for group in opt.param_groups:  #-
        group["lr"] = lr  #-
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()  # expect: learning-rate-frozen|scalar-frozen
    return loss.detach()
# %% exponential average of weights with a decay that warms up -> update
net = nn.Linear(4, 4).to(device)
ema = {k: p.detach().clone() for k, p in net.named_parameters()}
num_updates = 0  #-
#+ num_updates = torch.zeros((), device=device)
args = (torch.randn(4, 4, device=device),)

def update(x):
    global num_updates  #-
    with torch.no_grad():
        for p in net.parameters():
            p.add_(x.mean() * 0.01)
        num_updates += 1  #- expect: host-counter
        #+ num_updates.add_(1)
        decay = min(0.999, (1 + num_updates) / (10 + num_updates))  #-
        #+ decay = ((1 + num_updates) / (10 + num_updates)).clamp(max=0.999)
        for name, p in net.named_parameters():
            ema[name].mul_(decay).add_(p, alpha=1 - decay)  #- expect: scalar-frozen may: scalar-frozen
            #+ ema[name].mul_(decay).add_(p * (1 - decay))
    return net(x).detach()
# %% gradient accumulation with a micro-step counter -> micro_step
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
accum = 4
args = (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))
micro = 0

def micro_step(x, y):
    global micro  #-
    loss = F.mse_loss(model(x), y) / accum
    loss.backward()
    micro += 1  #- expect: host-counter
    if micro % accum == 0:  #- expect: branch-frozen
        opt.step()  #-
        opt.zero_grad()  #-
    return loss.detach()
#+ def after(loss, i):
#+     global micro
#+     micro += 1
#+     if micro % accum == 0:
#+         opt.step()
#+         opt.zero_grad(set_to_none=False)
# %% skip the update when the loss is not finite -> train_step
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
args = (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))

def train_step(x, y):
    pred = model(x)
    loss = ((pred - y) ** 2).mean()
    if torch.isnan(loss) or torch.isinf(loss):  #- expect: data-dependent-branch
        print("bad loss, skipping")  #- may: host-counter
        return None  #-
    opt.zero_grad()
    loss.backward()
    #+ good = torch.isfinite(loss)
    #+ for p in model.parameters():
    #+     p.grad.copy_(torch.where(good, p.grad, 0))
    opt.step()
    return loss.detach()
# %% a cosine schedule by math and a total in a config -> step
class cfg:
    base_lr, min_lr, warmup_iters, max_iters = 0.1, 0.01, 2, 20

net = nn.Linear(4, 2).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=cfg.base_lr)  #- may: capturable optimizer-not-capturable
#+ optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(cfg.base_lr / 3, device=device), capturable=True)
iter_num = 0
args = (torch.randn(8, 4, device=device), torch.randint(0, 2, (8,), device=device))

def get_lr(it):
    if it < cfg.warmup_iters:
        return cfg.base_lr * (it + 1) / (cfg.warmup_iters + 1)
    ratio = (it - cfg.warmup_iters) / (cfg.max_iters - cfg.warmup_iters)
    return cfg.min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (cfg.base_lr - cfg.min_lr)

def step(x, y):
    global iter_num  #-
    lr = get_lr(iter_num)  #-
    for param_group in optimizer.param_groups:  #-
        param_group["lr"] = lr  #-
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()  # expect: optimizer-not-capturable|learning-rate-frozen may: learning-rate-frozen scalar-frozen
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1  #- expect: host-counter
    return loss.detach()
#+ def after(loss, i):
#+     global iter_num
#+     iter_num += 1
#+     for param_group in optimizer.param_groups:
#+         param_group["lr"].fill_(get_lr(iter_num))
# %% the lion optimizer written by hand with a weight decay -> lion_step
params = [torch.randn(4, 4, device=device, requires_grad=True), torch.randn(4, device=device, requires_grad=True)]
exp_avg = [torch.zeros_like(p) for p in params]
args = (torch.randn(8, 4, device=device),)

def lion_step(x):
    loss = (x @ params[0] + params[1]).square().mean()
    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        for i, (p, g) in enumerate(zip(params, grads)):
            p.data.mul_(1 - 0.01 * 0.1)
            update = exp_avg[i] * 0.9 + g * 0.1
            p.add_(torch.sign(update), alpha=-0.01)
            exp_avg[i] = exp_avg[i] * 0.99 + g * 0.01  #- expect: stale-input|state-rebound|rebound
            #+ exp_avg[i].mul_(0.99).add_(g * 0.01)
    return loss.detach()
# %% a loss scale of one's own that halves on overflow -> amp_step
net = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scale = 1024.0  #-
#+ scale = torch.tensor(1024.0, device=device)
args = (torch.randn(4, 4, device=device), torch.randn(4, 2, device=device))

def amp_step(x, y):
    global scale  #-
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    (loss * scale).backward()  #- expect: scalar-frozen
    #+ (loss * scale).backward()
    overflow = False
    for p in net.parameters():
        if not torch.isfinite(p.grad).all():  #- expect: data-dependent-branch
            overflow = True  #-
        #+ overflow = overflow | ~torch.isfinite(p.grad).all()
    if not overflow:  #- may: branch-frozen
        for p in net.parameters():  #-
            p.grad.div_(scale)  #- expect: scalar-frozen
        opt.step()  #-
        scale *= 1.01  #- may: host-counter
    else:  #-
        scale /= 2  #-
    #+ for p in net.parameters():
    #+     p.grad.copy_(torch.where(overflow, 0, p.grad / scale))
    #+ opt.step()
    #+ scale.copy_(torch.where(overflow, scale / 2, scale * 1.01))
    return loss.detach()
# %% Nesterov momentum with buffers in a dictionary that begins empty, clean -> sgd_step
w = torch.randn(4, 3, device=device, requires_grad=True)
state = {}
args = (torch.randn(8, 4, device=device), torch.randn(8, 3, device=device))

def sgd_step(x, y):
    loss = F.mse_loss(x @ w, y)
    g = torch.autograd.grad(loss, w)[0]
    with torch.no_grad():
        if "momentum" not in state:
            state["momentum"] = torch.clone(g).detach()
        else:
            state["momentum"].mul_(0.9).add_(g)
        w.sub_(0.1 * (g + 0.9 * state["momentum"]))
    return loss.detach()
# %% weights are averaged from a step on -> train_step
net = nn.Linear(3, 1).to(device)
avg = nn.Linear(3, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
steps, n_avg = 0, 0  #-
#+ steps, n_avg = torch.zeros((), device=device), torch.zeros((), device=device)
args = (torch.randn(8, 3, device=device), torch.randn(8, 1, device=device))

def train_step(x, y):
    global steps, n_avg  #-
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    steps += 1  #- expect: host-counter
    if steps >= 3:  #- expect: branch-frozen
        with torch.no_grad():  #-
            for a, p in zip(avg.parameters(), net.parameters()):  #-
                a.add_((p - a) / (n_avg + 1))  #- may: scalar-frozen
        n_avg += 1  #- may: host-counter
    #+ steps.add_(1)
    #+ on = steps >= 3
    #+ with torch.no_grad():
    #+     for a, p in zip(avg.parameters(), net.parameters()):
    #+         a.add_(torch.where(on, (p - a) / (n_avg + 1), 0))
    #+ n_avg.add_(on)
    return loss.detach()
