"""The ghost deployment under Hypothesis: every rule in any order, and planted bugs that it must find.

The seed is printed, so that a failure can be had again with ``--hypothesis-seed``.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pdsched.testing import machine
from pdsched.testing.machine import WorkerMachine

RULES = 10_000
"""Rules that must have been executed, over all machines."""


def explore(machine_class: type[WorkerMachine], examples: int, *, planted: bool = False) -> None:
    """Runs a machine on sequences of rules: random ones, or always the same when a bug is planted."""
    phases = [Phase.generate] if planted else [Phase.generate, Phase.shrink]
    run_state_machine_as_test(
        machine_class,
        settings=settings(
            max_examples=examples,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=phases,
            database=None,
            print_blob=False,
            derandomize=planted,
        ),
    )


class TwoPairs(WorkerMachine):
    roles: ClassVar[list[str]] = ["prefill", "prefill", "decode", "decode"]


class Mixed(WorkerMachine):
    roles: ClassVar[list[str]] = ["prefill", "decode", "both"]


@pytest.mark.timeout(400)
def test_every_output_equals_the_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """10,000 rules at least: integrity after each, outputs equal the run alone, all pools whole in the end."""
    machine.EXECUTED.clear()
    while sum(machine.EXECUTED.values()) < RULES:
        explore(WorkerMachine, 150)
        explore(TwoPairs, 60)
        explore(Mixed, 60)
    executed: Counter[str] = machine.EXECUTED
    with capsys.disabled():
        total = sum(executed.values())
        print(f"\nghost KV: {total} rules executed: {', '.join(f'{n} {name}' for name, n in executed.most_common())}")
    assert len(executed) >= 18, f"rules never executed: {executed}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "bug",
    [
        "early_row_reuse",
        "free_during_copy",
        "tail_off_by_one",
        "early_arrival",
        "findable_too_early",
        "forgotten_failure",
        "stale_block",
    ],
)
def test_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite is worth something: it finds each of these."""
    monkeypatch.setattr(WorkerMachine, "seeded_bug", bug)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - an assertion, a panic of the core or a group of them
        explore(WorkerMachine, 4000, planted=True)
    assert not isinstance(caught.value, KeyboardInterrupt | SystemExit)
