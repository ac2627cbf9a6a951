"""Copying runs of tokens from pool to pool."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np

from pdsched.transfer.base import ChannelError, Pool, Runs

MAX_SLICE_BYTES = 16 << 20
"""Longest single copy, so that a cancel takes hold within milliseconds."""


def check_runs(runs: Runs, src: Pool, dst: Pool) -> None:
    """Raise `ChannelError` for a run outside either pool or across a block boundary."""
    lengths = {len(column) for column in (runs.src_block, runs.src_offset, runs.dst_block, runs.dst_offset)}
    if lengths != {len(runs)}:
        raise ChannelError(f"columns of a transfer differ in length: {sorted(lengths | {len(runs)})}")
    for side, pool, block, offset in (
        ("source", src, runs.src_block, runs.src_offset),
        ("destination", dst, runs.dst_block, runs.dst_offset),
    ):
        end = offset.astype(np.int64) + runs.num_tokens
        bad = (block < 0) | (block >= pool.shape[0]) | (offset < 0) | (runs.num_tokens <= 0) | (end > pool.shape[3])
        if bad.any():
            i = int(bad.argmax())
            raise ChannelError(
                f"{side} run of {runs.num_tokens[i]} tokens at offset {offset[i]} of block {block[i]} does not fit "
                f"a pool of {pool.shape[0]} blocks of {pool.shape[3]}"
            )


def copy_runs(runs: Runs, src: Pool, dst: Pool) -> Iterator[int]:
    """Copy run by run, yielding the bytes of each copy after it: the caller may stop in between.

    Whole blocks are one contiguous run over all layers, and neighbouring ones are joined; part of a block is a strided
    copy of 2 x layers rows. `np.copyto` lets go of the GIL while it copies, so a forward pass goes on beside it.
    """
    block_nbytes = int(np.prod(src.shape[1:])) * src.itemsize
    per_slice = max(1, MAX_SLICE_BYTES // block_nbytes)
    same_blocks = src.shape[3] == dst.shape[3]
    starts = _run_starts(runs, src.shape[3], per_slice) if same_blocks else np.arange(len(runs) + 1)
    for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        src_block, dst_block = int(runs.src_block[first]), int(runs.dst_block[first])
        count = int(runs.num_tokens[first])
        if same_blocks and count == src.shape[3]:
            blocks = end - first
            np.copyto(dst[dst_block : dst_block + blocks], src[src_block : src_block + blocks])
            yield blocks * block_nbytes
        else:
            src_offset, dst_offset = int(runs.src_offset[first]), int(runs.dst_offset[first])
            np.copyto(
                dst[dst_block, :, :, dst_offset : dst_offset + count],
                src[src_block, :, :, src_offset : src_offset + count],
            )
            yield count * (block_nbytes // src.shape[3])


def touch_pages(pool: Pool) -> None:
    """Read one byte of every page. Reading changes nothing, so the owner may be using the pool meanwhile."""
    pool.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max()


def _run_starts(runs: Runs, block_size: int, per_slice: int) -> np.ndarray:
    """Indices at which a new copy begins, and the end: whole blocks that follow each other on both sides are joined."""
    n = len(runs)
    whole = runs.num_tokens == block_size
    joined = np.zeros(n, dtype=bool)
    joined[1:] = whole[1:] & whole[:-1] & (np.diff(runs.src_block) == 1) & (np.diff(runs.dst_block) == 1)
    starts: list[int] = []
    length = per_slice
    for i, follows in enumerate(joined.tolist()):
        if follows and length < per_slice:
            length += 1
        else:
            starts.append(i)
            length = 1
    return np.asarray([*starts, n], dtype=np.int64)
