"""Settings of torch's that hold for every line, ``torch.set_grad_enabled(False)``: a graph has those of its capture."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import LOOPS, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.observe.captured_values import NOTHING

GRADIENTS, TYPE = "torch.is_grad_enabled()", "torch.get_default_dtype()"
_PRECISION, _DETERMINISTIC = "torch.get_float32_matmul_precision()", "torch.are_deterministic_algorithms_enabled()"
_MATMUL, _CUDNN = "torch.backends.cuda.matmul", "torch.backends.cudnn"
EVERYWHERE = type("Everywhere", (), {})()  # what all lines of a program share
_NOW: dict[str, Callable[[], Any]] = {
    GRADIENTS: torch.is_grad_enabled,
    TYPE: torch.get_default_dtype,
    _PRECISION: torch.get_float32_matmul_precision,
    _DETERMINISTIC: torch.are_deterministic_algorithms_enabled,
}
_BY_CALL: tuple[tuple[Any, str], ...] = (
    (torch.set_grad_enabled, GRADIENTS),
    (torch.set_default_dtype, TYPE),
    (torch.set_float32_matmul_precision, _PRECISION),
    (torch.use_deterministic_algorithms, _DETERMINISTIC),
)
_WITHIN: tuple[tuple[Any, bool], ...] = (
    (torch.no_grad, False),
    (torch.enable_grad, True),
    (torch.inference_mode, False),
)
_NUMBERS_OF = (  # a benchmark only chooses what is faster
    *("allow_tf32", "fp32_precision", "deterministic", "enabled"),
    *("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"),
)
_FACTORIES = "zeros ones full rand randn empty tensor as_tensor arange linspace eye".split()  # noqa: SIM905
_MULTIPLIES = (
    "matmul mm bmm addmm einsum linear conv1d conv2d conv3d scaled_dot_product_attention baddbmm mv tensordot".split()  # noqa: SIM905
)


def set_by(function: Any) -> str:
    """The setting that a call of this function sets for what follows; "" where it sets none."""
    return next((name for each, name in _BY_CALL if each is function), "")


def gradients_within(function: Any) -> Any:
    """Whether gradients are kept in what this function is entered around; NOTHING: it is told; None: another one."""
    if function is torch.set_grad_enabled:
        return NOTHING
    return next((is_kept for each, is_kept in _WITHIN if each is function), None)


def backend_setting(owner: Any, name: str) -> str:
    """How an attribute of torch's backends is written, where numbers depend on it."""
    path = _MATMUL if owner is torch.backends.cuda.matmul else _CUDNN if owner is torch.backends.cudnn else ""
    return f"{path}.{name}" if path and name in _NUMBERS_OF else ""


def setting_now(owner: Any, name: str) -> Any:
    """What a setting is now; NOTHING of anything else."""
    if owner is EVERYWHERE:
        return _NOW[name]()
    return getattr(owner, name) if backend_setting(owner, name) else NOTHING


def as_it_is_written(node: ast.expr, file: str) -> Any:
    """What stands for a value that is not known: its text, or NOTHING where a loop around it gives it others."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    for loop in (n for n in ast.walk(tree_of(file) or node) if isinstance(n, LOOPS)):
        inside = [*ast.walk(loop)]
        stored = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        if any(n is node for n in inside) and not names.isdisjoint(stored):
            return NOTHING
    changes = (ast.Call, ast.Attribute, ast.Subscript)
    return NOTHING if any(isinstance(n, changes) for n in ast.walk(node)) else f"<{ast.unparse(node)}>"


def read_at(said: str, ran: Iterable[CodeType], modules: Iterable[tuple[CodeType, int]]) -> tuple[CodeType, int] | None:
    """The first line of a step that depends on a setting; ``modules``: lines that run one of torch's or the user's."""
    nodes = [(code, node) for code in ran for node in nodes_of(code)]
    called = [(code, node, last_name(node.func)) for code, node in nodes if isinstance(node, ast.Call)]
    if said == GRADIENTS:
        names = {name for _, _, name in called}
        if names.isdisjoint(("backward", "grad")) or "enable_grad" in names:
            return None
        asks = ("is_grad_enabled", "backward", "grad")
        return next(((code, node.lineno) for ask in asks for code, node, name in called if name == ask), None)
    if said == TYPE:
        made = ((code, node) for code, node, name in called if name in _FACTORIES and _is_of_torch(node))
        return next(((c, n.lineno) for c, n in made if all(k.arg != "dtype" for k in n.keywords)), None)
    products = ((code, node.lineno) for code, node, name in called if name in _MULTIPLIES)
    signs = (
        (code, node.lineno) for code, node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
    )
    found = [*modules, *products, *signs]
    if not found and said == _DETERMINISTIC:
        found = [(code, node.lineno) for code, node, _ in called]
    return found[0] if found else None


def _is_of_torch(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "torch"
