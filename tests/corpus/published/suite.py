"""Models of TorchBench from its own sources, where an installed copy of them is found; inputs have the suite's sizes.

Only the files that define a model are imported: the package itself wants all that the suite needs, and data sets.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

WORDS = 20_005  # of the suite's random corpus, and five that are marks
CHARACTERS, FRAMES, SAID = 4233, 200, 20  # of speech: the dictionary, four joined frames of 80 numbers, characters
Inputs = tuple[Tensor, ...]


def part(model: str, module: str) -> Any:
    """A module of one model of the suite; only its folder becomes importable."""
    spec = importlib.util.find_spec("torchbenchmark")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = str(Path(next(iter(spec.submodule_search_locations))) / "models" / model)
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(module)


class Applied(nn.Module):
    """A function as a model."""

    def __init__(self, fn: Callable[..., Any], written: Sequence[int] = ()) -> None:
        super().__init__()
        self.fn, self.written = fn, frozenset(written)

    def forward(self, *given: Tensor) -> Any:
        """What the function makes of these, and of copies of those that it writes."""
        return self.fn(*(x.clone() if k in self.written else x for k, x in enumerate(given)))


def _grid(size: int) -> tuple[int, int, int]:
    side = size ** (1 / 3)
    return math.ceil(2 * side), math.ceil(2 * side), math.ceil(0.25 * side)


def equation_of_state(batch: int) -> tuple[nn.Module, Callable[[int], Inputs]]:
    """Of sea water, from salinity, temperature and pressure."""
    shape = _grid(batch)

    def inputs(seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        salinity, heat = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        pressure = torch.rand(1, 1, shape[-1], generator=generator, dtype=torch.float64)
        return salinity * 10 + 1e-2, heat * 32 - 12, pressure * 1000

    return Applied(part("pyhpc_equation_of_state", "eos_pytorch").gsw_dHdT), inputs


def turbulent_kinetic_energy(batch: int) -> tuple[nn.Module, Callable[[int], Inputs]]:
    """One step of its integration."""
    x, y, z = shape = _grid(batch)

    def inputs(seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=generator, dtype=torch.float64)

        masks = [(torch.rand(shape, generator=generator) < 0.8).double() for _ in range(3)]
        lines = [normal(n) for n in (x, x, y, y, z, z, y, y)]
        depth = torch.randint(0, z, (x, y), generator=generator)
        velocities, energies = [normal(*shape, 3) for _ in range(3)], [normal(*shape, 3) for _ in range(2)]
        return (*velocities, *masks, *lines, depth, *(normal(*shape) for _ in range(3)), normal(x, y), *energies)

    step = part("pyhpc_turbulent_kinetic_energy", "tke_pytorch").integrate_tke
    return Applied(step, written=(19, 20)), inputs


def bert(batch: int, layers: int) -> tuple[nn.Module, Callable[[int], Inputs]]:
    """Its two heads included, 128 words a row."""
    made = part("BERT_pytorch", "bert_pytorch.model")
    model = made.BERTLM(made.BERT(WORDS, hidden=768, n_layers=layers, attn_heads=12), WORDS)

    def inputs(seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        words = torch.randint(5, WORDS, (batch, 128), generator=generator)
        return words, torch.arange(128).expand(batch, -1) // 64 + 1

    return model, inputs


def speech_transformer(batch: int, layers: int) -> tuple[nn.Module, Callable[[int], Inputs]]:
    """The whole of it in one pass, as in training, without a loss."""
    folder, package = "speech_transformer", "speech_transformer.transformer"
    sizes = {"n_layers": layers, "n_head": 8, "d_k": 64, "d_v": 64, "d_model": 512, "d_inner": 2048}
    encoder = part(folder, f"{package}.encoder").Encoder(320, **sizes)
    decoder = part(folder, f"{package}.decoder").Decoder(2, 3, CHARACTERS, 512, **sizes)
    model = part(folder, f"{package}.transformer").Transformer(encoder, decoder)

    def inputs(seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        heard = torch.randn(batch, FRAMES, 320, generator=generator)
        said = torch.randint(4, CHARACTERS, (batch, SAID), generator=generator)
        return heard, torch.full((batch,), FRAMES, dtype=torch.int32), said

    return model, inputs


def clip(batch: int) -> tuple[nn.Module, Callable[[int], Inputs]]:
    """Torchmultimodal's, with 32 texts beside each batch of images."""
    model = importlib.import_module("torchmultimodal.models.clip.model").clip_vit_b32()

    def inputs(seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(batch, 3, 224, 224, generator=generator)
        return images, torch.randint(1, 49408, (32, 77), generator=generator)

    return model, inputs


class Detector(nn.Module):
    """Effdet's, with its loss: what the anchors are to find comes level by level."""

    def __init__(self, layers: int, name: str = "tf_efficientdet_d1") -> None:
        super().__init__()
        effdet: Any = importlib.import_module("effdet")
        config = effdet.get_efficientdet_config(name)
        config.fpn_cell_repeats, config.box_class_repeats = (
            min(layers, config[kind]) for kind in ("fpn_cell_repeats", "box_class_repeats")
        )
        self.bench = effdet.factory.create_model_from_config(config, bench_task="train", pretrained_backbone=False)
        self.size, self.levels = self.bench.config.image_size[0], self.bench.num_levels

    def forward(self, x: Tensor, positives: Tensor, *targets: Tensor) -> Tensor:
        """``targets``: of each level the classes, then of each the boxes."""
        given: dict[str, Any] = {"label_num_positives": positives}
        for k in range(self.levels):
            given[f"label_cls_{k}"], given[f"label_bbox_{k}"] = targets[k], targets[self.levels + k]
        loss: Tensor = self.bench(x, given)["loss"]
        return loss


def efficientdet(batch: int, layers: int) -> tuple[nn.Module, Callable[[int], Inputs]]:
    """Of size D1, 640 x 640; ``layers``: so many of its four pyramids, and of its heads' three."""
    model = Detector(layers)
    sides = [model.size // (8 << k) for k in range(model.levels)]

    def inputs(seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(batch, 3, model.size, model.size, generator=generator)
        classes = [torch.randint(-2, 90, (batch, n, n, 9), generator=generator) for n in sides]
        boxes = [torch.randn(batch, n, n, 36, generator=generator) for n in sides]
        return (images, torch.full((batch,), 50.0), *classes, *boxes)

    return model, inputs
