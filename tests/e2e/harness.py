"""Real worker processes in tests: a tiny model on disk, its own `generate` as the truth, engines that tests share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pdsched.engine import Engine, EngineConfig, WorkerSpec
from pdsched.engine.stats import RequestStats
from pdsched.model.sampling import GREEDY, SamplingParams

T = TypeVar("T")
CHUNK = 256
VOCABULARY = 512


def prompt_of(length: int, seed: int) -> npt.NDArray[np.int64]:
    """A random prompt."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, length)


class Reference:
    """What the model itself says, computed once per question."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._known: dict[tuple[bytes, int], list[int]] = {}

    def greedy(self, prompt: npt.NDArray[np.int64], count: int) -> list[int]:
        """The model's own unpadded greedy `generate`."""
        import torch

        key = (prompt.tobytes(), count)
        if key not in self._known:
            ids = torch.from_numpy(prompt)[None]
            out = self._model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
            self._known[key] = out[0, len(prompt) :].tolist()
        return self._known[key]


@dataclass
class Live:
    """A running engine and its loop, for tests that are plain functions."""

    engine: Engine
    runner: asyncio.Runner

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
        """Run a coroutine in the engine's loop."""

        async def limited() -> T:
            async with asyncio.timeout(timeout):
                return await work

        return self.runner.run(limited())


@contextlib.contextmanager
def live_engine(model: Path, specs: list[WorkerSpec], **settings: Any) -> Iterator[Live]:
    """An engine for as long as the block runs."""
    with asyncio.Runner() as runner:
        engine = runner.run(Engine(EngineConfig(model, specs, **settings)).__aenter__())
        try:
            yield Live(engine, runner)
        finally:
            runner.run(engine.close())


@dataclass
class Answer:
    """What a client got."""

    tokens: list[int] = field(default_factory=list)
    reason: str | None = None
    stats: RequestStats | None = None


async def ask(
    engine: Engine,
    prompt: npt.NDArray[np.int64],
    count: int,
    sampling: SamplingParams = GREEDY,
    on_tokens: Callable[[RequestStats], None] = lambda _stats: None,
) -> Answer:
    """Ask and collect; `on_tokens` is called after each piece. Checks that indices have neither gap nor repeat."""
    answer = Answer()
    number = engine.next_id()
    async for output in engine.generate(prompt, sampling, max_tokens=count, request_id=number, decode=False):
        assert output.index == len(answer.tokens)
        answer.tokens += output.token_ids.tolist()
        answer.stats = engine.requests[number]
        answer.reason = output.reason
        on_tokens(answer.stats)
    return answer


async def until(condition: Callable[[], bool], timeout: float = 20.0) -> None:
    """Wait for something that happens soon."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


async def check_whole(engine: Engine, *worker_ids: int) -> None:
    """Every named worker is sound and holds nothing any more."""
    for worker_id in worker_ids:
        deadline = time.monotonic() + 20
        while True:
            inspection = await engine.inspect(worker_id)
            assert inspection.problem is None
            if inspection.figures["idle"] and not inspection.figures["used_blocks"]:
                break
            assert time.monotonic() < deadline, inspection.figures
            await asyncio.sleep(0.1)
    # The cluster's view follows with the next report of each worker.
    await until(lambda: all(not load.held and not load.booked for load in engine.loads()))
