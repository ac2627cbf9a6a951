"""Times of requests as the engine sees them, and the figures every report is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class RequestStats:
    """One request's life in times of the engine's monotonic clock, in nanoseconds."""

    request_id: int
    prompt_tokens: int
    submitted_ns: int
    token_ns: list[int] = field(default_factory=list)
    """When each output token reached the engine."""
    state: str = "queued"
    prefill: int | None = None
    """Worker that computes the prompt."""
    decode: int | None = None
    """Worker that generates."""
    finished_ns: int | None = None
    reason: str | None = None

    def enter(self, state: str, prefill: int | None, decode: int | None) -> None:
        """A new state. Of the workers the last ones named stay, until the request is placed anew."""
        self.state = state
        if state in ("queued", "resuming"):
            self.prefill = self.decode = None
        self.prefill = self.prefill if prefill is None else prefill
        self.decode = self.decode if decode is None else decode

    @property
    def ttft_ns(self) -> int | None:
        """Time to first token; None before it."""
        return self.token_ns[0] - self.submitted_ns if self.token_ns else None

    def gaps_ns(self) -> np.ndarray:
        """Inter-token latencies: each gap between two tokens that follow each other."""
        return np.diff(np.asarray(self.token_ns, dtype=np.int64))

    def gap_ends_ns(self) -> np.ndarray:
        """When each of `gaps_ns` ended."""
        return np.asarray(self.token_ns[1:], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """How full a worker is, as the cluster sees it; in tokens unless said otherwise."""

    worker: int
    role: str
    up: bool
    """It may be given new requests."""
    capacity: int
    """KV it can hold."""
    held: int
    """KV it holds."""
    booked: int
    """Placed there, and not covered by a report yet."""
    expected_growth: int
    """Outputs still expected from what is placed there."""
    occupancy: float
    """Held, booked and expected over capacity."""
    queued_prefill: int
    """Prompt tokens that it still has to compute."""
    placements: int
    """Bookings on it."""


def percentile(values: Iterable[float], q: float) -> float:
    """The q-th percentile by linear interpolation; NaN when there are no values."""
    array = np.asarray(list(values), dtype=np.float64)
    return float(np.percentile(array, q)) if array.size else float("nan")
