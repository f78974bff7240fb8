"""Programs of the catalogue's classes around ``torch.compile(backend="paramgraph")``."""

from __future__ import annotations

from tests.integration.applied import Applied

COMPILED = (
    Applied(
        "device-copy",
        setup="c = torch.arange(4.0).sqrt()\n",
        before="""
        @compiled
        def f(x):
            return x + c.to(device)
        """,
        after="""
        c = c.to(device)
        @compiled
        def f(x):
            return x + c
        """,
    ),
    Applied(
        "unbacked-op",
        settings={"capture_dynamic_output_shape_ops": True},
        before="""
        @compiled
        def f(x):
            mask = x > 5
            return x[mask].sum()
        """,
        after="""
        @compiled
        def f(x):
            mask = x > 5
            return torch.where(mask, x, 0).sum()
        """,
    ),
    Applied(
        "unbacked-op",
        name="nonzero",
        settings={"capture_dynamic_output_shape_ops": True},
        before="""
        @compiled
        def f(x):
            return x * torch.nonzero(x >= 0).sum()
        """,
        after="""
        @compiled
        def f(x):
            return x * torch.nonzero_static(x >= 0, size=4).sum()
        """,
    ),
    Applied(
        "graph-break",
        before="""
        @compiled
        def f(x):
            y = x * 2
            print(y.sum())
            return y + 1
        """,
        after="""
        @compiled
        def f(x):
            y = x * 2
            return y + 1
        def call(n):
            y = f(x(n))
            print((y - 1).sum())
            return y
        """,
    ),
    Applied(
        "gradients-added",
        told="watched(call)",
        setup="""
        model = nn.Linear(4, 1).to(device)
        opt = torch.optim.SGD(model.parameters(), 1e-5)
        """,
        before="""
        critic = compiled(model)
        def call(n):
            opt.zero_grad()
            loss = (critic(x(n)) - critic(x(n) + 1) ** 2).sum()
            loss.backward()
            opt.step()
            return loss
        """,
        after="""
        @parameterized(state=(model, opt))
        def step(x):
            opt.zero_grad()
            loss = (model(x) - model(x + 1) ** 2).sum()
            loss.backward()
            opt.step()
            return loss.detach()
        def call(n):
            return step(x(n))
        """,
    ),
    Applied(
        "recompile-limit",
        setup="class Model(nn.Module):\n    def forward(self, x):\n        return x * self.scale\nmodel = Model()\n",
        before="""
        f = compiled(model)
        def call(n):
            model.scale = n
            return f(x(n))
        """,
        after="""
        f = compiled(model)
        model.scale = torch.zeros((), device=device)
        def call(n):
            model.scale.fill_(n)
            return f(x(n))
        """,
    ),
    Applied(
        "recompile-limit",
        name="larger",
        setup="class Model(nn.Module):\n    def forward(self, x):\n        return x * self.scale\nmodel = Model()\n",
        before="""
        f = compiled(model)
        def call(n):
            model.scale = n
            return f(x(n)), f(x(n + 1))
        """,
        after="""
        torch._dynamo.config.recompile_limit = 16
        f = compiled(model)
        def call(n):
            model.scale = n
            return f(x(n)), f(x(n + 1))
        """,
    ),
    Applied(
        "custom-op",
        before="""
        torch._inductor.config.custom_should_partition_ops = ["aten::sin"]
        @compiled
        def f(x):
            return (x * 2).sin() + 1
        """,
        after="""
        torch._inductor.config.custom_should_partition_ops = []
        @compiled
        def f(x):
            return (x * 2).sin() + 1
        """,
    ),
    Applied(
        "too-many-variants",
        setup="""
        def call(n):
            return f(torch.arange(4.0 + n, device=device)), f(torch.arange(24.0 + n, device=device))
        """,
        before="""
        @compiled(dynamic=True)
        def f(x):
            return (x * 2).sum()
        """,
        after="""
        @compiled(dynamic=True)
        def padded(x):
            return (x * 2).sum()
        def f(x):
            return padded(F.pad(x, (0, 64 - len(x))))
        """,
    ),
    Applied(
        "cpu-op",
        setup="def call(n):\n    return f(x(n), n % 3 + 2)\n",
        before="""
        @compiled
        def f(x, n):
            return x[torch.arange(n)] * 2
        """,
        after="""
        @compiled
        def f(x, n):
            return x[torch.arange(n, device=x.device)] * 2
        """,
    ),
    Applied(
        "cpu-op",
        name="buffer",
        before="""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = torch.arange(4.0)
            def forward(self, x):
                return x + self.table.sqrt().to(x.device)
        f = compiled(Model().to(device))
        """,
        after="""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.arange(4.0))
            def forward(self, x):
                return x + self.table.sqrt()
        f = compiled(Model().to(device))
        """,
    ),
    Applied(
        "control-flow",
        before="""
        @compiled
        def f(x):
            return torch.cond(x.sum() > 20, lambda x: x.sin(), lambda x: x.cos(), (x,))
        """,
        after="""
        @compiled
        def f(x):
            return torch.where(x.sum() > 20, x.sin(), x.cos())
        """,
    ),
    Applied(
        "unsafe-op",
        setup="v = torch.full((4,), 3.0, device=device)\n",
        before="""
        @compiled
        def f(x):
            y = x * 2
            y[y > 9] = v[y > 9]
            return y
        """,
        after="""
        @compiled
        def f(x):
            y = x * 2
            return torch.where(y > 9, v, y)
        """,
    ),
    Applied(
        "unsafe-op",
        name="histc",
        before="""
        @compiled
        def f(x):
            return torch.histc(x, 4)
        """,
        after="""
        @compiled
        def f(x):
            return torch.histc(x, 4, 0, 12)
        """,
        eager_fixed=True,
    ),
    Applied(
        "unsafe-op",
        name="normal",
        before="""
        @compiled
        def f(mean):
            std = mean.abs() + 1
            return torch.normal(mean, std)
        """,
        after="""
        @compiled
        def f(mean):
            std = mean.abs() + 1
            return mean + std * torch.randn_like(std)
        """,
        exact=False,
    ),
    Applied(
        "dynamic-graphs",
        setup="def call(n):\n    return f(torch.arange(4.0 + n % 3, device=device) + n)\n",
        before="""
        torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True
        @compiled(dynamic=True)
        def f(x):
            return x * 2 + 1
        """,
        after="""
        torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = False
        @compiled(dynamic=True)
        def f(x):
            return x * 2 + 1
        """,
    ),
    Applied(
        "dynamic-graphs",
        name="padded",
        setup="""
        torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True
        def long(n):
            return torch.arange(4.0 + n % 3, device=device) + n
        """,
        before="""
        @compiled
        def f(x):
            return (x * 2).sum()
        def call(n):
            return f(long(n))
        """,
        after="""
        @compiled
        def f(x):
            return (x * 2).sum()
        def call(n):
            return f(F.pad(long(n), (0, 8 - len(long(n)))))
        """,
    ),
    Applied(
        "dynamic-graphs",
        name="static",
        setup="""
        torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True
        def long(n):
            return torch.arange(4.0 + n % 3, device=device) + n
        """,
        before="""
        @compiled
        def f(x):
            return x * 2 + 1
        def call(n):
            return f(long(n))
        """,
        after="""
        @compiled
        def f(x):
            return x * 2 + 1
        def call(n):
            x = long(n)
            torch._dynamo.mark_static(x, 0)
            return f(x)
        """,
    ),
    Applied(
        "unknown-input",
        setup="vectors = torch.eye(4, device=device)\n",
        before="""
        @compiled
        def f(x):
            return x.sin() * x
        def call(n):
            there = x(n).requires_grad_()
            return torch.autograd.grad(f(there), there, vectors, is_grads_batched=True)[0]
        """,
        after="""
        @compiled
        def f(x):
            return x.sin() * x
        def call(n):
            there = x(n).requires_grad_()
            return torch.stack([torch.autograd.grad(f(there), there, v)[0] for v in vectors])
        """,
    ),
)
