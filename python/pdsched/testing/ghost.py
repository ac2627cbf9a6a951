"""Ghost KV: a fake model whose "cache" holds, per slot, which token of which position was written there.

Its next token is a hash of the whole history *read back through the block table*, so that any aliasing, stale
transfer, wrong offset, early reuse or lost block changes the output, which is then compared with a run alone. It works
from a step's arrays and its own row state only, never from the request, and its steps may run late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pdsched import StartTransfer, Step

Int64 = npt.NDArray[np.int64]

VOCABULARY = 64
"""Token ids are in ``0..VOCABULARY``; small, so that stop tokens are met."""

_POISON = -1
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def next_token(history: Sequence[int] | Int64) -> int:
    """The token that follows ``history``: a position-dependent hash of all of it, in ``0..VOCABULARY``."""
    tokens = np.asarray(history, dtype=np.uint64)
    with np.errstate(over="ignore"):
        positions = np.arange(1, len(tokens) + 1, dtype=np.uint64)
        mixed = (tokens + np.uint64(0x51ED)) * (positions * _MULTIPLIER | np.uint64(1))
        mixed ^= mixed >> np.uint64(29)
        digest = int(np.bitwise_xor.reduce(mixed * _MULTIPLIER))
    return (digest >> 40) % VOCABULARY


def solo(prompt: Sequence[int], max_tokens: int, stop_token_ids: Sequence[int] = (), min_tokens: int = 0) -> list[int]:
    """What a request must output, computed without any scheduler."""
    tokens = list(prompt)
    outputs: list[int] = []
    while len(outputs) < max_tokens:
        token = next_token(tokens)
        tokens.append(token)
        outputs.append(token)
        if len(outputs) >= min_tokens and token in stop_token_ids:
            break
    return outputs


class GhostError(AssertionError):
    """The ghost read something that was not written where it should be."""


class GhostKV:
    """The cache of one worker: ``num_blocks * block_size`` slots of (token, position), poisoned at first.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens per block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: Int64 = np.full((num_blocks * block_size, 2), _POISON, dtype=np.int64)

    def copy_run(self, destination: GhostKV, transfer: StartTransfer, run: int) -> None:
        """Copies one run of a transfer into the destination's slots."""
        count = int(transfer.num_tokens[run])
        source = int(transfer.src_block[run]) * self.block_size + int(transfer.src_offset[run])
        target = int(transfer.dst_block[run]) * destination.block_size + int(transfer.dst_offset[run])
        destination.slots[target : target + count] = self.slots[source : source + count]


class GhostRunner:
    """Runs steps on a :class:`GhostKV`, from their arrays and its own rows alone.

    Args:
        kv: the cache.
        num_rows: rows of the block table.
        max_blocks_per_row: columns of it.
    """

    def __init__(self, kv: GhostKV, num_rows: int, max_blocks_per_row: int) -> None:
        self.kv = kv
        self.table: Int64 = np.full((num_rows, max_blocks_per_row), _POISON, dtype=np.int64)
        self.last_token: Int64 = np.full(num_rows, _POISON, dtype=np.int64)

    def apply_tables(self, step: Step) -> None:
        """Takes over a step's changes of the block table; also for steps that are skipped."""
        rows, columns, blocks = step.table_diff
        self.table[rows, columns] = blocks

    def spoil(self, step: Step, fraction: float) -> None:
        """A step that fails half-way: part of its slots are written, with rubbish."""
        self.apply_tables(step)
        slots = step.slot_mapping
        self.kv.slots[slots[: int(len(slots) * fraction)]] = _POISON

    def run(self, step: Step) -> Int64:
        """Runs a step.

        Returns:
            int64 ``[L]``, one token per entry of ``step.logits_indices``.
        """
        self.apply_tables(step)
        tokens = step.token_ids
        positions, rows = step.gather
        tokens[positions] = self.last_token[rows]
        self.kv.slots[step.slot_mapping, 0] = tokens
        self.kv.slots[step.slot_mapping, 1] = step.positions
        starts = step.query_start_loc
        sampled = np.empty(len(step.logits_indices), dtype=np.int64)
        entries = np.searchsorted(starts, step.logits_indices, side="right") - 1
        for index, (entry, row) in enumerate(zip(entries, step.sampled_rows, strict=True)):
            history = self._read(int(row), int(step.seq_lens[entry]))
            sampled[index] = next_token(history)
        self.last_token[step.sampled_rows] = sampled
        return sampled

    def _read(self, row: int, length: int) -> Int64:
        """The history of a row, as its block table says."""
        positions = np.arange(length)
        blocks = self.table[row, positions // self.kv.block_size]
        slots = self.kv.slots[blocks * self.kv.block_size + positions % self.kv.block_size]
        # A wrong position is not an error here: a voided step may read what was never written. It only must not count.
        return np.where(slots[:, 1] == positions, slots[:, 0], VOCABULARY + 1)
