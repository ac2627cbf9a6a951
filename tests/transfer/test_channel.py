"""Both channels copy exactly what they are told, and every chunk that starts completes once."""

from __future__ import annotations

import numpy as np
import pytest

from pdsched.transfer import ChannelError, KVChannel
from pdsched.transfer.base import Pool
from pdsched.transfer.copy import copy_runs

from .conftest import PEER, MakeEnd, fill, runs, wait

Pair = tuple[KVChannel, Pool, Pool]


def test_whole_blocks_go_to_other_ids_and_nothing_else_changes(pair: Pair) -> None:
    sender, source, target = pair
    sender.start(1, PEER, 0, runs((1, 0, 9, 0, 4), (2, 0, 10, 0, 4), (7, 0, 3, 0, 4)))
    (done,) = wait(sender, 1)
    assert (done.transfer, done.peer, done.chunk, done.ok, done.error) == (1, PEER, 0, True, None)
    assert done.num_bytes == 3 * source[0].nbytes
    expected = np.zeros_like(target)
    expected[9], expected[10], expected[3] = source[1], source[2], source[7]
    np.testing.assert_array_equal(target, expected)


def test_part_of_a_block_leaves_the_rest_of_it_alone(pair: Pair) -> None:
    sender, source, target = pair
    target[5] = -1
    sender.start(1, PEER, 0, runs((2, 1, 5, 2, 2)))
    (done,) = wait(sender, 1)
    assert done.ok
    assert done.num_bytes == source[0].nbytes // 2
    np.testing.assert_array_equal(target[5, :, :, 2:4], source[2, :, :, 1:3])
    assert (target[5, :, :, :2] == -1).all()
    assert (np.delete(target, 5, axis=0) == 0).all()


def test_different_block_sizes(make_end: MakeEnd) -> None:
    """14 tokens from blocks of 7 into blocks of 4: each run stays inside one block of either side."""
    sender, source = make_end(4, 7)
    receiver, target = make_end(6, 4)
    fill(source)
    sender.register(source)
    sender.connect(PEER, receiver.register(target))
    positions = np.arange(14)
    sender.start(1, PEER, 0, runs((2, 0, 1, 0, 4), (2, 4, 5, 0, 3), (0, 0, 5, 3, 1), (0, 1, 2, 0, 4), (0, 5, 3, 0, 2)))
    assert wait(sender, 1)[0].ok
    sent = source[[2, 0]].transpose(0, 3, 1, 2, 4, 5).reshape(14, -1)
    got = target[[1, 5, 2, 3]].transpose(0, 3, 1, 2, 4, 5).reshape(16, -1)
    np.testing.assert_array_equal(got[positions], sent)


def test_random_runs_equal_a_token_by_token_copy(pair: Pair) -> None:
    sender, source, target = pair
    rng = np.random.default_rng(0)
    expected = np.zeros_like(target)
    rows: list[tuple[int, int, int, int, int]] = []
    for dst_block in rng.permutation(16):
        src_block, count = int(rng.integers(8)), int(rng.integers(1, 5))
        a, b = (int(rng.integers(0, 5 - count)) for _ in range(2))
        rows.append((src_block, a, int(dst_block), b, count))
        expected[dst_block, :, :, b : b + count] = source[src_block, :, :, a : a + count]
    for chunk, part in enumerate(np.array_split(np.asarray(rows), 5)):
        sender.start(1, PEER, chunk, runs(*[tuple(row) for row in part.tolist()]))
    done = wait(sender, 5)
    assert [(c.chunk, c.ok) for c in done] == [(i, True) for i in range(5)]
    np.testing.assert_array_equal(target, expected)
    assert sender.stats.chunks == 5
    assert sender.stats.num_bytes == sum(c.num_bytes for c in done) > 0


def test_neighbouring_whole_blocks_are_joined() -> None:
    source = np.zeros((8, 1, 2, 4, 1, 1), dtype=np.float32)
    target = np.zeros_like(source)
    pieces = list(copy_runs(runs((0, 0, 4, 0, 4), (1, 0, 5, 0, 4), (2, 0, 7, 0, 4), (3, 0, 0, 1, 2)), source, target))
    block = source[0].nbytes
    assert pieces == [2 * block, block, block // 2]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ((8, 0, 0, 0, 4), "source run of 4 tokens at offset 0 of block 8"),
        ((0, 0, 16, 0, 4), "destination run of 4 tokens at offset 0 of block 16"),
        ((0, 2, 0, 0, 3), "source run of 3 tokens at offset 2"),
        ((0, 0, -1, 0, 1), "block -1"),
        ((0, 0, 0, 0, 0), "run of 0 tokens"),
    ],
)
def test_a_run_outside_the_pool_fails_its_chunk_and_writes_nothing(
    pair: Pair, row: tuple[int, int, int, int, int], named: str
) -> None:
    sender, _, target = pair
    sender.start(1, PEER, 0, runs((1, 0, 1, 0, 4), row))
    sender.start(1, PEER, 1, runs((1, 0, 1, 0, 4)))
    bad, good = wait(sender, 2)
    assert not bad.ok
    assert bad.error is not None
    assert named in bad.error
    assert good.ok
    assert (target[0] == 0).all()


def test_an_unknown_peer_fails_the_chunk(pair: Pair) -> None:
    sender, _, _ = pair
    sender.start(1, (9, 1), 0, runs((0, 0, 0, 0, 4)))
    (done,) = wait(sender, 1)
    assert not done.ok
    assert done.error == "not connected to (9, 1)"


def test_cancel_completes_every_outstanding_chunk_and_spares_others(make_end: MakeEnd) -> None:
    sender, source = make_end(512, 16)
    receiver, target = make_end(512, 16)
    fill(source)
    sender.register(source)
    sender.connect(PEER, receiver.register(target))
    everything = runs(*[(b, 0, b, 0, 16) for b in range(511)])
    for chunk in range(50):
        sender.start(1, PEER, chunk, everything)
    sender.start(2, PEER, 0, runs((511, 0, 511, 0, 16)))
    sender.cancel(1, PEER)
    done = wait(sender, 51)
    assert sorted(c.chunk for c in done if c.transfer == 1) == list(range(50))
    assert not all(c.ok for c in done if c.transfer == 1)
    assert [c.ok for c in done if c.transfer == 2] == [True]
    before = target[:511].copy()
    source[...] = -5
    np.testing.assert_array_equal(target[:511], before)


def test_disconnect_and_close_complete_nothing_later(pair: Pair) -> None:
    sender, _, target = pair
    sender.start(1, PEER, 0, runs((0, 0, 0, 0, 4)))
    sender.disconnect(PEER)
    wait(sender, 1)
    sender.start(1, PEER, 1, runs((0, 0, 1, 0, 4)))
    assert not wait(sender, 1)[0].ok
    assert (target[1] == 0).all()
    sender.close()
    sender.close()


def test_peers_that_do_not_fit_are_refused_by_field(make_end: MakeEnd) -> None:
    sender, source = make_end(4, 4)
    receiver, target = make_end(4, 4, kv_heads=3)
    sender.register(source)
    with pytest.raises(ChannelError, match="kv_heads 3, ours has 2"):
        sender.connect(PEER, receiver.register(target))


def test_garbage_addresses_are_refused(make_end: MakeEnd) -> None:
    sender, source = make_end(4, 4)
    with pytest.raises(ChannelError, match="before register"):
        sender.connect(PEER, b"")
    sender.register(source)
    with pytest.raises(ChannelError, match="address"):
        sender.connect(PEER, b"\x00garbage")


def test_a_pool_of_another_shape_is_refused(make_end: MakeEnd) -> None:
    sender, source = make_end(4, 4)
    with pytest.raises(ChannelError, match="pool shape must be"):
        sender.register(source[0])
    with pytest.raises(ChannelError, match="C-contiguous"):
        sender.register(source[:, :, ::-1])
