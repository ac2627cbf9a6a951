"""The protocol of a KV channel and the small values that cross it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

PeerId = tuple[int, int]
"""(worker, incarnation): one life of one worker."""

Pool = npt.NDArray[np.generic]
"""A KV pool as the channel sees it: C-contiguous `[num_blocks, layers, 2, block_size, kv_heads, head_dim]`.

Block-major, so that a whole block is one contiguous run over all layers."""

Int32s = npt.NDArray[np.int32]


class ChannelError(RuntimeError):
    """The channel cannot be set up or used; the text names the offending field and value."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What one chunk of a transfer copies: five int32 columns with one entry per run.

    Run i takes `num_tokens[i]` tokens from token `src_offset[i]` of block `src_block[i]` of the own pool to token
    `dst_offset[i]` of block `dst_block[i]` of the peer's. No run crosses a block boundary on either side.
    """

    src_block: Int32s
    src_offset: Int32s
    dst_block: Int32s
    dst_offset: Int32s
    num_tokens: Int32s

    def __len__(self) -> int:
        return len(self.num_tokens)


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of one chunk of a transfer: nothing of it will be written any more."""

    transfer: int
    peer: PeerId
    chunk: int
    ok: bool
    """All bytes are in the peer's pool."""
    num_bytes: int
    seconds: float
    """Time spent copying, waiting in the queue not included."""
    error: str | None = None
    """Why not, when not `ok`; None for a cancelled chunk."""


@dataclass(slots=True)
class ChannelStats:
    """Totals since the channel was made."""

    chunks: int = 0
    failed: int = 0
    num_bytes: int = 0
    seconds: float = 0.0

    def count(self, completion: Completion) -> None:
        """Add one completed chunk."""
        self.chunks += 1
        self.failed += not completion.ok
        self.num_bytes += completion.num_bytes
        self.seconds += completion.seconds


class KVChannel(Protocol):
    """One worker's end of the KV traffic. All methods are called from one thread and none of them blocks on a copy."""

    stats: ChannelStats

    def register(self, pool: Pool) -> bytes:
        """Make `pool` reachable for peers; returns the opaque address by which they connect. Called once, first."""

    def connect(self, peer: PeerId, address: bytes) -> None:
        """Get ready to write into the pool of `peer`.

        Raises `ChannelError` naming the field when the layouts do not fit or the pool cannot be reached.
        """

    def start(self, transfer: int, peer: PeerId, chunk: int, runs: Runs) -> None:
        """Copy `runs` in the background. Exactly one completion follows, also for an unknown peer or a bad run."""

    def poll(self) -> list[Completion]:
        """What ended since the last call, in the order of ending."""

    def fileno(self) -> int:
        """A descriptor that is readable while `poll` has something to return."""

    def cancel(self, transfer: int, peer: PeerId) -> None:
        """Drop what has not been copied of a transfer. Each of its chunks still completes, with `ok` false."""

    def disconnect(self, peer: PeerId) -> None:
        """Cancel everything for `peer` and let go of its pool. Unknown peers are ignored."""

    def close(self) -> None:
        """Stop copying and release everything. Idempotent."""
