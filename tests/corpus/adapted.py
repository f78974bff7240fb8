"""Models that libraries have changed: torchao quantizes, peft adapts; each needs its library, some a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from tests.corpus.case import Case, adamw_fused, built, inference, normal, training
from tests.corpus.training import MLP

WIDTH = 64


def _quantized(config: Callable[[Any], Any], dtype: torch.dtype = torch.bfloat16) -> Any:
    """A builder whose model torchao has quantized; ``config`` gets its module of configurations."""

    def build(device: torch.device) -> nn.Module:
        from torchao import quantization

        torch.manual_seed(0)
        model = MLP(WIDTH).to(device, dtype).eval()
        quantization.quantize_(model, config(quantization))
        return model

    return build


def _adapted(device: torch.device, **config: Any) -> nn.Module:
    import peft

    torch.manual_seed(0)
    names = ["layers.0", "layers.3", "layers.5"]
    model = peft.get_peft_model(MLP(WIDTH), peft.LoraConfig(target_modules=names, **config))
    return cast("nn.Module", model.to(device))


def _lora(**config: Any) -> Any:
    return lambda device: _adapted(device, r=4, **config).train()


def _merged(device: torch.device) -> nn.Module:
    model: Any = _adapted(device, r=4)
    return cast("nn.Module", model.merge_and_unload().eval())


class Switched(nn.Module):
    """A model with two adapters, of which each call uses another."""

    def __init__(self) -> None:
        super().__init__()
        model: Any = _adapted(torch.device("cpu"), r=4)
        import peft

        model.add_adapter("other", peft.LoraConfig(r=8, target_modules=["layers.0", "layers.3"]))
        self.model: nn.Module = model

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 64)."""
        result: Tensor = self.model(x)
        return result


def _in_turn(model: Any, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    inner = getattr(model, "_orig_mod", model).model
    found = []
    with torch.no_grad():
        for name in ("default", "other"):
            inner.set_adapter(name)
            found.append(model(*inputs))
    return found


def cases() -> list[Case]:
    """The family of models that libraries have changed."""
    rows, halves = normal((16, WIDTH)), normal((16, WIDTH), dtype=torch.bfloat16)
    call, step = inference(), training()
    ao, peft = ("torchao",), ("peft",)
    quantized: list[tuple[str, Callable[[Any], Any], tuple[str, ...]]] = [
        ("int8 weight-only", lambda q: q.Int8WeightOnlyConfig(), ao),
        ("int8 dynamic", lambda q: q.Int8DynamicActivationInt8WeightConfig(), ao),
        ("intx weight-only", lambda q: q.IntxWeightOnlyConfig(), ao),
        ("int4 weight-only", lambda q: q.Int4WeightOnlyConfig(), ("cuda", *ao)),
        ("float8 weight-only", lambda q: q.Float8WeightOnlyConfig(), ("cuda", *ao)),
        ("float8 dynamic", lambda q: q.Float8DynamicActivationFloat8WeightConfig(), ("cuda", *ao)),
    ]
    tuned: list[tuple[str, dict[str, Any]]] = [
        ("lora training", {}),
        ("lora training with dropout", {"lora_dropout": 0.1}),
        ("dora training", {"use_dora": True}),
    ]
    found = [
        *(Case(f"torchao {name}", _quantized(config), halves, call, needs=needs) for name, config, needs in quantized),
        *(
            Case(f"peft {name}", _lora(**how), rows, step, training=True, optimizer=adamw_fused, needs=peft)
            for name, how in tuned
        ),
        Case("peft lora merged", _merged, rows, call, needs=peft),
        Case("peft two adapters in turn", built(Switched), rows, _in_turn, needs=peft),
    ]
    return [replace(case, needs_no_gpu="cuda" not in case.needs) for case in found]
