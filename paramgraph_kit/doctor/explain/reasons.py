"""From the reasons of a compiled model to failures: why something is in no graph, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable

from paramgraph_kit.doctor.explain.gather import cuda_code_in, gather
from paramgraph_kit.doctor.explain.operations import calls_of
from paramgraph_kit.doctor.known.evidence import Evidence, first_line
from paramgraph_kit.doctor.known.rule import fix
from paramgraph_kit.doctor.known.rules import diagnose
from paramgraph_kit.trace.model import Failure, Frame, Reason

MOST_NAMES = 3  # of operations in one failure

_SPLIT = "The model is split here: what is before and after becomes graphs, this runs in between."

# code of a Reason -> (cause, fix)
_KNOWN: dict[str, tuple[str, str]] = {
    "cpu-op": (
        f"It works on CPU tensors, which no CUDA graph holds. {_SPLIT}",
        fix("torch.arange(n)", "torch.arange(n, device=x.device); or move the tensor with register_buffer"),
    ),
    "device-copy": (
        f"A copy between CPU and GPU waits, and the CPU's address would be frozen. {_SPLIT}",
        fix("x = x + c.to('cuda')", "c = c.to('cuda') once, before the model is called"),
    ),
    "unbacked-op": (
        f"The CPU needs a number that only the GPU knows, for a value or for a size. {_SPLIT}",
        fix("n = mask.sum().item(); y = x[mask]", "y = torch.where(mask, x, 0); torch.nonzero_static(x, size=n)"),
    ),
    "unsafe-op": (
        f"Its kernel waits for the GPU or makes memory that a graph cannot name. {_SPLIT}",
        fix("x[mask] = v", "x = torch.where(mask, v, x)"),
    ),
    "control-flow": (
        f"Only the GPU knows which way it goes. {_SPLIT}",
        fix("torch.cond(p, f, g, (x,))", "torch.where(p, f(x), g(x)) where both are cheap"),
    ),
    "graph-break": (
        "Dynamo could not follow the code here, so there are two compiled graphs with Python in between.",
        fix(
            "print, item() or an unknown call in forward", "move it out of forward; torch.compile(fullgraph=True) shows"
        ),
    ),
    "custom-op": (
        f"torch's configuration says that it must stay outside. {_SPLIT}",
        fix("custom_should_partition_ops = [...]", "take it out of that list if the operation can be captured"),
    ),
    "dynamic-shape": (
        "Graphs of shapes that change are switched off by torch's configuration.",
        fix("triton.cudagraph_skip_dynamic_graphs = True", "= False; or mark the size static, or pad it"),
    ),
    "inductor-skip": (
        "Inductor gives up graphs for all of it without an error, and says so in a log that is off by default.",
        fix("the operation named above in the model", "take it out into a function with torch.compiler.disable"),
    ),
    "capture-failed": (
        "The partition was captured and CUDA or torch refused something in it, so it runs without a graph.",
        fix(
            "a custom operation that waits", "tag it: torch.library.custom_op(..., tags=(torch.Tag.cudagraph_unsafe,))"
        ),
    ),
    "unexplained-word": (
        "A kernel's parameters differ between two captures, and no input explains how. A guess could be wrong.",
        fix("the operation named above", "compile around it: torch.compiler.disable on the function that calls it"),
    ),
    "unstable-capture": (
        "Two captures of the same code recorded different things, so the code decides something while it runs.",
        fix("caches and counters in forward", "make them before the first call"),
    ),
    "capture-under-way": (
        "Somebody else's capture is open, and this call became part of it.",
        fix("with torch.cuda.graph(g): compiled(x)", "call compiled(x) once outside first; it makes graphs of its own"),
    ),
    "host-memcpy": (
        "The copy's CPU address is fixed in the graph and cannot be exchanged.",
        fix("copy to the CPU in the model", "copy after the call: y = compiled(x).cpu()"),
    ),
    "host-output": (
        "A value on the CPU is computed once, at capture.",
        fix("return y, torch.tensor(n)", "return it from outside the compiled function"),
    ),
    "opaque-node": (
        "A graph in the graph, a branch, host code or an event: nobody outside can give such a node new addresses.",
        fix("the operation named above", "tag it cudagraph_unsafe, so that it runs between two graphs"),
    ),
    "changing-scalar": (
        "A Python number is written into the kernels at capture, and this one keeps changing.",
        fix("f(x, step)", "f(x, step) with step a tensor on the GPU"),
    ),
    "data-dependent": (
        "The CPU needs a number that only the GPU knows, so the function cannot be traced and runs as it is.",
        fix("x * x.sum().item()", "x * x.sum(); diagnose(fn, *args) names the line"),
    ),
    "hidden-tensor": (
        "It comes from a variable around the function, where nobody can exchange it.",
        fix("f(x) reads a tensor of the module above", "f(x, that_tensor); or make it a buffer"),
    ),
    "not-traceable": (
        "The function does something that torch cannot follow, so it runs as it is.",
        fix("the call named above", "take it out of the function; diagnose(fn, *args) shows more"),
    ),
    "random-backward": (
        "Random numbers of a backward pass cannot be drawn again as eager does.",
        fix("torch.rand in a backward or a hook", "draw them in the forward and keep them"),
    ),
    "side-effect": (
        "An attribute is assigned while the function runs, and a launch repeats only what the GPU did.",
        fix("self.state = y", "self.state.copy_(y), with self.state a buffer"),
    ),
    "foreign-input": (
        "It lies on another device than the rest, so the kernels cannot be given its address.",
        fix("f(x.cpu())", "move it to the GPU before the call"),
    ),
    "sparse-input": (
        "It has no single address that kernels read.",
        fix("f(x.to_sparse())", "dense tensors; or keep sparse work outside of the compiled part"),
    ),
    "retyped-output": (
        "Outputs are made anew at each launch, and this kind of tensor cannot be.",
        fix("return y.to_sparse()", "return y, and convert it outside"),
    ),
    "unknown-output": (
        "Outputs are made anew at each launch, and this kind of tensor cannot be.",
        fix("return a tensor of a class of your own", "return plain tensors"),
    ),
    "unknown-argument": (
        "Only plain tensors, numbers and containers of them can be traced.",
        fix("f(an_object)", "f(an_object.tensor)"),
    ),
    "host-address": (
        "Kernels of this machine can read the host's memory, and one is given an address that nobody keeps in place.",
        fix("an address of host memory", "pass the tensor as an input on the device, or keep it as a constant"),
    ),
    "unowned-address": (
        "A kernel reads memory that is no input and no constant, so nobody knows what lies there at the next launch.",
        fix("an address that a custom kernel keeps", "pass the tensor as an input"),
    ),
    "stale-address": (
        "An address of an earlier capture has stayed in the kernels' parameters.",
        fix("the operation named above", "compile around it with torch.compiler.disable, and report it"),
    ),
    "unbacked-size": (
        f"The size of a tensor is known only on the GPU. {_SPLIT}",
        fix("y = x[mask]", "y = torch.where(mask, x, 0)"),
    ),
    "no-metadata": (
        f"torch recorded neither shape nor device for it. {_SPLIT}",
        fix("the operation named above", "a custom operation needs register_fake"),
    ),
    "phantom-exhausted": (
        "One call allocates more than the address space set aside for captures.",
        fix("one large compiled function", "compile its parts one by one"),
    ),
    "wrong-result": (
        "A launch gave other bits than the ungraphed code, whose result was returned.",
        fix("options={'verify': ...}", "report it; until then select='never'"),
    ),
    "too-many-traces": (
        "Each shape, number and mode needs a trace of its own, and there have been too many.",
        fix("f(x, n) with many n", "fewer kinds of arguments; numbers as tensors"),
    ),
    "too-many-variants": (
        "Each shape needs a graph of its own, and there have been too many.",
        fix("x of any length", "pad to a few lengths; torch._dynamo.mark_dynamic"),
    ),
}
ANY = (
    "It is safer to run this without a graph than to guess.",
    fix("the operation named above", "look at report(model) for the partition that it is in"),
)
NO_PROBLEM = ("not-called", "no-kernels", "not-selected", "slower-as-graph")


def failures_of(reasons: Iterable[Reason]) -> list[Failure]:
    """Reasons as failures, one for each kind at each line, however many operations a line has become."""
    groups: dict[tuple[str, Frame | None], list[Reason]] = {}
    for reason in reasons:
        if reason.code not in NO_PROBLEM:
            groups.setdefault((reason.code, reason.frame), []).append(reason)
    return [_failure(group) for group in groups.values()]


def each_once(failures: Iterable[Failure]) -> list[Failure]:
    """One for each kind at each line, the first."""
    found: dict[tuple[str, str, int], Failure] = {}
    for each in failures:
        at = (each.frame.file, each.frame.line) if each.frame else (each.message, 0)
        found.setdefault((each.code, *at), each)
    return list(found.values())


def _failure(group: list[Reason]) -> Failure:
    """What, where, why, and what to write instead."""
    reason = group[0]
    if reason.code == "inductor-skip":
        evidence = gather(RuntimeError(reason.message))
        if (rule := diagnose(evidence)) is not None:  # Inductor's words for why, at the line that they quote
            return rule.failure(first_line(reason.message), evidence.told if rule.told else None)
    if reason.code == "capture-failed" and (refused := _refused(reason)) is not None:
        return refused
    cause, what_to_do = _KNOWN.get(reason.code, ANY)
    title = reason.message[:1].upper() + reason.message[1:]
    names = list(dict.fromkeys(each.operation for each in group if each.operation))
    listed = ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if names[MOST_NAMES:] else "")
    said = f"{listed} {'is' if len(names) == 1 else 'are'} in no graph" if names else ""
    return Failure(reason.code, title, said, reason.frame, cause, what_to_do)


def _refused(reason: Reason) -> Failure | None:
    """What a capture of ours ran into, in the words of the rule for it."""
    text = reason.frame.text if reason.frame else ""
    evidence = Evidence("RuntimeError", reason.message, cuda_code_in(reason.message), reason.frame, calls_of(text))
    rule = diagnose(evidence) or diagnose(evidence, vague=True)
    if rule is None:
        return None
    _, tag = _KNOWN["capture-failed"]
    what_to_do = fix(text or "a custom operation that waits", tag.splitlines()[1].removeprefix("after").strip())
    said = f"{reason.message}; the partition runs without a graph"
    return Failure(reason.code, rule.title, said, reason.frame, rule.cause, what_to_do)
