"""What two pools must have in common, and what one says about itself in its address."""

from __future__ import annotations

import msgspec
import numpy as np

from pdsched.transfer.base import ChannelError, Pool

_AXES = 6


class PoolLayout(msgspec.Struct, frozen=True):
    """Shape and element type of a pool `[num_blocks, layers, 2, block_size, kv_heads, head_dim]`."""

    dtype: str
    """NumPy's name with byte order, such as `<f4`."""
    num_blocks: int
    layers: int
    block_size: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, pool: Pool) -> PoolLayout:
        """Layout of an array. Raises `ChannelError` for one that is not a pool."""
        if pool.ndim != _AXES or pool.shape[2] != 2:
            raise ChannelError(f"pool shape must be [blocks, layers, 2, block, kv_heads, head_dim], got {pool.shape}")
        if not pool.flags.c_contiguous:
            raise ChannelError(f"pool must be C-contiguous, got strides {pool.strides}")
        blocks, layers, _, block, heads, dim = pool.shape
        return cls(pool.dtype.str, blocks, layers, block, heads, dim)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return (self.num_blocks, self.layers, 2, self.block_size, self.kv_heads, self.head_dim)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def token_nbytes(self) -> int:
        """Bytes of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * np.dtype(self.dtype).itemsize

    def check_peer(self, peer: PoolLayout) -> None:
        """Raise `ChannelError` naming the first field in which tokens could not be copied as they are.

        Pool size and block size may differ: runs name blocks and offsets of both sides.
        """
        for field in ("dtype", "layers", "kv_heads", "head_dim"):
            ours, theirs = getattr(self, field), getattr(peer, field)
            if ours != theirs:
                raise ChannelError(f"peer's pool has {field} {theirs!r}, ours has {ours!r}")
