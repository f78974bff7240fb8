# %% GradScaler -> train_step
model = nn.Linear(8, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(device.type, init_scale=256.0)
args = (torch.randn(4, 8, device=device), torch.randn(4, 2, device=device))
#+ for p in model.parameters():
#+     p.grad = torch.zeros_like(p)

def train_step(x, y):
    optimizer.zero_grad()  #-
    #+ optimizer.zero_grad(set_to_none=False)
    with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
        loss = F.mse_loss(model(x).float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)  #- expect: grad-scaler
    scaler.update()  #- may: grad-scaler sync-item
    return loss.detach()
#+
#+ def after(loss, i):
#+     scaler.step(optimizer)
#+     scaler.update()
# %% bfloat16 autocast -> train_step
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
args = (torch.randn(4, 8, device=device), torch.randint(0, 4, (4,), device=device))

def train_step(x, y):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
        logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
    loss.backward()
    optimizer.step()
    return loss.detach()
# %% a loss scale by hand -> step
model = nn.Linear(6, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
loss_scale = 1024.0  #-
#+ loss_scale = torch.tensor(1024.0, device=device)
args = (torch.randn(4, 6, device=device), torch.randn(4, 1, device=device))
ignore = {"loss_scale"}

def step(x, y):
    global loss_scale  #-
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    (loss * loss_scale).backward()  # may: scalar-frozen
    overflow = any(not torch.isfinite(p.grad).all() for p in model.parameters())  #- expect: data-dependent-branch
    #+ overflow = torch.stack([~torch.isfinite(p.grad).all() for p in model.parameters()]).any()
    if overflow:  #- may: branch-frozen
        loss_scale /= 2  #- may: host-counter
    else:  #-
        for p in model.parameters():  #-
            p.grad.div_(loss_scale)  #- may: scalar-frozen
        opt.step()  #-
    #+ for p in model.parameters():
    #+     p.grad = torch.where(overflow, 0.0, p.grad / loss_scale)
    #+ opt.step()
    #+ loss_scale.mul_(torch.where(overflow, 0.5, 1.0))
    return loss.detach()
# %% float32 master weights -> step
half = nn.Linear(6, 2).to(device).to(torch.bfloat16)
master = [p.detach().float().clone().requires_grad_() for p in half.parameters()]
opt = torch.optim.SGD(master, lr=0.1, momentum=0.9)
args = (torch.randn(4, 6, device=device), torch.randn(4, 2, device=device))

def step(x, y):
    half.zero_grad()
    loss = F.mse_loss(half(x.to(torch.bfloat16)).float(), y)
    loss.backward()
    for m, p in zip(master, half.parameters()):
        m.grad = p.grad.float()
    opt.step()
    with torch.no_grad():
        for m, p in zip(master, half.parameters()):
            p.copy_(m)
    return loss.detach()
# %% quantize weights per channel -> int8_linear
weight = torch.randn(4, 6, device=device)
args = (torch.randn(3, 6, device=device),)

def int8_linear(x):
    scale = weight.abs().amax(1, keepdim=True) / 127
    q = torch.clamp((weight / scale).round(), -128, 127).to(torch.int8)
    return x @ (q.float() * scale).t()
# %% a scale from the largest activation -> fp8_like
lin = nn.Linear(6, 4).to(device)
amax_history = []
args = (torch.randn(3, 6, device=device),)
def fp8_like(x):
    amax = x.abs().max()
    amax_history.append(amax)  #- expect: output-alias may: host-counter
    scale = 448.0 / amax.item()  #- expect: sync-item
    return lin((x * scale).clamp(-448, 448) / scale)  #- may: scalar-frozen
    #+ scale = 448.0 / amax
    #+ return lin((x * scale).clamp(-448, 448) / scale), amax
#+
#+ def after(out, i):
#+     amax_history.append(out[1].clone())

def seen(out):
    return out[0] if isinstance(out, tuple) else out
# %% cast the batch as the model wants it -> forward
model = nn.Linear(6, 4).to(device).to(torch.float16)
args = (torch.randn(3, 6, device=device),)

def forward(batch):
    dtype = next(model.parameters()).dtype
    return model(batch.to(dtype)).float()
# %% autocast from outside keeps its casts -> outer
model = nn.Linear(6, 6).to(device)
args = (torch.randn(3, 6, device=device),)

def outer(x):
    with torch.autocast(device_type=device.type, dtype=torch.bfloat16, cache_enabled=False):
        for _ in range(2):
            x = model(x).relu()
    return x.float()
# %% detect overflow by summing -> check_overflow
model = nn.Linear(5, 1).to(device)
args = (torch.randn(4, 5, device=device),)

def check_overflow(x):
    model.zero_grad()
    loss = model(x).sum()
    loss.backward()
    cpu_sum = float(model.weight.grad.float().sum())  #- expect: sync-item
    if cpu_sum == float("inf") or cpu_sum != cpu_sum:  #- may: branch-frozen
        return loss * 0  #-
    return loss.detach()  #-
    #+ total = model.weight.grad.float().sum()
    #+ return torch.where(torch.isfinite(total), loss.detach(), 0.0)
# %% stochastic rounding -> update
param = torch.randn(4, 4, device=device, dtype=torch.bfloat16)
args = (torch.randn(4, 4, device=device),)

@torch.no_grad()
def update(grad):
    target = param.float() - 0.01 * grad
    noise = torch.randint(0, 1 << 16, target.shape, device=device, dtype=torch.int32)
    bits = target.view(torch.int32) + noise
    param.copy_((bits & -65536).view(torch.float32))
    return param.float()
