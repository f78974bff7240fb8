"""Programs of the catalogue's classes around functions that ``pgk.parameterize`` traces."""

from __future__ import annotations

from tests.integration.applied import MODEL, Applied

TRACED = (
    Applied(
        "user-stream",
        setup=MODEL
        + "side = cuda.Stream()\n"
        + """
def fn(x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        y = model(x) * 2
    z = x.sin()
    cuda.current_stream().wait_stream(side)
    return (y + z).detach()
""",
        before="""
        f = parameterized(fn)
        """,
        after="""
        f = parameterized(fn, state=(model,))
        """,
    ),
    Applied(
        "data-dependent",
        before="""
        @parameterized
        def f(x):
            return x * x.sum().item()
        """,
        after="""
        @parameterized
        def f(x):
            return x * x.sum()
        """,
    ),
    Applied(
        "hidden-tensor",
        name="buffer",
        setup="that_tensor = torch.ones(4, device=device)\n",
        before="""
        def inner():
            yield that_tensor
        tensors = {"that": that_tensor}
        @parameterized
        def f(x):
            return x * next(iter(tensors.values()))
        def call(n):
            that_tensor.fill_(n)
            return f(x(n))
        """,
        after="""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("that_tensor", that_tensor)
            def forward(self, x):
                return x * self.that_tensor
        f = parameterized(Model())
        def call(n):
            that_tensor.fill_(n)
            return f(x(n))
        """,
    ),
    Applied(
        "not-traceable",
        before="""
        @parameterized
        def f(x):
            y = x * 2
            if y.grad_fn is None and y.data_ptr() == 1:
                return x
            return y
        """,
        after="""
        @parameterized
        def step(x):
            return x * 2
        def f(x):
            y = step(x)
            if y.grad_fn is None and y.data_ptr() == 1:
                return x
            return y
        """,
    ),
    Applied(
        "random-backward",
        setup=MODEL,
        before="""
        class Noisy(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, grad):
                return grad * 2 + torch.rand_like(grad)
        @parameterized
        def forward(x):
            return Noisy.apply(model(x))
        def f(x):
            opt.zero_grad()
            forward(x).sum().backward()
            opt.step()
            return model.weight
        """,
        after="""
        class Noisy(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(torch.rand_like(x))
                return x * 2
            @staticmethod
            def backward(ctx, grad):
                return grad * 2 + ctx.saved_tensors[0]
        @parameterized
        def forward(x):
            return Noisy.apply(model(x))
        def f(x):
            opt.zero_grad()
            forward(x).sum().backward()
            opt.step()
            return model.weight
        """,
    ),
    Applied(
        "side-effect",
        before="""
        class Running(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("state", torch.zeros(4, device=device))
            def forward(self, x):
                y = self.state * 0.5 + x
                self.state = y
                return y * 2
        f = parameterized(Running())
        """,
        after="""
        class Running(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("state", torch.zeros(4, device=device))
            def forward(self, x):
                y = self.state * 0.5 + x
                self.state.copy_(y)
                return y * 2
        f = parameterized(Running())
        """,
    ),
    Applied(
        "too-many-traces",
        before="""
        @parameterized
        def f(x, n):
            return x * n
        def call(n):
            return f(x(n), n), f(x(n), n + 0.5)
        """,
        after="""
        @parameterized
        def f(x, n):
            return x * n
        def call(n):
            return f(x(n), torch.tensor(n, device=device)), f(x(n), torch.tensor(n + 0.5, device=device))
        """,
    ),
    Applied(
        "too-much-state",
        setup="table = {n: float(n) for n in range(30_000)}\n",
        before="""
        @parameterized
        def f(x):
            return x * table[x.shape[0]]
        """,
        after="""
        @parameterized
        def f(x, what_it_needs):
            return x * what_it_needs
        def call(n):
            return f(x(n), table[4])
        """,
    ),
    Applied(
        "unknown-state",
        name="array",
        setup="import numpy as np\narray = np.arange(100_000.0)\n",
        before="""
        @parameterized
        def f(x):
            return x * array.item(7)
        def call(n):
            array[7] = n + 0.5
            return f(x(n))
        """,
        after="""
        @parameterized
        def f(x, number):
            return x * number
        def call(n):
            array[7] = n + 0.5
            return f(x(n), torch.tensor(array.item(7), device=device))
        """,
    ),
    Applied(
        "unknown-state",
        setup="numbers = itertools.count(1.0)\n",
        before="""
        @parameterized
        def f(x):
            return x * next(numbers)
        """,
        after="""
        @parameterized
        def f(x, number):
            return x * number
        def call(n):
            return f(x(n), torch.tensor(next(numbers), device=device))
        """,
    ),
)
