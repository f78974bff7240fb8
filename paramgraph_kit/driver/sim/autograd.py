"""Which stream a backward belongs to.

CUDA's engine runs every backward node on the stream on which it was made. For an operation's node a log of (sequence
number, stream) per thread answers that; what accumulates the gradient of a leaf is made by the first operation that
uses it, and lives as long as anything that was computed from it. Nodes for gradients of gradients are made on the
engine's thread, which counts for itself: they are marked as soon as the backward pass that made them is over.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from paramgraph_kit.driver.torch_names import torch_name

task_id: Callable[[], int] = torch_name("_current_graph_task_id")
current_node: Callable[[], Any] = torch_name("_current_autograd_node")
sequence_number: Callable[[], int] = torch_name("_get_sequence_nr")

S = TypeVar("S")  # a stream: this file looks into none
Log = list[tuple[int, S]]  # (sequence number, stream chosen before it), oldest first

_of_transform: Callable[[torch.Tensor], bool] = torch_name("is_functorch_wrapped_tensor")  # unseen by kernels

_TAG = "paramgraph_kit sim stream"
_MADE = "paramgraph_kit made before"
_AUTOGRAD = torch_name("DispatchKey").AutogradFunctionality
_above = torch_name("_SetExcludeDispatchKeyGuard")
_asking = threading.local()
_APPLY: Any = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


def made_on(node: Any, log: Log[S]) -> S | None:
    """The stream on which a node was made; None stands for the default stream."""
    if _TAG in node.metadata:
        marked: S | None = node.metadata[_TAG]
        return marked
    if (leaf := getattr(node, "variable", None)) is not None:  # this node accumulates its gradient
        return log[-1][1] if log and _of_transform(leaf) else None
    i = bisect_right(log, node._sequence_nr(), key=lambda entry: entry[0])
    return log[i - 1][1] if i else None


def note_leaf(tensor: torch.Tensor, stream: object) -> None:
    """A leaf is used on a stream: if nothing accumulates its gradient yet, what does is made there."""
    if (node := _accumulates(tensor)) is not None:
        node.metadata.setdefault(_TAG, stream)


def note_leaf_of_function(tensor: torch.Tensor, stream: object) -> None:
    """A leaf is used inside a custom Function: if that was given it, what accumulates its gradient is made by now."""
    if (node := _accumulates(tensor)) is None or _TAG in node.metadata:
        return
    node.metadata[_MADE] = True
    del node
    if (node := _accumulates(tensor)) is not None and node.metadata.pop(_MADE, False):  # and no other one: it is held
        node.metadata[_TAG] = stream


def leaves_among(roots: Iterable[Any], stream: object) -> list[Any]:
    """What accumulates gradients of those roots that are leaves: the call of the backward makes it, if nothing has."""
    leaves = [root for root in roots if isinstance(root, torch.Tensor) and root.requires_grad and not root.grad_fn]
    found = [node for leaf in leaves if (node := _accumulates(leaf)) is not None]
    for node in found:
        node.metadata.setdefault(_TAG, stream)
    return found


def _accumulates(leaf: torch.Tensor) -> Any:
    """The node that accumulates a leaf's gradient, which may be made for this; none where that asks for itself."""
    if getattr(_asking, "now", False) or leaf.is_inference():
        return None  # torch makes a view to find the node: one of inference data has none
    _asking.now = True
    try:
        with _above(_AUTOGRAD, False):  # a kernel runs below autograd
            return torch.autograd.graph.get_gradient_edge(leaf).node
    except AssertionError:  # inside a subclass that dispatches (DTensor), autograd is left out: nothing is made here
        return None
    finally:
        _asking.now = False


def in_function() -> bool:
    """Whether this thread is inside a custom Function, whose node is made before its forward runs without gradients."""
    frame = sys._getframe()
    while (outer := frame.f_back) is not None:
        if (frame := outer).f_code is _APPLY:
            return True
    return False


def note_leaves_of_functions(root: Any, log: Log[S]) -> None:
    """Mark what accumulates gradients of leaves that a custom Function alone has used, which no kernel saw: that is
    made with the Function's node, on its stream.
    """
    first: dict[Any, Any] = {}
    for node in all_behind(root):
        for following, _ in node.next_functions:
            if hasattr(following, "variable") and _TAG not in following.metadata:
                first[following] = min(node, first.get(following, node), key=lambda each: each._sequence_nr())
    for leaf, node in first.items():
        leaf.metadata[_TAG] = made_on(node, log)


def note_made_in_backward(results: Iterable[Any], roots: Iterable[Any], stream: object) -> None:
    """A backward pass from ``roots`` has made gradients that can be differentiated: its nodes belong to ``stream``."""
    before = set(all_behind(*nodes(roots)))
    leaves = [node.variable.grad for node in before if hasattr(node, "variable")]
    for node in all_behind(*nodes([*results, *leaves]), known=before):
        node.metadata.setdefault(_TAG, stream)


def note_made_under_way(roots: Iterable[Any], begun: Iterable[Iterable[Any]], stream: object) -> None:
    """A node goes backward itself, from ``roots``: what it has made for that belongs to its own ``stream``.

    That is what no pass that is ``begun`` knew: a thread of the engine counts its nodes for itself.
    """
    before = all_behind(*(node for each in begun for node in nodes(each)))
    for node in all_behind(*nodes(roots), known=before):
        if not hasattr(node, "variable"):
            node.metadata.setdefault(_TAG, stream)


def root_stream_of(roots: Iterable[Any], log: Log[S]) -> S | None:
    """The stream on which the first of ``roots`` was made that has a node, or None for the default stream."""
    return next((made_on(node, log) for node in nodes(roots)), None)


def nodes(roots: Iterable[Any]) -> list[Any]:
    """The nodes of tensors and edges that have one."""
    found = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
    return [node for node in found if node is not None]


def all_behind(*nodes: Any, known: Iterable[Any] = ()) -> Iterator[Any]:
    """Nodes and every one that their gradients flow to, without those that are ``known``."""
    seen = set(known)
    todo = [node for node in nodes if node not in seen]
    seen.update(todo)
    while todo:
        node = todo.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)


def is_behind(node: Any, roots: Iterable[Any]) -> bool:
    """Whether a pass from ``roots`` may meet a node."""
    return node in all_behind(*nodes(roots))


def met(node: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """The nodes that a pass meets behind ``node``: where it goes to some inputs alone, those on the way to them."""
    found = list(all_behind(node))
    if not inputs:
        return found
    ends, leaves = set(nodes(inputs)), {id(each) for each in inputs}
    todo = [each for each in found if each in ends or id(getattr(each, "variable", None)) in leaves]
    before: dict[Any, list[Any]] = {}
    for each in found:
        for following, _ in each.next_functions:
            before.setdefault(following, []).append(each)
    wanted = set(todo)
    while todo:
        for each in before.get(todo.pop(), ()):
            if each not in wanted:
                wanted.add(each)
                todo.append(each)
    return [each for each in found if each in wanted]


def forbid_reaching(
    strangers: list[Any], among: Iterable[Any], running: Any, accumulates: bool, error: Callable[[], Exception]
) -> list[Any] | None:
    """Hooks that raise where a gradient is handed to one of ``strangers``, and not before; None where that is now.

    The engine has a leaf's stream wait for what gives it a gradient: errors of nodes before that come first.
    """

    def refuse(*_: Any) -> None:
        raise error()

    if running in strangers or not all(hasattr(each, "variable") for each in strangers):
        return None
    ends = set(strangers)
    givers = [each for each in among if not ends.isdisjoint(following for following, _ in each.next_functions)]
    if running in givers and not accumulates:
        return None
    hooks = [each.register_hook(refuse) for each in givers if each != running]
    return hooks + [_first_of_all(each, refuse) for each in strangers if running in givers]


def _first_of_all(node: Any, refuse: Callable[..., None]) -> Any:
    """A hook that runs before what the user has registered for a leaf's gradient, of which the node knows nothing."""
    leaf = node.variable
    if not leaf._backward_hooks:
        return node.register_prehook(refuse)
    others = dict(leaf._backward_hooks)
    leaf._backward_hooks.clear()  # torch goes through them in the order in which they came
    hook = leaf.register_hook(refuse)
    leaf._backward_hooks.update(others)
    return hook
