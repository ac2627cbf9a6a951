"""The launcher's end of a worker's control socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Self

from pdsched.engine.errors import EngineError
from pdsched.worker.control import (
    LENGTH_BYTES,
    Failed,
    Inspect,
    Inspection,
    KillPeer,
    Ready,
    ToWorker,
    decode_from_worker,
    encode,
)


class ControlClient:
    """Sends commands to one worker and keeps what it answers. Made by `open`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ready_incarnation = 0
        """The newest life that has begun."""
        self.failure: str | None = None
        """The worker's own reason for not starting."""
        self.on_kill: Callable[[KillPeer], None] = lambda _message: None
        """Called when the worker asks for the death of a peer."""
        self._reader = reader
        self._writer = writer
        self._changed = asyncio.Condition()
        self._inspections: deque[asyncio.Future[Inspection]] = deque()
        self._closed = False
        self._task = asyncio.create_task(self._read(), name="pdsched-control")

    @classmethod
    async def open(cls, sock: socket.socket) -> Self:
        """Take over a connected socket."""
        sock.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def send(self, message: ToWorker) -> None:
        """Send a command; one that cannot arrive any more is dropped, the worker's exit says why."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def wait_ready(self, incarnation: int) -> None:
        """Wait until this life has begun. Raises `EngineError` when the worker gave up or is gone."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.ready_incarnation >= incarnation or self.failure is not None or self._closed
            )
        if self.ready_incarnation < incarnation:
            raise EngineError(self.failure or "the worker is gone")

    async def inspect(self) -> Inspection:
        """Ask for the worker's integrity check and counters. Raises `EngineError` when it is gone."""
        if self._closed:
            raise EngineError("the worker is gone")
        answer: asyncio.Future[Inspection] = asyncio.get_running_loop().create_future()
        self._inspections.append(answer)
        self.send(Inspect())
        return await answer

    async def close(self) -> None:
        """Close the socket."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        try:
            while True:
                length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
                await self._handle(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._closed = True
            for answer in self._inspections:
                if not answer.done():
                    answer.set_exception(EngineError("the worker is gone"))
        async with self._changed:
            self._changed.notify_all()

    async def _handle(self, body: bytes) -> None:
        match decode_from_worker(body):
            case Ready(incarnation=incarnation):
                self.ready_incarnation = incarnation
            case Failed(reason=reason):
                self.failure = reason
            case KillPeer() as message:
                self.on_kill(message)
            case Inspection() as answer:
                waiting = self._inspections.popleft()
                if not waiting.done():
                    waiting.set_result(answer)
        async with self._changed:
            self._changed.notify_all()
