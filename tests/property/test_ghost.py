"""The ghost deployment under Hypothesis: every rule in any order, and planted bugs that it must find.

The random run prints its seed; ``PDSCHED_SEED=N`` gives the same sequences of rules again.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import ClassVar

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pdsched.testing import machine
from pdsched.testing.machine import WorkerMachine

RULES = 10_000
"""Rules that must have been executed, over all machines."""
PLANTED_SEED = 1
"""Seed of the sequences on which planted bugs must be found, and without one nothing."""


def explore(machine_class: type[WorkerMachine], examples: int, seed: int, *, shrink: bool = True) -> None:
    """Runs a machine on the sequences of rules that belong to a seed; the first failure ends it."""
    seeded = hypothesis.seed(seed)(type(machine_class.__name__, (machine_class,), {}))
    run_state_machine_as_test(
        seeded,
        settings=settings(
            max_examples=examples,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
        ),
    )


class TwoPairs(WorkerMachine):
    roles: ClassVar[list[str]] = ["prefill", "prefill", "decode", "decode"]


class Mixed(WorkerMachine):
    roles: ClassVar[list[str]] = ["prefill", "decode", "both"]


@pytest.mark.timeout(400)
def test_every_output_equals_the_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """10,000 rules at least: integrity after each, outputs equal the run alone, all pools whole in the end."""
    seed = int(os.environ.get("PDSCHED_SEED") or random.SystemRandom().randrange(2**32))
    with capsys.disabled():
        print(f"\nghost KV: PDSCHED_SEED={seed}")
    machine.EXECUTED.clear()
    rounds = 0
    while sum(machine.EXECUTED.values()) < RULES:
        for machine_class, examples in ((WorkerMachine, 150), (TwoPairs, 60), (Mixed, 60)):
            explore(machine_class, examples, seed + rounds)
        rounds += 1
    executed: Counter[str] = machine.EXECUTED
    with capsys.disabled():
        total = sum(executed.values())
        print(f"ghost KV: {total} rules executed: {', '.join(f'{n} {name}' for name, n in executed.most_common())}")
    assert len(executed) >= 18, f"rules never executed: {executed}"


def test_a_seed_gives_the_same_rules_again() -> None:
    counts = []
    for _ in range(2):
        machine.EXECUTED.clear()
        explore(WorkerMachine, 10, seed=5)
        counts.append(dict(machine.EXECUTED))
    assert counts[0] == counts[1]


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
    """The suite is worth something: an assertion of its own, or one of the core's, finds each of these."""
    monkeypatch.setattr(WorkerMachine, "seeded_bug", bug)
    found: BaseException | None = None
    try:
        explore(WorkerMachine, 4000, PLANTED_SEED, shrink=False)
    except BaseException as exc:
        found = exc
    assert found is not None, f"{bug} was not found"
    # PyO3's PanicException: the core noticed it itself. Anything else is not what was planted.
    if not (isinstance(found, AssertionError) or type(found).__name__ == "PanicException"):
        raise found


@pytest.mark.timeout(300)
def test_without_a_planted_bug_the_same_sequences_pass() -> None:
    explore(WorkerMachine, 600, PLANTED_SEED, shrink=False)


def test_an_unknown_bug_is_not_taken_for_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no_such_bug"):
        test_planted_bug_is_found("no_such_bug", monkeypatch)
