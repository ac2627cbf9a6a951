"""Paged attention on a CPU: gather a sequence's blocks into a small staging buffer, then torch's fused attention.

What decides the speed (measured with one thread, 3 KV heads of 64, float32):

* A context that was gathered a moment ago is still in the cache when attention reads it, unless the gather covered the
  whole batch. So decodes are handled in *groups* of at most `_GROUP_TOKENS` tokens, and a long context is a group of
  its own: at 8 x 2000 tokens half the time of one padded gather for the batch, and no mask.
* A group costs about as much as 128 tokens of context, whatever is in it, so short contexts share one. Contexts join a
  group while the padding this adds is smaller than that.
* Query heads that share a KV head are folded into the query length: no copy of K and V per head.
* Staging is allocated once and only grows; nothing is allocated in the copy path.

A row's result depends on its group only through the order of additions inside the kernel, never through the values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from pdsched.model.attention import AttentionBatch

_GROUP_TOKENS = 2048
_CALL_TOKENS = 128


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decodes attended to by one call."""

    rows: torch.Tensor | slice
    """Which of the step's rows."""
    blocks: torch.Tensor
    """[n * num_blocks] their blocks, each one's padded with its own first block."""
    size: int
    """n."""
    context: int
    """Tokens of the longest context."""
    mask: torch.Tensor | None
    """[n, 1, 1, context] additive; None when all contexts are equally long."""
    padding: torch.Tensor | None
    """Token positions in the gathered [n * num_blocks * block_size] that hold nothing of the sequence."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A run of prompt tokens of one sequence."""

    start: int
    end: int
    """Half-open range of the step's tokens."""
    context: int
    """Tokens of context, the chunk included."""
    blocks: torch.Tensor | None
    """The context's blocks; None when the chunk is the whole context, which needs no gather."""
    mask: torch.Tensor | None
    """[end - start, context] additive, aligned at the bottom right; None with `blocks` None."""


class GatherAttention:
    """`PagedAttention` for a pool in host memory."""

    def __init__(self, pool: torch.Tensor) -> None:
        """`pool`: `[num_blocks, layers, 2, block_size, kv_heads, head_dim]`, contiguous."""
        _, layers, _, self._block_size, self._kv_heads, self._head_dim = pool.shape
        self._dtype = pool.dtype
        self._block_stride = 2 * layers * self._block_size
        self._rows = pool.view(-1, self._kv_heads * self._head_dim)
        # A layer's keys are a strided view: blocks are far apart, each block's [block_size * kv_heads * head_dim] is
        # contiguous. Gathering takes such a view as it is, with the same block ids for every layer.
        self._layers = [(pool[:, layer, 0].flatten(1), pool[:, layer, 1].flatten(1)) for layer in range(layers)]
        self._key_staging = self._value_staging = torch.empty(0, pool[0, 0, 0].numel(), dtype=pool.dtype)
        self._out = torch.empty(0)
        self._slots = self._slots_of_layer = torch.empty(0, dtype=torch.int64)
        self._groups: list[_DecodeGroup] = []
        self._chunks: list[_Chunk] = []
        self._num_tokens = self._num_decodes = 0

    def padded(self, num_rows: int) -> int:
        """Even, and four instead of two or three: those are slower than four in MKL's float32 product (measured)."""
        return num_rows if num_rows <= 1 else max(4, num_rows + num_rows % 2)

    def begin(self, batch: AttentionBatch) -> None:
        """See `PagedAttention.begin`."""
        self._num_tokens, self._num_decodes = batch.num_tokens, batch.num_decodes
        block, offset = np.divmod(batch.slot_mapping, self._block_size)
        self._slots = torch.from_numpy(block * self._block_stride + offset)
        self._slots_of_layer = torch.empty_like(self._slots)
        lengths = batch.seq_lens[: batch.num_decodes]
        self._groups = [self._decode_group(batch, lengths, members) for members in group_by_length(lengths.tolist())]
        entries = range(batch.num_decodes, len(batch.seq_lens))
        self._chunks = [self._chunk(batch, entry) for entry in entries]
        needed = [len(group.blocks) for group in self._groups]
        needed += [len(chunk.blocks) for chunk in self._chunks if chunk.blocks is not None]
        self._reserve(max(needed, default=0))

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """See `PagedAttention.write`."""
        for half, states in enumerate((key, value)):
            torch.add(self._slots, (2 * layer + half) * self._block_size, out=self._slots_of_layer)
            self._rows.index_copy_(0, self._slots_of_layer, states[: self._num_tokens].flatten(1))

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """See `PagedAttention.attend`."""
        if self._out.shape != query.shape:
            self._out = torch.zeros(query.shape, dtype=query.dtype)  # padding rows stay zero
        groups = query.shape[1] // self._kv_heads
        for group in self._groups:
            keys, values = self._gather(layer, group.blocks, group.size, group.context, group.padding)
            folded = query[group.rows].view(group.size, self._kv_heads, groups, self._head_dim)
            out = scaled_dot_product_attention(folded, keys, values, attn_mask=group.mask, scale=scale)
            self._out[group.rows] = out.reshape(group.size, -1, self._head_dim)
        for chunk in self._chunks:
            tokens = slice(chunk.start, chunk.end)
            if chunk.blocks is None:
                keys, values = (states[tokens].transpose(0, 1).unsqueeze(0) for states in (key, value))
            else:
                keys, values = self._gather(layer, chunk.blocks, 1, chunk.context)
            out = scaled_dot_product_attention(
                query[tokens].transpose(0, 1).unsqueeze(0),
                keys,
                values,
                attn_mask=chunk.mask,
                is_causal=chunk.blocks is None,
                scale=scale,
                enable_gqa=groups > 1,
            )
            self._out[tokens] = out[0].transpose(0, 1)
        return self._out

    def _gather(
        self, layer: int, blocks: torch.Tensor, size: int, context: int, padding: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `[size, kv_heads, context, head_dim]` of `blocks`, in staging: good until the next gather."""
        gathered = []
        for pool, staging in zip(self._layers[layer], (self._key_staging, self._value_staging), strict=True):
            blocks_out = staging[: len(blocks)]
            torch.index_select(pool, 0, blocks, out=blocks_out)
            tokens = blocks_out.view(-1, self._kv_heads, self._head_dim)
            if padding is not None:
                # A masked score is -inf only if the key is a number, and 0 * value is 0 only if the value is: what an
                # unwritten slot holds may be neither.
                tokens.index_fill_(0, padding, 0.0)
            gathered.append(tokens.view(size, -1, self._kv_heads, self._head_dim)[:, :context].transpose(1, 2))
        return gathered[0], gathered[1]

    def _decode_group(self, batch: AttentionBatch, lengths: np.ndarray, members: Sequence[int]) -> _DecodeGroup:
        size, ours = len(members), lengths[list(members)]
        context = int(ours.max())
        num_blocks = -(-context // self._block_size)
        tables = batch.block_tables[list(members), :num_blocks].astype(np.int64)
        reached = np.arange(num_blocks) * self._block_size < ours[:, None]
        tables = np.where(reached, tables, tables[:, :1])
        mask = padding = None
        if (ours != context).any():
            beyond = np.arange(num_blocks * self._block_size) >= ours[:, None]
            padding = torch.from_numpy(np.flatnonzero(beyond))
            additive = np.where(beyond[:, :context], -math.inf, 0.0)
            mask = torch.from_numpy(additive).to(self._dtype)[:, None, None, :]
        first = members[0]
        rows = slice(first, first + 1) if size == 1 else torch.tensor(members)
        return _DecodeGroup(rows, torch.from_numpy(tables.reshape(-1)), size, context, mask, padding)

    def _chunk(self, batch: AttentionBatch, entry: int) -> _Chunk:
        start, end = int(batch.query_start_loc[entry]), int(batch.query_start_loc[entry + 1])
        context, length = int(batch.seq_lens[entry]), end - start
        if context == length:
            return _Chunk(start, end, context, None, None)
        blocks = batch.block_tables[entry, : -(-context // self._block_size)].astype(np.int64)
        mask = torch.full((length, context), -math.inf, dtype=self._dtype).triu_(context - length + 1)
        return _Chunk(start, end, context, torch.from_numpy(blocks), mask)

    def _reserve(self, num_blocks: int) -> None:
        """Let staging hold `num_blocks` blocks; grows by doubling, so that a steady state allocates nothing."""
        if num_blocks > len(self._key_staging):
            shape = (max(num_blocks, 2 * len(self._key_staging)), self._key_staging.shape[1])
            self._key_staging, self._value_staging = (torch.empty(shape, dtype=self._dtype) for _ in range(2))


def group_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Split decodes, given their context lengths, into groups of indices that are attended to together.

    Longest first; the next one joins while the group stays small and the padding that joining costs is less than what
    a call of its own would.
    """
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = groups and (len(groups[-1]) + 1) * longest <= _GROUP_TOKENS
        if fits and longest - lengths[index] <= _CALL_TOKENS:
            groups[-1].append(index)
        else:
            groups.append([index])
            longest = lengths[index]
    return groups
