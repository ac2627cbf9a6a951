"""Pools whose every element tells where it is, and the two ways to make a pair of connected channels."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pdsched.transfer import (
    Arena,
    Completion,
    KVChannel,
    LocalChannel,
    LocalHub,
    Runs,
    SharedMemoryChannel,
    create_arena,
)
from pdsched.transfer.base import Pool
from pdsched.transfer.layout import PoolLayout
from pdsched.transfer.shared_memory import pool_in

LAYERS, HEADS, DIM = 3, 2, 4
PEER = (2, 1)

End = tuple[KVChannel, Pool]
MakeEnd = Callable[..., End]
"""(num_blocks, block_size, kv_heads=HEADS) -> a channel and a pool for it, zeroed."""


def layout(num_blocks: int, block_size: int, kv_heads: int = HEADS) -> PoolLayout:
    return PoolLayout("<f4", num_blocks, LAYERS, block_size, kv_heads, DIM)


def fill(pool: Pool) -> None:
    """Give every element of a pool a value of its own."""
    pool[...] = np.arange(1, pool.size + 1, dtype=np.float32).reshape(pool.shape)


def runs(*rows: tuple[int, int, int, int, int]) -> Runs:
    """Runs from rows (src_block, src_offset, dst_block, dst_offset, num_tokens)."""
    columns = np.asarray(rows, dtype=np.int32).reshape(-1, 5).T
    return Runs(*(np.ascontiguousarray(column) for column in columns))


def wait(channel: KVChannel, count: int, timeout: float = 10.0) -> list[Completion]:
    """The next `count` completions, waiting on the channel's own descriptor."""
    done: list[Completion] = []
    deadline = time.monotonic() + timeout
    while len(done) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"{len(done)} of {count} completions"
        select.select([channel.fileno()], [], [], left)
        done += channel.poll()
    return done


@pytest.fixture(params=["local", "shared_memory"])
def make_end(request: pytest.FixtureRequest) -> Iterator[MakeEnd]:
    """Makes channel ends of either kind; closes them afterwards."""
    hub = LocalHub()
    channels: list[KVChannel] = []
    arenas: list[Arena] = []

    def make(num_blocks: int, block_size: int, kv_heads: int = HEADS) -> End:
        shape = layout(num_blocks, block_size, kv_heads)
        channel: KVChannel
        if request.param == "local":
            pool: Pool = np.zeros(shape.shape, dtype=np.float32)
            channel = LocalChannel(hub)
        else:
            arenas.append(Arena(create_arena(shape.nbytes)))
            pool = pool_in(arenas[-1], shape)
            channel = SharedMemoryChannel(arenas[-1])
        channels.append(channel)
        return channel, pool

    yield make
    for channel in channels:
        channel.close()
    for arena in arenas:
        arena.close()


@pytest.fixture
def pair(make_end: MakeEnd) -> tuple[KVChannel, Pool, Pool]:
    """A sender with a filled pool of 8 blocks of 4, connected to a zeroed pool of 16 blocks of 4."""
    sender, source = make_end(8, 4)
    receiver, target = make_end(16, 4)
    fill(source)
    sender.register(source)
    sender.connect(PEER, receiver.register(target))
    return sender, source, target
