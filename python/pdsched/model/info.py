"""What a model folder says about itself, read from its JSON files alone: importing this needs neither torch nor
transformers, so that an engine process can size pools and check requests without them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdsched.model.fetch import MODEL_NAME, default_model_path, is_fetched

_SAMPLES = 16
_SAMPLE_BYTES = 4096


class ModelError(ValueError):
    """The model cannot be used; the text names it and says why."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The facts about a decoder-only model that scheduling, pools and hand-shakes need."""

    name: str
    """Folder name, for people."""
    architecture: str
    """Such as `LlamaForCausalLM`."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_length: int
    """Longest sequence, prompt and output together, in tokens."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end a sequence; may be empty."""
    fingerprint: str
    """Short hash of configuration and (a sample of) the weights, wherever the folder lies and whatever its name."""

    @classmethod
    def load(cls, path_or_name: str | Path) -> ModelInfo:
        """Read a folder (see `resolve_model`). Raises `ModelError` when there is none or when it cannot be served."""
        folder = resolve_model(path_or_name)
        config = _read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        eos = _read_json(generation).get("eos_token_id") if generation.is_file() else None
        if eos is not None:
            config["eos_token_id"] = eos
        return cls.from_config(config, name=folder.name, weights=_weights_digest(folder))

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, name: str, weights: str = "") -> ModelInfo:
        """From the content of a `config.json`; `weights` is whatever tells the weights apart. Raises `ModelError`."""
        _check_supported(config, name)
        try:
            num_heads = int(config["num_attention_heads"])
            shape = {
                "num_layers": int(config["num_hidden_layers"]),
                "num_heads": num_heads,
                "num_kv_heads": int(config.get("num_key_value_heads") or num_heads),
                "head_dim": int(config.get("head_dim") or config["hidden_size"] // num_heads),
                "vocab_size": int(config["vocab_size"]),
                "max_length": int(config["max_position_embeddings"]),
            }
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"config.json of model {name!r} lacks or garbles a field that pdsched needs: {error}"
            ) from error
        architecture = str((config.get("architectures") or [config.get("model_type", "unknown")])[0])
        eos = config.get("eos_token_id")
        eos_token_ids = () if eos is None else tuple(int(token) for token in ([eos] if isinstance(eos, int) else eos))
        rope = config.get("rope_parameters") or config.get("rope_theta")
        described = json.dumps([architecture, shape, rope, weights], sort_keys=True, default=str)
        fingerprint = hashlib.sha256(described.encode()).hexdigest()[:16]
        return cls(name=name, architecture=architecture, eos_token_ids=eos_token_ids, fingerprint=fingerprint, **shape)


def resolve_model(path_or_name: str | Path) -> Path:
    """The folder of a model: a path to a `transformers` folder, or the name of the model that pdsched fetches.

    Raises `ModelError` that names what was looked for and where.
    """
    folder = Path(path_or_name).expanduser()
    if str(path_or_name).lower() in (MODEL_NAME.lower(), "default") and not folder.exists():
        if not is_fetched():
            raise ModelError(
                f"model {MODEL_NAME} is not in the cache ({default_model_path()}); run: pdsched fetch-model"
            )
        return default_model_path()
    if not folder.is_dir():
        raise ModelError(f"no model folder at {str(path_or_name)!r} (nor a known name; known: {MODEL_NAME})")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{str(path_or_name)!r} is not a model folder: it holds no config.json")
    return folder.resolve()


def _check_supported(config: Mapping[str, Any], name: str) -> None:
    """Refuse what paged attention would compute wrongly instead of computing it wrongly."""
    refused = None
    layer_types = config.get("layer_types")
    window = config.get("sliding_window")
    if config.get("is_encoder_decoder"):
        refused = "it is an encoder-decoder model"
    elif layer_types and set(layer_types) != {"full_attention"}:
        refused = f"its layers are {', '.join(sorted(set(layer_types)))}; only full attention is supported"
    elif window is not None and config.get("use_sliding_window", True) and not layer_types:
        refused = f"it uses sliding-window attention (sliding_window={window})"
    elif config.get("kv_lora_rank") is not None:
        refused = f"it uses multi-head latent attention (kv_lora_rank={config['kv_lora_rank']})"
    elif config.get("attn_logit_softcapping") is not None:
        refused = f"it soft-caps attention (attn_logit_softcapping={config['attn_logit_softcapping']})"
    if refused is not None:
        raise ModelError(f"model {name!r} cannot be served: {refused}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"cannot read {path}: it holds no JSON object")
    return content


def _weights_digest(folder: Path) -> str:
    """Hash of size, head and evenly spaced samples of every weights file: tells models apart without reading them."""
    files = sorted(file for pattern in ("*.safetensors", "*.bin") for file in folder.glob(pattern))
    if not files:
        raise ModelError(f"{str(folder)!r} holds no weights (*.safetensors or *.bin)")
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size};".encode())
        with file.open("rb") as content:
            for sample in range(_SAMPLES):
                content.seek(size * sample // _SAMPLES)
                digest.update(content.read(_SAMPLE_BYTES))
    return digest.hexdigest()
