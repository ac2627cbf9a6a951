"""What a view shows, gathered from a running engine: plain values, so that showing them needs no engine."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace

from pdsched.engine import Engine
from pdsched.engine.stats import RequestStats
from pdsched.worker.telemetry import TransferRecord


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request."""

    name: str
    state: str
    worker: str
    """Such as `1>2`: prefilled on worker 1, decoded on worker 2."""
    prompt_tokens: int
    tokens: int
    ttft_s: float | None
    itl_s: float | None
    """Mean gap between its tokens so far."""
    text: str
    """The end of its answer."""
    active: bool


@dataclass(frozen=True, slots=True)
class TransferRow:
    """One KV transfer."""

    route: str
    tokens: int
    megabytes: float
    gigabytes_per_s: float | None
    there_before_end: float | None
    """Share of the KV that had arrived when the prefill ended; None before that."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker."""

    name: str
    role: str
    used_tokens: int
    capacity_tokens: int
    decoding: int
    """Requests in its newest step's decode rows."""
    step_ms: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of it at one moment."""

    title: str
    seconds: float
    requests: list[RequestRow]
    transfers: list[TransferRow]
    workers: list[WorkerRow]


class Names:
    """Names and answers of requests by number, kept by whoever submits them."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.texts: dict[int, str] = {}

    def name(self, request_id: int) -> str:
        """Its name, or its number."""
        return self.names.get(request_id, f"request {request_id}")


def take(engine: Engine, title: str, since_ns: int, names: Names) -> Snapshot:
    """The present state of `engine`. Costs tens of microseconds per request."""
    return Snapshot(
        title,
        (time.monotonic_ns() - since_ns) / 1e9,
        [request_row(stats, names) for stats in engine.requests.values()],
        _transfers(engine, since_ns),
        _workers(engine),
    )


def request_row(stats: RequestStats, names: Names) -> RequestRow:
    """One request's line."""
    count = len(stats.token_ns)
    gap = (stats.token_ns[-1] - stats.token_ns[0]) / (count - 1) / 1e9 if count > 1 else None
    ttft = None if stats.ttft_ns is None else stats.ttft_ns / 1e9
    places = [str(worker) for worker in (stats.prefill, stats.decode) if worker is not None]
    worker = ">".join(dict.fromkeys(places))
    state = stats.reason if stats.reason is not None else stats.state
    text = names.texts.get(stats.request_id, "")[-200:].replace("\n", " ")
    return RequestRow(
        names.name(stats.request_id), state, worker, stats.prompt_tokens, count, ttft, gap, text, stats.reason is None
    )


def transfer_row(route: str, record: TransferRecord) -> TransferRow:
    """One transfer's line."""
    speed = record.num_bytes / record.copy_seconds / 1e9 if record.copy_seconds > 0 else None
    over = record.chunks > 0 and record.done_chunks == record.chunks
    share = record.bytes_before_last / record.num_bytes if over and record.num_bytes else None
    return TransferRow(route, record.num_tokens, record.num_bytes / 1e6, speed, share)


def _transfers(engine: Engine, since_ns: int) -> list[TransferRow]:
    """Those that began since. A worker's newest ones, as many as it has prompts in work, may not be over yet."""
    prefilling = Counter(stats.prefill for stats in engine.requests.values() if stats.state == "prefilling")
    rows = []
    for (source, target, _), record in reversed(engine.monitor.transfers.items()):
        if record.started_ns >= since_ns:
            in_work = prefilling[source[0]] > 0
            prefilling[source[0]] -= 1
            row = transfer_row(f"{source[0]}>{target[0]}", record)
            rows.append(replace(row, there_before_end=None) if in_work else row)
    return rows[::-1]


def _workers(engine: Engine) -> list[WorkerRow]:
    capacity = engine.config.num_blocks * engine.config.block_size
    held = {load.worker: load.held for load in engine.loads()}
    rows = []
    for peer, role in sorted(engine.workers_up.items()):
        figures = engine.monitor.workers.get(peer)
        step = figures.steps[-1] if figures is not None and figures.steps else None
        rows.append(
            WorkerRow(
                f"worker {peer[0]}",
                role,
                held.get(peer[0], 0),
                capacity,
                step.num_decodes if step else 0,
                (step.end_ns - step.start_ns) / 1e6 if step else None,
            )
        )
    return rows
