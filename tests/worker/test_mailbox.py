"""Mailboxes deliver in order, never block, and count what they drop."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

import pytest
import zmq

from pdsched.worker import mailbox
from pdsched.worker.mailbox import Mailbox


def receive(box: Mailbox, count: int) -> list[bytes]:
    messages: list[bytes] = []
    deadline = time.monotonic() + 10
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages"
        box.socket.poll(100)
        messages += box.drain()
    return messages


def test_messages_arrive_in_order_from_several_senders(tmp_path: Path) -> None:
    inbox = Mailbox(f"ipc://{tmp_path}/a")
    senders = [Mailbox(f"ipc://{tmp_path}/b{i}") for i in range(2)]
    for i, sender in enumerate(senders):
        sender.connect(None, inbox.address)
        assert all(sender.send(None, b"%d:%d" % (i, n)) for n in range(100))
    got = receive(inbox, 200)
    for i in range(2):
        mine = [message for message in got if message.startswith(b"%d:" % i)]
        assert mine == [b"%d:%d" % (i, n) for n in range(100)]
    for box in (inbox, *senders):
        assert box.dropped == 0
        box.close()
    assert os.listdir(tmp_path) == []


def test_the_descriptor_wakes_for_a_message(tmp_path: Path) -> None:
    inbox, sender = Mailbox(f"ipc://{tmp_path}/a"), Mailbox(f"ipc://{tmp_path}/b")
    sender.connect((1, 1), inbox.address)
    assert list(inbox.drain()) == []
    sender.send((1, 1), b"x")
    got: list[bytes] = []
    while not got:  # ZeroMQ also signals its own housekeeping
        assert select.select([inbox.fileno()], [], [], 10)[0]
        got = list(inbox.drain())
    assert got == [b"x"]
    inbox.close()
    sender.close()


def test_an_unknown_peer_and_a_full_queue_drop_and_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "HIGH_WATER_MARK", 10)
    sender = Mailbox(f"ipc://{tmp_path}/a")
    assert not sender.send((5, 1), b"x")
    assert sender.dropped == 1
    sender.connect((5, 1), f"ipc://{tmp_path}/nobody-is-there")
    sent = [sender.send((5, 1), b"x") for _ in range(100)]
    assert sent.count(False) > 80
    assert sender.dropped == 1 + sent.count(False)
    sender.disconnect((5, 1))
    assert not sender.send((5, 1), b"x")
    sender.close()


def test_a_peer_that_stopped_reading_does_not_hold_up_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B079: its queue fills, the rest goes on."""
    monkeypatch.setattr(mailbox, "HIGH_WATER_MARK", 100)
    sender = Mailbox(f"ipc://{tmp_path}/a")
    frozen, living = Mailbox(f"ipc://{tmp_path}/b"), Mailbox(f"ipc://{tmp_path}/c")
    sender.connect(1, frozen.address)
    sender.connect(2, living.address)
    started = time.monotonic()
    for n in range(5000):
        sender.send(1, bytes(1000))
        if n % 100 == 0:
            assert sender.send(2, b"%d" % n)
    assert time.monotonic() - started < 5
    assert receive(living, 50)[-1] == b"4900"
    assert sender.dropped > 1000
    for box in (sender, frozen, living):
        box.close()


def test_an_address_in_use_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(zmq.ZMQError):
        Mailbox(f"ipc://{tmp_path}/no-such-folder/a")
