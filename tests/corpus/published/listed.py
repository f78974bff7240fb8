"""The list: what each workload is called there, its suite, its batch size, and how it is built here."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.corpus.case import integers, joined, normal, tensors
from tests.corpus.published import suite
from tests.corpus.published.rewritten import DLRM, Autoencoder, SpeechDecoder, discriminator

Inputs = dict[str, Tensor] | tuple[Tensor, ...]


@dataclass(frozen=True)
class Built:
    """A model and what it is called with; ``loss(output, inputs)`` is what training derives."""

    model: nn.Module
    inputs: Callable[[int], Inputs]
    loss: Callable[[Any, Inputs], Tensor]
    layers: tuple[int, int] | None = None  # how many were made, of how many


Build = Callable[["Listed", torch.device, int | None], Built]


@dataclass(frozen=True)
class Listed:
    """One workload of the list; ``build`` is None where nothing here has it, and ``absent`` says what would."""

    short: str
    model: str
    suite: str
    training: bool
    batch: int
    build: Build | None = None
    needs: str = ""  # a module, or a class of transformers, that may be missing
    note: str = ""

    @property
    def absent(self) -> str:
        """What keeps it from being measured here, or "".

        >>> Listed("ST", "speech_transformer", "torchbench", False, 1).absent
        'torchbench is not installed'
        """
        if self.build is None:
            return self.note or f"{self.suite} is not installed"
        module, _, name = self.needs.partition(":")
        if module and importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
        if name and not hasattr(importlib.import_module(module), name):
            return f"gone from {module} {importlib.import_module(module).__version__}"
        return ""


def _transformers(length: int, depth: Sequence[str], **settings: Any) -> Build:
    """A model of the suite with its library's default configuration, as there; ``depth``: its numbers of layers."""

    def build(listed: Listed, device: torch.device, layers: int | None) -> Built:
        cls = getattr(importlib.import_module("transformers"), MODELS.get(listed.model, listed.model))
        config = cls.config_class(**settings)
        whole = sum(getattr(config, name) for name in depth)
        for name in depth if layers else ():
            setattr(config, name, min(layers or 0, getattr(config, name)))
        torch.manual_seed(0)
        with device:
            model = cls(config).to(device)  # XLNet makes some of its parameters on the host, whatever is current
        ids = integers(config.vocab_size, (listed.batch, length), low=5)

        def inputs(seed: int) -> Inputs:
            (x,) = ids(seed, device)
            given = {"input_ids": x}
            if "decoder_input_ids" in inspect.signature(cls.forward).parameters:
                given["decoder_input_ids"] = x
            return given | ({"labels": x} if listed.training else {})

        made = sum(getattr(config, name) for name in depth)
        return Built(model, inputs, lambda output, _: output.loss, (made, whole))

    return build


def _images(module: str, name: str, size: int = 224) -> Build:
    def build(listed: Listed, device: torch.device, _: int | None) -> Built:
        torch.manual_seed(0)
        library: Any = importlib.import_module(module)
        with device:
            model = library.create_model(name, pretrained=False) if module == "timm" else getattr(library, name)()
        return Built(model, _given(normal((listed.batch, 3, size, size)), device), _mean_square)

    return build


def _mask_rcnn(listed: Listed, device: torch.device, _: int | None) -> Built:
    detection: Any = importlib.import_module("torchvision.models.detection")
    torch.manual_seed(0)
    with device:
        model = detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)
    images = normal((3, 480, 640))
    return Built(model, lambda seed: {"image": images(seed, device)[0]}, _mean_square)


def _dlrm(listed: Listed, device: torch.device, _: int | None) -> Built:
    torch.manual_seed(0)
    with device:
        model = DLRM()
    parts = joined(normal((listed.batch, 512)), integers(1_000_000, (listed.batch, 8, 100)))
    return Built(model, _given(parts, device), _mean_square)


def _dcgan(listed: Listed, device: torch.device, _: int | None) -> Built:
    torch.manual_seed(0)
    with device:
        model = discriminator()

    def real(output: Tensor, _: Inputs) -> Tensor:
        return F.binary_cross_entropy_with_logits(output.float(), torch.ones_like(output, dtype=torch.float32))

    return Built(model, _given(normal((listed.batch, 3, 64, 64)), device), real)


def _recommender(listed: Listed, device: torch.device, _: int | None) -> Built:
    torch.manual_seed(0)
    with device:
        model = Autoencoder()

    def inputs(seed: int) -> Inputs:  # made on the device: there are gigabytes of them
        generator = torch.Generator(device).manual_seed(seed)
        return (torch.randn(listed.batch, model.items, generator=generator, device=device),)

    def rated(output: Tensor, given: Inputs) -> Tensor:
        assert isinstance(given, tuple)
        mask = given[0] != 0
        return (output.float() - given[0]).mul(mask).square().sum() / mask.sum()

    return Built(model, inputs, rated)


def _of_the_suite(make: Callable[..., Any], whole: int | None = None) -> Build:
    """TorchBench's own code; ``whole``: how many layers there are to leave some out of."""

    def build(listed: Listed, device: torch.device, layers: int | None) -> Built:
        torch.manual_seed(0)
        made = None if whole is None else (min(layers or whole, whole), whole)
        with device:
            model, inputs = make(listed.batch, *(made[:1] if made else ()))
        return Built(model.to(device), lambda seed: tuple(x.to(device) for x in inputs(seed)), _summed, made)

    return build


def _summed(output: Any, _: Inputs) -> Tensor:
    """The suite's loss of any output."""
    parts = [x.float().sum() / x.numel() for x in tensors(output) if x.is_floating_point()]
    return torch.stack(parts).sum() / len(parts)


def _speech(listed: Listed, device: torch.device, layers: int | None) -> Built:
    torch.manual_seed(0)
    made = min(layers or 6, 6)
    with device:
        model = SpeechDecoder(made)
    words = _given(integers(model.words, (listed.batch, 128), low=4), device)

    def loss(output: Tensor, given: Inputs) -> Tensor:
        assert isinstance(given, tuple)
        return F.cross_entropy(output.flatten(0, 1), given[0].flatten())

    return Built(model, words, loss, (made, 6))


def _given(maker: Callable[[int, torch.device], list[Tensor]], device: torch.device) -> Callable[[int], Inputs]:
    return lambda seed: tuple(maker(seed, device))


def _mean_square(output: Any, _: Inputs) -> Tensor:
    first: Tensor = tensors(output)[0]
    return first.float().square().mean()


MODELS = {"DistillGPT2": "GPT2LMHeadModel"}
_HF, _TB, _TV = "huggingface", "torchbench", "torchvision"
_BENCH = "torchbenchmark"  # the suite's sources
_XLNET = _transformers(512, ("n_layer",), use_mems_eval=False, use_mems_train=False)
_MT5 = _transformers(128, ("num_layers", "num_decoder_layers"), use_cache=False)
_BART = _transformers(128, ("encoder_layers", "decoder_layers"), use_cache=False)
_PLAIN = ("num_hidden_layers",)
_AGAIN = "written again"  # from what the suite says of it
WHOLE = "float32"  # autocast's numbers cannot hold what its library fills its mask with

LISTED = (
    Listed("XLNET-I", "XLNetLMHeadModel", _HF, False, 1, _XLNET, "transformers"),
    Listed("MMC", "torch_multimodal_clip", _TB, False, 1, _of_the_suite(suite.clip), "torchmultimodal"),
    Listed("ST", "speech_transformer", _TB, False, 1, _of_the_suite(suite.speech_transformer, 6), _BENCH),
    Listed("DALLE2", "DALLE2_pytorch", _TB, False, 1, note="fetches the weights of OpenAI's CLIP"),
    Listed("EOS", "pyhpc_equation_of_state", _TB, False, 1 << 20, _of_the_suite(suite.equation_of_state), _BENCH),
    Listed(
        "TKE",
        "pyhpc_turbulent_kinetic_energy",
        _TB,
        False,
        1 << 20,
        _of_the_suite(suite.turbulent_kinetic_energy),
        _BENCH,
    ),
    Listed("VM", "vision_maskrcnn", _TB, False, 1, _mask_rcnn, _TV, "slow"),
    Listed("DR-I", "nvidia_deeprecommender", _TB, False, 8192, _recommender, note=_AGAIN),
    Listed("XLNET-T", "XLNetLMHeadModel", _HF, True, 8, _XLNET, "transformers"),
    Listed("MTCG-T", "MT5ForConditionalGeneration", _HF, True, 16, _MT5, "transformers"),
    Listed("DLRM", "dlrm", _TB, False, 2048, _dlrm, note=_AGAIN),
    Listed("MBERT", "MobileBertForQuestionAnswering", _HF, False, 128, _transformers(128, _PLAIN), "transformers"),
    Listed("TEFD", "timm_efficientdet", _TB, True, 1, _of_the_suite(suite.efficientdet, 4), "effdet"),
    Listed("ALNET", "alexnet", _TB, False, 2, _images("torchvision.models", "alexnet"), _TV),
    Listed("DCGAN", "dcgan", _TB, True, 32, _dcgan, note=_AGAIN),
    Listed("BERT", "BERT_pytorch", _TB, True, 16, _of_the_suite(suite.bert, 12), _BENCH),
    Listed("LCNET", "lcnet_050", "timm", False, 256, _images("timm", "lcnet_050"), "timm"),
    Listed("DR-T", "nvidia_deeprecommender", _TB, True, 256, _recommender, note=_AGAIN),
    Listed("DNET", "densenet121", _TB, False, 64, _images("torchvision.models", "densenet121"), _TV),
    Listed("MTCG-I", "MT5ForConditionalGeneration", _HF, False, 16, _MT5, "transformers"),
    Listed("DBV2", "DebertaV2ForQuestionAnswering", _HF, False, 1, _transformers(512, _PLAIN), "transformers"),
    Listed("BSCG", "BlenderbotSmallForConditionalGeneration", _HF, True, 64, _BART, "transformers"),
    Listed("DGPT2", "DistillGPT2", _HF, True, 16, _transformers(512, ("n_layer",), n_layer=6), "transformers"),
    Listed("STCLM", "Speech2Text2ForCausalLM", _HF, True, 256, _speech, note=_AGAIN),
    Listed("DMLM", "DebertaForMaskedLM", _HF, True, 8, _transformers(512, _PLAIN), "transformers", WHOLE),
)
