# %% NMS as a while loop over what is left -> nms
args = (torch.rand(8, 4, device=device).cumsum(1), torch.rand(8, device=device))

def nms(boxes, scores):
    x1, y1, x2, y2 = boxes.unbind(1)
    areas = (x2 - x1) * (y2 - y1)
    order = scores.argsort(descending=True)
    #+ keep = torch.ones_like(scores, dtype=torch.bool)
    keep = []  #-
    while order.numel() > 0:  #- may: branch-frozen
        i = order[0]  #-
        keep.append(i)  #-
        xx1 = torch.maximum(x1[i], x1[order[1:]])  #- expect: tensor-bound
        yy1 = torch.maximum(y1[i], y1[order[1:]])  #- expect: tensor-bound
        xx2 = torch.minimum(x2[i], x2[order[1:]])  #- expect: tensor-bound
        yy2 = torch.minimum(y2[i], y2[order[1:]])  #- expect: tensor-bound
        inter = (xx2 - xx1).clamp(min=0) * (yy2 - yy1).clamp(min=0)  #-
        iou = inter / (areas[i] + areas[order[1:]] - inter)  #- expect: tensor-bound
        order = order[1:][iou <= 0.5]  #- expect: dynamic-shape
    return torch.stack(keep)  #-
    #+ xx1, yy1 = torch.maximum(x1[:, None], x1), torch.maximum(y1[:, None], y1)
    #+ xx2, yy2 = torch.minimum(x2[:, None], x2), torch.minimum(y2[:, None], y2)
    #+ inter = (xx2 - xx1).clamp(min=0) * (yy2 - yy1).clamp(min=0)
    #+ iou = inter / (areas[:, None] + areas - inter)
    #+ for k in range(len(scores)):
    #+     i = order[k : k + 1]
    #+     later = torch.argsort(order) > k
    #+     keep &= ~(keep[i] & later & ~(iou[i][0] <= 0.5))
    #+ return order, keep
#+ def seen(out):
#+     return out[0][out[1][out[0]]]
# %% boxes above a threshold, their best class and a limit -> postprocess
args = (torch.rand(16, 5, device=device), torch.rand(16, 4, device=device))

@torch.no_grad()
def postprocess(cls, boxes):
    conf, label = cls.max(1)
    mask = conf > 0.6
    boxes, conf, label = boxes[mask], conf[mask], label[mask]  #- expect: dynamic-shape
    if conf.shape[0] > 5:  #- may: branch-frozen
        conf, idx = conf.topk(5)  #-
        boxes, label = boxes[idx], label[idx]  #-
    return boxes, conf, label  #-
    #+ conf, idx = torch.where(mask, conf, -1.0).topk(5)
    #+ return boxes[idx], conf, label[idx]
#+ def seen(out):
#+     return tuple(each[out[1] > 0] for each in out)
#+ ignore = ("result",)
# %% anchors are matched to ground truth by an IoU matrix -> assign
args = (torch.rand(10, 4, device=device), torch.rand(3, 4, device=device), torch.randint(1, 4, (3,), device=device))

def assign(anchors, gt, gt_labels):
    dist = torch.cdist(anchors, gt)
    best, matched = dist.min(1)
    labels = torch.zeros(len(anchors), dtype=torch.long, device=device)
    positive = best < 0.4
    labels[positive] = gt_labels[matched[positive]]  #- expect: dynamic-shape may: mask-assignment
    #+ labels = torch.where(positive, gt_labels[matched], labels)
    labels[(best >= 0.4) & (best < 0.6)] = -1  # may: copy-to-gpu
    return labels
# %% regression only for positives, normalized by their number -> box_loss
head = nn.Linear(8, 4).to(device)
args = (torch.randn(12, 8, device=device), torch.randn(12, 4, device=device), torch.randint(0, 2, (12,), device=device))

def box_loss(feat, target, label):
    pred = head(feat)
    pos = label > 0
    num_pos = max(pos.sum().item(), 1)  #- expect: sync-item
    #+ num_pos = pos.sum().clamp(min=1)
    loss = F.smooth_l1_loss(pred[pos], target[pos], reduction="sum") / num_pos  #- expect: dynamic-shape
    #+ loss = torch.where(pos[:, None], F.smooth_l1_loss(pred, target, reduction="none"), 0).sum() / num_pos
    return loss
# %% focal loss with a sampled background -> focal
args = (torch.randn(20, device=device), (torch.rand(20, device=device) > 0.7).float())

def focal(logits, target):
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p_t = p * target + (1 - p) * (1 - target)
    loss = ce * (1 - p_t) ** 2
    pos_inds = torch.nonzero(target == 1).squeeze(1)  #- expect: dynamic-shape
    n = len(pos_inds)  #-
    if n == 0:  #-
        return loss.sum()  #-
    return loss.sum() / n  #-
    #+ return loss.sum() / (target == 1).sum().clamp(min=1)
# %% heat map peaks are listed by nonzero -> peaks
args = (torch.rand(1, 1, 6, 6, device=device),)

@torch.no_grad()
def peaks(heat):
    pooled = F.max_pool2d(heat, 3, 1, 1)
    keep = (pooled == heat) & (heat > 0.3)
    ys, xs = torch.where(keep[0, 0])  #- expect: dynamic-shape
    vals = heat[0, 0, ys, xs]  #-
    return torch.stack([xs.float(), ys.float(), vals], 1)  #-
    #+ vals, at = torch.where(keep, heat, 0).flatten().topk(12)
    #+ return torch.stack([(at % 6).float(), (at // 6).float(), vals], 1)
#+ ignore = ("result",)
# %% RoI features are cropped by integer boxes -> roi_pool
args = (torch.randn(3, 8, 8, device=device), torch.tensor([[0, 0, 4, 4], [2, 2, 7, 6]], device=device))

def feed(i):
    feat = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(i))
    return feat.to(device), args[1].roll(i, 0)

def roi_pool(feat, rois):
    out = []
    for roi in rois:
        x1, y1, x2, y2 = roi.tolist()  #- expect: sync-item|copy-to-cpu
        crop = feat[:, y1 : y2 + 1, x1 : x2 + 1]  #- may: size-frozen
        out.append(crop.amax((1, 2)))  #-
        #+ at = torch.arange(8, device=device)
        #+ x1, y1, x2, y2 = roi
        #+ inside = ((at >= y1) & (at <= y2))[:, None] & (at >= x1) & (at <= x2)
        #+ out.append(torch.where(inside, feat, -torch.inf).amax((1, 2)))
    return torch.stack(out)
# %% class-wise NMS offsets boxes by the largest coordinate -> batched
args = (torch.rand(6, 4, device=device), torch.randint(0, 3, (6,), device=device))

def batched(boxes, idxs):
    if boxes.numel() == 0:
        return boxes
    max_coordinate = boxes.max().item()  #- expect: sync-item
    #+ max_coordinate = boxes.max()
    offsets = idxs.to(boxes) * (max_coordinate + 1)
    return boxes + offsets[:, None]
# %% mean IoU skips the classes that nobody has -> mean_iou
args = (torch.randint(0, 4, (40,), device=device), torch.randint(0, 4, (40,), device=device))

def mean_iou(pred, target):
    ious = []  #-
    #+ total, n = 0.0, 0
    for c in range(5):
        p, t = pred == c, target == c
        inter = (p & t).sum()
        union = (p | t).sum()
        if union == 0:  #- expect: data-dependent-branch
            continue  #-
        ious.append(inter / union)  #-
        #+ total = total + torch.where(union == 0, 0, inter / union.clamp(min=1))
        #+ n = n + (union > 0)
    return torch.stack(ious).mean()  #-
    #+ return total / n
# %% hard example mining by a sorted rank -> ohem
args = (torch.randn(4, 10, 3, device=device), torch.randint(0, 3, (4, 10), device=device))

def ohem(conf, labels):
    loss = F.cross_entropy(conf.view(-1, 3), labels.view(-1), reduction="none").view(4, 10)
    pos = labels > 0
    num_neg = torch.clamp(3 * pos.long().sum(1), max=9)
    neg_loss = loss.clone()
    neg_loss[pos] = 0  # may: copy-to-gpu
    rank = neg_loss.argsort(1, descending=True).argsort(1)
    neg = rank < num_neg[:, None]
    return loss[pos | neg].sum() / pos.sum()  #- expect: dynamic-shape
    #+ return torch.where(pos | neg, loss, 0).sum() / pos.sum()
# %% objects are drawn on a canvas at their integer centres -> draw
args = (torch.zeros(8, 8, device=device), torch.randint(1, 7, (3, 2), device=device))

def draw(canvas, centres):
    out = canvas.clone()
    for cy, cx in centres:  # may: sync-item
        out[cy, cx] = 1.0  #- expect: scalar-assignment may: tensor-bound
        out[int(cy) + 1, int(cx)] = 0.5  #- expect: sync-item scalar-assignment may: sync-item
        #+ out.index_put_((cy.view(1), cx.view(1)), torch.ones(1, device=device))
        #+ out.index_put_((cy.view(1) + 1, cx.view(1)), torch.full((1,), 0.5, device=device))
    return out
