"""Prefix hits of the scheduler: what is found, when, and that no output depends on it."""

from __future__ import annotations

import pytest

from pdsched import Request

from .harness import Ghost, config, text


def cached(ghost: Ghost, id: int) -> int:
    """Prompt tokens that a finished request found in the cache."""
    return ghost.finished[id].timing.num_cached_tokens


def test_b008_a_fully_cached_prompt_gives_up_its_last_block() -> None:
    ghost = Ghost(config(16))
    ghost.add(1, text(1, 32), 1)
    ghost.run()
    ghost.add(2, text(1, 32), 1)
    assert ghost.step() == {2: 16}
    ghost.add(3, text(1, 32) + text(2, 16), 1)
    ghost.run()
    assert (cached(ghost, 2), cached(ghost, 3)) == (16, 32)
    assert ghost.outputs[2] == ghost.outputs[1]


def test_b010_colliding_hashes_do_not_change_an_output() -> None:
    ghost = Ghost(config(64, hash_bits=1))
    for id in range(1, 9):
        ghost.add(id, text(id, 40), 4)
    ghost.run()
    assert [cached(ghost, id) for id in range(1, 9)] == [0] * 8
    ghost.add(9, text(3, 40), 4)
    ghost.run()
    assert cached(ghost, 9) == 32


def test_b011_tenants_do_not_see_each_other() -> None:
    ghost = Ghost(config(16))
    for id, namespace in [(1, 1), (2, 2), (3, 1)]:
        ghost.add(id, text(1, 64), 2, namespace=namespace)
        ghost.run()
    assert [cached(ghost, id) for id in (1, 2, 3)] == [0, 0, 48]


def test_b012_two_alike_in_one_step_share_nothing_that_is_not_written() -> None:
    ghost = Ghost(config(16, budget=128))
    ghost.add(1, text(1, 48), 4)
    ghost.add(2, text(1, 48), 4)
    assert ghost.step() == {1: 48, 2: 48}
    ghost.run()
    assert [cached(ghost, id) for id in (1, 2)] == [0, 0]


def test_b012_overlapped_steps_do_not_share_what_is_in_flight() -> None:
    ghost = Ghost(config(16, max_steps_in_flight=2))
    ghost.add(1, text(1, 48), 4)
    ghost.plan()
    ghost.add(2, text(1, 48), 4)
    ghost.plan()
    assert ghost.plans[1] == {1: 1, 2: 48}
    ghost.run()


def test_b018_a_hit_is_looked_up_at_admission_not_remembered() -> None:
    ghost = Ghost(config(8))
    ghost.add(9, text(1, 64), 1)
    ghost.run()  # four cached free blocks
    ghost.add(1, text(2, 64), 8)  # the other four, and later one of the cached
    ghost.plan()
    ghost.add(2, text(1, 64) + text(3, 16), 1)
    assert ghost.free == 4
    ghost.complete()
    assert ghost.step() == {1: 1}, "2 needs five blocks"
    ghost.run()
    assert cached(ghost, 2) == 48


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
def test_b020_prompts_around_a_block_boundary(length: int) -> None:
    whole, chunked = Ghost(config(8)), Ghost(config(8, chunk_size=24))
    for ghost in (whole, chunked):
        for id in (1, 2):  # cold, then warm
            ghost.add(id, text(1, length), 20)
            ghost.run()
            assert len(ghost.outputs[id]) == 20
    whole.add(3, text(2, length), 20)
    while whole.plan() is not None:
        blocks = whole.scheduler.blocks(3)
        assert blocks is not None
        assert len(blocks) == -(-int(whole.steps[-1].seq_lens[0]) // 16), "one block per 16 tokens with KV"
        whole.complete()


def test_k002_crossing_a_block_takes_one_and_only_full_ones_are_found() -> None:
    ghost = Ghost(config(8))
    ghost.add(1, text(1, 14), 20)
    used = []
    for _ in range(20):
        ghost.step()
        used.append(ghost.scheduler.num_used_blocks)
    # After the prompt there are 14 positions, 15 and 16 in the first block, 17 opens the second.
    assert used[:4] == [1, 1, 1, 2]
    assert used[3:18] == [2] * 15
    # 33 of its 34 tokens have KV: two full blocks.
    ghost.add(2, text(1, 14) + ghost.outputs[1][:19], 1)
    ghost.run()
    assert cached(ghost, 2) == 32


def test_k006_without_caching_the_same_tokens_come_out() -> None:
    ghost = Ghost(config(16, prefix_caching=False))
    for id in (1, 2):
        ghost.add(id, text(1, 40), 8)
        ghost.run()
    assert cached(ghost, 2) == 0
    assert ghost.scheduler.stats()["prefix_hits"] == 0


def test_k010_reset_is_refused_while_somebody_runs() -> None:
    ghost = Ghost(config(16))
    ghost.add(1, text(1, 64), 2)
    ghost.step()
    assert not ghost.scheduler.reset_prefix_cache()
    ghost.run()
    assert ghost.scheduler.reset_prefix_cache()
    ghost.add(2, text(1, 64), 1)
    ghost.run()
    assert cached(ghost, 2) == 0


def test_k063_what_has_not_arrived_is_not_found() -> None:
    ghost = Ghost(config(16))
    assert ghost.scheduler.reserve(Request(1, text(1, 48), 4), 0) is not None
    ghost.scheduler.arrived(1, 16, 48, 1)
    ghost.add(2, text(1, 48), 2)
    assert ghost.step() == {2: 48}, "nothing is found while its first block is missing"


def test_k108_duplicates_are_harmless_and_pages_are_whole() -> None:
    ghost = Ghost(config(16, size=4, budget=64))
    ghost.add(1, text(1, 8), 1)
    ghost.add(2, text(1, 8), 1)
    ghost.run()
    for id, hit in [(3, 4), (4, 4)]:
        ghost.add(id, text(1, 8), 1)
        ghost.run()
        assert cached(ghost, id) == hit
    for id in range(5, 10):  # pressure evicts
        ghost.add(id, text(id, 30), 2)
    ghost.run()


def test_b157_recompute_is_not_counted_as_a_hit() -> None:
    ghost = Ghost(config(6))
    for id in (1, 2, 3):
        ghost.add(id, text(id, 32), 20)
    ghost.run()
    stats = ghost.scheduler.stats()
    assert stats["preemptions"] >= 2
    assert stats["prefix_hits"] == 0
    assert stats["prefix_queries"] == 96
    assert stats["recovered_tokens"] > 0
