# %% flatten gradients into a bucket -> all_reduce_step
world_size = 2
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device), torch.randn(4, 2, device=device))

def all_reduce_step(x, y):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    grads = [p.grad for p in model.parameters()]
    flat = torch._utils._flatten_dense_tensors(grads)
    flat.div_(world_size)
    for g, synced in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads)):
        g.copy_(synced)
    opt.step()
    return loss.detach()
# %% communication on a side stream without waiting for it -> step
comm_stream = cuda.Stream()
model = nn.Linear(4, 4).to(device)
bucket = torch.zeros(20, device=device)
args = (torch.randn(4, 4, device=device),)
def step(x):
    y = model(x)
    comm_stream.wait_stream(cuda.current_stream())
    with cuda.stream(comm_stream):
        bucket[:16].copy_(y.detach().flatten())  #- expect: unjoined-work
        #+ bucket[:16].copy_(y.detach().flatten())
    #+ cuda.current_stream().wait_stream(comm_stream)
    return y.detach()
# %% a side stream that does not wait for its input -> step
comm_stream = cuda.Stream()
model = nn.Linear(4, 4).to(device)
args = (torch.randn(4, 4, device=device),)
@torch.no_grad()
def step(x):
    y = model(x)
    #+ comm_stream.wait_stream(cuda.current_stream())
    with cuda.stream(comm_stream):
        z = y * 2  #- expect: work-elsewhere|not-forked
        #+ z = y * 2
    cuda.current_stream().wait_stream(comm_stream)  # expect: isolation|not-forked|work-elsewhere
    return z
# %% overlapping two branches -> two_towers
user, item = nn.Linear(4, 8).to(device), nn.Linear(6, 8).to(device)
side = cuda.Stream()
args = (torch.randn(3, 4, device=device), torch.randn(3, 6, device=device))
@torch.no_grad()
def two_towers(u, v):
    main = cuda.current_stream()
    side.wait_stream(main)
    with cuda.stream(side):
        b = F.normalize(item(v), dim=1)
    a = F.normalize(user(u), dim=1)
    main.wait_stream(side)
    return a @ b.t()
# %% prefetch the next batch -> prefetching_step
class Prefetcher:
    def __init__(self, data):
        self.data, self.i, self.stream = data, 0, cuda.Stream()
        self.preload()
    def preload(self):
        with cuda.stream(self.stream):
            self.next = self.data[self.i % len(self.data)].to(device, non_blocking=True)  #- expect: copy-to-gpu may: work-elsewhere stale-input
            #+ self.next = self.data[self.i % len(self.data)].to(device, non_blocking=True)
    def get(self):
        cuda.current_stream().wait_stream(self.stream)  #- may: isolation work-elsewhere
        #+ cuda.current_stream().wait_stream(self.stream)
        batch = self.next
        self.i += 1  #- expect: host-counter
        #+ self.i += 1
        self.preload()
        return batch

batches = [torch.randn(4, 4, generator=torch.Generator().manual_seed(i)) for i in range(12)]
prefetcher = Prefetcher(batches)
model = nn.Linear(4, 2).to(device)
args = ()  #-
#+ args = (batches[0].to(device),)
#+ def feed(i):
#+     return (prefetcher.get(),)
def prefetching_step():  #-
    x = prefetcher.get()  #- may: stale-input
    return model(x).detach()  #- expect: stale-input
#+ def prefetching_step(x):
#+     return model(x).detach()
# %% gradient accumulation with a flag from outside -> micro_step
model = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for p in model.parameters():
    p.grad = torch.zeros_like(p)
args = (torch.randn(4, 4, device=device), torch.randn(4, 2, device=device))
def micro_step(x, y):
    loss = F.mse_loss(model(x), y) / 2
    loss.backward()
    return loss.detach()
def after(loss, i):
    if i % 2 == 1:
        opt.step()
        opt.zero_grad(set_to_none=False)
# %% the loop around sets gradients to None -> forward_backward
model = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device), torch.randn(4, 2, device=device))
#+ for p in model.parameters():
#+     p.grad = torch.zeros_like(p)
def forward_backward(x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss.detach()
def train(loader):
    for x, y in loader:
        forward_backward(x, y)
        opt.step()
        opt.zero_grad()  #- expect: gradients-rebound
        #+ opt.zero_grad(set_to_none=False)
def after(loss, i):  # what the loop does, for those who only call
    opt.step()
    opt.zero_grad()  #- may: gradients-rebound
    #+ opt.zero_grad(set_to_none=False)
# %% tensor parallel halves of a linear layer -> column_parallel
halves = nn.ModuleList(nn.Linear(4, 3) for _ in range(2)).to(device)
args = (torch.randn(2, 4, device=device),)
def column_parallel(x):
    return torch.cat([half(x) for half in halves], dim=-1).detach()
# %% offload an activation to the CPU and back -> offloaded
a, b = nn.Linear(4, 16).to(device), nn.Linear(16, 2).to(device)
args = (torch.randn(2, 4, device=device),)
@torch.no_grad()
def offloaded(x):
    h = a(x).relu()
    kept = h.to("cpu")  #- expect: copy-to-cpu
    y = b(h)
    return y + kept.to(device).sum()  #- expect: copy-to-gpu
    #+ return y + h.sum()
# %% a barrier before the optimizer -> step
model = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device),)
def step(x):
    opt.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    cuda.current_stream().synchronize()  #- expect: synchronize
    opt.step()
    return loss.detach()
