"""Image models of torchvision and timm, with random weights and small images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.corpus.case import (
    Case,
    adamw_fused,
    built,
    finish,
    inference,
    integers,
    joined,
    normal,
    sgd,
    tensors,
    training,
)

CLASSES, BATCH = 10, 4


def _labels(output: Any, inputs: list[Tensor]) -> Tensor:
    return F.cross_entropy(output.float(), inputs[1])


class _FirstInput(nn.Module):
    """A classifier that is given its labels too and does not look at them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, *_: Tensor) -> Any:
        """Classify ``x``."""
        return self.model(x)


def _case(
    name: str,
    make: Callable[[], nn.Module],
    package: str,
    *,
    size: int = 64,
    train: bool = False,
    optimizer: Any = None,
    dtype: torch.dtype | None = None,
) -> Case:
    images = normal((BATCH, 3, size, size), dtype=dtype or torch.float32)
    step = training(loss=_labels) if train else inference()
    return Case(
        f"{name} {'training' if train else 'inference'}",
        built((lambda: _FirstInput(make())) if train else make, train=train, dtype=dtype),
        joined(images, integers(CLASSES, (BATCH,))) if train else images,
        step,
        training=train,
        optimizer=optimizer,
        family="vision",
        needs=(package,),
    )


def _torchvision(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        model: nn.Module = getattr(torchvision.models, name)(weights=None, num_classes=CLASSES, **settings)
        return model

    return make


def _timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=CLASSES, **settings)
        return model

    return make


def _maskrcnn() -> nn.Module:
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    model: nn.Module = MaskRCNN(
        backbone,
        num_classes=5,
        min_size=64,
        max_size=64,
        rpn_pre_nms_top_n_test=50,
        rpn_post_nms_top_n_test=20,
        box_detections_per_img=5,
    )
    return model


def _detect(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    with torch.no_grad():
        return tensors(model(list(inputs[0])))


class _UNet(nn.Module):
    """Two levels down and up with skip connections and group norms."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inward = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Sequential(
            nn.GroupNorm(4, 2 * width), nn.SiLU(), nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        )
        self.up = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.outward = nn.Conv2d(2 * width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (batch, 3, even, even); the same shape comes out."""
        a = F.silu(self.inward(x))
        b = F.silu(self.down(a))
        result: Tensor = self.outward(torch.cat((a, self.up(b + self.middle(b))), 1))
        return result


def _channels_last(model: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    x, labels = inputs
    return finish(model, _labels(model(x.contiguous(memory_format=torch.channels_last)), [x, labels]), optimizer)


def cases() -> list[Case]:
    """The vision family."""
    tv, timm = "torchvision", "timm"
    swin = {"img_size": 64, "window_size": 4, "embed_dim": 32, "depths": (1, 1), "num_heads": (2, 4)}
    vit = {"img_size": 64, "patch_size": 16, "depth": 2, "embed_dim": 64, "num_heads": 4}
    last = _case("resnet18 channels-last", _torchvision("resnet18"), tv, train=True)
    return [
        _case("alexnet", _torchvision("alexnet"), tv),
        _case("alexnet", _torchvision("alexnet"), tv, train=True, optimizer=sgd),
        _case("densenet121", _torchvision("densenet121"), tv),
        _case("resnet18", _torchvision("resnet18"), tv),
        _case("resnet18", _torchvision("resnet18"), tv, train=True, optimizer=sgd),
        Case(last.name, last.build, last.inputs, _channels_last, training=True, family="vision", needs=(tv,)),
        _case("mobilenet-v3-small", _torchvision("mobilenet_v3_small"), tv, train=True),
        _case("efficientnet-b0", _torchvision("efficientnet_b0"), tv),
        _case("shufflenet-v2", _torchvision("shufflenet_v2_x0_5"), tv),
        _case("squeezenet", _torchvision("squeezenet1_1"), tv, dtype=torch.bfloat16),
        Case(
            "vision-maskrcnn inference",
            built(_maskrcnn),
            normal((1, 3, 64, 64)),
            _detect,
            family="vision",
            needs=(tv,),
            note="number and size of the boxes depend on the image: graph breaks",
        ),
        _case("lcnet-050", _timm("lcnet_050"), timm),
        _case("lcnet-050", _timm("lcnet_050"), timm, train=True, optimizer=sgd),
        _case("timm vit", _timm("vit_tiny_patch16_224", **vit), timm, train=True, optimizer=adamw_fused),
        _case("timm swin", _timm("swin_tiny_patch4_window7_224", **swin), timm),
        _case("timm convnext", _timm("convnext_atto", depths=(1, 1, 1, 1)), timm, train=True),
        _case("timm mixer", _timm("mixer_s16_224", img_size=64), timm),
        Case(
            "unet training",
            built(_UNet, train=True),
            normal((2, 3, 16, 16)),
            training(),
            training=True,
            optimizer=adamw_fused,
            family="vision",
        ),
    ]
