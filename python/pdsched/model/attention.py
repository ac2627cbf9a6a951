"""Attention over the paged KV pool, put into `transformers` models through their attention interface.

One forward pass packs all tokens of a step, decodes first and chunks after them, into a batch of one. The runner tells
the backend about the step once (`PagedAttention.begin`); every layer then calls `paged_attention_forward`, which
finds the backend among its keyword arguments. The name is *not* registered for masks: for a name unknown there,
`transformers` builds no mask at all, which is what a paged function wants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from pdsched.model.info import ModelError

ATTENTION_NAME = "pdsched_paged"
BACKEND_KEYWORD = "paged_attention"
"""The model call's keyword argument that carries the backend to every layer."""

_UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """What attention needs to know about one step; NumPy, on the host, in step order."""

    slot_mapping: npt.NDArray[np.int64]
    """[T] where each token's key and value go: block * block_size + offset."""
    query_start_loc: npt.NDArray[np.int32]
    """[S + 1] first token of each entry, and the end."""
    seq_lens: npt.NDArray[np.int32]
    """[S] tokens of context of each entry, this step's included."""
    block_tables: npt.NDArray[np.int32]
    """[S, max blocks] blocks of each entry; only those that `seq_lens` reaches into are read."""
    num_decodes: int
    """Leading entries that have exactly one token."""

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.slot_mapping)


class PagedAttention(Protocol):
    """A way to attend over the pool: `begin` once per step, then `write` and `attend` once per layer."""

    def padded(self, num_rows: int) -> int:
        """How many rows a matrix product should be given for `num_rows` that count (at least as many)."""

    def begin(self, batch: AttentionBatch) -> None:
        """Prepare for a step: everything that is the same for all layers is computed here."""

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put keys and values `[T, kv_heads, head_dim]` into the slots of the step."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attend causally with `query` `[P, heads, head_dim]` over what the pool holds, after `write`.

        P is T or more; rows past T are padding. `key` and `value` are this step's own, as given to `write`. Returns
        `[P, heads, head_dim]`, which holds until the next call.
        """


def paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What `transformers` calls in every layer: `[1, heads, T, head_dim]` in, `[1, T, heads, head_dim]` out.

    Raises `ModelError` when the model asks for a kind of attention that would silently be computed wrongly.
    """
    backend: PagedAttention | None = kwargs.get(BACKEND_KEYWORD)
    if backend is None:
        raise ModelError(f"attention {ATTENTION_NAME!r} runs under pdsched's ModelRunner only")
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ModelError(f"paged attention does not support {name}={kwargs[name]!r}")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    backend.write(layer, k, v)
    return backend.attend(layer, q, k, v, scale).unsqueeze(0), None


def register() -> None:
    """Make `ATTENTION_NAME` known to `transformers`. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)


def make_backend(pool: torch.Tensor) -> PagedAttention:
    """The backend for a pool `[num_blocks, layers, 2, block_size, kv_heads, head_dim]`, by the device it lies on."""
    if pool.device.type == "cpu":
        from pdsched.model.attention_cpu import GatherAttention

        return GatherAttention(pool)
    if pool.device.type == "cuda":
        from pdsched.model.attention_cuda import VarlenAttention

        return VarlenAttention(pool)
    raise ModelError(f"no paged attention for device {pool.device.type!r}; known: cpu, cuda")
