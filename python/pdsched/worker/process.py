"""The worker process: `python -m pdsched.worker.process FD`, where FD is its end of the control socket.

It takes its configuration from the launcher, pins itself to its core, loads the model, lays the pool over the shared
arena, and then lives: one `WorkerHost` after another until it is told to stop or its launcher is gone.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from pdsched import _core
from pdsched.transfer import Arena, ChannelError, SharedMemoryChannel
from pdsched.worker.control import Failed, Life, Ready, Start, WorkerControl
from pdsched.worker.event_log import worker_log
from pdsched.worker.host import HostParts, WorkerAddress, WorkerHost
from pdsched.worker.mailbox import Mailbox
from pdsched.worker.stepper import Stepper
from pdsched.worker.telemetry import TelemetrySender

if TYPE_CHECKING:
    from pdsched.model.kv_pool import KVPool

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Run the process; returns its exit status: 0 after a stop, 1 when it could not start."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the launcher, which stops its workers
    die_with_parent()
    control = WorkerControl(int(argv[1]))
    start = control.wait_start()
    if start is None:
        return 0
    try:
        WorkerProcess.load(start, control).live(start.life)
    except Exception as exc:  # whatever it is, the launcher reports it instead of a dead worker
        traceback.print_exc()
        control.send(Failed(f"{type(exc).__name__}: {exc}"))
        return 1
    return 0


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, even while it is still importing torch."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        raise SystemExit("launcher is gone")


def pin_to_core(core: int | None) -> None:
    """Stay on one core. Raises `ValueError` naming it when this process may not use it."""
    if core is None:
        return
    allowed = os.sched_getaffinity(0)
    if core not in allowed:
        raise ValueError(f"core must be one of {sorted(allowed)}, got {core}")
    os.sched_setaffinity(0, {core})


def scheduler_config(start: Start, life: Life) -> _core.SchedulerConfig:
    """What the core's scheduler is told. Raises `ValueError` or `TypeError` naming a bad argument."""
    return _core.SchedulerConfig(num_blocks=start.num_blocks, block_size=start.block_size, **life.scheduler)


@dataclass(slots=True)
class WorkerProcess:
    """What a worker process keeps through all of its lives."""

    start: Start
    control: WorkerControl
    context: zmq.Context[zmq.Socket[bytes]]
    mailbox: Mailbox
    model: Any
    pool: KVPool
    arena: Arena
    since: float

    @classmethod
    def load(cls, start: Start, control: WorkerControl) -> WorkerProcess:
        """Everything that takes long: torch, the model, the pool. Raises whatever goes wrong."""
        since = time.monotonic()
        pin_to_core(start.core)
        scheduler_config(start, start.life)  # a bad value shall not cost the seconds that follow
        import torch

        torch.set_num_threads(start.threads)
        from pdsched.model.info import ModelInfo
        from pdsched.model.kv_pool import KVLayout, KVPool
        from pdsched.model.load import load_model

        arena = Arena(start.arena_fd)
        layout = KVLayout.of(ModelInfo.load(start.model), start.block_size)
        needed = layout.block_nbytes * start.num_blocks
        if needed > arena.nbytes:
            raise ChannelError(f"a pool of {needed} bytes does not fit an arena of {arena.nbytes}")
        pool = KVPool(layout, start.num_blocks, arena.bytes().data)
        model = load_model(start.model)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        mailbox = Mailbox(start.mailbox, context)
        gc.collect()
        gc.freeze()  # the model's objects never die: a collection in the middle of a step need not walk them
        return cls(start, control, context, mailbox, model, pool, arena, since)

    def live(self, life: Life | None) -> None:
        """One life after another."""
        while life is not None:
            life = self._live_once(life)
        self.mailbox.close()
        self.context.destroy(linger=0)

    def _live_once(self, life: Life) -> Life | None:
        from pdsched.model.runner import ModelRunner

        record = self.start.record
        log = None if record is None else worker_log(record, self.start.worker_id, life.incarnation)
        channel = SharedMemoryChannel(self.arena)
        address = WorkerAddress(self.mailbox.address, channel.register(self.pool.array))
        worker = _core.Worker(
            scheduler_config(self.start, life),
            worker_id=self.start.worker_id,
            incarnation=life.incarnation,
            role=life.role,
            fingerprint=self.pool.layout.fingerprint(),
            address=msgspec.msgpack.encode(address),
            record=log is not None,
            **life.worker,
        )
        runner = ModelRunner(self.model, self.pool, worker.num_rows, worker.max_blocks_per_row)
        stepper = Stepper(runner, self._set_threads)
        telemetry = TelemetrySender(self.context, self.start.telemetry)
        self.mailbox.connect(None, self.start.cluster_mailbox)
        parts = HostParts(self.mailbox, channel, stepper, self.control, telemetry, log)
        self.control.send(Ready(life.incarnation, time.monotonic() - self.since))
        following = WorkerHost(worker, (self.start.worker_id, life.incarnation), parts).run()
        self.since = time.monotonic()
        if following is not None:  # else the process ends, and a step that still runs ends with it
            stepper.close()
            channel.close()
            self.mailbox.disconnect_all()
        telemetry.close()
        if log is not None:
            log.close()
        return following

    def _set_threads(self) -> None:
        import torch

        torch.set_num_threads(self.start.threads)  # OpenMP keeps this number per calling thread


if __name__ == "__main__":
    status = 1
    with suppress(KeyboardInterrupt):
        status = main(sys.argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # not through the interpreter's shutdown: a forward pass may be running on the other thread
