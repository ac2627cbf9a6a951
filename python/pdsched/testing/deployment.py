"""A whole deployment in one thread and virtual time: the real `Cluster`, real `Worker`s, ghost KV, a network that
delays and repeats, processes that freeze and die.

Every message keeps its order on its connection; it is lost only with its sender or receiver.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from pdsched import Cluster, ClusterConfig, Emit, Finish, Request, Send, WorkerDown, WorkerUp
from pdsched.testing.ghost import GhostKV, solo
from pdsched.testing.host import GhostHost, HostConfig, Peer

CLUSTER: Peer = (-1, 0)


@dataclass
class Client:
    """A request as its caller sees it."""

    prompt: list[int]
    max_tokens: int
    stop_token_ids: list[int]
    expected: list[int]
    outputs: list[int] = field(default_factory=list)
    reason: str | None = None


class GhostDeployment:
    """Cluster and workers, driven event by event.

    Args:
        hosts: the workers to start.
        cluster: the cluster's configuration.
        record: keep logs of every machine (see :meth:`logs`).
    """

    def __init__(self, hosts: list[HostConfig], cluster: ClusterConfig, *, record: bool = False) -> None:
        self.now = 0
        self.cluster = Cluster(cluster, record=record)
        self.queues: dict[tuple[Peer, Peer], deque[bytes]] = {}
        self.delivered: list[tuple[Peer, Peer, bytes]] = []
        self.clients: dict[int, Client] = {}
        self.frozen: set[Peer] = set()
        self.hosts: dict[int, GhostHost] = {}
        self.logs: dict[str, bytes] = {"cluster": b""}
        self.faults = 0
        for config in hosts:
            self._start(replace(config, record=record))
        self.pump()

    # What a host needs (see `pdsched.testing.host.Network`).

    def send(self, sender: Peer, to: Peer | None, data: bytes) -> None:
        """Queues a message behind those already on that connection."""
        self.queues.setdefault((sender, CLUSTER if to is None else to), deque()).append(data)

    def kill(self, peer: Peer) -> None:
        """Ends a worker's process (if that life still lives) and starts the next one."""
        host = self.hosts.get(peer[0])
        if host is None or host.peer != peer:
            return
        self.faults += 1
        self._keep_log(host)
        self.frozen.discard(peer)
        del self.hosts[peer[0]]
        for connection in [connection for connection in self.queues if connection[1] == peer]:
            del self.queues[connection]
        self.cluster.worker_dead(*peer, self.now)
        self.pump()
        self._start(replace(host.config, incarnation=host.config.incarnation + 1))

    def kv_of(self, peer: Peer) -> GhostKV | None:
        """The memory of a worker that lives."""
        host = self.hosts.get(peer[0])
        return host.kv if host is not None and host.peer == peer else None

    # What a test does.

    def submit(self, request_id: int, prompt: list[int], max_tokens: int, stop_token_ids: list[int]) -> None:
        """A client comes."""
        request = Request(request_id, prompt, max_tokens, stop_token_ids=stop_token_ids)
        self.cluster.submit(request, self.now)
        expected = solo(prompt, max_tokens, stop_token_ids)
        self.clients[request_id] = Client(prompt, max_tokens, stop_token_ids, expected)
        self.pump()

    def abort(self, request_id: int) -> None:
        """A client leaves."""
        self.cluster.abort(request_id, self.now)
        self.pump()

    def connections(self) -> list[tuple[Peer, Peer]]:
        """Connections on which something can be delivered now."""
        return [key for key in sorted(self.queues) if self.queues[key] and key[1] not in self.frozen]

    def deliver(self, connection: tuple[Peer, Peer]) -> None:
        """Delivers the oldest message of a connection."""
        data = self.queues[connection].popleft()
        self.delivered.append((*connection, data))
        self._hand(*connection, data)

    def repeat(self, index: int) -> None:
        """Delivers a message again that was delivered before, however old."""
        sender, to, data = self.delivered[index]
        if to == CLUSTER or (to[0] in self.hosts and self.hosts[to[0]].peer == to and to not in self.frozen):
            self._hand(sender, to, data)

    def advance(self, nanoseconds: int) -> None:
        """Time passes; whoever is not frozen does what is due."""
        self.now += nanoseconds
        self._tick_cluster()
        for host in self.awake():
            host.tick()
        self.pump()

    def awake(self) -> list[GhostHost]:
        """Hosts that are not frozen."""
        return [host for _, host in sorted(self.hosts.items()) if host.peer not in self.frozen]

    def pump(self) -> None:
        """Does what the cluster asks for, and checks what it tells its clients."""
        while (action := self.cluster.poll_action()) is not None:
            match action:
                case Send():
                    self.send(CLUSTER, action.to, action.data)
                case Emit():
                    client = self.clients[action.request]
                    assert client.reason is None, f"request {action.request}: a token after its end"
                    assert action.index == len(client.outputs), f"request {action.request}: index {action.index}"
                    client.outputs.extend(int(token) for token in action.token_ids)
                    expected = client.expected[: len(client.outputs)]
                    assert client.outputs == expected, f"request {action.request}: {client.outputs}, alone {expected}"
                case Finish():
                    client = self.clients[action.request]
                    assert client.reason is None, f"request {action.request} ended twice"
                    client.reason = action.reason
                    if action.reason in ("stop", "length"):
                        assert client.outputs == client.expected, f"request {action.request} ended early"
                case WorkerUp() | WorkerDown() | _:
                    pass

    def check(self) -> None:
        """Integrity of every machine."""
        self.cluster.check()
        for host in self.hosts.values():
            host.worker.check()

    def settle(self, *, limit: int = 100_000) -> None:
        """Everything thaws and works until all requests have ended and all pools are whole.

        Raises:
            AssertionError: it does not come to that within ``limit`` rounds.
        """
        self.frozen.clear()
        for _ in range(limit):
            if not self.round():
                if self.idle():
                    return
                due = [self.cluster.poll_timeout(), *(host.worker.poll_timeout() for host in self.awake())]
                times = [time for time in due if time is not None]
                assert times, "unfinished work and nothing to wait for"
                self.advance(max(min(times) - self.now, 1))
        left = {key: client for key, client in self.clients.items() if client.reason is None}
        used = {key: host.worker.num_used_blocks for key, host in self.hosts.items()}
        raise AssertionError(f"not settled: unfinished {left}, used blocks {used}")

    def round(self, *, copies: bool = True) -> bool:
        """One round of everything that can happen without time passing."""
        moved = False
        for connection in self.connections():
            self.deliver(connection)
            moved = True
        for host in self.awake():
            while copies and host.copies:
                host.copy(0, 1_000_000)
            moved |= host.plan() | host.run() | host.complete()
        return moved

    def idle(self) -> bool:
        """All requests ended, all pools whole, nothing under way."""
        ended = all(client.reason is not None for client in self.clients.values())
        return ended and all(host.worker.is_idle() for host in self.hosts.values())

    def take_logs(self) -> dict[str, bytes]:
        """Logs of all machines, the dead ones' too, by name."""
        for host in self.hosts.values():
            self._keep_log(host)
        self.logs["cluster"] += self.cluster.take_log()
        return self.logs

    def _start(self, config: HostConfig) -> None:
        self.hosts[config.worker_id] = GhostHost(config, self)

    def _keep_log(self, host: GhostHost) -> None:
        name = f"worker-{host.peer[0]}-{host.peer[1]}"
        self.logs[name] = self.logs.get(name, b"") + host.worker.take_log()

    def _hand(self, sender: Peer, to: Peer, data: bytes) -> None:
        if to == CLUSTER:
            self.cluster.handle(data, self.now)
            self.pump()
        else:
            host = self.hosts.get(to[0])
            if host is not None and host.peer == to:
                host.receive(data)

    def _tick_cluster(self) -> None:
        due = self.cluster.poll_timeout()
        if due is not None and due <= self.now:
            self.cluster.handle_timeout(self.now)
            self.pump()
