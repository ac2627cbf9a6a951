"""Steps in flight: exact counts, fences, late and failed steps."""

from __future__ import annotations

import pytest

from pdsched import Scheduler

from .harness import Ghost, config, text


@pytest.mark.parametrize("flight", [1, 2, 3])
def test_k050_exactly_max_tokens_and_nothing_in_vain(flight: int) -> None:
    ghost = Ghost(config(64, max_steps_in_flight=flight))
    for id in range(4):
        ghost.add(id, text(id, 10 + id), 5 + id)
    ghost.run()
    assert ghost.scheduler.stats()["planned_tokens"] == sum(10 + id + 5 + id - 1 for id in range(4))


def test_k051_an_aborted_request_has_the_tokens_of_steps_done_before() -> None:
    ghost = Ghost(config(64, max_steps_in_flight=2))
    for id in range(4):
        ghost.add(id, text(id, 10), 50)
    ghost.plan()
    for done in range(4):
        ghost.plan()
        ghost.abort(done)
        assert ghost.finished[done].num_outputs == done
        ghost.complete()
    ghost.run()


def test_k056_blocks_wait_for_the_step_in_flight_and_only_then() -> None:
    ghost = Ghost(config(16))
    ghost.add(1, text(1, 40), 9)
    ghost.plan()
    ghost.abort(1)
    assert ghost.free == 13
    ghost.complete()
    assert ghost.free == 16
    ghost.add(2, text(2, 40), 9)
    ghost.step()
    ghost.abort(2)
    assert ghost.free == 16


def test_k057_the_fence_is_the_newest_step() -> None:
    ghost = Ghost(config(16, max_steps_in_flight=3))
    ghost.add(1, text(1, 40), 9)
    for _ in range(3):
        ghost.plan()
    ghost.abort(1)
    for free in (13, 13, 16):
        ghost.complete()
        assert ghost.free == free


def test_k058_no_needless_delay() -> None:
    ghost = Ghost(config(16, max_steps_in_flight=2))
    ghost.add(1, text(1, 16), 1)
    ghost.add(2, text(2, 16), 9)
    ghost.plan()
    ghost.plan()
    assert ghost.plans[1] == {2: 1}
    ghost.complete()
    assert ghost.finished[1].reason == "length"
    assert ghost.scheduler.num_used_blocks == 2, "1 is gone, although a step of 2 is in flight"


def test_a_late_end_drops_what_was_planned_after_it() -> None:
    prompt = text(1, 20)
    alone = Ghost(config(16))
    alone.add(1, prompt, 12)
    alone.run()
    stop = alone.outputs[1][4]
    ghost = Ghost(config(16, max_steps_in_flight=3))
    ghost.add(1, prompt, 12, stop_token_ids=[stop])
    ghost.run()
    assert ghost.finished[1].reason == "stop"
    assert ghost.scheduler.stats()["dropped_tokens"] == 2


def test_a_completion_that_comes_early_is_kept() -> None:
    ghost = Ghost(config(16, max_steps_in_flight=3))
    ghost.add(1, text(1, 20), 12)
    for _ in range(3):
        ghost.plan()
    first, second, third = ((step.id, ghost.runner.run(step)) for step in ghost.flying)
    for id, sampled in (third, second):
        assert ghost.scheduler.complete(id, sampled, now=9).request_ids.size == 0
    with pytest.raises(RuntimeError, match="step 2 was completed or failed already"):
        ghost.scheduler.complete(2, second[1], now=9)
    out = ghost.take(ghost.scheduler.complete(first[0], first[1], now=9))
    assert out.token_ids.tolist() == ghost.expected[1][:3]


def test_b061_late_steps_are_counted_and_change_nothing() -> None:
    ghost = Ghost(config(16))
    ghost.add(1, text(1, 20), 3)
    ghost.step()
    for id in (1, 77):
        assert ghost.scheduler.complete(id, [5], now=9).request_ids.size == 0
        assert ghost.scheduler.fail(id, 9).request_ids.size == 0
    assert ghost.scheduler.stats()["late_steps"] == 4
    ghost.run()


@pytest.mark.parametrize("flight", [1, 3])
@pytest.mark.parametrize("failing", [0, 1, 3, 6])
def test_a_failed_step_is_never_seen_in_an_output(flight: int, failing: int) -> None:
    ghost = Ghost(config(9, size=4, budget=16, max_steps_in_flight=flight))
    for id in range(4):
        ghost.add(id, text(id, 9), 8)
    for index in range(12):
        while ghost.plan() is not None:
            pass
        ghost.fail() if index == failing else ghost.complete()
    ghost.run()


def test_the_same_calls_give_the_same_plans() -> None:
    def story() -> list[object]:
        ghost = Ghost(config(12, size=4, budget=24, max_steps_in_flight=2))
        seen: list[object] = []
        for id in range(30):
            ghost.add(id, text(id % 5, 5 + 3 * id % 17), 1 + id % 7)
            if (step := ghost.plan()) is not None:
                seen += [step.token_ids.tolist(), step.slot_mapping.tolist(), [a.tolist() for a in step.table_diff]]
            if id % 3 and ghost.flying:
                out = ghost.complete() if id % 5 else ghost.fail()
                seen += [out.request_ids.tolist(), out.token_ids.tolist()]
            if id % 8 == 7:
                seen.append(ghost.abort(id - 2))
        ghost.run()
        return [*seen, ghost.plans, ghost.scheduler.stats()]

    assert story() == story()


def test_a_scheduler_that_only_fails_is_idle_again_after_the_abort() -> None:
    ghost = Ghost(config(8, max_steps_in_flight=2))
    ghost.add(1, text(1, 30), 4)
    for _ in range(5):
        ghost.plan()
        ghost.fail()
    assert ghost.outputs[1] == []
    ghost.abort(1)
    assert isinstance(ghost.scheduler, Scheduler)
    assert ghost.scheduler.is_idle()
