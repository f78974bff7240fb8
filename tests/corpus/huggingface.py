"""Models of the transformers library, two layers each, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.corpus.case import (
    Case,
    Inputs,
    adam_capturable,
    adamw_fused,
    built,
    inference,
    integers,
    joined,
    normal,
    training,
)

VOCABULARY, BATCH, LENGTH = 512, 2, 32
IDS = integers(VOCABULARY, (BATCH, LENGTH), low=5)  # the first few are padding and other marks
TWO_IDS = integers(VOCABULARY, (BATCH, LENGTH), (BATCH, LENGTH), low=5)
TEXT, SEQ2SEQ = ("input_ids",), ("input_ids", "decoder_input_ids")
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
LLAMA = BERT | {"num_key_value_heads": 2, "use_cache": False}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 128,
    "use_cache": False,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "use_cache": False,
}
BF16 = torch.bfloat16


def _model(model: str, config: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return made

    return make


QWEN_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
}
DEEPSEEK_EXPERTS = {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
OSS_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 8}


def _case(
    name: str,
    model: str,
    settings: dict[str, Any],
    *,
    config: str = "",
    names: tuple[str, ...] = TEXT,
    inputs: Inputs = IDS,
    train: bool = False,
    dtype: torch.dtype | None = None,
    optimizer: Any = None,
    needs: str = "transformers",
) -> Case:
    maker = _model(model, config or _prefix(model) + "Config", settings)
    phase = "training" if train else "inference"
    return Case(
        f"{name} {phase}",
        built(maker, train=train, dtype=dtype),
        inputs,
        training(names) if train else inference(names),
        training=train,
        optimizer=optimizer,
        family="transformers",
        needs=(needs,),
    )


def _prefix(model: str) -> str:
    for suffix in ("LMHeadModel", "ForMaskedLM", "ForCausalLM", "ForConditionalGeneration", "Model"):
        if model.endswith(suffix):
            return model.removesuffix(suffix)
    return model.split("For")[0]


def cases() -> list[Case]:
    """The transformers family."""
    image = normal((BATCH, 3, 32, 32))
    vit = {k: v for k, v in BERT.items() if k != "vocab_size"} | {"image_size": 32, "patch_size": 8}
    xlnet = {
        "vocab_size": VOCABULARY,
        "d_model": 64,
        "n_layer": 2,
        "n_head": 4,
        "d_inner": 128,
        "use_mems_eval": False,
    }
    mobile = BERT | {"embedding_size": 32, "intra_bottleneck_size": 32, "num_feedforward_networks": 2}
    deberta = BERT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 64}
    deberta2 = deberta | {"position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True}
    gpt2 = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "use_cache": False}
    opt = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 128,
        "word_embed_proj_dim": 64,
        "use_cache": False,
    }
    whisper = {k: v for k, v in BART.items() if k != "max_position_embeddings"} | {
        "num_mel_bins": 16,
        "max_source_positions": 32,
        "max_target_positions": 64,
        "decoder_start_token_id": 1,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    speech = joined(normal((BATCH, 16, 64)), integers(VOCABULARY, (BATCH, LENGTH), low=5))
    clip = {"text_config": BERT | {"eos_token_id": 2}, "vision_config": vit, "projection_dim": 32}
    distil = {"vocab_size": VOCABULARY, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
    wave = {
        **{k: v for k, v in BERT.items() if k != "vocab_size"},
        "vocab_size": 32,
        "conv_dim": (32, 32, 32),
        "conv_stride": (5, 2, 2),
        "conv_kernel": (10, 3, 3),
        "num_feat_extract_layers": 3,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        "mask_time_prob": 0.0,
    }
    seq = {"names": SEQ2SEQ, "inputs": TWO_IDS}
    return [
        _case("xlnet", "XLNetLMHeadModel", xlnet),
        _case("xlnet", "XLNetLMHeadModel", xlnet, train=True),
        _case("mt5", "MT5ForConditionalGeneration", T5, train=True, optimizer=adamw_fused, **seq),  # type: ignore[arg-type]
        _case("mobilebert", "MobileBertForMaskedLM", mobile),
        _case("mobilebert", "MobileBertForMaskedLM", mobile, train=True),
        _case("deberta", "DebertaForMaskedLM", deberta),
        _case("deberta", "DebertaForMaskedLM", deberta, train=True),
        _case("deberta-v2", "DebertaV2ForMaskedLM", deberta2),
        _case("blenderbot-small", "BlenderbotSmallForConditionalGeneration", BART, train=True, **seq),  # type: ignore[arg-type]
        _case("distilgpt2", "GPT2LMHeadModel", gpt2, dtype=BF16),
        _case("distilgpt2", "GPT2LMHeadModel", gpt2, dtype=BF16, train=True, optimizer=adamw_fused),
        _case("llama", "LlamaForCausalLM", LLAMA, dtype=BF16),
        _case("llama", "LlamaForCausalLM", LLAMA, dtype=BF16, train=True, optimizer=adam_capturable),
        _case("qwen2", "Qwen2ForCausalLM", LLAMA, dtype=BF16),
        _case("qwen3", "Qwen3ForCausalLM", LLAMA | {"head_dim": 16}, dtype=BF16, needs="transformers>=4.51"),
        _case("gemma", "GemmaForCausalLM", LLAMA | {"head_dim": 16}, dtype=BF16),
        _case("phi", "PhiForCausalLM", LLAMA, dtype=BF16),
        _case("mixtral", "MixtralForCausalLM", LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}, dtype=BF16),
        _case("qwen2-moe", "Qwen2MoeForCausalLM", LLAMA | QWEN_EXPERTS, dtype=BF16, needs="transformers>=5"),
        _case("deepseek-v3", "DeepseekV3ForCausalLM", LLAMA | DEEPSEEK_EXPERTS, dtype=BF16, needs="transformers>=5"),
        _case("gpt-oss", "GptOssForCausalLM", LLAMA | OSS_EXPERTS, dtype=BF16, needs="transformers>=5"),
        _case("t5", "T5ForConditionalGeneration", T5, **seq),  # type: ignore[arg-type]
        _case("bart", "BartForConditionalGeneration", BART, **seq),  # type: ignore[arg-type]
        _case("vit", "ViTForImageClassification", vit, names=("pixel_values",), inputs=image, train=True),
        _case("whisper", "WhisperForConditionalGeneration", whisper, names=_SPEECH, inputs=speech),
        _case("wav2vec2", "Wav2Vec2Model", wave, names=("input_values",), inputs=normal((BATCH, 1600))),
        _case("bert", "BertForMaskedLM", BERT),
        _case("bert", "BertForMaskedLM", BERT, train=True, optimizer=adamw_fused),
        _case("roberta", "RobertaForMaskedLM", BERT, train=True),
        _case("albert", "AlbertForMaskedLM", BERT | {"embedding_size": 32}, train=True),
        _case("electra", "ElectraForMaskedLM", BERT | {"embedding_size": 32}),
        _case("distilbert", "DistilBertForMaskedLM", distil, train=True),
        _case("opt", "OPTForCausalLM", opt, dtype=BF16),
        _case("gpt-neox", "GPTNeoXForCausalLM", BERT | {"use_cache": False}, dtype=BF16),
        _case("clip", "CLIPModel", clip, names=("input_ids", "pixel_values"), inputs=joined(IDS, image)),
    ]


_SPEECH = ("input_features", "decoder_input_ids")
