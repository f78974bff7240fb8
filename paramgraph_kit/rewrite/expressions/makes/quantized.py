"""A scale or a zero point that stays on the device: fake quantization wants both as tensors, of float32 and int32."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Edit
from paramgraph_kit.rewrite.source.place import Place, called, integer

_NAME = "fake_quantize_per_tensor_affine"
KINDS = (".float()", ".int()")


def quantized(place: Place, scale: ast.Call) -> list[Edit]:
    """What goes along with a number that stays a tensor, where the file quantizes by it."""
    source, above = place.source, place.source.parents.get(scale)
    if isinstance(above, ast.Call) and called(above) == _NAME and len(above.args) > 2:
        zero = above.args[2]
        if above.args[1] is not scale or integer(zero) is None:
            return []
        text = f"torch.full((), {place.text(zero)}, dtype=torch.int32, device={place.device})"
        return [source.replace(zero, text)]
    edits = list[Edit]()
    for call in (n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and called(n) == _NAME):
        given = call.args[1:3]
        if len(given) == 2 and all(isinstance(n, (ast.Name, ast.Attribute)) for n in given):
            # Numbers of Python's are these within the kernel; no tensor of another type is taken there.
            edits += [source.replace(n, place.text(n) + kind) for n, kind in zip(given, KINDS, strict=True)]
    return edits
