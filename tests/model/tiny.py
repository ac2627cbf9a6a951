"""Tiny models with the answers that are right: what their own `generate` says."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pdsched.model.info import ModelInfo
from pdsched.model.kv_pool import KVLayout, KVPool
from pdsched.model.runner import ModelRunner
from pdsched.testing.tiny_models import tiny_model

NEW_TOKENS = 32
PROMPT_LENGTHS = (5, 70, 333, 129)
MAX_LENGTH = 512


def prompts_of(vocab_size: int) -> list[list[int]]:
    """Random prompts of `PROMPT_LENGTHS`."""
    random = np.random.default_rng(7)
    return [random.integers(0, vocab_size, length).tolist() for length in PROMPT_LENGTHS]


def generate(model: Any, prompt: list[int], max_new_tokens: int) -> list[int]:
    """The model's own unpadded greedy answer, by its own attention and cache."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False, use_cache=True
        )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


class Tiny:
    """One family: the model with paged attention, and the answers that are right."""

    def __init__(self, family: str) -> None:
        self.model = tiny_model(family)
        self.info = ModelInfo.from_config(self.model.config.to_dict(), name=family)
        self.prompts = prompts_of(self.info.vocab_size)
        plain = tiny_model(family, attention="sdpa")
        self.expected = {i: generate(plain, prompt, NEW_TOKENS) for i, prompt in enumerate(self.prompts)}

    def runner(self, block_size: int, num_blocks: int = 160, num_rows: int = 6) -> ModelRunner:
        """A runner over a fresh pool in which every unwritten slot is NaN: reading one spoils the answer."""
        pool = KVPool(KVLayout.of(self.info, block_size), num_blocks)
        pool.array.fill(np.nan)
        return ModelRunner(self.model, pool, num_rows, -(-MAX_LENGTH // block_size))
