"""Chunked prefill, budgets, prompts that are refused, and who goes first."""

from __future__ import annotations

from typing import Any

import pytest

from pdsched import SchedulerConfig

from .harness import Ghost, config, text


def planned(ghost: Ghost, id: int) -> list[int]:
    """Tokens of a request, step by step."""
    return [plan[id] for plan in ghost.plans if id in plan]


def test_b036_b038_what_never_fits_is_refused_at_once_and_nothing_stays() -> None:
    ghost = Ghost(config(50, reserved_blocks=1, max_model_len=2048, budget=1024))
    with pytest.raises(ValueError, match="1002 tokens need 63 blocks, the whole pool has 49"):
        ghost.add(1, text(1, 1002), 8)
    with pytest.raises(ValueError, match="785 tokens"):
        ghost.add(1, text(1, 785), 1)
    assert not ghost.scheduler.has_unfinished()
    ghost.add(1, text(1, 784), 1)
    ghost.add(2, text(2, 10), 2)
    ghost.run()
    assert (len(ghost.outputs[1]), len(ghost.outputs[2])) == (1, 2)


def test_b038_one_token_over_the_model_length() -> None:
    ghost = Ghost(config(50, max_model_len=64))
    with pytest.raises(ValueError, match="64 tokens plus one exceed max_model_len = 64"):
        ghost.add(1, text(1, 64), 8)
    ghost.add(1, text(1, 63), 8)
    ghost.run()
    assert (len(ghost.outputs[1]), ghost.finished[1].reason) == (1, "length")


def test_b039_the_chunk_is_the_smaller_of_both_limits() -> None:
    ghost = Ghost(config(16, budget=32, chunk_size=64))
    ghost.add(1, text(1, 100), 1)
    ghost.run()
    assert planned(ghost, 1) == [32, 32, 32, 4]
    with pytest.raises(ValueError, match="chunk_size = 0"):
        config(16, chunk_size=0)


@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 20, 33, 99, 100])
def test_b153_b039_the_chunk_size_does_not_change_the_output(chunk: int) -> None:
    ghost = Ghost(config(16, chunk_size=chunk))
    ghost.add(1, text(1, 100), 8)
    ghost.run()
    assert planned(ghost, 1)[0] == chunk
    assert len(ghost.outputs[1]) == 8


def test_b040_a_prompt_in_progress_never_lacks_blocks() -> None:
    ghost = Ghost(config(10, budget=32))
    ghost.add(1, text(1, 100), 20)  # seven blocks, later eight
    for _ in range(4):
        ghost.step()
    ghost.add(2, text(2, 64), 4)  # four blocks: three are free
    for _ in range(4):
        assert ghost.step() == {1: 1}, "2 is not begun before all its blocks are there"
    ghost.run()


def test_b041_a_lone_long_prompt_is_scheduled() -> None:
    ghost = Ghost(config(20, chunk_size=40, watermark_blocks=4))
    ghost.add(1, text(1, 288), 4)
    ghost.run()
    assert planned(ghost, 1)[:8] == [40] * 7 + [8]


def test_b042_blocks_are_counted_not_tokens() -> None:
    ghost = Ghost(config(9))
    for id in range(1, 6):
        ghost.add(id, text(id, 17), 4)
    assert ghost.step() == {1: 17, 2: 17, 3: 17, 4: 17}
    assert ghost.scheduler.num_waiting == 1
    ghost.run()


def test_b043_a_lone_prompt_takes_the_whole_budget() -> None:
    ghost = Ghost(config(520))
    ghost.add(1, text(1, 8192), 1)
    ghost.run()
    assert planned(ghost, 1) == [512] * 16


def test_b044_decodes_get_their_token_in_every_step() -> None:
    ghost = Ghost(config(2000, seqs=64))
    for id in range(32):
        ghost.add(id, text(id, 4), 60)
    ghost.step()
    for id in range(100, 150):
        ghost.add(id, text(id, 512), 1)
        plan = ghost.step()
        assert all(plan.get(running) == 1 for running in range(32))
        assert sum(plan.values()) <= 512
    ghost.run()


def test_b047_only_the_last_chunk_samples() -> None:
    ghost = Ghost(config(80, seqs=4, chunk_size=64))
    for id in range(32):
        ghost.add(id, text(id, 256), 2)
    ghost.run()
    assert all(planned(ghost, id) == [64, 64, 64, 64, 1] for id in range(32))
    assert ghost.free == 80


def test_b048_a_row_stays_through_all_chunks() -> None:
    ghost = Ghost(config(40, seqs=2, chunk_size=64, max_steps_in_flight=2))
    ghost.add(1, text(2, 64), 1)
    ghost.run()
    ghost.add(2, text(1, 192), 4)
    rows = set()
    for id in (3, 4, 5):
        if len(ghost.flying) == 2:
            ghost.complete()
        assert ghost.plan() is not None
        rows |= {row for row, owner in ghost.rows.items() if owner == 2}
        ghost.add(id, text(2, 64) + text(id, 5), 2)
    assert len(rows) == 1
    ghost.run()


@pytest.mark.parametrize("stops", [False, True])
def test_b049_ending_within_a_mixed_step_leaves_nothing_behind(stops: bool) -> None:
    ghost = Ghost(config(64))
    for id in (1, 2, 3):
        ghost.add(id, text(id, 20), 400)
    ghost.step()
    for id in range(10, 210):
        stop: dict[str, Any] = {"stop_token_ids": list(range(64))} if stops else {}
        ghost.add(id, text(id, 20), 9 if stops else 1, **stop)
        plan = ghost.step()
        assert plan[id] >= 4
        assert ghost.finished[id].reason == ("stop" if stops else "length")
        assert ghost.scheduler.num_running == 3
        used = sum(len(blocks) for n in (1, 2, 3) if (blocks := ghost.scheduler.blocks(n)) is not None)
        assert ghost.scheduler.num_used_blocks == used


def test_k025_counts_follow_the_requests() -> None:
    ghost = Ghost(config(64, seqs=2))
    for id in range(5):
        ghost.add(id, text(id, 20), 5)
    assert (ghost.scheduler.num_unfinished, ghost.scheduler.num_waiting) == (5, 5)
    ghost.step()
    assert (ghost.scheduler.num_running, ghost.scheduler.num_waiting) == (2, 3)
    for id in (0, 4):
        assert ghost.abort(id)
    assert (ghost.scheduler.num_running, ghost.scheduler.num_waiting) == (1, 2)
    ghost.run()
    assert (ghost.scheduler.num_unfinished, ghost.scheduler.num_running, ghost.scheduler.num_waiting) == (0, 0, 0)


def test_k026_ten_whole_prompts_in_one_step() -> None:
    ghost = Ghost(config(64, seqs=16))
    for id in range(10):
        ghost.add(id, text(id, 30), 2)
    step = ghost.plan()
    assert step is not None
    assert ghost.plans[0] == dict.fromkeys(range(10), 30)
    assert [opened.id for opened in step.opened] == list(range(10))
    assert [opened.token_ids.tolist() for opened in step.opened] == [text(id, 30) for id in range(10)]
    ghost.run()


def test_k027_nothing_is_reordered_behind_a_chunk() -> None:
    ghost = Ghost(config(200, budget=1024))
    for id, length in enumerate([800, 800, 10, 10]):
        ghost.add(id, text(id, length), 1)
    assert ghost.step() == {0: 800, 1: 224}
    assert ghost.step() == {1: 576, 2: 10, 3: 10}


def test_k028_prompts_in_progress_come_before_waiting_ones() -> None:
    ghost = Ghost(config(100, budget=64, chunk_size=24))
    for id in range(4):
        ghost.add(id, text(id, 60), 2)
    assert ghost.step() == {0: 24, 1: 24, 2: 16}
    assert ghost.step() == {0: 24, 1: 24, 2: 16}
    assert ghost.step() == {0: 12, 1: 12, 2: 24, 3: 16}
    ghost.run()


def test_k029_stop_conditions_cut_exactly_there() -> None:
    prompt = text(1, 20)
    ghost = Ghost(SchedulerConfig(64, 16, 8, 256))
    ghost.add(1, prompt, 12)
    ghost.run()
    alone = ghost.outputs[1]
    fourth = alone[3]
    first_at = alone.index(fourth)
    eos = Ghost(SchedulerConfig(64, 16, 8, 256, eos_token_id=fourth))
    eos.expected = ghost.expected
    fields: list[dict[str, Any]] = [{}, {"ignore_eos": True}, {"min_tokens": first_at + 2}]
    for id, more in enumerate(fields):
        eos.add(id, prompt, 12, **more)
        eos.expected[id] = alone
    eos.step()
    while eos.scheduler.has_unfinished():
        eos.step()
    assert eos.outputs[0] == alone[: first_at + 1]
    assert eos.finished[0].reason == "stop"
    assert eos.outputs[1] == alone
    assert len(eos.outputs[2]) >= first_at + 2
    ghost.add(2, prompt, 12, stop_token_ids=[fourth], min_tokens=0)
    ghost.run()
    assert (ghost.outputs[2], ghost.finished[2].reason) == (alone[: first_at + 1], "stop")


def test_k038_after_many_requests_everything_is_empty() -> None:
    ghost = Ghost(config(20, size=4, seqs=4, budget=32))
    for id in range(200):
        ghost.add(id, text(id % 7, 5 + id % 23), 1 + id % 9)
        if id % 3 == 0:
            ghost.step()
        if id % 11 == 0:
            ghost.abort(id)
    ghost.run()
    assert (ghost.free, ghost.scheduler.num_in_flight) == (20, 0)
    assert len(ghost.finished) == 200
