from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.corpus.strangers.program import program


# --- a diffusion UNet with time embeddings, and its DDIM sampling loop --------------------------------------------
def timestep_embedding(t, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(0, half, dtype=torch.float32, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, 2 * cout)
        self.norm2, self.conv2 = nn.GroupNorm(4, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.emb(F.silu(e))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class UNet(nn.Module):
    def __init__(self, ch=8):
        super().__init__()
        self.ch = ch
        self.time = nn.Sequential(nn.Linear(ch, 4 * ch), nn.SiLU(), nn.Linear(4 * ch, 4 * ch))
        self.label = nn.Embedding(5, 4 * ch)
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.downs = nn.ModuleList([ResBlock(ch, ch, 4 * ch), ResBlock(ch, 2 * ch, 4 * ch)])
        self.mid = ResBlock(2 * ch, 2 * ch, 4 * ch)
        self.ups = nn.ModuleList([ResBlock(4 * ch, ch, 4 * ch), ResBlock(2 * ch, ch, 4 * ch)])
        self.out = nn.Conv2d(ch, 3, 3, padding=1)

    def forward(self, x, t, y=None):
        emb = self.time(timestep_embedding(t, self.ch))
        if y is not None:
            emb = emb + self.label(y)
        h, skips = self.inp(x), []
        for down in self.downs:
            h = down(h, emb)
            skips.append(h)
            h = F.avg_pool2d(h, 2)
        h = self.mid(h, emb)
        for up in self.ups:
            h = F.interpolate(h, scale_factor=2, mode="nearest")
            h = up(torch.cat([h, skips.pop()], dim=1), emb)
        return self.out(h)


@program()
def unet(way):
    net = way.build(UNet).eval()
    call = way(net)
    betas = torch.linspace(1e-4, 0.02, 10, device=way.device)
    alphas = torch.cumprod(1 - betas, 0)
    x = way.randn(0, 2, 3, 16, 16)
    y = way.ints(1, 5, 2)
    with torch.no_grad():
        for i in reversed(range(10)):
            t = torch.full((2,), i, device=way.device, dtype=torch.long)
            eps = call(x, t) if i % 4 == 3 else call(x, t, y=y)
            a, b = alphas[i], alphas[i - 1] if i else torch.ones((), device=way.device)
            x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
            x = b.sqrt() * x0 + (1 - b).sqrt() * eps
            yield x


@program()
def unet_training(way):
    net = way.build(UNet)
    model = way(net)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-4, betas=(0.9, 0.99), capturable=True)
    ema = [p.detach().clone() for p in net.parameters()]
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 10, device=way.device), 0)

    def step(x, t, noise):
        a = alphas[t][:, None, None, None]
        loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(ema, list(net.parameters()), 0.01)
        return loss.detach()

    step = way.step(step, net, opt, ema)
    for k in range(10):
        loss = step(way.randn(k, 2, 3, 8, 8), way.ints(k, 10, 2), way.randn(k + 50, 2, 3, 8, 8))
        yield loss, ema[0].clone(), net.out.weight.detach().clone()


# --- ConvNeXt with layer scale, stochastic depth and a changing rate ----------------------------------------------
class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


def drop_path(x, p, training):
    if p == 0.0 or not training:
        return x
    keep = 1 - p
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    mask = x.new_empty(shape).bernoulli_(keep)
    return x * mask.div_(keep)


class ConvNeXtBlock(nn.Module):
    def __init__(self, dim, p):
        super().__init__()
        self.dw = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = LayerNorm2d(dim)
        self.pw1, self.pw2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(1e-6 * torch.ones(dim))
        self.p = p

    def forward(self, x):
        h = self.norm(self.dw(x)).permute(0, 2, 3, 1)
        h = self.gamma * self.pw2(F.gelu(self.pw1(h)))
        return x + drop_path(h.permute(0, 3, 1, 2), self.p, self.training)


@program(changes_model=True)
def convnext(way):
    net = way.build(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8), ConvNeXtBlock(8, 0.3), ConvNeXtBlock(8, 0.5))
    )
    call = way(net)
    for k in range(12):
        if k == 4:
            net[2].p = 0.1
        if k == 6:
            net.eval()
        if k == 8:
            net.train()
        torch.manual_seed(k)
        x = way.randn(k, 2, 3, 16, 16)
        if k % 3 == 1:
            x = x.contiguous(memory_format=torch.channels_last)
        y = call(x)
        yield y
        if k % 2:
            y.square().mean().backward()
            yield [p.grad.clone() for p in net.parameters()]
            net.zero_grad(set_to_none=k % 4 == 1)


# --- EfficientNet's MBConv with squeeze and excitation, batch norm with running statistics -------------------------
class SE(nn.Module):
    def __init__(self, c, r):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(c, r, 1), nn.Conv2d(r, c, 1)

    def forward(self, x):
        s = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.fc2(F.silu(self.fc1(s))))


class MBConv(nn.Module):
    def __init__(self, c, e=4):
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(c, c * e, 1, bias=False),
            nn.BatchNorm2d(c * e),
            nn.SiLU(inplace=True),
            nn.Conv2d(c * e, c * e, 3, padding=1, groups=c * e, bias=False),
            nn.BatchNorm2d(c * e, momentum=0.01),
            nn.SiLU(inplace=True),
            SE(c * e, c),
            nn.Conv2d(c * e, c, 1, bias=False),
            nn.BatchNorm2d(c),
        )

    def forward(self, x):
        return x + self.block(x)


@program(changes_model=True)
def efficientnet(way):
    net = way.build(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            MBConv(8),
            MBConv(8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(8, 4),
        )
    )
    model = way(net)
    opt = torch.optim.RMSprop(net.parameters(), lr=0.01, momentum=0.9, capturable=True)
    sched = torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        opt.step()
        return loss.detach()

    step = way.step(step, net, opt)
    for k in range(10):
        torch.manual_seed(100 + k)
        yield step(way.randn(k, 4, 3, 16, 16), way.ints(k, 4, 4)), [b.clone() for b in net.buffers()]
        sched.step()
        if k % 3 == 2:
            net.eval()
            with torch.inference_mode():
                yield model(way.randn(k + 20, 4, 3, 16, 16)).clone()
            net.train()


# --- a spatial transformer: affine grids, grid_sample, its gradient ------------------------------------------------
class STN(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(True), nn.Flatten(), nn.Linear(4 * 36, 6))
        self.loc[-1].weight.data.mul_(0.1)
        self.loc[-1].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))
        self.offset = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, x, mode="bilinear"):
        theta = self.loc(x).view(-1, 2, 3)
        grid = F.affine_grid(theta, x.size(), align_corners=False)
        grid = grid + 0.05 * torch.tanh(self.offset(x)).permute(0, 2, 3, 1)
        return F.grid_sample(x, grid, mode=mode, padding_mode="reflection", align_corners=False)


@program()
def spatial_transformer(way):
    net = way.build(STN)
    call = way(net)
    for k in range(10):
        x = way.randn(k, 2, 1, 16, 16).requires_grad_(k % 2 == 0)
        y = call(x, mode="nearest") if k in (3, 7) else call(x)
        y.abs().sum().backward()
        yield y.detach(), x.grad, [p.grad.clone() for p in net.parameters() if p.grad is not None]
        net.zero_grad()


# --- PointNet: T-net, max over points, padding by masks ------------------------------------------------------------
class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.tnet = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.fc = nn.Linear(16, 9)
        self.feat = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 32, 1))
        self.seg = nn.Conv1d(64, 5, 1)

    def forward(self, pts, mask):
        t = self.tnet(pts).masked_fill(~mask[:, None], float("-inf")).amax(2)
        T = self.fc(t).view(-1, 3, 3) + torch.eye(3, device=pts.device)
        x = torch.bmm(pts.transpose(1, 2), T).transpose(1, 2)
        f = self.feat(x)
        g, idx = f.masked_fill(~mask[:, None], float("-inf")).max(dim=2, keepdim=True)
        out = self.seg(torch.cat([f, g.expand_as(f)], 1))
        reg = torch.linalg.matrix_norm(T @ T.mT - torch.eye(3, device=pts.device)).mean()
        return {"logits": out, "critical": idx.squeeze(-1), "reg": reg}


@program()
def pointnet(way):
    net = way.build(PointNet)
    call = way(net)
    for k in range(10):
        pts = way.randn(k, 2, 3, 24)
        mask = torch.arange(24, device=way.device)[None] < torch.tensor([24 - k, 12 + k], device=way.device)[:, None]
        out = call(pts, mask)
        (F.log_softmax(out["logits"], 1).mul(mask[:, None]).mean() + out["reg"]).backward()
        yield out, [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


# --- MLP-Mixer ------------------------------------------------------------------------------------------------------
class MixerLayer(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.tok = nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * n, n))
        self.chan = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chan(self.n2(x))


@program()
def mlp_mixer(way):
    net = way.build(lambda: nn.Sequential(MixerLayer(16, 12), MixerLayer(16, 12), nn.LayerNorm(12)))
    model = way(net)
    opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)

    def step(x):
        loss = model(x).mean(1).pow(2).sum()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss.detach()

    step = way.step(step, net, opt)
    torch.manual_seed(3)
    for k in range(10):
        # patches of an image: a view that is not contiguous
        img = way.randn(k, 2, 3, 8, 8)
        patches = img.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)
        yield step(patches), net[0].tok[0].weight.detach().clone()


# --- a YOLO-like head with anchors, focal loss and IoU --------------------------------------------------------------
def box_iou(a, b):
    lt, rb = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    area = lambda z: (z[..., 2:] - z[..., :2]).clamp(min=0).prod(-1)
    return inter / (area(a) + area(b) - inter + 1e-7)


def focal(logits, target, alpha=0.25, gamma=2.0):
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p_t = torch.exp(-ce)
    return ((alpha * target + (1 - alpha) * (1 - target)) * (1 - p_t) ** gamma * ce).mean()


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(8, 3 * 6, 1))
        self.register_buffer("anchors", torch.tensor([[1.0, 1.0], [2.0, 1.0], [1.0, 2.0]]))
        self.grid = None

    def forward(self, x):
        p = self.body(x)
        b, _, h, w = p.shape
        p = p.view(b, 3, 6, h, w).permute(0, 1, 3, 4, 2).contiguous()
        if self.grid is None or self.grid.shape[2:4] != p.shape[2:4]:
            yv, xv = torch.meshgrid(torch.arange(h, device=x.device), torch.arange(w, device=x.device), indexing="ij")
            self.grid = torch.stack((xv, yv), 2).view(1, 1, h, w, 2).float()
        xy = p[..., 0:2].sigmoid() * 2 - 0.5 + self.grid
        wh = (p[..., 2:4].sigmoid() * 2) ** 2 * self.anchors.view(1, 3, 1, 1, 2)
        return torch.cat([xy - wh / 2, xy + wh / 2], -1), p[..., 4:]


@program(changes_model=True)
def yolo(way):
    net = way.build(Head)
    call = way(net)
    for k in range(10):
        n = 16 if k < 5 or k > 7 else 8
        boxes, cls = call(way.randn(k, 2, 3, n, n))
        target = torch.tensor([1.0, 1.0, 3.0, 3.0], device=way.device)
        iou = box_iou(boxes, target)
        loss = (1 - iou).mean() + focal(cls, (iou > 0.1).float()[..., None].expand_as(cls))
        loss.backward()
        yield boxes.detach(), loss.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


# --- style transfer: optimise an image, Gram matrices, LBFGS-like closure with Adam ---------------------------------
@program()
def style_transfer(way):
    vgg = way.build(
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU())
    )
    vgg.requires_grad_(False)

    def gram(x):
        b, c, h, w = x.size()
        f = x.view(b * c, h * w)
        return (f @ f.t()).div(b * c * h * w)

    def features(x):
        out = []
        for layer in vgg:
            x = layer(x)
            out.append(x)
        return out

    feats = way(features)
    style = [gram(f) for f in feats(way.randn(9, 1, 3, 12, 12))]
    img = way.randn(0, 1, 3, 12, 12).requires_grad_()
    opt = torch.optim.Adam([img], lr=0.05, capturable=True)

    def step():
        with torch.no_grad():
            img.clamp_(0, 1)
        opt.zero_grad()
        loss = sum(F.mse_loss(gram(f), s) for f, s in zip(feats(img), style)) * 1e3
        loss.backward()
        opt.step()
        return loss.detach()

    step = way.step(step, vgg, opt, img)
    for _ in range(10):
        yield step(), img.detach().clone()
