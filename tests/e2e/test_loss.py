"""Workers that are killed: streams go on, token for token; and what was recorded replays, kills included."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdsched import _core
from pdsched.engine import WorkerSpec
from pdsched.model.sampling import SamplingParams

from .harness import CHUNK, Answer, Live, Reference, ask, check_whole, live_engine, prompt_of, until

SAMPLED = SamplingParams(temperature=1.0, seed=11)
COUNT = 300


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("record")


@pytest.fixture(scope="module")
def live(model: Path, record: Path) -> Iterator[Live]:
    """Workers 1 and 2 prefill, 3 and 4 decode."""
    specs = [WorkerSpec("prefill", core=core, chunk_size=CHUNK) for core in (0, 1)]
    specs += [WorkerSpec("decode", core=core) for core in (0, 1)]
    with live_engine(model, specs, kv_tokens=8192, record=record) as live:
        yield live


def test_kill_a_decode_worker_in_the_middle(live: Live, reference: Reference) -> None:
    prompts = [prompt_of(60, seed) for seed in (1, 2)]

    async def work() -> None:
        engine = live.engine
        undisturbed = [await ask(engine, prompt, COUNT, SAMPLED) for prompt in prompts]
        greedy = [asyncio.create_task(ask(engine, prompt, COUNT)) for prompt in prompts]
        sampled = [asyncio.create_task(ask(engine, prompt, COUNT, SAMPLED)) for prompt in prompts]
        running = list(engine.requests.values())[-4:]
        await until(lambda: len([s for s in engine.requests.values() if len(s.token_ns) > 30 and not s.reason]) == 4)
        running = [stats for stats in engine.requests.values() if not stats.reason]
        victim = running[0].decode
        assert victim in (3, 4)
        on_victim = [stats for stats in running if stats.decode == victim]
        assert len(on_victim) >= 2
        engine.kill(victim)
        answers = await asyncio.gather(*greedy, *sampled)
        assert {stats.decode for stats in on_victim} == {7 - victim}
        for prompt, answer in zip(prompts, answers[:2], strict=True):
            assert answer.tokens == reference.greedy(prompt, COUNT)
        for before, answer in zip(undisturbed, answers[2:], strict=True):
            assert answer.tokens == before.tokens
        assert {answer.reason for answer in answers} == {"length"}
        assert [peer[0] for peer, _ in engine.exits] == [victim]
        await check_whole(engine, 1, 2, 7 - victim)

    live.run(work())


def test_kill_a_prefill_worker_in_the_middle(live: Live, reference: Reference) -> None:
    prompts = [prompt_of(3000, seed) for seed in (3, 4)]

    async def work() -> None:
        engine = live.engine
        engine.forget()
        tasks: list[asyncio.Task[Answer]] = [asyncio.create_task(ask(engine, prompt, 24)) for prompt in prompts]
        await until(lambda: any(stats.state == "prefilling" for stats in engine.requests.values()))
        victim = next(stats.prefill for stats in engine.requests.values() if stats.state == "prefilling")
        assert victim in (1, 2)
        engine.kill(victim)
        answers = await asyncio.gather(*tasks)
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.tokens == reference.greedy(prompt, 24)
            assert answer.stats is not None
            assert answer.stats.prefill == 3 - victim
        living = [peer[0] for peer in engine.workers_up]
        assert len(living) == 2
        await check_whole(engine, *living)

    live.run(work())


def test_what_was_recorded_replays(live: Live, record: Path) -> None:
    """Bare state machines fed the recorded events give the recorded actions; runs last, over all of the above."""
    live.run(asyncio.sleep(0.1))
    logs = sorted(record.iterdir())
    assert [log.name for log in logs] == ["cluster.log"] + [f"worker-{n}-{n}.log" for n in range(1, 5)]
    for log in logs:
        replay = _core.replay_cluster if log.name == "cluster.log" else _core.replay_worker
        result = replay(log.read_bytes())
        assert result.difference is None, f"{log.name}: {result.difference}"
        assert result.calls > 100
        assert result.outputs > 100
