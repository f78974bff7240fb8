"""What ungraphed calls of a step leave with an autograd graph whose backward pass is done: left without that graph.

Such a graph keeps alive what accumulates the gradients of the parameters, and that remembers the stream on which the
ungraphed call ran: in a capture, a backward pass would go there. So a result of an ungraphed call is what one of a
launch is, ``spent``, for as long as a capture may come.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from paramgraph_kit.backend.plain import flatten
from paramgraph_kit.driver.collection import everything
from paramgraph_kit.step.observe import Change, Observation
from paramgraph_kit.step.spent import is_bare_spent, is_spent, spent
from paramgraph_kit.trace.model import Reason

LEGACY = "legacy-stream"
MOST = 16  # tensors whose holders are looked for


def released(result: Any) -> Any:
    """A result of an ungraphed call, without the graphs of backward passes that are done.

    >>> x = torch.ones(2, requires_grad=True)
    >>> loss = x.square().sum()
    >>> released(loss) is loss, loss.backward(), released(loss) is loss
    (True, None, False)
    >>> released((loss, 1))[0].requires_grad
    True
    """
    return _with(result, _instead(flatten(result)[0]))


def release(seen: Observation) -> None:
    """The same for all that a watched call has left."""
    ends = [change.after for change in seen.changes if change.holder.kind != "gradient"]
    # A list or a dictionary is a place of its own; a tuple, as an LSTM's state, has others in its place with them.
    ends = [leaf for end in ends for leaf in (flatten(end)[0] if isinstance(end, tuple) else [end])]
    instead = _instead([*flatten(seen.result)[0], *ends])
    if not instead:
        return
    seen.result = _with(seen.result, instead)
    seen.changes = [_let_go(seen, change, instead) for change in seen.changes]
    for old, new in instead.values():
        seen.after.reach.let_go(old, new)


def told(reason: Reason, device: torch.device) -> Reason:
    """A refusal for a graph that is still held, with what holds it."""
    everything()
    objects = gc.get_objects()
    held = [x for x in objects if _is_held(x, device)]
    looking = (id(objects), id(held))
    for found in islice(held, MOST):
        holders = [x for x in gc.get_referrers(found) if id(x) not in looking and not isinstance(x, types.FrameType)]
        if kinds := sorted({type(x).__name__ for x in holders}):  # others are kept by what was computed from them
            text = f"a tensor of {list(found.shape)} that was computed with gradients is still held (by"
            return replace(reason, message=f"{reason.message}; {text} {', '.join(kinds[:3])}): del it, or .detach() it")
    text = "something that was computed from its parameters with gradients is still held: del it, or keep its .detach()"
    return replace(reason, message=f"{reason.message}; {text}")


def _is_held(what: Any, device: torch.device) -> bool:
    if not issubclass(type(what), torch.Tensor) or isinstance(what, FakeTensor):
        return False
    try:
        return what.device == device and what.grad_fn is not None and not is_bare_spent(what)
    except RuntimeError:  # somebody's view of what was written with gradients, whose graph torch does not tell
        return False


_Instead = dict[int, tuple[torch.Tensor, torch.Tensor]]  # by id of the first


def _instead(leaves: Iterable[Any]) -> _Instead:
    tensors = {id(x): x for x in leaves if type(x) is torch.Tensor and x.grad_fn is not None}
    return {key: (x, spent(x)) for key, x in tensors.items() if not is_bare_spent(x) and not vars(x) and is_spent(x)}


def _with(tree: Any, instead: _Instead) -> Any:
    if not instead:
        return tree
    leaves, spec = flatten(tree)
    return pytree.tree_unflatten(_leaves(leaves, instead), spec)


def _leaves(leaves: Sequence[Any], instead: _Instead) -> list[Any]:
    return [instead[id(x)][1] if id(x) in instead else x for x in leaves]


def _let_go(seen: Observation, change: Change, instead: _Instead) -> Change:
    """A place that holds one, or a tuple of them: from here on its like."""
    leaves = flatten(change.after)[0] if isinstance(change.after, tuple) else [change.after]
    if not instead.keys() & set(map(id, leaves)) or change.holder.read().get(change.key) is not change.after:
        return change
    new = _with(change.after, instead)
    change.holder.put(change.key, new)
    seen.after.reach.let_go(change.after, new)
    place = change.holder.kind, id(change.holder.target), change.holder.key
    for holder, contents in zip(seen.after.reach.holders, seen.after.contents, strict=True):
        if (holder.kind, id(holder.target), holder.key) == place and contents.get(change.key) is change.after:
            contents[change.key] = new
    return replace(change, after=new)
