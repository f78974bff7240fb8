# %% soft suppression with a fixed number of rounds -> soft_nms
args = (torch.rand(6, 4, device=device), torch.rand(6, device=device))

def iou(a, b):
    lt, rb = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    return wh[..., 0] * wh[..., 1]

def soft_nms(boxes, scores):
    boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    overlap, scores, picked = iou(boxes, boxes), scores.clone(), []
    for _ in range(3):
        best = scores.argmax(keepdim=True)
        picked.append(best)
        scores = scores * torch.exp(-overlap.index_select(0, best)[0] / 0.5)
        scores = scores.index_fill(0, best, -1.0)
    return torch.cat(picked)
# %% detections class by class -> postprocess
args = (torch.rand(8, 4, device=device), torch.rand(8, 3, device=device))
ignore = {"result"}

def postprocess(boxes, scores):
    results = []
    for c in range(scores.size(1)):
        inds = torch.where(scores[:, c] > 0.5)[0]  #- expect: dynamic-shape
        if inds.numel() == 0:  #- may: branch-frozen size-frozen
            continue  #-
        results.append(torch.cat([boxes[inds], scores[inds, c, None]], 1))  #-
        #+ results.append(torch.cat([boxes, scores[:, c, None].where(scores[:, c, None] > 0.5, 0.0)], 1))
    return torch.cat(results)
# %% a regression loss over positive anchors -> loss_fn
head = nn.Linear(4, 4).to(device)
args = (torch.randn(8, 4, device=device), torch.randn(8, 4, device=device), torch.rand(8, device=device))

def loss_fn(features, targets, overlap):
    pred = head(features)
    pos = overlap > 0.5
    num_pos = pos.sum().clamp(min=1)
    return F.smooth_l1_loss(pred[pos], targets[pos], reduction="sum") / num_pos  #- expect: dynamic-shape
    #+ return (F.smooth_l1_loss(pred, targets, reduction="none") * pos[:, None]).sum() / num_pos
# %% clip to the image's size -> clip_boxes
args = (torch.randn(5, 4, device=device) * 10, torch.tensor([8.0, 6.0], device=device))

def clip_boxes(boxes, size):
    h, w = size.tolist()  #- expect: copy-to-cpu
    #+ h, w = size
    x = boxes[:, 0::2].clamp(min=0, max=w)  #-
    y = boxes[:, 1::2].clamp(min=0, max=h)  #-
    #+ x = boxes[:, 0::2].clamp(min=0).minimum(w)
    #+ y = boxes[:, 1::2].clamp(min=0).minimum(h)
    return torch.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], dim=1)
# %% sine encoding of positions under a mask -> position_encoding
dim_t = 10000 ** (2 * (torch.arange(4) // 2) / 4).to(device)
args = (torch.rand(2, 3, 5, device=device).gt(0.3),)

def position_encoding(mask):
    y, x = mask.cumsum(1, dtype=torch.float32), mask.cumsum(2, dtype=torch.float32)
    y = y / (y[:, -1:, :] + 1e-6) * 2 * math.pi
    x = x / (x[:, :, -1:] + 1e-6) * 2 * math.pi
    px, py = x[..., None] / dim_t, y[..., None] / dim_t
    return torch.cat([py.sin(), px.cos()], -1).permute(0, 3, 1, 2)
# %% peaks of a heat map -> decode
args = (torch.rand(1, 2, 6, 6, device=device), torch.rand(1, 2, 6, 6, device=device))

def decode(heat, wh):
    hmax = F.max_pool2d(heat, 3, stride=1, padding=1)
    heat = heat * (hmax == heat).float()
    scores, inds = heat.flatten(1).topk(4)
    inds = inds % 36
    wh = wh.flatten(2).transpose(1, 2).gather(1, inds[..., None].expand(-1, -1, 2))
    ys, xs = torch.div(inds, 6, rounding_mode="floor"), inds % 6
    return torch.stack([xs - wh[..., 0] / 2, ys - wh[..., 1] / 2, xs + wh[..., 0] / 2, scores], -1)
# %% cut out the region between two tensors -> crop
args = (torch.rand(1, 8, 8, device=device), torch.tensor([1, 5], device=device))
ignore = {"result"}
def feed(i):
    return torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(i)).to(device), torch.tensor([i % 3, 4 + i % 4]).to(device)

def crop(image, rows):
    return image[:, rows[0] : rows[1]].mean()  #- expect: tensor-bound|sync-item
    #+ at = torch.arange(8, device=image.device)
    #+ inside = (at >= rows[0]) & (at < rows[1])
    #+ return (image * inside[:, None]).sum() / inside.sum() / 8
# %% matched queries only -> loss_masks
args = (torch.randn(6, 5, device=device), torch.randint(0, 2, (6, 5), device=device).float(), torch.tensor([4, 2, 0], device=device))

def dice(inputs, targets):
    inputs = inputs.sigmoid()
    return (1 - (2 * (inputs * targets).sum(1) + 1) / (inputs.sum(1) + targets.sum(1) + 1)).mean()

def loss_masks(pred, target, matched):
    return dice(pred[matched], target[matched])
# %% non-maximum suppression with a list of what is left -> nms
args = (torch.rand(5, 4, device=device), torch.rand(5, device=device))
ignore = {"result"}

def nms(boxes, scores):
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:  #- may: branch-frozen size-frozen
        i = order[0]  #-
        keep.append(i)  #-
        near = (boxes[order[1:]] - boxes[i]).abs().sum(1) < 0.8  #- expect: tensor-bound may: size-frozen
        order = order[1:][~near]  #- expect: dynamic-shape may: size-frozen
    return torch.stack(keep)  #-
    #+ near = (boxes[:, None] - boxes[None]).abs().sum(-1) < 0.8
    #+ keep = torch.ones(5, dtype=torch.bool, device=boxes.device)
    #+ for i in range(5):
    #+     behind = torch.arange(5, device=boxes.device) > i
    #+     keep = keep & ~(near[order[i : i + 1]][0, order] & behind & keep[i])
    #+ return order, keep
