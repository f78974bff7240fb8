"""Decoding by transformers' own loop: ``generate`` with a static cache, and what its ``compile_config`` is given."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.bench.decoding import TOKENS
from paramgraph_kit.bench.ways import NO_GRAPHS, OURS, TREES, Make, Ready

CONFIGS: dict[str, dict[str, Any]] = {
    NO_GRAPHS: {"backend": "inductor", "mode": None},
    TREES: {"backend": "inductor", "mode": "reduce-overhead"},  # what generate takes by itself
    OURS: {"backend": paramgraph, "mode": None},  # in a program: backend="paramgraph"
}


def generating_ways(device: str, **size: int) -> dict[str, Make]:
    """Greedy tokens of a small Llama with random weights, after a prompt of eight."""

    def way(**config: Any) -> Ready:
        from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        default = {"num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
        default |= {"num_key_value_heads": 16, "vocab_size": 4096, "max_position_embeddings": 128}
        model = LlamaForCausalLM(LlamaConfig(**(default | size))).to(device, torch.bfloat16).eval()
        prompt = torch.arange(1, 9, device=device)[None]
        how = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}

        def generate() -> Any:
            with torch.no_grad():
                return model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    cache_implementation="static",
                    compile_config=CompileConfig(**config),
                    **how,
                )

        return Ready(generate, tokens=lambda: generate()[0, prompt.shape[1] :].tolist())

    return {name: partial(way, **config) for name, config in CONFIGS.items()}
