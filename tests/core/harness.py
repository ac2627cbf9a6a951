"""One scheduler, or a prefill and a decode worker, over ghost KV: every token is checked against a run alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pdsched import ClusterConfig, Finished, Outputs, Request, Scheduler, SchedulerConfig, StartTransfer, Step
from pdsched.testing.deployment import GhostDeployment
from pdsched.testing.ghost import VOCABULARY, GhostKV, GhostRunner, solo
from pdsched.testing.host import GhostHost, HostConfig


def text(family: int, length: int) -> list[int]:
    """The first tokens of a text; two families have no block in common."""
    return [(17 * family + 5 * index + index * index * (family + 3)) % VOCABULARY for index in range(length)]


def config(blocks: int, *, size: int = 16, seqs: int = 8, budget: int = 512, **more: Any) -> SchedulerConfig:
    """A scheduler's configuration with `blocks` blocks of 16 tokens."""
    return SchedulerConfig(blocks, size, seqs, budget, **more)


class Ghost:
    """A scheduler and a ghost runner. Steps run when they are completed, in order; everything is checked."""

    def __init__(self, settings: SchedulerConfig) -> None:
        self.scheduler = Scheduler(settings)
        self.max_model_len = settings.max_model_len
        self.kv = GhostKV(settings.num_blocks, settings.block_size)
        self.runner = GhostRunner(self.kv, self.scheduler.num_rows, self.scheduler.max_blocks_per_row)
        self.now = 0
        self.flying: deque[Step] = deque()
        self.steps: list[Step] = []
        self.expected: dict[int, list[int]] = {}
        self.outputs: dict[int, list[int]] = {}
        self.finished: dict[int, Finished] = {}
        self.held: list[int] = []
        self.preempted: list[int] = []
        self.rows: dict[int, int] = {}
        self.plans: list[dict[int, int]] = []
        """Per step: tokens planned of each request."""

    def add(self, id: int, prompt: list[int], max_tokens: int, *, hand_off: bool = False, **more: Any) -> None:
        """A request, whose every output is known beforehand."""
        self.scheduler.add(Request(id, prompt, max_tokens, **more), self.tick(), hand_off=hand_off)
        room = (self.max_model_len or 1 << 31) - len(prompt)
        stops = more.get("stop_token_ids", ())
        self.expected[id] = solo(prompt, min(max_tokens, room), stops, more.get("min_tokens", 0))
        self.outputs[id] = []

    def tick(self) -> int:
        self.now += 1
        return self.now

    def plan(self) -> Step | None:
        """Plans a step and takes its arrays."""
        step = self.scheduler.schedule(self.tick())
        self.scheduler.check()
        if step is None:
            return None
        lengths = step.query_start_loc[1:] - step.query_start_loc[:-1]
        self.preempted += step.preempted
        for opened in step.opened:
            self.rows[opened.row] = opened.id
        self.plans.append({self.rows[int(row)]: int(n) for row, n in zip(step.rows, lengths, strict=True)})
        self.flying.append(step)
        self.steps.append(step)
        return step

    def complete(self) -> Outputs:
        """Runs and completes the oldest step."""
        step = self.flying.popleft()
        sampled = self.runner.run(step)
        return self.take(self.scheduler.complete(step.id, sampled, now=self.tick()))

    def fail(self) -> Outputs:
        """The oldest step fails half-way."""
        step = self.flying.popleft()
        self.runner.spoil(step, 0.5)
        return self.take(self.scheduler.fail(step.id, self.tick()))

    def take(self, out: Outputs) -> Outputs:
        """Notes what a completion brought."""
        self.scheduler.check()
        for id, token in zip(out.request_ids.tolist(), out.token_ids.tolist(), strict=True):
            assert id not in self.finished, f"request {id}: a token after its end"
            self.outputs[id].append(token)
            count = len(self.outputs[id])
            assert self.outputs[id] == self.expected[id][:count], f"request {id}"
        self.held += out.held
        self.note(out.finished)
        return out

    def note(self, ends: list[Finished]) -> None:
        """Notes ends, each of which comes once."""
        for end in ends:
            assert end.id not in self.finished, f"request {end.id} ended twice"
            self.finished[end.id] = end

    def abort(self, id: int) -> bool:
        """Aborts and notes the end."""
        known = self.scheduler.abort(id, self.tick())
        self.scheduler.check()
        self.note(self.scheduler.take_finished())
        return known

    def step(self) -> dict[int, int]:
        """Plans one step, runs it, completes it. Returns tokens planned per request."""
        assert self.plan() is not None, "nothing to plan"
        self.complete()
        return self.plans[-1]

    def run(self, *, limit: int = 10_000) -> None:
        """Until nothing is unfinished, as many steps in flight as allowed."""
        for _ in range(limit):
            while self.plan() is not None:
                pass
            self.note(self.scheduler.take_finished())
            if not self.flying:
                break
            self.complete()
        assert not self.scheduler.has_unfinished(), "a request waits for the impossible"
        for id, end in self.finished.items():
            if end.reason in ("stop", "length"):
                assert self.outputs[id] == self.expected[id], f"request {id}"
            assert end.num_outputs == len(self.outputs[id])
        assert self.scheduler.is_idle()

    @property
    def free(self) -> int:
        return self.scheduler.num_free_blocks


class RecordingKV(GhostKV):
    """Remembers what was copied out of it: (destination block, offset, tokens)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.sent: list[tuple[int, int, int]] = []

    def copy_run(self, destination: GhostKV, transfer: StartTransfer, run: int) -> None:
        super().copy_run(destination, transfer, run)
        self.sent.append((int(transfer.dst_block[run]), int(transfer.dst_offset[run]), int(transfer.num_tokens[run])))


class Pair(GhostDeployment):
    """A prefill worker (0) and a decode worker (1), welcomed."""

    def __init__(self, prefill: SchedulerConfig, decode: SchedulerConfig) -> None:
        hosts = [HostConfig(0, "prefill", prefill), HostConfig(1, "decode", decode)]
        super().__init__(hosts, ClusterConfig(epoch=1, lease_ns=300_000_000, heartbeat_ns=100_000_000))
        self.sent_by = RecordingKV(prefill.num_blocks, prefill.block_size)
        self.p.kv = self.p.runner.kv = self.sent_by
        while self.round():
            pass

    @property
    def p(self) -> GhostHost:
        """The prefill worker."""
        return self.hosts[0]

    @property
    def d(self) -> GhostHost:
        """The decode worker."""
        return self.hosts[1]

    def ask(self, id: int, prompt: list[int], max_tokens: int) -> None:
        """A client comes."""
        self.submit(id, prompt, max_tokens, [])

    def finish(self, *, within: int = 0) -> list[tuple[int, int, int]]:
        """Works until all is done and both pools are whole, in so many milliseconds. Returns what travelled.

        A worker that had no room is asked again after 20 ms; a lease is 300 ms.
        """
        until = self.now + within * 1_000_000
        while not self.idle() or self.connections():
            moved = any(host.copies for host in self.awake())
            if not self.round() and not moved and not self.connections():
                assert self.now < until, "left waiting for the clock"
                self.advance(min(1_000_000, until - self.now))
            self.check()
        sent, self.sent_by.sent = self.sent_by.sent, []
        return sent

    def events(self) -> Iterator[None]:
        """Everything that can happen, one thing at a time."""
        moved = True
        while moved:
            moved = False
            for connection in self.connections():
                if self.queues.get(connection):
                    self.deliver(connection)
                    moved = True
                    yield
            for host in self.awake():
                if host.copies:
                    host.copy(0, 1)
                    moved = True
                    yield
                for act in (host.plan, host.run, host.complete):
                    if act():
                        moved = True
                        yield

    def until(self, reached: Callable[[], object]) -> None:
        """Goes on, one thing at a time, until a state is reached."""
        events = self.events()
        while not reached():
            assert next(events, self) is None, "nothing happens any more, and the state was not reached"
            self.check()
