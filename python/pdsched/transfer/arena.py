"""Shared memory for one KV pool: an anonymous memfd that peers open through /proc.

A memfd has no name to collide or to leak, needs no /dev/shm mount (64 MB in a container), and is gone with the last
process that maps it, however that process ends.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from pdsched.transfer.base import ChannelError

HEADER_BYTES = mmap.PAGESIZE
"""The pool begins one page in; the first page holds the token by which a peer knows that it opened the right arena."""
TOKEN_BYTES = 16


class ArenaAddress(msgspec.Struct, frozen=True):
    """Where a peer on the same machine finds an arena."""

    pid: int
    fd: int
    token: bytes
    nbytes: int


class Arena:
    """One memfd: a header page, then `nbytes` of pool. The owner creates it, workers and peers map it."""

    def __init__(self, fd: int) -> None:
        """Map the arena behind `fd` and take the descriptor over."""
        self.fd = fd
        size = os.fstat(fd).st_size
        if size <= HEADER_BYTES:
            raise ChannelError(f"arena of {size} bytes is smaller than its header")
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.token = bytes(self._map[:TOKEN_BYTES])
        self.nbytes = size - HEADER_BYTES

    def bytes(self) -> npt.NDArray[np.uint8]:
        """The pool's bytes, writable. The mapping lives as long as an array made of it."""
        return np.frombuffer(self._map, dtype=np.uint8, offset=HEADER_BYTES)

    def touch(self) -> None:
        """Map every page now: the first write to a fresh shared page costs several times what a copy does."""
        pages = self.bytes()[:: mmap.PAGESIZE]
        np.bitwise_or(pages, 0, out=pages)

    def address(self) -> ArenaAddress:
        """How peers find it; holds as long as this process keeps the descriptor open."""
        return ArenaAddress(os.getpid(), self.fd, self.token, self.nbytes)

    def close(self) -> None:
        """Close the descriptor. The mapping itself goes with the last array."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def create_arena(nbytes: int) -> int:
    """Make a memfd for a pool of `nbytes`, with its memory allocated now; returns the descriptor.

    Raises `ChannelError` naming the bytes wanted when the machine (or its memory limit) cannot give them: an arena
    that overcommits would kill its worker by a bus error in the middle of a request.
    """
    available = available_memory()
    if available is not None and nbytes + HEADER_BYTES > available:
        raise ChannelError(f"KV pool wants {nbytes} bytes of shared memory, {available} are available")
    fd = os.memfd_create("pdsched-kv", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, nbytes + HEADER_BYTES)
        os.pwrite(fd, os.urandom(TOKEN_BYTES), 0)
    except OSError as exc:
        os.close(fd)
        raise ChannelError(f"KV pool wants {nbytes} bytes of shared memory: {exc.strerror}") from exc
    return fd


def open_arena(address: ArenaAddress) -> Arena:
    """Map the arena of another process of this machine. Raises `ChannelError` saying why it cannot be."""
    path = f"/proc/{address.pid}/fd/{address.fd}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as exc:
        raise ChannelError(f"peer's arena {path} cannot be opened: {exc.strerror}") from exc
    try:
        arena = Arena(fd)
    except (ChannelError, OSError, ValueError) as exc:
        os.close(fd)
        raise ChannelError(f"peer's arena {path} cannot be mapped: {exc}") from exc
    arena.close()  # the mapping is enough
    if arena.token != address.token:  # the process has ended and its number or descriptor means something else now
        raise ChannelError(f"peer's arena {path} is not the one announced (token differs)")
    if arena.nbytes != address.nbytes:
        raise ChannelError(f"peer's arena has {arena.nbytes} bytes, {address.nbytes} were announced")
    return arena


def available_memory() -> int | None:
    """Bytes that can still be had without swapping, by the machine and by its control group; None when unknown."""
    limits: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        pass
    try:
        group = Path("/sys/fs/cgroup")
        limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no control group, or its limit is the word "max"
        pass
    return min(limits, default=None)
