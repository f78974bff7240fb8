# %% a greedy CTC decoder collapses repeats per utterance -> transcribe
encoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)).to(device)
args = (torch.randn(2, 7, 6, device=device),)
ignore = {"result"}

def collapse(path):
    path = torch.unique_consecutive(path)  #- expect: dynamic-shape|hidden-size
    path = path[path != 0]  #- expect: dynamic-shape
    #+ path = torch.where((path != 0) & (path != path.roll(1)), path, 0)
    return path

@torch.no_grad()
def transcribe(features):
    best = encoder(features).argmax(-1)
    return [collapse(row) for row in best]
# %% a transducer emits symbols until blank -> greedy
class Joint(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.out = nn.Linear(8, 5)
    def forward(self, frame, token):
        return self.out(torch.cat([frame, self.embed(token)], -1))

joint = Joint().to(device)
args = (torch.randn(3, 4, device=device),)
ignore = {"result"}

@torch.no_grad()
def greedy(frames):
    last, hypothesis = 0, []  #-
    #+ last, hypothesis = torch.zeros((), dtype=torch.long, device=device), []
    for t in range(frames.size(0)):
        token = torch.tensor(last, device=frames.device)  #- expect: tensor-literal
        #+ token = last
        symbol = joint(frames[t], token).argmax()
        if symbol != 0:  #- expect: data-dependent-branch
            last = symbol.item()  #- may: sync-item
            hypothesis.append(last)  #-
        #+ last = torch.where(symbol != 0, symbol, last)
        #+ hypothesis.append(symbol)
    return hypothesis
# %% streaming chunks with a cache of left context, clean -> push
class StreamingConv(nn.Module):
    def __init__(self, channels=3, kernel=4):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel)
        self.register_buffer("cache", torch.zeros(1, channels, kernel - 1))
    def forward(self, chunk):
        x = torch.cat([self.cache, chunk], dim=-1)
        self.cache.copy_(x[..., -self.cache.size(-1):])
        return self.conv(x)

conv = StreamingConv().to(device)
args = (torch.randn(1, 3, 6, device=device),)

@torch.no_grad()
def push(chunk):
    return conv(chunk)
# %% the streaming cache is replaced by a new tensor each chunk -> push
class StreamingConv(nn.Module):
    def __init__(self, channels=3, kernel=4):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel)
        self.cache = torch.zeros(1, channels, kernel - 1, device=device)
    def forward(self, chunk):
        x = torch.cat([self.cache, chunk], dim=-1)  #- expect: stale-input
        #+ x = torch.cat([self.cache, chunk], dim=-1)
        self.cache = x[..., -3:]  #-
        #+ self.cache.copy_(x[..., -3:])
        return self.conv(x)

conv = StreamingConv().to(device)
args = (torch.randn(1, 3, 6, device=device),)

@torch.no_grad()
def push(chunk):
    return conv(chunk)
# %% SpecAugment draws its masks with Python's generator (random) -> augment
args = (torch.randn(2, 8, 10, device=device),)

class SpecAugment(nn.Module):
    def __init__(self, freq=3, n=2):
        super().__init__()
        self.freq, self.n = freq, n
    def forward(self, mel):
        mel = mel.clone()
        for _ in range(self.n):
            f0 = random.randint(0, mel.size(1) - self.freq)  #- may: host-random
            mel[:, f0:f0 + self.freq] = 0  #- expect: host-random may: size-frozen
            #+ f0 = torch.randint(0, mel.size(1) - self.freq + 1, (1,), device=mel.device)
            #+ rows = torch.arange(mel.size(1), device=mel.device)
            #+ mel *= ~((rows >= f0) & (rows < f0 + self.freq))[None, :, None]
        return mel

spec = SpecAugment()
def augment(mel):
    return spec(mel)
# %% padding masks from a list of lengths -> encode
attention = nn.MultiheadAttention(4, 2, batch_first=True).to(device).eval()
args = (torch.randn(3, 6, 4, device=device),)
lengths = [6, 4, 5]
#+ lengths_gpu = torch.tensor(lengths, device=device)

def make_pad_mask(lengths, maxlen):
    steps = torch.arange(maxlen, device=device)
    return steps[None] >= torch.tensor(lengths, device=device)[:, None]  #- expect: tensor-literal
    #+ return steps[None] >= lengths_gpu[:, None]

@torch.no_grad()
def encode(x):
    mask = make_pad_mask(lengths, x.size(1))
    return attention(x, x, x, key_padding_mask=mask, need_weights=False)[0]
# %% packed sequences of sorted lengths -> run_lstm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
lstm = nn.LSTM(3, 4, batch_first=True).to(device)
args = (torch.randn(2, 5, 3, device=device), torch.tensor([5, 3], device=device))
def feed(i):
    return torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([5, 3]).to(device)

@torch.no_grad()
def run_lstm(x, lengths):
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True)  #- expect: copy-to-cpu may: copy-to-gpu dynamic-shape
    out, _ = lstm(packed)  #- may: size-frozen
    out, _ = pad_packed_sequence(out, batch_first=True)  #- may: copy-to-gpu copy-to-cpu size-frozen
    #+ out, _ = lstm(x)
    #+ out = out * (torch.arange(5, device=x.device)[None] < lengths[:, None])[..., None]
    return out
# %% voice activity gates which frames are encoded -> gated
vad, enc = nn.Linear(4, 1).to(device), nn.Linear(4, 4).to(device)
args = (torch.randn(6, 4, device=device),)

@torch.no_grad()
def gated(frames):
    speech = (vad(frames).squeeze(-1) > 0)
    out = torch.zeros_like(frames)
    out[speech] = enc(frames[speech])  #- expect: dynamic-shape|mask-assignment may: mask-assignment dynamic-shape
    #+ out = torch.where(speech[:, None], enc(frames), out)
    return out
# %% log-mel features with a window made on the host -> logmel
args = (torch.randn(1, 64, device=device),)
#+ window_gpu = torch.hann_window(16).to(device)

def logmel(wave):
    window = torch.hann_window(16)  #-
    frames = wave.unfold(-1, 16, 8) * window.to(wave.device)  #- expect: copy-to-gpu
    #+ frames = wave.unfold(-1, 16, 8) * window_gpu
    return torch.log(frames.square().sum(-1).clamp_min(1e-6))
# %% word error counted against strings of references -> score_batch
vocab = ["_", "a", "b", "c"]
head = nn.Linear(4, 4).to(device)
references = ["ab", "cab"]
errors, words = 0, 0
ignore = {"errors", "words"}
args = (torch.randn(2, 3, 4, device=device),)

def to_text(ids):
    return "".join(vocab[i] for i in ids if i)

@torch.no_grad()
def score_batch(x):
    global errors, words  #-
    ids = head(x).argmax(-1)
    for hyp, ref in zip(ids.cpu().numpy(), references):  #- expect: copy-to-cpu
        errors += to_text(hyp) != ref  #- may: host-counter
        words += 1  #- expect: host-counter
    return ids
