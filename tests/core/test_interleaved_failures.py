"""Failures in overlapped steps of interleaved requests: a block taken by a step that failed is used again, in place."""

from __future__ import annotations

from pdsched import Request, Scheduler, SchedulerConfig


def slot(scheduler: Scheduler, request_id: int, position: int) -> int:
    """The slot a position of a request must be written to."""
    blocks = scheduler.blocks(request_id)
    assert blocks is not None
    return int(blocks[position // 4]) * 4 + position % 4


def test_a_failed_step_behind_a_block_boundary_does_not_move_the_next_write() -> None:
    """Step A writes position 3, step B opens a block for position 4; A fails, and position 3 is planned again."""
    scheduler = Scheduler(SchedulerConfig(16, 4, 4, 16, max_steps_in_flight=3))
    for request_id in (1, 2):
        scheduler.add(Request(request_id, [10 * request_id, 2, 3], 8), now=0)
    first = scheduler.schedule(0)
    assert first is not None
    scheduler.complete(first.id, [5, 6], now=0)
    a = scheduler.schedule(0)
    assert a is not None
    assert a.positions.tolist() == [3, 3]
    b = scheduler.schedule(0)
    assert b is not None
    assert b.positions.tolist() == [4, 4]
    assert len(b.table_diff[0]) == 2
    scheduler.fail(a.id, 0)
    scheduler.check()
    c = scheduler.schedule(0)
    assert c is not None
    assert c.positions.tolist() == [3, 3]
    assert c.slot_mapping.tolist() == [slot(scheduler, request_id, 3) for request_id in (1, 2)]
    scheduler.complete(b.id, [0, 0], now=0)
    out = scheduler.complete(c.id, [7, 8], now=0)
    assert out.token_ids.tolist() == [7, 8]
    d = scheduler.schedule(0)
    assert d is not None
    assert len(d.table_diff[0]) == 0, "the block is there already"
    assert d.slot_mapping.tolist() == [slot(scheduler, request_id, 4) for request_id in (1, 2)]
    scheduler.check()
