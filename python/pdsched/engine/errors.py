"""What can go wrong outside a single request."""

from __future__ import annotations


class EngineError(RuntimeError):
    """The engine cannot do what was asked; the text says why."""


class WorkerStartError(EngineError):
    """A worker did not start; the text carries its reason or its last lines of standard error."""
