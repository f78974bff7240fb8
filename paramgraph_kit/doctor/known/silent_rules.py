"""Problems that no exception tells of, as `diagnose` finds them by looking at a function while it runs."""

from __future__ import annotations

from paramgraph_kit.doctor.known.rule import Rule, fix

_ONCE = "Python code runs once, at capture; a replay repeats only what the GPU did."

SILENT = {
    rule.code: rule
    for rule in (
        Rule(
            "scalar-frozen",
            "A Python number is frozen into the graph",
            "It is written into the kernel's parameters at capture, and every replay uses that value. It is a "
            "candidate for a parameter.",
            fix("y = x * k", "k = torch.full((), 3.0, device='cuda') before; y = x * k; k.fill_(5) before g.replay()"),
        ),
        Rule(
            "cpu-scalar-frozen",
            "The value of a CPU tensor is frozen into the graph",
            "It is read on the CPU at the launch and becomes a kernel parameter, as a Python number does. It is a "
            "candidate for a parameter.",
            fix("y = x * torch.tensor(2.0)", "k = torch.tensor(2.0).cuda() before the capture; y = x * k"),
        ),
        Rule(
            "host-random",
            "A random number of Python's is frozen into the graph",
            "It is drawn on the CPU once, at capture, and each replay uses it again.",
            fix("y = x * random.random()", "y = x * torch.rand((), device='cuda')"),
        ),
        Rule(
            "branch-frozen",
            "A branch or a loop in Python is frozen",
            f"{_ONCE} The graph holds only the way that was taken then.",
            fix(
                "if step % 2: y = x * 2",
                "y = torch.where(flag, x * 2, x) with flag on the GPU; or one graph for each way",
            ),
        ),
        Rule(
            "size-frozen",
            "A size taken from Python is frozen",
            "Shapes are fixed at capture, so a slice or a new tensor keeps the size that it had then.",
            fix("y = x[:n].sum()", "y = torch.where(torch.arange(len(x), device='cuda') < n, x, 0).sum()"),
        ),
        Rule(
            "host-counter",
            "A side effect in Python is frozen",
            f"{_ONCE} What is counted, printed or stored here stays as it was.",
            fix("self.steps += 1", "the same line after g.replay(); or a counter on the GPU: self.steps.add_(1)"),
        ),
        Rule(
            "output-alias",
            "A result is kept that the next replay overwrites",
            "Every replay writes to the same memory, so all that is kept shows the last result; and the line itself "
            "runs only at capture.",
            fix("kept.append(y)", "after each g.replay(): kept.append(y.clone())"),
        ),
        Rule(
            "stale-input",
            "A tensor from outside is another one at each call",
            "The graph reads the address of the tensor that was there at capture. It never sees the new one.",
            fix(
                "x = next(batches)", "before g.replay(): x.copy_(next(batches)); or launch with parameters (paramgraph)"
            ),
        ),
        Rule(
            "gradients-rebound",
            "Gradients change their memory between replays",
            "A graph uses the .grad tensors that were there at its capture. zero_grad() sets p.grad to None, and from "
            "then on the graph and the optimizer use different memory.",
            fix("opt.zero_grad()", "opt.zero_grad(set_to_none=False); or capture backward() and step() together"),
        ),
        Rule(
            "learning-rate-frozen",
            "The optimizer's learning rate is frozen into the graph",
            "A float is written into the kernel's parameters at capture, so a scheduler's new value never arrives.",
            fix("Adam(params, lr=1e-3)", "Adam(params, lr=torch.tensor(1e-3, device='cuda'), capturable=True)"),
        ),
        Rule(
            "work-elsewhere",
            "Work goes to a stream that is not part of the capture",
            "Only streams that waited for the capturing one are captured. This work runs once only.",
            fix(
                "with torch.cuda.stream(s): y = f(x)",
                "s.wait_stream(torch.cuda.current_stream()) before; torch.cuda.current_stream().wait_stream(s) after",
            ),
        ),
        Rule(
            "capture-aware-code",
            "Code asks whether it is being captured",
            "The branch for capturing runs at capture only, so the graph may compute what no eager run does.",
            fix("if torch.cuda.is_current_stream_capturing(): ...", "compute the same in both"),
        ),
        Rule(
            "reseeded",
            "The random generator is seeded inside",
            "Seeding happens on the CPU. A capture refuses another seed than the one in use and ignores that one, so "
            "replays draw on where eager runs begin again.",
            fix("torch.manual_seed(0)", "seed before the capture"),
        ),
        Rule(
            "empty-graph",
            "Nothing ran on the GPU",
            "A capture would make an empty graph. Perhaps inputs are on the CPU, or the work is in another thread.",
            fix("y = f(x)", "y = f(x.cuda()); and work in the thread that captures"),
        ),
        Rule(
            "time-limit",
            "The function did not finish in time",
            "It was interrupted at this line. What is below was found until then.",
            fix("diagnose(fn, x)", "diagnose(fn, x, limit_s=300); or give it a smaller input"),
        ),
        Rule(
            "exits",
            "The function wants to end the process",
            "The call was stopped. In a capture it would end the session.",
            fix("sys.exit()", "return, or raise an exception"),
        ),
        Rule(
            "raises",
            "The function fails without a capture too",
            "It was run eagerly and raised this, so capture is not the reason.",
            fix("diagnose(fn, x)", "make fn(x) work first"),
        ),
    )
}
