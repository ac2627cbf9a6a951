"""The arena: sized and allocated up front, found only by whoever was told, gone with its processes."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from pdsched.transfer import Arena, ChannelError, create_arena
from pdsched.transfer.arena import ArenaAddress, available_memory, open_arena


@pytest.fixture
def arena() -> Arena:
    return Arena(create_arena(3 << 20))


def test_a_peer_sees_what_the_owner_writes(arena: Arena) -> None:
    arena.touch()
    arena.bytes()[:4] = [1, 2, 3, 4]
    peer = open_arena(arena.address())
    assert peer.bytes()[:5].tolist() == [1, 2, 3, 4, 0]
    peer.bytes()[-1] = 9
    assert arena.bytes()[-1] == 9
    assert arena.nbytes == 3 << 20
    arena.close()


def test_another_process_writes_into_it(arena: Arena) -> None:
    code = (
        "import sys, msgspec; from pdsched.transfer.arena import ArenaAddress, open_arena;"
        "a = open_arena(msgspec.msgpack.decode(bytes.fromhex(sys.argv[1]), type=ArenaAddress)); a.bytes()[7] = 77"
    )
    subprocess.run([sys.executable, "-c", code, msgspec.msgpack.encode(arena.address()).hex()], check=True)
    assert arena.bytes()[7] == 77
    arena.close()


def test_more_memory_than_there_is_names_the_bytes_wanted() -> None:
    with pytest.raises(ChannelError, match=r"KV pool wants 4611686018427387904 bytes of shared memory"):
        create_arena(1 << 62)
    assert available_memory() is not None


def test_a_recycled_descriptor_is_noticed(arena: Arena) -> None:
    address = arena.address()
    wrong = ArenaAddress(address.pid, address.fd, b"x" * 16, address.nbytes)
    with pytest.raises(ChannelError, match="token differs"):
        open_arena(wrong)
    with pytest.raises(ChannelError, match="cannot be opened"):
        open_arena(ArenaAddress(address.pid, 1 << 20, address.token, address.nbytes))
    arena.close()


def test_nothing_is_left_open(arena: Arena) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        open_arena(arena.address()).bytes()
    assert len(os.listdir("/proc/self/fd")) == before
    np.testing.assert_array_equal(arena.bytes()[:8], 0)
    arena.close()
