"""Figures for views and reports: what steps and transfers took. Nothing on the control path depends on them.

A worker gathers them and sends at most a few messages a second, whatever its step rate; when nobody reads they are
lost. Times are nanoseconds of CLOCK_MONOTONIC, which processes of one machine share.
"""

from __future__ import annotations

import msgspec
import zmq

from pdsched.transfer import Completion, PeerId, Runs

FLUSH_NS = 250_000_000
"""Shortest time between two messages of one worker."""
MAX_RECORDS = 4096
"""Records kept for one message; what comes beyond is dropped."""


class StepRecord(msgspec.Struct, array_like=True):
    """One step as the runner saw it."""

    start_ns: int
    end_ns: int
    num_tokens: int
    num_decodes: int
    num_rows: int
    failed: bool = False


class TransferRecord(msgspec.Struct, array_like=True):
    """One KV transfer, as far as it has come, seen by the sender."""

    transfer: int
    worker: int
    incarnation: int
    started_ns: int
    num_tokens: int = 0
    """Tokens handed to the channel so far."""
    chunks: int = 0
    """Chunks handed to the channel so far."""
    done_chunks: int = 0
    num_bytes: int = 0
    """Bytes copied so far."""
    bytes_before_last: int = 0
    """Bytes that had arrived when the newest chunk was handed over: at last, what was there when the prefill ended."""
    copy_seconds: float = 0.0
    done_ns: int = 0
    """When the newest completion came."""
    failed: bool = False


class Telemetry(msgspec.Struct, array_like=True):
    """What one worker sends at a time."""

    worker: int
    incarnation: int
    steps: list[StepRecord]
    transfers: list[TransferRecord]
    dropped_messages: int = 0
    dropped_records: int = 0
    cpu_ns: int = 0
    """CPU time of the worker process so far."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Telemetry)


def decode(data: bytes) -> Telemetry:
    """A message as the view reads it."""
    return _decoder.decode(data)


class TelemetrySender:
    """A worker's end: collects records, flushes when due."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.set_hwm(64)
        self._socket.linger = 0
        self._socket.connect(address)
        self._steps: list[StepRecord] = []
        self._transfers: dict[tuple[int, PeerId], TransferRecord] = {}
        self._changed: set[tuple[int, PeerId]] = set()
        self._next_flush_ns = 0
        self._dropped = 0

    def step(self, record: StepRecord) -> None:
        """A step has ended."""
        if len(self._steps) < MAX_RECORDS:
            self._steps.append(record)
        else:
            self._dropped += 1

    def transfer_started(self, transfer: int, peer: PeerId, runs: Runs, now: int) -> None:
        """A chunk went to the channel."""
        key = (transfer, peer)
        record = self._transfers.get(key)
        if record is None:
            record = self._transfers[key] = TransferRecord(transfer, peer[0], peer[1], now)
        record.num_tokens += int(runs.num_tokens.sum())
        record.chunks += 1
        record.bytes_before_last = record.num_bytes
        self._changed.add(key)

    def transfer_done(self, completion: Completion, now: int) -> None:
        """A chunk came back from the channel."""
        key = (completion.transfer, completion.peer)
        record = self._transfers.get(key)
        if record is None:
            return
        record.done_chunks += 1
        record.num_bytes += completion.num_bytes
        record.copy_seconds += completion.seconds
        record.failed = record.failed or not completion.ok
        record.done_ns = now
        self._changed.add(key)

    def due(self) -> int | None:
        """When `flush` has something to send; None when there is nothing."""
        return self._next_flush_ns if self._steps or self._changed else None

    def flush(self, peer: PeerId, now: int, dropped_messages: int, cpu_ns: int) -> None:
        """Send what has gathered, if it is time. `peer` is the worker itself."""
        due = self.due()
        if due is None or now < due:
            return
        transfers = [self._transfers[key] for key in sorted(self._changed)]
        message = Telemetry(*peer, self._steps, transfers, dropped_messages, self._dropped, cpu_ns)
        try:
            self._socket.send(_encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            self._dropped += len(self._steps) + len(transfers)
        self._steps = []
        self._changed.clear()
        while len(self._transfers) > MAX_RECORDS:  # oldest first: dicts keep their order
            self._transfers.pop(next(iter(self._transfers)))
        self._next_flush_ns = now + FLUSH_NS

    def close(self) -> None:
        """Close the socket."""
        self._socket.close(linger=100)
