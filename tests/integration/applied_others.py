"""Programs of the catalogue's classes around functions that are diagnosed, and captures by hand."""

from __future__ import annotations

from tests.integration.applied import Applied

# Their graphs are made by hand: ``captured(f, x)`` is ``f`` in one of ``torch.cuda.graph``, replayed with new inputs.
OTHERS = (
    Applied(
        "empty-graph",
        setup="def g(x):\n    return x * 2 + 1\n",
        before="""
        def ask():
            return pgk.diagnose(g, x(0).cpu()).codes
        def call(n):
            return g(x(n).cpu())
        """,
        after="""
        def ask():
            return pgk.diagnose(g, x(0)).codes
        f = captured(g, x(0))
        """,
        graphed=False,
        told="ask()",
    ),
    Applied(
        "time-limit",
        setup="""
        def g(x):
            time.sleep(x.numel() * 0.0001)
            return x * 2
        f = captured(g, x(0))
        """,
        before="""
        def ask():
            return pgk.diagnose(g, torch.ones(40_000, device=device), limit_s=0.5).codes
        """,
        after="""
        def ask():
            return pgk.diagnose(g, torch.ones(40, device=device), limit_s=0.5).codes
        """,
        graphed=False,
        told="ask()",
    ),
    Applied(
        "time-limit",
        name="longer",
        setup="""
        def g(x):
            time.sleep(x.numel() * 0.0001)
            return x * 2
        f = captured(g, x(0))
        """,
        before="""
        def ask():
            return pgk.diagnose(g, torch.ones(2000, device=device), limit_s=0.05).codes
        """,
        after="""
        def ask():
            return pgk.diagnose(g, torch.ones(2000, device=device), limit_s=300).codes
        """,
        graphed=False,
        told="ask()",
    ),
    Applied(
        "exits",
        before="""
        import sys
        def g(x):
            y = x * 2
            if x.shape[0] == 4:
                sys.exit()
            return y
        """,
        after="""
        def g(x):
            y = x * 2
            if x.shape[0] == 4:
                return y
            return y
        f = captured(g, x(0))
        """,
        graphed=False,
        told="pgk.diagnose(g, x(0)).codes",
        eager_fixed=True,
    ),
    Applied(
        "raises",
        before="""
        def g(x):
            return x @ torch.ones(3, 3, device=device)
        """,
        after="""
        def g(x):
            return x @ torch.ones(4, 3, device=device)
        f = captured(g, x(0))
        """,
        graphed=False,
        told="pgk.diagnose(g, x(0)).codes",
        eager_fixed=True,
    ),
    Applied(
        "not-known",
        setup="twice, values = torch.arange(64, device=device) // 2, torch.arange(64.0, device=device)\n",
        before="""
        def g(x):
            return torch.zeros(32, device=device).index_copy(0, twice, values * x[1])
        def call(n):
            return g(x(n))
        """,
        after="""
        def g(x):
            return torch.zeros(32, device=device).index_reduce(0, twice, values * x[1], "amax")
        f = captured(g, x(0))
        """,
        graphed=False,
        told="watched(call)",
        eager_fixed=True,
    ),
    Applied(
        "not-simulated",
        before="""
        def g(x):
            return x + torch.ones(4, device="cuda")
        """,
        after="""
        def g(x):
            return x + torch.ones(4, device=device)
        f = captured(g, x(0))
        """,
        graphed=False,
        told="pgk.diagnose(g, x(0)).codes",
        eager_fixed=True,
    ),
    Applied(
        "merged-captures",
        graphed=False,
        setup="""
        a, b = cuda.CUDAGraph(), cuda.CUDAGraph()
        s, t = cuda.Stream(), cuda.Stream()
        static = x(0)
        def call(n):
            static.copy_(x(n))
            if eager:
                return static * 2 + 1
            a.replay()
            b.replay()
            return z
        """,
        before="""
        if not eager:
            with cuda.stream(s):
                a.capture_begin()
                y = static * 2
            with cuda.stream(t):
                b.capture_begin()
                t.wait_stream(s)
                z = y + 1
                b.capture_end()
            with cuda.stream(s):
                a.capture_end()
        """,
        after="""
        if not eager:
            with cuda.stream(s):
                a.capture_begin()
                y = static * 2
                a.capture_end()
            with cuda.stream(t):
                b.capture_begin()
                z = y + 1
                b.capture_end()
        """,
    ),
    Applied(
        "illegal-address",
        graphed=False,
        setup="def big(n):\n    return torch.full((1 << 20,), float(n), device=device)\n",
        before="""
        g, static = cuda.CUDAGraph(), big(0)
        with cuda.graph(g):
            y = (static * 2).sum()
        del static
        cuda.empty_cache()
        def call(n):
            if not eager:
                g.replay()
                cuda.synchronize()
                return y
            return (big(n) * 2).sum()
        """,
        after="""
        g, static = cuda.CUDAGraph(), big(0)
        with cuda.graph(g):
            y = (static * 2).sum()
        cuda.empty_cache()
        def call(n):
            static.copy_(big(n))
            if not eager:
                g.replay()
                return y
            return (big(n) * 2).sum()
        """,
    ),
    Applied(
        "sync-unknown",
        graphed=False,
        setup="""
        @torch.jit.script
        def total(x):
            return x.sum().item()
        """,
        before="""
        def g(x):
            return x * total(x)
        f = captured(g, x(0))
        """,
        after="""
        def g(x, s):
            return x * s
        replay = captured(g, x(0), torch.zeros((), device=device))
        def call(n):
            return replay(x(n), torch.tensor(total(x(n)), device=device))
        """,
    ),
    Applied(
        "sync-unknown",
        graphed=False,
        name="behind",
        setup="""
        @torch.jit.script
        def total(x):
            return x.sum().item()
        """,
        before="""
        def g(x):
            y = x * 2
            total(y)
            return y
        f = captured(g, x(0))
        """,
        after="""
        def g(x):
            return x * 2
        replay = captured(g, x(0))
        def call(n):
            y = replay(x(n))
            total(y)
            return y
        """,
    ),
)
