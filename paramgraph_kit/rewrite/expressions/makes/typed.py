"""Types of the CPU that a tensor of the device passes through: ``mask.type(torch.FloatTensor).to(device)``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Edit, path_of
from paramgraph_kit.rewrite.source.place import Place, called

_KINDS = {
    "FloatTensor": "torch.float32",
    "DoubleTensor": "torch.float64",
    "HalfTensor": "torch.float16",
    "LongTensor": "torch.int64",
    "IntTensor": "torch.int32",
    "ByteTensor": "torch.uint8",
    "BoolTensor": "torch.bool",
}


def keep_it_there(place: Place) -> list[Edit]:
    """``mask.type(torch.FloatTensor).to(device)`` becomes ``mask.to(torch.float32)``."""
    found = []
    for call in place.calls("to", "cuda"):
        inner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if not isinstance(inner, ast.Call) or called(inner) != "type" or not isinstance(inner.func, ast.Attribute):
            continue
        given = inner.args[0] if len(inner.args) == 1 and not inner.keywords else None
        path = given.value if isinstance(given, ast.Constant) else path_of(given) if given is not None else ""
        root, _, kind = str(path).rpartition(".")
        if root == "torch" and kind in _KINDS:
            found.append(place.source.replace(call, f"{place.source.bracketed(inner.func.value)}.to({_KINDS[kind]})"))
    return found
