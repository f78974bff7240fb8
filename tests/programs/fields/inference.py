# %% a server that counts and times -> predict
class Server:
    def __init__(self, model):
        self.model = model
        self.requests = 0
        self.latencies = []
    @torch.no_grad()
    def __call__(self, x):
        start = time.perf_counter()  #-
        self.requests += 1  #- expect: host-counter
        probs = self.model(x).softmax(dim=-1)
        self.latencies.append(time.perf_counter() - start)  #- expect: host-counter
        return probs

predict = Server(nn.Linear(8, 4).to(device).eval())
args = (torch.randn(2, 8, device=device),)
# %% probabilities as numpy -> predict
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).to(device).eval()
args = (torch.randn(2, 8, device=device),)

@torch.inference_mode()
def predict(batch):
    logits = model(batch)
    return F.softmax(logits, dim=1).cpu().numpy()  #- expect: copy-to-cpu
    #+ return F.softmax(logits, dim=1)

def seen(out):
    return torch.as_tensor(out).cpu()
# %% keep detections above a threshold -> postprocess
args = (torch.rand(16, 4, device=device), torch.rand(16, device=device))

def postprocess(boxes, scores):
    keep = scores > 0.5
    boxes = boxes[keep]  #- expect: dynamic-shape
    scores = scores[keep]  #- expect: dynamic-shape
    #+ boxes = boxes * keep.unsqueeze(1)
    #+ scores = scores * keep
    return boxes, scores

def seen(out):
    return [each.sum(0) for each in out]
# %% greedy non-maximum suppression -> nms
xy = torch.rand(8, 2)
args = (torch.cat([xy, xy + 0.3], dim=1).to(device), torch.rand(8, device=device))

def box_iou(a, b):
    lt = torch.maximum(a[:, None, :2], b[None, :, :2])
    rb = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(dim=-1)
    area = lambda t: (t[:, 2:] - t[:, :2]).prod(dim=-1)
    return inter / (area(a)[:, None] + area(b)[None] - inter + 1e-9)

def nms(boxes, scores):
    order = scores.argsort(descending=True)
    iou = box_iou(boxes, boxes)
    #+ keep = torch.ones_like(scores, dtype=torch.bool)
    #+ ranked = iou[order][:, order]
    #+ later = torch.ones_like(ranked).triu(1) > 0
    #+ for i in range(len(scores)):
    #+     keep = keep & ~((ranked[i] > 0.5) & later[i] & keep[i])
    #+ return keep.sum()
    keep = []  #-
    while order.numel() > 0:  #-
        i = order[0].item()  #- expect: sync-item
        keep.append(i)  #-
        order = order[1:][iou[i][order[1:]] <= 0.5]  #- expect: dynamic-shape
    return keep  #-

def seen(out):
    return len(out) if isinstance(out, list) else out
# %% words to ids -> embed
vocab = {"the": 0, "cat": 1, "sat": 2, "down": 3}
words = ["the", "cat", "sat"]
table = nn.Embedding(4, 8).to(device)
args = (torch.randn(3, 8, device=device),)
#+ ids = torch.tensor([vocab[w] for w in words], device=device)

def embed(context):
    ids = torch.tensor([vocab[w] for w in words], device=device)  #- expect: tensor-literal
    return table(ids) + context
# %% ImageNet normalization in forward -> classifier
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)
        #+ self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        #+ self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
    def forward(self, img):
        mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1).to(img.device)  #- expect: copy-to-gpu|tensor-literal
        std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1).to(img.device)  #- expect: copy-to-gpu|tensor-literal
        img = (img - mean) / std  #-
        #+ img = (img - self.mean) / self.std
        return self.head(F.relu(self.conv(img)).mean(dim=(2, 3)))

classifier = Classifier().to(device).eval()
args = (torch.rand(2, 3, 6, 6, device=device),)
ignore = {"classifier"}
# %% padding mask from lengths -> encode
model = nn.Linear(4, 4).to(device)
args = (torch.randn(3, 5, 4, device=device), torch.tensor([5, 3, 5], device=device))

def feed(i):
    g = torch.Generator().manual_seed(i)
    return torch.randn(3, 5, 4, generator=g).to(device), torch.tensor([5, 1 + i % 4, 5]).to(device)

def encode(x, lengths):
    mask = torch.arange(lengths.max(), device=x.device)[None, :] < lengths[:, None]  #- expect: tensor-bound|sync-item
    #+ mask = torch.arange(x.size(1), device=x.device)[None, :] < lengths[:, None]
    h = model(x) * mask.unsqueeze(-1)
    return h.sum(1) / lengths.unsqueeze(1)
# %% an LSTM over packed sequences -> classify
rnn = nn.LSTM(4, 6, batch_first=True).to(device)
args = (torch.randn(3, 5, 4, device=device), torch.tensor([5, 4, 2], device=device))
def feed(i):
    return torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(i)).to(device), args[1].clone()
#+ def keep_until(states, lengths):
#+     return states[torch.arange(len(lengths), device=device), lengths - 1]

def classify(x, lengths):
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True)  #- expect: copy-to-cpu
    _, (h, _) = rnn(packed)  #-
    return h[-1]  #-
    #+ states, _ = rnn(x)
    #+ return keep_until(states, lengths)
# %% name the best class -> top_label
labels = ["cat", "dog", "bird", "fish"]
model = nn.Linear(6, 4).to(device)
args = (torch.randn(1, 6, device=device),)

@torch.no_grad()
def top_label(x):
    idx = model(x).argmax(dim=-1)
    return labels[idx]  #- expect: sync-item
    #+ return idx

def seen(out):
    return labels.index(out) if isinstance(out, str) else int(out)
# %% copy results out through pinned memory -> infer
model = nn.Linear(6, 4).to(device)
host = torch.empty(2, 4).pin_memory()
args = (torch.randn(2, 6, device=device),)

@torch.no_grad()
def infer(x):
    out = model(x).sigmoid()
    host.copy_(out, non_blocking=True)
    return out
# %% half precision -> infer
model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)).to(device).to(torch.bfloat16).eval()
args = (torch.randn(2, 8, device=device, dtype=torch.bfloat16),)

@torch.inference_mode()
def infer(hidden_states):
    residual = hidden_states
    return residual + model(hidden_states)
# %% synchronize to time the model -> timed_forward
model = nn.Linear(8, 8).to(device)
timings = []
args = (torch.randn(2, 8, device=device),)
ignore = {"timings"}

def timed_forward(x):
    cuda.synchronize()  #- expect: synchronize
    t0 = time.time()  #-
    y = model(x)
    cuda.synchronize()  #- expect: synchronize
    timings.append(time.time() - t0)  #- expect: host-counter
    return y
# %% time with events inside -> timed_forward
model = nn.Linear(8, 8).to(device)
elapsed = []
args = (torch.randn(2, 8, device=device),)
ignore = {"elapsed"}

def timed_forward(x):
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)  #-
    start.record()  #-
    y = model(x)
    end.record()  #-
    end.synchronize()  #- expect: synchronize|captured-event
    elapsed.append(start.elapsed_time(end))  #- expect: captured-event|query|synchronize may: host-counter
    return y
# %% calibrate activation ranges -> observed
class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("min_val", torch.tensor(float("inf")))
        self.register_buffer("max_val", torch.tensor(float("-inf")))
    def forward(self, x):
        self.min_val = torch.minimum(self.min_val, x.min())  #- expect: stale-input
        self.max_val = torch.maximum(self.max_val, x.max())  #- expect: stale-input
        #+ self.min_val.copy_(torch.minimum(self.min_val, x.min()))
        #+ self.max_val.copy_(torch.maximum(self.max_val, x.max()))
        return x

observer, layer = Observer().to(device), nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def observed(x):
    return observer(layer(x)).relu()
# %% one-hot of the prediction -> segment
net = nn.Conv2d(3, 4, 1).to(device)
args = (torch.randn(1, 3, 4, 4, device=device),)

def segment(x):
    classes = net(x).argmax(1)
    return F.one_hot(classes).float().sum((0, 1, 2))  #- expect: hidden-size
    #+ return F.one_hot(classes, num_classes=4).float().sum((0, 1, 2))

def seen(out):
    return out.sum()
# %% early exit when confident -> cascade
small, large = nn.Linear(6, 3).to(device), nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)).to(device)
args = (torch.randn(1, 6, device=device),)

@torch.no_grad()
def cascade(x):
    p = small(x).softmax(-1)
    #+ return torch.where(p.max() > 0.5, p, large(x).softmax(-1))
    if p.max() > 0.5:  #- expect: data-dependent-branch
        return p  #-
    return large(x).softmax(-1)  #-
# %% an ensemble -> ensemble
members = nn.ModuleList(nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 2)) for _ in range(3)).to(device).eval()
args = (torch.randn(4, 5, device=device),)

@torch.no_grad()
def ensemble(x):
    outs = torch.stack([m(x).softmax(-1) for m in members])
    return outs.mean(0), outs.var(0).sum(-1)
# %% multi-query attention with a bias from a buffer -> attention
class Attention(nn.Module):
    def __init__(self, dim=8, heads=2, length=6):
        super().__init__()
        self.heads, self.q, self.kv = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim // heads)
        slopes = torch.tensor([2.0 ** -(i + 1) for i in range(heads)])
        distance = torch.arange(length)[None] - torch.arange(length)[:, None]
        self.register_buffer("bias", slopes[:, None, None] * distance.clamp(max=0), persistent=False)
    def forward(self, x):
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.kv(x).chunk(2, dim=-1)
        out = F.scaled_dot_product_attention(q, k.unsqueeze(1), v.unsqueeze(1), attn_mask=self.bias[:, :t, :t])
        return out.transpose(1, 2).reshape(b, t, d)

attention = Attention().to(device).eval()
args = (torch.randn(2, 6, 8, device=device),)
# %% scale by a tensor -> resize
net = nn.Conv2d(3, 3, 3, padding=1).to(device)
scale = torch.tensor(2.0, device=device)
args = (torch.rand(1, 3, 4, 4, device=device),)

def resize(img):
    return net(F.interpolate(img, scale_factor=float(scale), mode="nearest"))  #- expect: sync-item
    #+ return net(F.interpolate(img, scale_factor=2.0, mode="nearest"))
# %% pad the batch on the CPU -> serve
model = nn.Linear(4, 2).to(device)
max_batch = 4
args = (torch.randn(3, 4, device=device),)
#+ pad = torch.zeros(1, 4, device=device)

@torch.no_grad()
def serve(x):
    pad = torch.zeros(max_batch - x.size(0), x.size(1))  #-
    batch = torch.cat([x, pad.to(device)])  #- expect: copy-to-gpu
    #+ batch = torch.cat([x, pad])
    return model(batch)[: x.size(0)]
