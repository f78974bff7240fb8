# %% frames per chunk grow slowly with the call -> render
n_calls = 0
video = torch.rand(12, 3, 2, 2).to(device)
args = (torch.ones((), device=device),)
ignore = {"result", "n_calls"}
#+ n_in = torch.full((), 2, device=device)

def chunk():
    global n_calls  #-
    n_calls += 1  #- expect: host-counter
    return min(12, 2 + n_calls // 4)  #-
    #+ return None

def render(scale):
    return video[:chunk()].mean(0) * scale  #- expect: size-frozen
    #+ keep = (torch.arange(12, device=device) < n_in).float()[:, None, None, None]
    #+ return (video * keep).sum(0) / n_in * scale
# %% an upload event of another thread is waited for -> show
upload = cuda.Stream()
uploaded = cuda.Event()
texture = torch.zeros(2, 2, device=device)
with cuda.stream(upload):
    texture.add_(0.5)
uploaded.record(upload)
cuda.synchronize()
args = (torch.randn(2, 2, device=device),)

def show(x):
    uploaded.wait()  #- expect: isolation|captured-event
    return x + texture
# %% the other stream was given work before the step and is joined in it -> show
side = cuda.Stream()
scratch = torch.zeros(2, 2, device=device)
with cuda.stream(side):
    scratch.add_(0.5)
args = (torch.randn(2, 2, device=device),)

def show(x):
    cuda.current_stream().wait_stream(side)  #- expect: isolation
    return x + scratch
# %% an external event marks the end of the graph's part, clean -> show
finished = cuda.Event(external=True)
args = (torch.randn(2, 2, device=device),)

def show(x):
    y = x * 2
    finished.record()
    return y
# %% a histogram of an image normalizes it -> equalize
args = (torch.rand(4, 4, device=device),)
ignore = {"result"}

def cdf(img, bins=8):
    hist = torch.histc(img, bins)  #- expect: hidden-size
    #+ hist = torch.histc(img, bins, min=0.0, max=1.0)
    return hist.cumsum(0) / img.numel()

def equalize(img):
    return cdf(img)[(img * 7).long()]
# %% onset frames found with a peak picker -> onsets
args = (torch.rand(1, 16, device=device),)
ignore = {"result"}

def peaks(env):
    is_peak = (env[1:-1] > env[:-2]) & (env[1:-1] > env[2:])
    return is_peak.nonzero().squeeze(-1) + 1  #- expect: dynamic-shape
    #+ return is_peak

def onsets(wave):
    return [peaks(channel) for channel in wave]
# %% a delay line written at a moving position of Python -> delay
line = torch.zeros(16).to(device)
class Delay:
    def __init__(self): self.at = 0
    def __call__(self, block):
        n = block.numel()
        out = line[self.at:self.at + n].clone()  #- expect: size-frozen
        line[self.at:self.at + n] = block  #- expect: size-frozen
        self.at = (self.at + n) % 16  #- expect: host-counter
        #+ where = (at + torch.arange(n, device=device)) % 16
        #+ out = line[where]
        #+ line.index_copy_(0, where, block)
        #+ at.copy_((at + n) % 16)
        return out
#+ at = torch.zeros(1, dtype=torch.long, device=device)
delay_line = Delay()
args = (torch.randn(4, device=device),)
def delay(block):
    return delay_line(block)
# %% gain is ramped by linspace between Python numbers, clean -> fade
args = (torch.randn(8, device=device),)
def fade(x, lo=0.0, hi=1.0):
    return x * torch.linspace(lo, hi, x.numel(), device=x.device)
# %% a loudness meter in dB is shown as text -> meter
shown = []
ignore = {"shown"}
args = (torch.randn(8, device=device),)
def db(x):
    return 20 * math.log10(x.square().mean().sqrt() + 1e-9)  #- expect: sync-item
    #+ return 20 * torch.log10(x.square().mean().sqrt() + 1e-9)
def meter(x):
    shown.append(f"{db(x):.1f} dB")  #- may: host-counter
    return x * 0.5
# %% augmentations are picked with random.choice from functions (random) -> augment
args = (torch.rand(2, 3, 4, 4, device=device),)
def flip(x): return x.flip(-1)
def darken(x): return x * 0.5
def same(x): return x
ops = [flip, darken, same]
def augment(x):
    op = random.choice(ops)  #- may: host-random
    return op(x)  #- expect: branch-frozen|host-random
    #+ pick = torch.randint(0, 3, (), device=x.device)
    #+ return torch.where(pick == 0, flip(x), torch.where(pick == 1, darken(x), x))
