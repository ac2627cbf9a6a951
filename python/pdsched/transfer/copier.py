"""One background thread that copies chunks in order, so that neither host loop nor forward pass waits for bytes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pdsched.transfer.base import Completion, PeerId, Pool, Runs
from pdsched.transfer.copy import check_runs, copy_runs


@dataclass(slots=True)
class _Job:
    transfer: int
    peer: PeerId
    chunk: int
    runs: Runs
    src: Pool
    dst: Pool
    cancelled: bool = False


class Copier:
    """Copies jobs first come, first served, and calls `done` once for each, from any thread."""

    def __init__(self, done: Callable[[Completion], None]) -> None:
        self._done = done
        self._jobs: deque[_Job] = deque()
        self._current: _Job | None = None
        self._closed = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, transfer: int, peer: PeerId, chunk: int, runs: Runs, src: Pool, dst: Pool) -> None:
        """Queue one chunk. The thread starts with the first one: many workers never send."""
        with self._wake:
            self._jobs.append(_Job(transfer, peer, chunk, runs, src, dst))
            self._wake.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pdsched-copier", daemon=True)
            self._thread.start()

    def cancel(self, matches: Callable[[int, PeerId], bool]) -> None:
        """Drop every queued chunk that `matches(transfer, peer)` and stop the current one after its present copy."""
        with self._wake:
            dropped = [job for job in self._jobs if matches(job.transfer, job.peer)]
            self._jobs = deque(job for job in self._jobs if not matches(job.transfer, job.peer))
            if self._current is not None and matches(self._current.transfer, self._current.peer):
                self._current.cancelled = True
        for job in dropped:
            self._done(Completion(job.transfer, job.peer, job.chunk, ok=False, num_bytes=0, seconds=0.0))

    def close(self) -> None:
        """Drop everything and end the thread."""
        self.cancel(lambda _transfer, _peer: True)
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._current = None
                while not self._jobs and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                job = self._current = self._jobs.popleft()
            self._done(_copy(job))
            del job  # a view kept while idle would keep the mapping of a peer that has left


def _copy(job: _Job) -> Completion:
    """Copy one chunk; a failure becomes a completion, never an exception that would end the thread."""
    started = time.perf_counter()
    num_bytes = 0
    error: str | None = None
    try:
        check_runs(job.runs, job.src, job.dst)
        for copied in copy_runs(job.runs, job.src, job.dst):
            num_bytes += copied
            if job.cancelled:
                break
    except Exception as exc:  # whatever it is, the core must learn that this chunk has ended
        error = f"{type(exc).__name__}: {exc}"
    ok = error is None and not job.cancelled
    return Completion(job.transfer, job.peer, job.chunk, ok, num_bytes, time.perf_counter() - started, error)
