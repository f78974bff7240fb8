# %% prefetcher with a copy stream and pinned memory -> preload_and_run
copy_stream = cuda.Stream()
model = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)
staging = torch.randn(3, 4).pin_memory()

@torch.no_grad()
def preload_and_run(x):
    #+ copy_stream.wait_stream(cuda.current_stream())
    with cuda.stream(copy_stream):
        nxt = staging.to(device, non_blocking=True)  # expect: not-forked|work-elsewhere
    y = model(x)
    cuda.current_stream().wait_stream(copy_stream)  # may: isolation
    return y + model(nxt)
# %% two branches of a network on two streams, joined -> forward
s1, s2 = cuda.Stream(), cuda.Stream()
left, right = nn.Linear(4, 4).to(device), nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def forward(x):
    cur = cuda.current_stream()
    s1.wait_stream(cur)
    s2.wait_stream(cur)
    with cuda.stream(s1):
        a = left(x)
    with cuda.stream(s2):
        b = right(x)
    cur.wait_stream(s1)
    cur.wait_stream(s2)
    return a + b
# %% a branch with events, whose join was forgotten -> forward
side = cuda.Stream()
net, aux = nn.Linear(4, 4).to(device), nn.Linear(4, 1).to(device)
aux_out = torch.zeros(3, 1, device=device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def forward(x):
    ready = cuda.Event()
    ready.record()
    side.wait_event(ready)
    with cuda.stream(side):
        aux_out.copy_(aux(x))  # expect: unjoined-work
    y = net(x)
    #+ cuda.current_stream().wait_stream(side)
    return y
# %% loader iteration in the step -> train_batch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(40).float().view(20, 2)), batch_size=2)
batches = iter(loader)
model = nn.Linear(2, 1).to(device)
args = (torch.ones((), device=device),)
#+ batch_in = torch.zeros(2, 2, device=device)
ignore = {"result", "batch_in"}

@torch.no_grad()
def train_batch(scale):
    (xb,) = next(batches)  #- may: host-random host-counter
    xb = xb.to(device, non_blocking=True)  #- expect: copy-to-gpu
    #+ xb = batch_in
    return model(xb).mean() * scale
#+ def feed(i):
#+     batch_in.copy_(next(batches)[0])
#+     return (torch.full((), 1.0 + i).to(device),)
# %% the whole epoch in one call -> epoch
from torch.utils.data import DataLoader, TensorDataset
dataset = TensorDataset(torch.arange(16).float().view(8, 2), torch.arange(8).float().view(8, 1))
loader = DataLoader(dataset, batch_size=4)
model = nn.Linear(2, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=1e-4)
args = ()
#+ batches = [(x.to(device), y.to(device)) for x, y in loader]

def epoch():
    total = 0.0
    for X, y in loader:  #- may: rng-state host-random
        X, y = X.to(device), y.to(device)  #- expect: copy-to-gpu
    #+ for X, y in batches:
        loss = F.mse_loss(model(X), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(X)  #- expect: sync-item
        #+ total = total + loss.detach() * len(X)
    return total / len(dataset)
# %% a checkpoint every few steps -> train_step
import io
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
step, checkpoints = 0, []
args = (torch.randn(4, 4, device=device),)

def train_step(x):
    global step  #-
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1  #- expect: host-counter
    if step % 5 == 0:  #- expect: branch-frozen
        buffer = io.BytesIO()  #-
        torch.save({"model": model.state_dict(), "loss": loss}, buffer)  #-
        checkpoints.append(len(buffer.getvalue()))  #-
    return loss.detach()
#+ def after(loss, i):
#+     global step
#+     step += 1
#+     if step % 5 == 0:
#+         buffer = io.BytesIO()
#+         torch.save({"model": model.state_dict(), "loss": loss}, buffer)
#+         checkpoints.append(len(buffer.getvalue()))
ignore = {"checkpoints"}
# %% memory statistics in the loop -> forward
model = nn.Linear(4, 4).to(device)
peak = []
args = (torch.randn(2, 4, device=device),)
ignore = {"peak"}

@torch.no_grad()
def forward(x):
    y = model(x)
    peak.append(cuda.memory_allocated())  #- expect: host-counter
    return y
# %% results moved to a pinned host buffer -> export
host = torch.empty(3, 2).pin_memory()
model = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def export(x):
    y = model(x)
    host.copy_(y)  #- expect: blocking-copy|copy-to-cpu
    #+ host.copy_(y, non_blocking=True)
    return y
# %% half precision with float32 islands, clean -> forward
lin, norm = nn.Linear(8, 8).to(device), nn.LayerNorm(8).to(device)
args = (torch.randn(2, 8, device=device),)

@torch.no_grad()
def forward(x):
    h = lin(x).to(torch.bfloat16)
    return norm(h.float()).to(torch.bfloat16).float().clamp(-3, 3)
# %% a GradScaler loop as the recipe shows -> train_step
model = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)  #-
#+ opt = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
scaler = torch.amp.GradScaler(device.type, init_scale=4.0)  # may: grad-scaler
args = (torch.randn(4, 4, device=device), torch.randn(4, 1, device=device))
ignore = {"result", "model"}

def train_step(x, y):
    loss = F.mse_loss(model(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()  # may: tensor-literal copy-to-gpu
    scaler.step(opt)  #- expect: grad-scaler
    scaler.update()  #- may: grad-scaler sync-item
    #+ opt.step()
    return loss.detach()
# %% a gain that is a tensor of the CPU, and moves -> forward
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.gain = torch.tensor(0.5)  #-
        #+ self.register_buffer("gain", torch.tensor(0.5))
    def forward(self, x):
        self.gain += 0.1  # expect: cpu-scalar-frozen|host-counter
        return self.lin(x) * self.gain  # may: cpu-operand cpu-scalar-frozen

net = Scaled().to(device)
args = (torch.randn(2, 4, device=device),)
ignore = {"net"}

@torch.no_grad()
def forward(x):
    return net(x)
# %% seeds set for reproducible dropout -> forward
drop = nn.Dropout(0.5)
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)
ignore = {"result"}

@torch.no_grad()
def forward(x):
    torch.manual_seed(42)  #- expect: reseeded|rng-state
    return drop(lin(x))
# %% a profiler around the step -> forward
from torch.profiler import record_function
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def forward(x):
    with record_function("linear"):
        y = lin(x)
    with record_function("softmax"):
        return y.softmax(-1)
