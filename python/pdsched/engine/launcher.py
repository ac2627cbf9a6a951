"""Starts worker processes, watches them, and leaves none behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from pdsched.engine.config import EngineConfig, WorkerSpec
from pdsched.engine.errors import EngineError, WorkerStartError
from pdsched.engine.worker_process import Exit, WorkerProcess
from pdsched.model.info import ModelInfo, resolve_model
from pdsched.model.kv_pool import KVLayout
from pdsched.transfer import ChannelError, PeerId, create_arena
from pdsched.worker.control import Inspection, Life, Reconfigure, Start

OnExit = Callable[[PeerId, Exit], None]


class Launcher:
    """The worker processes of one engine. There is no restart: a dead worker stays dead."""

    def __init__(self, config: EngineConfig, info: ModelInfo, on_exit: OnExit) -> None:
        """`on_exit` is called in the event loop, once for each worker that ended without being told to."""
        self.config = config
        self.folder = Path(tempfile.mkdtemp(prefix="pdsched-"))
        self.workers: dict[int, WorkerProcess] = {}
        self._info = info
        self._on_exit = on_exit
        self._incarnations = itertools.count(1)
        self._max_model_len = min(config.max_model_len or info.max_length, info.max_length)

    @property
    def cluster_mailbox(self) -> str:
        """Where workers send the core's messages."""
        return f"ipc://{self.folder}/cluster"

    @property
    def worker_ids(self) -> range:
        """Workers are numbered from 1 in the order of the configuration."""
        return range(1, len(self.config.workers) + 1)

    def mailbox(self, worker_id: int) -> str:
        """Where a worker takes the core's messages, through all of its lives."""
        return f"ipc://{self.folder}/worker-{worker_id}"

    @property
    def telemetry(self) -> str:
        """Where workers send their figures."""
        return f"ipc://{self.folder}/telemetry"

    async def start(self) -> None:
        """Start all workers and wait until each is ready.

        Raises `WorkerStartError` with the reason of the first that is not; the others are ended by `close`.
        """
        for worker_id, spec in zip(self.worker_ids, self.config.workers, strict=True):
            await self._spawn(worker_id, spec)
        await self._all(worker.ready() for worker in self.workers.values())

    async def reconfigure(self, specs: list[WorkerSpec]) -> None:
        """Give each living worker, in the order of their ids, a new life with another role and scheduler."""
        living = [worker for worker in self.workers.values() if worker.alive]
        if len(specs) != len(living):
            raise EngineError(f"{len(specs)} worker specs were given, {len(living)} workers are alive")
        for worker, spec in zip(living, specs, strict=True):
            life = self._life(spec)
            worker.reborn(life.incarnation, spec)
            worker.control.send(Reconfigure(life))
        await self._all(worker.ready() for worker in living)

    async def inspect(self, worker_id: int) -> Inspection:
        """The integrity check and the counters of a worker. Raises `EngineError` for one that is not there."""
        return await self.worker(worker_id).control.inspect()

    def worker(self, worker_id: int) -> WorkerProcess:
        """A living worker. Raises `EngineError` naming the id otherwise."""
        worker = self.workers.get(worker_id)
        if worker is None or not worker.alive:
            living = [number for number, process in self.workers.items() if process.alive]
            raise EngineError(f"no living worker {worker_id}; living: {living}")
        return worker

    def signal(self, worker_id: int, number: signal.Signals) -> None:
        """Send a signal to a worker; SIGKILL is a crash as the engine sees it."""
        self.worker(worker_id).signal(number)

    async def close(self) -> None:
        """End every worker, first kindly, then not, and remove every trace. Idempotent."""
        await asyncio.gather(*(worker.end() for worker in self.workers.values()))
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _spawn(self, worker_id: int, spec: WorkerSpec) -> None:
        layout = KVLayout.of(self._info, self.config.block_size)
        nbytes = layout.block_nbytes * self.config.num_blocks
        try:
            arena_fd = await asyncio.to_thread(create_arena, nbytes)
        except ChannelError as exc:
            raise WorkerStartError(f"worker {worker_id}: {exc}") from exc
        life = self._life(spec)
        start = Start(
            worker_id=worker_id,
            model=str(resolve_model(self.config.model)),
            core=spec.core,
            threads=self.config.threads,
            block_size=self.config.block_size,
            num_blocks=self.config.num_blocks,
            arena_fd=arena_fd,
            mailbox=self.mailbox(worker_id),
            cluster_mailbox=self.cluster_mailbox,
            telemetry=self.telemetry,
            record=None if self.config.record is None else str(self.config.record),
            life=life,
        )
        self.workers[worker_id] = await WorkerProcess.spawn(start, spec, self._exited, self._kill_peer)

    def _life(self, spec: WorkerSpec) -> Life:
        eos = self._info.eos_token_ids[0] if self._info.eos_token_ids else None
        arguments = spec.scheduler_arguments(self._max_model_len, eos, self.config.kv_tokens)
        return Life(next(self._incarnations), spec.role, arguments, spec.worker)

    async def _all(self, waits: Iterable[Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self.config.start_timeout):
                await asyncio.gather(*waits)
        except TimeoutError:
            late = [worker.start.worker_id for worker in self.workers.values() if not worker.is_ready]
            text = f"workers {late} were not ready after {self.config.start_timeout} s"
            raise WorkerStartError(text) from None

    def _exited(self, worker: WorkerProcess, end: Exit) -> None:
        self._on_exit(worker.peer, end)

    def _kill_peer(self, peer: PeerId) -> None:
        """A worker asks for the death of another: its fence stays unanswered. Its exit is reported like any other."""
        worker = self.workers.get(peer[0])
        if worker is not None and worker.alive and worker.peer == peer:
            with contextlib.suppress(EngineError):
                worker.signal(signal.SIGKILL)
