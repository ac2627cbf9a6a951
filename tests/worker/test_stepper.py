"""The stepper runs steps in order beside its caller and turns a runner's failure into a result."""

from __future__ import annotations

import select
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from pdsched.worker.stepper import Stepper, StepResult


class FakeRunner:
    """Answers with the step's number; step 2 fails."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.tables: list[int] = []
        self.threads: set[int] = set()

    def run(self, step: Any) -> npt.NDArray[np.int64]:
        self.threads.add(threading.get_ident())
        assert self.go.wait(10)
        if step.id == 2:
            raise MemoryError("out of memory")
        return np.asarray([step.id])

    def apply_tables(self, step: Any) -> None:
        self.tables.append(step.id)


def wait(stepper: Stepper, count: int) -> list[StepResult]:
    results: list[StepResult] = []
    while len(results) < count:
        assert select.select([stepper.fileno()], [], [], 10)[0]
        results += stepper.results()
    return results


def step(number: int) -> Any:
    return SimpleNamespace(id=number)


def test_order_failure_and_thread() -> None:
    runner = FakeRunner()
    started: list[int] = []
    stepper = Stepper(runner, lambda: started.append(threading.get_ident()))
    for number in (1, 2, 3):
        stepper.submit(step(number))
    assert stepper.results() == []
    assert stepper.in_flight == 3
    runner.go.set()
    first, second, third = wait(stepper, 3)
    assert [result.step.id for result in (first, second, third)] == [1, 2, 3]
    assert first.tokens is not None
    assert third.tokens is not None
    assert (first.tokens.tolist(), third.tokens.tolist()) == ([1], [3])
    assert second.tokens is None
    assert isinstance(second.error, MemoryError)
    assert runner.tables == [2]
    assert stepper.in_flight == 0
    assert runner.threads == set(started) != {threading.get_ident()}
    assert first.start_ns <= first.end_ns <= second.start_ns <= second.end_ns
    stepper.close()
