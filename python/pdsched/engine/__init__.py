"""The asyncio engine: it launches worker processes, drives one core `Cluster`, and streams tokens to callers.

Importing this package imports neither torch nor transformers; both live in the worker processes.
"""

from pdsched.engine.config import EngineConfig, WorkerSpec
from pdsched.engine.engine import Engine
from pdsched.engine.errors import EngineError, WorkerStartError
from pdsched.engine.output import RequestOutput

__all__ = ["Engine", "EngineConfig", "EngineError", "RequestOutput", "WorkerSpec", "WorkerStartError"]
