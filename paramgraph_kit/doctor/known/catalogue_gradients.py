"""Silent classes of parameters, gradients and optimizers."""

from __future__ import annotations

from paramgraph_kit.doctor.known.catalogue_silent import silent_class
from paramgraph_kit.doctor.known.failure_class import DYNAMIC_PATTERNS, PYTORCH_NOTES

CLASSES = (
    silent_class(
        "parameter-rebound",
        "A parameter's memory is exchanged",
        "p.data = ..., or load_state_dict(assign=True), gives the parameter other memory; the graph reads the old. "
        "Copy into the parameter.",
        "tensor([1., 1.])",
        """
        p = nn.Parameter(torch.ones(2, device=device))
        with cuda.graph(g):
            y = p.detach() * 1
        p.data = torch.full((2,), 7.0, device=device)
        g.replay()
        got, expected = y, p.detach()
        """,
        """
        p = nn.Parameter(torch.ones(2, device=device))
        with cuda.graph(g):
            y = p.detach() * 1
        with torch.no_grad():
            p.copy_(torch.full((2,), 7.0, device=device))
        g.replay()
        got, expected = y, p.detach()
        """,
    ),
    silent_class(
        "learning-rate-frozen",
        "A scheduler's learning rate never arrives",
        "lr is a Python number, written into the kernels at capture. As a tensor on the GPU, with capturable=True, it "
        "is read at every replay.",
        "tensor([0.5000, 0.5000])",
        """
        p = nn.Parameter(torch.ones(2, device=device))
        p.grad = torch.ones(2, device=device)
        opt = torch.optim.SGD([p], lr=0.5)
        with cuda.graph(g):
            opt.step()
        opt.param_groups[0]["lr"] = 0.25
        g.replay()
        got, expected = p.detach(), torch.full((2,), 0.75)
        """,
        """
        p, lr = nn.Parameter(torch.ones(2, device=device)), torch.full((), 0.5, device=device)
        p.grad = torch.ones(2, device=device)
        def step():
            with torch.no_grad():
                p.sub_(p.grad * lr)
        with cuda.graph(g):
            step()
        lr.fill_(0.25)
        g.replay()
        got, expected = p.detach(), torch.full((2,), 0.75)
        """,
        DYNAMIC_PATTERNS,
        "autograd and optimizers",
    ),
    silent_class(
        "gradients-rebound",
        "Gradients are set to None between replays",
        "The graph fills the gradient's memory of the capture, but p.grad no longer points there. Keep the reference, "
        "or zero in place.",
        "None",
        """
        p = nn.Parameter(torch.ones(2, device=device))
        with cuda.graph(g):
            (p * 3).sum().backward()
        p.grad = None
        g.replay()
        got, expected = p.grad, torch.full((2,), 3.0)
        """,
        """
        p = nn.Parameter(torch.ones(2, device=device))
        with cuda.graph(g):
            (p * 3).sum().backward()
        p.grad.zero_()
        g.replay()
        got, expected = p.grad, torch.full((2,), 3.0)
        """,
        PYTORCH_NOTES,
        "autograd and optimizers",
    ),
    silent_class(
        "gradients-accumulate",
        "Gradients add up from replay to replay",
        "Captured while p.grad existed, backward() adds to it at every replay. Set it to None before the capture, so "
        "that the graph overwrites.",
        "tensor([6., 6.])",
        """
        p = nn.Parameter(torch.ones(2, device=device))
        p.grad = torch.zeros(2, device=device)
        with cuda.graph(g):
            (p * 3).sum().backward()
        g.replay()
        g.replay()
        got, expected = p.grad, torch.full((2,), 3.0)
        """,
        """
        p = nn.Parameter(torch.ones(2, device=device))
        p.grad = None
        with cuda.graph(g):
            (p * 3).sum().backward()
        g.replay()
        g.replay()
        got, expected = p.grad, torch.full((2,), 3.0)
        """,
        PYTORCH_NOTES,
        "autograd and optimizers",
    ),
)
