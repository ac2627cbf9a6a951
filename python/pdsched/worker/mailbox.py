"""Messages between parties of one machine over ZeroMQ: everyone binds one PULL socket and pushes to the others'.

Sending never blocks: a peer that does not read (stopped, stuck, dead) fills its queue and what comes after is dropped
and counted. The core expects messages to get lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import zmq

from pdsched.transfer import PeerId

Key = PeerId | int | None
"""Whom a message is for: a life of a worker, a worker whatever its life, or None for the cluster."""

HIGH_WATER_MARK = 4096
"""Messages queued for one peer before new ones are dropped."""


class Mailbox:
    """One party's letter box and its ways to others. Used by one thread."""

    def __init__(self, address: str, context: zmq.Context[zmq.Socket[bytes]] | None = None) -> None:
        """Bind at `address`, such as `ipc:///tmp/x/worker-1.sock`. Raises `zmq.ZMQError` when that cannot be."""
        self._own_context = context is None
        self._context = context or zmq.Context(io_threads=1)
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.set_hwm(HIGH_WATER_MARK)
        self._inbox.linger = 0
        self._peers: dict[Key, zmq.Socket[bytes]] = {}
        self.address = address
        try:
            self._inbox.bind(address)
        except zmq.ZMQError:
            self.close()
            raise
        self.dropped = 0
        """Messages that were not sent: the queue was full or the peer unknown."""

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """The inbox, to wait on with a `zmq.Poller`."""
        return self._inbox

    def fileno(self) -> int:
        """ZeroMQ's edge-triggered descriptor: after it was readable, `drain` until empty."""
        return int(self._inbox.fd)

    def connect(self, peer: Key, address: str) -> None:
        """Name the letter box of a peer. A new address replaces the old one."""
        self.disconnect(peer)
        socket = self._context.socket(zmq.PUSH)
        socket.set_hwm(HIGH_WATER_MARK)
        socket.linger = 0
        socket.connect(address)
        self._peers[peer] = socket

    def disconnect(self, peer: Key) -> None:
        """Forget a peer; what is queued for it is lost. Unknown peers are ignored."""
        socket = self._peers.pop(peer, None)
        if socket is not None:
            socket.close(linger=0)

    def disconnect_all(self) -> None:
        """Forget every peer."""
        for peer in list(self._peers):
            self.disconnect(peer)

    def send(self, peer: Key, data: bytes) -> bool:
        """Queue one message. False, and counted, when it was dropped."""
        socket = self._peers.get(peer)
        if socket is not None:
            try:
                socket.send(data, zmq.NOBLOCK)
                return True
            except zmq.Again:
                pass
        self.dropped += 1
        return False

    def drain(self) -> Iterator[bytes]:
        """Every message that is there, oldest first."""
        while True:
            try:
                yield self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return

    def close(self) -> None:
        """Close all sockets and remove the letter box."""
        self.disconnect_all()
        self._inbox.close(linger=0)
        with contextlib.suppress(OSError):
            Path(self.address.removeprefix("ipc://")).unlink(missing_ok=True)
        if self._own_context:
            self._context.term()
