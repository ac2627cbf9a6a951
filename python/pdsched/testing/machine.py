"""A Hypothesis state machine over a ghost deployment: every event a worker can meet, in any order.

Subclass :class:`WorkerMachine` to change the pools or the number of workers; run it with
``hypothesis.stateful.run_state_machine_as_test`` or as ``WorkerMachine.TestCase``. Needs hypothesis, not torch.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pdsched import ClusterConfig, SchedulerConfig
from pdsched.testing.deployment import GhostDeployment
from pdsched.testing.ghost import VOCABULARY
from pdsched.testing.host import Copy, GhostHost, HostConfig

if TYPE_CHECKING:
    from collections.abc import Callable

MILLISECOND = 1_000_000

EXECUTED: Counter[str] = Counter()
"""Rules executed so far in this process, by name."""

tokens = st.integers(0, VOCABULARY - 1)

picks = st.integers(min_value=0, max_value=2**16)
"""An index into whatever there is, taken modulo its length."""


@st.composite
def prompts(draw: st.DrawFn, families: int = 3, longest: int = 40) -> list[int]:
    """Prompts that share prefixes: a few families, each a fixed sequence, cut anywhere, sometimes with a tail."""
    family = draw(st.integers(0, families - 1))
    length = draw(st.integers(1, longest))
    head = [(7 * family + 13 * index + index * index) % VOCABULARY for index in range(length)]
    return head + draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=3))


@st.composite
def scheduler_configs(draw: st.DrawFn) -> SchedulerConfig:
    """Tiny pools, so that everything runs out; mostly a 4-bit block hash, so that collisions are common."""
    max_num_seqs = draw(st.integers(1, 4))
    return SchedulerConfig(
        num_blocks=draw(st.integers(8, 24)),
        block_size=draw(st.sampled_from([1, 3, 4, 7])),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=draw(st.integers(max_num_seqs, 24)),
        chunk_size=draw(st.none() | st.integers(1, 12)),
        max_steps_in_flight=draw(st.integers(1, 3)),
        prefix_caching=draw(st.sampled_from([True, True, True, False])),
        watermark_blocks=draw(st.integers(0, 2)),
        hash_bits=draw(st.sampled_from([4, 4, 64])),
        seeded_bug=WorkerMachine.seeded_bug,
    )


class WorkerMachine(RuleBasedStateMachine):
    """Requests through prefill, decode and `both` workers, with every fault."""

    roles: ClassVar[list[str]] = ["prefill", "decode"]
    seeded_bug: ClassVar[str | None] = None
    """Name of a bug planted in the core, to prove that the machine finds it."""

    def __init__(self) -> None:
        super().__init__()
        self.next_id = 1

    @initialize(data=st.data(), prompt_network=st.sampled_from([True, True, False]))
    def start(self, data: st.DataObject, prompt_network: bool) -> None:
        """Starts the workers and lets them be welcomed. On a prompt network every message arrives at once."""
        self.prompt_network = prompt_network
        hosts = [
            HostConfig(index, role, data.draw(scheduler_configs()), kill_after_ns=3000 * MILLISECOND)
            for index, role in enumerate(self.roles)
        ]
        cluster = ClusterConfig(epoch=1, lease_ns=300 * MILLISECOND, heartbeat_ns=100 * MILLISECOND)
        self.deployment = GhostDeployment(hosts, cluster)
        for _ in range(4):
            for connection in self.deployment.connections():
                self.deployment.deliver(connection)

    @property
    def live(self) -> bool:
        """Some request has not ended: what happens now can matter."""
        return any(client.reason is None for client in self.deployment.clients.values())

    def awake(self, pick: int, ready: Callable[[GhostHost], object] = lambda _: True) -> GhostHost | None:
        """One of the hosts that are not frozen and ready for something."""
        hosts = [host for host in self.deployment.awake() if ready(host)]
        return hosts[pick % len(hosts)] if hosts else None

    def submit(self, prompt: list[int], max_tokens: int, stops: list[int]) -> None:
        """Hands a request in; one whose prompt fits nowhere is refused at once, with its length in the text."""
        try:
            self.deployment.submit(self.next_id, prompt, max_tokens, stops)
        except ValueError as error:
            if str(len(prompt)) not in str(error):
                raise AssertionError(f"the text does not name the length {len(prompt)}") from error
        self.next_id += 1

    @rule(prompt=prompts(), max_tokens=st.integers(1, 20), stops=st.lists(tokens, max_size=4))
    def add(self, prompt: list[int], max_tokens: int, stops: list[int]) -> None:
        """A client comes."""
        EXECUTED["add"] += 1
        self.submit(prompt, max_tokens, stops)

    @rule(prompt=prompts(), tails=st.lists(st.lists(tokens, max_size=3), min_size=2, max_size=4))
    def add_siblings(self, prompt: list[int], tails: list[list[int]]) -> None:
        """Several clients come at once with much the same prompt."""
        EXECUTED["add_siblings"] += 1
        for tail in tails:
            self.submit(prompt + tail, 4 + len(tail) * 3, [])

    @precondition(lambda self: self.deployment.connections())
    @rule(pick=picks)
    def deliver(self, pick: int) -> None:
        """A message arrives."""
        EXECUTED["deliver"] += 1
        connections = self.deployment.connections()
        self.deployment.deliver(connections[pick % len(connections)])

    @precondition(lambda self: self.deployment.connections())
    @rule()
    def deliver_all(self) -> None:
        """Every message that is under way arrives, and every answer."""
        EXECUTED["deliver_all"] += 1
        self.quiesce()

    def quiesce(self) -> None:
        """Delivers until nothing is under way."""
        while connections := self.deployment.connections():
            for connection in connections:
                if self.deployment.queues.get(connection):
                    self.deployment.deliver(connection)

    @precondition(lambda self: self.live and self.deployment.delivered)
    @rule(pick=picks)
    def repeat(self, pick: int) -> None:
        """An old message arrives again."""
        EXECUTED["repeat"] += 1
        self.deployment.repeat(-1 - pick % len(self.deployment.delivered))

    @precondition(lambda self: self.awake(0, lambda host: host.has_work))
    @rule(pick=picks, count=st.integers(1, 3))
    def plan(self, pick: int, count: int) -> None:
        """A worker plans steps ahead."""
        EXECUTED["plan"] += 1
        if host := self.awake(pick, lambda host: host.has_work):
            for _ in range(count):
                host.plan()

    @precondition(lambda self: self.live)
    @rule(pick=picks)
    def step(self, pick: int) -> None:
        """A worker plans, runs and completes; its copies wait."""
        EXECUTED["step"] += 1
        if host := self.awake(pick):
            host.plan()
            host.run()
            host.complete()

    @precondition(lambda self: self.awake(0, lambda host: host.waiting))
    @rule(pick=picks)
    def run(self, pick: int) -> None:
        """A worker's device runs a step."""
        EXECUTED["run"] += 1
        if host := self.awake(pick, lambda host: host.waiting):
            host.run()

    @precondition(lambda self: self.awake(0, lambda host: host.done))
    @rule(pick=picks, which=picks)
    def complete(self, pick: int, which: int) -> None:
        """A step's result comes back, not always in order."""
        EXECUTED["complete"] += 1
        if host := self.awake(pick, lambda host: host.done):
            host.complete(lambda count: which % count)

    @precondition(lambda self: self.awake(0, lambda host: host.waiting))
    @rule(pick=picks, fraction=st.floats(0, 1))
    def fail(self, pick: int, fraction: float) -> None:
        """A step fails half-way."""
        EXECUTED["fail"] += 1
        if host := self.awake(pick, lambda host: host.waiting):
            host.fail(fraction)

    @precondition(lambda self: self.awake(0, lambda host: host.has_work))
    @rule(pick=picks, ahead=st.integers(2, 3), fraction=st.floats(0, 1))
    def stumble(self, pick: int, ahead: int, fraction: float) -> None:
        """A step fails with others planned behind it, and work goes on."""
        EXECUTED["stumble"] += 1
        if host := self.awake(pick, lambda host: host.has_work):
            for _ in range(ahead):
                host.plan()
            host.fail(fraction)
            for _ in range(ahead + 1):
                host.plan()
                host.run()
                host.complete()

    @precondition(lambda self: self.awake(0, lambda host: host.has_work))
    @rule(pick=picks, ahead=st.integers(2, 3), order=st.permutations(range(3)))
    def complete_late(self, pick: int, ahead: int, order: list[int]) -> None:
        """Steps run one after the other, and their results come back in any order."""
        EXECUTED["complete_late"] += 1
        if host := self.awake(pick, lambda host: host.has_work):
            for _ in range(ahead):
                host.plan()
            while host.run():
                pass
            for which in order:
                host.complete(lambda count, which=which: which % count)  # type: ignore[misc]

    @precondition(lambda self: self.awake(0, lambda host: host.copies))
    @rule(pick=picks, which=picks, runs=st.integers(1, 4))
    def copy(self, pick: int, which: int, runs: int) -> None:
        """A transfer moves on."""
        EXECUTED["copy"] += 1
        if host := self.awake(pick, lambda host: host.copies):
            host.copy(which % len(host.copies), runs)

    @precondition(lambda self: self.awake(0, lambda host: host.copies))
    @rule(pick=picks, which=picks, runs=st.integers(0, 4))
    def lose_transfer(self, pick: int, which: int, runs: int) -> None:
        """A transfer breaks off."""
        EXECUTED["lose_transfer"] += 1
        if host := self.awake(pick, lambda host: host.copies):
            host.copy(which % len(host.copies), runs, lose=True)

    @precondition(lambda self: self.live)
    @rule(pick=picks)
    def abort(self, pick: int) -> None:
        """A client leaves (or one that has left leaves again)."""
        EXECUTED["abort"] += 1
        ids = sorted(self.deployment.clients)
        self.deployment.abort(ids[pick % len(ids)])

    @precondition(lambda self: self.live and self.deployment.faults < 3)
    @rule(pick=picks)
    def lose_worker(self, pick: int) -> None:
        """A process dies and comes back with an empty memory."""
        EXECUTED["lose_worker"] += 1
        hosts = sorted(self.deployment.hosts)
        self.deployment.kill(self.deployment.hosts[hosts[pick % len(hosts)]].peer)

    @precondition(lambda self: self.live and not self.deployment.frozen)
    @rule(pick=picks)
    def freeze(self, pick: int) -> None:
        """A process stops, as by SIGSTOP."""
        EXECUTED["freeze"] += 1
        if host := self.awake(pick):
            self.deployment.frozen.add(host.peer)

    @precondition(lambda self: self.deployment.frozen)
    @rule()
    def thaw(self) -> None:
        """All go on."""
        EXECUTED["thaw"] += 1
        self.deployment.frozen.clear()

    @precondition(lambda self: self.live)
    @rule(milliseconds=st.sampled_from([1, 20, 100, 150, 350, 4000]))
    def wait(self, milliseconds: int) -> None:
        """Time passes."""
        EXECUTED["wait"] += 1
        self.deployment.advance(milliseconds * MILLISECOND)

    @precondition(lambda self: self.live)
    @rule(rounds=st.integers(1, 3), copies=st.booleans())
    def work(self, rounds: int, copies: bool) -> None:
        """Some undisturbed work, with or without copies moving on."""
        EXECUTED["work"] += 1
        for _ in range(rounds):
            self.deployment.round(copies=copies)

    @precondition(lambda self: not self.deployment.frozen)
    @rule(prompt=prompts())
    def late_writer(self, prompt: list[int]) -> None:
        """A client leaves in the middle of a copy, another comes, and only then does the old copy go on writing."""
        EXECUTED["late_writer"] += 1
        self.leave_all()
        self.submit(prompt, 8, [])
        for _ in range(12):
            self.work_beside([])
            if late := [(host, copy) for host in self.deployment.awake() for copy in host.copies]:
                break
        else:
            return
        self.leave_all()
        self.submit([(token + 1) % VOCABULARY for token in prompt], 8, [])
        for _ in range(12):
            self.work_beside([copy for _, copy in late])
        for writer, copy in late:
            if copy in writer.copies:
                writer.copy(writer.copies.index(copy), 1000)

    def leave_all(self) -> None:
        """All clients leave, and everybody hears of it."""
        for request_id in self.deployment.clients:
            self.deployment.abort(request_id)
        self.quiesce()

    def work_beside(self, late: list[Copy]) -> None:
        """A round of work in which these copies do not move; without any, those that begin are left alone too."""
        self.quiesce()
        for host in self.deployment.awake():
            for copy in [copy for copy in host.copies if late and copy not in late]:
                host.copy(host.copies.index(copy), 1000)
            host.plan()
            host.run()
            host.complete()

    @invariant()
    def integrity(self) -> None:
        """Every machine is whole after every rule."""
        if hasattr(self, "deployment"):
            if self.prompt_network:
                self.quiesce()
            self.deployment.check()

    def teardown(self) -> None:
        """Everything ends, exactly once, and every pool is whole."""
        if hasattr(self, "deployment"):
            self.deployment.settle()
            self.deployment.check()
