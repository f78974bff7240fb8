"""Gradients of what nobody used results of: None, as eager has it, where a backward would give zeros.

A traced backward computes all gradients, with zeros for those of results that the loss was not made of. To an optimizer
zeros are not None: it goes on with its momentum, and with weight decay.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx
from torch.utils import _pytree as pytree

_OWN = ("non_alias", "unsafe_view_alias", "custom_function_view")  # results that autograd has from the graph itself
_VIEWS = ("alias_of_intermediate", "alias_of_intermediate_save_as_output", "alias_of_intermediate_base_is_user_output")
_STEPS = 4  # from a view of something inside to the graph's own node


def made_of(joint: torch.fx.Graph, results: int) -> list[frozenset[int]]:
    """For each gradient behind the ``results`` of a joint graph, the tangents that it is made of, by number."""
    found: dict[torch.fx.Node, frozenset[int]] = {}
    count = 0
    for node in joint.nodes:
        if node.op == "placeholder" and node.name.startswith("tangents"):
            found[node] = frozenset([count])
            count += 1
        else:
            found[node] = frozenset().union(*(found[each] for each in node.all_input_nodes))
    (output,) = (node for node in joint.nodes if node.op == "output")
    gradients = pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None)[results:]
    return [found[x] if isinstance(x, torch.fx.Node) else frozenset() for x in gradients]


@dataclass(frozen=True, slots=True)
class Parts:
    """Which gradients of inputs follow from which results, where not all of them follow from all."""

    source: int  # a result by which autograd's node is found
    tangents: tuple[int, ...]  # among the gradients that autograd hands to the node, those that have a tangent
    needs: tuple[frozenset[int], ...]  # of each input, the tangents that its gradient is made of

    @classmethod
    def of(cls, needs: Sequence[frozenset[int]], metadata: Any) -> Parts | None:
        """What there is to look after, by AOTAutograd's metadata; None where every gradient follows from all."""
        infos = metadata.output_info
        own = [info.output_type.name in _OWN and info.requires_grad for info in infos]
        views = [info.output_type.name in _VIEWS and info.requires_grad for info in infos]
        given = [metadata.input_info[k] for k in metadata.mutated_inp_runtime_indices]
        flags = [info.mutates_data and info.requires_grad for info in given]
        flags += [*own, *[True] * metadata.num_intermediate_bases]
        tangents = tuple(k for k, yes in enumerate(flags) if yes)
        every = frozenset(range(len(tangents)))
        sources = [k for k, yes in enumerate(own) if yes] + [k for k, yes in enumerate(views) if yes]
        if not sources or not all(map(every.issuperset, needs)) or all(each in (every, frozenset()) for each in needs):
            return None
        return cls(sources[0], tangents, tuple(needs))

    def heed(self, results: Sequence[Any], differentiable: Sequence[int] | None) -> None:
        """Let the backward of a call that gave ``results`` leave out what follows from nothing that was used.

        ``differentiable``: the inputs that a direct step gives gradients of.
        """
        node = results[self.source].grad_fn
        for _ in range(_STEPS):
            if node is None:  # a call without gradients
                return
            if node.name() == "DirectBackward" and differentiable is not None:
                node.register_hook(functools.partial(self._left, weakref.ref(node), tuple(differentiable)))
                return
            if "CompiledFunction" in node.name():
                node.register_hook(functools.partial(self._left, weakref.ref(node), range(len(self.needs))))
                return
            node = next((following for following, _ in node.next_functions), None)

    def _left(
        self, node: weakref.ref[Any], inputs: Sequence[int], gradients: Sequence[Any], taken: Sequence[Any]
    ) -> tuple[Any, ...] | None:
        used = {k for k, place in enumerate(self.tangents) if taken[place] is not None}
        if len(used) == len(self.tangents) or len(gradients) != len(inputs):
            return None
        edges = [following for following, _ in node().next_functions]  # type: ignore[union-attr]  # it runs
        return tuple(
            None if (needs := self.needs[inputs[k]]) and used.isdisjoint(needs) and _nobody_hears(edge) else gradient
            for k, (gradient, edge) in enumerate(zip(gradients, edges, strict=True))
        )


def _nobody_hears(node: Any) -> bool:
    """Whether nobody's code is called on the way to the leaves, where eager would not go: it may not expect None."""
    todo, seen = [node], set[Any]()
    while todo:
        each = todo.pop()
        if each is None or each in seen:
            continue
        seen.add(each)
        if isinstance(each, torch.autograd.function.BackwardCFunction) and not _is_a_graph_s(each):
            return False
        leaf = getattr(each, "variable", None)
        if leaf is not None and (leaf._backward_hooks or leaf._post_accumulate_grad_hooks):
            return False
        todo += [following for following, _ in each.next_functions]
    return True


def _is_a_graph_s(node: Any) -> bool:
    return node.name() == "DirectBackward" or "CompiledFunction" in node.name()
