"""One background thread that copies chunks in order, so that neither host loop nor forward pass waits for bytes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pdsched.transfer.base import Completion, PeerId, Pool, Runs
from pdsched.transfer.copy import check_runs, copy_runs, touch_pages


@dataclass(slots=True)
class _Job:
    transfer: int
    peer: PeerId
    chunk: int
    runs: Runs
    src: Pool
    dst: Pool
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class _Touch:
    pool: Pool


class Copier:
    """Copies jobs first come, first served, and calls `done` once for each, from any thread."""

    def __init__(self, done: Callable[[Completion], None]) -> None:
        self._done = done
        self._jobs: deque[_Job | _Touch] = deque()
        self._current: _Job | None = None
        self._closed = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, transfer: int, peer: PeerId, chunk: int, runs: Runs, src: Pool, dst: Pool) -> None:
        """Queue one chunk."""
        self._queue(_Job(transfer, peer, chunk, runs, src, dst))

    def touch(self, pool: Pool) -> None:
        """Map every page of a peer's pool into this process: the first write to each would cost five times the copy."""
        self._queue(_Touch(pool))

    def cancel(self, matches: Callable[[int, PeerId], bool]) -> None:
        """Drop every queued chunk that `matches(transfer, peer)` and stop the current one after its present copy."""
        with self._wake:
            dropped: list[_Job] = []
            kept: deque[_Job | _Touch] = deque()
            for job in self._jobs:
                if isinstance(job, _Job) and matches(job.transfer, job.peer):
                    dropped.append(job)
                else:
                    kept.append(job)
            self._jobs = kept
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

    def _queue(self, job: _Job | _Touch) -> None:
        with self._wake:
            self._jobs.append(job)
            self._wake.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pdsched-copier", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._current = None
                while not self._jobs and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                job = self._jobs.popleft()
                self._current = job if isinstance(job, _Job) else None
            if isinstance(job, _Job):
                self._done(_copy(job))
            else:
                touch_pages(job.pool)
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
