"""Recorded events of one state machine, appended so that a killed process keeps what it had recorded."""

from __future__ import annotations

import os
from pathlib import Path


class EventLog:
    """An append-only file written without buffering: what `write` returned from survives a kill -9."""

    def __init__(self, path: Path) -> None:
        """Create the file; its folder must exist. Raises `FileExistsError` rather than mixing two runs."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, data: bytes) -> None:
        """Append; empty data does nothing."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def worker_log(folder: str, worker_id: int, incarnation: int) -> EventLog:
    """The log of one life of a worker: `worker-<id>-<incarnation>.log`."""
    return EventLog(Path(folder) / f"worker-{worker_id}-{incarnation}.log")


def cluster_log(folder: str) -> EventLog:
    """The log of the cluster: `cluster.log`."""
    return EventLog(Path(folder) / "cluster.log")
