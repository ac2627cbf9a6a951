"""Workers that are killed or freeze: streams go on, token for token; and what was recorded replays, kills included."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdsched import _core
from pdsched.engine import WorkerSpec
from pdsched.model.sampling import SamplingParams

from .harness import CHUNK, Answer, Live, Reference, ask, check_whole, live_engine, prompt_of, until

SAMPLED = SamplingParams(temperature=1.0, seed=11)
COUNT = 150
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("record")


@pytest.fixture(scope="module")
def live(model: Path, record: Path) -> Iterator[Live]:
    """Two decode workers that have a writer killed when it ignores a fence for a second; three prefill workers."""
    specs = [WorkerSpec("decode", core=core, worker={"kill_after_ns": SECOND}) for core in (0, 1)]
    specs += [WorkerSpec("prefill", core=core, chunk_size=CHUNK) for core in (0, 1, 0)]
    with live_engine(model, specs, kv_tokens=8192, record=record, cluster={"lease_ns": SECOND}) as live:
        yield live


def _prefilling(live: Live) -> int | None:
    """A worker that is in the middle of a prefill."""
    return next((s.prefill for s in live.engine.requests.values() if s.state == "prefilling" and not s.reason), None)


def test_kill_a_decode_worker_in_the_middle(live: Live, reference: Reference) -> None:
    prompts = [prompt_of(60, seed) for seed in (1, 2)]

    async def work() -> None:
        engine = live.engine
        undisturbed = await asyncio.gather(*(ask(engine, prompt, COUNT, SAMPLED) for prompt in prompts))
        greedy = [asyncio.create_task(ask(engine, prompt, COUNT)) for prompt in prompts]
        sampled = [asyncio.create_task(ask(engine, prompt, COUNT, SAMPLED)) for prompt in prompts]
        await until(lambda: len([s for s in engine.requests.values() if len(s.token_ns) > 30 and not s.reason]) == 4)
        running = [stats for stats in engine.requests.values() if not stats.reason]
        victim = running[0].decode
        assert victim in (1, 2)
        on_victim = [stats for stats in running if stats.decode == victim]
        assert len(on_victim) >= 2
        engine.kill(victim)
        answers = await asyncio.gather(*greedy, *sampled)
        assert {stats.decode for stats in on_victim} == {3 - victim}
        for prompt, answer in zip(prompts, answers[:2], strict=True):
            assert answer.tokens == reference.greedy(prompt, COUNT)
        for before, answer in zip(undisturbed, answers[2:], strict=True):
            assert answer.tokens == before.tokens
        assert {answer.reason for answer in answers} == {"length"}
        assert [peer[0] for peer, _ in engine.exits] == [victim]
        await check_whole(engine, 3 - victim, 3, 4, 5)

    live.run(work())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_prefill_worker_dies_or_freezes_for_good(live: Live, reference: Reference, number: signal.Signals) -> None:
    """The frozen one, which might write after its thaw, is killed by the launcher at the decode worker's request."""
    prompts = [prompt_of(3000, seed=1000 + number + i) for i in (0, 1)]

    async def work() -> None:
        engine = live.engine
        engine.forget()
        since = time.monotonic_ns()
        tasks: list[asyncio.Task[Answer]] = [asyncio.create_task(ask(engine, prompt, 24)) for prompt in prompts]
        await until(lambda: _prefilling(live) is not None)
        await until(lambda: any(record.started_ns > since for record in engine.monitor.transfers.values()))
        victim = _prefilling(live)
        assert victim in (3, 4, 5)
        engine.signal(victim, number)
        answers = await asyncio.gather(*tasks)
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.tokens == reference.greedy(prompt, 24)
            assert answer.stats is not None
            assert answer.stats.prefill != victim
        await until(lambda: victim in {peer[0] for peer, _ in engine.exits})
        await check_whole(engine, *(peer[0] for peer in engine.workers_up))

    live.run(work())


def test_what_was_recorded_replays(live: Live, record: Path) -> None:
    """Bare state machines fed the recorded events give the recorded actions; runs last, over all of the above."""
    live.run(asyncio.sleep(0.1))
    logs = sorted(record.iterdir())
    assert [log.name for log in logs] == ["cluster.log"] + [f"worker-{n}-{n}.log" for n in range(1, 6)]
    living = {"cluster.log"} | {f"worker-{worker}-{incarnation}.log" for worker, incarnation in live.engine.workers_up}
    assert 1 < len(living) < len(logs), "some were killed, some were not"
    for log in logs:
        replay = _core.replay_cluster if log.name == "cluster.log" else _core.replay_worker
        result = replay(log.read_bytes())
        assert result.difference is None, f"{log.name}: {result.difference}"
        # One that was killed early has little to tell; how little depends on the machine's speed.
        least = 100 if log.name in living else 20
        assert min(result.calls, result.outputs) > least, f"{log.name}: {result.calls} calls, {result.outputs} outputs"
