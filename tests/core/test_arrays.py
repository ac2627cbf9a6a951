"""The arrays of a step: what they hold, until when they can be taken, and that nobody rewrites them under a reader."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from pdsched import Request, Scheduler

from .harness import Ghost, config, text

FIELDS = {
    "token_ids": np.int64,
    "positions": np.int64,
    "slot_mapping": np.int64,
    "query_start_loc": np.int32,
    "seq_lens": np.int32,
    "logits_indices": np.int32,
    "rows": np.int32,
    "sampled_rows": np.int32,
}


def test_shapes_types_and_order() -> None:
    ghost = Ghost(config(32, chunk_size=24))
    ghost.add(1, text(1, 20), 4)
    ghost.step()
    ghost.add(2, text(2, 40), 4)
    step = ghost.plan()
    assert step is not None
    for name, dtype in FIELDS.items():
        array = getattr(step, name)
        assert array.dtype == np.dtype(dtype), name
        assert array.ndim == 1, name
    assert (step.num_tokens, step.num_seqs, step.num_samples, step.num_decodes) == (25, 2, 1, 1)
    assert step.token_ids.tolist() == [ghost.outputs[1][0], *text(2, 24)]
    assert step.positions.tolist() == [20, *range(24)]
    assert step.query_start_loc.tolist() == [0, 1, 25]
    assert step.seq_lens.tolist() == [21, 24]
    assert step.logits_indices.tolist() == [0]
    tables = step.block_tables
    assert tables.dtype == np.dtype(np.int32)
    assert tables.shape == (2, 3)
    assert tables[0].tolist()[2:] == [-1], "padded"
    for entry in range(2):
        span = slice(int(step.query_start_loc[entry]), int(step.query_start_loc[entry + 1]))
        positions = step.positions[span]
        assert (step.slot_mapping[span] == tables[entry][positions // 16] * 16 + positions % 16).all()
    rows, columns, taken = step.table_diff
    assert {array.dtype for array in (rows, columns, taken)} == {np.dtype(np.int32)}
    assert taken.tolist() == tables[1].tolist()
    assert columns.tolist() == [0, 1, 2]


def test_unknown_tokens_are_minus_one_and_gathered() -> None:
    ghost = Ghost(config(32, max_steps_in_flight=2))
    ghost.add(1, text(1, 20), 4)
    ghost.plan()
    step = ghost.plan()
    assert step is not None
    positions, rows = step.gather
    assert step.token_ids[positions].tolist() == [-1]
    assert rows.tolist() == step.rows.tolist()
    ghost.run()


@pytest.mark.parametrize("call", ["add", "schedule", "abort", "complete"])
def test_arrays_are_taken_before_the_next_call(call: str) -> None:
    scheduler = Scheduler(config(32, max_steps_in_flight=2))
    scheduler.add(Request(1, text(1, 20), 4), 0)
    step = scheduler.schedule(0)
    assert step is not None
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: scheduler.add(Request(2, [1], 4), 0),
        "schedule": lambda: scheduler.schedule(0),
        "abort": lambda: scheduler.abort(1, 0),
        "complete": lambda: scheduler.complete(step.id, [1], now=0),
    }
    calls[call]()
    for name in [*FIELDS, "gather", "block_tables", "opened"]:
        with pytest.raises(RuntimeError, match="step 1: its arrays must be taken before the scheduler's next call"):
            getattr(step, name)


def test_arrays_once_taken_stay() -> None:
    scheduler = Scheduler(config(32))
    scheduler.add(Request(1, text(1, 20), 4), 0)
    step = scheduler.schedule(0)
    assert step is not None
    taken = step.token_ids
    scheduler.complete(step.id, [1], now=0)
    scheduler.schedule(1)
    assert step.token_ids.tolist() == text(1, 20)
    assert step.positions.tolist() == list(range(20))
    assert np.shares_memory(step.token_ids, taken)


def test_views_outlive_the_step_and_are_not_rewritten() -> None:
    scheduler = Scheduler(config(64))
    scheduler.add(Request(1, text(1, 20), 200), 0)
    kept, copies = [], []
    for index in range(100):
        step = scheduler.schedule(index)
        assert step is not None
        if index % 7 == 0:
            kept.append((step.token_ids, step.slot_mapping))
            copies.append((step.token_ids.copy(), step.slot_mapping.copy()))
        scheduler.complete(step.id, [index], now=index)
        del step
        gc.collect(0)
    for views, originals in zip(kept, copies, strict=True):
        for view, original in zip(views, originals, strict=True):
            assert (view == original).all()


def test_buffers_are_used_again_once_nobody_looks() -> None:
    scheduler = Scheduler(config(64))
    scheduler.add(Request(1, text(1, 20), 100), 0)
    addresses = set()
    for index in range(50):
        step = scheduler.schedule(index)
        assert step is not None
        addresses.add(step.token_ids.ctypes.data)
        scheduler.complete(step.id, [index], now=index)
        del step
    assert len(addresses) < 10


def test_the_runner_may_write_into_them() -> None:
    ghost = Ghost(config(32, max_steps_in_flight=2))
    ghost.add(1, text(1, 20), 6)
    step = ghost.plan()
    assert step is not None
    for name in FIELDS:
        assert getattr(step, name).flags.writeable, name
    step.positions[:] += 1
    assert step.positions[0] == 1
    step.positions[:] -= 1
    ghost.run()


def test_opened_rows_carry_what_a_runner_needs() -> None:
    scheduler = Scheduler(config(32))
    scheduler.add(Request(7, text(1, 20), 9, output_token_ids=[3, 4], extra=b"seed"), 0)
    step = scheduler.schedule(0)
    assert step is not None
    (opened,) = step.opened
    assert (opened.id, opened.extra, opened.prompt_len) == (7, b"seed", 20)
    assert opened.token_ids.tolist() == [*text(1, 20), 3, 4]
    assert opened.row == step.rows[0]
    scheduler.complete(step.id, [5], now=0)
    scheduler.abort(7, 0)
    scheduler.add(Request(8, text(2, 20), 9), 0)
    following = scheduler.schedule(1)
    assert following is not None
    assert following.closed.tolist() == [opened.row]


def test_outputs_are_columns() -> None:
    ghost = Ghost(config(32))
    for id in (3, 2**64 - 1):
        ghost.add(id, text(id % 7, 20), 4)
    ghost.plan()
    out = ghost.complete()
    assert [out.request_ids.dtype, out.token_ids.dtype] == [np.dtype(np.uint64), np.dtype(np.int64)]
    assert out.request_ids.tolist() == [3, 2**64 - 1]


def test_timing_tells_the_moments() -> None:
    scheduler = Scheduler(config(32, seqs=1))
    scheduler.add(Request(1, [1], 2), 10)
    scheduler.add(Request(2, [1], 2), 11)
    for now, token in [(20, 5), (30, 6)]:
        step = scheduler.schedule(now)
        assert step is not None
        out = scheduler.complete(step.id, [token], now=now + 5)
    timing = out.finished[0].timing
    assert (timing.arrived, timing.scheduled, timing.first_token, timing.finished) == (10, 20, 25, 35)
    scheduler.abort(2, 40)
    (end,) = scheduler.take_finished()
    assert (end.timing.scheduled, end.timing.first_token, end.timing.finished) == (None, None, 40)
