"""The thread that runs the model, so that a worker keeps answering while a forward pass takes its seconds.

Heartbeats, lease renewals, fences and the sending of finished chunks all go on during a step. Torch lets go of the GIL
inside its operators, so the host loop gets it within microseconds.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pdsched._core import Step


class Runner(Protocol):
    """What executes steps: see `pdsched.model.runner.ModelRunner`."""

    def run(self, step: Step) -> npt.NDArray[np.int64]:
        """Run the step; one sampled token per entry of `step.logits_indices`."""

    def apply_tables(self, step: Step) -> None:
        """Only take over the step's block table differences and rows, for a step that is not run. Idempotent."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step that has ended."""

    step: Step
    tokens: npt.NDArray[np.int64] | None
    """Sampled tokens; None when the runner failed."""
    start_ns: int
    end_ns: int
    error: BaseException | None = None


class Stepper:
    """Runs submitted steps in order on a thread of its own."""

    def __init__(self, runner: Runner, on_start: Callable[[], None] | None = None) -> None:
        """`on_start` is called once on the new thread, for settings that hold per thread."""
        self._runner = runner
        self._on_start = on_start
        self._steps: deque[Step | None] = deque()
        self._available = threading.Semaphore(0)
        self._results: deque[StepResult] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.in_flight = 0
        """Steps submitted and not yet returned by `results`."""
        self._thread = threading.Thread(target=self._run, name="pdsched-runner", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """A descriptor that is readable while there are results."""
        return self._fd

    def submit(self, step: Step) -> None:
        """Queue a step whose arrays have been built already: the core lends them until its next call only."""
        self.in_flight += 1
        self._steps.append(step)
        self._available.release()

    def results(self) -> list[StepResult]:
        """Steps that have ended since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        ended: list[StepResult] = []
        while self._results:
            ended.append(self._results.popleft())
        self.in_flight -= len(ended)
        return ended

    def close(self) -> None:
        """End the thread after the steps that are queued."""
        self._steps.append(None)
        self._available.release()
        self._thread.join()
        os.close(self._fd)

    def _run(self) -> None:
        if self._on_start is not None:
            self._on_start()
        while True:
            self._available.acquire()
            step = self._steps.popleft()
            if step is None:
                return
            self._results.append(self._execute(step))
            del step  # its buffers are recycled when nobody holds it
            os.eventfd_write(self._fd, 1)

    def _execute(self, step: Step) -> StepResult:
        start = time.monotonic_ns()
        try:
            tokens = self._runner.run(step)
        except Exception as exc:  # the core decides what becomes of the step's requests
            with contextlib.suppress(Exception):
                self._runner.apply_tables(step)
            return StepResult(step, None, start, time.monotonic_ns(), exc)
        return StepResult(step, tokens, start, time.monotonic_ns())
