"""What views and reports read: the figures that workers send beside the control path. Nothing here decides anything."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from pdsched.transfer import PeerId
from pdsched.worker.telemetry import StepRecord, Telemetry, TransferRecord, decode

KEPT_STEPS = 100_000
KEPT_TRANSFERS = 10_000


@dataclass(slots=True)
class WorkerFigures:
    """Newest figures of one life of a worker."""

    steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    cpu_ns: int = 0
    dropped_messages: int = 0


class Monitor:
    """Collects telemetry in an event loop, a few messages a second per worker."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self.workers: dict[PeerId, WorkerFigures] = {}
        self.transfers: dict[tuple[PeerId, PeerId, int], TransferRecord] = {}
        """By (source, destination, transfer), in the order of their beginning."""
        self._address = address
        self._socket = context.socket(zmq.PULL)
        self._socket.set_hwm(1024)
        self._socket.bind(address)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(int(self._socket.fd), self._read)
        self._read()

    def close(self) -> None:
        """Stop collecting; the figures stay."""
        self._loop.remove_reader(int(self._socket.fd))
        self._socket.close(linger=0)
        with contextlib.suppress(OSError):
            Path(self._address.removeprefix("ipc://")).unlink(missing_ok=True)

    def _read(self) -> None:
        while True:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            with contextlib.suppress(msgspec.MsgspecError):  # figures only: a garbled one is no loss
                self._take(decode(data))

    def _take(self, message: Telemetry) -> None:
        source = (message.worker, message.incarnation)
        figures = self.workers.setdefault(source, WorkerFigures())
        figures.steps.extend(message.steps)
        figures.cpu_ns = message.cpu_ns
        figures.dropped_messages = message.dropped_messages
        for record in message.transfers:
            self.transfers[source, (record.worker, record.incarnation), record.transfer] = record
        while len(self.transfers) > KEPT_TRANSFERS:
            self.transfers.pop(next(iter(self.transfers)))
