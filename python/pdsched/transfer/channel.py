"""The channel that copies memory to memory, whatever makes the peer's pool visible: see `PoolDirectory`."""

from __future__ import annotations

from typing import Protocol

from pdsched.transfer.base import ChannelError, ChannelStats, Completion, PeerId, Pool, Runs
from pdsched.transfer.completions import CompletionQueue
from pdsched.transfer.copier import Copier
from pdsched.transfer.layout import PoolLayout


class PoolDirectory(Protocol):
    """Makes pools visible to each other under opaque addresses."""

    def publish(self, pool: Pool) -> bytes:
        """Make an own pool visible; returns its address."""

    def open(self, address: bytes) -> Pool:
        """The writable pool at an address. Raises `ChannelError` when there is none."""

    def withdraw(self, address: bytes) -> None:
        """Take an own pool back. Unknown addresses are ignored."""


class CopyChannel:
    """`KVChannel` by memory copy in one background thread."""

    def __init__(self, directory: PoolDirectory) -> None:
        self.stats = ChannelStats()
        self._directory = directory
        self._done = CompletionQueue()
        self._copier = Copier(self._done.put)
        self._peers: dict[PeerId, Pool] = {}
        self._pool: Pool | None = None
        self._address = b""
        self._closed = False

    def register(self, pool: Pool) -> bytes:
        """See `KVChannel.register`."""
        PoolLayout.of(pool)
        self._address = self._directory.publish(pool)
        self._pool = pool
        return self._address

    def connect(self, peer: PeerId, address: bytes) -> None:
        """See `KVChannel.connect`."""
        if self._pool is None:
            raise ChannelError("connect before register")
        theirs = self._directory.open(address)
        PoolLayout.of(self._pool).check_peer(PoolLayout.of(theirs))
        self._peers[peer] = theirs
        self._copier.touch(theirs)

    def start(self, transfer: int, peer: PeerId, chunk: int, runs: Runs) -> None:
        """See `KVChannel.start`."""
        target = self._peers.get(peer)
        if target is None or self._pool is None:
            self._done.put(Completion(transfer, peer, chunk, False, 0, 0.0, f"not connected to {peer}"))
        else:
            self._copier.put(transfer, peer, chunk, runs, self._pool, target)

    def poll(self) -> list[Completion]:
        """See `KVChannel.poll`."""
        return self._done.drain(self.stats)

    def fileno(self) -> int:
        """See `KVChannel.fileno`."""
        return self._done.fileno()

    def cancel(self, transfer: int, peer: PeerId) -> None:
        """See `KVChannel.cancel`."""
        self._copier.cancel(lambda its_transfer, its_peer: (its_transfer, its_peer) == (transfer, peer))

    def disconnect(self, peer: PeerId) -> None:
        """See `KVChannel.disconnect`."""
        self._copier.cancel(lambda _transfer, its_peer: its_peer == peer)
        self._peers.pop(peer, None)

    def close(self) -> None:
        """See `KVChannel.close`."""
        if self._closed:
            return
        self._closed = True
        self._copier.close()
        self._directory.withdraw(self._address)
        self._peers.clear()
        self._pool = None
        self._done.close()
