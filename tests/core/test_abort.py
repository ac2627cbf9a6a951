"""Abort in every state of a scheduler: one end each, blocks back once, nothing shown afterwards."""

from __future__ import annotations

import pytest

from pdsched import Request

from .harness import Ghost, config, text


def ended(ghost: Ghost, id: int) -> bool:
    return ghost.finished[id].reason == "abort"


@pytest.mark.parametrize("when", ["second chunk in flight", "last chunk in flight", "between chunks"])
def test_b055_a04_a05_a06_abort_around_a_chunk(when: str) -> None:
    ghost = Ghost(config(16, chunk_size=64))
    ghost.add(1, text(1, 192), 4)
    ghost.step()
    if when == "last chunk in flight":
        ghost.step()
    if when != "between chunks":
        ghost.plan()
    ghost.abort(1)
    if ghost.flying:
        assert ghost.free == 4, "the step in flight still writes"
        ghost.complete()
    assert ghost.free == 16
    assert ended(ghost, 1)
    ghost.add(2, text(1, 192), 4)
    ghost.run()
    assert ghost.finished[2].timing.num_cached_tokens == (128 if when == "last chunk in flight" else 64)


def test_b056_a14_no_token_after_an_abort() -> None:
    ghost = Ghost(config(8, chunk_size=64))
    ghost.add(1, text(1, 64), 4)
    ghost.plan()
    ghost.abort(1)
    out = ghost.complete()
    assert out.request_ids.size == 0
    assert ghost.finished[1].num_outputs == 0
    assert (ghost.free, ghost.scheduler.is_idle()) == (8, True)


def test_b059_b065_a12_received_and_waiting_for_a_row() -> None:
    ghost = Ghost(config(12, seqs=1))
    ghost.add(9, text(9, 20), 60)
    ghost.step()
    for id in (1, 2, 3, 4):
        free = ghost.free
        assert ghost.scheduler.reserve(Request(id, text(id, 63), 8), ghost.tick()) is not None
        assert ghost.scheduler.arrived(id, 0, 63, ghost.tick()) is False
        assert ghost.scheduler.hand_over(id, 5, ghost.tick()) is True
        ghost.outputs[id] = [5]
        ghost.step()
        assert ghost.abort(id)
        assert ended(ghost, id)
        assert ghost.free >= free - 1
        assert ghost.scheduler.arrived(id, 0, 63, ghost.tick()) is None, "nothing is awaited any more"
    ghost.run()


def test_b061_a17_what_is_gone_or_reused_is_not_touched() -> None:
    ghost = Ghost(config(16))
    scheduler = ghost.scheduler
    assert not ghost.abort(1)
    assert scheduler.arrived(1, 0, 16, 1) is None
    assert scheduler.hand_over(1, 5, 1) is None
    assert not scheduler.release(1, 1)
    assert not scheduler.pin(1, 1)
    assert not scheduler.unpin(1, 1)
    ghost.add(1, text(1, 20), 2)
    ghost.run()
    assert not ghost.abort(1)
    assert scheduler.stats()["unknown_requests"] == 6
    del ghost.finished[1]
    ghost.add(1, text(2, 20), 2)  # an id may be used again
    assert scheduler.arrived(1, 0, 16, 1) is None
    assert not scheduler.release(1, 1)
    ghost.run()


def test_b063_a02_a_queued_request_that_never_had_blocks() -> None:
    ghost = Ghost(config(16, seqs=1))
    ghost.add(1, text(1, 20), 4)
    ghost.step()
    ghost.add(2, text(2, 20), 4, hand_off=True)
    assert ghost.abort(2)
    assert not ghost.abort(2)
    assert ended(ghost, 2)
    assert ghost.held == []
    ghost.run()


def test_a03_a_waiting_request_owns_nothing_of_the_prefix_it_would_hit() -> None:
    ghost = Ghost(config(8, seqs=1))
    ghost.add(1, text(1, 64), 1)
    ghost.run()
    ghost.add(2, text(2, 20), 40)
    ghost.step()
    ghost.add(3, text(1, 64) + text(3, 9), 4)
    assert ghost.plan() is not None
    assert ghost.scheduler.num_used_blocks == 2
    ghost.complete()
    ghost.abort(3)
    ghost.run()


def test_k044_a_copy_that_may_still_write_keeps_the_blocks() -> None:
    ghost = Ghost(config(8))
    assert ghost.scheduler.reserve(Request(1, text(1, 63), 8), 0) is not None
    assert ghost.scheduler.pin(1, 100)
    ghost.outputs[1] = []
    ghost.abort(1)
    assert ghost.free == 4
    assert ghost.scheduler.reserve(Request(2, text(2, 80), 8), 0) is None, "all or nothing"
    assert ghost.scheduler.unpin(1, 100)
    assert (ghost.free, ghost.scheduler.is_idle()) == (8, True)
    # Reported before: at once.
    assert ghost.scheduler.reserve(Request(3, text(3, 63), 8), 0) is not None
    assert ghost.scheduler.pin(3, 101)
    assert ghost.scheduler.unpin(3, 101)
    ghost.abort(3)
    assert ghost.free == 8


def test_a13_decoding_with_no_step_in_flight() -> None:
    ghost = Ghost(config(8))
    for id in (1, 2):
        ghost.add(id, text(id, 20), 9)
    ghost.step()
    ghost.abort(1)
    assert ghost.free == 6
    assert ghost.step() == {2: 1}
    ghost.run()


def test_a15_preempted_and_waiting() -> None:
    ghost = Ghost(config(4))
    for id in (1, 2):
        ghost.add(id, text(id, 32), 9)
    ghost.step()
    ghost.step()
    assert ghost.preempted == [2]
    ghost.abort(2)
    assert ghost.finished[2].num_outputs == 1
    ghost.run()
