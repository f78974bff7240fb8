"""Why a function has done nothing on the device: it was not run, or what it was given is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.explain.naming import name_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.driver.select import device
from paramgraph_kit.trace.model import Failure

_RUNS = {
    CoroutineType: ("a coroutine", "loop.run_until_complete({call})"),
    GeneratorType: ("a generator", "list({call})"),
    AsyncGeneratorType: ("an async generator", "loop.run_until_complete(all_of({call}))"),
}


def empty(function: Any, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Failure:
    """The failure, with why nothing ran, as far as that is known, and how to give what runs something."""
    text = "no operation ran on the device in this thread"
    found = BY_ID["empty-graph"].failure(text, None)
    name = name_of(function)
    for kind, (what, runs) in _RUNS.items():
        if issubclass(type(result), kind):
            call = f"{name}(*args)"
            before, after = f"diagnose({name}, *args)", f"diagnose(lambda *args: {runs.format(call=call)}, *args)"
            message = f"{text}: calling {name} makes {what}, and runs nothing of it"
            if kind is not GeneratorType:
                after = f"loop = asyncio.new_event_loop()\n        {after}"
            if kind is AsyncGeneratorType:
                after = f"async def all_of(each): return [one async for one in each]\n        {after}"
            return replace(found, message=message, fix=f"before  {before}\nafter   {after}")
    tensors = [each for each in tree_leaves((list(args), dict(kwargs))) if isinstance(each, torch.Tensor)]
    if tensors and all(each.device.type == "cpu" for each in tensors) and device().type != "cpu":
        which = "the tensor that it is given is" if len(tensors) == 1 else "all tensors that it is given are"
        return replace(found, message=f"{text}: {which} on the CPU")
    return found
