"""The asyncio engine: requests in, streams of tokens out.

Who runs where, when and again is decided by the core's `Cluster` and the workers' `Worker`s; this class starts
processes, hands requests in and tokens out.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import zmq

from pdsched import _core
from pdsched.engine.config import EngineConfig, WorkerSpec, check_roles
from pdsched.engine.driver import Action, ClusterDriver
from pdsched.engine.errors import EngineError
from pdsched.engine.launcher import Launcher
from pdsched.engine.monitor import Monitor
from pdsched.engine.output import Piece, RequestOutput, TokenStream
from pdsched.engine.stats import RequestStats, WorkerLoad
from pdsched.engine.worker_process import Exit
from pdsched.model.info import ModelInfo
from pdsched.model.sampling import GREEDY, SamplingParams
from pdsched.model.tokenizer import TextStream, Tokenizer
from pdsched.transfer import PeerId
from pdsched.worker.control import Inspection
from pdsched.worker.event_log import EventLog, cluster_log
from pdsched.worker.mailbox import Mailbox

KEPT_REQUESTS = 1000
"""Requests whose statistics are kept, those that are unfinished not counted."""
EPOCH = 1
"""The workers are this engine's own children: they have seen no other cluster."""

Prompt = str | Sequence[int] | npt.NDArray[np.integer] | Sequence[Mapping[str, str]]
"""Plain text, token ids, or a chat: mappings with `role` and `content`."""


class Engine:
    """Use as `async with Engine(config) as engine`. One event loop, which must run in the thread that outlives it."""

    def __init__(self, config: EngineConfig) -> None:
        """Reads the model's facts; raises `ModelError` for an unknown folder. Starts nothing."""
        self.config = config
        self.info = ModelInfo.load(config.model)
        self.requests: dict[int, RequestStats] = {}
        """Requests since the last `forget`, by id, in the order of submission; of the finished ones the newest."""
        self.exits: list[tuple[PeerId, Exit]] = []
        """Workers that ended without being told to."""
        self.workers_up: dict[PeerId, str] = {}
        """Role of each worker that the cluster counts on."""
        self._ids = itertools.count(1)
        self._streams: dict[int, TokenStream] = {}
        self._tokenizer: Tokenizer | None = None
        self._refused: dict[PeerId, str] = {}
        self._up = asyncio.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._launcher: Launcher | None = None
        self._mailbox: Mailbox | None = None
        self._driver: ClusterDriver | None = None
        self._monitor: Monitor | None = None
        self._log: EventLog | None = None

    async def __aenter__(self) -> Self:
        """Start the workers. Raises `WorkerStartError` when one does not start; nothing is left then."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, loaded when it is first needed. Raises `ModelError` when the model has none."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.load(self.config.model)
        return self._tokenizer

    @property
    def monitor(self) -> Monitor:
        """Figures that the workers sent."""
        return _running(self._monitor)

    def loads(self) -> list[WorkerLoad]:
        """How full each worker is, as the cluster sees it."""
        return [WorkerLoad(**load) for load in _running(self._driver).cluster.loads()]

    def next_id(self) -> int:
        """A request number that this engine has not given out yet, for `generate(request_id=...)`."""
        return next(self._ids)

    def encode(self, prompt: Prompt) -> npt.NDArray[np.integer]:
        """Token ids of a prompt. Raises `ModelError` when text is given and the model has no tokenizer or template."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if len(prompt) and isinstance(prompt[0], Mapping):
            return self.tokenizer.chat([part for part in prompt if isinstance(part, Mapping)])
        return np.asarray(prompt, dtype=np.int64)

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams = GREEDY,
        *,
        max_tokens: int = 128,
        min_tokens: int = 0,
        stop_token_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        request_id: int | None = None,
        namespace: int = 0,
        decode: bool = True,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answer to one prompt; the last output has `finished` and a reason.

        With `decode` false no text is made, and no tokenizer is needed for a prompt of token ids. Leaving the iteration
        early (break, cancel, close) ends the request. Raises `ValueError` naming the value for a request that can never
        be served: empty prompt, longer than model or pool, a number in use, a value out of range.
        """
        driver = _running(self._driver)
        if max_tokens < 1 or min_tokens < 0:
            raise ValueError(
                f"max_tokens must be at least 1 and min_tokens at least 0, got {max_tokens} and {min_tokens}"
            )
        token_ids = self.encode(prompt)
        text = self.tokenizer.stream() if decode else None
        number = self.next_id() if request_id is None else request_id
        stops, extra = self._stops(sampling, min_tokens, stop_token_ids, ignore_eos)
        request = _core.Request(
            number, token_ids, max_tokens, min_tokens=min_tokens, stop_token_ids=stops, ignore_eos=ignore_eos,
            namespace=namespace, extra=extra,
        )  # fmt: skip
        if number in self._streams:
            raise ValueError(f"request id {number} is in use by an unfinished request")
        stream = self._streams[number] = TokenStream(number)
        self.requests[number] = RequestStats(number, len(token_ids), time.monotonic_ns())
        self._drop_oldest()
        try:
            driver.submit(request)
        except BaseException:
            del self._streams[number], self.requests[number]
            raise
        try:
            while True:
                piece = await stream.get()
                yield _output(number, piece, text)
                if piece.reason is not None:
                    return
        finally:
            if self._streams.get(number) is stream:  # the caller left first
                driver.abort(number)
                self._streams.pop(number, None)

    async def reconfigure(self, specs: list[WorkerSpec]) -> None:
        """Give the living workers new roles and schedulers; processes, models and pools stay.

        Raises `EngineError` while requests are unfinished.
        """
        check_roles(specs)
        if self._streams:
            raise EngineError(f"cannot reconfigure while {len(self._streams)} requests are unfinished")
        launcher, driver = _running(self._launcher), _running(self._driver)
        old = [worker.peer for worker in launcher.workers.values() if worker.alive]
        await launcher.reconfigure(specs)
        for peer in old:  # its successor is ready: nothing of the old life runs any more
            driver.worker_dead(peer)
        await self._wait_up()

    async def inspect(self, worker_id: int) -> Inspection:
        """A worker's integrity check and counters."""
        return await _running(self._launcher).inspect(worker_id)

    def signal(self, worker_id: int, number: signal.Signals) -> None:
        """Send a signal to a worker's process (for tests of failure). Raises `EngineError` when it has ended."""
        _running(self._launcher).signal(worker_id, number)

    def kill(self, worker_id: int) -> None:
        """Kill a worker's process, as a crash would."""
        self.signal(worker_id, signal.SIGKILL)

    def pid(self, worker_id: int) -> int:
        """Process id of a living worker."""
        return _running(self._launcher).worker(worker_id).pid

    def forget(self) -> None:
        """Drop the statistics of finished requests."""
        self.requests = {number: stats for number, stats in self.requests.items() if number in self._streams}

    async def close(self) -> None:
        """End every worker and every stream; what is unfinished ends with reason `abort`. Idempotent."""
        for stream in list(self._streams.values()):
            stream.put(Piece(_NO_TOKENS, 0, "abort"))
        self._streams.clear()
        if self._launcher is not None:
            await self._launcher.close()
        for part in (self._driver, self._monitor, self._mailbox, self._log):
            if part is not None:
                part.close()
        if self._context is not None:
            self._context.destroy(linger=0)
        self._launcher = self._driver = self._monitor = self._mailbox = self._log = self._context = None

    async def _start(self) -> None:
        launcher = self._launcher = Launcher(self.config, self.info, self._worker_exited)
        self._context = zmq.Context(io_threads=1)
        self._mailbox = Mailbox(launcher.cluster_mailbox, self._context)
        self._monitor = Monitor(self._context, launcher.telemetry)
        record = self.config.record
        self._log = None if record is None else cluster_log(str(record))
        cluster = _core.Cluster(_core.ClusterConfig(EPOCH, **self.config.cluster), record=record is not None)
        self._driver = ClusterDriver(cluster, self._mailbox, self._log, self._perform)
        for worker_id in launcher.worker_ids:
            self._mailbox.connect(worker_id, launcher.mailbox(worker_id))
        await launcher.start()
        await self._wait_up()

    async def _wait_up(self) -> None:
        """Until the cluster has accepted every living worker in its present life."""
        launcher = _running(self._launcher)
        async with asyncio.timeout(self.config.start_timeout):
            while True:
                wanted = {worker.peer for worker in launcher.workers.values() if worker.alive}
                if refused := wanted & self._refused.keys():
                    peer = min(refused)
                    raise EngineError(f"worker {peer} was refused: {self._refused[peer]}")
                if wanted <= self.workers_up.keys():
                    return
                self._up.clear()
                await self._up.wait()

    def _worker_exited(self, peer: PeerId, end: Exit) -> None:
        self.exits.append((peer, end))
        self._up.set()
        if self._driver is not None and self._mailbox is not None:
            self._mailbox.disconnect(peer[0])
            self._driver.worker_dead(peer)

    def _drop_oldest(self) -> None:
        """A server runs for months: statistics of finished requests do not pile up."""
        excess = len(self.requests) - len(self._streams) - KEPT_REQUESTS
        if excess > 0:
            finished = (number for number in self.requests if number not in self._streams)
            for number in list(itertools.islice(finished, excess)):
                del self.requests[number]

    def _stops(
        self, sampling: SamplingParams, min_tokens: int, stop_token_ids: Sequence[int], ignore_eos: bool
    ) -> tuple[tuple[int, ...], bytes]:
        """Stop tokens for the scheduler, and what the runner must know: which tokens may not come before `min_tokens`.

        The scheduler knows the model's first end-of-sequence token by itself; further ones become stop tokens.
        """
        eos = () if ignore_eos else self.info.eos_token_ids
        stops = (*stop_token_ids, *eos[1:])
        if min_tokens:
            late = (*stop_token_ids, *eos)
            sampling = msgspec.structs.replace(sampling, min_tokens=min_tokens, stop_token_ids=late)
        return stops, sampling.encode()

    def _perform(self, action: Action) -> None:
        """One action of the cluster that is not a message."""
        match action:
            case _core.Emit():
                self._emit(action)
            case _core.Finish():
                self._finish(action)
            case _core.Entered():
                if (stats := self.requests.get(action.request)) is not None:
                    stats.enter(action.phase, action.prefill, action.decode)
            case _core.WorkerUp():
                self.workers_up[action.peer] = action.role
                self._up.set()
            case _core.WorkerDown():
                self.workers_up.pop(action.peer, None)
            case _core.WorkerRefused():
                self._refused[action.peer] = action.reason
                self._up.set()

    def _emit(self, action: _core.Emit) -> None:
        if (stats := self.requests.get(action.request)) is not None:
            stats.token_ns.extend([time.monotonic_ns()] * len(action.token_ids))
        if (stream := self._streams.get(action.request)) is not None:
            stream.put(Piece(action.token_ids, action.index))

    def _finish(self, action: _core.Finish) -> None:
        if (stats := self.requests.get(action.request)) is not None:
            stats.finished_ns, stats.reason, stats.state = time.monotonic_ns(), action.reason, "finished"
        if (stream := self._streams.pop(action.request, None)) is not None:
            index = len(stats.token_ns) if stats is not None else 0
            stream.put(Piece(_NO_TOKENS, index, action.reason, action.detail, tuple(action.timing)))


T = TypeVar("T")
_NO_TOKENS: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)


def _output(number: int, piece: Piece, text: TextStream | None) -> RequestOutput:
    words = "" if text is None else "".join([text.push(token) for token in piece.token_ids.tolist()])
    ended = piece.reason is not None
    return RequestOutput(number, piece.token_ids, piece.index, words, ended, piece.reason, piece.detail, piece.timing)


def _running(part: T | None) -> T:
    if part is None:
        raise EngineError("the engine is not running")
    return part
