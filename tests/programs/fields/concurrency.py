# %% a double buffer overlaps a copy with compute, joined, clean -> step
copy_stream = cuda.Stream()
host = torch.randn(3, 4).pin_memory()
front = torch.zeros(3, 4, device=device)
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def step(x):
    copy_stream.wait_stream(cuda.current_stream())
    with cuda.stream(copy_stream):
        front.copy_(host, non_blocking=True)
    y = lin(x)
    cuda.current_stream().wait_stream(copy_stream)
    return y + lin(front)
# %% an event is polled until the copy is done -> step
copy_stream = cuda.Stream()
host = torch.randn(3, 4).pin_memory()
front = torch.zeros(3, 4, device=device)
args = (torch.randn(3, 4, device=device),)

class Transfer:
    def start(self):
        copy_stream.wait_stream(cuda.current_stream())
        self.done = cuda.Event()
        with cuda.stream(copy_stream):
            front.copy_(host, non_blocking=True)
            self.done.record()
    def finish(self):
        while not self.done.query():  #- expect: query|captured-event
            time.sleep(0)  #-
        cuda.current_stream().wait_event(self.done)

transfer = Transfer()
def step(x):
    transfer.start()
    y = x * 2
    transfer.finish()
    return y + front
# %% synchronize in __exit__ of a timer -> infer
class Timer:
    def __enter__(self):
        self.t0 = time.perf_counter()  #- may: host-counter
        return self
    def __exit__(self, *exc):
        cuda.synchronize()  #- expect: synchronize
        self.ms = (time.perf_counter() - self.t0) * 1e3  #- may: host-counter
        #+ pass

timer = Timer()
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def infer(x):
    with timer:
        return lin(x)
# %% the stream is synchronized before numpy reads a pinned result -> export
out_host = torch.zeros(3, 2).pin_memory()
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)
ignore = {"out_host", "result"}

@torch.no_grad()
def export(x):
    out_host.copy_(lin(x), non_blocking=True)
    cuda.current_stream().synchronize()  #- expect: synchronize
    return float(out_host.numpy().sum())  #- may: host-counter
    #+ return lin(x).sum()
# %% a thread pool runs two branches -> forward
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)
left, right = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)

def run(m, x):
    with torch.no_grad():
        return m(x)  #- expect: work-elsewhere|not-forked|legacy-launch|default-stream may: work-elsewhere not-forked legacy-launch default-stream
        #+ return m(x)

def forward(x):
    futures = [pool.submit(run, m, x) for m in (left, right)]  #-
    return sum(f.result() for f in futures)  #- may: isolation stale-input output-alias
    #+ return run(left, x) + run(right, x)
# %% a background thread logs a value in the middle -> step
import threading
logged = []
lin = nn.Linear(4, 2).to(device)
args = (torch.randn(3, 4, device=device),)
ignore = {"logged"}

def log_async(value):
    def work():
        logged.append(value.item())  #- expect: work-elsewhere may: host-counter sync-item
        #+ pass
    t = threading.Thread(target=work)  #-
    t.start()  #-
    t.join()  #-

@torch.no_grad()
def step(x):
    y = lin(x)
    log_async(y.mean())
    return y
# %% memory is given back and statistics reset each step -> step
lin = nn.Linear(4, 2).to(device)
peaks = []
ignore = {"peaks"}
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def step(x):
    y = lin(x)
    peaks.append(cuda.max_memory_allocated())  #- expect: host-counter
    return y
# %% an event from outside is waited for inside -> step
ready = cuda.Event()
side = cuda.Stream()
buf = torch.zeros(3, device=device)
with cuda.stream(side):
    buf.add_(1)
    ready.record()
args = (torch.randn(3, device=device),)

def step(x):
    cuda.current_stream().wait_event(ready)  #- expect: isolation|captured-event
    return x + buf
# %% an NVTX-like range and record_function around blocks, clean -> step
from contextlib import contextmanager
from torch.profiler import record_function
lin = nn.Linear(4, 2).to(device)
depth = [0]
args = (torch.randn(3, 4, device=device),)

@contextmanager
def span(name):
    with record_function(name):
        yield

@torch.no_grad()
def step(x):
    with span("a"):
        y = lin(x)
    with span("b"):
        return y.relu()
# %% each head on a stream of its own from a list, one join forgotten -> heads
streams = [cuda.Stream() for _ in range(3)]
projections = [nn.Linear(4, 2).to(device) for _ in range(3)]
outs = [torch.zeros(3, 2, device=device) for _ in range(3)]
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def heads(x):
    main = cuda.current_stream()
    for s, p, o in zip(streams, projections, outs):
        s.wait_stream(main)
        with cuda.stream(s):
            o.copy_(p(x))  #- expect: unjoined-work
            #+ o.copy_(p(x))
    for s in streams[:2]:  #-
    #+ for s in streams:
        main.wait_stream(s)
    return outs[0] + outs[1]
# %% a generator of its own draws the noise (random) -> noisy
gen = torch.Generator(device=device)
gen.manual_seed(3)
args = (torch.randn(4, device=device),)

def noisy(x):
    return x + torch.randn(4, device=device, generator=gen)  #- expect: unregistered-generator|not-simulated
    #+ return x + torch.randn(4, device=device)
# %% random state is saved and put back around dropout, clean -> two_views
drop = nn.Dropout(0.5)
args = (torch.randn(2, 6, device=device),)

def two_views(x):
    state = cuda.get_rng_state()
    a = drop(x)
    cuda.set_rng_state(state)
    b = drop(x)
    return a - b
