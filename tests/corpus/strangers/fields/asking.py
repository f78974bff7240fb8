from __future__ import annotations

import concurrent.futures
import queue
import threading
import torch
import torch.nn as nn

from tests.corpus.strangers.program import program

DYNAMO = "Dynamo does not see this change"
ASKS = "it asks whether it is compiled"


@program(skip={"compiled": ASKS, "dynamo": ASKS, "inputs": ASKS, "verified": ASKS})
def is_compiling_differs(way):
    def f(x): return x * 2 if torch.compiler.is_compiling() else x * 3
    def g(x): return x * 2 if torch.compiler.is_dynamo_compiling() else x * 3
    def h(x): return x * 2 if torch._dynamo.is_compiling() else x * 3
    def i(x): return x * 2 if torch.jit.is_scripting() or torch.jit.is_tracing() or torch.compiler.is_exporting() else x * 3
    a, b, c, d = way(f), way(g), way(h), way(i)
    s = way.step(f)
    for k in range(8):
        x = way.randn(k, 4); yield a(x), b(x), c(x), d(x), s(x)

@program()
def locks_and_events(way):
    e, l, b = threading.Event(), threading.Lock(), threading.Condition()
    def f(x):
        with l:
            y = x * 2
        if not e.is_set(): y = y + 1
        with b: y = y * 3
        return y
    a = way(f); s = way.step(f)
    for k in range(10):
        if k == 5: e.set()
        if k == 8: e.clear()
        yield a(way.randn(k, 4)), s(way.randn(k, 4))

@program(skip={"compiled": DYNAMO, "dynamo": DYNAMO, "inputs": DYNAMO, "verified": DYNAMO})
def type_and_isinstance(way):
    class Sub(torch.Tensor): pass
    def f(x):
        if isinstance(x, nn.Parameter): return x * 2
        if x.is_leaf and x.requires_grad: return x * 3
        return x * (4 if x.grad_fn is None else 5)
    a = way(f)
    for k in range(8):
        x = way.randn(k, 4)
        yield a(x), a(nn.Parameter(x)).detach(), a(x.clone().requires_grad_()).detach(), a(x.clone().requires_grad_() * 1).detach()

@program()
def data_ptr_and_storage(way):
    def f(x, y): return x * (2 if x.data_ptr() == y.data_ptr() else 3), x.storage_offset(), x.untyped_storage().nbytes(), x.element_size(), x._base is None
    a = way(f); s = way.step(f)
    for k in range(8):
        x = way.randn(k, 6)
        yield a(x, x.view(2, 3).view(6)), a(x, x.clone()), a(x[2:], x[2:]), s(x, x.view(6))

@program(skip={"compiled": DYNAMO, "dynamo": DYNAMO, "inputs": DYNAMO, "verified": DYNAMO})
def try_except_inside(way):
    def f(x, w):
        try: return x @ w
        except RuntimeError: return x.sum() + w.sum()
    a = way(f); s = way.step(f)
    for k in range(9):
        w = way.randn(k, 4, 2) if k % 3 else way.randn(k, 3, 2)
        yield a(way.randn(k, 2, 4), w), s(way.randn(k, 2, 4), w)

@program()
def generators_and_next(way):
    scales = iter(range(1, 1000))
    def f(x): return x * next(scales)
    a = way(f)
    for k in range(8): yield a(way.randn(k, 4))

@program()
def lru_cached_helper(way):
    import functools
    calls = []
    @functools.lru_cache
    def table(n, dev): calls.append(n); return torch.arange(n, dtype=torch.float32, device=dev).sin()
    def f(x): return x + table(x.size(-1), x.device)
    a = way(f); s = way.step(f)
    for k in range(10):
        if k == 6: table.cache_clear()
        yield a(way.randn(k, 2, 4 + k // 4)), s(way.randn(k, 2, 4 + k // 4))

@program(skip={"compiled": DYNAMO, "dynamo": DYNAMO, "inputs": DYNAMO, "verified": DYNAMO})
def time_and_env(way):
    import os
    def f(x): return x * float(os.environ.get("PGK_TEST_SCALE", "1"))
    a = way(f); s = way.step(f)
    for k in range(10):
        if k == 4: os.environ["PGK_TEST_SCALE"] = "3"
        if k == 8: del os.environ["PGK_TEST_SCALE"]
        yield a(way.randn(k, 4)), s(way.randn(k, 4))

@program()
def set_grad_inside(way):
    w = None
    def f(x, train):
        with torch.set_grad_enabled(train):
            y = (x * 2).sin()
        return y, y.requires_grad
    a = way(f)
    for k in range(8):
        y, r = a(way.randn(k, 4).requires_grad_(), k % 2 == 0)
        yield y.detach(), r, y.requires_grad

@program(changes_model=True)
def default_dict_and_sets(way):
    import collections
    reg = collections.defaultdict(lambda: 1.0); on = {"a"}
    def f(x, key):
        y = x * reg[key] if key in reg else x
        return y + 1 if "a" in on else y
    a = way(f); s = way.step(f)
    for k in range(12):
        if k == 3: reg["p"] = 4.0
        if k == 6: on.discard("a")
        if k == 9: on.add("a"); reg["p"] += 1
        yield a(way.randn(k, 4), "p"), s(way.randn(k, 4), "p")

@program()
def format_of_tensor(way):
    def f(x): return x * len(f"{x}")
    def g(x): return x * len(repr(x)), str(x.shape)
    def h(x): 
        if "0.0" in str(x.sum()): return x
        return x + 1
    a, b, c = way(f), way(g), way(h)
    for k in range(8):
        x = way.randn(k, 4) * 10 ** (k - 3); yield a(x), b(x), c(x)

@program(changes_model=True)
def event_set_inside(way):
    e = threading.Event()
    def f(x):
        if e.is_set(): return x * 5
        e.set()
        return x * 2
    a = way(f); s = way.step(f)
    for k in range(10):
        if k % 4 == 3: e.clear()
        yield a(way.randn(k, 4)), e.is_set()
        if k % 4 == 2: e.clear()
        yield s(way.randn(k, 4)), e.is_set()

@program()
def queue_inside(way):
    q = queue.Queue(); out = queue.Queue(); sq = queue.SimpleQueue()
    def f(x):
        y = x * q.get(); out.put(float(1)); return y
    def g(x):
        sq.put(1); return x * sq.qsize()
    a = way(f); s = way.step(f); h = way(g); t = way.step(g)
    for k in range(8):
        q.put(k + 1.0); 
        yield a(way.randn(k, 4)), q.qsize(), out.qsize()
        yield h(way.randn(k, 4)), sq.qsize(), t(way.randn(k, 4)), sq.qsize()
        q.put(k + 2.0); yield s(way.randn(k, 4)), q.qsize(), out.qsize()

@program()
def thread_inside(way):
    ran = []
    def f(x):
        t = threading.Thread(target=ran.append, args=(1,)); t.start(); t.join()
        return x * 2
    def g(x):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda v: v * 2, [x, x + 1]))
    a = way(f); b = way(g); s = way.step(f); t = way.step(g)
    for k in range(8):
        x = way.randn(k, 4); yield a(x), len(ran); yield b(x); yield s(x), len(ran); yield t(x)
