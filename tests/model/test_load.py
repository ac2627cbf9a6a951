"""Models by path: what their JSON files say, what is refused and with which words, and that loading gives the model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdsched.model.info import ModelError, ModelInfo, resolve_model
from pdsched.model.kv_pool import KVLayout, KVPool
from pdsched.model.load import load_model
from pdsched.model.runner import ModelRunner
from pdsched.testing.tiny_models import save_tiny_model, tiny_model

from .planner import Planner
from .tiny import NEW_TOKENS, Tiny


def test_a_saved_model_loads_and_answers_the_same(tiny: Callable[[str], Tiny], tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny", "qwen2", eos_token_id=[3, 5])
    info = ModelInfo.load(folder)
    assert (info.name, info.architecture, info.num_layers, info.num_heads, info.num_kv_heads, info.head_dim) == (
        "tiny", "Qwen2ForCausalLM", 2, 4, 2, 16,
    )  # fmt: skip
    assert (info.vocab_size, info.max_length, info.eos_token_ids) == (512, 2048, (3, 5))
    case = tiny("qwen2")
    runner = ModelRunner(load_model(folder), KVPool(KVLayout.of(info, 16), 60), 4, 32)
    planner = Planner(60, 16, num_rows=4)
    planner.add(1, case.prompts[1], NEW_TOKENS)
    assert planner.run(runner) == {1: case.expected[1]}


def test_fingerprint_follows_the_weights_not_the_folder(tmp_path: Path) -> None:
    same = [ModelInfo.load(save_tiny_model(tmp_path / name, seed=3)).fingerprint for name in ("a", "b")]
    other = ModelInfo.load(save_tiny_model(tmp_path / "c", seed=4)).fingerprint
    assert same[0] == same[1] != other


def test_reading_about_a_model_imports_no_torch(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny")
    code = (
        "import sys; from pdsched.model.info import ModelInfo; from pdsched.model.kv_pool import KVLayout, KVPool\n"
        "from pdsched.model.fetch import fetch_model; from pdsched.model.sampling import SamplingParams\n"
        "from pdsched.model.tokenizer import Tokenizer\n"
        f"KVPool(KVLayout.of(ModelInfo.load({str(folder)!r}), 16), 4)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'too much imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_folders_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDSCHED_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ModelError, match="no model folder at '/nowhere/at-all'"):
        load_model("/nowhere/at-all")
    with pytest.raises(ModelError, match=r"SmolLM2-135M-Instruct is not in the cache .* run: pdsched fetch-model"):
        resolve_model("smollm2-135m-instruct")
    with pytest.raises(ModelError, match=r"is not a model folder: it holds no config\.json"):
        resolve_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot read .*config\.json"):
        ModelInfo.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds no weights"):
        ModelInfo.load(tmp_path)


def test_weights_that_cannot_be_read(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny")
    (folder / "model.safetensors").write_bytes(b"not a tensor in sight, and far from it")
    with pytest.raises(ModelError, match="cannot load model 'tiny'"):
        load_model(folder)


BASE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "vocab_size": 512,
    "max_position_embeddings": 99,
}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"is_encoder_decoder": True}, "it is an encoder-decoder model"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "full_attention, sliding_attention; only full"),
        ({"sliding_window": 4096}, r"sliding-window attention \(sliding_window=4096\)"),
        ({"kv_lora_rank": 512}, r"multi-head latent attention \(kv_lora_rank=512\)"),
        ({"attn_logit_softcapping": 50.0}, r"soft-caps attention \(attn_logit_softcapping=50.0\)"),
        ({"num_hidden_layers": "many"}, "lacks or garbles a field .*many"),
        ({"vocab_size": None}, "lacks or garbles a field"),
    ],
)
def test_models_that_would_be_computed_wrongly_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        ModelInfo.from_config(BASE | fields, name="odd")


def test_defaults_of_a_config() -> None:
    info = ModelInfo.from_config(BASE | {"sliding_window": 4096, "use_sliding_window": False}, name="m")
    assert (info.num_kv_heads, info.head_dim, info.eos_token_ids) == (4, 16, ())
    assert ModelInfo.from_config(BASE | {"eos_token_id": 0}, name="m").eos_token_ids == (0,)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_layers": 3}, "num_layers=3, the model 2"),
        ({"num_kv_heads": 4}, "num_kv_heads=4, the model 2"),
        ({"head_dim": 32}, "head_dim=32, the model 16"),
        ({"dtype": "float16"}, "dtype='float16', the model 'float32'"),
    ],
)
def test_a_pool_of_another_model_is_refused(tiny: Callable[[str], Tiny], change: dict[str, Any], text: str) -> None:
    case = tiny("llama")
    with pytest.raises(ModelError, match=text):
        ModelRunner(case.model, KVPool(replace(KVLayout.of(case.info, 16), **change), 2), 1, 1)


def test_steps_that_cannot_be_run(tiny: Callable[[str], Tiny]) -> None:
    case = tiny("llama")
    runner = case.runner(16)
    planner = Planner(160, 16, num_rows=6)
    planner.add(0, case.prompts[0], 4)
    step = planner.plan()
    assert step is not None
    step.token_ids[2] = -1
    with pytest.raises(ValueError, match=r"token 2 of the step \(position 2\) is -1"):
        runner.run(step)
    step.opened[0].extra = b"\xc1"
    with pytest.raises(ValueError, match="malformed sampling parameters"):
        runner.run(step)


def test_families_are_checked() -> None:
    with pytest.raises(ValueError, match="family must be one of llama, qwen2, qwen3, mistral, got 'gpt9'"):
        tiny_model("gpt9")
    first, again, other = (tiny_model("llama", seed).lm_head.weight.numpy() for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_generation_config_wins_over_config(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny", eos_token_id=7)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 9]}))
    assert ModelInfo.load(folder).eos_token_ids == (8, 9)
