"""What to do about streams, events, waits, seeds and generators, and about what libraries only do on the host."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

import torch

from paramgraph_kit.doctor.observe.unordered import TAKES
from paramgraph_kit.rewrite.source.edits import Function, free_names, heads, is_text, on_one_line, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, unscaled_before
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.rewrite.source.reached_as import as_called

_CLOCKS = frozenset(("perf_counter", "perf_counter_ns", "time", "time_ns", "monotonic", "process_time", "elapsed_time"))

FEW = 3  # statements that are all written out


def scheduled(place: Place) -> str:
    """What to do about a line that asks the runtime for something that is no node of a graph."""
    advice = _BY_CODE.get(place.failure.code)
    return advice(place) if advice is not None else ""


def _receiver(place: Place, *names: str) -> tuple[str, ast.Call | None]:
    """What a method with one of these names is called on, as it is written, and the call."""
    for call in place.calls(*names):
        if isinstance(call.func, ast.Attribute):
            return place.text(call.func.value), call
    return "", None


def _waited(place: Place) -> str:
    """``torch.cuda.synchronize()``, ``stream.synchronize()``, ``event.synchronize()``."""
    held, call = _receiver(place, "synchronize")
    if call is None:
        return ""
    text, current = place.text(call), f"{place.cuda}.current_stream()"
    calls = (n for part in _body(place) for n in within(part) if isinstance(n, ast.Call))
    if any(called(n) in _CLOCKS for n in calls):
        return f"leave `{text}` out, with the clock: time the launch itself, around it in your loop"
    waits = {"wait_stream": f"{current}.wait_stream({held})", "elapsed_time": f"{current}.wait_event({held})"}
    for name, instead in waits.items():
        if hasattr(place.space.get(held), name):
            return f"`{instead}` for `{text}`: the device waits there, and not the host"
    return (
        f"leave `{text}` out: in a graph a kernel waits for those before it, and what the host reads after it belongs "
        "behind each launch"
    )


def _asked_event(place: Place) -> str:
    """``end.synchronize()``, ``start.elapsed_time(end)``, ``done.query()``."""
    held, call = _receiver(place, "synchronize", "query", "elapsed_time")
    if call is None:
        return ""
    names = [held, *(place.text(each) for each in call.args)]
    records = "; ".join(f"`{name}.record()`" for name in names)
    return (
        f"an event that is recorded in a graph cannot be asked: take {records} out of the function, record around the "
        f"launch, and ask `{place.text(call)}` behind it"
    )


def _elsewhere(place: Place) -> str:
    """Work on a stream that the capture does not know, or in another thread."""
    stream = _stream_around(place)
    if TAKES in place.failure.message:  # which no wait at the `with` mends
        return ""
    if stream:
        current = f"{place.cuda}.current_stream()"
        return (
            f"`{stream}.wait_stream({current})` before the `with` of `{stream}`, and "
            f"`{current}.wait_stream({stream})` after it: then it is part of the graph"
        )
    function = place.source.function_of(place.statement)
    if "thread" not in place.failure.message or function is None:
        return ""
    return (
        f"a capture has what its own thread does: where the graph needs it, call `{function.name}` in the thread that "
        f"captures, two branches at once with `{place.cuda}.stream(side)` around one of them; else behind the launch"
    )


def _waits_for_others(place: Place) -> str:
    """``current_stream().wait_stream(copy_stream)``, of work from before the capture."""
    _, call = _receiver(place, "wait_stream", "wait_event", "wait")
    if call is None:
        return ""
    told = (
        f"`{place.text(call)}` waits for what was begun outside: do it before each launch, on the stream that launches"
    )
    if called(call) != "wait_stream" or not call.args:
        return told
    given = place.text(call.args[0])
    return (
        f"{told}; or, where `{given}` works for this step, `{given}.wait_stream({place.cuda}.current_stream())` first"
    )


def _unjoined(place: Place) -> str:
    stream = _stream_around(place)
    return f"`{place.cuda}.current_stream().wait_stream({stream})` after the `with` of `{stream}`" if stream else ""


def _seeded(place: Place) -> str:
    """``torch.manual_seed(seed)`` in a step: a graph goes on with its generator."""
    for node in heads(place.statement):
        if isinstance(node, ast.Call) and "seed" in called(node):
            text = place.text(node)
            return (
                f"take `{text}` out of the function: once before the capture; or before each launch, where each is to "
                "draw the same numbers again, as it does now"
            )
    return ""


def _own_generator(place: Place) -> str:
    for node in heads(place.statement):
        for given in node.keywords if isinstance(node, ast.Call) else ():
            if given.arg == "generator":
                name = as_called(place, place.text(given.value))
                graph = "graph" if name == "g" else "g"
                told = f"{graph}.register_generator_state({name})"
                if listed := _gone_through(place, name):
                    told = f"for {name} in {as_called(place, listed)}: {told}"
                told = f"`{told}` of the graph `{graph}`"
                return f"{told}, once before the capture; this line stays"
    return ""


def _gone_through(place: Place, name: str) -> str:
    """What has the generators, where a line goes through them: ``for gen in self.generators``."""
    function = place.source.function_of(place.statement)
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, (ast.For, ast.comprehension)) and place.text(node.target) == name:
            return place.text(node.iter) if path_of(node.iter) else ""
    return ""


def _decides_on_the_host(place: Place) -> str:
    """``optimizer.step(closure)``, of an optimizer that asks for the loss between its rounds; or one made inside."""
    if made := _made_inside(place):
        return made
    held, call = _receiver(place, "step")
    function = place.source.function_of(place.statement)
    name = path_of(call.args[0]) if call is not None and call.args else ""
    closure = next((n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == name), None)
    if call is None or closure is None or function is None:
        return ""
    free = {each for part in closure.body for each in free_names(part)}
    given = [each for each in arguments_of(function) if each in free and each != "self"]
    trained = [name for name in sorted(free) if _is_trained(place.space.get(name))]
    arguments, state = ", ".join(given), f", state=[{', '.join(trained)}]" if trained else ""
    return (
        f"the host decides between the rounds of `{held}`, so capture what `{name}` does: take it out of "
        f"`{function.name}` as `def {name}({arguments})` that returns the loss detached, once "
        f"`run = pgk.parameterize({name}{state})`, and here "
        f"`{held}.step(lambda: run({arguments}))`"
    )


def _made_inside(place: Place) -> str:
    """``opt = AdamW(params, lr=lr)`` of a rate on the device, which its constructor checks."""
    node = place.statement
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call) and not isinstance(node, ast.With)):
        kind = place.value(path_of(call.func)) if path_of(call.func) else None
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
            return (
                f"it checks a rate of the device where it is made, which is once, ahead of what is captured: do "
                f"`{on_one_line(place.text(node))}` there, with what it reads, and leave the graph its steps"
            )
    return ""


def _is_trained(value: object) -> bool:
    return isinstance(value, torch.nn.Module) or (isinstance(value, torch.Tensor) and value.requires_grad)


def _solved(place: Place) -> str:
    """``values = torch.linalg.eigh(covariance(x))``, of which the argument can be captured."""
    call = place.statement.value if isinstance(place.statement, ast.Assign) else None
    trains = any(called(n) == "backward" for part in _body(place) for n in within(part) if isinstance(n, ast.Call))
    if not isinstance(call, ast.Call) or not call.args or not isinstance(call.args[0], ast.Call) or trains:
        return ""
    given = place.text(call.args[0])
    return (
        f"end what is captured with `made = {given}`, return `made`, and do this line, with `made` for `{given}`, and "
        "all after it behind the launch"
    )


def _scaled(place: Place) -> str:
    """A scaler's step, with all from ``unscale_`` on: once ``update`` has run, a step takes the scale out again."""
    held, call = _receiver(place, "step")
    if call is None:
        return ""
    function = place.source.function_of(place.statement)
    before = [] if function is None else [n for n in unscaled_before(function, place.statement) if not is_text(n)]
    steps, reads = [place.text(call), f"{held}.update()"], "the host reads there whether all is finite"
    if not before:
        return f"`{steps[0]}` and `{steps[1]}` behind each launch: {reads}"
    first = before[0].lineno
    texts = [*(place.text(node) for node in before), *steps]
    listed = "`, `".join(texts[:-1]) + f"` and `{texts[-1]}"
    which = f"`{listed}`" if len(before) <= FEW else f"all from line {first} on to `{steps[1]}`"
    return (
        f"{which} together behind each launch: {reads}, and with line {first} in the graph `{steps[0]}` would take the "
        "scale out of the gradients a second time"
    )


def _averaged(place: Place) -> str:
    held, call = _receiver(place, "update_parameters")
    return f"`{place.text(call)}` behind each launch: `{held}` counts its steps on the host" if call is not None else ""


def _body(place: Place) -> list[ast.stmt]:
    function = place.source.function_of(place.statement)
    return function.body if function is not None else []


def _stream_around(place: Place) -> str:
    """The stream of the ``with`` that a statement is in, as it is written."""
    for node in (place.statement, *place.source.above(place.statement)):
        for item in node.items if isinstance(node, ast.With) else ():
            call = item.context_expr
            if isinstance(call, ast.Call) and called(call) == "stream" and call.args:
                return place.text(call.args[0])
    return ""


_BY_CODE: Mapping[str, Callable[[Place], str]] = {
    "averaged-model": _averaged,
    "captured-event": _asked_event,
    "grad-scaler": _scaled,
    "isolation": _waits_for_others,
    "linalg-host": _solved,
    "optimizer-sync": _decides_on_the_host,
    "reseeded": _seeded,
    "synchronize": _waited,
    "unjoined-work": _unjoined,
    "unregistered-generator": _own_generator,
    "work-elsewhere": _elsewhere,
}
