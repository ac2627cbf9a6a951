"""Determinism: fresh machines fed with a recorded run answer with the same bytes."""

from __future__ import annotations

import random

import pytest

from pdsched import ClusterConfig, SchedulerConfig, replay_cluster, replay_worker
from pdsched.testing.deployment import GhostDeployment
from pdsched.testing.host import HostConfig

SECOND = 1_000_000_000


def recorded_run(seed: int) -> dict[str, bytes]:
    """A run with kills, freezes, failures and aborts; logs of every machine by name."""
    rng = random.Random(seed)
    config = SchedulerConfig(
        num_blocks=24, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, max_steps_in_flight=2, hash_bits=4
    )
    hosts = [HostConfig(index, role, config) for index, role in enumerate(["prefill", "prefill", "decode", "decode"])]
    deployment = GhostDeployment(hosts, ClusterConfig(1, lease_ns=SECOND // 2), record=True)
    for request_id in range(1, 30):
        prompt = [rng.randrange(64) for _ in range(rng.randrange(1, 40))]
        deployment.submit(request_id, prompt, rng.randrange(1, 16), [])
        for _ in range(rng.randrange(4)):
            deployment.round()
        if rng.random() < 0.2:
            host = deployment.hosts[rng.randrange(4)]
            deployment.kill(host.peer)
        if rng.random() < 0.2:
            deployment.awake()[0].plan()
            deployment.awake()[0].fail(0.5)
        if rng.random() < 0.2:
            deployment.abort(rng.randrange(1, request_id + 1))
        deployment.advance(rng.randrange(SECOND))
    deployment.settle()
    return deployment.take_logs()


@pytest.mark.parametrize("seed", range(4))
def test_logs_replay_to_the_same_bytes(seed: int) -> None:
    logs = recorded_run(seed)
    assert len(logs) > 5, "nobody died"
    for name, log in logs.items():
        replay = replay_cluster(log) if name == "cluster" else replay_worker(log)
        assert replay.difference is None, f"seed {seed}, {name}: {replay.difference}"
        assert replay.outputs > 0
        assert not replay.truncated


def test_the_same_run_gives_the_same_logs() -> None:
    assert recorded_run(7) == recorded_run(7)


def test_a_log_cut_off_replays_up_to_the_cut() -> None:
    log = recorded_run(3)["cluster"]
    replay = replay_cluster(log[: len(log) // 2])
    assert replay.difference is None
    assert replay.calls > 0
    assert replay.truncated


def test_a_changed_log_is_noticed() -> None:
    log = bytearray(recorded_run(3)["worker-2-1"])
    log[-1] ^= 1
    try:
        assert replay_worker(bytes(log)).difference is not None
    except ValueError as error:
        assert "call" in str(error)  # noqa: PT017 - either is an answer


def test_not_a_log_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="empty"):
        replay_worker(b"")
    with pytest.raises(ValueError, match="configuration"):
        replay_worker(b"\x01\x02")
