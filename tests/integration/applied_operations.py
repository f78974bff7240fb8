"""Programs of the catalogue's classes around custom operations."""

from __future__ import annotations

from tests.integration.applied import Applied

OPERATIONS = (
    Applied(
        "unexplained-word",
        setup="""
        numbers = itertools.count()
        @torch.library.custom_op("applied::noisy", mutates_args=())
        def noisy(x: torch.Tensor) -> torch.Tensor:
            return x + x * next(numbers) * 0
        noisy.register_fake(torch.empty_like)
        """,
        before="""
        def helper(x):
            return noisy(x)
        @compiled
        def f(x):
            return helper(x * 2) + 1
        """,
        after="""
        @torch.compiler.disable
        def helper(x):
            return noisy(x)
        @compiled
        def f(x):
            return helper(x * 2) + 1
        """,
        leaves=("graph-break",),
    ),
    Applied(
        "unstable-capture",
        setup="""
        calls = itertools.count()
        def chosen():
            return next(calls) % 2
        """,
        before="""
        @torch.library.custom_op("applied::unstable", mutates_args=())
        def unstable(x: torch.Tensor) -> torch.Tensor:
            return x + x if chosen() else x * 2
        unstable.register_fake(torch.empty_like)
        @compiled
        def f(x):
            return unstable(x).sin()
        """,
        after="""
        which = chosen()
        @torch.library.custom_op("applied::stable", mutates_args=())
        def stable(x: torch.Tensor) -> torch.Tensor:
            return x + x if which else x * 2
        stable.register_fake(torch.empty_like)
        @compiled
        def f(x):
            return stable(x).sin()
        """,
    ),
    Applied(
        "host-memcpy",
        setup="host = torch.zeros(4).pin_memory()\n",
        before="""
        @torch.library.custom_op("applied::tells", mutates_args=())
        def tells(x: torch.Tensor) -> torch.Tensor:
            host.copy_(x, non_blocking=True)
            return x + 1
        tells.register_fake(torch.empty_like)
        @compiled
        def f(x):
            return tells(x * 2)
        def call(n):
            y = f(x(n))
            cuda.synchronize()
            return y, host
        """,
        after="""
        @torch.library.custom_op("applied::returns", mutates_args=())
        def returns(x: torch.Tensor) -> torch.Tensor:
            return x + 1
        returns.register_fake(torch.empty_like)
        @compiled
        def f(x):
            y = x * 2
            return returns(y), y
        def call(n):
            y, z = f(x(n))
            return y, z.cpu()
        """,
    ),
    Applied(
        "opaque-node",
        setup="event = cuda.Event(external=True)\n",
        before="""
        @torch.library.custom_op("applied::opaque", mutates_args=())
        def opaque(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            event.record()
            return y
        opaque.register_fake(torch.empty_like)
        @compiled
        def f(x):
            return opaque(x + 1).sin()
        """,
        after="""
        @torch.library.custom_op("applied::tagged", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
        def opaque(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            event.record()
            return y
        opaque.register_fake(torch.empty_like)
        @compiled
        def f(x):
            return opaque(x + 1).sin()
        """,
        leaves=("unsafe-op",),
    ),
    Applied(
        "unowned-address",
        setup="table = torch.arange(4.0, device=device).sqrt()\n",
        before="""
        @torch.library.custom_op("applied::keeps", mutates_args=())
        def keeps(x: torch.Tensor) -> torch.Tensor:
            return x + table
        keeps.register_fake(torch.empty_like)
        @compiled
        def f(x):
            return keeps(x * 2)
        """,
        after="""
        @torch.library.custom_op("applied::given", mutates_args=())
        def given(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            return x + table
        given.register_fake(lambda x, table: torch.empty_like(x))
        @compiled
        def f(x):
            return given(x * 2, table)
        """,
    ),
    Applied(
        "wrong-result",
        setup="""
        clock = [0]
        @torch.library.custom_op("applied::asks", mutates_args=())
        def asks(x: torch.Tensor) -> torch.Tensor:
            return x * clock[0]
        asks.register_fake(torch.empty_like)
        def call(n):
            clock[0] = n // 2
            return f(x(n))
        """,
        before="""
        @compiled(options={"verify": "always"})
        def f(x):
            return asks(x) + 1
        """,
        after="""
        @compiled(options={"select": "never"})
        def f(x):
            return asks(x) + 1
        """,
        graphed=False,
    ),
    Applied(
        "wrong-result",
        name="given",
        setup="clock = [0]\n",
        before="""
        @torch.library.custom_op("applied::reads", mutates_args=())
        def reads(x: torch.Tensor) -> torch.Tensor:
            return x * clock[0]
        reads.register_fake(torch.empty_like)
        @compiled(options={"verify": "always"})
        def f(x):
            return reads(x) + 1
        def call(n):
            clock[0] = n // 2
            return f(x(n))
        """,
        after="""
        @torch.library.custom_op("applied::takes", mutates_args=())
        def takes(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
            return x * time
        takes.register_fake(lambda x, time: torch.empty_like(x))
        @compiled(options={"verify": "always"})
        def f(x, time):
            return takes(x, time) + 1
        def call(n):
            return f(x(n), torch.tensor(n // 2, device=device))
        """,
    ),
    Applied(
        "unsafe-op",
        name="custom",
        before="""
        @torch.library.custom_op("applied::waits", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
        def waits(x: torch.Tensor) -> torch.Tensor:
            return x * x.sum().item()
        waits.register_fake(torch.empty_like)
        @compiled
        def f(x):
            return waits(x) + 1
        """,
        after="""
        @compiled
        def f(x):
            return x * x.sum() + 1
        """,
    ),
)
