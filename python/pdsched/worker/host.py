"""The loop around one core `Worker`: it carries messages, runs steps and copies bytes; it decides nothing.

One `WorkerHost` is one life of a worker. The loop sleeps in one poll over the mailbox, the channel, the stepper and the
control socket, bounded by the core's own timeout; each turn hands in what happened, performs the actions that come
out, and starts the step that can be planned.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import msgspec
import zmq

from pdsched import _core
from pdsched.transfer import ChannelError, Completion, KVChannel, PeerId, Runs
from pdsched.worker.control import Inspect, Inspection, KillPeer, Life, Reconfigure, Start, Stop, WorkerControl
from pdsched.worker.event_log import EventLog
from pdsched.worker.mailbox import Mailbox
from pdsched.worker.stepper import Stepper, StepResult
from pdsched.worker.telemetry import StepRecord, TelemetrySender


class WorkerAddress(msgspec.Struct, frozen=True):
    """How peers reach a worker; opaque to the core, which only hands it on."""

    mailbox: str
    channel: bytes


@dataclass(slots=True)
class HostParts:
    """What outlives the lives of a worker, and what each life gets anew."""

    mailbox: Mailbox
    channel: KVChannel
    stepper: Stepper
    control: WorkerControl
    telemetry: TelemetrySender
    log: EventLog | None


class WorkerHost:
    """One life of a worker."""

    def __init__(self, worker: _core.Worker, peer: PeerId, parts: HostParts) -> None:
        """`peer` is this life itself: (worker, incarnation)."""
        self._worker = worker
        self._peer = peer
        self._mailbox = parts.mailbox
        self._channel = parts.channel
        self._stepper = parts.stepper
        self._control = parts.control
        self._telemetry = parts.telemetry
        self._log = parts.log
        self._next_life: Life | None = None
        self._stopping = False
        self._malformed = 0
        self._poller = zmq.Poller()
        self._poller.register(self._mailbox.socket, zmq.POLLIN)
        for source in (self._channel, self._stepper, self._control):
            self._poller.register(source.fileno(), zmq.POLLIN)

    def run(self) -> Life | None:
        """Live until told otherwise; returns the next life, or None when the process shall end.

        When it returns, no step is running and nothing more is scheduled.
        """
        while not self._stopping:
            self._turn()
            self._poller.poll(self._wait_ms())
        while self._stepper.in_flight and not self._control.closed and self._next_life is not None:
            self._poller.poll(1000)
            self._take_results()
        self._write_log()
        return None if self._control.closed else self._next_life

    def _turn(self) -> None:
        """Take in everything that happened, then let the core act on it."""
        for data in self._mailbox.drain():
            self._handle_message(data)
        for completion in self._channel.poll():
            self._handle_completion(completion)
        self._take_results()
        now = time.monotonic_ns()
        timeout = self._worker.poll_timeout()
        if timeout is not None and timeout <= now:
            self._worker.handle_timeout(now)
        self._perform_actions()
        self._start_steps()
        self._write_log()
        for message in self._control.receive():
            self._handle_control(message)
        self._stopping = self._stopping or self._control.closed
        self._telemetry.flush(self._peer, time.monotonic_ns(), self._mailbox.dropped, time.process_time_ns())

    def _wait_ms(self) -> int | None:
        """How long there is nothing to do unless something happens; None for ever."""
        deadlines = [t for t in (self._worker.poll_timeout(), self._telemetry.due()) if t is not None]
        if self._stopping or not deadlines:
            return 0 if self._stopping else None
        # Rounded up: waking a fraction of a millisecond early would spin.
        return max(0, -(-(min(deadlines) - time.monotonic_ns()) // 1_000_000))

    def _handle_message(self, data: bytes) -> None:
        try:
            self._worker.handle(data, time.monotonic_ns())
        except ValueError as exc:  # a foreign or newer sender must not take the worker down
            self._malformed += 1
            self._complain(f"dropped a malformed message: {exc}")

    def _handle_completion(self, completion: Completion) -> None:
        now = time.monotonic_ns()
        if completion.error is not None:
            self._complain(f"transfer {completion.transfer} to {completion.peer} failed: {completion.error}")
        self._telemetry.transfer_done(completion, now)
        done = _core.TransferDone(completion.transfer, completion.peer, completion.chunk, completion.ok)
        self._worker.handle(done, now)

    def _take_results(self) -> None:
        for result in self._stepper.results():
            self._finish_step(result)

    def _finish_step(self, result: StepResult) -> None:
        now = time.monotonic_ns()
        step = result.step
        failed = result.tokens is None
        self._telemetry.step(
            StepRecord(result.start_ns, result.end_ns, len(step.token_ids), step.num_decodes, len(step.rows), failed)
        )
        if result.tokens is None:
            self._complain(f"step {step.id} failed: {type(result.error).__name__}: {result.error}")
            self._worker.fail(step.id, now)
        else:
            self._worker.complete(step.id, result.tokens, now=now)

    def _start_steps(self) -> None:
        """Plan what can be planned. The stepper takes it from there, so this returns at once."""
        while (step := self._worker.schedule(time.monotonic_ns())) is not None:
            # The arrays must be built before the core's next call, which may come while the step waits its turn.
            step.token_ids  # noqa: B018
            self._stepper.submit(step)
            self._perform_actions()

    def _perform_actions(self) -> None:
        while (action := self._worker.poll_action()) is not None:
            match action:
                case _core.Send():
                    self._mailbox.send(action.to, action.data)
                case _core.StartTransfer():
                    runs = Runs(
                        action.src_block, action.src_offset, action.dst_block, action.dst_offset, action.num_tokens
                    )
                    self._telemetry.transfer_started(action.transfer, action.peer, runs, time.monotonic_ns())
                    self._channel.start(action.transfer, action.peer, action.chunk, runs)
                case _core.CancelTransfer():
                    self._channel.cancel(action.transfer, action.peer)
                case _core.Connect():
                    self._connect(action.peer, action.address)
                case _core.Disconnect():
                    self._channel.disconnect(action.peer)
                    self._mailbox.disconnect(action.peer)
                case _core.Kill():
                    self._control.send(KillPeer(action.worker, action.incarnation))

    def _connect(self, peer: PeerId, address: bytes) -> None:
        """A peer that cannot be reached is not fatal: transfers to it fail, and the core learns it from that."""
        try:
            theirs = msgspec.msgpack.decode(address, type=WorkerAddress)
            self._mailbox.connect(peer, theirs.mailbox)
            self._channel.connect(peer, theirs.channel)
        except (msgspec.DecodeError, zmq.ZMQError, ChannelError) as exc:
            self._complain(f"cannot connect to worker {peer}: {exc}")

    def _handle_control(self, message: Start | Reconfigure | Inspect | Stop) -> None:
        match message:
            case Reconfigure():
                self._next_life = message.life
                self._stopping = True
            case Stop():
                self._stopping = True
            case Inspect():
                self._control.send(self._inspect())
            case Start():
                self._complain("ignored a second Start")

    def _inspect(self) -> Inspection:
        problem: str | None = None
        try:
            self._worker.check()
        except Exception as exc:  # the answer is the report of it
            problem = str(exc)
        figures = dict(self._worker.stats())
        figures |= {
            "used_blocks": self._worker.num_used_blocks,
            "free_blocks": self._worker.num_free_blocks,
            "running": self._worker.num_running,
            "waiting": self._worker.num_waiting,
            "idle": int(self._worker.is_idle()),
            "host_malformed": self._malformed,
            "host_dropped": self._mailbox.dropped,
            "channel_chunks": self._channel.stats.chunks,
            "channel_failed": self._channel.stats.failed,
            "channel_bytes": self._channel.stats.num_bytes,
        }
        return Inspection(problem, figures)

    def _write_log(self) -> None:
        if self._log is not None:
            self._log.write(self._worker.take_log())

    def _complain(self, text: str) -> None:
        """To the launcher's view of this worker: the last lines of its standard error."""
        print(f"worker {self._peer[0]}.{self._peer[1]}: {text}", file=sys.stderr, flush=True)
