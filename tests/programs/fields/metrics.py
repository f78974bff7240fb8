# %% top-k accuracy and meters, as in the ImageNet example -> validate_batch
class AverageMeter:
    def __init__(self):
        self.val, self.avg, self.sum, self.count = 0, 0, 0, 0  #-
        #+ self.sum, self.count = torch.zeros((), device=device), torch.zeros((), device=device)
    def update(self, val, n=1):
        self.val = val  #- may: host-counter output-alias
        self.sum += val * n  #- may: host-counter stale-input
        self.count += n  #- expect: host-counter
        self.avg = self.sum / self.count  #- expect: scalar-frozen|host-counter|output-alias may: host-counter output-alias
        #+ self.sum.add_(val * n)
        #+ self.count.add_(n)

top1 = AverageMeter()
model = nn.Linear(4, 5).to(device)
args = (torch.randn(6, 4, device=device), torch.randint(0, 5, (6,), device=device))

@torch.no_grad()
def validate_batch(images, target):
    output = model(images)
    _, pred = output.topk(1, 1, True, True)
    correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
    acc1 = correct[:1].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0))
    top1.update(acc1[0], images.size(0))
    return acc1
# %% a confusion matrix by indexed addition -> update
matrix = torch.zeros(3, 3, dtype=torch.long, device=device)
ones = torch.ones(6, dtype=torch.long, device=device)
model = nn.Linear(4, 3).to(device)
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))

@torch.no_grad()
def update(x, y):
    pred = model(x).argmax(-1)
    matrix.index_put_((y, pred), ones, accumulate=True)
    return pred
# %% a metric with states, as torchmetrics has them -> update
class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("tp", "fp", "fn"):
            self.register_buffer(name, torch.zeros((), dtype=torch.long))
    def update(self, preds, target):
        preds = preds > 0.5
        self.tp += (preds & target).sum()
        self.fp += (preds & ~target).sum()
        self.fn += (~preds & target).sum()
    def compute(self):
        return 2 * self.tp / (2 * self.tp + self.fp + self.fn).clamp(min=1)

metric, model = Metric().to(device), nn.Linear(4, 1).to(device)
args = (torch.randn(6, 4, device=device), torch.randint(0, 2, (6,), device=device).bool())

@torch.no_grad()
def update(x, y):
    metric.update(model(x).squeeze(1).sigmoid(), y)
    return metric.compute()
# %% a metric whose states are replaced -> update
class MeanSquaredError:
    def __init__(self):
        self.total, self.count = torch.tensor(0.0, device=device), torch.tensor(0, device=device)
    def update(self, preds, target):
        self.total = self.total + ((preds - target) ** 2).sum()  #- expect: stale-input
        self.count = self.count + target.numel()  #- expect: stale-input
        #+ self.total += ((preds - target) ** 2).sum()
        #+ self.count += target.numel()

metric, model = MeanSquaredError(), nn.Linear(4, 1).to(device)
args = (torch.randn(6, 4, device=device), torch.randn(6, 1, device=device))

@torch.no_grad()
def update(x, y):
    metric.update(model(x), y)
    return metric.total / metric.count
# %% accuracy of each class -> evaluate
model = nn.Linear(4, 3).to(device)
args = (torch.randn(8, 4, device=device), torch.randint(0, 3, (8,), device=device))

@torch.no_grad()
def evaluate(x, y):
    pred = model(x).argmax(1)
    acc = torch.zeros(3, device=x.device)
    for c in range(3):
        mask = y == c
        if mask.any():  #- expect: data-dependent-branch
            acc[c] = (pred[mask] == c).float().mean()  #- expect: dynamic-shape
        #+ acc[c] = (mask & (pred == c)).sum() / mask.sum().clamp(min=1)
    return acc
# %% an F score of numpy's making -> evaluate
def f1_score(y_true, y_pred):
    tp = np.sum((y_true == 1) & (y_pred == 1))
    return 2 * tp / max(np.sum(y_true == 1) + np.sum(y_pred == 1), 1)

scores = []
model = nn.Linear(4, 1).to(device)
args = (torch.randn(8, 4, device=device), torch.randint(0, 2, (8,), device=device))

@torch.no_grad()
def evaluate(x, y):
    prob = model(x).squeeze(-1).sigmoid()
    pred = (prob > 0.5).long()
    scores.append(f1_score(y.cpu().numpy(), pred.cpu().numpy()))  #- expect: copy-to-cpu may: host-counter
    return prob  #-
    #+ return prob, y.clone(), pred
#+ def after(out, i):
#+     scores.append(f1_score(out[1].cpu().numpy(), out[2].cpu().numpy()))
def seen(out):
    return out[0] if isinstance(out, tuple) else out
# %% area under the curve by sorting -> auroc
args = (torch.rand(12, device=device), torch.tensor([0, 1] * 6, device=device))

def auroc(scores, labels):
    order = scores.argsort(descending=True)
    hits = labels[order].float()
    tpr = hits.cumsum(0) / hits.sum().clamp(min=1)
    fpr = (1 - hits).cumsum(0) / (1 - hits).sum().clamp(min=1)
    return torch.trapezoid(tpr, fpr)
# %% the labels that were seen, in a set -> train_step
seen_labels = set()
#+ seen_mask = torch.zeros(3, dtype=torch.bool, device=device)
model = nn.Linear(4, 3).to(device)
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))

def train_step(x, y):
    seen_labels.update(y.unique().tolist())  #- expect: dynamic-shape may: copy-to-cpu host-counter
    #+ seen_mask.index_fill_(0, y, True)
    return F.cross_entropy(model(x), y)
# %% perplexity -> evaluate
perplexities = []
lm = nn.Linear(4, 8).to(device)
args = (torch.randn(2, 5, 4, device=device), torch.randint(0, 8, (2, 5), device=device))

@torch.no_grad()
def evaluate(h, targets):
    logits = lm(h)
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
    perplexities.append(math.exp(loss))  #- expect: sync-item may: host-counter
    return loss
#+ def after(loss, i):
#+     perplexities.append(math.exp(loss))
# %% exact matches counted in Python -> score
model = nn.Linear(4, 3).to(device)
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))

@torch.no_grad()
def score(x, target):
    pred = model(x).argmax(-1)
    matches = sum(int(p == t) for p, t in zip(pred, target))  #- expect: sync-item|data-dependent-branch
    #+ matches = (pred == target).sum()
    return pred, torch.full((), 1.0, device=x.device) * matches / 6  # may: scalar-frozen
# %% quantiles of the losses -> summary
args = (torch.randn(16, device=device), torch.randn(16, device=device))

def summary(pred, target):
    errors = (pred - target).abs()
    return torch.quantile(errors, 0.9), errors.median(), errors.kthvalue(3).values, errors.std()
# %% calibration error over bins -> ece
edges = torch.linspace(0, 1, 6)  #-
#+ edges = torch.linspace(0, 1, 6).tolist()
ignore = {"edges"}
model = nn.Linear(4, 3).to(device)
args = (torch.randn(12, 4, device=device), torch.randint(0, 3, (12,), device=device))

@torch.no_grad()
def ece(x, y):
    confidence, pred = model(x).softmax(-1).max(-1)
    error = torch.zeros(1, device=x.device)
    for low, high in zip(edges[:-1], edges[1:]):
        inside = confidence.gt(low.item()) * confidence.le(high.item())  #-
        #+ inside = confidence.gt(low) * confidence.le(high)
        share = inside.float().mean()
        if share.item() > 0:  #- expect: sync-item|data-dependent-branch
            accuracy = (pred == y)[inside].float().mean()  #- expect: dynamic-shape
            error += torch.abs(confidence[inside].mean() - accuracy) * share  #- expect: dynamic-shape
        #+ count = inside.sum().clamp(min=1)
        #+ accuracy = ((pred == y) & inside).sum() / count
        #+ error += torch.abs((confidence * inside).sum() / count - accuracy) * share
    return error
