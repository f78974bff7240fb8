"""Classes of failure of memory, libraries, random generators, autograd and optimizers."""

from __future__ import annotations

from paramgraph_kit.doctor.known.failure_class import (
    CAPTURE_FAILURES,
    MEMORY_ISSUES,
    PYTORCH_NOTES,
    FailureClass,
    code,
)

ALL = "every version"

_X = "x = torch.arange(4.0, device=device)\ng = cuda.CUDAGraph()\n"
_PARAMETER = "p = nn.Parameter(torch.ones(4, device=device))\np.grad = torch.ones(4, device=device)\n"

MEMORY = (
    FailureClass(
        "out-of-memory",
        "Memory is full under capture only",
        "memory",
        "While capturing, cached blocks cannot be given back, and a graph's private pool borrows nothing from the "
        "others. So a capture fails where an ordinary run fits.",
        ALL,
        "out-of-memory",
        code("""
            x = torch.ones(1, device=device)
            most = cuda.mem_get_info()[0] // 8 * 5 // 4  # elements that take more than half of the memory
            old = torch.empty(most, device=device)
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                del old
                buffer = torch.empty(most, device=device)
                y = x * 2
        """),
        code("""
            x = torch.ones(1, device=device)
            most = cuda.mem_get_info()[0] // 8 * 5 // 4  # elements that take more than half of the memory
            old = torch.empty(most, device=device)
            g = cuda.CUDAGraph()
            del old
            with cuda.graph(g):  # empties the cache
                buffer = torch.empty(most, device=device)
                y = x * 2
            del buffer
            g.replay()
            got, expected = y, x * 2
        """),
        MEMORY_ISSUES,
    ),
)

LAZY = (
    FailureClass(
        "cold-library",
        "A CUDA library is used for the first time inside the capture",
        "lazy initialisation",
        "cuBLAS and cuDNN create handles and allocate at their first call, which a capture forbids. A warm-up on a "
        "side stream does that beforehand.",
        ALL,
        "cold-library",
        _X + "w = torch.eye(4, device=device)\nwith cuda.graph(g):\n    y = x @ w\n",
        _X + "w = torch.eye(4, device=device)\ns = cuda.Stream()\ns.wait_stream(cuda.current_stream())\n"
        "with cuda.stream(s):\n    expected = x @ w\ncuda.current_stream().wait_stream(s)\n"
        "with cuda.graph(g):\n    y = x @ w\ng.replay()\ngot = y\n",
        PYTORCH_NOTES,
        simulator_cannot="it has no libraries that create handles at their first call",
    ),
)

RANDOM = (
    FailureClass(
        "unregistered-generator",
        "A random generator does not belong to the graph",
        "RNG",
        "A graph moves on only the generators that it knows, so that replays differ. This one was never registered.",
        ALL,
        "unregistered-generator",
        "gen = torch.Generator(device)\ng = cuda.CUDAGraph()\nwith cuda.graph(g):\n"
        "    y = torch.rand(4, device=device, generator=gen)\n",
        "gen = torch.Generator(device).manual_seed(7)\nexpected = torch.rand(4, device=device, generator=gen)\n"
        "gen.manual_seed(7)\ng = cuda.CUDAGraph()\ng.register_generator_state(gen)\nwith cuda.graph(g):\n"
        "    y = torch.rand(4, device=device, generator=gen)\ng.replay()\ngot = y\n",
        CAPTURE_FAILURES,
        simulator_cannot="torch makes the generators of a device in C++",
    ),
    FailureClass(
        "poisoned-generator",
        "A failed capture left the random generator behind",
        "RNG",
        "The failed capture had drawn random numbers and never gave the generator's state back. Make the part that may "
        "fail certain first.",
        ALL,
        "poisoned-generator",
        code("""
            x = torch.ones(4, device=device)
            try:
                with cuda.graph(cuda.CUDAGraph()):
                    torch.rand(4, device=device)
                    x.sum().item()
            except RuntimeError:
                pass
            y = torch.rand(4, device=device)
        """),
        code("""
            x = torch.ones(4, device=device)
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                r = torch.rand(4, device=device)
                y = x.sum()
            cuda.manual_seed(7)
            g.replay()
            got = r
            cuda.manual_seed(7)
            expected = torch.rand(4, device=device)
        """),
        PYTORCH_NOTES,
    ),
)

AUTOGRAD = (
    FailureClass(
        "optimizer-not-capturable",
        "The optimizer was not made for capture",
        "autograd and optimizers",
        "By default step() keeps its counters on the CPU, which a graph would freeze. torch refuses before anything "
        "goes wrong.",
        ALL,
        "optimizer-not-capturable",
        _PARAMETER + "opt = torch.optim.Adam([p])\nopt.step()\ng = cuda.CUDAGraph()\nwith cuda.graph(g):\n"
        "    opt.step()\n",
        _PARAMETER
        + code("""
            q = nn.Parameter(p.detach().clone())
            q.grad = p.grad.clone()
            opt, eager = (torch.optim.Adam([each], capturable=True) for each in (p, q))
            opt.step()
            eager.step()
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                opt.step()
            g.replay()
            eager.step()
            got, expected = p.detach(), q.detach()
        """),
        PYTORCH_NOTES,
    ),
    FailureClass(
        "optimizer-sync",
        "The optimizer reads values on the CPU in step()",
        "autograd and optimizers",
        "LBFGS decides on the CPU from losses and gradients, and during capture there are none. Capture the forward "
        "and backward passes only.",
        ALL,
        "optimizer-sync",
        _PARAMETER + "opt = torch.optim.LBFGS([p])\ng = cuda.CUDAGraph()\nwith cuda.graph(g):\n"
        "    opt.step(lambda: p.sum())\n",
        code("""
            p = nn.Parameter(torch.ones(4, device=device))
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                loss = (p * p).sum()
                p.grad, = torch.autograd.grad(loss, p)
            def closure():
                g.replay()
                return loss
            torch.optim.LBFGS([p]).step(closure)
            q = nn.Parameter(torch.ones(4, device=device))
            def eager():
                value = (q * q).sum()
                q.grad, = torch.autograd.grad(value, q)
                return value
            torch.optim.LBFGS([q]).step(eager)
            got, expected = p.detach(), q.detach()
        """),
        PYTORCH_NOTES,
    ),
    FailureClass(
        "grad-scaler",
        "GradScaler looks on the CPU whether a gradient overflowed",
        "autograd and optimizers",
        "scaler.step() reads found_inf with item() to decide whether to step. Capture scale(loss).backward() and step "
        "after the replay.",
        ALL,
        "grad-scaler",
        _PARAMETER
        + code("""
            opt = torch.optim.SGD([p], lr=0.5)
            scaler = torch.amp.GradScaler(device.type)
            scaler.scale(torch.zeros((), device=device))
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                scaler.step(opt)
                scaler.update()
        """),
        code("""
            p = nn.Parameter(torch.ones(4, device=device))
            opt = torch.optim.SGD([p], lr=0.5)
            scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
            scaler.scale(torch.zeros((), device=device))
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                p.grad, = torch.autograd.grad(scaler.scale((p * p).sum()), p)
            g.replay()
            scaler.step(opt)
            scaler.update()
            got, expected = p.detach(), torch.ones(4) - 0.5 * 2 * torch.ones(4)
        """),
        PYTORCH_NOTES,
    ),
    FailureClass(
        "warm-up-kept-alive",
        "A loss of a warm-up on the default stream is still alive",
        "autograd and optimizers",
        "Its autograd nodes remember the default stream and pull it into the captured backward pass. Warm up on a side "
        "stream and drop the loss.",
        "2.11: CUDA error 906; later versions name the node",
        "legacy-stream",
        "x = torch.ones(4, device=device, requires_grad=True)\nkeep = (x * x).sum()\n"
        "keep.backward(retain_graph=True)\ng = cuda.CUDAGraph()\nwith cuda.graph(g):\n    (x * x).sum().backward()\n",
        code("""
            x = torch.ones(4, device=device, requires_grad=True)
            s = cuda.Stream()
            s.wait_stream(cuda.current_stream())
            with cuda.stream(s):
                (x * x).sum().backward()
            cuda.current_stream().wait_stream(s)
            expected, x.grad = x.grad, None
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                (x * x).sum().backward()
            g.replay()
            got = x.grad
        """),
        CAPTURE_FAILURES,
    ),
    FailureClass(
        "loss-from-outside",
        "backward() is captured for a loss made before the capture",
        "autograd and optimizers",
        "The backward pass runs on the streams of the forward pass, here the default stream. Capture both passes "
        "together.",
        "2.11: CUDA error 906; later versions name the node",
        "legacy-stream",
        "x = torch.ones(4, device=device, requires_grad=True)\nloss = (x * x).sum()\ng = cuda.CUDAGraph()\n"
        "with cuda.graph(g):\n    loss.backward()\n",
        "x = torch.ones(4, device=device, requires_grad=True)\ng = cuda.CUDAGraph()\nwith cuda.graph(g):\n"
        "    (x * x).sum().backward()\ng.replay()\ngot, expected = x.grad, 2 * x.detach()\n",
        CAPTURE_FAILURES,
    ),
)

CLASSES = (*MEMORY, *LAZY, *RANDOM, *AUTOGRAD)
