"""Loads a model with pdsched's attention in place of its own. The facts about it that need no torch are in `info`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdsched.model.info import ModelError, ModelInfo, resolve_model

if TYPE_CHECKING:
    import torch

__all__ = ["ModelError", "ModelInfo", "load_model", "resolve_model"]

_TOUCH_STRIDE = 1024
"""Elements: at most one memory page apart for every element type of two bytes or more."""


def load_model(path_or_name: str | Path, dtype: str = "float32", device: str = "cpu") -> Any:
    """A `transformers` causal language model in evaluation mode that attends through the paged KV pool.

    `path_or_name` as in `resolve_model`; `dtype` is a torch type's name. On a CPU the weights stay a memory map of the
    file, shared by all workers of a machine, and are paged in now, so that no step pays for it.

    Raises `ModelError` for an unknown folder, an unsupported model, or weights that transformers cannot read.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported: a local folder needs no hub
    info = ModelInfo.load(path_or_name)
    folder = resolve_model(path_or_name)
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from pdsched.model.attention import ATTENTION_NAME, register

    register()
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation=ATTENTION_NAME, local_files_only=True
        )
    except Exception as error:  # whatever transformers and safetensors raise, the cause is this folder
        raise ModelError(f"cannot load model {info.name!r} from {folder}: {error}") from error
    model = model.eval().requires_grad_(False).to(device)
    if device == "cpu":
        _touch(model)
    return model


def _touch(model: torch.nn.Module) -> None:
    """Read one element of every memory page of the weights."""
    for parameter in model.parameters():
        parameter.detach().flatten()[::_TOUCH_STRIDE].sum()
