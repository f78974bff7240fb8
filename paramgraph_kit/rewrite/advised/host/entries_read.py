"""Advice for what a constructor reads entry by entry: ``torch.LongTensor([top[i][0] for i in range(n)])``."""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.observe.unseen_readings import UNSEEN
from paramgraph_kit.rewrite.source.place import Place

_OF_KIND = {
    "LongTensor": ".long()",
    "IntTensor": ".int()",
    "FloatTensor": ".float()",
    "Tensor": ".float()",
    "DoubleTensor": ".double()",
    "HalfTensor": ".half()",
    "BoolTensor": ".bool()",
}
_OF_ENTRIES = ("tensor", "as_tensor", "asarray")
_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp)


def entries_read(place: Place) -> str:
    """The entries put together where they are."""
    if UNSEEN not in place.failure.message:
        return ""
    for call in place.calls(*_OF_KIND, *_OF_ENTRIES):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        text = _stacked(place, call.args[0]) if len(call.args) == 1 else ""
        if not text:
            continue
        kinds = [place.text(option.value) for option in call.keywords if option.arg == "dtype"]
        text += f".to({kinds[0]})" if kinds else _OF_KIND.get(name, "")
        return (
            f"`{text}` for `{place.text(call)}` puts the entries together on the device, where they are; what reads it "
            "stays there, too: a copy of it to the device, behind this line, does nothing then, and the host reads it "
            "behind each launch"
        )
    return ""


def _stacked(place: Place, node: ast.expr) -> str:
    """A list of tensors as one; "" where numbers of Python's are among them."""
    inner = (ast.List, ast.Tuple, *_COMPREHENSIONS)
    if isinstance(node, (ast.List, ast.Tuple)):
        if not node.elts or any(isinstance(each, (ast.Constant, ast.UnaryOp, ast.Starred)) for each in node.elts):
            return ""
        if not isinstance(node.elts[0], inner):
            return f"torch.stack([{', '.join(map(place.text, node.elts))}])"
        parts = [_stacked(place, each) for each in node.elts]
        return f"torch.stack([{', '.join(parts)}])" if all(parts) else ""
    if isinstance(node, _COMPREHENSIONS):
        if not isinstance(node.elt, inner):
            return f"torch.stack({place.text(node) if isinstance(node, ast.ListComp) else f'[*{place.text(node)}]'})"
        element, whole = _stacked(place, node.elt), place.text(node)
        return f"torch.stack([{element}{whole[1 + len(place.text(node.elt)) :]})" if element else ""
    return f"torch.stack({place.text(node)})" if isinstance(node, (ast.Name, ast.Call, ast.Attribute)) else ""
