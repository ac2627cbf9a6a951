"""A worker host in virtual time: a real `Worker`, a ghost runner, steps that run late, copies that take their time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pdsched import (
    CancelTransfer,
    Connect,
    Disconnect,
    Kill,
    PeerDead,
    SchedulerConfig,
    Send,
    StartTransfer,
    Step,
    TransferDone,
    Worker,
)
from pdsched.testing.ghost import GhostKV, GhostRunner, Int64

if TYPE_CHECKING:
    from collections.abc import Callable

Peer = tuple[int, int]


class Network(Protocol):
    """What a host needs of the world around it."""

    now: int

    def send(self, sender: Peer, to: Peer | None, data: bytes) -> None:
        """Carries a message."""

    def kill(self, peer: Peer) -> None:
        """Ends a process for good."""

    def kv_of(self, peer: Peer) -> GhostKV | None:
        """The memory of a worker that lives."""


@dataclass(eq=False)
class Copy:
    """A chunk of a transfer under way."""

    transfer: StartTransfer
    runs_done: int = 0
    cancelled: bool = False

    @property
    def complete(self) -> bool:
        """All runs are copied."""
        return self.runs_done == len(self.transfer.num_tokens)


@dataclass
class Launched:
    """A step between its planning and its completion."""

    step: Step
    tokens: Int64 | None = None
    reported: bool = False


@dataclass
class HostConfig:
    """How a host is made."""

    worker_id: int
    role: str
    scheduler: SchedulerConfig
    kill_after_ns: int = 30_000_000_000
    fingerprint: str = "ghost"
    address: bytes = b""
    record: bool = False
    incarnation: int = field(default=1)


class GhostHost:
    """One worker in one life.

    Args:
        config: what to make.
        network: the world around.
    """

    def __init__(self, config: HostConfig, network: Network) -> None:
        scheduler = config.scheduler
        self.config = config
        self.peer: Peer = (config.worker_id, config.incarnation)
        self.network = network
        self.worker = Worker(
            scheduler,
            worker_id=config.worker_id,
            incarnation=config.incarnation,
            role=config.role,
            fingerprint=config.fingerprint,
            address=config.address,
            kill_after_ns=config.kill_after_ns,
            record=config.record,
        )
        self.kv = GhostKV(scheduler.num_blocks, scheduler.block_size)
        self.runner = GhostRunner(self.kv, self.worker.num_rows, self.worker.max_blocks_per_row)
        self.launched: deque[Launched] = deque()
        self.copies: list[Copy] = []
        self.worker.handle_timeout(network.now)
        self.pump()

    def receive(self, data: bytes) -> None:
        """A message came."""
        self.worker.handle(data, self.network.now)
        self.pump()

    def tick(self) -> None:
        """The clock moved."""
        due = self.worker.poll_timeout()
        if due is not None and due <= self.network.now:
            self.worker.handle_timeout(self.network.now)
            self.pump()

    def plan(self) -> bool:
        """Plans a step and takes its arrays; it may run much later."""
        step = self.worker.schedule(self.network.now)
        if step is not None:
            self._check_rows(step)
            self.launched.append(Launched(step))
        self.pump()
        return step is not None

    @property
    def has_work(self) -> bool:
        """Some request is here that may want a step."""
        return self.worker.num_running + self.worker.num_waiting > 0

    @property
    def waiting(self) -> Launched | None:
        """The oldest step that has not run."""
        return next((launched for launched in self.launched if launched.tokens is None), None)

    @property
    def done(self) -> list[Launched]:
        """Steps that ran and are not reported."""
        return [launched for launched in self.launched if launched.tokens is not None and not launched.reported]

    def run(self) -> bool:
        """Runs the oldest step that has not run, as a device does: in order."""
        waiting = self.waiting
        if waiting is not None:
            waiting.tokens = self.runner.run(waiting.step)
        return waiting is not None

    def complete(self, choose: Callable[[int], int] = lambda _: 0) -> bool:
        """Reports one of the steps that ran, in any order.

        Args:
            choose: picks an index below its argument.
        """
        done = self.done
        if not done:
            return False
        launched = done[choose(len(done))]
        launched.reported = True
        assert launched.tokens is not None
        self.worker.complete(launched.step.id, launched.tokens, now=self.network.now)
        self._forget_reported()
        self.pump()
        return True

    def fail(self, fraction: float) -> bool:
        """The oldest step that has not run fails half-way."""
        waiting = self.waiting
        if waiting is None:
            return False
        self.runner.spoil(waiting.step, fraction)
        waiting.reported = True
        waiting.tokens = self.runner.last_token[:0]
        self.worker.fail(waiting.step.id, now=self.network.now)
        self._forget_reported()
        self.pump()
        return True

    def copy(self, index: int, runs: int, *, lose: bool = False) -> None:
        """Copies some runs of a chunk; reports it when it is complete, given up or lost."""
        copy = self.copies[index]
        transfer = copy.transfer
        destination = self.network.kv_of(transfer.peer)
        for _ in range(runs):
            if copy.complete or destination is None:
                break
            self.kv.copy_run(destination, transfer, copy.runs_done)
            copy.runs_done += 1
        if copy.complete or copy.cancelled or lose or destination is None:
            self.copies.remove(copy)
            done = TransferDone(transfer.transfer, transfer.peer, transfer.chunk, copy.complete and not lose)
            self.worker.handle(done, self.network.now)
            self.pump()

    def pump(self) -> None:
        """Does what the worker asks for."""
        while (action := self.worker.poll_action()) is not None:
            match action:
                case Send():
                    self.network.send(self.peer, action.to, action.data)
                case StartTransfer():
                    self.copies.append(Copy(action))
                case CancelTransfer():
                    for copy in self.copies:
                        if (copy.transfer.transfer, copy.transfer.peer) == (action.transfer, action.peer):
                            copy.cancelled = True
                case Kill():
                    victim = (action.worker, action.incarnation)
                    self.network.kill(victim)
                    self.worker.handle(PeerDead(*victim), self.network.now)
                case Connect() | Disconnect():
                    pass

    def _check_rows(self, step: Step) -> None:
        """A row is not given to another request while a step in flight names it."""
        named = {int(row) for launched in self.launched for row in launched.step.rows}
        opened = {opened.row for opened in step.opened}
        assert not named & opened, f"step {step.id} opens rows {named & opened} that steps in flight name"

    def _forget_reported(self) -> None:
        while self.launched and self.launched[0].reported:
            self.launched.popleft()
