"""Why a step is not captured, found before the capture is tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paramgraph_kit.backend.call_state import attributes_of, switches
from paramgraph_kit.backend.plain import PLAIN, flatten
from paramgraph_kit.doctor import explain
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.lines import line_behind
from paramgraph_kit.driver.tensors import has_memory
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.launcher import MAX_SCALARS
from paramgraph_kit.step.observe import Observation
from paramgraph_kit.step.spent import is_spent
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Frame, Reason


def check_surroundings(driver: Driver, tensors: Sequence[torch.Tensor]) -> None:
    """What is known before the call.

    Raises:
        RefusedError: an argument needs gradients, or autocast around the step keeps casts that a graph would use.
    """
    if any(x.requires_grad for x in tensors):
        text = "an argument needs gradients, and the graph would not be theirs: give x.detach(), or keep it in state="
        raise RefusedError(Reason("requires-grad", text))
    if torch.is_autocast_enabled(driver.device.type) and torch.is_autocast_cache_enabled():
        text = "autocast around the step keeps casts of the parameters from call to call: open autocast in the step"
        raise RefusedError(Reason("autocast-cache", text))


def check_backward() -> None:
    """What may change from call to call, of what is asked at each: who looks into the step's backward passes.

    Raises:
        RefusedError: somebody packs what they save, or is to be told of the first that is not a number.
    """
    if torch.is_anomaly_enabled():
        text = "autograd's anomaly detection is on, and nothing looks at what a launch computes: leave it off around"
        raise RefusedError(Reason("unknown-state", f"{text} the step, and look for NaN in what it returns"))
    if torch_name("_top_saved_tensors_default_hooks")(False):
        text = "hooks for saved tensors are set around the step, and a launch gives them none: open them in the step"
        raise RefusedError(Reason("unknown-state", text))


def check_observation(seen: Observation) -> None:
    """What one watched call has shown.

    Raises:
        RefusedError: a launch would not do all that the call does.
    """
    if not seen.before.reach.complete or not seen.after.reach.complete:
        text = "the step leads to too many objects to watch: keep long lists out of what it names, or in tensors"
        raise RefusedError(Reason("too-much-state", text))
    if scripted := seen.before.reach.scripted:
        text = (
            f"{scripted} was compiled by torch.jit, which keeps its tensors out of sight: use the module it was made of"
        )
        raise RefusedError(Reason("hidden-tensor", f"{text}, or torch.compile"))
    if seen.asked is not None:
        raise RefusedError(seen.asked)
    if seen.unforeseen:
        names = ", ".join(sorted(seen.unforeseen)[:3])
        text = f"each call reads globals that no earlier one led to ({names}): give what they hold as arguments"
        raise RefusedError(Reason("unknown-state", text))
    for name, what in seen.unseen:
        raise RefusedError(Reason("unknown-state", f"{name} {what}: give what it holds as an argument"))
    if "_version" in seen.names.own:
        text = "the step reads how often a tensor was written (_version), which launches count otherwise: ask between"
        raise RefusedError(Reason("unknown-state", f"{text} steps"))
    if seen.rekinded:
        text = "the call gives an object another class or dictionary, which a launch would not do again: do it before"
        raise RefusedError(Reason("side-effect", text))
    if seen.aside:
        text = "the step works on a stream that has not waited for the step's own, and no launch would have that work"
        raise RefusedError(Reason("user-stream", f"{text}: begin with stream.wait_stream(torch.cuda.current_stream())"))
    if seen.drew_on_host:
        text = "the step draws random numbers on the host, which a graph would repeat: draw on the device"
        raise RefusedError(Reason("host-random", text))
    if seen.advanced:
        text = f"the step may take the next item of {seen.advanced[0]}, which no launch would: take it before the call"
        raise RefusedError(Reason("side-effect", text))
    if seen.host_written:
        raise RefusedError(_host_written(seen))
    if seen.moved:
        text = f"{seen.moved[0]} lies elsewhere or looks otherwise after the call: write into it in place, and set its"
        text += " shape and requires_grad before the call, or of its .detach()"
        raise RefusedError(Reason("side-effect", text))
    for leaf in flatten(seen.result)[0]:
        if isinstance(leaf, torch.Tensor):
            if leaf.requires_grad and not is_spent(leaf):
                text = "a result needs gradients, and no backward can go through a launch: return loss.detach()"
                raise RefusedError(Reason("requires-grad", text))
            if leaf.layout == torch.strided and not has_memory(leaf):
                text = f"the step returns a {type(leaf).__name__}, and a graph returns plain tensors"
                raise RefusedError(
                    Reason("unknown-output", f"{text}: return what is inside (to_local(), dequantize())")
                )
            if leaf.device.type == "cpu":
                text = "a result is on the CPU, where its value would be frozen: return the device's, and copy that"
                raise RefusedError(Reason("host-output", f"{text} behind the launch"))
        elif not isinstance(leaf, PLAIN):
            kind = type(leaf).__name__
            text = (
                f"the step returns a {kind}, and a graph returns tensors and plain values only: return these, and make"
            )
            text = f"{text} the {kind} behind the launch"
            raise RefusedError(Reason("unknown-output", text))


def surroundings(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """What a call may leave otherwise though it is no state: torch's switches, and attributes of the arguments."""
    return switches(), [{name: id(value) for name, value in attributes_of(x).items()} for x in tensors]


def check_left(before: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> None:
    """That a watched call left that as it was.

    Raises:
        RefusedError: a launch would not change it again.
    """
    whats = (
        ("leaves one of torch's switches otherwise, such as grad mode or a default", "set it in a `with`, or before"),
        ("sets an attribute of an argument", "return what it is set to"),
    )
    for then, now, (what, instead) in zip(before, surroundings(tensors), whats, strict=True):
        if now != then:
            raise RefusedError(Reason("side-effect", f"the call {what}, which a launch would not do again: {instead}"))


def _host_written(seen: Observation) -> Reason:
    name = seen.host_written[0]
    uncapturable = any(
        holder.kind == "dict" and holder.target.get("capturable") is False and "params" in holder.target
        for holder in seen.before.reach.holders
    )
    if uncapturable and name.endswith("['step']"):
        text = "the optimizer counts its steps on the host: make it with capturable=True"
        return Reason("optimizer-not-capturable", text)
    text = f"{name} is on the CPU and is written, which a launch would not do again: keep it on the device, or write it"
    return Reason("host-counter", f"{text} between steps")


def changing(what: str, frame: Frame | None = None) -> Reason:
    """The refusal of a number that has no end of values."""
    text = f"{what}, which a graph has baked in, and had more than {MAX_SCALARS} values: keep it in a tensor"
    return Reason("changing-scalar", f"{text} on the device", frame)


def failed(error: BaseException) -> Reason:
    """The reason of a capture that failed, in the doctor's words."""
    failure = explain(error)
    text, frame = line_behind(error)
    if failure.code == "unknown":
        return Reason("capture-failed", text, frame)
    return Reason(failure.code, f"{failure.title}: {failure.message}", failure.frame or frame)
