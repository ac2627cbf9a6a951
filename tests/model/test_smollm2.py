"""The real model: the same tokens as its own `generate`, sensible text, and a tokenizer that needs no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pdsched.model.fetch import fetch_model
from pdsched.model.info import ModelError, ModelInfo
from pdsched.model.kv_pool import KVLayout, KVPool
from pdsched.model.load import load_model
from pdsched.model.runner import ModelRunner
from pdsched.model.tokenizer import Tokenizer
from pdsched.testing.tiny_models import save_tiny_model

from .planner import Planner
from .tiny import generate

NEW_TOKENS = 8
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def folder() -> Path:
    """In the cache, or fetched into it now."""
    return fetch_model()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    """The model's tokenizer."""
    return Tokenizer.load(folder)


@pytest.mark.slow
def test_equals_generate_across_a_hand_off(folder: Path, tokenizer: Tokenizer) -> None:
    """A long prompt and a short one, prefilled in one batch, decoded together on another pool."""
    info = ModelInfo.load(folder)
    model = load_model(folder)
    licence = (folder / "LICENSE").read_text()
    prompts = {0: tokenizer.encode(licence).tolist()[:330], 1: tokenizer.chat(QUESTION).tolist()}
    assert len(prompts[0]) == 330
    layout = KVLayout.of(info, block_size=16)
    prefill, decode = (ModelRunner(model, KVPool(layout, 40), 2, 32) for _ in range(2))
    source, target = Planner(40, 16, num_rows=2, chunk=128, seed=1), Planner(40, 16, num_rows=2, seed=2)
    for request, prompt in prompts.items():
        source.add(request, prompt, NEW_TOKENS)
    while any(not sequence.output for sequence in source.sequences.values()):
        step = source.plan()
        assert step is not None
        source.complete(step, prefill.run(step))
    for sequence in source.sequences.values():
        ours = target.adopt(sequence)
        prefill.pool.copy_blocks(decode.pool, sequence.blocks[: len(ours.blocks)], ours.blocks)
    prefill.pool.array.fill(np.nan)
    outputs = target.run(decode)
    model.set_attn_implementation("sdpa")
    assert outputs == {request: generate(model, prompt, NEW_TOKENS)[:NEW_TOKENS] for request, prompt in prompts.items()}
    assert tokenizer.decode(outputs[1]) == "The capital of France is Paris."


def test_facts_about_the_model(folder: Path) -> None:
    info = ModelInfo.load("SmolLM2-135M-Instruct")
    assert (info.num_layers, info.num_kv_heads, info.head_dim) == (30, 3, 64)
    assert (info.vocab_size, info.max_length, info.eos_token_ids) == (49152, 8192, (2,))
    assert KVLayout.of(info, 16).block_nbytes == 737_280


def test_chat_prompts_are_what_the_model_was_trained_on(tokenizer: Tokenizer) -> None:
    ids = tokenizer.chat(QUESTION)
    assert ids.dtype == np.uint32
    assert len(ids) == 37
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant")
    assert text.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")


TEXTS = ["Hello, world.", "naïve café", "日本語のテキスト 1234", "🙂👍🏽 end", "  two  spaces\n\ttab"]


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_whole_and_streamed(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    stream = tokenizer.stream()
    assert "".join(stream.push(token) for token in ids.tolist()) == text


def test_models_without_tokenizer_or_template(tmp_path: Path, folder: Path) -> None:
    tiny = save_tiny_model(tmp_path / "tiny")
    with pytest.raises(ModelError, match=r"model 'tiny' has no tokenizer\.json"):
        Tokenizer.load(tiny)
    (tiny / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(ModelError, match="has no chat template"):
        Tokenizer.load(tiny).chat(QUESTION)
