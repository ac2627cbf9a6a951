"""Figures are gathered, sent a few times a second, and say how much of a transfer was there when the prefill ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from pdsched.transfer import Completion, Runs
from pdsched.worker.telemetry import FLUSH_NS, StepRecord, Telemetry, TelemetrySender, decode

PEER = (2, 1)


def runs(tokens: int) -> Runs:
    column = np.asarray([tokens], dtype=np.int32)
    return Runs(column, column, column, column, column)


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[tuple[TelemetrySender, zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    receiver = context.socket(zmq.PULL)
    receiver.bind(f"ipc://{tmp_path}/t")
    sender = TelemetrySender(context, f"ipc://{tmp_path}/t")
    yield sender, receiver
    sender.close()
    context.destroy(linger=0)


def receive(socket: zmq.Socket[bytes]) -> Telemetry:
    assert socket.poll(10_000)
    return decode(socket.recv())


def test_share_there_before_the_last_chunk(wire: tuple[TelemetrySender, zmq.Socket[bytes]]) -> None:
    sender, receiver = wire
    for chunk, now in enumerate((100, 200, 300)):
        sender.transfer_started(7, PEER, runs(16), now)
        sender.transfer_done(Completion(7, PEER, chunk, True, 1000, 0.5), now + 50)
    sender.flush((1, 1), 1000, dropped_messages=3, cpu_ns=9)
    message = receive(receiver)
    (record,) = message.transfers
    assert (record.num_tokens, record.chunks, record.done_chunks, record.num_bytes) == (48, 3, 3, 3000)
    assert record.bytes_before_last == 2000
    assert (record.copy_seconds, record.started_ns, record.done_ns) == (1.5, 100, 350)
    assert (message.dropped_messages, message.cpu_ns) == (3, 9)


def test_sends_only_when_due_and_only_what_changed(wire: tuple[TelemetrySender, zmq.Socket[bytes]]) -> None:
    sender, receiver = wire
    assert sender.due() is None
    sender.transfer_started(7, PEER, runs(16), 1)
    sender.flush((1, 1), 1000, 0, 0)
    assert len(receive(receiver).transfers) == 1
    assert sender.due() is None
    sender.step(StepRecord(5, 6, 10, 2, 3))
    assert sender.due() == 1000 + FLUSH_NS
    sender.flush((1, 1), 2000, 0, 0)
    assert not receiver.poll(50)
    sender.flush((1, 1), 1000 + FLUSH_NS, 0, 0)
    message = receive(receiver)
    assert message.transfers == []
    assert message.steps == [StepRecord(5, 6, 10, 2, 3)]
