"""The channel between workers of one process: pools find each other in a shared registry."""

from __future__ import annotations

import itertools

from pdsched.transfer.base import ChannelError, Pool
from pdsched.transfer.channel import CopyChannel


class LocalHub:
    """The registry, a `PoolDirectory`: one per group of workers that shall reach each other."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pools: dict[bytes, Pool] = {}

    def publish(self, pool: Pool) -> bytes:
        """Register a pool and return its address."""
        address = b"local:%d" % next(self._numbers)
        self._pools[address] = pool
        return address

    def open(self, address: bytes) -> Pool:
        """The pool at `address`. Raises `ChannelError` for an unknown one."""
        try:
            return self._pools[address]
        except KeyError:
            raise ChannelError(f"no pool at address {address!r} in this process") from None

    def withdraw(self, address: bytes) -> None:
        """Forget a pool; unknown addresses are ignored."""
        self._pools.pop(address, None)


class LocalChannel(CopyChannel):
    """`KVChannel` between pools of one process that share a `LocalHub`."""

    def __init__(self, hub: LocalHub) -> None:
        super().__init__(hub)
