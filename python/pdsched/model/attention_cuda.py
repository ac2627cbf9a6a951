"""Paged attention by torch's variable-length kernel, for CUDA devices."""

from __future__ import annotations

import numpy as np
import torch

from pdsched.model.attention import AttentionBatch


class VarlenAttention:
    """`PagedAttention` by `torch.nn.attention.varlen.varlen_attn`: one call for chunks and decodes together.

    **Untested here**: written from the kernel's documentation (torch 2.13) for want of a GPU. Unknown are the block
    sizes that the flash build accepts, and its speed on a block-major pool, whose pages of one layer are strided. The
    kernel takes float16 and bfloat16. `num_splits=1` keeps a sequence's result independent of the rest of the batch.
    """

    def __init__(self, pool: torch.Tensor) -> None:
        """`pool`: `[num_blocks, layers, 2, block_size, kv_heads, head_dim]` on a CUDA device."""
        self._pool = pool
        _, self._layers, _, self._block_size, self._kv_heads, self._head_dim = pool.shape
        self._rows = pool.view(-1, self._kv_heads * self._head_dim)

    def padded(self, num_rows: int) -> int:
        """No padding."""
        return num_rows

    def begin(self, batch: AttentionBatch) -> None:
        """One upload per array."""
        device = self._pool.device
        block, offset = np.divmod(batch.slot_mapping, self._block_size)
        self._slots = torch.from_numpy(block * (2 * self._layers * self._block_size) + offset).to(device)
        self._query_start = torch.from_numpy(batch.query_start_loc).to(device)
        self._seq_lens = torch.from_numpy(batch.seq_lens).to(device)
        self._max_query = int(np.diff(batch.query_start_loc).max())
        self._max_context = int(batch.seq_lens.max())
        used = -(-self._max_context // self._block_size)
        self._block_tables = torch.from_numpy(np.ascontiguousarray(batch.block_tables[:, :used])).to(device)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """See `PagedAttention.write`."""
        slots = self._slots + 2 * layer * self._block_size
        self._rows.index_copy_(0, slots, key.reshape(len(slots), -1))
        self._rows.index_copy_(0, slots + self._block_size, value.reshape(len(slots), -1))

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """See `PagedAttention.attend`."""
        from torch.nn.attention.varlen import varlen_attn

        out = varlen_attn(
            query.contiguous(),
            self._pool[:, layer, 0],
            self._pool[:, layer, 1],
            self._query_start,
            None,
            self._max_query,
            self._max_context,
            scale=scale,
            window_size=(-1, 0),
            enable_gqa=query.shape[1] != self._kv_heads,
            seqused_k=self._seq_lens,
            block_table=self._block_tables,
            num_splits=1,
        )
        assert isinstance(out, torch.Tensor)
        return out
