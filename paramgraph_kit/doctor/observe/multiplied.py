"""What is written where a tensor of one number takes the place of a number of Python's that torch is given."""

from __future__ import annotations

import ast
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.doctor.observe.captured_values import Use
from paramgraph_kit.doctor.observe.held import is_a

Parents = dict[ast.AST, ast.AST]
OF_TENSORS = ("mul", "mul_", "div", "div_", "pow", "lerp", "lerp_", "where", "maximum", "minimum")
_OF_VALUES = ("add", "add_", "sub", "sub_", "fill_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_")
_PLAIN = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
_BETWEEN = {"addcmul": "*", "addcdiv": "/"}


def multiplied(node: Any, parents: Parents, use: Use | None = None) -> str | None:
    """What else is written where a tensor takes a number's place: "" for nothing, None where it cannot."""
    above: Any = parents.get(node)
    if isinstance(above, ast.BinOp):
        return ""
    if isinstance(above, (ast.Assign, ast.AugAssign)):
        return "" if use is not None and _is_written(above, use) else None
    if isinstance(above, ast.Call) and node in above.args:
        name, whole = last_name(above.func), _whole(above, use)
        if whole or (name in ("masked_fill", "masked_fill_") and len(above.args) == 2):
            return whole or _chosen(above)
        return "" if name in (*OF_TENSORS, *_OF_VALUES) else None
    call = parents.get(above)
    if not isinstance(above, ast.keyword) or not isinstance(call, ast.Call):
        return None
    if above.arg in ("min", "max"):
        return "" if last_name(call.func) in ("clamp", "clamp_", "clip", "clip_") and len(call.keywords) == 1 else None
    return _scaled(call, above)


def _is_written(statement: ast.Assign | ast.AugAssign, use: Use) -> bool:
    """Whether a statement writes to entries of a tensor: ``x[0] = t``, ``x += t``."""
    augmented = isinstance(statement, ast.AugAssign)
    into: Any = statement.target if isinstance(statement, ast.AugAssign) else statement.targets[0]
    held = into.value if isinstance(into, ast.Subscript) else into if augmented else None
    return held is not None and is_a(Use(use.code, held, False, use.names).value(), torch.Tensor)


def _scaled(call: ast.Call, factor: ast.keyword) -> str | None:
    """``x.add_(y, alpha=t)`` and ``x.addcmul_(y, z, value=t)`` with a tensor for ``t``."""
    name, by = last_name(call.func), ast.unparse(factor.value)
    kept = [f"{each.arg}={ast.unparse(each.value)}" for each in call.keywords if each is not factor]
    is_torchs = isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "torch"
    given = [*map(ast.unparse, call.args)]
    if factor.arg == "value" and (between := _BETWEEN.get(name.rstrip("_"))) and len(given) == 2 + is_torchs:
        first, second = (ast.unparse(n) if isinstance(n, _PLAIN) else f"({ast.unparse(n)})" for n in call.args[-2:])
        product = f"({by}) * {first} {between} {second}"
        new = f"torch.add({given[0]}, {product})" if is_torchs else f"add{'_' * name.endswith('_')}({product})"
        old = f"{name}({', '.join([*given, f'value={by}', *kept])})"
        return f"`{new}` for `{'torch.' * is_torchs}{old}`" if not kept else None
    if factor.arg != "alpha" or not given:
        return None
    last = given[-1] if isinstance(call.args[-1], _PLAIN) else f"({given[-1]})"
    if is_torchs:
        summed = ", ".join([*given[:-1], f"({by}) * {last}", *kept])
        return f"`torch.{name}({summed})` for `{ast.unparse(call)}`"
    return f"`{name}(({by}) * {last})` for `{name}({given[-1]}, alpha={by})`"


def _whole(call: ast.Call, use: Use | None) -> str:
    """``torch.full(size, t)`` and ``torch.full_like(x, t)`` with a tensor for ``t``; "" of other calls."""
    name = last_name(call.func)
    is_torchs = isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "torch"
    if not is_torchs or name not in ("full", "full_like") or len(call.args) != 2 or use is None:
        return ""
    (first, value), options = map(ast.unparse, call.args), {k.arg: ast.unparse(k.value) for k in call.keywords}
    if not {*options} <= {"device", "dtype"}:
        return ""
    kind = options.get("dtype", f"{first}.dtype" if name == "full_like" else "")
    kind = kind or ("torch.int64" if type(use.value()) is int else "")
    spread = f"({value}).expand{'_as' if name == 'full_like' else ''}({first}).clone()"
    return f"`{spread}{f'.to({kind})' if kind else ''}` for `{ast.unparse(call)}`"


def _chosen(call: ast.Call) -> str | None:
    """``x.masked_fill_(mask, t)``, which asks a tensor for its number, with one for ``t``."""
    if not isinstance(call.func, ast.Attribute):
        return None
    x, (mask, value) = ast.unparse(call.func.value), map(ast.unparse, call.args)
    new = f"torch.where({mask}, {value}, {x})"
    return f"`{f'{x}.copy_({new})' if call.func.attr.endswith('_') else new}` for `{ast.unparse(call)}`"
