"""Programs of the catalogue's classes around ``pgk.parameterize(step, state=...)``."""

from __future__ import annotations

from tests.integration.applied import MODEL, Applied

STEPWISE = (
    Applied(
        "host-memcpy",
        setup="host = torch.arange(4.0).pin_memory()\n",
        before="""
        @parameterized(state=[host])
        def f(x):
            y = x * 2
            return y + host.to(device, non_blocking=True)
        """,
        after="""
        @parameterized(state=[])
        def f(x, there):
            y = x * 2
            return y + there
        def call(n):
            return f(x(n), host.to(device))
        """,
        name="from",
    ),
    Applied(
        "host-output",
        setup=MODEL,
        before="""
        @parameterized(state=(model, opt))
        def f(x):
            model(x).sum().backward()
            opt.step()
            return x * 2, torch.tensor(3, device="cpu")
        """,
        after="""
        @parameterized(state=(model, opt))
        def step(x):
            model(x).sum().backward()
            opt.step()
            return x * 2
        def f(x):
            return step(x), torch.tensor(3, device="cpu")
        """,
    ),
    Applied(
        "timed-event",
        setup="start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)\n",
        before="""
        @parameterized(state=[])
        def f(x):
            start.record()
            y = x * 2
            end.record()
            return y
        """,
        after="""
        @parameterized(state=[])
        def step(x):
            y = x * 2
            return y
        def f(x):
            start.record()
            y = step(x)
            end.record()
            return y
        """,
    ),
    Applied(
        "changing-scalar",
        before="""
        @parameterized(state=[])
        def f(x, step):
            return x * step
        def call(n):
            return f(x(n), n + 0.5)
        """,
        after="""
        @parameterized(state=[])
        def f(x, step):
            return x * step
        def call(n):
            return f(x(n), torch.tensor(n + 0.5, device=device))
        """,
    ),
    Applied(
        "hidden-tensor",
        setup="that_tensor = torch.ones(4, device=device)\n",
        before="""
        import ctypes
        holder = ctypes.py_object(that_tensor)
        @parameterized(state=[])
        def f(x):
            return x * holder.value
        def call(n):
            that_tensor.fill_(n)
            return f(x(n))
        """,
        after="""
        @parameterized(state=[])
        def f(x, that_tensor):
            return x * that_tensor
        def call(n):
            that_tensor.fill_(n)
            return f(x(n), that_tensor)
        """,
    ),
    Applied(
        "side-effect",
        name="counter",
        before="""
        class Running:
            def __init__(self):
                self.count = 0
            def step(self, x):
                self.count += 1
                return x * 2
        self = Running()
        step = parameterized(self.step, state=self)
        def call(n):
            return step(x(n)), self.count
        """,
        after="""
        class Running(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("count", torch.zeros((), device=device, dtype=torch.int64))
            def step(self, x):
                self.count.copy_(self.count + 1)
                return x * 2
        self = Running()
        step = parameterized(self.step, state=self)
        def call(n):
            return step(x(n)), int(self.count)
        """,
    ),
    Applied(
        "foreign-input",
        before="""
        @parameterized(state=[])
        def f(x):
            return x.to(device) * 2
        def call(n):
            return f(x(n).cpu())
        """,
        after="""
        @parameterized(state=[])
        def f(x):
            return x.to(device) * 2
        def call(n):
            return f(x(n).cpu().to(device))
        """,
    ),
    Applied(
        "unknown-output",
        setup="""
        class Result:
            def __init__(self, value):
                self.value = value
        """,
        before="""
        @parameterized(state=[])
        def f(x):
            return Result(x * 2)
        def call(n):
            return f(x(n)).value
        """,
        after="""
        @parameterized(state=[])
        def f(x):
            return x * 2
        def call(n):
            return Result(f(x(n))).value
        """,
    ),
    Applied(
        "unknown-output",
        name="tensor",
        setup="class Mine(torch.Tensor):\n    pass\n",
        before="""
        @parameterized(state=[])
        def f(x):
            return (x * 2).as_subclass(Mine)
        """,
        after="""
        @parameterized(state=[])
        def step(x):
            return x * 2
        def f(x):
            return step(x).as_subclass(Mine)
        """,
    ),
    Applied(
        "unknown-argument",
        setup="""
        class Batch:
            def __init__(self, tensor):
                self.tensor = tensor
        """,
        before="""
        @parameterized(state=[])
        def f(batch):
            return batch.tensor * 2
        def call(n):
            return f(Batch(x(n)))
        """,
        after="""
        @parameterized(state=[])
        def f(tensor):
            return tensor * 2
        def call(n):
            return f(Batch(x(n)).tensor)
        """,
    ),
    Applied(
        "unknown-argument",
        name="sparse",
        before="""
        @parameterized(state=[])
        def f(x):
            return torch.sparse.mm(x, torch.ones(4, 2, device=device)) if x.is_sparse else x
        def call(n):
            return f(torch.diag(x(n)).to_sparse())
        """,
        after="""
        @parameterized(state=[])
        def f(x):
            return torch.mm(x, torch.ones(4, 2, device=device))
        def call(n):
            return f(torch.diag(x(n)))
        """,
    ),
    Applied(
        "outside-state",
        setup="start = time.time()\n",
        before="""
        @parameterized(state=[])
        def f(x):
            return x * (time.time() > start - 1)
        """,
        after="""
        @parameterized(state=[])
        def f(x, now):
            return x * (now > start - 1)
        def call(n):
            return f(x(n), torch.tensor(time.time(), device=device, dtype=torch.float64))
        """,
    ),
    Applied(
        "too-much-state",
        name="tensor",
        setup="table = {n: float(n) for n in range(30_000)}\n",
        before="""
        @parameterized
        def f(x):
            return x * table[x.shape[0]]
        """,
        after="""
        table = torch.tensor(list(table.values()), device=device)
        @parameterized(state=[])
        def f(x):
            return x * table[x.shape[0]]
        """,
    ),
    Applied(
        "requires-grad",
        setup=MODEL,
        before="""
        @parameterized(state=(model, opt))
        def step(x):
            opt.zero_grad()
            loss = model(x).sum()
            loss.backward()
            opt.step()
            return model(x).sum()
        def call(n):
            return step(x(n))
        """,
        after="""
        @parameterized(state=(model, opt))
        def step(x):
            opt.zero_grad()
            loss = model(x).sum()
            loss.backward()
            opt.step()
            return model(x).sum().detach()
        def call(n):
            return step(x(n))
        """,
    ),
    Applied(
        "requires-grad",
        name="argument",
        setup=MODEL,
        before="""
        @parameterized(state=(model, opt))
        def step(x):
            opt.zero_grad()
            model(x).sum().backward()
            opt.step()
            return model.weight.detach() + x.detach()
        def call(n):
            return step(x(n).requires_grad_())
        """,
        after="""
        @parameterized(state=(model, opt))
        def step(x):
            opt.zero_grad()
            model(x).sum().backward()
            opt.step()
            return model.weight.detach() + x.detach()
        def call(n):
            return step(x(n).requires_grad_().detach())
        """,
    ),
    Applied(
        "requires-grad",
        name="state",
        setup="w = torch.ones(4, device=device, requires_grad=True)\nopt = torch.optim.SGD([w], 0.01)\n",
        before="""
        @parameterized(state=(opt,))
        def step(w, x):
            opt.zero_grad()
            loss = (w * x).sum()
            loss.backward()
            opt.step()
            return loss.detach()
        def call(n):
            return step(w, x(n)), w
        """,
        after="""
        @parameterized(state=(w, opt))
        def step(x):
            opt.zero_grad()
            loss = (w * x).sum()
            loss.backward()
            opt.step()
            return loss.detach()
        def call(n):
            return step(x(n)), w
        """,
    ),
    Applied(
        "too-many-variants",
        name="moved",
        setup="class Table:\n    pass\nself = Table()\nself.t = torch.zeros(4, device=device)\n",
        before="""
        @parameterized(state=self)
        def f(x):
            return x + self.t
        kept = []
        def call(n):
            self.t = x(n) * 2
            kept.append(self.t)
            return f(x(n))
        """,
        after="""
        @parameterized(state=self)
        def f(x):
            return x + self.t
        def call(n):
            self.t.copy_(x(n) * 2)
            return f(x(n))
        """,
    ),
)
