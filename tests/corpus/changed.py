"""Models that others have changed: quantized, adapted, parametrized, pruned, called with other weights, stacked.

Each change moves what a partition gets: packed weights and their scales, weights that are computed anew in each call,
weights that are arguments, one call for many models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vmap
from torch.nn.utils import parametrizations, parametrize, prune

from tests.corpus.case import Case, adamw_fused, built, finish, inference, mean_square, normal, sgd, training
from tests.corpus.training import MLP

WIDTH = 32


class Int8Linear(nn.Module):
    """A linear layer whose weight is int8 with a scale for each row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight: Tensor
        self.scale: Tensor
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale.flatten())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (..., in)."""
        return F.linear(x, self.weight.to(x.dtype)) * self.scale + self.bias


class Int4Linear(nn.Module):
    """Two weights in a byte, with a scale and a zero for each group of 16."""

    def __init__(self, linear: nn.Linear, group: int = 16) -> None:
        super().__init__()
        weight = linear.weight.detach().unflatten(1, (-1, group))
        low, high = weight.amin(2, keepdim=True), weight.amax(2, keepdim=True)
        scale = (high - low) / 15
        codes = ((weight - low) / scale).round().to(torch.uint8).flatten(1)
        self.packed: Tensor
        self.scale: Tensor
        self.zero: Tensor
        self.register_buffer("packed", codes[:, ::2] | codes[:, 1::2] << 4)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", low)
        self.bias, self.group = linear.bias, group

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (..., in)."""
        codes = (
            torch.stack([self.packed & 15, self.packed >> 4], -1).flatten(1).to(x.dtype).unflatten(1, (-1, self.group))
        )
        weight = (codes * self.scale + self.zero).flatten(1)
        return F.linear(x, weight, self.bias)


class LoRALinear(nn.Module):
    """A frozen layer and a trained product of low rank beside it."""

    def __init__(self, linear: nn.Linear, rank: int = 4, p: float = 0.0) -> None:
        super().__init__()
        self.base = linear.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, linear.in_features) / rank)
        self.up = nn.Parameter(torch.randn(linear.out_features, rank) / rank)
        self.dropout = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (..., in)."""
        update: Tensor = F.linear(F.linear(self.dropout(x), self.down), self.up)
        result: Tensor = self.base(x) + 2.0 * update
        return result


def changed(change: Callable[[nn.Linear], nn.Module]) -> Callable[[], nn.Module]:
    """An MLP with each of its linear layers changed."""

    def make() -> nn.Module:
        model = MLP(WIDTH)
        for i, layer in enumerate(model.layers):
            if isinstance(layer, nn.Linear):
                model.layers[i] = change(layer)
        return model

    return make


class Symmetric(nn.Module):
    """A parametrization of the user's own."""

    def forward(self, weight: Tensor) -> Tensor:
        """The upper triangle and its mirror image."""
        upper = weight.triu()
        return upper + upper.triu(1).mT


def _pruned() -> nn.Module:
    model = MLP(WIDTH)
    for layer in model.layers:
        if isinstance(layer, nn.Linear):
            prune.l1_unstructured(layer, "weight", 0.5)
    return model


class CalledWith(nn.Module):
    """A model called with weights that are not its own: a mixture of two sets, as in weight averaging."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.other = MLP(WIDTH), MLP(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32)."""
        other = dict(self.other.named_parameters())
        mixed = {name: 0.75 * p + 0.25 * other[name] for name, p in self.model.named_parameters()}
        result: Tensor = functional_call(self.model, mixed, (x,))
        return result


class Ensemble(nn.Module):
    """Several models as one call: their weights stacked."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        models = [MLP(WIDTH) for _ in range(count)]
        stacked, _ = stack_module_state(models)
        self.names = list(stacked)
        self.weights = nn.ParameterList(p.detach() for p in stacked.values())
        self._skeleton = [models[0].requires_grad_(False)]  # in a list: its own weights are nobody's parameters

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32); returns (models, rows, 32)."""

        def one(weights: dict[str, Tensor]) -> Tensor:
            return functional_call(self._skeleton[0], weights, (x,))  # type: ignore[no-any-return]

        return vmap(one)(dict(zip(self.names, self.weights, strict=True)))


class PerSampleGradients(nn.Module):
    """The gradient of each row's loss, as differential privacy wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = MLP(WIDTH)

    def forward(self, x: Tensor) -> list[Tensor]:
        """``x``: (rows, 32)."""

        def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
            return functional_call(self.model, weights, (row[None],)).square().mean()  # type: ignore[no-any-return]

        weights = {name: p.detach() for name, p in self.model.named_parameters()}
        return list(vmap(grad(loss), (None, 0))(weights, x).values())


class Derivatives(nn.Module):
    """A Jacobian by reverse mode and a directional derivative by forward mode."""

    def __init__(self) -> None:
        super().__init__()
        self.model = MLP(WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x``: (rows, 32)."""
        return jacrev(self.model)(x[0]), jvp(self.model, (x,), (torch.ones_like(x),))[1]


@cache
def _operations() -> tuple[Any, Any]:
    """A custom operation with a gradient, and one that writes to its argument."""

    @torch.library.custom_op("paramgraph_corpus::scaled_swish", mutates_args=())
    def scaled_swish(x: Tensor, scale: float) -> Tensor:
        return x * torch.sigmoid(x) * scale

    @scaled_swish.register_fake
    def _(x: Tensor, scale: float) -> Tensor:
        return torch.empty_like(x)

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return gradient * ctx.scale * gate * (1 + x * (1 - gate)), None

    def setup(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.scale = inputs[1]

    scaled_swish.register_autograd(backward, setup_context=setup)

    @torch.library.custom_op("paramgraph_corpus::count_positive_", mutates_args=("counts",))
    def count_positive_(x: Tensor, counts: Tensor) -> None:
        counts.add_((x > 0).sum(0))

    return scaled_swish, count_positive_


class WithOperation(nn.Module):
    """A layer between two that are a custom operation of the user's."""

    def __init__(self, count: bool = False) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.register_buffer("counts", torch.zeros(64) if count else None)
        self.swish, self.count = _operations()

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32)."""
        hidden = self.swish(self.before(x), 1.5)
        if self.counts is not None:
            self.count(hidden, self.counts)
        result: Tensor = self.after(hidden)
        return result


def _rewritten() -> nn.Module:
    """A model that a pass of the user's has changed with torch.fx: every GELU is a ReLU, twice."""
    traced = torch.fx.symbolic_trace(MLP(WIDTH))
    for node in list(traced.graph.nodes):
        if node.op == "call_module" and isinstance(traced.get_submodule(str(node.target)), nn.GELU):
            with traced.graph.inserting_after(node):
                new = traced.graph.call_function(torch.relu, (node.args[0],))
                node.replace_all_uses_with(new)
                with traced.graph.inserting_after(new):
                    doubled = traced.graph.call_function(torch.mul, (new, 2.0))
                for user in [user for user in new.users if user is not doubled]:
                    user.replace_input_with(new, doubled)
            traced.graph.erase_node(node)
    traced.graph.lint()
    traced.recompile()
    return traced


class Flexible(nn.Module):
    """FlexAttention with a block mask: causal within a window."""

    def __init__(self, tokens: int = 256, window: int = 64) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.tokens, self.window = tokens, window
        self._mask: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (batch, tokens, 64)."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        window = self.window

        def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query >= key) & (query - key < window)

        if self._mask is None:  # made once: no launch may copy it
            self._mask = create_block_mask(seen, None, None, self.tokens, self.tokens, device=x.device)
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        attended: Any = flex_attention(q, k, v, block_mask=self._mask)
        result: Tensor = attended.transpose(1, 2).flatten(2)
        return result


def _inductor_pass(model: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    """A step in which Inductor runs a pass of the user's over the FX graph before it generates code."""

    def relu_for_gelu(graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.erf.default):
            node.target = torch.ops.aten.tanh.default

    with torch._inductor.config.patch(post_grad_custom_post_pass=_Pass(relu_for_gelu)):
        return finish(model, mean_square(model(*inputs), inputs), optimizer)


class _Pass:
    """What Inductor wants of a pass: a call, and something that names it in its cache."""

    def __init__(self, change: Callable[[torch.fx.Graph], None]) -> None:
        self._change = change

    def __call__(self, graph: torch.fx.Graph) -> None:
        self._change(graph)

    def uuid(self) -> str:
        """A name that changes with the pass."""
        return "tanh for erf, 1"


@torch.no_grad()
def _merged_in_turn(model: Any, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    """Each adapter merged into its layer in place, called, and the weights put back."""
    layers = [layer for layer in model.modules() if isinstance(layer, LoRALinear)]
    before = [layer.base.weight.clone() for layer in layers]
    found = [model(*inputs)]
    for layer in layers:
        layer.base.weight += 2.0 * layer.up @ layer.down
        layer.up.mul_(-1.0)
    found.append(model(*inputs))
    for layer, weight in zip(layers, before, strict=True):
        layer.base.weight.copy_(weight)
        layer.up.mul_(-1.0)
    return found


def _swapped_in_turn(model: Any, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    """Weights that lie elsewhere in each call, as where they are gathered: on new memory, with other strides."""
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    before = [layer.weight.data for layer in linear]
    found = []
    for arrange in (Tensor.clone, lambda w: w.t().contiguous().t(), lambda w: w):
        for layer, weight in zip(linear, before, strict=True):
            layer.weight.data = arrange(weight) * 1.5
        found += finish(model, mean_square(model(*inputs), inputs), optimizer)
        for layer, weight in zip(linear, before, strict=True):
            layer.weight.data = weight
    return found


class CachedWeights(nn.Module):
    """A parametrized layer that is used twice, its weight computed once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32)."""
        with parametrize.cached():
            result: Tensor = self.layer(self.layer(x).tanh())
        return result


def cases() -> list[Case]:
    """The family of changed models."""
    rows, step, call = normal((16, WIDTH)), training(), inference()

    def trained(make: Callable[[], nn.Module], optimizer: Any = sgd) -> dict[str, Any]:
        return {
            "build": built(make, train=True), "inputs": rows, "step": step, "training": True, "optimizer": optimizer
        }  # fmt: skip

    def called(make: Callable[[], nn.Module]) -> dict[str, Any]:
        return {"build": built(make), "inputs": rows, "step": call}

    return [
        Case("int8 weight-only", **called(changed(Int8Linear)), graphed=True),
        Case("int4 weight-only in groups", **called(changed(Int4Linear)), graphed=True),
        Case("lora training", **trained(changed(LoRALinear), adamw_fused), graphed=True),
        Case("lora training with dropout", **trained(changed(lambda x: LoRALinear(x, p=0.1)), adamw_fused)),
        Case("lora on int8 inference", **called(changed(lambda x: _beside(x))), graphed=True),
        Case("weight norm training", **trained(changed(parametrizations.weight_norm))),
        Case("spectral norm training", **trained(changed(parametrizations.spectral_norm))),
        Case("orthogonal weights training", **trained(_orthogonal)),
        Case("a parametrization of one's own training", **trained(_symmetric)),
        Case("parametrization cached training", **trained(CachedWeights)),
        Case("lora merged in turn", built(changed(LoRALinear)), rows, _merged_in_turn),
        Case("weights swapped in turn training", built(MLP, train=True), rows, _swapped_in_turn, training=True),
        Case("pruned training", **trained(_pruned)),
        Case("pruned and made permanent", **called(_permanent), graphed=True),
        Case("functional_call with mixed weights training", **trained(CalledWith)),
        Case("stacked ensemble training", **trained(Ensemble)),
        Case("per-sample gradients", **called(PerSampleGradients)),
        Case("jacobian and directional derivative", **called(Derivatives)),
        Case("custom operation training", **trained(WithOperation)),
        Case("custom operation that writes", **called(lambda: WithOperation(count=True))),
        Case("rewritten by torch.fx training", **trained(_rewritten)),
        Case("pass in inductor training", built(MLP, train=True), rows, _inductor_pass, training=True, needs=("cuda",)),
        Case(
            "flex attention with a block mask",
            built(Flexible),
            normal((2, 256, 64)),
            call,
            needs=("cuda",),
        ),
        Case(
            "flex attention with a block mask training",
            built(Flexible, train=True),
            normal((2, 256, 64)),
            step,
            training=True,
            needs=("cuda",),
        ),
    ]


def _beside(linear: nn.Linear) -> nn.Module:
    adapted = LoRALinear(linear)
    adapted.base = Int8Linear(linear)  # type: ignore[assignment]
    return adapted


def _orthogonal() -> nn.Module:
    small = nn.Linear(6, 6)  # each column is several kernels
    return nn.Sequential(nn.Linear(WIDTH, 6), parametrizations.orthogonal(small), nn.Linear(6, WIDTH))


def _symmetric() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    for layer in (model[0], model[2]):
        parametrize.register_parametrization(layer, "weight", Symmetric())
    return model


def _permanent() -> nn.Module:
    model = _pruned()
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            prune.remove(layer, "weight")
    return model
