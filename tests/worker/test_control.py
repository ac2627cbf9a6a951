"""Control frames survive any cut of the stream; an end of file is noticed."""

from __future__ import annotations

import socket

from pdsched.worker.control import (
    Inspect,
    KillPeer,
    Life,
    Reconfigure,
    Start,
    Stop,
    WorkerControl,
    decode_from_worker,
    encode,
)

START = Start(
    worker_id=1,
    model="m",
    core=None,
    threads=1,
    block_size=16,
    num_blocks=4,
    arena_fd=3,
    mailbox="ipc://a",
    cluster_mailbox="ipc://b",
    telemetry="ipc://c",
    record=None,
    life=Life(1, "both", {"max_num_seqs": 4, "chunk_size": None}),
)


def test_frames_cut_anywhere_come_out_whole_and_in_order() -> None:
    ours, theirs = socket.socketpair()
    control = WorkerControl(theirs.detach())
    data = encode(START)
    ours.sendall(data[:3])
    assert list(control.receive()) == []
    ours.sendall(data[3:] + encode(Inspect()) + encode(Stop())[:2])
    assert list(control.receive()) == [START, Inspect()]
    ours.sendall(encode(Stop())[2:])
    assert list(control.receive()) == [Stop()]
    assert list(control.receive()) == []
    assert not control.closed
    ours.close()
    assert list(control.receive()) == []
    assert control.closed
    control.close()


def test_a_worker_waits_for_its_start() -> None:
    ours, theirs = socket.socketpair()
    control = WorkerControl(theirs.detach())
    ours.sendall(encode(START))
    assert control.wait_start() == START
    ours.sendall(encode(Reconfigure(START.life)))
    assert list(control.receive()) == [Reconfigure(START.life)]
    control.send(KillPeer(2, 7))
    assert decode_from_worker(ours.recv(100)[4:]) == KillPeer(2, 7)
    ours.close()
    control.send(KillPeer(2, 7))
    assert control.wait_start() is None
    control.close()
