"""Tiny random models of several families: nothing to download, built in a tenth of a second, the same for a seed.

Their outputs mean nothing, but a wrong key, value, position or mask changes them. Needs torch and transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")

_SHAPE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    # Large enough that greedy outputs do not fall into a loop of one token, which would hide mistakes.
    "initializer_range": 0.2,
}


def tiny_model(family: str, seed: int = 0, *, attention: str = "pdsched_paged", **changes: Any) -> Any:
    """A causal language model with random float32 weights, in evaluation mode.

    `family` is one of `FAMILIES`, else `ValueError`; `attention="sdpa"` gives the same weights with the model's own
    attention, for comparison with its `generate`; `changes` override fields of its configuration.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
    import torch
    import transformers

    from pdsched.model.attention import register

    register()
    prefix = family.capitalize()
    settings = _SHAPE | ({"sliding_window": None} if family == "mistral" else {}) | changes
    config = getattr(transformers, f"{prefix}Config")(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    model.set_attn_implementation(attention)
    return model.eval().requires_grad_(False)


def save_tiny_model(folder: Path, family: str = "llama", seed: int = 0, **changes: Any) -> Path:
    """Write the model of `tiny_model` as a `transformers` folder (no tokenizer) and return the folder."""
    model = tiny_model(family, seed, attention="sdpa", **changes)
    model.save_pretrained(folder)
    return folder
