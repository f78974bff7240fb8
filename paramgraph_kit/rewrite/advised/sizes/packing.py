"""Advice for rows of different lengths that are packed: a network over all of what is padded gives the same."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import torch

from paramgraph_kit.doctor.observe.other_host_tensors import OTHER_VALUES
from paramgraph_kit.rewrite.source.edits import path_of, within
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.rewrite.source.pure import candidates

PACK, PAD = "pack_padded_sequence", "pad_packed_sequence"
_ON_HOST = (".cpu()", ".to('cpu')", '.to("cpu")', ".tolist()", ".detach()", ".long()")


def packed(place: Place) -> str:
    """``pack_padded_sequence``, which wants lengths of the CPU, and ``pad_packed_sequence`` of what comes of it."""
    own = [n for n in ast.walk(place.statement) if isinstance(n, ast.Call) and called(n) in (PACK, PAD)]
    if not own:
        return ""
    function = place.source.function_of(place.statement)
    every = [n for part in (function.body if function is not None else [place.statement]) for n in within(part)]
    pack = next((n for n in every if isinstance(n, ast.Call) and called(n) == PACK and len(n.args) > 1), None)
    if pack is None:
        return ""
    if pack not in own:
        return f"goes with the packing of line {pack.lineno}: what is said of that line takes the place of both"
    words = _instead(place, pack, every)
    lengths = _on_device(place.text(pack.args[1]))
    given = f"; the function gets `{lengths}` on the device then, `{lengths}.to({place.device})`"
    return words + given * (OTHER_VALUES in place.failure.message)


def _instead(place: Place, pack: ast.Call, every: list[ast.AST]) -> str:
    run = _run(place, pack, every)
    network = candidates(replace(place, statement=_statement(place, run)), run.func) if run is not None else []
    rnn: Any = next((each for each in network if isinstance(each, torch.nn.RNNBase)), None)
    x, lengths, device = place.text(pack.args[0]), _on_device(place.text(pack.args[1])), place.device
    name = place.text(run.func) if run is not None else "network"
    first = rnn.batch_first if rnn is not None else _is_true(pack, "batch_first")
    if rnn is not None and rnn.bidirectional:
        return _both_ways(rnn, name, x, lengths, device) if rnn.num_layers == 1 and first else _deep(name, lengths)
    ends = f"out[torch.arange(len({lengths}), device={device}), {lengths} - 1]"
    ends = ends if first else f"out[{lengths} - 1, torch.arange(len({lengths}), device={device})]"
    inside = f"torch.arange(out.shape[{int(first)}], device={device})"
    inside = f"({inside} < {lengths}[:, None])[..., None]" if first else f"({inside}[:, None] < {lengths})[..., None]"
    ways = "" if rnn is not None else "; of a network that reads backwards, too, that gives other numbers"
    return (
        f"lengths decide sizes: give the network all of it, padded as it is, `out, _ = {name}({x})`; behind a row's "
        f"end `out` is not 0 then, which `out * {inside}` makes it, and the last of each row is `{ends}`{ways}"
    )


def _run(place: Place, pack: ast.Call, every: list[ast.AST]) -> ast.Call | None:
    """The call that gets what was packed."""
    above = place.source.parents.get(pack)
    if isinstance(above, ast.Call):
        return above
    targets = above.targets if isinstance(above, ast.Assign) else []
    names = {path_of(each) for each in targets} - {""}
    calls = (n for n in every if isinstance(n, ast.Call) and called(n) not in (PACK, PAD))
    return next((n for n in calls if {path_of(each) for each in n.args} & names), None)


def _statement(place: Place, node: ast.AST | None) -> ast.stmt:
    while node is not None and not isinstance(node, ast.stmt):
        node = place.source.parents.get(node)
    return node or place.statement


def _on_device(text: str) -> str:
    """Lengths without what brings them to the host."""
    while (end := next((each for each in _ON_HOST if text.endswith(each)), "")) != "":
        text = text.removesuffix(end)
    return text


def _is_true(call: ast.Call, name: str) -> bool:
    given = (each.value for each in call.keywords if each.arg == name)
    return any(isinstance(each, ast.Constant) and each.value is True for each in given)


def _both_ways(rnn: Any, name: str, x: str, lengths: str, device: str) -> str:
    """One layer that reads both ways: the way back begins with words where these stand at the end of what is padded."""
    wide = rnn.proj_size or rnn.hidden_size
    return (
        f"lengths decide sizes, and `{name}` reads backwards, too, where padding would come first: let it read rows "
        f"that stand at the left, and rows that stand at the right. `x = {x}`; `at = torch.arange(x.shape[1], "
        f"device={device})`; `there, back = ((at + side * {lengths}[:, None]) % len(at) for side in (1, -1))`; "
        f"`(ahead, _), (behind, _) = {name}(x), {name}(x.gather(1, there[..., None].expand_as(x)))`; `out = "
        f"torch.cat([ahead[..., :{wide}], behind.gather(1, back[..., None].expand_as(behind))[..., {wide}:]], -1)`; "
        f"behind a row's end it is not 0, which `out * (at < {lengths}[:, None])[..., None]` makes it"
    )


def _deep(name: str, lengths: str) -> str:
    return (
        f"lengths decide sizes, and `{name}` reads backwards, too, where padding would come first and change its "
        f"numbers: capture what comes behind it; or sort rows by `{lengths}` before the launch, and pack by a list of "
        "the host's with `enforce_sorted=True`, of which each has a graph"
    )
