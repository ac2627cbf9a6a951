"""Runs one set-up under one scenario and keeps the times of every token."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pdsched.demo.scenario import LEAD_SECONDS, LONG_ANSWER, Scenario, Tokens
from pdsched.demo.snapshot import Names
from pdsched.engine import Engine
from pdsched.engine.stats import RequestStats

MAX_STREAM_TOKENS = 4000
"""Streams run until they are ended; this only keeps a forgotten one finite."""
BASELINE_GAPS = 600
"""Gaps that a baseline collects …"""
BASELINE_SECONDS = 30.0
"""… unless that takes longer than this."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run brought. Times in nanoseconds of one monotonic clock."""

    key: str
    start_ns: int
    """The window begins with the arrival of the first long prompt …"""
    end_ns: int
    """… and ends with the first token of the last one (or when enough gaps are there, without long prompts)."""
    streams: list[RequestStats]
    longs: list[RequestStats]
    prefill_tokens: int
    """Prompt tokens that workers computed within the window."""
    decode_batch: float
    """Mean number of decodes per decode step within the window."""
    engine_cpu: float
    """Share of one core that this process (engine and view) used within the window."""

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return (self.end_ns - self.start_ns) / 1e9

    def gaps_s(self) -> npt.NDArray[np.float64]:
        """Every inter-token latency of the streams that lies in the window, even in part; in seconds."""
        return np.concatenate([_in_window(stats, self.start_ns, self.end_ns)[1] for stats in self.streams])

    def gap_points(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """(end of the gap in seconds since the window's start, gap in seconds), for the picture."""
        parts = [_in_window(stats, self.start_ns, self.end_ns) for stats in self.streams]
        return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])

    def spans_s(self) -> list[tuple[float, float]]:
        """When each long prompt arrived and had its first token, in seconds since the window's start."""
        return [
            ((stats.submitted_ns - self.start_ns) / 1e9, (stats.token_ns[0] - self.start_ns) / 1e9)
            for stats in self.longs
            if stats.token_ns
        ]

    def tokens_per_s(self) -> float:
        """Output tokens of all requests per second of the window."""
        times = np.concatenate([np.asarray(s.token_ns, dtype=np.int64) for s in [*self.streams, *self.longs]])
        return float(((times > self.start_ns) & (times <= self.end_ns)).sum() / self.seconds)


def _in_window(stats: RequestStats, start: int, end: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    ends, gaps = stats.gap_ends_ns(), stats.gaps_ns()
    inside = (ends > start) & (ends - gaps < end)
    return (ends[inside] - start) / 1e9, gaps[inside] / 1e9


class Clients:
    """The callers of a run: each is a task that reads its stream."""

    def __init__(self, engine: Engine, names: Names) -> None:
        self._engine = engine
        self._names = names
        self._tasks: list[asyncio.Task[None]] = []

    def ask(self, name: str, prompt: Tokens, max_tokens: int) -> asyncio.Future[RequestStats]:
        """Begin a request; the future is done with its first token."""
        first: asyncio.Future[RequestStats] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._read(name, prompt, max_tokens, first), name=f"pdsched-client-{name}")
        self._tasks.append(task)
        return first

    async def end(self) -> None:
        """Leave: unfinished requests are aborted."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, name: str, prompt: Tokens, max_tokens: int, first: asyncio.Future[RequestStats]) -> None:
        number = self._engine.next_id()
        self._names.names[number] = name
        outputs = self._engine.generate(prompt, max_tokens=max_tokens, ignore_eos=True, request_id=number, decode=False)
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    if len(output.token_ids) and not first.done():
                        first.set_result(self._engine.requests[number])
                    if output.finished and not first.done():
                        raise RuntimeError(f"request {name!r} ended without a token: {output.reason}")
        except Exception as exc:
            if first.done():
                raise
            first.set_exception(exc)


@contextlib.asynccontextmanager
async def _clients(engine: Engine, names: Names) -> AsyncIterator[Clients]:
    clients = Clients(engine, names)
    engine.forget()
    try:
        yield clients
    finally:
        await clients.end()
        await idle(engine)


async def measure(engine: Engine, key: str, scenario: Scenario, names: Names, at_least_s: float = 0.0) -> Measurement:
    """Streams first; when all decode, the long prompts at their times, until the last one has its first token.

    `at_least_s` keeps the window open, up to that length, until `BASELINE_GAPS` gaps are in it.
    """
    async with _clients(engine, names) as clients:
        streams = await _start_streams(clients, scenario.streams)
        await asyncio.sleep(LEAD_SECONDS)
        window = _Window(engine)
        waits: list[asyncio.Future[RequestStats]] = []
        for i, (name, prompt) in enumerate(scenario.longs):
            await asyncio.sleep(max(0.0, window.start_ns / 1e9 + i * scenario.spacing_s - time.monotonic()))
            waits.append(clients.ask(name, prompt, LONG_ANSWER))
        longs = list(await asyncio.gather(*waits))
        while window.seconds() < at_least_s and window.gaps(streams) < BASELINE_GAPS:
            await asyncio.sleep(0.2)
        return await window.close(key, streams, longs)


async def measure_decode_only(engine: Engine, key: str, scenario: Scenario, names: Names) -> Measurement:
    """The streams and one decoding long prompt per worker, all prefilled before the clock starts."""
    async with _clients(engine, names) as clients:
        waits = [clients.ask(name, prompt, MAX_STREAM_TOKENS) for name, prompt in scenario.longs[:2]]
        longs = list(await asyncio.gather(*waits))
        streams = await _start_streams(clients, scenario.streams)
        await asyncio.sleep(LEAD_SECONDS)
        window = _Window(engine)
        while window.gaps(streams) < BASELINE_GAPS and window.seconds() < BASELINE_SECONDS:
            await asyncio.sleep(0.2)
        return await window.close(key, streams, longs)


async def idle(engine: Engine, timeout: float = 30.0) -> None:
    """Wait until no worker holds anything: ends travel to the workers as messages."""
    async with asyncio.timeout(timeout):
        while any(load.held or load.booked for load in engine.loads()):
            await asyncio.sleep(0.1)


async def _start_streams(clients: Clients, streams: Sequence[tuple[str, Tokens]]) -> list[RequestStats]:
    return list(await asyncio.gather(*(clients.ask(name, prompt, MAX_STREAM_TOKENS) for name, prompt in streams)))


class _Window:
    """The measured stretch of a run."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cpu = _cpu_seconds()
        self.start_ns = time.monotonic_ns()

    def seconds(self) -> float:
        """Its length so far."""
        return (time.monotonic_ns() - self.start_ns) / 1e9

    def gaps(self, streams: Sequence[RequestStats]) -> int:
        """Gaps that ended in it so far."""
        return sum(int((stats.gap_ends_ns() > self.start_ns).sum()) for stats in streams)

    async def close(self, key: str, streams: list[RequestStats], longs: list[RequestStats]) -> Measurement:
        """End it now, and wait for the workers' figures of it."""
        end_ns = time.monotonic_ns()
        cpu = (_cpu_seconds() - self._cpu) / ((end_ns - self.start_ns) / 1e9)
        await asyncio.sleep(0.5)
        steps = [
            step
            for figures in self._engine.monitor.workers.values()
            for step in figures.steps
            if self.start_ns < step.end_ns <= end_ns
        ]
        prefill = sum(step.num_tokens - step.num_decodes for step in steps)
        batches = [step.num_decodes for step in steps if step.num_decodes]
        batch = float(np.mean(batches)) if batches else 0.0
        return Measurement(key, self.start_ns, end_ns, streams, longs, prefill, batch, cpu)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system
