"""Greedy output is token for token what the model's own `generate` says, however the work was cut up and moved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pdsched.testing.tiny_models import FAMILIES

from .planner import Planner
from .tiny import NEW_TOKENS, Tiny

GetTiny = Callable[[str], Tiny]


@pytest.mark.parametrize("block_size", [7, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_batches_equal_generate(tiny: GetTiny, family: str, block_size: int) -> None:
    case = tiny(family)
    runner = case.runner(block_size)
    planner = Planner(runner.pool.num_blocks, block_size, num_rows=6)
    for request, prompt in enumerate(case.prompts):
        planner.add(request, prompt, NEW_TOKENS)
    assert planner.run(runner) == case.expected


def test_the_expected_answers_are_varied(tiny: GetTiny) -> None:
    """A model that repeats itself would hide mistakes."""
    for family in FAMILIES:
        assert all(len(set(tokens)) > 10 for tokens in tiny(family).expected.values())


@pytest.mark.parametrize("chunk", [1, 13, 1000])
def test_chunk_size_does_not_matter(tiny: GetTiny, chunk: int) -> None:
    case = tiny("llama")
    runner = case.runner(16)
    planner = Planner(runner.pool.num_blocks, 16, num_rows=6, chunk=chunk)
    for request in (0, 1, 3):
        planner.add(request, case.prompts[request], NEW_TOKENS)
    assert planner.run(runner) == {request: case.expected[request] for request in (0, 1, 3)}


@pytest.mark.parametrize("family", FAMILIES)
def test_hand_off_to_other_blocks(tiny: GetTiny, family: str) -> None:
    """Prefill on one pool, first token there; decode on another with other block ids; the source is poisoned."""
    case = tiny(family)
    prefill, decode = case.runner(16), case.runner(16)
    source, target = Planner(160, 16, num_rows=6, seed=1), Planner(160, 16, num_rows=6, seed=2)
    for request, prompt in enumerate(case.prompts):
        source.add(request, prompt, max_tokens=NEW_TOKENS)
    while any(not sequence.output for sequence in source.sequences.values()):
        step = source.plan()
        assert step is not None
        source.complete(step, prefill.run(step))
    for sequence in source.sequences.values():
        ours = target.adopt(sequence)
        used = len(ours.blocks)
        prefill.pool.copy_blocks(decode.pool, sequence.blocks[:used], ours.blocks)
    prefill.pool.array.fill(np.nan)
    assert target.run(decode) == case.expected


def test_preempted_requests_are_computed_again(tiny: GetTiny) -> None:
    case = tiny("qwen3")
    runner = case.runner(7)
    planner = Planner(runner.pool.num_blocks, 7, num_rows=6)
    for request, prompt in enumerate(case.prompts):
        planner.add(request, prompt, NEW_TOKENS)
    steps = 0
    while (step := planner.plan()) is not None:
        planner.complete(step, runner.run(step))
        steps += 1
        if steps % 9 == 0:
            running = [s.id for s in planner.sequences.values() if s.row >= 0]
            planner.preempt(running[steps % len(running)])
    assert {request: sequence.output for request, sequence in planner.sequences.items()} == case.expected
    assert steps > 40


def test_a_skipped_step_still_moves_the_tables(tiny: GetTiny) -> None:
    """A failed step is not run, but its rows and blocks are known to the later steps that carry its tokens again."""
    case = tiny("llama")
    runner = case.runner(16)
    planner = Planner(runner.pool.num_blocks, 16, num_rows=6)
    sequence = planner.add(1, case.prompts[1], NEW_TOKENS)
    failed = planner.plan()
    assert failed is not None
    runner.apply_tables(failed)
    sequence.num_computed = 0
    assert planner.run(runner) == {1: case.expected[1]}
