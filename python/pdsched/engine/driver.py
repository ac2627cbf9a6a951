"""Drives one core `Cluster` in an asyncio loop: bytes in, actions out, one timer. It decides nothing.

There is no polling: the loop wakes for a readable mailbox, for a caller, or for the cluster's own timeout, and
everything that is there by then is handled in one go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pdsched import _core
from pdsched.transfer import PeerId
from pdsched.worker.event_log import EventLog
from pdsched.worker.mailbox import Mailbox

Action = (
    _core.Emit | _core.Finish | _core.WorkerUp | _core.WorkerDown | _core.WorkerRefused | _core.Entered
)  # everything but `Send`, which the driver performs itself


class ClusterDriver:
    """The cluster's host. All methods are called in the event loop that it was made in."""

    def __init__(
        self, cluster: _core.Cluster, mailbox: Mailbox, log: EventLog | None, on_action: Callable[[Action], None]
    ) -> None:
        """`on_action` gets every action that is not a message, in order."""
        self.cluster = cluster
        self.malformed = 0
        """Messages that were not understood."""
        self._mailbox = mailbox
        self._log = log
        self._on_action = on_action
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: int | None = None
        self._loop.add_reader(mailbox.fileno(), self._read)
        self._read()  # the descriptor is edge-triggered: what came before it was watched would never show

    def submit(self, request: _core.Request) -> None:
        """Hand in a request. Raises `ValueError` naming the value when it cannot be served; nothing changes then."""
        try:
            self.cluster.submit(request, time.monotonic_ns())
        finally:
            self._pump()

    def abort(self, request_id: int) -> None:
        """End a request; unknown ids are ignored."""
        self.cluster.abort(request_id, time.monotonic_ns())
        self._pump()

    def worker_dead(self, peer: PeerId) -> None:
        """The process of this life has ended: proven, whatever it was doing."""
        self.cluster.worker_dead(*peer, time.monotonic_ns())
        self._pump()

    def close(self) -> None:
        """Stop listening."""
        self._loop.remove_reader(self._mailbox.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._write_log()

    def _read(self) -> None:
        now = time.monotonic_ns()
        for data in self._mailbox.drain():
            try:
                self.cluster.handle(data, now)
            except ValueError:  # a foreign or newer sender must not take the engine down
                self.malformed += 1
        self._pump()

    def _fire(self) -> None:
        self._timer = self._timer_ns = None
        self.cluster.handle_timeout(time.monotonic_ns())
        self._pump()

    def _pump(self) -> None:
        """Perform all actions, write the log, set the timer."""
        while (action := self.cluster.poll_action()) is not None:
            if isinstance(action, _core.Send):
                # A worker's letter box outlives its lives; the core itself drops what is for another life.
                self._mailbox.send(None if action.to is None else action.to[0], action.data)
            else:
                self._on_action(action)
        self._write_log()
        deadline = self.cluster.poll_timeout()
        if deadline == self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        # The loop's clock is CLOCK_MONOTONIC too, in seconds.
        self._timer = None if deadline is None else self._loop.call_at(deadline / 1e9, self._fire)
        self._timer_ns = deadline

    def _write_log(self) -> None:
        if self._log is not None:
            self._log.write(self.cluster.take_log())
