# %% labels from overlaps by masks and numbers -> assign_loss
head = nn.Linear(6, 3).to(device)
args = (torch.randn(8, 6, device=device), torch.rand(8, 4, device=device))

def assign_loss(features, ious):
    best, matched = ious.max(dim=1)
    labels = matched % 2 + 1
    labels[best < 0.6] = 0
    labels[(best >= 0.6) & (best < 0.7)] = -1
    losses = F.cross_entropy(head(features), labels.clamp(min=0), reduction="none")
    used = labels >= 0
    return (losses * used).sum().detach() / used.sum().clamp(min=1)
# %% filter the detections of each image -> postprocess
args = (torch.rand(2, 6, 4, device=device), torch.rand(2, 6, device=device))

def postprocess(boxes, scores):
    results = []
    for i in range(boxes.size(0)):
        keep = scores[i] > 0.4
        b = boxes[i][keep]  #- expect: dynamic-shape
        s = scores[i][keep]  #- expect: dynamic-shape
        #+ b, s = boxes[i] * keep[:, None], scores[i] * keep
        if s.numel() == 0:  #- may: branch-frozen
            continue  #-
        results.append({"boxes": b, "scores": s})
    return results

def seen(results):
    return [(r["boxes"].sum(), r["scores"].sum()) for r in results]
# %% match predictions to targets on the CPU -> loss_labels
gt_boxes = torch.rand(3, 4, device=device)
gt_labels = torch.tensor([0, 1, 1], device=device)
args = (torch.randn(2, 5, 3, device=device), torch.rand(2, 5, 4, device=device))

def match(cost):
    return cost.argmin(0), torch.arange(cost.size(1), device=cost.device)

def loss_labels(logits, boxes):
    cost = torch.cdist(boxes, gt_boxes.expand(2, -1, -1), p=1)
    indices = [match(c) for c in cost.cpu()]  #- expect: copy-to-cpu
    #+ indices = [match(c) for c in cost]
    batch_idx = torch.cat([torch.full_like(src, i) for i, (src, _) in enumerate(indices)])
    src_idx = torch.cat([src for src, _ in indices])
    target_o = torch.cat([gt_labels[j] for _, j in indices])  # expect: cpu-index
    target = torch.full(logits.shape[:2], 2, dtype=torch.int64, device=logits.device)
    target[batch_idx, src_idx] = target_o  # expect: cpu-index
    return F.cross_entropy(logits.transpose(1, 2), target).detach()
# %% anchors are cached by size -> rpn
class AnchorGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = {}
    def grid(self, h, w, device):
        key = (h, w, device)
        if key not in self.cache:
            ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            self.cache[key] = torch.stack([xs, ys, xs + 2, ys + 2], -1).reshape(-1, 4).float().to(device)
        return self.cache[key]
    def forward(self, feature):
        return self.grid(feature.size(-2), feature.size(-1), feature.device)

anchors = AnchorGenerator()
conv = nn.Conv2d(3, 4, 1).to(device)
args = (torch.randn(2, 3, 4, 4, device=device),)

@torch.no_grad()
def rpn(feature):
    deltas = conv(feature).permute(0, 2, 3, 1).reshape(2, -1, 4)
    return anchors(feature) + deltas
# %% divide by the positives, one at least -> focal
model = nn.Linear(6, 1).to(device)
args = (torch.randn(8, 6, device=device), torch.randint(0, 2, (8,), device=device).float())

def focal(x, y):
    logits = model(x).squeeze(1)
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
    p_t = p * y + (1 - p) * (1 - y)
    loss = (ce * (1 - p_t) ** 2).sum()
    num_pos = max(y.sum(), 1)  #- expect: data-dependent-branch
    #+ num_pos = y.sum().clamp(min=1)
    return (loss / num_pos).detach()
# %% average precision class by class -> update
aps = []
args = (torch.randn(12, 3, device=device), torch.randint(0, 3, (12,), device=device))

def update(logits, target):
    pred = logits.argmax(1)
    #+ precisions = []
    for c in range(3):
        selected = pred == c
        if selected.sum() == 0:  #- expect: data-dependent-branch
            continue  #-
        precision = (target[selected] == c).float().mean()  #- expect: dynamic-shape
        aps.append(precision.item())  #- expect: sync-item may: host-counter output-alias
        #+ precisions.append(((target == c) & selected).sum() / selected.sum())
    #+ return torch.stack(precisions)
    return pred  #-
#+
#+ def after(out, i):
#+     aps.extend(p for p in out.tolist() if p == p)
def seen(out):
    return None
# %% crop a region by its box -> roi_mean
args = (torch.rand(3, 8, 8, device=device), torch.tensor([1.0, 2.0, 5.0, 7.0], device=device))

def roi_mean(feature, box):
    x0, y0, x1, y1 = box.int().tolist()  #- expect: copy-to-cpu
    crop = feature[:, y0:y1, x0:x1]  #- may: size-frozen
    return crop.sum(dim=(1, 2))  #-
    #+ b, at = box.int(), torch.arange(8, device=feature.device)
    #+ inside = ((at >= b[1]) & (at < b[3]))[:, None] & ((at >= b[0]) & (at < b[2]))[None, :]
    #+ return (feature * inside).sum(dim=(1, 2))
