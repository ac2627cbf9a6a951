"""The channel between processes of one machine: each pool lies in shared memory and senders write straight into it.

One copy, made by the sender: the receiver neither runs code nor is interrupted for it. Shared memory carries no order
of its own; the message that the core sends after a completion is what makes the bytes count.
"""

from __future__ import annotations

import msgspec

from pdsched.transfer.arena import Arena, ArenaAddress, open_arena
from pdsched.transfer.base import ChannelError, Pool
from pdsched.transfer.channel import CopyChannel
from pdsched.transfer.layout import PoolLayout


class _Address(msgspec.Struct, frozen=True):
    arena: ArenaAddress
    layout: PoolLayout


class _ArenaDirectory:
    """`PoolDirectory` over memfd arenas."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def publish(self, pool: Pool) -> bytes:
        """The pool must be the one that `pool_in` made of the arena."""
        layout = PoolLayout.of(pool)
        if pool.__array_interface__["data"][0] != self._arena.bytes().__array_interface__["data"][0]:
            raise ChannelError("the pool does not lie at the start of the arena")
        return msgspec.msgpack.encode(_Address(self._arena.address(), layout))

    def open(self, address: bytes) -> Pool:
        try:
            theirs = msgspec.msgpack.decode(address, type=_Address)
        except msgspec.DecodeError as exc:
            raise ChannelError(f"malformed shared-memory address: {exc}") from exc
        return pool_in(open_arena(theirs.arena), theirs.layout)

    def withdraw(self, address: bytes) -> None:
        """Nothing to do: the arena goes when its owner closes it."""


class SharedMemoryChannel(CopyChannel):
    """`KVChannel` between processes; the own pool lies in `arena`."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(_ArenaDirectory(arena))


def pool_in(arena: Arena, layout: PoolLayout) -> Pool:
    """The pool of this layout at the start of an arena. Raises `ChannelError` when it does not fit."""
    if layout.nbytes > arena.nbytes:
        raise ChannelError(f"a pool of {layout.nbytes} bytes does not fit an arena of {arena.nbytes}")
    pool: Pool = arena.bytes()[: layout.nbytes].view(layout.dtype).reshape(layout.shape)
    return pool
