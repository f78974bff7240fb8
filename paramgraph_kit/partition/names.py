"""What the user calls things: tensors by Dynamo's sources, operations by the module that ran them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

_ROOT = re.compile(r"^[LG]\['([^']+)'\]")
_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]")
_SELF = ("self", "fn")  # how Dynamo calls the module that is compiled: its name says nothing
_VIEWS = ("t", "view", "_unsafe_view", "detach", "alias", "transpose", "permute", "squeeze", "unsqueeze", "reshape")
_POSITION = re.compile(r"^(?:primals_|arg)(\d+)")


def user_name(source: str) -> str:
    """A source of Dynamo's as its user would write it, members of the compiled module without "self".

    >>> user_name("L['self']._modules['blocks']._modules['3']._modules['up']._parameters['weight']")
    'blocks.3.up.weight'
    >>> user_name("L['x']"), user_name("G['model'].blocks.0"), user_name("L['mask']['m'][0]")
    ('x', 'model.blocks.0', "mask['m'][0]")
    """
    root = _ROOT.match(source)
    if root is None:
        return source
    rest = _MEMBER.sub(r".\1", source[root.end() :])
    return rest[1:] if root[1] in _SELF and rest.startswith(".") else root[1] + rest


def input_names(module: torch.fx.GraphModule) -> tuple[str, ...]:
    """The user's name of each input of a graph of Dynamo's, "" where there is none."""
    if not isinstance(module, torch.fx.GraphModule):
        return ()
    names = []
    for node in module.graph.find_nodes(op="placeholder"):
        source = getattr(node.meta.get("grapharg"), "source", None)
        name = getattr(source, "name", "")
        names.append(user_name(str(name() if callable(name) else name)))
    return tuple(names)


def argument_names(fn: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """What each tensor among the arguments of a call is called, in the order in which pytree flattens them.

    >>> argument_names(lambda x, *rest: x, (torch.ones(1), [torch.ones(1)], 3), {"scale": torch.ones(1)})
    ('x', 'rest[0][0]', 'scale')
    """
    try:
        parameters = list(inspect.signature(getattr(fn, "forward", fn)).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    fixed = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "argument")
    names = []
    for path, leaf in pytree.tree_flatten_with_path((args, kwargs))[0]:
        if not isinstance(leaf, torch.Tensor):
            continue
        place, inner = pytree.keystr(path[1:2]), pytree.keystr(path[2:])
        if path[0] == pytree.SequenceKey(1):
            names.append(place.strip("[]'\"") + inner)
        else:
            at = int(place.strip("[]"))
            names.append((fixed[at] if at < len(fixed) else f"{rest}[{at - len(fixed)}]") + inner)
    return tuple(names)


def module_of(node: torch.fx.Node) -> str:
    """The path of the module whose forward ran a node, or whose backward it is part of; "" where torch kept none."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    last = list(stack.values())[-1] if stack else None
    path = user_name(str(last[0])) if last else ""
    return "" if path in _SELF else path


def modules_by_name(module: torch.fx.GraphModule) -> dict[str, str]:
    """The path of each node's module, by its own name and by those that it had before it was decomposed."""
    found: dict[str, str] = {}
    for node in module.graph.nodes:
        if path := module_of(node):
            before = [str(getattr(each, "name", "")) for each in node.meta.get("from_node") or ()]
            for name in (*before, *[str(pair[0]) for pair in node.meta.get("source_fn_stack") or ()]):
                found.setdefault(name, path)
            found[node.name] = path
    return found


def operation_name(node: torch.fx.Node) -> str:
    """``addmm`` for ``aten.addmm.default``."""
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    return str(schema.name).split("::")[-1] if schema is not None else str(getattr(target, "__name__", target))


def value_names(
    module: torch.fx.GraphModule, inputs: Sequence[str], before: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """What to call each value of a graph of AOTAutograd's, by its node's name.

    Inputs are called as the user does (``inputs`` has those names, in the order of Dynamo's graph), results and
    gradients by what they are of, everything else by the module and the operation that make it. ``before`` has the
    names of the forward's values, some of which it saved for the backward.
    """
    found: dict[str, str] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            name = described(node.meta.get("desc"), inputs) or _by_position(node.name, inputs)
            found[node.name] = name or before.get(node.name) or _made_by(node)
        elif node.op == "call_function":
            found[node.name] = _made_by(node)
        elif node.op == "output":
            said = node.meta.get("desc") or ()
            results = node.args[0] if isinstance(node.args[0], (list, tuple)) else ()
            for result, what in zip(results, said, strict=False):
                name = described(what, inputs)
                while isinstance(result, torch.fx.Node) and name and result.op == "call_function":
                    found[result.name] = name
                    result = result.args[0] if operation_name(result) in _VIEWS else None
    return found


def described(what: Any, inputs: Sequence[str]) -> str:
    """A descriptor of AOTAutograd's in words, "" where it says nothing to a user."""
    kind = type(what).__name__
    if kind == "PlainAOTInput":
        return inputs[what.idx] if what.idx < len(inputs) else ""
    if kind in ("ParamAOTInput", "BufferAOTInput"):
        return user_name(str(what.target))
    if kind == "PlainAOTOutput":
        return f"output {what.idx}"
    of = {"TangentAOTInput": "output", "GradAOTOutput": "grad_of"}.get(kind)
    if of is not None:
        inner = described(getattr(what, of, None), inputs)
        return f"gradient of {inner}" if inner else "a gradient"
    if kind == "InputMutationAOTOutput":
        inner = described(getattr(what, "mutated_input", None), inputs)
        return f"new {inner}" if inner else ""
    return ""


def _by_position(name: str, inputs: Sequence[str]) -> str:
    """By AOTAutograd's numbering, for versions of torch that describe nothing: primals from 1, args from 0."""
    if (match := _POSITION.match(name)) is None:
        return ""
    at = int(match[1]) - name.startswith("primals_")
    return inputs[at] if 0 <= at < len(inputs) else ""


def _made_by(node: torch.fx.Node) -> str:
    if node.op == "placeholder":  # saved by the forward, whose node it was named after
        operation = re.sub(r"_\d+$", "", node.name)
    elif operation_name(node) == "getitem" and isinstance(node.args[0], torch.fx.Node):
        operation = f"{operation_name(node.args[0])}[{node.args[1]}]"
    else:
        operation = operation_name(node)
    path = module_of(node)
    return f"{path}: {operation}" if path else operation
