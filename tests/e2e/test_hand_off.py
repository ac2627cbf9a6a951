"""One prefill and one decode worker as real processes: same tokens as the model's own `generate`, KV on its way early,
and nothing lost or leaked when a worker freezes or a client leaves."""

from __future__ import annotations

import asyncio
import functools
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pdsched.engine import EngineError, WorkerSpec
from pdsched.model.sampling import SamplingParams

from .harness import CHUNK, Live, Reference, ask, check_whole, live_engine, prompt_of, until

PREFILL, DECODE = 1, 2


@pytest.fixture(scope="module")
def live(model: Path) -> Iterator[Live]:
    specs = [WorkerSpec("prefill", core=0, chunk_size=CHUNK), WorkerSpec("decode", core=1)]
    with live_engine(model, specs, kv_tokens=8192) as live:
        yield live


def test_greedy_equals_generate(live: Live, reference: Reference) -> None:
    prompts = [prompt_of(length, seed) for seed, length in enumerate((1, 5, 16, 70, 333, 600, 33, 129))]

    async def work() -> None:
        answers = await asyncio.gather(*(ask(live.engine, prompt, 32) for prompt in prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.tokens == reference.greedy(prompt, 32)
            assert answer.reason == "length"
            assert answer.stats is not None
            assert (answer.stats.prefill, answer.stats.decode) == (PREFILL, DECODE)
        await check_whole(live.engine, PREFILL, DECODE)

    live.run(work())


def test_prefix_hits_on_both_sides_change_nothing(live: Live, reference: Reference) -> None:
    prompt = prompt_of(300, seed=4)

    async def work() -> None:
        for _ in range(3):
            assert (await ask(live.engine, prompt, 16)).tokens == reference.greedy(prompt, 16)
        inspection = await live.engine.inspect(PREFILL)
        assert inspection.figures["prefix_hits"] > 0

    live.run(work())


def test_most_kv_is_there_before_the_last_chunk_completes(live: Live, reference: Reference) -> None:
    """Of a 2,000-token prompt at chunk 256, at least 80 % of its KV."""
    prompt = prompt_of(2000, seed=77)

    async def work() -> None:
        answer = await ask(live.engine, prompt, 4)
        assert answer.tokens == reference.greedy(prompt, 4)
        await asyncio.sleep(0.6)  # figures come a few times a second
        record = max(live.engine.monitor.transfers.values(), key=lambda record: record.num_tokens)
        assert record.num_tokens == 2000
        assert record.chunks == record.done_chunks >= 2000 // CHUNK
        assert not record.failed
        assert record.bytes_before_last >= 0.8 * record.num_bytes

    live.run(work())


def test_sampling_is_the_same_alone_and_in_a_batch(live: Live) -> None:
    prompts = [prompt_of(40 + seed, seed) for seed in range(4)]
    sampling = SamplingParams(temperature=1.0, seed=7)

    async def work() -> None:
        batch = await asyncio.gather(*(ask(live.engine, prompt, 24, sampling) for prompt in prompts))
        alone = [await ask(live.engine, prompt, 24, sampling) for prompt in prompts]
        assert [answer.tokens for answer in batch] == [answer.tokens for answer in alone]
        assert len({tuple(answer.tokens) for answer in alone}) == len(prompts)

    live.run(work())


def test_a_prefill_worker_frozen_past_its_lease_corrupts_and_leaks_nothing(live: Live, reference: Reference) -> None:
    """SIGSTOP in the middle of a transfer for 5 s, then SIGCONT; another request decodes meanwhile."""
    bystander, prompt = prompt_of(50, seed=5), prompt_of(3500, seed=106)

    async def work() -> None:
        engine = live.engine
        decoding = asyncio.create_task(ask(engine, bystander, 400))
        await until(lambda: any(stats.token_ns for stats in engine.requests.values() if stats.reason is None))
        since = time.monotonic_ns()
        frozen = asyncio.create_task(ask(engine, prompt, 16))
        transfers = engine.monitor.transfers
        await until(lambda: any(record.started_ns > since for record in transfers.values()))
        engine.signal(PREFILL, signal.SIGSTOP)
        await asyncio.sleep(5)
        engine.signal(PREFILL, signal.SIGCONT)
        answer = await frozen
        assert answer.tokens == reference.greedy(prompt, 16)
        assert (await decoding).tokens == reference.greedy(bystander, 400)
        await asyncio.sleep(0.6)
        sent = [record.num_tokens for record in transfers.values() if record.started_ns > since]
        assert len(sent) == 2, "the freeze did not hit a transfer"
        assert 0 < sent[0] < len(prompt) <= sum(sent)  # blocks that had arrived whole need not travel again
        await check_whole(engine, PREFILL, DECODE)
        assert (await ask(engine, prompt, 16)).tokens == reference.greedy(prompt, 16)

    live.run(work())


def test_a_client_that_leaves_frees_everything(live: Live) -> None:
    """Abort while prefilling, and while decoding, by leaving the iteration and by cancelling the task."""

    async def work() -> None:
        engine = live.engine
        outputs = engine.generate(prompt_of(30, seed=1), max_tokens=2000, decode=False)
        async for _ in outputs:
            break
        await outputs.aclose()
        for seed, state in ((2, "prefilling"), (3, "decoding")):
            engine.forget()
            task = asyncio.create_task(ask(engine, prompt_of(2500, seed), 1000))
            await until(functools.partial(_any_in, live, state))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: all(stats.reason == "abort" for stats in engine.requests.values()))
        await check_whole(engine, PREFILL, DECODE)

    live.run(work())


def _any_in(live: Live, state: str) -> bool:
    return any(stats.state == state for stats in live.engine.requests.values())


@pytest.mark.parametrize(
    ("prompt", "settings", "named"),
    [
        ([], {}, "prompt"),
        (list(range(400)) * 20, {}, "8000"),
        ([1, 2], {"max_tokens": 0}, "max_tokens"),
        ([1, -2], {}, "-2"),
    ],
)
def test_bad_requests_are_refused_by_value(live: Live, prompt: list[int], settings: dict[str, int], named: str) -> None:
    async def work() -> None:
        with pytest.raises(ValueError, match=named):
            async for _ in live.engine.generate(prompt, decode=False, **settings):  # type: ignore[arg-type]
                pass
        await check_whole(live.engine, PREFILL, DECODE)

    live.run(work())


def test_a_number_in_use_is_refused_and_the_first_request_lives(live: Live, reference: Reference) -> None:
    prompt = prompt_of(20, seed=8)

    async def work() -> None:
        outputs = live.engine.generate(prompt, max_tokens=16, request_id=1_000_001, decode=False)
        tokens = (await anext(outputs)).token_ids.tolist()
        with pytest.raises(ValueError, match="1000001"):
            await anext(live.engine.generate(prompt, max_tokens=4, request_id=1_000_001, decode=False))
        async for output in outputs:
            tokens += output.token_ids.tolist()
        assert tokens == reference.greedy(prompt, 16)

    live.run(work())


def test_new_roles_in_the_same_processes(live: Live, reference: Reference) -> None:
    """Reconfigured to two workers that do both, and back: same answers, other workers, nothing left behind."""
    prompts = [prompt_of(200, seed) for seed in range(20, 24)]
    both = [WorkerSpec("both", chunk_size=64), WorkerSpec("both", chunk_size=64)]
    split = [WorkerSpec("prefill", chunk_size=CHUNK), WorkerSpec("decode")]

    async def work() -> None:
        engine = live.engine
        pids = [engine.pid(worker_id) for worker_id in (1, 2)]
        for specs, used in ((both, {(1, 1), (2, 2)}), (split, {(1, 2)})):
            await engine.reconfigure(specs)
            answers = await asyncio.gather(*(ask(engine, prompt, 16) for prompt in prompts))
            assert [answer.tokens for answer in answers] == [reference.greedy(prompt, 16) for prompt in prompts]
            assert {(a.stats.prefill, a.stats.decode) for a in answers if a.stats is not None} == used
            await check_whole(engine, 1, 2)
        assert [engine.pid(worker_id) for worker_id in (1, 2)] == pids
        task = asyncio.create_task(ask(engine, np.arange(50), 500))
        await until(lambda: any(stats.reason is None for stats in engine.requests.values()))
        with pytest.raises(EngineError, match="1 requests are unfinished"):
            await engine.reconfigure(both)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    live.run(work())
