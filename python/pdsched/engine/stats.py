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


def percentile(values: Iterable[float], q: float) -> float:
    """The q-th percentile by linear interpolation; NaN when there are no values."""
    array = np.asarray(list(values), dtype=np.float64)
    return float(np.percentile(array, q)) if array.size else float("nan")
