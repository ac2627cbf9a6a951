"""One worker process as its launcher sees it: the process itself, its control socket, its standard error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from pdsched.engine.config import WorkerSpec
from pdsched.engine.control import ControlClient
from pdsched.engine.errors import EngineError, WorkerStartError
from pdsched.transfer import PeerId
from pdsched.worker.control import Start, Stop

STDERR_LINES = 20
STOP_SECONDS = 5.0
"""How long a worker may take to end by itself."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended."""

    status: int
    """Exit status, or minus the number of the signal that ended it."""
    stderr: str
    """Its last lines."""

    def __str__(self) -> str:
        how = f"signal {signal.Signals(-self.status).name}" if self.status < 0 else f"status {self.status}"
        return f"ended by {how}" + (f"; its last words:\n{self.stderr}" if self.stderr else "")


class WorkerProcess:
    """Made by `spawn`. Its exit is noticed by pidfd, so a recycled process number is never mistaken for it."""

    def __init__(self, start: Start, spec: WorkerSpec, popen: subprocess.Popen[bytes], control: ControlClient) -> None:
        self.start = start
        self.spec = spec
        self.control = control
        self.peer: PeerId = (start.worker_id, start.life.incarnation)
        self.pid = popen.pid
        self.exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._popen = popen
        self._pidfd = os.pidfd_open(popen.pid)
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._partial = b""
        self._ending = False

    @classmethod
    async def spawn(
        cls,
        start: Start,
        spec: WorkerSpec,
        on_exit: Callable[[WorkerProcess, Exit], None],
        on_kill: Callable[[PeerId], None],
    ) -> Self:
        """Start the process and hand it its configuration. Takes over (closes) `start.arena_fd`."""
        ours, theirs = socket.socketpair()
        env = dict(os.environ, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
        env |= {name: str(start.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        try:
            # From this very thread: the kernel ends the worker when the thread that started it ends.
            popen = subprocess.Popen(
                [sys.executable, "-m", "pdsched.worker.process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(), start.arena_fd),
                start_new_session=True,
                env=env,
            )
        except OSError as exc:
            ours.close()
            raise WorkerStartError(f"worker {start.worker_id} cannot be started: {exc}") from exc
        finally:
            theirs.close()
            os.close(start.arena_fd)
        control = await ControlClient.open(ours)
        worker = cls(start, spec, popen, control)
        control.on_kill = lambda message: on_kill((message.worker, message.incarnation))
        worker._watch(on_exit)
        control.send(start)
        return worker

    @property
    def alive(self) -> bool:
        """It has not ended yet."""
        return not self.exit.done()

    @property
    def is_ready(self) -> bool:
        """Its present life has begun."""
        return self.control.ready_incarnation == self.peer[1]

    def reborn(self, incarnation: int, spec: WorkerSpec) -> None:
        """The next life is on its way."""
        self.peer = (self.start.worker_id, incarnation)
        self.spec = spec

    async def ready(self) -> None:
        """Wait until the present life has begun. Raises `WorkerStartError` with the reason when it does not."""
        waiting = asyncio.ensure_future(self.control.wait_ready(self.peer[1]))
        try:
            both: set[asyncio.Future[None] | asyncio.Future[Exit]] = {waiting, self.exit}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done() and waiting.exception() is None:
                return
            reason = self.control.failure or str(await self.exit)
            raise WorkerStartError(f"worker {self.start.worker_id} ({self.spec.role}) did not start: {reason}")
        finally:
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, EngineError):
                await waiting

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Raises `EngineError` when the process has ended."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except (OSError, ValueError) as exc:
            raise EngineError(f"worker {self.start.worker_id} has ended") from exc

    async def end(self) -> None:
        """Ask it to stop, wait a little, kill it, reap it. One that is still starting is killed at once."""
        self._ending = True
        if self.is_ready:
            self.control.send(Stop())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.exit), STOP_SECONDS)
        if self.alive:
            self.signal(signal.SIGKILL)
            await self.exit
        await self.control.close()

    def _watch(self, on_exit: Callable[[WorkerProcess, Exit], None]) -> None:
        loop = asyncio.get_running_loop()
        assert self._popen.stderr is not None
        stderr = self._popen.stderr.fileno()
        os.set_blocking(stderr, False)
        loop.add_reader(stderr, self._read_stderr)

        def ended() -> None:
            loop.remove_reader(self._pidfd)
            self._read_stderr()
            loop.remove_reader(stderr)
            end = Exit(self._popen.wait(), "\n".join(self._stderr))
            assert self._popen.stderr is not None
            self._popen.stderr.close()
            os.close(self._pidfd)
            self._pidfd = -1
            self.exit.set_result(end)
            if not self._ending:
                on_exit(self, end)

        loop.add_reader(self._pidfd, ended)

    def _read_stderr(self) -> None:
        """Keep the last lines."""
        assert self._popen.stderr is not None
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._popen.stderr.fileno(), 1 << 16):
                *lines, self._partial = (self._partial + data).split(b"\n")
                self._stderr.extend(line.decode(errors="replace") for line in lines)
            asyncio.get_running_loop().remove_reader(self._popen.stderr.fileno())
