# %% a conditional random field's likelihood -> nll
K, T, B = 3, 4, 2
start, end, transitions = (nn.Parameter(torch.randn(*s, device=device)) for s in ((K,), (K,), (K, K)))
args = (torch.randn(T, B, K, device=device), torch.randint(0, K, (T, B), device=device), torch.ones(T, B, dtype=torch.bool, device=device))

def nll(emissions, tags, mask):
    batch = torch.arange(B, device=emissions.device)
    score = start[tags[0]] + emissions[0, batch, tags[0]]
    alpha = start + emissions[0]
    for i in range(1, T):
        score = score + (transitions[tags[i - 1], tags[i]] + emissions[i, batch, tags[i]]) * mask[i]
        step = torch.logsumexp(alpha.unsqueeze(2) + transitions + emissions[i].unsqueeze(1), dim=1)
        alpha = torch.where(mask[i].unsqueeze(1), step, alpha)
    last = mask.long().sum(0) - 1
    score = score + end[tags[last, batch]]
    return (torch.logsumexp(alpha + end, dim=1) - score).mean().detach()
# %% the best path of a random field -> decode
K, T, B = 3, 4, 2
transitions = torch.randn(K, K, device=device)
args = (torch.randn(T, B, K, device=device),)

def decode(emissions):
    score, history = emissions[0], []
    for i in range(1, T):
        best, index = (score.unsqueeze(2) + transitions + emissions[i].unsqueeze(1)).max(dim=1)
        score = best
        history.append(index)
    paths = []  #-
    for b in range(B):  #-
        _, last = score[b].max(dim=0)  #-
        path = [last.item()]  #- expect: sync-item
        for hist in reversed(history):  #-
            path.append(hist[b][path[-1]].item())  #- expect: sync-item
        paths.append(path[::-1])  #-
    return torch.tensor(paths)  #-
    #+ tags = [score.argmax(1)]
    #+ for hist in reversed(history):
    #+     tags.append(hist.gather(1, tags[-1][:, None]).squeeze(1))
    #+ return torch.stack(tags[::-1], dim=1)
# %% slopes of linear biases from a list -> attend
slopes = [2 ** (-8 * (i + 1) / 4) for i in range(4)]
args = (torch.randn(1, 4, 5, 6, device=device),)

def attend(q):
    positions = torch.arange(q.size(2), device=q.device)
    distance = (positions[None, :] - positions[:, None]).abs()
    bias = -torch.tensor(slopes, device=q.device)[:, None, None] * distance  #- expect: tensor-literal
    #+ bias = -slopes_[:, None, None] * distance
    return F.scaled_dot_product_attention(q, q, q, attn_mask=bias[None].to(q.dtype))
#+ slopes_ = torch.tensor(slopes, device=device)
# %% a streaming convolution with a buffer -> stream
class Streaming(nn.Module):
    def __init__(self, channels=3, kernel=4):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel)
        self.register_buffer("tail", torch.zeros(1, channels, kernel - 1))
    def forward(self, chunk):
        x = torch.cat([self.tail, chunk], dim=-1)
        self.tail = x[..., -self.tail.size(-1):].detach()  #- expect: stale-input
        #+ self.tail.copy_(x[..., -self.tail.size(-1):].detach())
        return self.conv(x)

net = Streaming().to(device)
args = (torch.randn(1, 3, 2, device=device),)

@torch.no_grad()
def stream(chunk):
    return net(chunk)
# %% noise of numpy's on the host (random) -> noisy
net = nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device),)

def noisy(x):
    noise = np.random.randn(*x.shape).astype("float32")  #- may: host-random
    noise = torch.from_numpy(noise).to(x.device)  #- expect: copy-to-gpu may: host-random
    #+ noise = torch.randn_like(x)
    return net(x + 0.1 * noise).detach()
# %% the clock as a phase -> animate
began = time.time()
args = (torch.randn(4, device=device),)  #-
#+ args = (torch.randn(4, device=device), torch.zeros((), device=device))

def animate(x):  #-
#+ def animate(x, phase):
    phase = time.time() - began  #-
    return torch.sin(x + phase)  # expect: scalar-frozen

def seen(out):
    return None
# %% sensors behind a numpy view -> read_and_filter
sensor = np.zeros(4, dtype=np.float32)
staging = torch.from_numpy(sensor)
smoothed = torch.zeros(4, device=device)
_ticks = [0]
def read_sensor():
    _ticks[0] += 1  #- expect: host-counter
    #+ _ticks[0] += 1
    sensor[:] = np.arange(4) + _ticks[0]  # may: host-counter
args = ()
#+ arrived = torch.zeros(4, device=device)
#+ ignore = ("arrived",)
#+ def pull():
#+     read_sensor()
#+     arrived.copy_(staging)
#+ pull()

def read_and_filter():
    read_sensor()  #-
    arrived = staging.to(device, non_blocking=True)  #- expect: copy-to-gpu may: stale-input
    smoothed.mul_(0.8).add_(arrived, alpha=0.2)
    return smoothed.sum()
#+
#+ ignore = ("arrived", "sensor", "staging")
#+ def after(out, i):
#+     pull()
