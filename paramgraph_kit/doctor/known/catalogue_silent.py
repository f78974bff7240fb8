"""Classes of failure that nobody reports: the capture succeeds, and a replay gives the wrong number."""

from __future__ import annotations

from paramgraph_kit.doctor.known.failure_class import (
    DYNAMIC_PATTERNS,
    NUMERICAL_ERRORS,
    PYTORCH_NOTES,
    FailureClass,
    Source,
    code,
)

ALL = "every version"


def silent_class(
    id: str,  # noqa: A002 - the field's name
    title: str,
    cause: str,
    wrong: str,
    before: str,
    after: str,
    source: Source = NUMERICAL_ERRORS,
    category: str = "silent",
) -> FailureClass:
    """A class of which only the number tells; ``wrong`` is that number as text."""
    head = "g = cuda.CUDAGraph()\n"
    return FailureClass(id, title, category, cause, ALL, "", head + code(before), head + code(after), source, wrong)


CLASSES = (
    silent_class(
        "stale-input",
        "A new input tensor is bound to the old name",
        "The graph reads the address that it was captured with, whatever the name means now. Copy into the captured "
        "tensor, or launch with parameters.",
        "tensor([2., 2.])",
        """
        x = torch.ones(2, device=device)
        with cuda.graph(g):
            y = x * 2
        x = torch.full((2,), 7.0, device=device)
        g.replay()
        got, expected = y, x * 2
        """,
        """
        x = torch.ones(2, device=device)
        with cuda.graph(g):
            y = x * 2
        x.copy_(torch.full((2,), 7.0, device=device))
        g.replay()
        got, expected = y, x * 2
        """,
    ),
    silent_class(
        "scalar-frozen",
        "A Python number is frozen",
        "The number was written into the kernel's parameters at capture. A tensor on the GPU is read at every replay.",
        "tensor([3., 3.])",
        """
        x, k = torch.ones(2, device=device), 3
        with cuda.graph(g):
            y = x * k
        k = 5
        g.replay()
        got, expected = y, x * k
        """,
        """
        x, k = torch.ones(2, device=device), torch.full((), 3.0, device=device)
        with cuda.graph(g):
            y = x * k
        k.fill_(5)
        g.replay()
        got, expected = y, x * k
        """,
    ),
    silent_class(
        "cpu-scalar-frozen",
        "A CPU tensor of one element is frozen",
        "Its value is read on the CPU at the launch and becomes a kernel parameter, as a Python number does. Keep it "
        "on the GPU.",
        "tensor([3., 3.])",
        """
        x, k = torch.ones(2, device=device), torch.tensor(3.0)
        with cuda.graph(g):
            y = x * k
        k.fill_(5)
        g.replay()
        got, expected = y, x * k
        """,
        """
        x, k = torch.ones(2, device=device), torch.tensor(3.0).to(device)
        with cuda.graph(g):
            y = x * k
        k.fill_(5)
        g.replay()
        got, expected = y, x * k
        """,
    ),
    silent_class(
        "branch-frozen",
        "A branch on a Python value is frozen",
        "Python runs once, at capture; the graph holds only the branch that was taken. Choose on the GPU, or keep one "
        "graph for each branch.",
        "tensor([2., 2.])",
        """
        x, train = torch.ones(2, device=device), True
        with cuda.graph(g):
            y = x * 2 if train else x
        train = False
        g.replay()
        got, expected = y, x * 2 if train else x
        """,
        """
        x, train = torch.ones(2, device=device), torch.ones((), dtype=torch.bool, device=device)
        with cuda.graph(g):
            y = torch.where(train, x * 2, x)
        train.fill_(False)
        g.replay()
        got, expected = y, x
        """,
        DYNAMIC_PATTERNS,
    ),
    silent_class(
        "size-frozen",
        "A size taken from Python is frozen",
        "Shapes are fixed at capture, so a slice keeps its first length. Work on the full length and mask with a bound "
        "on the GPU.",
        "tensor(1.)",
        """
        x, n = torch.arange(4.0, device=device), 2
        with cuda.graph(g):
            y = x[:n].sum()
        n = 4
        g.replay()
        got, expected = y, x[:n].sum()
        """,
        """
        x, n = torch.arange(4.0, device=device), torch.full((), 2, device=device)
        with cuda.graph(g):
            y = torch.where(torch.arange(4, device=device) < n, x, 0).sum()
        n.fill_(4)
        g.replay()
        got, expected = y, x[:4].sum()
        """,
        DYNAMIC_PATTERNS,
    ),
    silent_class(
        "host-counter",
        "A counter in Python does not count",
        "Python code in the body runs once, at capture, and never at a replay. Count on the GPU.",
        "1",
        """
        x, steps = torch.ones(2, device=device), 0
        with cuda.graph(g):
            x += 1
            steps += 1
        for _ in range(3):
            g.replay()
        got, expected = steps, 3
        """,
        """
        x, steps = torch.ones(2, device=device), torch.zeros((), dtype=torch.int64, device=device)
        with cuda.graph(g):
            x += 1
            steps += 1
        for _ in range(3):
            g.replay()
        got, expected = steps, 3
        """,
    ),
    silent_class(
        "host-random",
        "A random number of Python's is frozen",
        "The number is drawn once, at capture, and each replay uses it again. Draw on the GPU: a graph moves the "
        "generator on.",
        "1",
        """
        import random
        x = torch.ones(2, device=device)
        with cuda.graph(g):
            y = x * random.random()
        drawn = set()
        for _ in range(3):
            g.replay()
            drawn.add(y[0].item())
        got, expected = len(drawn), 3
        """,
        """
        x = torch.ones(2, device=device)
        with cuda.graph(g):
            y = x * torch.rand((), device=device)
        drawn = set()
        for _ in range(3):
            g.replay()
            drawn.add(y[0].item())
        got, expected = len(drawn), 3
        """,
        PYTORCH_NOTES,
        "RNG",
    ),
    silent_class(
        "output-alias",
        "Outputs of several replays are kept",
        "Every replay writes to the same output tensor, so all that was kept shows the last result. Clone what must "
        "stay.",
        "[2.0, 2.0, 2.0]",
        """
        x, kept = torch.zeros((), device=device), []
        with cuda.graph(g):
            y = x * 1
        for k in range(3):
            x.fill_(k)
            g.replay()
            kept.append(y)
        got, expected = [each.item() for each in kept], [0.0, 1.0, 2.0]
        """,
        """
        x, kept = torch.zeros((), device=device), []
        with cuda.graph(g):
            y = x * 1
        for k in range(3):
            x.fill_(k)
            g.replay()
            kept.append(y.clone())
        got, expected = [each.item() for each in kept], [0.0, 1.0, 2.0]
        """,
    ),
    silent_class(
        "not-executed",
        "A result is read right after the capture",
        "A capture runs nothing: tensors still hold what was there before. Replay first.",
        "tensor([1., 1.])",
        """
        x = torch.ones(2, device=device)
        with cuda.graph(g):
            x += 1
        got, expected = x, torch.full((2,), 2.0)
        """,
        """
        x = torch.ones(2, device=device)
        with cuda.graph(g):
            x += 1
        g.replay()
        got, expected = x, torch.full((2,), 2.0)
        """,
        PYTORCH_NOTES,
    ),
    silent_class(
        "pool-order",
        "Graphs that share a pool are replayed in another order",
        "The second graph reuses memory that the first one has finished with, its outputs included once they are dead. "
        "Replay in the order of capture, or keep pools apart.",
        "tensor([3.])",
        """
        a, b, h = torch.full((1,), 1.0, device=device), torch.full((1,), 2.0, device=device), cuda.CUDAGraph()
        with cuda.graph(g):
            y = a * 3 + 5
        with cuda.graph(h, pool=g.pool()):
            z = b**2
        h.replay()
        g.replay()
        got, expected = z, b**2
        """,
        """
        a, b, h = torch.full((1,), 1.0, device=device), torch.full((1,), 2.0, device=device), cuda.CUDAGraph()
        with cuda.graph(g):
            y = a * 3 + 5
        with cuda.graph(h, pool=g.pool()):
            z = b**2
        g.replay()
        h.replay()
        got, expected = z, b**2
        """,
        PYTORCH_NOTES,
        "memory",
    ),
    silent_class(
        "work-elsewhere",
        "A library works on the default stream, outside the graph",
        "Only work on capturing streams becomes part of the graph; this ran once, or reads memory not yet written. "
        "Launch on the current stream.",
        "tensor([0., 0.])",
        """
        x = torch.ones(2, device=device)
        y = torch.zeros(2, device=device)
        def library(a):
            with cuda.stream(cuda.default_stream()):
                y.copy_(a * 2)
        with cuda.graph(g):
            x += 1
            library(x)
        y.zero_()
        g.replay()
        got, expected = y, x * 2
        """,
        """
        x = torch.ones(2, device=device)
        y = torch.zeros(2, device=device)
        def library(a):
            with cuda.stream(cuda.current_stream()):
                y.copy_(a * 2)
        with cuda.graph(g):
            x += 1
            library(x)
        y.zero_()
        g.replay()
        got, expected = y, x * 2
        """,
        category="streams",
    ),
    silent_class(
        "capture-aware-code",
        "Code does something else while capturing",
        "A branch on is_current_stream_capturing() is taken at capture only, so the graph computes what no eager run "
        "does. Compute the same in both.",
        "tensor([3., 3.])",
        """
        x = torch.ones(2, device=device)
        def f(a):
            return a * (3 if cuda.is_current_stream_capturing() else 2)
        with cuda.graph(g):
            y = f(x)
        g.replay()
        got, expected = y, f(x)
        """,
        """
        x = torch.ones(2, device=device)
        def f(a):
            return a * 2
        with cuda.graph(g):
            y = f(x)
        g.replay()
        got, expected = y, f(x)
        """,
    ),
)
