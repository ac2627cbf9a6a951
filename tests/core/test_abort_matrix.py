"""The abort matrix: a client leaves in every state a request can be in between two workers.

Each cell: one end, both pools whole without a lease having to end, and a request that needs most of the pool is served.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .harness import Pair, config, text


def prefill_began(pair: Pair) -> bool:
    return int(pair.sent_by.slots[:, 1].max()) >= 0


STATES: dict[str, Callable[[Pair], object]] = {
    "a04 between two chunks": lambda pair: pair.p.worker.num_running and not pair.p.launched and prefill_began(pair),
    "a05 a chunk in flight": lambda pair: pair.p.launched and not pair.p.launched[0].step.num_samples,
    "a06 the last chunk in flight": lambda pair: pair.p.launched and pair.p.launched[0].step.num_samples,
    "a09 reserved, nothing written": lambda pair: pair.d.worker.num_used_blocks,
    "a10 some blocks written": lambda pair: pair.sent_by.sent,
    "a11 all written, not told": lambda pair: (
        sum(count for _, _, count in pair.sent_by.sent) == 100 and pair.queues.get((pair.p.peer, pair.d.peer))
    ),
    "a13 decoding": lambda pair: pair.d.worker.num_running and not pair.d.launched,
    "a14 decoding, a step in flight": lambda pair: pair.d.launched,
    "last tokens": lambda pair: len(pair.clients[1].outputs) == 7,
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("flight", [1, 2])
def test_a04_a05_a06_a09_a11_a13_a14_abort_in_every_state(state: str, flight: int) -> None:
    prefill = config(8, chunk_size=40, max_steps_in_flight=flight)
    pair = Pair(prefill, config(8, max_steps_in_flight=flight))
    pair.ask(1, text(1, 100), 8)
    pair.until(lambda: STATES[state](pair))
    pair.abort(1)
    pair.abort(1)
    pair.ask(2, text(2, 110), 8)
    pair.finish(within=20)
    assert pair.clients[1].reason == "abort"
    assert pair.clients[2].reason == "length"
    assert pair.cluster.stats()["unknown_aborts"] == 1
    assert [load["booked"] + load["held"] for load in pair.cluster.loads()] == [0, 0]


def test_a01_queued_with_no_worker_chosen() -> None:
    pair = Pair(config(8), config(8))
    pair.frozen |= {pair.p.peer, pair.d.peer}
    for id in (1, 2):
        pair.ask(id, text(id, 100), 8)
    pair.abort(2)
    assert pair.clients[2].reason == "abort"
    pair.frozen.clear()
    pair.finish()
    assert pair.clients[1].reason == "length"


def test_a02_queued_at_prefill_without_blocks() -> None:
    pair = Pair(config(32, seqs=1, budget=16), config(32))
    for id in (1, 2):
        pair.ask(id, text(id, 100), 8)
    pair.until(lambda: pair.p.worker.num_running and pair.p.worker.num_waiting)
    pair.abort(2)
    pair.finish()
    assert [pair.clients[id].reason for id in (1, 2)] == ["length", "abort"]


def test_a08_waiting_for_room_on_the_decode_side() -> None:
    pair = Pair(config(32), config(8))
    for id in (1, 2):
        pair.ask(id, text(id, 90), 30)
    pair.until(lambda: pair.clients[1].outputs and pair.cluster.num_waiting)
    pair.abort(2)
    pair.finish()
    assert [pair.clients[id].reason for id in (1, 2)] == ["length", "abort"]
    assert pair.p.worker.stats()["planned_tokens"] == 90, "the prompt of 2 was never computed"


def test_a12_received_and_waiting_for_a_row() -> None:
    pair = Pair(config(32), config(32, seqs=1))
    for id in (1, 2):
        pair.ask(id, text(id, 90), 30)
    pair.until(lambda: pair.d.worker.stats()["hand_offs_in"] == 2)
    assert (pair.d.worker.num_running, pair.d.worker.num_waiting) <= (1, 2)
    used = pair.d.worker.num_used_blocks
    pair.abort(2)
    pair.until(lambda: pair.d.worker.num_used_blocks <= used - 6)
    pair.finish()
    assert [pair.clients[id].reason for id in (1, 2)] == ["length", "abort"]


def test_a15_preempted_on_the_decode_side() -> None:
    pair = Pair(config(32), config(8))
    for id in (1, 2):
        pair.ask(id, text(id, 48), 40)
    pair.until(lambda: pair.d.worker.stats()["preemptions"])
    pair.abort(2)
    pair.finish()
    assert [pair.clients[id].reason for id in (1, 2)] == ["length", "abort"]


def test_a17_finished_and_forgotten() -> None:
    pair = Pair(config(32), config(32))
    pair.ask(1, text(1, 20), 4)
    pair.finish()
    pair.abort(1)
    pair.abort(99)
    assert pair.clients[1].reason == "length"
    assert pair.cluster.stats()["unknown_aborts"] == 2
    pair.finish()
