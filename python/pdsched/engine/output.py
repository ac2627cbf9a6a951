"""What a caller gets while a request runs, and the queue in between."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A piece of a stream: the tokens that came since the last one, or the end."""

    request_id: int
    token_ids: Tokens
    """New tokens; empty at an end that brought none."""
    index: int
    """Position of the first of them among the request's outputs."""
    text: str
    """The text that they complete; empty when the engine was told not to decode."""
    finished: bool = False
    reason: str | None = None
    """Why it ended: stop, length, abort, capacity, timeout, refused or error."""
    detail: str | None = None
    """In words, where the reason alone does not say enough."""
    timing: tuple[tuple[str, int], ...] = ()
    """(phase, time it was entered in nanoseconds), at the end only."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What the core emitted: tokens, or the end."""

    token_ids: Tokens
    index: int
    reason: str | None = None
    detail: str | None = None
    timing: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class TokenStream:
    """The pieces of one request on their way to its caller. Wakes the caller once per batch of events."""

    request_id: int
    pieces: deque[Piece] = field(default_factory=deque)
    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, piece: Piece) -> None:
        """Add a piece; the waiting caller runs after the present batch."""
        self.pieces.append(piece)
        self._event.set()

    async def get(self) -> Piece:
        """The next piece."""
        while not self.pieces:
            self._event.clear()
            await self._event.wait()
        return self.pieces.popleft()
