from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.corpus.strangers.program import program


# --- graph networks by scatter, index_add and segment softmax --------------------------------------------------------
class GCN(nn.Module):
    def __init__(self, i=5, h=8, o=3):
        super().__init__()
        self.l1, self.l2 = nn.Linear(i, h), nn.Linear(h, o)

    def prop(self, x, src, dst, norm):
        return torch.zeros_like(x).index_add_(0, dst, x[src] * norm[:, None])

    def forward(self, x, edges):
        src, dst = edges
        deg = torch.zeros(x.size(0), device=x.device).scatter_add_(0, dst, torch.ones_like(dst, dtype=x.dtype)) + 1
        norm = deg[src].rsqrt() * deg[dst].rsqrt()
        x = F.relu(self.prop(self.l1(x), src, dst, norm) + self.l1(x))
        return self.prop(self.l2(x), src, dst, norm)


@program()
def gcn(way):
    net = way.build(GCN)
    call = way(net)
    for k in range(10):
        edges = way.ints(k, 9, 2, 20 + 4 * (k == 6))
        y = call(way.randn(k, 9, 5), edges)
        F.cross_entropy(y, way.ints(k, 3, 9)).backward()
        yield y.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


class GAT(nn.Module):
    def __init__(self, i=5, h=4, heads=2):
        super().__init__()
        self.w = nn.Linear(i, h * heads, bias=False)
        self.a_src, self.a_dst = nn.Parameter(torch.randn(heads, h)), nn.Parameter(torch.randn(heads, h))
        self.heads = heads

    def forward(self, x, src, dst):
        z = self.w(x).view(x.size(0), self.heads, -1)
        e = F.leaky_relu((z * self.a_src).sum(-1)[src] + (z * self.a_dst).sum(-1)[dst], 0.2)
        top = torch.full((x.size(0), self.heads), -1e30, device=x.device)
        top = top.scatter_reduce(0, dst[:, None].expand_as(e), e, "amax")
        w = torch.exp(e - top[dst])
        s = torch.zeros_like(top).index_add(0, dst, w)
        alpha = F.dropout(w / (s[dst] + 1e-9), 0.25, self.training)
        return torch.zeros_like(z).index_add(0, dst, alpha[..., None] * z[src]).flatten(1)


@program(changes_model=True)
def gat(way):
    net = way.build(GAT)
    call = way(net)
    for k in range(10):
        torch.manual_seed(k)
        e = way.ints(k, 7, 2, 15)
        y = call(way.randn(k, 7, 5), *e)
        y.abs().mean().backward()
        yield y.detach(), net.w.weight.grad.clone()
        net.zero_grad()
        if k == 6:
            net.eval()


@program()
def message_passing_batched(way):
    # as torch_geometric does it: several graphs in one, pooled by their number, edges with features
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.msg = nn.Sequential(nn.Linear(4 + 4 + 2, 8), nn.ReLU(), nn.Linear(8, 4))
            self.upd = nn.GRUCell(4, 4)
            self.read = nn.Linear(4, 1)

        def forward(self, data):
            x, (row, col), attr, batch = data["x"], data["edge_index"], data["edge_attr"], data["batch"]
            for _ in range(2):
                m = self.msg(torch.cat([x[row], x[col], attr], -1))
                agg = torch.zeros_like(x).index_put((col,), m, accumulate=True)
                x = self.upd(agg, x)
            n = data["num_graphs"]
            total = torch.zeros(n, 4, device=x.device).index_add_(0, batch, x)
            count = torch.bincount(batch, minlength=n).clamp(min=1)
            return self.read(total / count[:, None]).squeeze(-1)

    net = way.build(Net)
    call = way(net)
    for k in range(10):
        data = {
            "x": way.randn(k, 10, 4),
            "edge_index": way.ints(k, 10, 2, 18),
            "edge_attr": way.randn(k + 1, 18, 2),
            "batch": way.ints(k, 3, 10).sort().values,
            "num_graphs": 3,
        }
        y = call(data)
        y.sum().backward()
        yield y.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


# --- recommenders -----------------------------------------------------------------------------------------------------
class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, 4, mode=m) for m in ("sum", "mean"))
        self.bottom = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU())
        self.top = nn.Linear(4 + 3, 1)
        i, j = torch.tril_indices(3, 3, -1)
        self.i, self.j = i, j  # plain attributes: they stay on the host

    def forward(self, dense, ids, offsets):
        d = self.bottom(dense)
        e = [bag(i, o) for bag, i, o in zip(self.bags, ids, offsets)]
        t = torch.stack([d, *e], 1)
        z = torch.bmm(t, t.transpose(1, 2))[:, self.i, self.j]
        return self.top(torch.cat([d, z], 1)).squeeze(1)


@program()
def dlrm_bags(way):
    net = way.build(DLRM)
    call = way(net)
    for k in range(10):
        ids = [way.ints(k + s, 20, 12) for s in range(2)]
        off = [torch.tensor([0, 3, 7], device=way.device), torch.tensor([0, 5 - k % 3, 9], device=way.device)]
        y = call(way.randn(k, 3, 3), ids, off)
        F.binary_cross_entropy_with_logits(y, way.ints(k, 2, 3).float()).backward()
        yield y.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


@program()
def matrix_factorisation(way):
    class MF(nn.Module):
        def __init__(self, users=12, items=15, d=4):
            super().__init__()
            self.u, self.i = nn.Embedding(users, d), nn.Embedding(items, d)
            self.bu, self.bi = nn.Embedding(users, 1), nn.Embedding(items, 1)
            self.mu = nn.Parameter(torch.zeros(()))

        def forward(self, u, i):
            return (self.u(u) * self.i(i)).sum(-1) + (self.bu(u) + self.bi(i)).squeeze(-1) + self.mu

    net = way.build(MF)
    model = way(net)
    opt = torch.optim.Adamax(net.parameters(), lr=0.02, capturable=True)

    def bpr(u, pos, neg):
        loss = -F.logsigmoid(model(u, pos) - model(u, neg)).mean()
        loss = loss + 1e-3 * sum(p.pow(2).sum() for p in net.parameters())
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    step = way.step(bpr, net, opt)
    for k in range(10):
        yield step(way.ints(k, 12, 8), way.ints(k + 1, 15, 8), way.ints(k + 2, 15, 8)), net.mu.detach().clone()


# --- mixture of experts: topk routing with capacity, one_hot and cumsum, no loop over tokens --------------------------
class MoE(nn.Module):
    def __init__(self, d=6, experts=4, k=2, cap=5):
        super().__init__()
        self.gate = nn.Linear(d, experts, bias=False)
        self.w1, self.w2 = (
            nn.Parameter(torch.randn(experts, d, 12) * 0.3),
            nn.Parameter(torch.randn(experts, 12, d) * 0.3),
        )
        self.e, self.k, self.cap = experts, k, cap

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        w, idx = p.topk(self.k, -1)
        w = w / w.sum(-1, keepdim=True)
        hot = F.one_hot(idx, self.e)
        pos = (hot.flatten(0, 1).cumsum(0) - 1).view_as(hot)
        hot = hot * (pos < self.cap)
        disp = (F.one_hot(pos.clamp(0, self.cap - 1), self.cap) * hot[..., None]).float()
        comb = (disp * w[..., None, None]).sum(1)
        xe = torch.einsum("tec,td->ecd", disp.sum(1), x)
        ye = torch.bmm(F.relu(torch.bmm(xe, self.w1)), self.w2)
        aux = self.e * (p.mean(0) * hot.sum(1).float().mean(0)).sum()
        return torch.einsum("tec,ecd->td", comb, ye), aux


@program()
def moe_capacity(way):
    net = way.build(MoE)
    call = way(net)
    for k in range(10):
        y, aux = call(way.randn(k, 9, 6))
        (y.pow(2).mean() + 0.01 * aux).backward()
        yield y.detach(), aux.detach(), [p.grad.clone() for p in net.parameters()]
        net.zero_grad()


@program()
def moe_by_loop(way):
    # as many do it: torch.where gives sizes that the host must know
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 3)
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            w, idx = self.gate(x).softmax(-1).topk(2, -1)
            out = torch.zeros_like(x)
            for n, expert in enumerate(self.experts):
                rows, slot = torch.where(idx == n)
                if rows.numel():
                    out[rows] += w[rows, slot, None] * expert(x[rows])
            return out

    net = way.build(Loop)
    call = way(net)
    with torch.no_grad():
        for k in range(10):
            yield call(way.randn(k, 6, 4))


# --- sparse gates: Gumbel softmax, straight-through, hard concrete -----------------------------------------------------
@program()
def sparse_gates(way):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = nn.Parameter(torch.zeros(6))
            self.lin = nn.Linear(6, 6)

        def forward(self, x, tau=1.0):
            u = torch.rand_like(self.logits).clamp_(1e-6, 1 - 1e-6)
            s = torch.sigmoid((u.log() - (-u).log1p() + self.logits) / tau)
            z = (s * 1.2 - 0.1).clamp(0, 1)
            hard = (z > 0.5).to(z) - z.detach() + z
            k = F.gumbel_softmax(self.lin(x), tau=tau, hard=True)
            return x * hard + k

    net = way.build(Gated)
    call = way(net)
    for k in range(10):
        torch.manual_seed(k)
        y = call(way.randn(k, 3, 6), tau=1.0 if k < 5 else 0.5)
        y.pow(3).mean().backward()
        yield y.detach(), net.logits.grad.clone(), net.lin.weight.grad.clone()
        net.zero_grad()


# --- optimal transport: Sinkhorn with a number of rounds that the author changes ---------------------------------------
@program()
def sinkhorn(way):
    def sinkhorn(a, b, eps=0.1, rounds=5):
        cost = torch.cdist(a, b) ** 2
        f, g = a.new_zeros(a.size(0)), b.new_zeros(b.size(0))
        for _ in range(rounds):
            f = -eps * torch.logsumexp((g[None] - cost) / eps, 1)
            g = -eps * torch.logsumexp((f[:, None] - cost) / eps, 0)
        plan = torch.exp((f[:, None] + g[None] - cost) / eps)
        return (plan * cost).sum(), plan

    call = way(sinkhorn)
    for k in range(10):
        a = way.randn(k, 6, 2).requires_grad_()
        value, plan = call(a, way.randn(k + 1, 5, 2), rounds=3 if k in (4, 8) else 5)
        value.backward()
        yield value.detach(), plan.detach(), a.grad
