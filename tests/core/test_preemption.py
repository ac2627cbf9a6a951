"""Preemption by recompute: whom it meets, how often, and that it is never seen in an output."""

from __future__ import annotations

import pytest

from pdsched import Request

from .harness import Ghost, config, text


def preemptions(ghost: Ghost, id: int) -> int:
    return ghost.finished[id].timing.preemptions


def test_b022_the_same_request_is_not_preempted_again_and_again() -> None:
    ghost = Ghost(config(12, budget=64))
    ghost.add(1, text(1, 96), 64)
    ghost.step()
    ghost.add(2, text(2, 100), 16)
    ghost.run()
    assert preemptions(ghost, 1) + preemptions(ghost, 2) <= 2


def test_b023_blocks_on_their_way_back_count_when_victims_are_chosen() -> None:
    ghost = Ghost(config(16, max_steps_in_flight=2))
    for id in range(1, 5):
        ghost.add(id, text(id, 64), 4)
    ghost.plan()
    assert ghost.plan() is None, "all need a block; one gives way, the others wait for its blocks"
    ghost.complete()
    assert ghost.step() == {1: 1, 2: 1, 3: 1}
    assert ghost.preempted == [4]
    ghost.run()


def test_b024_k030_the_token_of_a_preempted_requests_step_counts_once() -> None:
    ghost = Ghost(config(4, max_steps_in_flight=2))
    ghost.add(1, text(1, 31), 8)
    ghost.add(2, text(2, 32), 8)
    ghost.plan()
    ghost.plan()
    assert ghost.preempted == [2]
    ghost.complete()
    assert len(ghost.outputs[2]) == 1
    ghost.run()
    assert ghost.scheduler.stats()["dropped_tokens"] == 0


def test_b024_k055_a_hand_off_without_its_blocks_is_computed_again() -> None:
    ghost = Ghost(config(4, max_steps_in_flight=2))
    ghost.add(1, text(1, 32), 3)
    ghost.add(2, text(2, 32), 8, hand_off=True)
    ghost.plan()
    ghost.plan()
    out = ghost.complete()
    assert (out.held, ghost.outputs[2]) == ([], [])
    while not ghost.held:
        ghost.step()
    assert ghost.held == [2]
    assert len(ghost.outputs[2]) == 1
    assert ghost.scheduler.stats()["dropped_tokens"] == 1
    assert ghost.scheduler.release(2, ghost.tick())
    ghost.run()


@pytest.mark.parametrize("outputs", [1, 8, 17, 24])
@pytest.mark.parametrize("chunk", [None, 16])
def test_b025_b026_recompute_covers_prompt_and_outputs(outputs: int, chunk: int | None) -> None:
    # `1` grows through the pool at just the right moment; `2` arrived later and gives way.
    room = -(-(40 + outputs) // 16)
    ghost = Ghost(config(room + 2, chunk_size=chunk, prefix_caching=False))
    first = 32 - outputs % 16 if outputs % 16 else 16
    ghost.add(1, text(1, max(first, 1)), 40)
    ghost.add(2, text(2, 40), 30)
    ghost.run()
    assert preemptions(ghost, 2) >= 1
    assert len(ghost.outputs[2]) == 30
    recomputed = [plan[2] for plan in ghost.plans if plan.get(2, 1) > 1]
    assert sum(recomputed) > 40, "prompt and outputs"


def test_b025_preempted_again_while_it_is_recomputed() -> None:
    ghost = Ghost(config(10, chunk_size=16))
    for id in (1, 2, 3):
        ghost.add(id, text(id, 40), 60)
    ghost.run()
    assert sum(preemptions(ghost, id) for id in (1, 2, 3)) >= 2


def test_b029_need_is_counted_in_blocks() -> None:
    ghost = Ghost(config(8))
    for id in range(1, 5):
        ghost.add(id, text(id, 32), 4)
    ghost.step()
    # Four need a block, none is free. One gives two back, less than the three still needed; the second makes four.
    assert ghost.step() == {1: 1, 2: 1}
    assert sorted(ghost.preempted) == [3, 4]
    ghost.run()


def test_b138_a_preempted_request_keeps_its_place() -> None:
    ghost = Ghost(config(6))
    for id in (1, 2, 3):
        ghost.add(id, text(id, 32), 10)
    ghost.step()
    ghost.step()
    assert ghost.preempted == [3]
    for id in (4, 5):
        ghost.add(id, text(id, 16), 4)
    ghost.run()
    began = [next(index for index, plan in enumerate(ghost.plans) if index > 0 and id in plan) for id in (3, 4, 5)]
    assert began == sorted(began)
    assert preemptions(ghost, 3) == 1


def test_k053_deep_pipeline_in_a_small_pool() -> None:
    ghost = Ghost(config(9, size=4, budget=64, max_steps_in_flight=4))
    for id in range(8):
        ghost.add(id, text(id, 6 + id), 11)
    ghost.run()
    assert ghost.scheduler.stats()["preemptions"] > 0
    assert [len(ghost.outputs[id]) for id in range(8)] == [11] * 8


def test_k065_a_reservation_has_room_for_its_first_decoded_token() -> None:
    ghost = Ghost(config(5))
    reserved = ghost.scheduler.reserve(Request(1, text(1, 64), 8), 0)
    assert reserved is not None
    assert len(reserved[1]) == 5
    with pytest.raises(ValueError, match="80 tokens need 6 blocks"):
        ghost.scheduler.reserve(Request(2, text(2, 80), 8), 0)


def test_k106_a_pool_far_too_small_still_finishes_all() -> None:
    ghost = Ghost(config(4, size=32))
    for id in range(12):
        ghost.add(id, text(id, 20 + 5 * id), 30)
    ghost.run()
    assert len(ghost.finished) == 12


def test_k107_streamed_tokens_are_not_repeated() -> None:
    ghost = Ghost(config(4))
    ghost.add(1, text(1, 30), 12)
    ghost.add(2, text(2, 30), 5)
    seen = [len(ghost.outputs[2])]
    while ghost.scheduler.has_unfinished():
        ghost.step()
        seen.append(len(ghost.outputs[2]))
    assert preemptions(ghost, 2) >= 1
    assert sorted(set(seen)) == [0, 1, 2, 3, 4, 5]
    assert seen == sorted(seen)


def test_a_request_that_outgrows_an_empty_pool_ends_by_itself() -> None:
    ghost = Ghost(config(2, size=4))
    ghost.add(1, text(1, 7), 9)
    ghost.run()
    assert (ghost.finished[1].reason, len(ghost.outputs[1])) == ("capacity", 2)
