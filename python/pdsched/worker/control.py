"""Control traffic between a launcher and a worker process: a socket pair, length-prefixed msgpack both ways.

It carries what is no business of the core: start-up and its errors, a new role, a request to kill a peer, stop. The
socket's end of file is how a worker learns that its launcher is gone.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec

LENGTH_BYTES = 4


class Life(msgspec.Struct, frozen=True):
    """One life of a worker: what a new core `Worker` is made of."""

    incarnation: int
    role: str
    scheduler: dict[str, Any]
    """Keyword arguments of `SchedulerConfig`."""
    worker: dict[str, Any] = {}
    """Further keyword arguments of the core's `Worker`."""


class Start(msgspec.Struct, frozen=True, tag=True):
    """Launcher → worker, first: what the process is for its whole time."""

    worker_id: int
    model: str
    """Folder of the model."""
    core: int | None
    """CPU core to stay on; None leaves it to the system."""
    threads: int
    """Torch threads."""
    block_size: int
    num_blocks: int
    arena_fd: int
    mailbox: str
    cluster_mailbox: str
    telemetry: str
    record: str | None
    """Folder for the event log; None records nothing."""
    life: Life


class Reconfigure(msgspec.Struct, frozen=True, tag=True):
    """Launcher → worker: end this life and begin another, with the same process, model and pool."""

    life: Life


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Launcher → worker: check your integrity and say how full you are."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Launcher → worker: end now."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Worker → launcher: a life has begun."""

    incarnation: int
    seconds: float
    """Time since `Start` or `Reconfigure`."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Worker → launcher: it cannot start, for this reason; it exits."""

    reason: str


class Inspection(msgspec.Struct, frozen=True, tag=True):
    """Worker → launcher: the answer to `Inspect`."""

    problem: str | None
    """What the integrity check found; None when all is well."""
    figures: dict[str, int]
    """The worker's counters, by name."""


class KillPeer(msgspec.Struct, frozen=True, tag=True):
    """Worker → launcher: this life of a peer does not answer a fence; make sure that it writes no more."""

    worker: int
    incarnation: int


ToWorker = Start | Reconfigure | Inspect | Stop
FromWorker = Ready | Failed | Inspection | KillPeer

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker) -> bytes:
    """A message as one frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_from_worker(body: bytes) -> FromWorker:
    """A frame's body as the launcher reads it."""
    return _from_worker.decode(body)


class WorkerControl:
    """The worker's end. Receiving never blocks except in `wait_start`; sending may, for the launcher always reads."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._buffer = bytearray()
        self.closed = False
        """The launcher is gone."""

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, message: FromWorker) -> None:
        """Send to the launcher; a launcher that is gone sets `closed`."""
        try:
            self._socket.sendall(encode(message))
        except OSError:
            self.closed = True

    def wait_start(self) -> Start | None:
        """Block until the first message is there; None when the launcher went away instead."""
        while not self.closed:
            for message in self._read(0):
                return message if isinstance(message, Start) else None
        return None

    def receive(self) -> Iterator[ToWorker]:
        """Messages that have arrived."""
        return self._read(socket.MSG_DONTWAIT)

    def _read(self, flags: int) -> Iterator[ToWorker]:
        try:
            data = self._socket.recv(1 << 16, flags)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.closed = self.closed or not data
        self._buffer += data
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[LENGTH_BYTES:end])
            del self._buffer[:end]
            yield _to_worker.decode(body)
