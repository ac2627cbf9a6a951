"""What an engine is made of. Every error names the field and the value."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Role = Literal["prefill", "decode", "both"]
ROLES: tuple[Role, ...] = ("prefill", "decode", "both")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker process."""

    role: Role
    """`prefill` turns prompts into KV, `decode` generates from it, `both` does all of a request."""
    core: int | None = None
    """CPU core it stays on; None leaves it to the system."""
    chunk_size: int | None = None
    """Prompt tokens per step at most; None: as many as the step's token budget holds."""
    max_num_seqs: int = 32
    """Requests that run at once."""
    max_num_batched_tokens: int | None = None
    """Token budget of a step; None: the chunk size, plus one token per running request where there are decodes."""
    scheduler: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of `SchedulerConfig`."""
    worker: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the core's `Worker`, such as `kill_after_ns`."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(ROLES)}, got {self.role!r}")
        for name in ("chunk_size", "max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def scheduler_arguments(self, max_model_len: int, eos_token_id: int | None, kv_tokens: int) -> dict[str, Any]:
        """Keyword arguments of `SchedulerConfig`, beside block size and number of blocks."""
        budget = self.max_num_batched_tokens
        if budget is None:
            budget = self.chunk_size or min(max_model_len, kv_tokens)
            budget += 0 if self.role == "prefill" else self.max_num_seqs  # there are no decodes on a prefill worker
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": budget,
            "chunk_size": self.chunk_size,
            "max_model_len": max_model_len,
            "eos_token_id": eos_token_id,
            **self.scheduler,
        }


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One deployment on one machine."""

    model: str | Path
    """A `transformers` folder, or the name of the model that `pdsched fetch-model` gets."""
    workers: list[WorkerSpec]
    block_size: int = 16
    """Tokens per KV block."""
    kv_tokens: int = 16_384
    """Tokens that each worker's KV pool holds."""
    max_model_len: int | None = None
    """Longest sequence in tokens; None: what the model allows."""
    threads: int = 1
    """Torch threads per worker."""
    start_timeout: float = 180.0
    """Seconds within which every worker must be ready."""
    cluster: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of `ClusterConfig` (leases, silences, queue limits)."""
    record: str | Path | None = None
    """Existing folder for the event logs of the cluster and the workers; None records nothing."""

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError("workers must name at least one worker, got none")
        for name in ("block_size", "kv_tokens", "threads", "start_timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.kv_tokens < self.block_size:
            raise ValueError(f"kv_tokens must be at least one block of {self.block_size}, got {self.kv_tokens}")
        if self.record is not None and not os.path.isdir(self.record):
            raise ValueError(f"record must be an existing folder, got {str(self.record)!r}")
        check_roles(self.workers)

    @property
    def num_blocks(self) -> int:
        """Blocks of each worker's pool."""
        return self.kv_tokens // self.block_size


def check_roles(workers: list[WorkerSpec]) -> None:
    """Raise `ValueError` for a set of roles by which no request could ever be served."""
    roles = {spec.role for spec in workers}
    if "both" not in roles and roles != {"prefill", "decode"}:
        raise ValueError(
            f"workers must include one that does both, or a prefill and a decode worker, got {sorted(roles)}"
        )
