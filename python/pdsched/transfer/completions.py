"""A queue of completions with a descriptor to wait on."""

from __future__ import annotations

import contextlib
import os
from collections import deque

from pdsched.transfer.base import ChannelStats, Completion


class CompletionQueue:
    """Filled by any thread, drained by one. The descriptor is readable while something may be in it."""

    def __init__(self) -> None:
        self._done: deque[Completion] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """The eventfd to poll."""
        return self._fd

    def put(self, completion: Completion) -> None:
        """Add one and wake the reader. After `close` it is dropped."""
        self._done.append(completion)
        with contextlib.suppress(OSError, ValueError):
            os.eventfd_write(self._fd, 1)

    def drain(self, stats: ChannelStats) -> list[Completion]:
        """Everything queued so far, counted in `stats`."""
        # Reset first: whatever is added after this line wakes the reader once more.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        done: list[Completion] = []
        while self._done:
            done.append(self._done.popleft())
            stats.count(done[-1])
        return done

    def close(self) -> None:
        """Release the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
