"""Which architectures transformers, timm and torchvision have, and a small model of each with what it is called with.

A configuration is made small by the names of its settings: what does not fit together then is no model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor, nn

VOCABULARY, BATCH, LENGTH = 512, 2, 16
LITTLE = ("test_", "nano", "tiny", "atto", "pico", "femto", "xxs", "mini", "050", "small", "_b0", "_t", "_s", "18")
Made = tuple[nn.Module, dict[str, Tensor]]  # a model on the CPU, and what its forward is called with
# What a setting becomes whose name has one of these parts; the first that fits counts.
_SIZES: tuple[tuple[tuple[str, ...], Callable[[int], int]], ...] = (
    (("vocab_size",), lambda n: min(n, VOCABULARY)),
    (("_token_id", "_token_index"), lambda n: n % VOCABULARY),
    (("image_size", "input_size"), lambda n: min(n, 64)),
    (("patch", "stride", "kernel", "channels", "labels", "window", "groups", "types", "factor"), lambda n: n),
    (("experts_per", "topk", "top_k"), lambda n: min(n, 2)),
    (("experts", "key_value_heads", "kv_heads"), lambda n: min(n, 2)),
    (("heads", "n_head"), lambda n: min(n, 4)),
    (("layers", "n_layer", "depth", "blocks"), lambda n: min(n, 2)),
    (("head_dim", "d_kv", "head_size"), lambda n: min(n, 16)),
    (("intermediate", "ffn", "d_ff", "inner", "mlp"), lambda n: min(n, 128)),
    (("hidden", "d_model", "n_embd", "embed", "dim", "width", "size"), lambda n: min(n, 64)),
    (("position",), lambda n: min(n, 256)),
)


def _transformers_names() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def _transformers(kind: str) -> Made:
    import transformers

    config = _shrunk(transformers.CONFIG_MAPPING[kind])
    model = transformers.AutoModel.from_config(config)
    asked = inspect.signature(model.forward).parameters
    given = {name: make(config) for name, make in _INPUTS.items() if name in asked}
    without = ((), ("pixel_values",), ("input_ids", "decoder_input_ids"))
    return cast("nn.Module", model), _accepted(model, [{k: v for k, v in given.items() if k not in w} for w in without])


def _accepted(model: nn.Module, choices: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The first inputs that a model takes; the first of all where it takes none."""
    for given in choices:
        with suppress(Exception), torch.no_grad():  # what a model raises of its inputs is its own affair
            model.eval()(**given)
            return given
    return choices[0]


def _shrunk(kind: Any) -> Any:
    return kind(**_settings(kind().to_dict()))


def _settings(known: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in known.items():
        if isinstance(value, dict) and "model_type" in value:
            found[name] = _settings(value) | {"model_type": value["model_type"]}
        elif type(value) is int and value > 0:
            found[name] = next((size(value) for parts, size in _SIZES if any(p in name for p in parts)), value)
    return found


def _setting(config: Any, *names: str, default: int) -> int:
    parts = [config, *(getattr(config, each) for each in getattr(config, "sub_configs", {}) if hasattr(config, each))]
    return next((v for name in names for part in parts if isinstance(v := getattr(part, name, None), int)), default)


def _ids(config: Any) -> Tensor:
    return torch.full((BATCH, LENGTH), min(VOCABULARY, _setting(config, "vocab_size", default=VOCABULARY)) - 1)


def _pixels(config: Any) -> Tensor:
    side = _setting(config, "image_size", default=64)
    return torch.ones(BATCH, _setting(config, "num_channels", default=3), side, side)


def _features(config: Any) -> Tensor:
    frames = 2 * _setting(config, "max_source_positions", default=64)
    return torch.ones(BATCH, _setting(config, "num_mel_bins", "feature_size", default=80), frames)


_INPUTS: dict[str, Callable[[Any], Tensor]] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "pixel_values": _pixels,
    "input_values": lambda config: torch.ones(BATCH, 4000),
    "input_features": _features,
}


def _timm_names() -> list[str]:
    from timm.models import _registry

    return sorted(_least(each) for each in _registry._module_to_models.values() if each)


def _least(of: Any) -> str:
    """The smallest of a family, going by names."""
    ranks = {name: next((n for n, part in enumerate(LITTLE) if part in name), len(LITTLE)) for name in of}
    return str(min(of, key=lambda name: (ranks[name], len(name), name)))


def _timm(name: str) -> Made:
    import timm

    model: Any = timm.create_model(name, num_classes=10)
    channels, *size = model.default_cfg["input_size"]
    return model, _images(model, channels, size)


def _images(model: nn.Module, channels: int, size: list[int]) -> dict[str, Tensor]:
    """Small images where the model takes such, and otherwise those of the size that it is made for."""
    first = next(iter(inspect.signature(model.forward).parameters))
    sizes = [[min(n, 64) for n in size], size]
    return _accepted(model, [{first: torch.ones(BATCH, channels, *each)} for each in sizes])


def _torchvision_names() -> list[str]:
    import torchvision

    families: dict[str, list[str]] = {}
    for name in torchvision.models.list_models():
        module = torchvision.models.get_model_builder(name).__module__
        if "detection" not in module and "optical_flow" not in module:  # they take lists, and pairs, of images
            families.setdefault(module, []).append(name)
    return sorted(map(_least, families.values()))


def _torchvision(name: str) -> Made:
    import torchvision

    builder = torchvision.models.get_model_builder(name)
    model = torchvision.models.get_model(name, weights=None, **_no_backbone(builder))
    size = [16, 224, 224] if ".video" in builder.__module__ else [224, 224]
    return model, _images(model, 3, size)


def _no_backbone(builder: Any) -> dict[str, None]:
    return {"weights_backbone": None} if "weights_backbone" in inspect.signature(builder).parameters else {}


LIBRARIES: dict[str, tuple[Callable[[], list[str]], Callable[[str], Made]]] = {
    "transformers": (_transformers_names, _transformers),
    "timm": (_timm_names, _timm),
    "torchvision": (_torchvision_names, _torchvision),
}
