"""Classes of failure of calls in the wrong order or with the wrong arguments."""

from __future__ import annotations

from paramgraph_kit.doctor.known.failure_class import PYTORCH_NOTES, FailureClass, Source, code

_API = Source(
    "PyTorch, torch.cuda.CUDAGraph", "https://docs.pytorch.org/docs/stable/generated/torch.cuda.CUDAGraph.html"
)
_CALLABLES = Source(
    "PyTorch, torch.cuda.make_graphed_callables",
    "https://docs.pytorch.org/docs/stable/generated/torch.cuda.make_graphed_callables.html",
)


def _misuse(
    id: str,  # noqa: A002 - the field's name
    title: str,
    cause: str,
    recognised: str,
    before: str,
    after: str,
    source: Source = _API,
    wrong: str = "",
) -> FailureClass:
    head = "x = torch.ones(2, device=device)\ng = cuda.CUDAGraph()\n"
    return FailureClass(
        id,
        title,
        "API misuse" if recognised else "silent",
        cause,
        "every version",
        recognised,
        head + code(before),
        head + code(after),
        source,
        wrong,
    )


CLASSES = (
    _misuse(
        "graph-has-capture",
        "A graph is captured twice",
        "A CUDAGraph is captured once. A second capture needs a new object, or reset() of the old one.",
        "graph-has-capture",
        """
        with cuda.graph(g):
            y = x * 2
        with cuda.graph(g):
            y = x * 3
        """,
        """
        with cuda.graph(g):
            y = x * 2
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            y = x * 3
        g.replay()
        got, expected = y, x * 3
        """,
    ),
    _misuse(
        "replay-without-capture",
        "A graph is replayed that was never captured",
        "replay() needs a capture that has ended well. Here none has begun, or it failed and the error was dropped.",
        "no-capture",
        "g.replay()",
        """
        with cuda.graph(g):
            y = x * 2
        g.replay()
        got, expected = y, x * 2
        """,
    ),
    _misuse(
        "replay-in-capture",
        "A graph is replayed inside another's capture",
        "replay() sets up the generator's numbers on the CPU, which no capture can hold, so torch refuses it.",
        "replay-in-capture",
        """
        with cuda.graph(g):
            y = x * 2
        h = cuda.CUDAGraph()
        with cuda.graph(h):
            g.replay()
            z = y + 1
        """,
        """
        with cuda.graph(g):
            y = x * 2
        h = cuda.CUDAGraph()
        with cuda.graph(h):
            z = y + 1
        g.replay()
        h.replay()
        got, expected = z, x * 2 + 1
        """,
    ),
    _misuse(
        "pool-without-capture",
        "The pool of a graph is asked for before its capture",
        "A graph gets its pool at its capture. To share one from the start, make a handle with graph_pool_handle().",
        "no-capture",
        """
        h = cuda.CUDAGraph()
        with cuda.graph(g, pool=h.pool()):
            y = x * 2
        """,
        """
        with cuda.graph(g, pool=cuda.graph_pool_handle()):
            y = x * 2
        g.replay()
        got, expected = y, x * 2
        """,
    ),
    _misuse(
        "end-without-begin",
        "A capture is ended that has not begun",
        "capture_end() finds no capture of this graph. The context manager keeps the two together.",
        "end-without-begin",
        """
        with cuda.stream(cuda.Stream()):
            y = x * 2
            g.capture_end()
        """,
        """
        with cuda.graph(g):
            y = x * 2
        g.replay()
        got, expected = y, x * 2
        """,
    ),
    _misuse(
        "graphed-arguments",
        "make_graphed_callables is given something else than tensors",
        "Its sample arguments become the graph's static inputs, which only tensors can be. Bind the rest in a lambda.",
        "graphed-arguments",
        "f = cuda.make_graphed_callables(lambda a, k: a * k, (x, 3))",
        """
        f = cuda.make_graphed_callables(lambda a: a * 3, (torch.zeros(2, device=device),))
        got, expected = f(x), x * 3
        """,
        _CALLABLES,
    ),
    _misuse(
        "graphed-shape",
        "A graphed callable is called with another shape",
        "Every call copies its arguments into the inputs of the capture, so shapes are those of sample_args. Pad to "
        "the captured shape.",
        "graphed-shape",
        """
        f = cuda.make_graphed_callables(lambda a: a * 2, (x,))
        y = f(torch.ones(3, device=device))
        """,
        """
        f = cuda.make_graphed_callables(lambda a: a * 2, (torch.zeros(4, device=device),))
        three = torch.ones(3, device=device)
        got, expected = f(F.pad(three, (0, 1)))[:3], three * 2
        """,
        _CALLABLES,
    ),
    _misuse(
        "graphed-closure",
        "A graphed callable reads a variable that was exchanged",
        "What the function closes over is read at the capture only; the graph keeps that tensor's address. Pass it as "
        "an argument.",
        "",
        """
        k = torch.ones(2, device=device)
        f = cuda.make_graphed_callables(lambda a: a * k, (x,))
        k = k * 5
        got, expected = f(x), x * k
        """,
        """
        k = torch.ones(2, device=device)
        f = cuda.make_graphed_callables(lambda a, b: a * b, (x, k))
        k = k * 5
        got, expected = f(x, k), x * k
        """,
        PYTORCH_NOTES,
        wrong="tensor([1., 1.])",
    ),
    _misuse(
        "graphed-sample-overwritten",
        "A sample argument of make_graphed_callables is used again",
        "The sample is the graph's own input: every call copies its argument there. Give it a tensor that nobody else "
        "needs.",
        "",
        """
        f = cuda.make_graphed_callables(lambda a: a * 2, (x,))
        f(torch.full((2,), 7.0, device=device))
        got, expected = x, torch.ones(2)
        """,
        """
        f = cuda.make_graphed_callables(lambda a: a * 2, (x.clone(),))
        f(torch.full((2,), 7.0, device=device))
        got, expected = x, torch.ones(2)
        """,
        _CALLABLES,
        wrong="tensor([7., 7.])",
    ),
)
