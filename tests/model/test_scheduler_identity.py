"""The real scheduler over real models: greedy output is the model's own, whatever the scheduler does in between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pdsched import Request, Scheduler, SchedulerConfig
from pdsched.model.runner import ModelRunner
from pdsched.testing.tiny_models import FAMILIES

from .tiny import NEW_TOKENS, Tiny

GetTiny = Callable[[str], Tiny]

CHUNK = 64


def runner_for(case: Tiny, block_size: int, num_blocks: int = 160) -> tuple[Scheduler, ModelRunner]:
    """A scheduler and a runner with the same pool and tables; the pool is poisoned."""
    runner = case.runner(block_size, num_blocks)
    scheduler = Scheduler(SchedulerConfig(num_blocks, block_size, 4, CHUNK, chunk_size=CHUNK))
    runner = ModelRunner(case.model, runner.pool, scheduler.num_rows, scheduler.max_blocks_per_row)
    runner.pool.array.fill(np.nan)
    return scheduler, runner


def drive(scheduler: Scheduler, runner: ModelRunner, outputs: dict[int, list[int]]) -> None:
    """Runs until nothing can be planned, checking the scheduler after every step."""
    while (step := scheduler.schedule(0)) is not None:
        out = scheduler.complete(step.id, runner.run(step), now=0)
        scheduler.check()
        for request_id, token in zip(out.request_ids.tolist(), out.token_ids.tolist(), strict=True):
            outputs.setdefault(request_id, []).append(token)


@pytest.mark.parametrize("block_size", [7, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_batches_and_prefix_hits(tiny: GetTiny, family: str, block_size: int) -> None:
    """Chunks beside decodes; the same prompts a second time, from the cache."""
    case = tiny(family)
    scheduler, runner = runner_for(case, block_size)
    for first_id, hits_expected in ((0, False), (100, True)):
        before = scheduler.stats()["prefix_hits"]
        outputs: dict[int, list[int]] = {}
        for index, prompt in enumerate(case.prompts):
            scheduler.add(Request(first_id + index, prompt, NEW_TOKENS), now=0)
        drive(scheduler, runner, outputs)
        assert outputs == {first_id + index: tokens for index, tokens in case.expected.items()}
        assert (scheduler.stats()["prefix_hits"] > before) == hits_expected
    assert scheduler.is_idle()


@pytest.mark.parametrize("block_size", [7, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_preemption_forced_by_a_small_pool(tiny: GetTiny, family: str, block_size: int) -> None:
    case = tiny(family)
    needed = max(len(prompt) for prompt in case.prompts) + NEW_TOKENS
    num_blocks = -(-needed // block_size) + 6
    scheduler, runner = runner_for(case, block_size, num_blocks)
    outputs: dict[int, list[int]] = {}
    for index, prompt in enumerate(case.prompts):
        scheduler.add(Request(index, prompt, NEW_TOKENS), now=0)
    # A crowd of the shortest prompt, which grows into what the long ones need.
    for copy in range(6):
        scheduler.add(Request(10 + copy, case.prompts[1], NEW_TOKENS), now=0)
    drive(scheduler, runner, outputs)
    assert {index: outputs[index] for index in case.expected} == case.expected
    assert all(outputs[10 + copy] == case.expected[1] for copy in range(6))
    assert scheduler.stats()["preemptions"] > 0
    assert scheduler.is_idle()


@pytest.mark.parametrize("block_size", [7, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_hand_off_with_the_source_poisoned(tiny: GetTiny, family: str, block_size: int) -> None:
    """Reserved on one worker, computed on another, copied block by block, released and poisoned, decoded."""
    case = tiny(family)
    prefill, prefill_runner = runner_for(case, block_size)
    decode, decode_runner = runner_for(case, block_size)
    decode.add(Request(99, case.prompts[0], 2), now=0)  # so that the block ids differ
    drive(decode, decode_runner, {})
    outputs: dict[int, list[int]] = {}
    for index, prompt in enumerate(case.prompts):
        request = Request(index, prompt, NEW_TOKENS)
        reserved = decode.reserve(request, now=0)
        assert reserved is not None
        (start, end), target = reserved
        prefill.add(request, now=0, hand_off=True)
        drive(prefill, prefill_runner, outputs)
        source = prefill.blocks(index)
        assert source is not None
        first = start // block_size
        count = -(-end // block_size)
        prefill_runner.pool.copy_blocks(decode_runner.pool, source[first:count].tolist(), target[first:count].tolist())
        assert prefill.release(index, now=0)
        assert decode.arrived(index, start, end, now=0) is False
        assert decode.hand_over(index, outputs[index][0], now=0) is True
    prefill_runner.pool.array.fill(np.nan)
    drive(decode, decode_runner, outputs)
    assert {index: outputs[index] for index in case.expected} == case.expected
    assert prefill.is_idle()
    assert decode.is_idle()
